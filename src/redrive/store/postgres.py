"""PostgreSQL: the same contract for many machines. The database's own clock decides what is due.

Four kinds of connection: those that are shared by purpose (``connections``); one for the turns of a worker; one that
listens for wake-ups; one in the heartbeat thread. Every call ends within its limit: a server that has gone silent costs
a ``StoreUnavailable`` and a new connection, never a hanging worker.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple
from datetime import UTC, date, datetime, timedelta
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from uuid import UUID

import asyncpg

from redrive import check
from redrive.clock import Clock
from redrive.errors import (
    ConfigurationError,
    KeyInUse,
    LockHeld,
    RedriveError,
    Refused,
    SchemaMissing,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from redrive.event import Event, NewEvent, Published, Settlement, Status, TrailEntry
from redrive.instant import earlier, iso
from redrive.store.base import (
    DUE_AT,
    EVENT_COLUMNS,
    FENCE,
    ID,
    PRIORITY,
    SOURCE,
    SUBJECT,
    Ages,
    Beat,
    Entry,
    Finished,
    Lane,
    Purge,
    Row,
    Session,
    Turn,
    current_chain,
    edited_meanwhile,
    event_from,
    is_background,
    judge_schema,
    replayed_meanwhile,
)
from redrive.store.connections import PLACES, Connections, Use, inside_transaction, used_for
from redrive.store.refusal import STATES
from redrive.store.rows import (
    first_of_each_key,
    postgres_new,
    postgres_one,
    postgres_values,
    published_from,
    unanswered,
)
from redrive.store.sql import (
    FIRST_ROLLING,
    SCHEMA,
    Clauses,
    Statement,
    in_schema,
    load,
    migrations,
    needs,
    with_clauses,
)
from redrive.store.watermark import Watermark

T = TypeVar("T")

_MIGRATION_LOCK: Final = 0x7265_6472_6976_65  # "redrive"
_TRAIL_PAGE: Final = 5_000
_INSTANT: Final = "timestamptz"
_INSTANT_OID: Final = 1184
_SERVER_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = (datetime(1, 1, 2, tzinfo=UTC) - _SERVER_EPOCH) // timedelta(microseconds=1)
_LATEST: Final = (datetime(9999, 12, 30, tzinfo=UTC) - _SERVER_EPOCH) // timedelta(microseconds=1)
_FIRST_OWN_TYPE: Final = 10_000  # ids below are given by hand, and kept from version to version

# Whoever has waited for a lock looks again at what others have written: all of it relies on that, whatever the server's
# default is. A machine that is gone without a word is found out within the lease, or its transaction would keep its
# locks for two hours. Behind a pooler that gives a connection to everybody nothing can be set; there only transactions
# say the first, and the pooler has settings of its own for the second.
_EVERYWHERE: Final = """
    set default_transaction_isolation = 'read committed';
    set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 4;
    set tcp_user_timeout = 30000;
"""
# The statements of a turn must never scan or hash the whole table, whatever it looked like when they were planned.
_PLANNER: Final = """
    set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off;
    set plan_cache_mode = force_generic_plan; set jit = off;
"""
# How long statements wait for a lock that somebody else holds. A turn waits once, and then writes what is free; what it
# knows to be held it tries again almost without waiting. Our own transactions are over within milliseconds.
_TURN_WAIT: Final = "200ms"
_HELD_WAIT: Final = "20ms"
_BACKGROUND_WAIT: Final = "100ms"
_MOST_WAITS: Final = 10

_UNAVAILABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver's own state, after a connection was cut in the middle of a call
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # a deadlock: nothing was written, the next try may go through
    asyncpg.LockNotAvailableError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # its administrator has closed the database for a while
)

_LOST: Final = (
    ConnectionError,
    asyncpg.InternalClientError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
)
_NOT_SENT: Final = ("cannot switch to state", "connection is closed", "not connected")  # as the driver says it
_TRIES: Final = 3


_MEANINGS: Final[tuple[tuple[tuple[type[Exception], ...], type[RedriveError], str], ...]] = (
    (
        (asyncpg.ReadOnlySQLTransactionError,),
        StoreReadOnly,
        "{place} is read-only (a standby?): point the URL at the primary",
    ),
    (
        (asyncpg.DiskFullError,),
        StoreFull,
        "the disk of {place} is full: free some space, nothing was written ({said})",
    ),
    (
        (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError),
        ConfigurationError,
        "{place} refused us: {said}. Check user, password and database in the URL",
    ),
    (
        (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError),
        SchemaMissing,
        "{place} lacks redrive's tables: run `redrive migrate` ({said})",
    ),
    (
        # What is published was looked at before; this is a name or a note that somebody has asked for or wrote.
        (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError),
        Refused,
        "a text holds a character that PostgreSQL has no place for, like NUL: leave it out",
    ),
    (
        (asyncpg.TooManyConnectionsError,),
        StoreUnavailable,
        "{place} has no free connection ({said}): lower Redrive(…, transactions=…), or raise its max_connections",
    ),
    (
        (asyncpg.InternalClientError,),  # its words are about the driver's own states
        StoreUnavailable,
        "the connection to PostgreSQL at {place} was lost: the next call opens a new one",
    ),
    (
        (asyncpg.LockNotAvailableError,),
        LockHeld,
        "another transaction at {place} holds a lock for too long: nothing was written, try again ({said})",
    ),
    (_UNAVAILABLE, StoreUnavailable, "PostgreSQL at {place} does not answer: {said}"),
)


_ONE_OF_A_KEY: Final = "outbox_key_in_flight"
_IN_ORDER: Final = itemgetter(PRIORITY, DUE_AT)


def _sql(connection: Any, verb: str) -> Statement:
    return load("postgres", verb, connection.schema)


def _own(connection: Any, text: str) -> str:
    """Write a short statement of ours for the tables of this connection."""
    return in_schema("postgres", text, connection.schema)


class _Known(NamedTuple):
    """What the driver wants to have asked for types that it knows already: a statement of that name."""

    name: str = "known"


class _Connection(asyncpg.Connection):
    """One that knows the schema of our tables, and asks for the server's own types once a process.

    asyncpg asks anew on every connection, for arrays too: four round trips and 9 ms of the server at the first claim,
    and again at the first failure. The ids of these types are the same on every server.
    """

    __slots__ = ("schema",)
    schema: str
    _types: ClassVar[dict[frozenset[int], Any]] = {}

    async def _introspect_type(self, typename: str, schema: str) -> Any:
        if typename == _INSTANT:
            return {"oid": _INSTANT_OID, "kind": b"b", "elemtype": 0}
        return await super()._introspect_type(typename, schema)  # type: ignore[misc]

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:  # noqa: ASYNC109
        wanted = frozenset(typeoids)
        if wanted in self._types:
            return self._types[wanted], _Known()
        types, statement = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        if max(wanted) < _FIRST_OWN_TYPE:
            self._types[wanted] = types
        return types, statement


class _OwnConnection(_Connection):
    """A connection that can be made clean: nothing of its last user is left but our settings."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        # Like `discard all`, but for the statements that the driver has prepared: it would go on using them.
        # One round trip: 0.48 ms where `select 1` takes 0.42.
        return f"set session authorization default; {super().get_reset_query()} discard temp; {_EVERYWHERE}"


class PostgresStore:
    """The store contract on PostgreSQL 14 and later."""

    name = "postgres"

    def __init__(
        self, url: str, clock: Clock, *, schema: str = SCHEMA, call_seconds: float = 30.0, transactions: int = 10,
        notify: bool = True,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.schema = schema
        self.notify = notify
        self._url, options = _without_options(url)
        self._pooled = options.get("pooler") == "transaction"  # pgbouncer: no LISTEN, no SET, no named statements
        self._call_seconds = call_seconds
        self._places = {**PLACES, Use.HANDLER: transactions, Use.APP: transactions}
        self._pool: Connections | None = None

    # Opening and closing

    async def open(self) -> None:
        if self._pool is not None:
            return
        with translating(self._place):
            self._pool = Connections(self.connect, self._places, _is_full)
            await self._run(lambda connection: connection.fetchval("select 1"))

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        await pool.close(min(5.0, self._call_seconds))

    async def version(self) -> str:
        with translating(self._place):
            found = await self._run(lambda connection: connection.fetchval("show server_version"))
        return f"PostgreSQL {found}"

    @property
    def _place(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.hostname or 'local'}:{parts.port or 5432}{parts.path}"

    async def connect(self, *, hot: bool = False) -> "asyncpg.Connection[Any]":
        """Open a connection outside the pool."""
        connection = await asyncpg.connect(
            self._url, timeout=min(10.0, self._call_seconds), command_timeout=self._call_seconds,
            statement_cache_size=0 if self._pooled else 100,
            connection_class=_Connection if self._pooled else _OwnConnection,
        )  # fmt: skip
        connection.schema = self.schema
        if not hot:  # a turn reads none but those that its statement has looked at
            await connection.set_type_codec(
                _INSTANT, schema="pg_catalog", format="tuple", encoder=_to_server, decoder=_from_server
            )
        if not self._pooled:
            try:
                await connection.execute(_EVERYWHERE + (f"{_PLANNER} set lock_timeout = '{_TURN_WAIT}'" if hot else ""))
            except BaseException:
                connection.terminate()  # called off in between: nobody else knows of it
                raise
        return connection

    async def _run(self, job: Callable[[Any], Awaitable[T]]) -> T:
        """Run a job on a shared connection; one that failed in the middle is thrown away."""
        pool, tries = self._open_pool(), 0
        while True:
            connection = await pool.take(used_for(Use.CALL), self._call_seconds)
            tries += 1
            try:
                return await job(connection)
            except (*_UNAVAILABLE, asyncio.CancelledError) as error:
                connection.terminate()
                if tries == _TRIES or not _was_not_sent(error):
                    raise
            finally:
                self._give_back(pool, connection)

    def _open_pool(self) -> Connections:
        if self._pool is None:
            message = "the store is not open: call `await app.open()`, or use `async with app:`"
            raise StoreUnavailable(message)
        return self._pool

    def _give_back(self, pool: Connections, connection: Any) -> None:
        if self._pool is not pool:  # closed meanwhile
            connection.terminate()
        pool.give(connection)

    async def _fetch(self, verb: str, **values: Any) -> list[Any]:
        query = self.sql(verb)
        with translating(self._place):
            return await self._run(lambda connection: connection.fetch(query.numbered, *query.values(values)))

    def _now(self) -> datetime | None:
        return self.clock.database_now()

    def sql(self, verb: str) -> Statement:
        """Load a statement for the tables of this store."""
        return load("postgres", verb, self.schema)

    # Schema

    async def schema_version(self) -> int:
        with translating(self._place):
            return await self._run(_version_of)

    async def schema_needs(self) -> int:
        with translating(self._place):
            return (await self._run(_schema_of))[1]

    async def check_schema(self) -> None:
        """Refuse to work on a schema that is missing, or that needs newer code than this."""
        with translating(self._place):
            found, wants = await self._run(_schema_of)
        judge_schema(self._place, found, wants, migrations(self.name)[-1][0])

    async def migrate(self, *, to: int | None = None) -> list[str]:
        """Apply the missing migrations, each in one transaction, one process at a time."""

        async def job(connection: Any) -> list[str]:
            done, applied = [], await _version_of(connection)  # most of the time all, and then without the lock
            for version, name, text in migrations("postgres", self.schema):
                if to is not None and version > to:
                    break
                if version <= applied:
                    continue
                async with connection.transaction(isolation="read_committed"):
                    await connection.execute("set local lock_timeout = '10s'")
                    await connection.execute("select pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
                    if version <= await _version_of(connection):
                        continue
                    await connection.execute(text)
                    noted = _own(connection, "insert into redrive.schema_version (version, name) values ($1, $2)")
                    await connection.execute(noted, version, name)
                    if version >= FIRST_ROLLING:
                        noted = _own(connection, "update redrive.schema_version set needs = $2 where version = $1")
                        await connection.execute(noted, version, needs("postgres", version))
                    done.append(f"{version:04d}_{name}")
            return done

        with translating(self._place):
            return await self._run(job)

    # Publish, and transactions of handlers

    def check_connection(self, connection: Any, what: str) -> None:
        """Nothing to refuse: where a connection leads is known to its owner alone."""

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]:
        with translating(self._place):
            return await self._run(lambda connection: publish_rows(connection, events, self._now(), notify=self.notify))

    async def deliver_with(self, event_id: Any, fence: int, events: Sequence[NewEvent]) -> bool:
        query, now = self.sql("deliver"), self._now()

        async def job(connection: Any) -> bool:
            async with connection.transaction(isolation="read_committed"):
                values = query.values({"id": event_id, "fence": fence, "now": now})
                if not await connection.fetch(query.numbered, *values):
                    return False
                await publish_rows(connection, events, now, notify=self.notify)
                return True

        with translating(self._place):
            return await self._run(job)

    @asynccontextmanager
    async def transaction(self, use: Use = Use.OURS) -> AsyncIterator["PostgresTransaction"]:
        """Lend a connection for one transaction; commits at the end, rolls back on any exception.

        Errors of the handler's own statements stay the driver's, so that they can be classified. A connection that was
        lost is ``StoreUnavailable``, a commit that got no answer too: nobody knows.
        """
        pool = self._open_pool()
        with translating(self._place):
            connection, transaction = await self._begun(pool, used_for(use))
        try:
            if is_background() and not use.is_lent:
                with translating(self._place):
                    await _wait_briefly(connection, _BACKGROUND_WAIT)
            lent = PostgresTransaction(connection, self._now(), self._place, notify=self.notify)
            try:
                with inside_transaction():
                    yield lent
                await lent.check_whole()
            except BaseException as error:
                await self._roll_back(connection, transaction)
                if isinstance(error, _UNAVAILABLE) and connection.is_closed():
                    with translating(self._place):
                        raise
                raise
            with translating(self._place):
                await self._commit(connection, transaction)
        except asyncio.CancelledError:
            connection.terminate()
            raise
        finally:
            try:
                if use.is_lent:
                    await self._leave_clean(connection)
            finally:
                self._give_back(pool, connection)

    async def _begun(self, pool: Connections, use: Use) -> tuple[Any, Any]:
        """Take a connection and begin a transaction on it; one that was lost while it was idle is replaced."""
        tries = 0
        while True:
            connection = await pool.take(use, self._call_seconds)
            tries += 1
            try:
                transaction = connection.transaction(isolation="read_committed")
                await transaction.start()
            except BaseException as error:
                connection.terminate()
                self._give_back(pool, connection)
                if tries == _TRIES or not isinstance(error, _LOST):
                    raise
            else:
                return connection, transaction

    async def _commit(self, connection: Any, transaction: Any) -> None:
        try:
            await transaction.commit()
        except _UNAVAILABLE:
            connection.terminate()
            raise

    async def _roll_back(self, connection: Any, transaction: Any) -> None:
        """Undo it; where that cannot be said any more, the end of the connection does."""
        try:
            if not connection.is_closed():
                await transaction.rollback()
        except (*_UNAVAILABLE, asyncpg.PostgresError):
            connection.terminate()

    async def _leave_clean(self, connection: Any) -> None:
        """Forget what user code may have set for its session, however its transaction ended.

        Behind a pooler in transaction mode a session is not ours to clean: the next statement may run in another one.
        """
        if self._pooled or connection.is_closed():
            return
        try:
            await connection.reset(timeout=self._call_seconds)
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, (*_UNAVAILABLE, asyncpg.PostgresError)):
                raise

    # Sessions, claims, sweep

    async def begin_session(self, session: Session, lease_seconds: float) -> None:
        await self._fetch(
            "session_begin", id=session.id, name=session.name, host=session.host, pid=session.pid,
            queues=list(session.queues), targets=list(session.targets), concurrency=session.concurrency,
            generation=session.generation, lease=lease_seconds, process=session.process, now=self._now(),
        )  # fmt: skip

    def renew_with(self, session_id: UUID, lease_seconds: float) -> None:
        """Nothing to do: a transaction keeps no heartbeat out."""

    async def end_session(self, session_id: UUID) -> None:
        await self._fetch("session_end", id=session_id, now=self._now())

    async def heartbeat(self, session_id: UUID, lease_seconds: float) -> bool:
        return bool(await self._fetch("heartbeat", id=session_id, lease=lease_seconds, now=self._now()))

    @asynccontextmanager
    async def pulse(self) -> AsyncIterator[Beat]:
        """Give the heartbeat thread a connection of its own, in its own event loop."""
        held: list[asyncpg.Connection[Any]] = []
        query, expire = self.sql("heartbeat"), self.sql("expire")

        async def beat(session_id: UUID, lease_seconds: float, overdue: Sequence[Row] = ()) -> bool:
            with translating(self._place):
                if held and held[0].is_closed():
                    held.clear()
                if not held:
                    held.append(await self.connect())
                values = query.values({"id": session_id, "lease": lease_seconds, "now": self._now()})
                # A third of the lease: a beat that takes longer is as good as none, better to try anew.
                patience = max(1.0, lease_seconds / 3)
                try:
                    if overdue:
                        late = {"ids": [row[ID] for row in overdue], "fences": [row[FENCE] for row in overdue]}
                        late["now"] = self._now()  # type: ignore[assignment]
                        await held[0].fetch(expire.numbered, *expire.values(late), timeout=patience)
                    return bool(await held[0].fetch(query.numbered, *values, timeout=patience))
                except _UNAVAILABLE:
                    held.pop().terminate()
                    raise

        try:
            yield beat
        finally:
            if held:
                held[0].terminate()

    async def sessions(self) -> list[Session]:
        rows = await self._fetch("sessions")
        return [Session(**{**row, "queues": tuple(row["queues"]), "targets": tuple(row["targets"])}) for row in rows]

    async def hear_out(self, gone: Sequence[UUID] = ()) -> None:
        """Nothing to do: a transaction keeps no heartbeat out."""

    def claims(self, session_id: UUID, lanes: Sequence[Lane], *, actor: str) -> "PostgresClaims":
        return PostgresClaims(self, session_id, lanes, actor)

    async def sweep(
        self, session_id: UUID, *, max_lost: int, limit: int, base_seconds: float, actor: str,
        gone: Sequence[UUID] = (),
    ) -> list[Row]:  # fmt: skip
        return await self._fetch(
            "sweep", session=session_id, max_lost=max_lost, limit=limit, base=base_seconds, actor=actor,
            gone=list(gone), chain=str(session_id), now=self._now(),
        )  # fmt: skip

    async def end_lost_transactions(self) -> list[UUID]:
        try:
            rows = await self._fetch("end_lost")
        except asyncpg.InsufficientPrivilegeError:  # they belong to another role; they end when their connection does
            return []
        return [row["id"] for row in rows]

    @asynccontextmanager
    async def wakes(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``wake`` on every notification. A lost connection is made anew; meanwhile the worker's poll suffices."""
        if self._pooled:
            yield
            return
        listening = asyncio.create_task(self._listen(wake), name="redrive-listen")
        try:
            yield
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self, wake: Callable[[], None]) -> None:
        while True:
            lost = asyncio.Event()
            try:
                connection = await self.connect()
            except Exception:  # noqa: BLE001 - nobody would notice its end, and nothing depends on it
                await self.clock.sleep(0.5 + self.clock.random())
                continue
            try:
                connection.add_termination_listener(lambda _connection: lost.set())  # noqa: B023
                await connection.add_listener(self.schema, lambda *_: wake())
                wake()  # whatever was notified while nobody listened
                while not lost.is_set():
                    # A look now and then finds a connection that died without saying so.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(20.0):
                            await lost.wait()
                    await connection.execute("select 1", timeout=10.0)
            except Exception:  # noqa: BLE001 - as above
                await self.clock.sleep(0.1 + self.clock.random() * 0.5)
            finally:
                connection.terminate()

    # What operators do

    async def replay(
        self, event_id: UUID, *, generation: int | None, by: str, reason: str, payload: str | None = None,
        cycle: int | None = None, from_start: bool = False,
    ) -> None:  # fmt: skip
        """Replay a dead letter, with an edited payload if one is given: both or neither.

        One that is meant for an earlier ``cycle`` is refused: somebody else has replayed it since, perhaps edited it.
        """
        values: dict[str, Any] = {
            "id": event_id, "generation": generation, "by": by, "reason": reason, "from_start": from_start,
        }  # fmt: skip
        if payload is not None:
            with translating(self._place):
                async with self.transaction() as tx:
                    revise: dict[str, Any] = {"id": event_id, "payload": payload, "by": by, "reason": reason}
                    revised = await tx.run("payload_revise", **revise, cycle=cycle)
                    await tx.run("replay", **values)
                    if not revised:
                        raise Refused(edited_meanwhile(event_id))
            return
        if cycle is None:
            await self._fetch("replay", **values, now=self._now())
            return
        with translating(self._place):
            async with self.transaction() as tx:
                await tx.run("replay", **values)
                # Looked at afterwards: the function locks in an order that a lock before it would turn round.
                (row,) = await tx.run("event_cycle", id=event_id)
                if row["cycle"] != cycle + 1:
                    raise Refused(replayed_meanwhile(event_id))

    async def cancel(self, event_id: UUID, *, by: str, reason: str) -> None:
        await self._fetch("cancel", id=event_id, by=by, reason=reason, now=self._now())

    async def cancel_all(self, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]:
        rows = await self._fetch("cancel_all", ids=list(event_ids), by=by, reason=reason, now=self._now())
        return [UUID(str(row[0])) for row in rows]

    async def purge(self, ages: Ages, *, by: str, limit: int, dry_run: bool = False) -> Purge:
        """Remove up to ``limit`` rows of each kind that has an age, by the server's clock."""

        async def job(connection: Any) -> Purge:
            now = self._now() or await connection.fetchval("select clock_timestamp()")
            ended, failed, handled, messages = (None if each is None else earlier(now, each) for each in astuple(ages))

            async def gone(verb: str, before: datetime | None) -> int:
                if before is None:
                    return 0
                query = self.sql(verb)
                tag = await connection.execute(query.numbered, *query.values({"before": before, "limit": limit}))
                return int(tag.rsplit(" ", 1)[1])

            async def dead(before: datetime | None) -> int:
                if before is None:
                    return 0
                query = self.sql("purge_failed")
                values = {"before": before, "limit": limit, "now": self._now()}
                rows = await connection.fetch(query.numbered, *query.values(values))
                counted = [row[0] for row in rows if row[0] is not None]
                await connection.execute(self.sql("group_uncount").numbered, counted)
                return len(rows)

            transaction = connection.transaction(isolation="read_committed")
            await transaction.start()
            if is_background():
                await _wait_briefly(connection, _BACKGROUND_WAIT)
            try:
                purged = Purge(
                    await gone("purge_ended", ended),
                    await dead(failed),
                    await gone("purge_handled", handled),
                    await gone("purge_sessions", ended),
                    await gone("purge_members", ended),
                    await gone("purge_redrives", ended),
                    await gone("purge_runs", ended),
                    await gone("purge_findings", ended),
                    await gone("purge_batches", ended),
                    await gone("purge_messages", messages),
                )
                if purged.dead_letters and failed is not None:
                    detail = {"dead_letters": purged.dead_letters, "failed_before": iso(failed)}
                    await _write_trail(connection, self._now(), [(None, "purged", "", by, detail)])
            except BaseException:
                await transaction.rollback()
                raise
            await (transaction.rollback() if dry_run else transaction.commit())
            return purged

        with translating(self._place):
            return await self._run(job)

    # What operators see

    async def ask(self, verb: str, clauses: Clauses = (), **values: Any) -> list[dict[str, Any]]:
        """Run one of our statements outside any transaction."""
        query = with_clauses(self.sql(verb), clauses)
        with translating(self._place):
            rows = await self._run(
                lambda connection: connection.fetch(query.numbered, *query.values({"now": self._now(), **values}))
            )
        return [dict(row) for row in rows]

    async def write(self, verb: str, **values: Any) -> list[dict[str, Any]]:
        """Run one of our statements that writes, in a transaction of its own."""
        return await self.ask(verb, **values)

    async def event(self, event_id: UUID) -> Event | None:
        text = self.sql("event").numbered.format(columns=", ".join(EVENT_COLUMNS))
        with translating(self._place):
            row = await self._run(lambda connection: connection.fetchrow(text, event_id))
        return None if row is None else event_from(row)

    async def counts(self) -> dict[tuple[str, str], int]:
        return {(row[0], row[1]): row[2] for row in await self._fetch("counts")}

    async def overview(self) -> Mapping[str, Any]:
        return dict((await self._fetch("overview"))[0])

    async def trail(self, event_id: UUID | None = None) -> AsyncIterator[TrailEntry]:
        if event_id is not None:
            for row in await self._fetch("trail_of_event", id=event_id):
                yield TrailEntry(*row)
            return
        chain, seq = "", 0
        while True:
            rows = await self._fetch("trail", chain=chain, seq=seq, limit=_TRAIL_PAGE)
            for row in rows:
                yield TrailEntry(*row)
            if len(rows) < _TRAIL_PAGE:
                return
            chain, seq = rows[-1][0], rows[-1][1]

    async def write_trail(self, entries: Sequence[Entry]) -> None:
        with translating(self._place):
            await self._run(lambda connection: _write_trail(connection, self._now(), entries))


class PostgresClaims:
    """The worker's own connection: settles and claims, and remembers how far the claims have come."""

    def __init__(self, store: PostgresStore, session_id: UUID, lanes: Sequence[Lane], actor: str) -> None:
        self._store = store
        self._session_id = session_id
        self._queues = [queue for queue, _, _ in lanes]
        self._priorities = [priority for _, priority, _ in lanes]
        self._generations = [generation for _, _, generation in lanes]
        self._actor = actor
        self._watermark = Watermark(lanes)
        self._held: set[Any] = set()  # events whose end cannot be written while somebody else's transaction lasts
        self._connection: asyncpg.Connection[Any] | None = None

    async def turn(self, finished: Finished, want: int) -> Turn:
        """Write down what finished and claim ``want`` more.

        What has been written leaves ``finished`` at once, so a turn that fails half way can be repeated with the rest.
        What somebody else has locked stays there too. Such events are remembered and written apart from then on, so
        that nobody waits for them a second time.
        """
        with translating(self._store._place):  # noqa: SLF001 - the two halves of one store
            connection = await self._connected()
            try:
                return await self._turn(connection, finished, want)
            except (*_UNAVAILABLE, asyncio.CancelledError):
                self._drop()
                raise

    async def _turn(self, connection: Any, finished: Finished, want: int) -> Turn:
        refused: list[Any] = []
        if self._held and (known := finished.only(self._held)):
            refused += await self._write_free(connection, finished, known)
        for wanted in (want, want, 0):
            with suppress(asyncpg.LockNotAvailableError):
                return await self._write_and_claim(connection, finished, wanted, refused)
            if fresh := finished.only(set(finished.ids) - self._held):
                refused += await self._write_free(connection, finished, fresh)
        raise LockHeld("others hold locks that a turn needs: nothing more was written, it will be tried again")

    async def _write_and_claim(self, connection: Any, finished: Finished, want: int, refused: list[Any]) -> Turn:
        """Write down what nobody is known to hold, and claim."""
        if finished.settlements or finished.put_back:
            refused += await self._write_failures(connection, finished)
        delivered = [row for row in finished.delivered if row[ID] not in self._held]
        clock = self._store.clock
        began = clock.monotonic()
        looked_for, found = await self._settle_and_claim(connection, delivered, want, self._watermark.starts(began))
        ended = clock.monotonic()
        meta = found.pop()  # `union all` keeps the order: the last row is about the look itself
        if looked_for > 0:
            xids = (int(meta[SOURCE]), int(meta[SUBJECT]))
            self._watermark.learn(found, want, meta[DUE_AT], xids, ended - began, ended)
        rows = [row for row in found if row[ID] is not None]
        rows.sort(key=_IN_ORDER)
        if meta[FENCE] != len(delivered):
            refused += await self._unsettled(connection, [(row[ID], row[FENCE], "delivered") for row in delivered])
        finished.delivered[:] = [row for row in finished.delivered if row[ID] in self._held]
        now = meta[DUE_AT].timestamp()
        return Turn(rows, refused, now, more=len(found) >= looked_for, held=len(rows) < len(found))

    async def _write_failures(self, connection: Any, finished: Finished) -> list[Any]:
        """Write down what was not delivered, except what is known to be held; answer what was refused."""
        refused: list[Any] = []
        settlements = [each for each in finished.settlements if each.id not in self._held]
        if settlements:
            async with self._briefly(connection):
                refused += await self._settle(connection, settlements)
            finished.settlements[:] = [each for each in finished.settlements if each.id in self._held]
        put_back = [each for each in finished.put_back if each[0][ID] not in self._held]
        if put_back:
            async with self._briefly(connection):
                refused += await self._put_back(connection, put_back)
            finished.put_back[:] = [each for each in finished.put_back if each[0][ID] in self._held]
        return refused

    async def _write_free(self, connection: Any, finished: Finished, part: Finished) -> list[Any]:
        """Write down what can be written without waiting for others; answer what was refused.

        Nearly everything that may be held is found out beforehand. For the rest a part that still had to wait is
        halved, a few times a turn.
        """
        refused: list[Any] = []
        self._held.update(part.ids)
        parts, waits = deque([part.ids]), 0
        while parts and waits < _MOST_WAITS:
            ids = parts.popleft()
            try:
                async with connection.transaction(isolation="read_committed"):
                    await _wait_briefly(connection, _HELD_WAIT)
                    free, not_ours = await self._write_lockable(connection, part.only(set(ids)))
            except asyncpg.LockNotAvailableError:
                waits += 1
                parts.extend(half for half in (ids[::2], ids[1::2]) if len(half) < len(ids))
                continue
            refused += not_ours
            self._held -= free
            finished.drop(free)
        return refused

    async def _write_lockable(self, connection: Any, part: Finished) -> tuple[set[Any], list[Any]]:
        """Lock what is free with everything that its end changes, and write that; answer which, and the refused."""
        dead = {each.id: each.fingerprint for each in part.settlements if each.status is Status.FAILED}
        query, ids = self._store.sql("held"), part.ids
        values = {"ids": ids, "prints": [dead.get(each) for each in ids]}
        held = {row[0] for row in await connection.fetch(query.numbered, *query.values(values))}
        free = {each for each in ids if each not in held}
        part, refused = part.only(free), []
        if part.settlements:
            refused += await self._settle(connection, part.settlements)
        if part.put_back:
            refused += await self._put_back(connection, part.put_back)
        if part.delivered:
            turn = self._store.sql("turn")
            nothing = self._turn_values(part.delivered, 0, ())
            written = (await connection.fetch(turn.numbered, *turn.values(nothing)))[-1][FENCE]
            if written != len(part.delivered):
                leases = [(row[ID], row[FENCE], "delivered") for row in part.delivered]
                refused += await self._unsettled(connection, leases)
        return free, refused

    @asynccontextmanager
    async def _briefly(self, connection: Any) -> AsyncIterator[None]:
        """Wait for locks no longer than a turn may; a connection of our own is set up for that."""
        if not self._store._pooled:  # noqa: SLF001 - the two halves of one store
            yield
            return
        async with connection.transaction(isolation="read_committed"):
            await _wait_briefly(connection, _TURN_WAIT)
            yield

    async def _settle_and_claim(
        self, connection: Any, delivered: Sequence[Row], want: int, starts: Sequence[datetime]
    ) -> tuple[int, list[Any]]:
        """Run the turn's statement; answer how many it looked for, and what it found.

        Another claim may have taken an event of the same ordering key meanwhile: nothing was written then, and a new
        snapshot sees the other one. If it goes on like that, settle without claiming.
        """
        query = self._store.sql("turn")
        for wanted in (want, want, want, 0):
            values = self._turn_values(delivered, wanted, starts)
            with suppress(asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):
                async with self._briefly(connection):
                    return wanted, await connection.fetch(query.numbered, *query.values(values))
        raise StoreUnavailable("a turn met deadlocks four times in a row: nothing was written, it will be tried again")

    def _turn_values(self, delivered: Sequence[Row], want: int, starts: Sequence[datetime]) -> dict[str, Any]:
        return {
            "now": self._store.clock.database_now(),
            "ids": [row[ID] for row in delivered],
            "fences": [row[FENCE] for row in delivered],
            "session": self._session_id,
            "queues": self._queues if starts else [],
            "priorities": self._priorities if starts else [],
            "generations": self._generations if starts else [],
            "starts": starts,
            "want": want,
        }

    async def _settle(self, connection: Any, settlements: Sequence[Settlement]) -> list[Any]:
        accepted = await settle_rows(
            connection,
            settlements,
            self._store.clock.database_now(),
            chain=str(self._session_id),
            actor=self._actor,
        )
        if len(accepted) == len(settlements):
            return []
        return await self._unsettled(
            connection, [(s.id, s.fence, str(s.status)) for s in settlements if s.id not in accepted]
        )

    async def _put_back(self, connection: Any, put_back: Sequence[tuple[Row, float]]) -> list[Any]:
        query = self._store.sql("put_back")
        values = {
            "ids": [row[ID] for row, _ in put_back],
            "fences": [row[FENCE] for row, _ in put_back],
            "delays": [delay for _, delay in put_back],
            "now": self._store.clock.database_now(),
        }
        accepted = {row[0] for row in await connection.fetch(query.numbered, *query.values(values))}
        return [row[ID] for row, _ in put_back if row[ID] not in accepted]

    async def _unsettled(self, connection: Any, leases: Sequence[tuple[Any, int, str]]) -> list[Any]:
        query = self._store.sql("unsettled")
        ids, fences, statuses = zip(*leases, strict=True)
        return [row[0] for row in await connection.fetch(query.numbered, list(ids), list(fences), list(statuses))]

    async def next_due(self) -> float | None:
        values = {
            "queues": self._queues,
            "priorities": self._priorities,
            "generations": self._generations,
            "now": self._store.clock.database_now(),
        }
        rows = await self._query("next_due", values)
        return None if rows[0][0] is None else float(rows[0][0])

    async def forget(self, held: Iterable[Any], *, max_lost: int) -> int:
        """Put back what we hold without knowing it; not later than we wait for it, or it would hit later claims."""
        values = {"session": self._session_id, "held": list(held), "now": self._store.clock.database_now()}
        values["max_lost"] = max_lost
        seconds = self._store._call_seconds  # noqa: SLF001 - the two halves of one store
        ((until,),) = await self._ask("select clock_timestamp() + make_interval(secs => $1)", seconds)
        return len(await self._query("forget", {**values, "until": until}))

    async def _query(self, verb: str, values: Mapping[str, Any]) -> list[Any]:
        query = self._store.sql(verb)
        return await self._ask(query.numbered, *query.values(values))

    async def _ask(self, text: str, *values: Any) -> list[Any]:
        with translating(self._store._place):  # noqa: SLF001 - the two halves of one store
            connection = await self._connected()
            try:
                return list(await connection.fetch(text, *values))
            except (*_UNAVAILABLE, asyncio.CancelledError):
                self._drop()
                raise

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._store.connect(hot=True)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(*_UNAVAILABLE, asyncpg.PostgresError):
                await self._connection.close(timeout=5.0)
            self._drop()


class PostgresTransaction:
    """A transaction on a shared connection. Statements that are begun at the same time run one after the other."""

    def __init__(self, connection: Any, now: datetime | None, place: str, *, notify: bool) -> None:
        self.connection = connection
        self._now = now
        self._place = place
        self._notify = notify
        self._is_whole = False
        self._one = asyncio.Lock()

    async def check_whole(self) -> None:
        """Refuse to commit what PostgreSQL would roll back without a word: a statement failed, and nobody said so."""
        if self._is_whole:
            return
        try:
            with translating(self._place):
                await self.connection.execute("select")
        except asyncpg.InFailedSQLTransactionError as error:
            message = (
                "a statement of this transaction failed and its error was caught: PostgreSQL has undone all of it."
                " Let the error through, or put the statement into a savepoint"
            )
            raise ConfigurationError(message) from error

    async def execute(self, sql: str, *parameters: Any) -> int:
        """Run one statement; return how many rows it changed."""
        async with self._one:
            tag = (await self.connection.execute(sql, *parameters)).rsplit(" ", 1)[-1]
        return int(tag) if tag.isdigit() else 0

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """Run one query; return its rows."""
        async with self._one:
            return list(await self.connection.fetch(sql, *parameters))

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]:
        async with self._one:
            with translating(self._place):
                if all(event.batch_id is None for event in events):
                    return await publish_rows(self.connection, events, self._now, notify=self._notify)
                # A batch that was closed meanwhile is an answer, not the end of the transaction.
                async with self.connection.transaction():
                    return await publish_rows(self.connection, events, self._now, notify=self._notify)

    async def mark_handled(self, target: str, idempotency_key: str, event_id: Any, fence: int = 0) -> bool:
        values = {"target": target, "idempotency_key": idempotency_key, "event_id": event_id, "fence": fence}
        try:
            rows = await self._query("mark_handled", now=self._now, **values)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise KeyInUse(
                    f"another transaction has key {idempotency_key} of {target} and has not ended"
                ) from error
            raise
        return bool(rows[0][0])

    async def deliver(self, event_id: Any, fence: int) -> bool:
        delivered = await self._query("deliver", id=event_id, fence=fence, now=self._now)
        self._is_whole = True  # the last statement of a handler's transaction: it would have failed otherwise
        return bool(delivered)

    async def settle(self, settlements: Sequence[Settlement], *, chain: str, actor: str) -> set[Any]:
        await self._query("name_lease", id=settlements[0].id, fence=settlements[0].fence)
        async with self._one:
            with translating(self._place):
                accepted = await settle_rows(self.connection, settlements, self._now, chain=chain, actor=actor)
        return {settlement.id for settlement in settlements} - accepted

    async def run(self, verb: str, clauses: Clauses = (), **values: Any) -> list[dict[str, Any]]:
        """Run one of our statements."""
        query = with_clauses(_sql(self.connection, verb), clauses)
        async with self._one:
            with translating(self._place):
                rows = await self.connection.fetch(query.numbered, *query.values({"now": self._now, **values}))
        return [dict(row) for row in rows]

    async def release(
        self, redrive_id: UUID, *, limit: int, stage: int | None, priority: int | None, chain: str
    ) -> list[tuple[UUID, str | None]]:
        values: dict[str, Any] = {
            "id": redrive_id,
            "limit": limit,
            "stage": stage,
            "priority": priority,
            "chain": chain,
        }
        for other in await self.run("redrive_unnoted", id=redrive_id, limit=limit):
            await self.note_outcomes(other["redrive_id"])
        return [(row["event_id"], row["why"]) for row in await self.run("redrive_release", **values)]

    async def note_outcomes(self, redrive_id: UUID) -> None:
        await self.run("redrive_outcomes", id=redrive_id)

    async def revise(self, event_id: UUID, payload: str, *, by: str, reason: str, cycle: int) -> bool:
        return bool(await self.run("payload_revise", id=event_id, payload=payload, by=by, reason=reason, cycle=cycle))

    async def note(self, kind: str, actor: str, facts: Mapping[str, Any], event_id: UUID | None = None) -> None:
        await self.record([(event_id, kind, "", actor, facts)])

    async def record(self, entries: Sequence[Entry]) -> None:
        async with self._one:
            with translating(self._place):
                await _write_trail(self.connection, self._now, entries)

    async def _query(self, verb: str, **values: Any) -> list[Any]:
        query = _sql(self.connection, verb)
        async with self._one:
            with translating(self._place):
                return list(await self.connection.fetch(query.numbered, *query.values(values)))


async def _wait_briefly(connection: Any, patience: str) -> None:
    """Let the statements of this transaction wait for a lock no longer than that."""
    await connection.execute(f"set local lock_timeout = '{patience}'")


async def _version_of(connection: Any) -> int:
    # Not by `to_regclass`: in a transaction that has waited for a lock, it may still answer for the time before.
    known = "select from pg_catalog.pg_tables where schemaname = $1 and tablename = 'schema_version'"
    if not await connection.fetch(known, connection.schema):
        return 0
    latest = _own(connection, "select coalesce(max(version), 0) from redrive.schema_version")
    return int(await connection.fetchval(latest))


async def _schema_of(connection: Any) -> tuple[int, int]:
    """Read which schema this is, and which its code must know."""
    found = await _version_of(connection)
    if found < FIRST_ROLLING:
        return found, found
    return found, int(await connection.fetchval(_own(connection, "select max(needs) from redrive.schema_version")))


async def publish_rows(
    connection: Any, events: Sequence[NewEvent], now: datetime | None, *, notify: bool
) -> list[Published]:
    """Insert events on this connection, in its transaction if it is in one."""
    plain = all(event.retry_key is None and not event.has_deadline for event in events)
    if len(events) == 1 and plain:
        one = _sql(connection, "publish_one")
        await connection.fetch(one.numbered, *one.values(postgres_one(events[0], now, notify=notify)))
        return published_from(events, ())
    if plain:
        new = _sql(connection, "publish_new")
        await connection.fetch(new.numbered, *new.values(postgres_new(events, now, notify=notify)))
        return published_from(events, ())
    if any(event.batch_id is not None and event.retry_key is not None for event in events):
        async with connection.transaction():  # a member may be refused: then nothing is written
            return await _publish_keyed(connection, events, now, notify=notify)
    return await _publish_keyed(connection, events, now, notify=notify)


async def _publish_keyed(
    connection: Any, events: Sequence[NewEvent], now: datetime | None, *, notify: bool
) -> list[Published]:
    query = _sql(connection, "publish")
    rows: list[Any] = []
    asked = first_of_each_key(events)
    while asked:
        values = postgres_values(asked, now, notify=notify)
        rows += await connection.fetch(query.numbered, *query.values(values))
        asked = unanswered(asked, rows)
    return published_from(events, rows)


async def settle_rows(
    connection: Any, settlements: Sequence[Settlement], now: datetime | None, *, chain: str, actor: str
) -> set[Any]:
    """Write down unhappy attempts with their trail entries; return the ids that were accepted."""
    query = _sql(connection, "settle")
    values = {
        "now": now,
        "chain": chain,
        "actor": actor,
        "ids": [s.id for s in settlements],
        "fences": [s.fence for s in settlements],
        "statuses": [s.status.value for s in settlements],
        "delays": [s.delay_seconds or 0.0 for s in settlements],
        "last_errors": [s.last_error for s in settlements],
        "error_classes": [s.error_class for s in settlements],
        "error_types": [s.error_type for s in settlements],
        "safe_to_retry": [s.safe_to_retry for s in settlements],
        "fingerprints": [s.fingerprint for s in settlements],
        "max_attempts": [s.max_attempts for s in settlements],
        "passed": [s.passed for s in settlements],
        "outcomes": [s.outcome.value for s in settlements],
        "spends": [s.spends for s in settlements],
        "rounds": [s.is_round for s in settlements],
        "blocked_on": [s.blocked_on for s in settlements],
    }
    return {row[0] for row in await connection.fetch(query.numbered, *query.values(values))}


async def _write_trail(
    connection: Any,
    now: datetime | None,
    entries: Sequence[Entry],
) -> None:
    query = _sql(connection, "write_trail")
    values = {
        "chain": current_chain(),
        "now": now,
        "event_ids": [entry[0] for entry in entries],
        "kinds": [entry[1] for entry in entries],
        "sources": [entry[2] for entry in entries],
        "actors": [entry[3] for entry in entries],
        "details": [json.dumps(entry[4], ensure_ascii=False) for entry in entries],
    }
    await connection.execute(query.numbered, *query.values(values))


class translating:  # noqa: N801 - reads as a verb: `with translating(place):`
    """Say in our words what PostgreSQL means; a statement's own error stays the driver's."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, RedriveError) or not isinstance(error, Exception):
            return
        clear = self._translated(error)
        if clear is not None:
            raise clear from error

    def _translated(self, error: Exception) -> RedriveError | None:
        own = STATES.get(getattr(error, "sqlstate", None) or "")
        if own is not None:
            return own(str(error))
        if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == _ONE_OF_A_KEY:
            return Refused("another event of this ordering key is in flight: look again when it has ended")
        for kinds, clear, advice in _MEANINGS:
            if isinstance(error, kinds):
                said = str(error) or type(error).__name__
                return clear(advice.format(place=self._place, said=said))
        return None


def _is_full(error: Exception) -> bool:
    """Tell whether the server has no connection left."""
    return isinstance(error, asyncpg.TooManyConnectionsError)


def _was_not_sent(error: BaseException) -> bool:
    """Tell whether a connection was lost while it was idle, so that the driver has refused to send anything."""
    return isinstance(error, asyncpg.InternalClientError | asyncpg.InterfaceError) and str(error).startswith(_NOT_SENT)


def _without_options(url: str) -> tuple[str, dict[str, str]]:
    """Take our own options out of the URL; what is left is for PostgreSQL."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name == "pooler"}
    theirs = [(name, value) for name, value in pairs if name not in ours]
    check.choice(ours.get("pooler", "session"), "?pooler=", ("session", "transaction"))
    return urlunsplit(parts._replace(query=urlencode(theirs))), ours


def _from_server(micros: tuple[int]) -> datetime:
    """Read an instant. Those that Python does not have (infinity, years before 1 and after 9999) are the nearest."""
    return _SERVER_EPOCH + timedelta(microseconds=min(max(micros[0], _EARLIEST), _LATEST))


def _to_server(at: date) -> tuple[int]:
    """Write an instant; one without a time zone is in local time, as everywhere in the driver."""
    instant = at if isinstance(at, datetime) else datetime(at.year, at.month, at.day)  # noqa: DTZ001 - see above
    return ((instant.astimezone(UTC) - _SERVER_EPOCH) // timedelta(microseconds=1),)


def _same(at: datetime) -> datetime:
    return at
