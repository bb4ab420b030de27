"""Write ``docs/promises.md``: what is promised, by which tests it is proved, and what their runs have found.

    python -m tests.lab.report            take over the runs of this checkout, and write the page
    python -m tests.lab.report --check    only say whether the page is what the kept runs say

Runs are noted in ``.lab/runs.jsonl`` by whoever makes them. The last one of each experiment, store and form, added up
with its other runs on that commit, is kept in ``docs/lab-runs.json``, which is committed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import marks
from tests.lab.promises import PROMISES
from tests.lab.record import ROOT, RUNS

KEPT = ROOT / "docs" / "lab-runs.json"
PAGE = ROOT / "docs" / "promises.md"
MUTANTS = ROOT / "docs" / "mutants.json"
_COUNTED = ("faults", "reached", "violations")
_INTRODUCTION = """\
What you may rely on, where it ends, and what tries to break it. [The lab](lab.md) says how that is done and what it has
found; [what is promised](explanation/delivery-guarantees.md) says it in words.
"""


# --- the tests ---


def proofs() -> dict[str, list[str]]:
    """Find the tests that carry each promise, in the order of their files."""
    return marks.carriers("promise")


# --- the runs ---


def kept() -> list[dict[str, Any]]:
    """Read what was kept."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else []


def taken_over(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put new runs in the place of older ones of the same experiment; runs on one commit are added up."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {_key(run): dict(run) for run in old}
    for run in new:
        before = found.get(_key(run))
        same = before is not None and before["commit"] == run["commit"]
        found[_key(run)] = _added(before, run) if before is not None and same else {"runs": 1, **run}
    return [found[key] for key in sorted(found)]


def _key(run: Mapping[str, Any]) -> tuple[str, str, str]:
    return run["test"].partition("[")[0], run["store"], run["form"]


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    sums = {name: dict(Counter(one[name]) + Counter(other[name])) for name in _COUNTED}
    numbers = {name: round(one[name] + other[name], 1) for name in ("cases", "seconds")}
    return {**one, **sums, **numbers, "runs": one["runs"] + 1, "date": other["date"], "figures": other["figures"]}


# --- the page ---


def page(runs: list[dict[str, Any]]) -> str:
    """Write the page."""
    tests = proofs()
    parts = [
        "# Promises, and how they are shown\n",
        "<!-- Written by tests/lab/report.py from the runs of the lab; run `make promises`. -->\n",
        _INTRODUCTION,
        "| | promise | limits | tests | faults made | violations |\n|---|---|---|---|---|---|",
    ]
    for name, promise in PROMISES.items():
        mine = [run for run in runs if name in run["promises"]]
        faults, found = (sum((Counter(run[what]) for run in mine), Counter()) for what in ("faults", "violations"))
        made = f"{faults.total():,}" if mine else "-"
        shown = f"{len(tests.get(name, []))} in {len({each.partition('::')[0] for each in tests.get(name, [])})} files"
        told = f"{found.total():,}" if mine else "-"
        parts.append(f"| `{name}` | {promise.says} | {promise.limits} | {shown} | {made} | {told} |")
    parts += ["", *_experiments(runs), *_mutants(), *_tests(tests)]
    return "\n".join(parts).rstrip() + "\n"


def _experiments(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield "## Runs\n"
    yield "The last run of each experiment, of its short form (with every change) and its long one (`make lab`).\n"
    yield "| experiment | store | form | runs | cases | faults by kind | seconds | violations | date, commit |"
    yield "|---|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["kind"], run["store"], run["form"]].append(run)
    for (kind, store, form), of in sorted(groups.items()):
        faults, found = (sum((Counter(run[what]) for run in of), Counter()) for what in ("faults", "violations"))
        shown = ", ".join(f"{name} {number:,}" for name, number in faults.most_common()) or "-"
        last = max(of, key=lambda run: run["date"])
        cases, seconds = sum(run["cases"] for run in of), sum(run["seconds"] for run in of)
        times = sum(run.get("runs", 1) for run in of)
        yield (
            f"| {kind} | {store} | {form} | {times} | {cases:,} | {shown} | {seconds:,.0f} | {found.total():,} |"
            f" {last['date']}, {last['commit']} |"
        )
    yield ""


def _mutants() -> Iterator[str]:
    if not MUTANTS.exists():
        return
    mutants = json.loads(MUTANTS.read_text(encoding="utf-8"))
    caught = [each for each in mutants if each["is_caught"]]
    yield "## Mutants\n"
    yield f"{len(mutants)} deliberate bugs in the engine; {len(caught)} of them were caught ([list](mutants.json)).\n"
    yield "| mutant | what it breaks | caught by | as | seconds |\n|---|---|---|---|---|"
    for each in mutants:
        yield f"| {each['name']} | {each['breaks']} | {each['caught_by']} | {each['as_what']} | {each['seconds']} |"
    yield ""


def _tests(tests: Mapping[str, list[str]]) -> Iterator[str]:
    yield "## Tests\n"
    for name in PROMISES:
        files = Counter(each.partition("::")[0] for each in tests.get(name, []))
        yield f"- `{name}`: " + ", ".join(f"{path} ({number})" for path, number in sorted(files.items()))


def main(arguments: list[str]) -> int:
    """Take over, write, or check."""
    runs = kept()
    if "--check" in arguments:
        if page(runs) == PAGE.read_text(encoding="utf-8"):
            return 0
        print("docs/promises.md is not what the tests and docs/lab-runs.json say: run `make promises`")
        return 1
    new = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []
    runs = taken_over(runs, new)
    KEPT.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(runs), encoding="utf-8")
    Path(RUNS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
