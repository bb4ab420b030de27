"""The SQLite writer: one connection, one thread, many callers, few commits.

Whatever is handed in while a commit is under way goes into the next transaction together (group commit): a commit with
``synchronous=FULL`` waits for the disk, 0.3 ms at best, and most of what a worker does can share that wait.
A handler's own transaction borrows the connection; the *pen* says whose turn it is.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from redrive.clock import Clock
from redrive.errors import ConfigurationError, RedriveError, StoreFull, StoreReadOnly, StoreUnavailable
from redrive.instant import to_micros
from redrive.payload import Garbled
from redrive.store.refusal import refusal
from redrive.store.sql import SCHEMA, in_schema, load

Job = Callable[[sqlite3.Connection, int], Any]

_REMEMBER_AFTER: Final = 50_000  # µs: how stale the remembered time may be; a crash loses no more than this
_BUSY_PAUSE: Final = 0.002
_KNOWN_AFTER: Final = 3_600_000_000  # µs: a transaction that finds the remembered time older than this writes it anew
_LEAP_AFTER: Final = 86_400_000_000  # µs: a larger step forward, while nobody saw time pass, is a leap
ROLLED_BACK: Final = (
    "SQLite has rolled this transaction back after an error (a full disk, an I/O error): nothing of it was written; "
    "let the error end the block, and begin again"
)
LEAP_BELIEVED_SECONDS: Final = 3 * 86_400
"""How long the machine's clock must have stayed where it leapt to before that time counts as elapsed."""
GO_ON: Final = object()
"""What a look answers when its job has to be done."""

_mine: Final[ContextVar[object]] = ContextVar("redrive_transaction", default=None)


@dataclass(slots=True)
class _Order:
    job: Job
    look: Job | None
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def deliver(self) -> None:
        if self.answer.done():
            return  # the caller was cancelled; what was committed stays committed
        if self.error is not None:
            self.answer.set_exception(self.error)
        else:
            self.answer.set_result(self.result)


class Connection(sqlite3.Connection):
    """A connection that knows the schema of our tables, which on SQLite is the prefix of their names."""

    schema: str = SCHEMA


def schema_of(connection: sqlite3.Connection) -> str:
    """Tell the schema of the tables that a connection is for."""
    return connection.schema if isinstance(connection, Connection) else SCHEMA


def own(connection: sqlite3.Connection, text: str) -> str:
    """Write a short statement of ours for the tables of this connection."""
    return in_schema("sqlite", text, schema_of(connection))


class Writer:
    """Runs jobs in write transactions, as many in one commit as have come together."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, busy_seconds: float) -> None:
        self.connection = connection
        self.pen = threading.Lock()
        self.borrower: object | None = None  # the transaction that has the connection
        self._has_met_odd_text = False
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._origin = (0, 0.0)  # file time and monotonic time at the last look
        self._read_clock_at = 0.0
        self._remembered = 0
        self._known = 0  # the time that the file remembered at the last look
        self._leap: tuple[int, int] | None = None  # a leap of the file's clock that is not written down yet
        self.start()

    def start(self) -> None:
        """Begin to write what is handed in: here in a thread of its own, in a simulation on its event loop."""
        self._thread = threading.Thread(target=self._run, name="redrive-writer", daemon=True)
        self._thread.start()

    async def do(self, job: Job, *, look: Job | None = None) -> Any:
        """Run a job in a write transaction; return when it is durable.

        A ``look`` comes before it, outside any transaction: when its answer is not ``GO_ON`` there is nothing to write,
        and who is idle keeps nobody else from writing.
        """
        loop = asyncio.get_running_loop()
        self.refuse_borrower()
        order = _Order(job, look, loop, loop.create_future())
        self._orders.put(order)
        return await order.answer

    def borrow(self) -> int:
        """Wait for the pen and open a transaction for somebody else, in whatever thread; say what time it is."""
        self.pen.acquire()
        try:
            return self.begin()
        except BaseException:
            self.pen.release()
            raise

    def lend(self) -> None:
        """Note that this task, and every task it starts, has the connection that was borrowed."""
        self.connection.text_factory = tolerant  # what it did so far could not be repeated
        self.borrower = object()
        _mine.set(self.borrower)

    def give_back(self) -> None:
        """Roll back what the borrower has not committed, and let others write."""
        self._roll_back_quietly()
        if not self._has_met_odd_text:
            self.connection.text_factory = str
        self.borrower = None
        self.pen.release()

    def refuse_borrower(self) -> None:
        """Refuse a task whose own transaction holds the pen: it would wait for it for ever."""
        if self.borrower is not None and _mine.get() is self.borrower:
            message = "a transaction is open here: go through it (tx.publish, tx.execute), or wait until it has ended"
            raise ConfigurationError(message)

    def close(self) -> None:
        """Finish what was handed in and end the thread. The connection is the caller's to close."""
        self._orders.put(None)
        self._thread.join()

    def now(self) -> int:
        """Tell the file's time: never before what any process has written, and never standing still.

        A clock that was set back goes on from the highest time seen at the pace of the monotonic clock.
        """
        wall = to_micros(self._clock.now())  # first: who is put to sleep between the two would run ahead for ever
        monotonic = self._clock.monotonic()
        seen = self.carried(monotonic)
        if monotonic >= self._read_clock_at or wall - seen > _LEAP_AFTER:
            # what another process wrote meanwhile is as old as a crash may lose
            row = self.connection.execute(own(self.connection, "select highest from redrive_clock")).fetchone()
            self._read_clock_at = monotonic + _REMEMBER_AFTER / 1e6
            self._known = row[0] if row else 0
            seen = max(seen, self._known)
        if seen and wall - seen > _LEAP_AFTER:
            self._leap = (seen, wall)
        now = max(wall, seen)
        self._origin = (now, monotonic)
        return now

    def ago(self, now: int, seconds: float | None) -> int | None:
        """Find the instant after which so much time has passed, by what was seen of it.

        A leap of the clock counts only when the machine's clock has stayed there for days: one that was wrong for a
        moment makes nothing old.
        """
        if seconds is None:
            return None
        wall = to_micros(self._clock.now())
        at = now - int(seconds * 1e6)
        for since, until in self.connection.execute(load("sqlite", "clock_leaps", schema_of(self.connection)).text):
            if until <= at:
                break
            if wall < until + LEAP_BELIEVED_SECONDS * 1_000_000:
                at -= until - since
        return at

    def carried(self, monotonic: float) -> int:
        """Say what time it must be by now, going by what was last seen; 0 when nothing was."""
        file_time, then = self._origin
        return file_time + int((monotonic - then) * 1e6) if file_time else 0

    def begin(self) -> int:
        """Open a write transaction (the pen must be held) and say what time it is."""
        waited = 0.0
        while True:
            try:
                self.connection.execute("begin immediate")
                break
            except sqlite3.OperationalError as error:
                # Our own pause instead of SQLite's busy handler, which sleeps up to 100 ms at a time.
                if (
                    error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                    or waited > self._busy_seconds
                ):
                    raise
            pause = _BUSY_PAUSE * (0.5 + self._clock.random())
            self._clock.pause(pause)
            waited += pause
        try:
            now = self.now()
            if self._known and now - self._known > _KNOWN_AFTER:
                self._note_time(now)
        except BaseException:
            self._roll_back_quietly()  # SQLite may have done so itself
            raise
        return now

    def _note_time(self, now: int) -> None:
        """Write down how late it is, and a leap of the clock unless another process has: they all leap at once."""
        if self._leap is not None:
            leap = (
                "insert into redrive_clock_leap (since, until)"
                " select ?1, ?2 where not exists (select 1 from redrive_clock_leap where until > ?1)"
            )
            self.connection.execute(own(self.connection, leap), self._leap)
        self.connection.execute(own(self.connection, "update redrive_clock set highest = max(highest, ?)"), (now,))

    def commit(self, now: int, changes_before: int) -> None:
        """Commit; remember the time when something was written, so that an idle look leaves no trace."""
        if not self.connection.in_transaction:
            raise StoreUnavailable(ROLLED_BACK)
        if self.connection.total_changes != changes_before and now - self._remembered > _REMEMBER_AFTER:
            self._remembered = now
            remember = own(self.connection, "update redrive_clock set highest = ? where highest < ?")
            self.connection.execute(remember, (now, now - _REMEMBER_AFTER))
        self.connection.execute("commit")
        self._leap = None

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def _run(self) -> None:
        stopping = False
        while not stopping:
            orders = [self._orders.get()]
            while not self._orders.empty():
                orders.append(self._orders.get())
            stopping = any(order is None for order in orders)
            group = [order for order in orders if order is not None]
            if group:
                with self.pen:
                    self._write(group)
                self._answer(group)

    def _write(self, group: list[_Order]) -> None:
        try:
            if len(group) == 1 and self._is_answered(group[0]):
                return
            now = self.begin()
            before = self.connection.total_changes
            for order in group:
                self._run_one(order, now, alone=len(group) == 1)
            self.commit(now, before)
        except BaseException as error:  # noqa: BLE001 - whatever it was, every caller must hear of it
            self._roll_back_quietly()
            if is_undecodable(error) and not self._has_met_odd_text:
                self._has_met_odd_text, self.connection.text_factory = True, tolerant
                self._write(group)  # nothing of it has been written
                return
            for order in group:
                order.error = order.error or translated(error)

    def _is_answered(self, order: _Order) -> bool:
        if order.look is None:
            return False
        with suppress(sqlite3.Error):  # the transaction will wait for the end of it, or tell
            order.result = order.look(self.connection, self.now())
            return order.result is not GO_ON
        return False

    def _run_one(self, order: _Order, now: int, *, alone: bool) -> None:
        if alone:
            order.result = order.job(self.connection, now)
            return
        self.connection.execute("savepoint job")
        try:
            order.result = order.job(self.connection, now)
        except BaseException as error:
            if not self.connection.in_transaction or is_undecodable(error):
                raise  # SQLite itself rolled everything back (disk full, I/O error), or all of it is to be repeated
            self.connection.execute("rollback to job")
            order.error = translated(error)
        self.connection.execute("release job")

    def _roll_back_quietly(self) -> None:
        with suppress(sqlite3.Error):  # the file is out of reach; the transaction ends with it
            self.rollback()

    @staticmethod
    def _answer(group: list[_Order]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Order]] = {}
        for order in group:
            by_loop.setdefault(order.loop, []).append(order)
        for loop, orders in by_loop.items():
            with suppress(RuntimeError):  # the caller's event loop is closed; nobody is waiting
                loop.call_soon_threadsafe(_deliver_all, orders)


def _deliver_all(orders: list[_Order]) -> None:
    for order in orders:
        order.deliver()


def tolerant(text: bytes) -> str:
    """Read text that may not be UTF-8, which SQLite takes from anybody; costs 0.2 µs a text."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return Garbled(text.decode(errors="replace"))


def is_undecodable(error: BaseException) -> bool:
    """Say whether a row holds text that is not UTF-8, which the driver gives to nobody unless told otherwise."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")


def translated(error: BaseException) -> BaseException:
    """Say in our words what SQLite means; anything that is not about the file stays as it is."""
    if isinstance(error, RedriveError) or not isinstance(error, sqlite3.Error):
        return error
    own = refusal(error)
    if own is not None:
        return own
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind, advice = {
        sqlite3.SQLITE_FULL: (StoreFull, "the disk is full: free some space, nothing was written"),
        sqlite3.SQLITE_READONLY: (
            StoreReadOnly,
            "the database file cannot be written: check its owner and permissions",
        ),
        sqlite3.SQLITE_BUSY: (
            StoreUnavailable,
            "another process keeps the database locked: end its transaction",
        ),
        sqlite3.SQLITE_LOCKED: (
            StoreUnavailable,
            "another connection keeps the database locked: end its transaction",
        ),
        sqlite3.SQLITE_IOERR: (
            StoreUnavailable,
            "the database file cannot be read or written: check the disk",
        ),
        sqlite3.SQLITE_CANTOPEN: (
            StoreUnavailable,
            "the database file cannot be opened: check the path and permissions",
        ),
        sqlite3.SQLITE_CORRUPT: (StoreUnavailable, "the database file is damaged: restore it from a backup"),
        sqlite3.SQLITE_NOTADB: (ConfigurationError, "this file is not an SQLite database: check the URL"),
    }.get(code, (None, ""))
    if kind is None:
        return error
    clear = kind(f"{advice} ({error})")
    clear.__cause__ = error
    return clear
