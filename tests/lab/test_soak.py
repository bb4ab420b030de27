"""Soak: steady work with failures and kills; memory, descriptors and speed stay as they are for hours."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import aftermath
from tests.lab.crew import Crew, Member, crew_on
from tests.lab.flat import Watched, held_snapshot, judge
from tests.lab.record import Record
from tests.waiting import wait_until


@pytest.mark.promise("flat", "durable")
def test_ten_seconds_of_steady_work(store_url: str, tmp_path: Path, seed: int, record: Callable[..., Record]) -> None:
    run = record("soak", "sqlite" if store_url.startswith("sqlite") else "postgres")
    soaked(store_url, tmp_path / "crew", random.Random(seed), run, seconds=10.0)


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("flat", "durable")
def test_hours_of_steady_work(
    store_url: str, tmp_path: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    run = record("soak", "sqlite" if store_url.startswith("sqlite") else "postgres")
    soaked(store_url, tmp_path / "crew", random.Random(seed), run, seconds=budget)


def soaked(url: str, folder: Path, dice: random.Random, run: Record, *, seconds: float) -> None:
    """Two workers that are watched, one that is killed now and then, two producers; somebody holds a snapshot."""
    with crew_on(url, folder) as crew:
        watched = {each.pid: Watched() for each in (crew.start("worker"), crew.start("worker"))}
        victim = crew.start("worker")
        for _ in range(2):
            crew.start("producer", pause=0.01)
        wait_until(lambda: crew.ledger.exists() and crew.ledger.stat().st_size > 10_000, 30, crew.said())
        with held_snapshot(url):
            speeds = _sample(crew, watched, victim, dice, run, seconds)
        aftermath.drain(crew, 120 + seconds / 10)
        found = aftermath.look(crew, is_bounded=False)
        aftermath.note_reached(run, crew)
        run.violations += found.violations
        assert not found.violations, f"{found}\n{crew.said()}"
    _judge(run, watched, speeds)


def _sample(
    crew: Crew, watched: dict[int, Watched], victim: Member, dice: random.Random, run: Record, seconds: float
) -> list[int]:
    """Look at the watched every now and then, and count how many attempts began in between."""
    end, tail, speeds = time.monotonic() + seconds, aftermath.Tail(crew.ledger), []
    pause = max(0.1, seconds / 400)
    while time.monotonic() < end:
        time.sleep(pause)
        for pid, each in watched.items():
            each.look(pid)
        speeds.append(sum(line["what"] == "attempt" and line["answer"] == "invoke" for line in tail))
        if dice.random() < 0.05:
            victim = crew.replace(victim)
            run.faults["worker"] += 1
        run.cases += 1
    return speeds


def _judge(run: Record, watched: dict[int, Watched], speeds: list[int]) -> None:
    judge(run, watched)
    before, after = Watched.halves(speeds)
    run.figures["attempts a look"], run.figures["attempts a look later"] = before, after
    assert after > before * 0.5, "it slows down"
