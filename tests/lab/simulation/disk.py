"""The file that all processes share, and the lines to it that can break.

Connections are kept from one seed to the next, for opening one costs more than a whole worker does: a process gets a
*line*, and when it dies its line is cut, whatever was begun is rolled back, and the connection goes to the next.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.clock import VirtualClock
from redrive.store.sqlite import SqliteStore
from tests.lab import checker
from tests.lab.simulation.loop import Blocked

if TYPE_CHECKING:
    from tests.lab.simulation.process import Process

RULES = Path(__file__).with_name("rules.sql")
_MEMORY = Path("/dev/shm")
_KEPT = ("redrive_schema_version",)
_DUE = "select event_id, kind from lab_due limit 1"


class Dead(BaseException):
    """Raised to whoever of a dead process still wants something of the file."""


def trouble(code: int, name: str) -> sqlite3.OperationalError:
    """Make the error that SQLite would raise."""
    error = sqlite3.OperationalError(f"simulated: {name}")
    error.sqlite_errorcode = code
    error.sqlite_errorname = name
    return error


class Disk:
    """One SQLite file with the schema and the rules, emptied for every seed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder: Line | None = None
        self.asking: Process | None = None
        self.max_lost = 0  # that the workers allow
        self._free: dict[bool, list[sqlite3.Connection]] = {True: [], False: []}
        self._all: list[sqlite3.Connection] = []
        self.now = 0
        self._origin = (0, 0.0)  # a time, and what the monotonic clock said then
        self.let_go: Callable[[], None] = lambda: None
        asyncio.run(_migrated(path))
        self.hand = self._connected()
        self.url = f"sqlite:///{path}"
        checker.KNOWN[self.url] = self.hand
        self.hand.execute("pragma journal_mode=wal")
        self.hand.executescript(RULES.read_text(encoding="utf-8"))
        self.hand.execute("drop trigger redrive_trail_no_delete")  # or it could not be emptied
        tables = self.hand.execute("select name from sqlite_master where type = 'table' order by rowid desc").fetchall()
        self._tables = [name for (name,) in tables if name not in _KEPT and not name.startswith("sqlite_")]
        self._rows = [
            (f"insert into {name} values ({', '.join('?' * len(row))})", row)
            for name in self._tables
            for row in self.hand.execute(f"select * from {name}")
        ]

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=0.0, cached_statements=512
        )
        connection.execute("pragma synchronous=off")
        connection.execute("pragma wal_autocheckpoint=4000")
        connection.create_function("lab_who", 0, self._who)
        connection.create_function("lab_max_lost", 0, lambda: self.max_lost)
        connection.create_function("lab_now", 0, lambda: self.now)
        self._all.append(connection)
        return connection

    def _who(self) -> str:
        return "" if self.asking is None else self.asking.session

    def empty(self) -> None:
        """Make it as it was when it was new."""
        self.holder = self.asking = None
        self.now = 0
        self._origin = (0, 0.0)
        self.hand.execute("begin immediate")
        for name in self._tables:
            self.hand.execute(f"delete from {name}")
        self.hand.execute("delete from lab_violation")
        for text, row in self._rows:
            self.hand.execute(text, row)
        self.hand.execute("commit")

    def query(self, text: str, values: Iterable[Any] = ()) -> list[Any]:
        return self.hand.execute(text, tuple(values)).fetchall()

    def line(self, process: Process, *, reads: bool) -> Line:
        free = self._free[reads]
        return Line(self, process, free.pop() if free else self._connected(), reads=reads)

    def take_back(self, connection: sqlite3.Connection, *, reads: bool) -> None:
        if connection.in_transaction:
            connection.execute("rollback")
        self._free[reads].append(connection)

    def is_free_for(self, line: Line) -> bool:
        return self.holder is None or self.holder is line

    def look_at_clock(self, process: Process) -> None:
        """Note the latest time that anybody can take it to be: a clock that was set back goes on from where it was."""
        monotonic = process.clock.monotonic()
        time, then = self._origin
        self.now = time + int((monotonic - then) * 1e6) if time else 0
        if process.clock.micros > self.now:  # only then a new beginning, or what is rounded off would add up
            self.now = process.clock.micros
            self._origin = (self.now, monotonic)

    def free(self) -> None:
        self.holder = None
        self.let_go()

    def close(self) -> None:
        del checker.KNOWN[self.url]
        for connection in self._all:
            connection.close()


async def _migrated(path: Path) -> None:
    store = SqliteStore(str(path), VirtualClock(), synchronous="OFF")
    await store.open()
    await store.migrate()
    await store.close()


@contextmanager
def a_disk() -> Iterator[Disk]:
    """Make a disk, in memory where there is such a place."""
    folder = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="redrive-lab-", dir=folder) as place:
        disk = Disk(Path(place) / "sim.db")
        try:
            yield disk
        finally:
            disk.close()


class Line:
    """What a store takes for its connection: every statement is counted, and some go wrong."""

    __slots__ = ("_changes", "_disk", "_process", "_reads", "_real")

    def __init__(self, disk: Disk, process: Process, real: sqlite3.Connection, *, reads: bool) -> None:
        self._disk = disk
        self._process = process
        self._real: sqlite3.Connection | None = real
        self._reads = reads
        self._changes = 0
        process.lines.append(self)

    @property
    def in_transaction(self) -> bool:
        return self._real is not None and self._real.in_transaction

    @property
    def total_changes(self) -> int:
        return 0 if self._real is None else self._real.total_changes

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        real, process = self._reached(sql), self._process
        if sql == "begin immediate":
            return self._begin(real)
        if sql == "commit":
            return self._commit(real)
        self._disk.asking = process
        answer = real.execute(sql, parameters)
        if sql == "rollback":
            self._freed()
        if process.is_doomed:
            process.did(sql, answer)
        return answer

    def executemany(self, sql: str, rows: Any) -> Any:
        real = self._reached(sql)
        self._disk.asking = self._process
        answer = real.executemany(sql, rows)
        self._process.did(sql, answer)
        return answer

    def _reached(self, sql: str) -> sqlite3.Connection:
        if self._real is None:
            raise Dead(self._process.name)
        process = self._process
        process.statements += 1
        if process.statements >= process.alert_at:
            error = process.about_to(sql, self)
            if error is not None:
                raise error
        return self._real

    def roll_back(self) -> None:
        """Roll back by itself, as SQLite may do when the disk fails."""
        if self._real is not None and self._real.in_transaction:
            self._real.execute("rollback")
            self._freed()

    def _begin(self, real: sqlite3.Connection) -> Any:
        if not self._disk.is_free_for(self):
            raise Blocked
        answer = real.execute("begin immediate")
        self._disk.holder = self
        self._disk.look_at_clock(self._process)
        self._changes = real.total_changes
        self._process.did("begin immediate", answer)
        return answer

    def _commit(self, real: sqlite3.Connection) -> Any:
        changed = real.total_changes - self._changes
        if changed:
            unsaid = real.execute(_DUE).fetchone()
            if unsaid is not None:
                real.execute(
                    "insert into lab_violation values ('trail gap', ?)", (f"{unsaid[0]} was {unsaid[1]} unsaid",)
                )
                real.execute("delete from lab_due")
        answer = real.execute("commit")
        self._freed()
        if changed:
            self._process.changed(changed)
        self._process.did("commit", answer)
        return answer

    def _freed(self) -> None:
        if self._disk.holder is self:
            self._disk.free()

    def close(self) -> None:
        """Give the connection back; what was begun is rolled back."""
        real, self._real = self._real, None
        if real is not None:
            self._disk.take_back(real, reads=self._reads)
            self._freed()
