"""Soak: steady work with failures and kills; memory, descriptors and speed stay as they are for hours."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.lab import aftermath
from tests.lab.crew import Crew, Member, crew_on, until
from tests.lab.record import Record

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SLACK_BYTES = 8 << 20
_SLACK_DESCRIPTORS = 5


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


@dataclass(slots=True)
class Watched:
    """What one process took, sample by sample."""

    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, pid: int) -> None:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        self.memory.append(int(pages) * _PAGE)
        self.descriptors.append(len([*Path(f"/proc/{pid}/fd").iterdir()]))

    @staticmethod
    def halves(samples: list[int]) -> tuple[float, float]:
        """Compare the second quarter with the last: the first is for warming up."""
        quarter = len(samples) // 4
        return statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])


def soaked(url: str, folder: Path, dice: random.Random, run: Record, *, seconds: float) -> None:
    """Two workers that are watched, one that is killed now and then, two producers; somebody holds a snapshot."""
    with crew_on(url, folder) as crew:
        watched = {each.pid: Watched() for each in (crew.start("worker"), crew.start("worker"))}
        victim = crew.start("worker")
        for _ in range(2):
            crew.start("producer", pause=0.01)
        until(lambda: crew.ledger.exists() and crew.ledger.stat().st_size > 10_000, 30, crew.said())
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
    for each in watched.values():
        (memory, later), (files, files_later) = Watched.halves(each.memory), Watched.halves(each.descriptors)
        run.figures["memory, MiB"], run.figures["memory later, MiB"] = round(memory / 2**20, 1), round(later / 2**20, 1)
        run.figures["descriptors"], run.figures["descriptors later"] = files, files_later
        assert later < memory * 1.15 + _SLACK_BYTES, "memory grows"
        assert files_later < files + _SLACK_DESCRIPTORS, "descriptors grow"
    before, after = Watched.halves(speeds)
    run.figures["attempts a look"], run.figures["attempts a look later"] = before, after
    assert after > before * 0.5, "it slows down"


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot open on PostgreSQL, as a forgotten psql or a long backup does."""
    with psycopg.connect(url) if url.startswith("postgres") else nullcontext() as connection:
        if connection is not None:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select count(*) from redrive.outbox")
        yield
