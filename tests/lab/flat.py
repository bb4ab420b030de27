"""Flat: what a process takes, sample by sample; it must not grow with time, with dead letters or with a backlog."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.lab.record import Record

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SLACK_BYTES = 8 << 20
_SLACK_DESCRIPTORS = 5
POOL_DESCRIPTORS = 12
"""What a run of seconds may add: connections are opened when they are needed first."""


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
        quarter = max(1, len(samples) // 4)
        return statistics.median(samples[quarter : 2 * quarter] or samples), statistics.median(samples[-quarter:])


def judge(run: Record, watched: dict[int, Watched], *, descriptors: int = _SLACK_DESCRIPTORS) -> None:
    """Note what was taken early and late, and refuse growth, but for so many ``descriptors``."""
    for each in watched.values():
        (memory, later), (files, files_later) = Watched.halves(each.memory), Watched.halves(each.descriptors)
        run.figures["memory, MiB"], run.figures["memory later, MiB"] = round(memory / 2**20, 1), round(later / 2**20, 1)
        run.figures["descriptors"], run.figures["descriptors later"] = files, files_later
        assert later < memory * 1.15 + _SLACK_BYTES, "memory grows"
        assert files_later < files + descriptors, "descriptors grow"


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot open on PostgreSQL, as a forgotten psql or a long backup does."""
    with psycopg.connect(url) if url.startswith("postgres") else nullcontext() as connection:
        if connection is not None:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select count(*) from redrive.outbox")
        yield
