"""Crash points: one rich story (keys, a retry, a dead letter with its hook, steps undone, a dependency, a batch, a
cancel and a redrive), its process killed before every statement, started again, and the end is the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.lab.record import Record
from tests.lab.simulation.running import Summary, run_crashes, run_pairs

PROMISES = ("durable", "effect-once", "fence", "not-stuck", "trail", "notices", "order", "redrive-safe")
STRIDE = 7
"""Of the short form: 110 of 750 statements."""


def examine(record: Record, summary: Summary) -> None:
    record.cases += summary.seeds
    record.faults.update(summary.faults)
    record.reached.update(summary.reached)
    record.violations.update(summary.violations)
    assert not summary.failed, str(summary)


@pytest.mark.promise(*PROMISES)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("half", range(2))
def test_a_story_ends_the_same_wherever_its_process_is_killed(half: int, record: Callable[..., Record]) -> None:
    summary = run_crashes(2 * STRIDE, first=1 + half * STRIDE)

    examine(record("crash points"), summary)
    assert summary.seeds >= 40
    assert summary.faults["killed before a statement"] == summary.seeds - 1  # the first was told as it is
    assert all(
        summary.reached[name] for name in ("swept", "key promoted", "redrive done", "compensated", "batch finished")
    )


@pytest.mark.lab
@pytest.mark.promise(*PROMISES)
@pytest.mark.timeout(0)
def test_a_story_killed_before_every_statement_and_then_once_more(
    record: Callable[..., Record], seed: int, budget: float
) -> None:
    end = time.monotonic() + budget
    noted = record("crash points")

    singles = run_crashes(until=lambda _: time.monotonic() > end)
    examine(noted, singles)

    statements, dice = singles.reached["statements"], random.Random(seed)
    pairs = ((dice.randrange(1, statements), dice.randrange(1, statements)) for _ in range(statements**2))
    examine(noted, run_pairs(pairs, until=lambda _: time.monotonic() > end))
