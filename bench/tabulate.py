"""Turn what `redrive bench … --json` printed into the tables of results.md.

redrive bench all --peers --raw --json > all.json
python bench/tabulate.py all.json > bench/results.md
"""

import json
import sys
from pathlib import Path
from typing import Any

LEFT_OUT = ("rates", "raw_rates")


def reports(paths: list[str]) -> list[dict[str, Any]]:
    """Read all reports of all files."""
    found = []
    for path in paths:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
        found += read if isinstance(read, list) else [read]
    return found


def text(value: Any) -> str:
    """Write a number for people."""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def show(report: dict[str, Any]) -> None:
    """Print one report."""
    settings = ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in report["settings"].items())
    print(f"## {report['scenario']}, {report['versions']['store']}\n\n{settings}; commit {report['commit']}, ", end="")
    print(f"load {report['machine']['load_1_min']} at the end\n")
    goals = {goal["figure"]: goal for goal in report["goals"]}
    names = [name for name in report["spread"] if name not in goals] + list(goals)
    names += [name for name in ("first_rate", "last_rate", "raw_first_rate", "raw_last_rate") if name in report]
    print("| figure | median | min … max | target | |\n|---|---|---|---|---|")
    for name in names:
        spread = report["spread"].get(name)
        goal = goals.get(name)
        cells = [name, text(report[name]), f"{text(spread['min'])} … {text(spread['max'])}" if spread else ""]
        cells += [f"{'≤' if goal['at_most'] else '≥'} {text(goal['wanted'])}" if goal else ""]
        cells += [("reached" if goal["reached"] else "**missed**") if goal else ""]
        print("| " + " | ".join(cells) + " |")
    for name in LEFT_OUT:
        if name in report:
            print(f"\n{name.replace('_', ' ')}, one a window: {', '.join(map(text, report[name]))}")
    if report["table"]:
        columns = list(report["table"][0])
        print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
        for row in report["table"]:
            print("| " + " | ".join(text(row[column]) for column in columns) + " |")
    for note in report["notes"]:
        print(f"\n{note}")
    print()


def main() -> None:
    """Print the page."""
    found = reports(sys.argv[1:])
    machine, versions = found[0]["machine"], {}
    for report in found:
        versions |= report["versions"]
    del versions["store"]
    print("# Results\n")
    print(f"{found[0]['at'][:10]}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, ", end="")
    print(f"{machine['system']}; " + ", ".join(f"{name} {value}" for name, value in versions.items()) + ".")
    print("What is measured and how: [README.md](README.md). Rates are events a second.\n")
    for report in found:
        if "error" in report:
            print(f"## {report['scenario']}, {report['store']}\n\nno figure: {report['error']}\n")
        else:
            show(report)


if __name__ == "__main__":
    main()
