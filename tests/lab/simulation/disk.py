"""The file that all processes share, and the lines to it that can break.

A process gets *lines*, and when it dies they are cut and whatever was begun is rolled back. All lines share two
connections, for opening one costs more than a whole worker does, and each would read anew what another has written:
whoever has begun a transaction has the first to itself, and meanwhile others read what is committed from the second.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
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
_PAGE = 1024  # bytes: a commit writes whole pages, and most change a few rows
_DUE = "select event_id, kind from lab_due limit 1"


class Dead(BaseException):
    """Raised to whoever of a dead process still wants something of the file."""


def trouble(code: int, name: str) -> sqlite3.OperationalError:
    """Make the error that SQLite would raise."""
    error = sqlite3.OperationalError(f"simulated: {name}")
    error.sqlite_errorcode = code
    error.sqlite_errorname = name
    return error


def said_fence(values: Any, event_id: str) -> int | None:
    """Find the fence that a statement names with an event: beside its id, whatever form its values have."""
    if isinstance(values, dict):
        if values.get("id") == event_id and "fence" in values:
            return int(values["fence"])
        named = [text for text in json.loads(values.get("leases", "[]")) if text.startswith(event_id)]
        return int(named[0].rpartition(":")[2]) if named else None
    if event_id in values:
        fence = values[values.index(event_id) + 1]
        return fence if isinstance(fence, int) else None
    found = [said_fence(row, event_id) for row in values if isinstance(row, tuple)]
    return next((fence for fence in found if fence is not None), None)


class Disk:
    """One SQLite file with the schema and the rules, emptied for every seed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder: Line | None = None
        self.asking: Process | None = None
        self.values: Any = ()  # of the statement that runs
        self.max_lost = 0  # that the workers allow
        self.now = 0
        self._origin = (0, 0.0)  # a time, and what the monotonic clock said then
        self._last_look: tuple[float, Process | None] = (0.0, None)
        self.let_go: Callable[[], None] = lambda: None
        asyncio.run(_migrated(path))
        self.hand = self._connected()
        self.eye = self._connected()
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
            f"file:{self.path}?vfs=unix-excl",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=0.0,
            cached_statements=512,
        )
        connection.execute("pragma synchronous=off")
        connection.execute("pragma wal_autocheckpoint=4000")
        connection.create_function("lab_who", 0, self._who)
        connection.create_function(
            "lab_was", 1, lambda session: self.asking is not None and session in self.asking.sessions
        )
        connection.create_function("lab_begins", 1, self._begins)
        connection.create_function(
            "lab_says", 2, lambda event_id, fence: said_fence(self.values, event_id) in (fence, None)
        )
        connection.create_function("lab_max_lost", 0, lambda: self.max_lost)
        connection.create_function("lab_now", 0, lambda: self.now)
        return connection

    def _who(self) -> str:
        return "" if self.asking is None else self.asking.session

    def _begins(self, session: str) -> None:
        if self.asking is not None:
            self.asking.sessions.add(session)

    def empty(self) -> None:
        """Make it as it was when it was new."""
        self.holder = self.asking = None
        self.now = 0
        self._origin = (0, 0.0)
        self._last_look = (0.0, None)
        self.hand.execute("begin immediate")
        for name in self._tables:
            self.hand.execute(f"delete from {name}")
        for name in ("lab_violation", "lab_removed"):  # which have noted how the rest was deleted
            self.hand.execute(f"delete from {name}")
        for text, row in self._rows:
            self.hand.execute(text, row)
        self.hand.execute("commit")

    def query(self, text: str, values: Iterable[Any] = ()) -> list[Any]:
        return self.seen_by(None).execute(text, tuple(values)).fetchall()

    def seen_by(self, line: Line | None) -> sqlite3.Connection:
        """Give whoever asks the connection on which it sees what it may."""
        return self.hand if self.holder is None or self.holder is line else self.eye

    def is_free_for(self, line: Line) -> bool:
        return self.holder is None or self.holder is line

    def look_at_clock(self, process: Process) -> None:
        """Note the latest time that anybody can take it to be: a clock that was set back goes on from where it was."""
        monotonic = process.clock.monotonic()
        if self._last_look == (monotonic, process):  # a transaction is of one moment
            return
        self._last_look = (monotonic, process)
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
        self.hand.close()
        self.eye.close()


async def _migrated(path: Path) -> None:
    with closing(sqlite3.connect(path)) as blank:
        blank.execute(f"pragma page_size={_PAGE}")
        blank.execute("pragma journal_mode=wal")  # from here on the size stands
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

    __slots__ = ("_changes", "_disk", "_is_cut", "_process", "text_factory")

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self._is_cut = False
        self._changes = 0
        self.text_factory: Any = str  # all text in here is readable
        process.lines.append(self)

    @property
    def in_transaction(self) -> bool:
        return self._disk.holder is self

    @property
    def total_changes(self) -> int:
        return self._disk.hand.total_changes

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        disk, process = self._disk, self._process
        process.statements += 1
        if self._is_cut or process.statements >= process.alert_at:
            self._alert(sql)
        disk.look_at_clock(process)
        if sql == "begin immediate":
            return self._begin()
        if sql == "commit":
            return self._commit()
        disk.asking, disk.values = process, parameters
        answer = disk.seen_by(self).execute(sql, parameters)
        if sql == "rollback":
            self._freed()
        if process.is_doomed:
            process.did(sql, answer)
        return answer

    def executemany(self, sql: str, rows: Any) -> Any:
        disk, process = self._disk, self._process
        process.statements += 1
        if self._is_cut or process.statements >= process.alert_at:
            self._alert(sql)
        disk.asking, disk.values = process, rows
        answer = disk.seen_by(self).executemany(sql, rows)
        process.did(sql, answer)
        return answer

    def _alert(self, sql: str) -> None:
        """Let go wrong what is to."""
        if self._is_cut:
            raise Dead(self._process.name)
        error = self._process.about_to(sql, self)
        if error is not None:
            raise error

    def roll_back(self) -> None:
        """Roll back by itself, as SQLite may do when the disk fails."""
        if self._disk.holder is self:
            self._disk.hand.execute("rollback")
            self._disk.free()

    def _begin(self) -> Any:
        disk = self._disk
        if not disk.is_free_for(self):
            raise Blocked
        answer = disk.hand.execute("begin immediate")
        disk.holder = self
        self._changes = disk.hand.total_changes
        self._process.did("begin immediate", answer)
        return answer

    def _commit(self) -> Any:
        real = self._disk.seen_by(self)
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
        """Cut it; what was begun is rolled back."""
        self._is_cut = True
        self.roll_back()
