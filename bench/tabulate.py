"""Turn what `redrive bench … --json` printed into the tables of results.md and the sentence of the README.

`python bench/run.py all --write` does both. By hand:

    redrive bench all --peers --raw --json > all.json
    python bench/tabulate.py all.json > bench/results.md
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

LEFT_OUT = ("rates", "raw_rates")
BEGINS, ENDS = "<!-- speed: written by bench/run.py -->", "<!-- end of speed -->"


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


def table(report: dict[str, Any]) -> str:
    """Write one report."""
    settings = ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in report["settings"].items())
    load = report["machine"]["load_1_min"]
    lines = [f"## {report['scenario']}, {report['versions']['store']}\n"]
    lines += [f"{settings}; commit {report['commit']}, load {load} at the end\n"]
    goals = {goal["figure"]: goal for goal in report["goals"]}
    names = [name for name in report["spread"] if name not in goals] + list(goals)
    names += [name for name in ("first_rate", "last_rate", "raw_first_rate", "raw_last_rate") if name in report]
    lines += ["| figure | median | min … max | target | |", "|---|---|---|---|---|"]
    for name in names:
        spread = report["spread"].get(name)
        goal = goals.get(name)
        cells = [name, text(report[name]), f"{text(spread['min'])} … {text(spread['max'])}" if spread else ""]
        cells += [f"{'≤' if goal['at_most'] else '≥'} {text(goal['wanted'])}" if goal else ""]
        cells += [("reached" if goal["reached"] else "**missed**") if goal else ""]
        lines.append("| " + " | ".join(cells) + " |")
    for name in LEFT_OUT:
        if name in report:
            lines.append(f"\n{name.replace('_', ' ')}, one a window: {', '.join(map(text, report[name]))}")
    if report["table"]:
        columns = list(report["table"][0])
        lines += ["\n| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(text(row[column]) for column in columns) + " |" for row in report["table"]]
    lines += [f"\n{note}" for note in report["notes"]]
    return "\n".join(lines) + "\n"


def page(found: list[dict[str, Any]]) -> str:
    """Write the page."""
    measured = [report for report in found if "error" not in report]
    parts = ["# Results\n"]
    if measured:
        machine, versions = measured[0]["machine"], {}
        for report in measured:
            versions |= report["versions"]
        del versions["store"]
        where = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, {machine['system']}"
        named = ", ".join(f"{name} {value}" for name, value in versions.items())
        parts.append(f"{measured[0]['at'][:10]}, {where}; {named}.")
    parts.append("What is measured and how: [README.md](README.md). Rates are events a second.\n")
    for report in found:
        if "error" in report:
            parts.append(f"## {report['scenario']}, {report['store']}\n\nno figure: {report['error']}\n")
        else:
            parts.append(table(report))
    return "\n".join(parts)


def sentence(found: list[dict[str, Any]]) -> str:
    """Say what a worker drains on each store, with its spread and its commit; nothing if that was not measured."""
    by = {(report["scenario"], report["store"]): report for report in found if "error" not in report}
    told = []
    for store, name, driver, peer in (
        ("postgres", "PostgreSQL", "asyncpg", "pgqueuer"),
        ("sqlite", "SQLite", "sqlite3", "huey"),
    ):
        if (drain := by.get(("drain", store))) is None:
            return ""
        spread = drain["spread"]["rate"]
        beside = f"{drain['ratio_to_raw']:.0%} of a bare {driver} loop"
        if (ratio := drain.get(f"ratio_to_{peer}")) is not None:
            beside += f", {ratio:.1f} × {peer}"  # noqa: RUF001 - times
        rates = f"{text(drain['rate'])} ({text(spread['min'])} … {text(spread['max'])})"
        told.append(f"{rates} no-op events a second on {name} ({beside})")
    latency = by.get(("latency", "postgres"))
    lone = f". A lone event is heard of in {latency['p50_ms']:.1f} ms on PostgreSQL" if latency else ""
    machine = by["drain", "postgres"]["machine"]
    commit = by["drain", "postgres"]["commit"]
    return (
        f"Speed, on {machine['cores']} cores with every commit on disk (commit {commit}; medians, with the least and"
        f" the most): a worker drains {told[0]} and {told[1]}{lone}."
    )


def into_readme(path: Path, found: list[dict[str, Any]]) -> None:
    """Put the sentence between its two comments."""
    if new := sentence(found):
        old = path.read_text(encoding="utf-8")
        between = re.compile(f"{re.escape(BEGINS)}.*?{re.escape(ENDS)}", re.DOTALL)
        path.write_text(between.sub(lambda _: f"{BEGINS}\n{new}\n{ENDS}", old), encoding="utf-8")


if __name__ == "__main__":
    print(page(reports(sys.argv[1:])), end="")
