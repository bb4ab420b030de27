"""What the tests of the stores share: hands that claim, ways to fail, and a look at the bare tables."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from redrive import Event, Priority, Redrive, Status
from redrive.event import Outcome, Settlement
from redrive.store.base import FENCE, ID, Claims, Finished, Lane, Row, Session, Turn
from tests import warm

ROOT = Path(__file__).parents[2]
LANES: list[Lane] = [("default", priority.value, generation) for priority in Priority for generation in range(8)]
TABLES = ("outbox", "event_handled", "session", "trail", "step", "schema_version", "clock", "dead_letters")


@dataclass(slots=True)
class Hands:
    """A session and its claims."""

    app: Redrive
    id: UUID
    claims: Claims

    @classmethod
    async def begin(cls, app: Redrive, *, lease: float = 30.0, lanes: Sequence[Lane] = LANES) -> Hands:
        session = Session(app.clock.new_id(), "hands", "host", os.getpid(), ("default",), ("t",), 1)
        await app.store.begin_session(session, lease)
        return cls(app, session.id, app.store.claims(session.id, lanes, actor="hands"))

    async def claim(self, want: int = 100) -> list[Row]:
        return list((await self.claims.turn(Finished(), want)).claimed)

    async def claim_one(self) -> Row:
        (row,) = await self.claim(1)
        return row

    async def deliver(self, *rows: Row) -> list[UUID]:
        return refused(await self.claims.turn(Finished(delivered=list(rows)), 0))

    async def settle(self, *settlements: Settlement) -> list[UUID]:
        return refused(await self.claims.turn(Finished(settlements=list(settlements)), 0))

    async def put_back(self, row: Row, delay: float = 0.0) -> list[UUID]:
        return refused(await self.claims.turn(Finished(put_back=[(row, delay)]), 0))

    async def sweep(self, *, max_lost: int = 5, limit: int = 500, base: float = 5.0) -> list[Row]:
        return await self.app.store.sweep(self.id, max_lost=max_lost, limit=limit, base_seconds=base, actor="sweeper")

    async def dead_letter(self, type_: str = "t", payload: Any = None, error: str = "boom", **options: Any) -> UUID:
        """Publish an event and let its first attempt fail for good."""
        published = await self.app.publish(type_, payload, **options)
        row = await self.claim_one()
        assert uuid_of(row) == published.id
        assert await self.settle(failed(row, error)) == []
        return published.id


def refused(turn: Turn) -> list[UUID]:
    return [UUID(str(each)) for each in turn.refused]


def uuid_of(row: Row) -> UUID:
    return UUID(str(row[ID]))


def failed(row: Row, error: str = "boom") -> Settlement:
    """End an attempt as a dead letter."""
    return Settlement(
        row[ID], row[FENCE], Status.FAILED, Outcome.FAILED, None, error, "broken", "builtins.OSError", False, "f1", 5
    )


def retried(row: Row, delay: float, error: str = "boom") -> Settlement:
    """End an attempt as one that shall be made again."""
    return Settlement(
        row[ID], row[FENCE], Status.PENDING, Outcome.FAILED, delay, error, "dependency_unavailable",
        "builtins.ConnectionError", True, "f2", 5,
    )  # fmt: skip


async def found(app: Redrive, event_id: Any) -> Event:
    event = await app.event(UUID(str(event_id)))
    assert event is not None
    return event


async def kinds(app: Redrive, event_id: UUID) -> list[str]:
    return [entry.kind for entry in await app.trail(event_id)]


@contextmanager
def raw(url: str) -> Iterator[Callable[[str], list[Any]]]:
    """Go past redrive: run SQL as somebody with the database's own tools would. ``{outbox}`` names our table."""
    before = "redrive." if is_postgres(url) else "redrive_"

    def named(text: str) -> str:
        return re.sub(rf"{{({'|'.join(TABLES)})}}", rf"{before}\1", text)

    if is_postgres(url):
        with psycopg.connect(url, autocommit=True) as connection:

            def run(text: str) -> list[Any]:
                cursor = connection.execute(named(text).encode())
                return cursor.fetchall() if cursor.description else []

            yield run
    else:
        file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)
        try:
            yield lambda text: file.execute(named(text)).fetchall()
        finally:
            file.close()


def is_postgres(url: str) -> bool:
    return url.startswith("postgres")


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Run code in a process of its own."""
    return warm.python(
        ["-c", code, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
    )  # fmt: skip


def output_of(process: subprocess.Popen[str], seconds: float = 60.0) -> str:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out
