"""SQLite: everything in one file, several processes welcome.

One writer thread a process (see ``writer``), WAL, ``synchronous=FULL``: what was acknowledged survives a power cut.
Reads have a connection of their own and never wait for the writer. ``:memory:`` is the same store on one connection.
"""

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from redrive.clock import Clock
from redrive.errors import (
    ConfigurationError,
    EventNotFound,
    Refused,
    StoreUnavailable,
)
from redrive.event import (
    COMPENSATE,
    Event,
    NewEvent,
    Published,
    Settlement,
    Status,
    TrailEntry,
)
from redrive.instant import from_micros, iso, to_micros
from redrive.store.base import (
    DUE_AT,
    EVENT_COLUMNS,
    FENCE,
    ID,
    LOST_COUNT,
    OPERATOR,
    ORDERING_KEY,
    SOURCE,
    SWEPT_LEASE_UNTIL,
    SWEPT_STATUS,
    TARGET,
    TYPE,
    Ages,
    Beat,
    Entry,
    Finished,
    Lane,
    Purge,
    Row,
    Session,
    Turn,
    claimed_row,
    current_chain,
    edited_meanwhile,
    event_from,
    id_of,
    judge_schema,
    replayed_meanwhile,
)
from redrive.store.connections import Use, timeout_stopped
from redrive.store.rows import SQLITE_ORDER, published_from, sqlite_row
from redrive.store.sql import FIRST_ROLLING, SCHEMA, Clauses, Statement, load, migrations, needs, with_clauses
from redrive.store.writer import GO_ON, ROLLED_BACK, Connection, Writer, own, schema_of, tolerant, translated
from redrive.trail import entry_hash

T = TypeVar("T")

_WATCH_SECONDS: Final = 0.02  # how often another process's commit is looked for; 0.3 % of a core
_TRAIL_PAGE: Final = 5_000
_GRACE_SECONDS: Final = 1.0  # a heartbeat that waits for the file gets it within milliseconds, and within 0.5 s anew

_IN_ORDER: Final = itemgetter(DUE_AT)
_IS_ODD: Final = 23  # in a claimed row: whether a column may hold something else than it should


def _sql(connection: sqlite3.Connection, verb: str) -> Statement:
    return load("sqlite", verb, schema_of(connection))


class SqliteStore:
    """The store contract on one SQLite file."""

    name = "sqlite"
    writes_with: type[Writer] = Writer

    def __init__(
        self, path: str, clock: Clock, *, schema: str = SCHEMA, busy_seconds: float = 30.0, synchronous: str = "FULL"
    ) -> None:
        self.path = path
        self.schema = schema
        self.clock = clock
        self._memory = path == ":memory:"
        self._busy_seconds = busy_seconds
        self._synchronous = synchronous
        self._writer: Writer | None = None
        self._reader: sqlite3.Connection | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._turn: asyncio.Lock | None = None
        self._wakes: set[Callable[[], None]] = set()
        self._renewal: dict[str, Any] | None = None

    # Opening and closing

    async def open(self) -> None:
        """Open the file and start the writer. Says clearly what is wrong with a path that cannot be used."""
        if self._writer is not None:
            return
        writing = self._connect()
        self._writer = self.writes_with(writing, self.clock, self._busy_seconds)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="redrive-sqlite")
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        await asyncio.to_thread(writer.close)
        assert self._threads is not None
        self._threads.shutdown()
        with suppress(sqlite3.Error):
            writer.connection.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    async def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def sql(self, verb: str) -> Statement:
        """Load a statement for the tables of this store."""
        return load("sqlite", verb, self.schema)

    def _connect(self, *, query_only: bool = False) -> sqlite3.Connection:
        folder = Path(self.path).parent
        if not self._memory and not folder.is_dir():
            message = f"the folder of {self.path} does not exist: create {folder}, or name another file"
            raise ConfigurationError(message)
        try:
            connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=5.0, factory=Connection
            )
            connection.schema = self.schema
            connection.execute(f"pragma synchronous={self._synchronous}")
            if query_only:
                connection.execute("pragma query_only=on")
            elif not self._memory:
                self._use_wal(connection)
            connection.execute("pragma busy_timeout=0" if not query_only else "pragma busy_timeout=5000")
        except sqlite3.Error as error:
            raise translated(error) from error
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("pragma journal_mode").fetchone()
        if mode != "wal":
            if Path(self.path).exists() and not os.access(self.path, os.W_OK):
                connection.close()
                message = f"{self.path} cannot be written: check its owner and permissions"
                raise ConfigurationError(message)
            mode = self._switched_to_wal(connection)
        if mode != "wal":
            connection.close()
            message = f"{self.path} cannot be used in WAL mode ({mode}): put it on a local disk, not a network share"
            raise ConfigurationError(message)
        connection.execute("pragma wal_autocheckpoint=4000")  # 16 MiB: a checkpoint a second at most under load

    def _switched_to_wal(self, connection: sqlite3.Connection) -> str:
        """Switch a new file. Of processes that do so at once, SQLite tells some `busy` without waiting (a deadlock)."""
        waited = 0.0
        while True:
            try:
                return str(connection.execute("pragma journal_mode=wal").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited > self._busy_seconds:
                    raise
            pause = 0.01 * (0.5 + self.clock.random())
            self.clock.pause(pause)
            waited += pause

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            message = "the store is not open: call `await app.open()`, or use `async with app:`"
            raise StoreUnavailable(message)
        return self._writer

    async def _read(self, job: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._memory:
            return await self.writer.do(lambda connection, _now: job(connection))
        assert self._threads is not None
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read_now, job)

    def _read_now(self, job: Callable[[sqlite3.Connection], Any]) -> Any:
        try:
            if self._reader is None:
                self._reader = self._connect(query_only=True)
                self._reader.text_factory = tolerant
            return job(self._reader)
        except sqlite3.Error as error:
            raise translated(error) from error

    # Schema

    async def schema_version(self) -> int:
        return int(await (self._bare if self._memory else self._read)(_version_of))

    async def schema_needs(self) -> int:
        return (await self._schema())[1]

    async def _schema(self) -> tuple[int, int]:
        return await (self._bare if self._memory else self._read)(_schema_of)  # type: ignore[no-any-return]

    async def _bare(self, job: Callable[[sqlite3.Connection], Any]) -> Any:
        """Use the writer's connection outside a transaction (no schema yet: there is no file time to read)."""

        def held() -> Any:
            with self.writer.pen:
                return job(self.writer.connection)

        # In a thread: the lock we wait for may be held by another store of this very event loop.
        return await asyncio.to_thread(held)

    async def check_schema(self) -> None:
        """Refuse to work on a schema that is missing, or that needs newer code than this."""
        found, wants = await self._schema()
        judge_schema(self.path, found, wants, migrations(self.name)[-1][0])

    async def migrate(self, *, to: int | None = None) -> list[str]:
        """Apply the missing migrations, each in one transaction; two processes at once are safe."""

        def job(connection: sqlite3.Connection) -> list[str]:
            done = []
            for version, name, text in migrations("sqlite", self.schema):
                if to is not None and version > to:
                    break
                if self._apply(connection, version, name, text):
                    done.append(f"{version:04d}_{name}")
            return done

        return list(await self._bare(job))

    def _apply(self, connection: sqlite3.Connection, version: int, name: str, text: str) -> bool:
        connection.execute("pragma busy_timeout=30000")
        try:
            if version <= _version_of(connection):  # most of the time, and then without waiting for the write lock
                return False
            connection.execute("begin immediate")
            if version <= _version_of(connection):
                connection.execute("rollback")
                return False
            for part in _split(text):
                connection.execute(part)
            connection.execute(
                own(connection, "insert into redrive_schema_version (version, name, applied_at) values (?, ?, ?)"),
                (version, name, to_micros(self.clock.now())),
            )
            if version >= FIRST_ROLLING:
                noted = own(connection, "update redrive_schema_version set needs = ? where version = ?")
                connection.execute(noted, (needs("sqlite", version), version))
            connection.execute("commit")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            raise translated(error) from error
        finally:
            connection.execute("pragma busy_timeout=0")
        return True

    # Publish, and transactions of handlers

    def check_connection(self, connection: Any, what: str) -> None:
        """Refuse every connection but ours to a database in memory: any other leads to another database."""
        if self._memory and connection is not self.writer.connection:
            message = (
                f"{what} writes into the database of its connection, and not into this one, which is in memory: in a"
                " test give the harness a fresh database, Harness(app, url=…), and let your code connect to that"
            )
            raise ConfigurationError(message)

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]:
        published = await self.writer.do(lambda connection, now: publish_rows(connection, events, now))
        self._wake()
        return list(published)

    async def deliver_with(self, event_id: Any, fence: int, events: Sequence[NewEvent]) -> bool:
        def job(connection: sqlite3.Connection, now: int) -> bool:
            if not _deliver_row(connection, now, str(event_id), fence):
                return False
            publish_rows(connection, events, now)
            return True

        is_delivered = await self.writer.do(job)
        self._wake()
        return bool(is_delivered)

    @asynccontextmanager
    async def transaction(self, use: Use = Use.OURS) -> AsyncIterator["SqliteTransaction"]:  # noqa: ARG002 - there is one connection that writes
        """Lend the connection for one transaction; commits at the end, rolls back on any exception.

        There is one connection that writes, whatever the use; an attempt that waits for it has its timeout stopped.
        """
        assert self._turn is not None
        self.writer.refuse_borrower()
        with timeout_stopped():
            await self._turn.acquire()
        try:
            writer = self.writer
            # The pen may be held by the writer for the length of one commit: wait for it in a thread.
            taking = asyncio.get_running_loop().run_in_executor(None, _ours, writer.borrow)
            try:
                await _end_of(taking)
            except BaseException:
                taking.add_done_callback(partial(_not_wanted, writer))
                raise
            now = taking.result()
            try:
                writer.lend()
                before = writer.connection.total_changes
                yield SqliteTransaction(writer.connection, now)
                await _to_its_end(lambda: _ours(self._commit, now, before))
            finally:
                writer.give_back()
        finally:
            self._turn.release()
        self._wake()

    def _commit(self, now: int, before: int) -> None:
        """Commit, and renew the session: no heartbeat came through while the transaction held the file."""
        if self._renewal is not None:
            values = {**self._renewal, "now": self.writer.now()}
            self.writer.connection.execute(self.sql("heartbeat").text, values).fetchone()
        self.writer.commit(now, before)

    # Sessions, claims, sweep

    async def begin_session(self, session: Session, lease_seconds: float) -> None:
        values = {
            "id": str(session.id), "name": session.name, "host": session.host, "pid": session.pid,
            "queues": json.dumps(session.queues), "targets": json.dumps(session.targets),
            "concurrency": session.concurrency, "generation": session.generation, "lease": int(lease_seconds * 1e6),
            "process": session.process,
        }  # fmt: skip
        await self.writer.do(
            lambda connection, now: (
                connection.execute(_sql(connection, "session_begin").text, {**values, "now": now}).rowcount
            )
        )
        self.renew_with(session.id, lease_seconds)

    def renew_with(self, session_id: UUID, lease_seconds: float) -> None:
        """Renew this session with every transaction: while one holds the file, no heartbeat comes through."""
        self._renewal = {"id": str(session_id), "lease": int(lease_seconds * 1e6)}

    async def end_session(self, session_id: UUID) -> None:
        await self.writer.do(
            lambda connection, now: (
                connection.execute(_sql(connection, "session_end").text, {"id": str(session_id), "now": now}).rowcount
            )
        )

    async def heartbeat(self, session_id: UUID, lease_seconds: float, overdue: Sequence[Row] = ()) -> bool:
        def job(connection: sqlite3.Connection, now: int) -> bool:
            for row in overdue:
                connection.execute(_sql(connection, "expire").text, {"id": row[ID], "fence": row[FENCE], "now": now})
            values = {"id": str(session_id), "lease": int(lease_seconds * 1e6), "now": now}
            return connection.execute(_sql(connection, "heartbeat").text, values).fetchone() is not None

        return bool(await self.writer.do(job))

    @asynccontextmanager
    async def pulse(self) -> AsyncIterator[Beat]:
        """Give the heartbeat thread its way to renew: here the writer thread does it, no event loop of ours needed."""
        yield self.heartbeat

    async def sessions(self) -> list[Session]:
        rows = await self._read(lambda connection: connection.execute(_sql(connection, "sessions").text).fetchall())
        return [
            Session(
                UUID(row[0]), row[1], row[2], row[3], tuple(json.loads(row[4])), tuple(json.loads(row[5])), row[6],
                row[7], _at(row[8]), _at(row[9]), _at(row[10]), _at(row[11]),
            )
            for row in rows
        ]  # fmt: skip

    async def hear_out(self, gone: Sequence[UUID] = ()) -> None:
        """Let workers renew their sessions before a sweep: while somebody else has the file, no heartbeat gets through.

        Waits until the file can be written, and then a second, if the lease of any session has run out.
        """
        named = json.dumps([str(each) for each in gone])

        def lapsed(connection: sqlite3.Connection) -> bool:
            values = {"now": to_micros(self.clock.now()), "gone": named}
            return connection.execute(_sql(connection, "session_lapsed").text, values).fetchone() is not None

        if await self._read(lapsed):
            await self.writer.do(lambda _connection, _now: None)
            await self.clock.sleep(_GRACE_SECONDS)

    def claims(self, session_id: UUID, lanes: Sequence[Lane], *, actor: str) -> "SqliteClaims":
        return SqliteClaims(self, str(session_id), lanes, actor)

    async def end_lost_transactions(self) -> list[UUID]:
        """Nothing to do: a transaction keeps the whole file, so that nobody could look for it."""
        return []

    async def sweep(
        self, session_id: UUID, *, max_lost: int, limit: int, base_seconds: float, actor: str,
        gone: Sequence[UUID] = (),
    ) -> list[Row]:  # fmt: skip
        named, began = json.dumps([str(each) for each in gone]), self.clock.monotonic()

        def job(connection: sqlite3.Connection, now: int) -> list[Row]:
            # Who had to wait for the file was not the only one: heartbeats come first, this looks again later.
            waited = self.clock.monotonic() - began > _GRACE_SECONDS / 2
            connection.execute(_sql(connection, "session_expire").text, {"now": now, "gone": named, "waited": waited})
            values = {
                "now": now,
                "max_lost": max_lost,
                "limit": limit,
                "session": str(session_id),
                "base": int(base_seconds * 1e6),
            }
            rows = [claimed_row(row) for row in connection.execute(_sql(connection, "sweep").text, values).fetchall()]
            entries = [
                (
                    row[ID],
                    "lost",
                    row[SOURCE],
                    actor,
                    {"lost_count": row[LOST_COUNT], "next_retry_at": iso(from_micros(row[DUE_AT]))},
                )
                for row in rows
                if row[SWEPT_LEASE_UNTIL] is None
            ]
            write_trail(connection, str(session_id), now, entries)
            return rows

        return list(await self.writer.do(job))

    @asynccontextmanager
    async def wakes(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``wake`` whenever something may have become due: at once for our own commits, else within 20 ms."""
        self._wakes.add(wake)
        watch = None if self._memory else _Watch(self._connect(query_only=True), self.clock, wake)
        try:
            yield
        finally:
            self._wakes.discard(wake)
            if watch is not None:
                await asyncio.to_thread(watch.close)

    def _wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()

    # What operators do

    async def replay(
        self, event_id: UUID, *, generation: int | None, by: str, reason: str, payload: str | None = None,
        cycle: int | None = None, from_start: bool = False,
    ) -> None:  # fmt: skip
        """Replay a dead letter, with an edited payload if one is given: both or neither.

        One that is meant for an earlier ``cycle`` is refused: somebody else has replayed it since, perhaps edited it.
        """

        def job(connection: sqlite3.Connection, now: int) -> None:
            event = _find(connection, event_id)
            if event.status is not Status.FAILED:
                raise Refused(f"event {event_id} is {event.status}: only a dead letter can be replayed")
            if event.deleted_at is not None:
                raise Refused(f"event {event_id} was discarded: restore it first, then replay it")
            if cycle not in (None, event.cycle):
                raise Refused(replayed_meanwhile(event_id) if payload is None else edited_meanwhile(event_id))
            if payload is not None:
                _revise(connection, now, event, payload, by, reason)
            redrive_id = str(self.clock.new_id())
            connection.execute(
                own(
                    connection,
                    "insert into redrive_redrive (id, state, selection, sentence, total, ready, planned_by, planned_at,"
                    " expires_at, started_by, started_at, reason, generation, from_start, max_in_flight, lined_up)"
                    " values (?1, 'running', ?2, ?3, 1, 1, ?4, ?5, ?5 + 86400000000, ?4, ?5, ?6, ?7, ?8, 1, 1)",
                ),
                (
                    redrive_id,
                    f"id:{event_id}",
                    f"one dead letter of {event.target}",
                    by,
                    now,
                    reason,
                    generation,
                    from_start,
                ),
            )
            connection.execute(
                own(
                    connection,
                    "insert into redrive_redrive_item (redrive_id, position, event_id, cycle, fingerprint, state)"
                    " values (?, 1, ?, ?, ?, 'ready')",
                ),
                (redrive_id, str(event_id), event.cycle, event.fingerprint),
            )
            groups = [] if event.fingerprint is None else [event.fingerprint]
            connection.execute(
                _sql(connection, "redrive_groups").text,
                {"id": redrive_id, "fingerprints": json.dumps(groups), "members": "[1]"},
            )
            ((_, why),) = release_rows(connection, now, redrive_id, 1, None, None, OPERATOR)
            if why is not None:
                raise Refused(f"event {event_id} cannot be replayed: {why}")

        await self.writer.do(job)
        self._wake()

    async def cancel(self, event_id: UUID, *, by: str, reason: str) -> None:
        def job(connection: sqlite3.Connection, now: int) -> None:
            event = _find(connection, event_id)
            if not _cancel_rows(connection, now, [event_id], by, reason):
                raise Refused(f"event {event_id} is {event.status} already: nothing is left to cancel")

        await self.writer.do(job)
        self._wake()

    async def cancel_all(self, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]:
        done = await self.writer.do(lambda connection, now: _cancel_rows(connection, now, event_ids, by, reason))
        self._wake()
        return list(done)

    async def purge(self, ages: Ages, *, by: str, limit: int, dry_run: bool = False) -> Purge:
        """Remove up to ``limit`` rows of each kind that has an age. Time that nobody saw pass makes no row older."""
        chain = current_chain()

        def job(connection: sqlite3.Connection, now: int) -> Purge:
            ended, failed, handled, messages = (self.writer.ago(now, each) for each in astuple(ages))

            def gone(verb: str, before: int | None) -> int:
                if before is None:
                    return 0
                values = {"before": before, "limit": limit}
                names = _sql(connection, verb).names
                return connection.execute(_sql(connection, verb).text, {name: values[name] for name in names}).rowcount

            def dead(before: int | None) -> int:
                if before is None:
                    return 0
                values = {"before": before, "limit": limit, "now": now}
                rows = connection.execute(_sql(connection, "purge_failed").text, values).fetchall()
                uncount_dead(connection, [row[0] for row in rows])
                promote(connection, now, [row[1:] for row in rows])
                return len(rows)

            purged = Purge(
                gone("purge_ended", ended),
                dead(failed),
                gone("purge_handled", handled),
                gone("purge_sessions", ended),
                gone("purge_members", ended),
                gone("purge_redrives", ended),
                gone("purge_runs", ended),
                gone("purge_findings", ended),
                gone("purge_batches", ended),
                gone("purge_messages", messages),
            )
            if purged.dead_letters and failed is not None:
                detail = {"dead_letters": purged.dead_letters, "failed_before": iso(from_micros(failed))}
                write_trail(connection, chain, now, [(None, "purged", "", by, detail)])
            if dry_run:
                raise _DryRun(purged)
            return purged

        try:
            return await self.writer.do(job)  # type: ignore[no-any-return]
        except _DryRun as dry:
            return dry.purged

    # What operators see

    async def ask(self, verb: str, clauses: Clauses = (), **values: Any) -> list[dict[str, Any]]:
        """Run one of our statements outside any transaction."""

        def job(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            query = with_clauses(_sql(connection, verb), clauses)
            now = self._time(connection) if "now" in query.names else 0
            return run_query(connection, now, query, values)

        return await self._read(job)  # type: ignore[no-any-return]

    def _time(self, connection: sqlite3.Connection) -> int:
        """Tell the file's time to whoever only reads: a clock that was set back is not believed here either."""
        highest: int = connection.execute(own(connection, "select highest from redrive_clock")).fetchone()[0]
        return max(to_micros(self.clock.now()), highest, self.writer.carried(self.clock.monotonic()))

    async def write(self, verb: str, **values: Any) -> list[dict[str, Any]]:
        """Run one of our statements that writes, in a transaction of its own."""
        return list(await self.writer.do(lambda connection, now: run_verb(connection, now, verb, (), values)))

    async def event(self, event_id: UUID) -> Event | None:
        def job(connection: sqlite3.Connection) -> Event | None:
            with suppress(EventNotFound):
                return _find(connection, event_id)
            return None

        return await self._read(job)  # type: ignore[no-any-return]

    async def counts(self) -> dict[tuple[str, str], int]:
        rows = await self._read(lambda connection: connection.execute(_sql(connection, "counts").text).fetchall())
        return {(row[0], row[1]): row[2] for row in rows}

    async def overview(self) -> Mapping[str, Any]:
        def job(connection: sqlite3.Connection) -> dict[str, Any]:
            cursor = connection.execute(_sql(connection, "overview").text, {"now": self._time(connection)})
            return dict(zip((column[0] for column in cursor.description), cursor.fetchone(), strict=True))

        return await self._read(job)  # type: ignore[no-any-return]

    async def trail(self, event_id: UUID | None = None) -> AsyncIterator[TrailEntry]:
        if event_id is not None:
            query, bound = self.sql("trail_of_event").text, {"id": str(event_id)}
            for row in await self._read(lambda connection: connection.execute(query, bound).fetchall()):
                yield _entry(row)
            return
        chain, seq = "", 0
        while True:
            values = {"chain": chain, "seq": seq, "limit": _TRAIL_PAGE}
            rows = await self._read(
                lambda connection: connection.execute(_sql(connection, "trail").text, values).fetchall()  # noqa: B023
            )
            for row in rows:
                yield _entry(row)
            if len(rows) < _TRAIL_PAGE:
                return
            chain, seq = rows[-1][0], rows[-1][1]

    async def write_trail(self, entries: Sequence[Entry]) -> None:
        chain = current_chain()
        await self.writer.do(lambda connection, now: write_trail(connection, chain, now, entries))


class SqliteClaims:
    """The worker's line to the store: a turn is one job of the writer, so it shares a commit with what is published."""

    def __init__(self, store: SqliteStore, session: str, lanes: Sequence[Lane], actor: str) -> None:
        self._store = store
        self._session = session
        self._lanes = lanes
        self._actor = actor
        self._values = tuple(value for lane in lanes for value in lane)
        rows = ", ".join(f"({n}, ?{3 * n + 2}, ?{3 * n + 3}, ?{3 * n + 4})" for n in range(len(lanes)))
        self._is_due = with_clauses(store.sql("is_due"), {"lanes": rows}).ordered(("now",))
        self._next_due = with_clauses(store.sql("next_due"), {"lanes": rows}).ordered(("now",))

    async def turn(self, finished: Finished, want: int) -> Turn:
        def job(connection: sqlite3.Connection, now: int) -> Turn:
            refused = self._settle(connection, now, finished)
            found = self._claim(connection, now, want)
            ours = [row for row in found if row[SWEPT_STATUS] == "in_flight"]
            return Turn(ours, refused, now / 1e6, more=len(found) >= want)

        def look(connection: sqlite3.Connection, now: int) -> object:
            return GO_ON if self._due(connection, now) else Turn([], [], now / 1e6, more=False)

        turn: Turn = await self._store.writer.do(job, look=None if finished else look)
        finished.clear()
        return turn

    def _due(self, connection: sqlite3.Connection, now: int) -> list[Lane]:
        """Find the lanes in which something is due, first things first; with all queues paused there are none."""
        found = connection.execute(self._is_due, (now, *self._values)).fetchall() if self._lanes else []
        return [self._lanes[n] for (n,) in sorted(found)]

    def _settle(self, connection: sqlite3.Connection, now: int, finished: Finished) -> list[Any]:
        refused: list[Any] = []
        if finished.delivered:
            refused += _deliver_rows(connection, now, finished.delivered)
        if finished.settlements:
            wanted = {each.id: each for each in finished.settlements}
            lost = settle_rows(connection, now, finished.settlements, self._session, self._actor)
            refused += [each for each in lost if not _stands(connection, each, wanted[each].fence, wanted[each].status)]
        put_back = _sql(connection, "put_back").text
        for row, delay in finished.put_back:
            values = {"id": row[ID], "fence": row[FENCE], "delay": int(delay * 1e6), "now": now}
            if connection.execute(put_back, values).fetchone() is None:
                refused.append(row[ID])
        return refused

    def _claim(self, connection: sqlite3.Connection, now: int, want: int) -> list[Row]:
        """Take what is due, lane by lane; the rows that had to be blocked are among the answer."""
        claimed: list[Row] = []
        if want <= 0 or not self._alive(connection):
            return claimed
        text = _sql(connection, "claim").text
        for queue, priority, generation in self._due(connection, now):
            values = {
                "session": self._session,
                "queue": queue,
                "priority": priority,
                "generation": generation,
                "now": now,
                "want": want - len(claimed),
            }
            found = sorted(connection.execute(text, values).fetchall(), key=_IN_ORDER)
            odd = connection.text_factory is not str
            claimed += [claimed_row(row) if odd or row[_IS_ODD] else row for row in found]
            if len(claimed) >= want:
                break
        # One that was in flight and comes back behind another that waited for it: that one is first now.
        blocked = [(row[TARGET], row[ORDERING_KEY]) for row in claimed if row[SWEPT_STATUS] == "blocked"]
        promote(connection, now, blocked)
        return claimed

    def _alive(self, connection: sqlite3.Connection) -> bool:
        """Check that nobody has swept this session; it may claim nothing more until it has begun anew."""
        query = own(connection, "select 1 from redrive_session where id = ? and ended_at is null")
        return connection.execute(query, (self._session,)).fetchone() is not None

    async def next_due(self) -> float | None:
        def job(connection: sqlite3.Connection, now: int) -> float | None:
            if not self._lanes:
                return None
            (due,) = connection.execute(self._next_due, (now, *self._values)).fetchone()
            return None if due is None else (due - now) / 1e6

        return await self._store.writer.do(job, look=job)  # type: ignore[no-any-return]

    async def forget(self, held: Iterable[Any], *, max_lost: int) -> int:
        values = {"session": self._session, "held": json.dumps(list(held)), "max_lost": max_lost}
        return len(
            await self._store.writer.do(
                lambda connection, now: connection.execute(
                    _sql(connection, "forget").text, {**values, "now": now}
                ).fetchall()
            )
        )

    async def close(self) -> None:
        """Nothing to give back: the writer is shared."""


class SqliteTransaction:
    """A handler's transaction on the shared connection."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self.connection = connection
        self._now = now

    async def execute(self, sql: str, *parameters: Any) -> int:
        """Run one statement; return how many rows it changed."""
        return await self._theirs(lambda: self.connection.execute(sql, parameters).rowcount)

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """Run one query; return its rows."""
        return await self._theirs(lambda: self.connection.execute(sql, parameters).fetchall())

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]:
        return await self._run(lambda: publish_rows(self.connection, events, self._now))

    async def mark_handled(self, target: str, idempotency_key: str, event_id: Any, fence: int = 0) -> bool:  # noqa: ARG002 - nobody waits for a key
        values = {
            "target": target,
            "idempotency_key": idempotency_key,
            "event_id": str(event_id),
            "now": self._now,
        }
        return await self._run(
            lambda: self.connection.execute(_sql(self.connection, "handled").text, values).fetchone() is not None
        )

    async def deliver(self, event_id: Any, fence: int) -> bool:
        return await self._run(lambda: _deliver_row(self.connection, self._now, str(event_id), fence))

    async def run(self, verb: str, clauses: Clauses = (), **values: Any) -> list[dict[str, Any]]:
        """Run one of our statements."""
        return await self._run(lambda: run_verb(self.connection, self._now, verb, clauses, values))

    async def release(
        self, redrive_id: UUID, *, limit: int, stage: int | None, priority: int | None, chain: str
    ) -> list[tuple[UUID, str | None]]:
        rows = await self._run(
            lambda: release_rows(self.connection, self._now, str(redrive_id), limit, stage, priority, chain)
        )
        return [(UUID(event_id), why) for event_id, why in rows]

    async def note_outcomes(self, redrive_id: UUID) -> None:
        await self._run(lambda: note_outcomes(self.connection, self._now, str(redrive_id)))

    async def revise(self, event_id: UUID, payload: str, *, by: str, reason: str, cycle: int) -> bool:
        def job() -> bool:
            event = _find(self.connection, event_id)
            if not event.is_dead_letter or event.cycle != cycle:
                return False
            _revise(self.connection, self._now, event, payload, by, reason)
            return True

        return await self._run(job)

    async def note(self, kind: str, actor: str, facts: Mapping[str, Any], event_id: UUID | None = None) -> None:
        await self.record([(event_id, kind, "", actor, facts)])

    async def record(self, entries: Sequence[Entry]) -> None:
        chain = current_chain()
        await self._run(lambda: write_trail(self.connection, chain, self._now, entries))

    async def settle(self, settlements: Sequence[Settlement], *, chain: str, actor: str) -> set[Any]:
        return set(await self._run(lambda: settle_rows(self.connection, self._now, settlements, chain, actor)))

    async def _run(self, job: Callable[[], T]) -> T:
        """Run statements of ours. The errors of a handler's own stay SQLite's, so that they can be classified."""
        return await self._theirs(lambda: _ours(job))

    async def _theirs(self, job: Callable[[], T]) -> T:
        return await _to_its_end(lambda: self._inside(job))

    def _inside(self, job: Callable[[], T]) -> T:
        """Guard: on a full disk SQLite ends the transaction by itself; what came after would be committed at once."""
        if not self.connection.in_transaction:
            raise StoreUnavailable(ROLLED_BACK)
        return job()


class _Watch:
    """A thread that notices commits of other processes by the file's data version."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._clock = clock
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redrive-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        seen = None
        while not self._stopped.wait(_WATCH_SECONDS):
            try:
                (version,) = self._connection.execute("pragma data_version").fetchone()
            except sqlite3.Error:
                continue  # the poll of the worker does not depend on this
            if version != seen:
                seen = version
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()


class _DryRun(Exception):
    """Carries an answer out of a transaction that is rolled back."""

    def __init__(self, purged: Purge) -> None:
        self.purged = purged


async def _to_its_end(job: Callable[[], T]) -> T:
    """Run a job in a thread. Who is cancelled meanwhile waits for its end: nothing is rolled back under its hands."""
    loop = asyncio.get_running_loop()
    working = loop.run_in_executor(None, job)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await _end_of(working)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        working.exception()
        raise cancelled
    return working.result()


def _end_of(working: asyncio.Future[Any]) -> asyncio.Future[None]:
    """Make a future that ends with another and can be cancelled without it: as a shield, in a third of its time."""
    ended = working.get_loop().create_future()
    working.add_done_callback(partial(_ring, ended))
    return ended


def _ring(bell: asyncio.Future[None], _: asyncio.Future[Any]) -> None:
    if not bell.done():
        bell.set_result(None)


def _not_wanted(writer: Writer, taken: asyncio.Future[int]) -> None:
    """Give a connection back that came when nobody waited for it any more."""
    if not taken.cancelled() and taken.exception() is None:
        writer.give_back()


def _ours(job: Callable[..., T], *arguments: Any) -> T:
    try:
        return job(*arguments)
    except sqlite3.Error as error:
        raise translated(error) from error


def publish_rows(connection: sqlite3.Connection, events: Sequence[NewEvent], now: int) -> list[Published]:
    """Insert events on this connection. Those without a retry key cannot meet a live twin and go in one call."""
    fresh = [sqlite_row(event, now) for event in events if event.retry_key is None]
    connection.executemany(_sql(connection, "publish_new").ordered(SQLITE_ORDER), fresh)
    text = _sql(connection, "publish").ordered(SQLITE_ORDER)
    keyed = [event for event in events if event.retry_key is not None]
    rows = [connection.execute(text, sqlite_row(event, now)).fetchone() for event in keyed]
    return published_from(events, rows)


def _deliver_rows(connection: sqlite3.Connection, now: int, rows: Sequence[Row]) -> list[Any]:
    order = ("now", "id", "fence")
    plain = [(now, row[ID], row[FENCE]) for row in rows if row[TYPE] != COMPENSATE]
    named = [(now, row[ID], row[FENCE]) for row in rows if row[TYPE] == COMPENSATE] if len(plain) < len(rows) else []
    done = connection.executemany(_sql(connection, "deliver").ordered(order), plain).rowcount if plain else 0
    if named:
        done += connection.executemany(_sql(connection, "deliver_named").ordered(order), named).rowcount
    if done == len(rows):
        refused = []
    else:  # rare: some leases were lost
        refused = [row[ID] for row in rows if not _stands(connection, row[ID], row[FENCE], Status.DELIVERED)]
        rows = [row for row in rows if row[ID] not in refused]
    promote(connection, now, [(row[TARGET], row[ORDERING_KEY]) for row in rows])
    look_at_batches(connection, now, [row[ID] for row in rows])
    return refused


def _deliver_row(connection: sqlite3.Connection, now: int, event_id: str, fence: int) -> bool:
    """End one event as delivered, in the transaction of what it did."""
    values = {"id": event_id, "fence": fence, "now": now}
    if connection.execute(_sql(connection, "deliver_named").text, values).rowcount != 1:
        return False
    query = own(connection, "select target, ordering_key from redrive_outbox where id = ?")
    promote(connection, now, connection.execute(query, (event_id,)).fetchall())
    look_at_batches(connection, now, [event_id])
    return True


def _stands(connection: sqlite3.Connection, event_id: Any, fence: int, status: Status) -> bool:
    """Say whether a lease stands as its worker wanted it settled: the answer to an earlier settle may have got lost."""
    query = own(connection, "select 1 from redrive_outbox where id = ? and fence = ? and status = ?")
    return connection.execute(query, (str(event_id), fence, status.value)).fetchone() is not None


def _cancel_rows(
    connection: sqlite3.Connection, now: int, event_ids: Sequence[UUID], by: str, reason: str
) -> list[UUID]:
    """Call off what has not ended, with the trail entries, and let the next of their keys go; return which that was."""
    standing = own(connection, "select status, source, target, ordering_key from redrive_outbox where id = ?")
    entries: list[tuple[Any, str, str, str, Mapping[str, Any]]] = []
    freed: list[Sequence[Any]] = []
    for event_id in event_ids:
        was = connection.execute(standing, (str(event_id),)).fetchone()
        values = {"id": str(event_id), "now": now, "by": by, "reason": reason}
        if connection.execute(_sql(connection, "cancel").text, values).rowcount:
            entries.append((event_id, "cancelled", was[1], by, {"reason": reason, "was": was[0]}))
            freed.append(was[2:])
    promote(connection, now, freed)
    write_trail(connection, OPERATOR, now, entries)
    return [entry[0] for entry in entries]


_SETTLE_ORDER: Final = (
    "id", "fence", "status", "delay", "last_error", "error_class", "error_type", "safe_to_retry", "fingerprint",
    "max_attempts", "spends", "is_round", "blocked_on", "passed", "now",
)  # fmt: skip
_TRAIL_ORDER: Final = ("chain", "seq", "now", "event_id", "kind", "source", "actor", "detail", "hash")


def settle_rows(
    connection: sqlite3.Connection, now: int, settlements: Sequence[Settlement], chain: str, actor: str
) -> list[Any]:
    """Write down unhappy attempts with their trail entries; return the ids whose lease was lost."""
    text = _sql(connection, "settle").ordered(_SETTLE_ORDER)
    refused: list[Any] = []
    freed: list[tuple[str, str | None]] = []
    entries: list[tuple[Any, str, str, str, Mapping[str, Any]]] = []
    at = iso(from_micros(now))
    for settlement in settlements:
        row = connection.execute(
            text,
            (
                str(settlement.id), settlement.fence, settlement.status.value,
                int((settlement.delay_seconds or 0.0) * 1e6), settlement.last_error, settlement.error_class,
                settlement.error_type, settlement.safe_to_retry, settlement.fingerprint, settlement.max_attempts,
                settlement.spends, settlement.is_round, settlement.blocked_on, settlement.passed, now,
            ),
        ).fetchone()  # fmt: skip
        if row is None:
            refused.append(settlement.id)
            continue
        event_id, source, status, attempts, due_at, target, key = row
        freed.append((target, key))
        detail: dict[str, Any] = {
            "attempt": attempts, "outcome": settlement.outcome, "error_class": settlement.error_class,
            "error_type": settlement.error_type,
        }  # fmt: skip
        if status == "failed":
            entries.append(
                (
                    event_id,
                    "dead-lettered",
                    source,
                    actor,
                    {**detail, "dead_lettered_at": at},
                )
            )
        elif status == "blocked":
            facts = {"blocked_on": settlement.blocked_on, "tried": bool(settlement.last_error)}
            entries.append((event_id, "blocked", source, actor, facts))
        else:
            entries.append(
                (
                    event_id,
                    "retry-scheduled",
                    source,
                    actor,
                    {**detail, "next_retry_at": iso(from_micros(due_at))},
                )
            )
    promote(connection, now, freed)
    write_trail(connection, chain, now, entries)
    count_dead(connection, [entry[0] for entry in entries if entry[1] == "dead-lettered"], now, is_new=True)
    return refused


def promote(connection: sqlite3.Connection, now: int, freed: Iterable[Sequence[Any]]) -> None:
    """Let the next of each ordering key go, in the transaction that ended an event of it: (target, key) each."""
    keys = dict.fromkeys((now, target, key) for target, key in freed if key is not None)
    if keys:
        connection.executemany(_sql(connection, "promote").ordered(("now", "target", "ordering_key")), keys)


def look_at_batches(connection: sqlite3.Connection, now: int, delivered: Sequence[str]) -> None:
    """Send the notices that are due now that these events were delivered."""
    batches = [
        row[0] for row in connection.execute(_sql(connection, "batches_of").text, {"ids": json.dumps(delivered)})
    ]
    if batches:
        values = {"ids": json.dumps(batches), "force": False, "now": now}
        connection.execute(_sql(connection, "batch_look").text, values).fetchall()


def count_dead(connection: sqlite3.Connection, ids: Sequence[str], now: int, *, is_new: bool = False) -> None:
    """Add dead letters to their groups, in the transaction that makes them."""
    if ids:
        connection.execute(
            _sql(connection, "group_count").text, {"ids": json.dumps(list(ids)), "is_new": is_new, "now": now}
        )


def uncount_dead(connection: sqlite3.Connection, fingerprints: Iterable[str | None]) -> None:
    """Take dead letters out of their groups, in the transaction that moves them."""
    known = [each for each in fingerprints if each is not None]
    if known:
        connection.execute(_sql(connection, "group_uncount").text, {"fingerprints": json.dumps(known)})


def release_rows(
    connection: sqlite3.Connection,
    now: int,
    redrive_id: str,
    limit: int,
    stage: int | None,
    priority: int | None,
    chain: str,
) -> list[tuple[str, str | None]]:
    """Send the next members of a redrive round again. Every replay goes through here, a single one too."""
    standing = "select started_by, reason, generation, from_start, lined_up from redrive_redrive where id = ?"
    by, reason, generation, from_start, lined_up = connection.execute(
        own(connection, standing), (redrive_id,)
    ).fetchone()
    if not lined_up:  # planned by a worker of version 15
        _adopt(connection, redrive_id)
    for (other,) in connection.execute(
        _sql(connection, "redrive_unnoted").text, {"id": redrive_id, "limit": limit}
    ).fetchall():
        note_outcomes(connection, now, other)
    values = {"id": redrive_id, "limit": limit, "generation": generation, "from_start": from_start, "now": now}
    picked = connection.execute(_sql(connection, "redrive_pick").text, values).fetchall()
    going = [row for row in picked if row[6] is None]
    uncount_dead(connection, [row[2] for row in going])
    common = {
        "now": now,
        "at": iso(from_micros(now)),
        "priority": priority,
        "by": by,
        "reason": reason,
        "from_start": from_start,
    }
    connection.executemany(
        _sql(connection, "redrive_release").text,
        [{**common, "event_id": row[1], "generation": row[5]} for row in going],
    )
    connection.executemany(
        _sql(connection, "redrive_mark").text,
        [{"id": redrive_id, "position": row[0], "why": row[6], "stage": stage, "now": now} for row in picked],
    )
    counts = {
        "released": len(going),
        "skipped": len(picked) - len(going),
        "delivered": 0,
        "failed_same": 0,
        "failed_other": 0,
    }
    connection.execute(_sql(connection, "redrive_count").text, {"id": redrive_id, **counts})
    write_trail(
        connection, chain, now,
        [(row[1], "replayed", row[3], by,
          {"reason": reason, "generation": row[5], "cycle": row[4], "redrive": redrive_id, "from_start": bool(row[7])})
         for row in going],
    )  # fmt: skip
    return [(row[1], row[6]) for row in picked]


def _adopt(connection: sqlite3.Connection, redrive_id: str) -> None:
    """Line up the members of a redrive that a worker of version 15 has planned."""
    connection.execute(_sql(connection, "redrive_adopt").text, {"id": redrive_id})
    connection.execute(_sql(connection, "redrive_line").text, {"id": redrive_id, "after": "", "until": None})
    connection.execute(own(connection, "update redrive_redrive set lined_up = 1 where id = ?"), (redrive_id,))


def note_outcomes(connection: sqlite3.Connection, now: int, redrive_id: str) -> None:
    """Write down how released members ended."""
    states = [
        row[0]
        for row in connection.execute(
            _sql(connection, "redrive_outcomes").text, {"id": redrive_id, "now": now}
        ).fetchall()
    ]
    if states:
        names = ("delivered", "failed_same", "failed_other", "skipped")
        counts = {name: states.count(name) for name in names}
        connection.execute(_sql(connection, "redrive_count").text, {"id": redrive_id, "released": 0, **counts})


def _revise(connection: sqlite3.Connection, now: int, event: Event, payload: str, by: str, reason: str) -> None:
    values = {"id": str(event.id), "by": by, "reason": reason, "now": now}
    (revision,) = connection.execute(_sql(connection, "payload_revise").text, values).fetchone()
    revise = own(connection, "update redrive_outbox set payload = ? where id = ?")
    connection.execute(revise, (payload, str(event.id)))
    detail = {"reason": reason, "revision": revision}
    write_trail(connection, OPERATOR, now, [(str(event.id), "edited", event.source, by, detail)])


def run_verb(
    connection: sqlite3.Connection, now: int, verb: str, clauses: Clauses, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Run one of our statements."""
    return run_query(connection, now, with_clauses(_sql(connection, verb), clauses), values)


def run_query(
    connection: sqlite3.Connection, now: int, query: Statement, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Run a statement that was read; instants travel as microseconds, ids as text, lists as JSON."""
    given = {"now": now, **values}
    cursor = connection.execute(query.text, {name: _plain(given[name]) for name in query.names})
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, list | tuple):
        return json.dumps(value)
    return value


def write_trail(
    connection: sqlite3.Connection,
    chain: str,
    now: int,
    entries: Sequence[tuple[Any, str, str, str, Mapping[str, Any]]],
) -> None:
    """Continue a chain. Runs inside a write transaction, so nobody else continues it meanwhile."""
    if not entries:
        return
    seq, previous = connection.execute(_sql(connection, "trail_head").text, {"chain": chain}).fetchone() or (0, "")
    rows = []
    for event_id, kind, source, actor, facts in entries:
        seq += 1
        detail = json.dumps(facts, ensure_ascii=False)
        of = None if event_id is None else str(event_id)
        previous = entry_hash(previous, chain, seq, now, of, kind, source, actor, detail)
        rows.append((chain, seq, now, of, kind, source, actor, detail, previous))
    connection.executemany(_sql(connection, "write_trail").ordered(_TRAIL_ORDER), rows)


def _find(connection: sqlite3.Connection, event_id: UUID) -> Event:
    text = _sql(connection, "event").text.format(columns=", ".join(EVENT_COLUMNS))
    row = connection.execute(text, {"id": str(event_id)}).fetchone()
    if row is None:
        raise EventNotFound(f"there is no event {event_id}")
    return _event(row)


def _event(row: Row) -> Event:
    return event_from(dict(zip(EVENT_COLUMNS, row, strict=True)))


def _entry(row: Row) -> TrailEntry:
    chain, seq, at, of, kind, source, actor, detail, digest = row
    return TrailEntry(chain, seq, from_micros(at), id_of(of) if of else None, kind, source, actor, detail, digest)


def _version_of(connection: sqlite3.Connection) -> int:
    known = "select 1 from sqlite_master where name = ? || '_schema_version'"
    if connection.execute(known, (schema_of(connection),)).fetchone() is None:
        return 0
    query = own(connection, "select coalesce(max(version), 0) from redrive_schema_version")
    return int(connection.execute(query).fetchone()[0])


def _schema_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Read which schema this is, and which its code must know."""
    found = _version_of(connection)
    if found < FIRST_ROLLING:
        return found, found
    query = own(connection, "select max(needs) from redrive_schema_version")
    return found, int(connection.execute(query).fetchone()[0])


def _split(text: str) -> list[str]:
    """Cut a migration into statements: SQLite runs one at a time inside our transaction."""
    parts, part = [], ""
    for line in text.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            parts.append(part)
            part = ""
    return parts


def _at(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
