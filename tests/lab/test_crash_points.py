"""Crash points: one rich story (keys, a retry, a dead letter with its hook, steps undone, a dependency, a batch, a
cancel and a redrive), its process killed before every statement, between every commit and its answer, after every
effect outside the database and at every await, started again, and the end is the same."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from tests.lab.record import Record
from tests.lab.simulation.disk import Disk, a_disk
from tests.lab.simulation.points import (
    AWAIT,
    COMMIT,
    EFFECT,
    STATEMENT,
    Crashes,
    Point,
    Told,
    pairs,
    places,
    point,
    singles,
)
from tests.lab.simulation.process import ANSWER, AWAITING, BEFORE, OUTSIDE
from tests.lab.simulation.running import Summary, quiet, run_story
from tests.lab.simulation.script import Scripted, tell

PROMISES = ("durable", "effect-once", "fence", "not-stuck", "trail", "notices", "order", "redrive-safe")
PARTS = 4
"""Of the short form: each takes every fourth place, commit and effect."""


def examine(
    record: Record,
    tellings: Callable[[Told], Iterable[Crashes]],
    until: Callable[[Summary], bool] = lambda _: False,
) -> Summary:
    summary = run_story(tellings, until=until)
    record.cases += summary.seeds
    record.faults.update(summary.faults)
    record.reached.update(summary.reached)
    record.violations.update(summary.violations)
    record.figures["tellings_a_second"] = round(summary.seeds / summary.seconds, 1)
    assert not summary.failed, str(summary)
    return summary


@pytest.mark.promise(*PROMISES)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_story_ends_the_same_wherever_its_process_is_killed(part: int, record: Callable[..., Record]) -> None:
    summary = examine(record("crash points"), lambda told: places(told)[part::PARTS])

    assert all(summary.faults[name] for name in (BEFORE, ANSWER, OUTSIDE, AWAITING)), summary.faults
    assert summary.faults.total() == summary.seeds - 2  # two were told as the story is
    assert all(
        summary.reached[name] for name in ("swept", "key promoted", "redrive done", "compensated", "batch finished")
    )


class Looked(Scripted):
    """A telling that keeps what its crash has left, in the file and outside."""

    left: tuple[str, Counter[str]] = ("", Counter())

    def died(self, ended: asyncio.Event) -> None:
        self.left = "\n".join(self.disk.hand.iterdump()), self.outside.copy()
        super().died(ended)


def left_by(disk: Disk, crash: Point) -> tuple[str, Counter[str]]:
    disk.empty()
    world = Looked(disk, [crash])
    world.run()
    return world.left


def test_one_point_of_a_place_stands_for_the_others() -> None:
    with quiet(), a_disk() as disk:
        told = tell(disk).told
        several = [points for points in told.places.values() if len(points) > 1]
        chosen = several[:: len(several) // 12]

        differing = [
            f"{points[0]} and {points[-1]}"
            for points in chosen
            if left_by(disk, points[0]) != left_by(disk, points[-1])
        ]
        files = {left_by(disk, points[0])[0] for points in chosen}

    assert len(files) == len(chosen) >= 12  # and places differ
    assert differing == []
    assert sum(len(points) for points in told.places.values()) == told.counted[STATEMENT] + told.counted[AWAIT]


@pytest.mark.lab
@pytest.mark.promise(*PROMISES)
@pytest.mark.timeout(0)
def test_a_story_killed_at_every_point_and_then_once_more(
    record: Callable[..., Record], seed: int, budget: float
) -> None:
    end = time.monotonic() + budget

    def tellings(told: Told) -> Iterable[Crashes]:
        every = (singles(told, kind) for kind in (EFFECT, COMMIT, STATEMENT, AWAIT))
        return chain(*every, pairs(told, seed))

    summary = examine(record("crash points"), tellings, lambda _: time.monotonic() > end)

    assert all(summary.faults[name] for name in (BEFORE, ANSWER, OUTSIDE)), summary.faults


def test_a_crash_point_is_read_as_it_is_written() -> None:
    for each in (Point(STATEMENT, 12), Point(AWAIT, 40), Point(COMMIT, 3), Point(EFFECT, 2)):
        assert point(str(each)) == each
    assert str(Point(STATEMENT, 12)) == "12"
    with pytest.raises(ValueError, match="no crash point"):
        point("sleep:3")
