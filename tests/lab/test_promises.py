"""Each promise is proved by tests, and the page about them says what the tests and the kept runs say."""

from __future__ import annotations

import json

from tests.lab import report
from tests.lab.promises import PROMISES


def test_each_promise_has_a_test_and_each_mark_names_a_promise() -> None:
    found = report.proofs()
    assert [name for name in PROMISES if not found.get(name)] == []
    assert sorted(found.keys() - PROMISES.keys()) == []


def test_the_page_of_promises_is_up_to_date() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(report.kept()), "run `make promises`"


def test_no_kept_run_found_a_violation() -> None:
    assert [run["test"] for run in report.kept() if run["violations"]] == []


def test_every_mutant_was_caught() -> None:
    mutants = json.loads(report.MUTANTS.read_text(encoding="utf-8"))
    assert len(mutants) >= 30
    assert [each["name"] for each in mutants if not each["is_caught"]] == []


def test_runs_of_one_commit_are_added_up_and_later_ones_take_their_place() -> None:
    run = {
        "kind": "kill -9", "store": "sqlite", "test": "tests/lab/test_x.py::test_y[0]", "promises": ["durable"],
        "form": "short", "seed": 0, "cases": 2, "faults": {"kill": 3}, "reached": {}, "violations": {}, "figures": {},
        "seconds": 1.5, "date": "2030-01-01", "commit": "abc",
    }  # fmt: skip
    (both,) = report.taken_over([], [run, {**run, "test": "tests/lab/test_x.py::test_y[1]", "faults": {"stop": 1}}])
    assert (both["runs"], both["cases"], both["faults"], both["seconds"]) == (2, 4, {"kill": 3, "stop": 1}, 3.0)
    (later,) = report.taken_over([both], [{**run, "commit": "def"}])
    assert (later["runs"], later["cases"], later["commit"]) == (1, 2, "def")
