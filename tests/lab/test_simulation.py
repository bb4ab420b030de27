"""The simulation: several workers, producers and operators on one file in virtual time, with faults by seed.

Safety is watched at every step, liveness after the faults are over. A seed that has ever failed is in ``seeds.txt``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import count

import pytest

from tests.lab.record import ROOT, Record
from tests.lab.simulation.running import Summary, digests, kept, run_seeds

PROMISES = (
    "durable", "no-phantom", "effect-once", "fence", "not-early", "bounded", "not-stuck", "trail", "notices",
    "ends-named", "one-winner", "order", "redrive-safe",
)  # fmt: skip
PARTS, PART = 8, 150
"""The short form, and the seeds of each of its parts: 7 to 8 s each on one core."""

FAULTS = (
    "killed before a statement", "killed after a statement", "killed between commit and answer", "killed anywhere",
    "stopped past its lease", "event loop blocked", "busy", "full", "io error", "clock set",
)  # fmt: skip
OFTEN = (
    "swept", "lease lost", "duplicate suppressed", "published twice", "dead letter", "replayed",
    "key promoted", "key promoted after a crash",
    "cancelled in flight", "timed out", "put back", "unblocked", "dependency open", "throttled", "batch finished",
    "redrive done", "redrive aborted", "compensated", "stale settle refused", "session begun anew", "operator refused",
)  # fmt: skip
RARELY = (
    "redrive aborted half way",
    "late step",
    "overtime taken over",
    "lost too often",
    "left behind",
    "batch forced",
)
"""Reached once in some hundred seeds: only a long run is asked for them."""


def examine(record: Record, seeds: Iterable[int], until: Callable[[Summary], bool] = lambda _: False) -> Summary:
    summary = run_seeds(seeds, until=until)
    record.cases += summary.seeds
    record.faults.update(summary.faults)
    record.reached.update(summary.reached)
    record.violations.update(summary.violations)
    record.figures["seeds_a_second"] = round(summary.seeds / summary.seconds, 1)
    print(summary)
    return summary


@pytest.mark.promise(*PROMISES)
@pytest.mark.req("B1", "B4", "B6", "B7")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_fails_nothing_is_lost_doubled_early_or_stuck(
    part: int, record: Callable[..., Record], seed: int
) -> None:
    first = seed + part * PART

    summary = examine(record("simulation"), range(first, first + PART))

    assert not summary.failed, str(summary)
    assert all(summary.faults[name] for name in FAULTS), summary.faults
    assert sum(summary.reached[name] > 0 for name in OFTEN) >= len(OFTEN) - 3, summary.reached


@pytest.mark.lab
@pytest.mark.promise(*PROMISES)
@pytest.mark.timeout(0)
def test_whatever_fails_in_many_seeds(record: Callable[..., Record], seed: int, budget: float) -> None:
    end = time.monotonic() + budget

    summary = examine(record("simulation"), count(seed), lambda _: time.monotonic() > end)

    assert not summary.failed, str(summary)
    if summary.seeds >= 2_000:
        missed = [name for name in (*FAULTS, *OFTEN, *RARELY) if not (summary.faults + summary.reached)[name]]
        assert not missed


@pytest.mark.promise("durable")
def test_seeds_that_once_failed_do_not_fail_again() -> None:
    summary = run_seeds(kept())

    assert summary.seeds > 0
    assert not summary.failed, str(summary)


@pytest.mark.promise("durable")
def test_a_seed_gives_the_same_trace_every_time_and_everywhere() -> None:
    seeds = range(20)

    here = digests(seeds)

    assert digests(reversed(seeds))[::-1] == here
    elsewhere = subprocess.run(
        [sys.executable, "-m", "tests.lab.simulation", "digests", "0", "20"], cwd=ROOT, check=True, text=True,
        capture_output=True, env={**os.environ, "PYTHONHASHSEED": "77"},
    )  # fmt: skip
    assert elsewhere.stdout.split() == here
