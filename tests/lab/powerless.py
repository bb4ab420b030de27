"""Power loss: a disk that forgets what was not synced.

The real ``SqliteStore`` writes through a VFS that notes every write, truncation, sync and removal; the files themselves
are ordinary ones. Afterwards the disk is drawn up as it may have looked at any moment of the run: what was synced is
there, and of what was written since, everything, nothing, or some sectors (chosen by a seed) have reached it.

A VFS needs APSW, which brings an SQLite of its own, and the store speaks to the standard library's ``sqlite3``. So APSW
is put behind the few methods that the store uses (``Shim``). The other ways are worse: syscalls cannot be recorded
without tools that are not everywhere, and the standard library takes no VFS. What is drawn up, ``sqlite3`` opens.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import apsw

SECTOR = 512
Kept = Literal["none", "all", "some"]


@dataclass(frozen=True, slots=True)
class Note:
    """What was done to a file (``write``, ``truncate``, ``sync``, ``remove``), or that a commit has returned."""

    kind: str
    name: str = ""
    at: int = 0
    data: bytes = b""


@dataclass(slots=True)
class Run:
    """Everything that was noted, and what the database held after each commit."""

    notes: list[Note] = field(default_factory=list)
    states: list[str] = field(default_factory=list)


class Disk(apsw.VFS):
    """Passes everything on, and notes it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.name = f"powerless-{id(run):x}"
        super().__init__(self.name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self.run, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.run.notes.append(Note("remove", Path(filename).name))


class _File(apsw.VFSFile):
    def __init__(self, run: Run, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._notes = run.notes
        self._name = "" if path is None else Path(path).name

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._notes.append(Note("write", self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._notes.append(Note("truncate", self._name, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802 - the real disk need not wait: it is not the one that forgets
        self._notes.append(Note("sync", self._name))


class Shim:
    """What the store uses of ``sqlite3.Connection``, on APSW. Takes down what the database holds after each commit."""

    text_factory: Any = str  # all text in here is readable

    def __init__(self, path: str, disk: Disk) -> None:
        self._run = disk.run
        self._connection = apsw.Connection(path, vfs=disk.name)
        self._connection.set_busy_timeout(5_000)

    def execute(self, text: str, values: Any = ()) -> _Cursor:
        with _in_their_words():
            cursor = _Cursor(self._connection, self._connection.execute(text, values))
        if text == "commit":
            self._run.states.append(digest(self._connection))
            self._run.notes.append(Note("commit"))
        return cursor

    def executemany(self, text: str, many: Any) -> _Cursor:
        changed = 0
        for values in many:
            changed += self.execute(text, values).rowcount
        return _Cursor(self._connection, None, changed)

    @property
    def total_changes(self) -> int:
        return self._connection.total_changes()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()


class _Cursor:
    def __init__(self, connection: apsw.Connection, cursor: apsw.Cursor | None, rowcount: int | None = None) -> None:
        self._cursor = cursor
        self.rowcount = connection.changes() if rowcount is None else rowcount

    @property
    def description(self) -> Sequence[Any] | None:
        try:
            return self._cursor.description if self._cursor is not None else None
        except apsw.ExecutionCompleteError:
            return None

    def fetchone(self) -> Any:
        with _in_their_words():
            return None if self._cursor is None else self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        with _in_their_words():
            return [] if self._cursor is None else self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


@contextmanager
def _in_their_words() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        kind = sqlite3.IntegrityError if isinstance(error, apsw.ConstraintError) else sqlite3.OperationalError
        said = kind(str(error))
        said.sqlite_errorcode = getattr(error, "extendedresult", sqlite3.SQLITE_ERROR)
        raise said from error


@contextmanager
def recording() -> Iterator[Run]:
    """Let stores that are opened in this block write to the disk that forgets."""
    run = Run()
    disk = Disk(run)
    known = {**vars(sqlite3), "connect": lambda path, **_options: Shim(path, disk)}
    with mock.patch("redrive.store.sqlite.sqlite3", SimpleNamespace(**known)):
        yield run
    disk.unregister()


def digest(connection: Any) -> str:
    """Sum up everything that stands in the tables."""
    whole = hashlib.sha256()
    listed = "select name from sqlite_master where type = 'table' and name not like 'sqlite%' order by name"
    for (name,) in list(connection.execute(listed)):
        whole.update(f"{name}\n".encode())
        for row in sorted(repr(tuple(row)) for row in connection.execute(f"select * from {name}")):
            whole.update(row.encode())
    return whole.hexdigest()


# --- the disk at a moment ---


class Cut:
    """Walks through a run and draws up the disk wherever it stands."""

    def __init__(self, run: Run, before: Mapping[str, bytes]) -> None:
        self._run = run
        self.at = 0
        self.commits = 0
        self._synced = {name: bytearray(data) for name, data in before.items()}
        self._since: list[Note] = []

    def step(self) -> Note:
        """Go on by one note."""
        note = self._run.notes[self.at]
        self.at += 1
        if note.kind == "commit":
            self.commits += 1
        elif note.kind == "sync":
            mine = [each for each in self._since if each.name == note.name]
            self._since = [each for each in self._since if each.name != note.name]
            for each in mine:
                _apply(self._synced, each)
        else:
            self._since.append(note)
        return note

    @property
    def has_unsynced(self) -> bool:
        return bool(self._since)

    def draw(self, folder: Path, kept: Kept, dice: random.Random) -> None:
        """Write the files as they are when the power comes back."""
        files = {name: bytearray(data) for name, data in self._synced.items()}
        for note in self._since if kept != "none" else ():
            for part in [note] if kept == "all" else _torn(note, dice):
                _apply(files, part)
        for old in folder.iterdir():
            old.unlink()
        for name, data in files.items():
            (folder / name).write_bytes(data)

    def verdict(self, path: Path) -> str | None:
        """Open what is left with the ordinary driver; say what is wrong with it."""
        connection = sqlite3.connect(path)
        try:
            (sound,) = connection.execute("pragma integrity_check(1)").fetchone()
            found = digest(connection)
        except sqlite3.Error as error:
            return f"broken: {error}"
        finally:
            connection.close()
        if sound != "ok":
            return f"broken: {sound}"
        # The commit under way may have reached the disk, or not; everything before it has returned.
        if found in self._run.states[self.commits : self.commits + 2]:
            return None
        return "lost" if found in self._run.states[: self.commits] else "half written"


def _torn(note: Note, dice: random.Random) -> list[Note]:
    """Choose which sectors of a write have reached the disk; other changes have, or have not."""
    if note.kind != "write":
        return [note] if dice.random() < 0.5 else []
    starts = range(0, len(note.data), SECTOR)
    parts = [Note("write", note.name, note.at + start, note.data[start : start + SECTOR]) for start in starts]
    return [part for part in parts if dice.random() < 0.5]


def _apply(files: dict[str, bytearray], note: Note) -> None:
    if note.kind == "remove":
        files.pop(note.name, None)
        return
    data = files.setdefault(note.name, bytearray())
    if note.kind == "truncate":
        del data[note.at :]
        return
    if len(data) < note.at:
        data.extend(bytes(note.at - len(data)))
    data[note.at : note.at + len(note.data)] = note.data
