"""Redrive: the app, and the only place that wires the parts together.

What it is told (``registry``), what it is asked (``operations``), and here: opening, publishing, working.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redrive import caller, check, notice, tracing
from redrive.batch import Batches
from redrive.classify import DEFAULT_RULES, Rule
from redrive.clock import Clock, SystemClock
from redrive.counts import Counts
from redrive.duty import Duty
from redrive.errors import (
    ConfigurationError,
    MissingDriver,
)
from redrive.event import NewEvent, Options, Published
from redrive.inbox import Draft, Work
from redrive.instant import to_micros
from redrive.isolate import find_app, isolated
from redrive.lock import Locks
from redrive.mask import DEFAULT_NAMES, Mask
from redrive.notice import Notices
from redrive.operations import Operations
from redrive.options import WorkerOptions
from redrive.payload import Limits, check_name, check_whole
from redrive.policy import RetryPolicy
from redrive.portal import Door, Portal, leave_to_parent
from redrive.publish import NAME_LIMIT, new_events
from redrive.reconcile import Reconcilers
from redrive.registry import check_rules
from redrive.reserve import Reservations
from redrive.retention import Retention
from redrive.schedule import Schedules
from redrive.selfcheck import SelfCheck
from redrive.store.base import Store
from redrive.store.connections import Use
from redrive.store.rows import first_of_each_key, postgres_values, published_from, sqlite_values, unanswered
from redrive.store.sql import SCHEMA, Statement, load
from redrive.transport.envelope import is_foreign, stamped
from redrive.transport.traffic import Traffic
from redrive.worker import Worker

T = TypeVar("T")

_LONGEST_URL: Final = 2_000
_SCHEMA_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Redrive(Operations):
    """Your handlers, one database, and everything that can be asked of them."""

    def __init__(
        self,
        url: str = "sqlite:///redrive.db",
        *,
        source: str = "",
        site: str = "",
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] = DEFAULT_RULES,
        limits: Limits | None = None,
        retention: Retention | None = None,
        generation: int = 0,
        migrate: bool | None = None,
        notify: bool = True,
        approval_above: int | None = None,
        mask: Sequence[str] = DEFAULT_NAMES,
        schema: str | None = None,
        transactions: int = 10,
        clock: Clock | None = None,
    ) -> None:
        """Name the database; nothing is opened yet.

        ``schema``: the PostgreSQL schema of all tables, views and functions (default ``redrive``), so that several apps
        can share a database; on SQLite it is the prefix of their names. ``?schema=`` in the URL sets it too.
        ``migrate``: create missing tables when opening. On by default for SQLite, off for PostgreSQL, where
        `redrive migrate` is a step of your deployment. ``approval_above``: a redrive of more events than this needs
        the approval of a second person; where the database says a smaller number for everybody, that one holds.
        ``mask``: fields with these names are hidden from operators, in payloads, headers and errors. ``site``: where
        this is; events that are published here bear its name wherever they go, and routes carry no others.
        ``transactions``: how many transactions of handlers can be open at the same time, each on a PostgreSQL
        connection of its own (default 10); further ones wait, without a time limit and without failing.
        """
        super().__init__()
        self.url = check.text(url, "url", limit=_LONGEST_URL, like="sqlite:///orders.db")
        if clock is not None and not hasattr(clock, "database_now"):
            check.refuse("clock", "a clock like redrive.clock.SystemClock()", clock)
        self.clock: Clock = clock or SystemClock()
        self.retry = check.maybe(retry, check.a, "retry", RetryPolicy, "a RetryPolicy") or RetryPolicy()
        self.rules = check_rules(rules)
        self.retention = check.maybe(retention, check.a, "retention", Retention, "a Retention") or Retention()
        self._source = source if source == "" else check_name(source, "source", NAME_LIMIT)
        self.site = site if site == "" else check_name(site, "site", NAME_LIMIT)
        self._generation = check_whole(generation, "generation")
        self.limits = check.maybe(limits, check.a, "limits", Limits, "a Limits like Limits(max_bytes=…)") or Limits()
        check.flag(notify, "notify")
        check.maybe(migrate, check.flag, "migrate")
        check.maybe(approval_above, check.whole, "approval_above", 0)
        check.texts(mask, "mask", like="iban")
        self.counts = Counts()
        self._notify = notify
        self.approval_above = approval_above
        self.mask = Mask.of(mask)
        self._transactions = check.whole(transactions, "transactions", 1)
        self._store = self._new_store(schema)
        self._migrate = self._store.name == "sqlite" if migrate is None else migrate
        self._opened = False
        self._opening: asyncio.Lock | None = None
        self._when_open: list[Callable[[Work], Awaitable[None]]] = []
        self._when_closed: list[Callable[[], Awaitable[None]]] = []
        self._mounts: dict[str, Any] = {}
        self._measures: list[Callable[[], Awaitable[Iterable[Any]]]] = []
        self._forked_open = False
        self._door = Door(self._new_portal, self._begin_in_child)
        self.schedules = Schedules(self._ready, self.new_events)
        self.reservations = Reservations(self._ready, lambda: self.clock, self._beside, lambda: self._store)
        self.locks = Locks(self._ready, self.reservations)
        self.reconcilers = Reconcilers(
            self._ready, self.new_events, self.limits, self.rules, self._register, self.schedules.add, self.counts
        )
        self.batches = Batches(
            self._ready, lambda: self.clock, self.new_events, lambda type_: self._targets.get(type_, ()),
            source=self._source, generation=self._generation, store=lambda: self._store,
        )  # fmt: skip
        """Events that belong together: open, find and close batches."""
        self._notices = Notices(self._ready, self.clock, self.new_events, self.mask)
        self.traffic = Traffic(self._ready, self.new_events, self.clock, self.site)

    def _new_store(self, schema: str | None) -> Store:
        return store_for(self.url, self.clock, notify=self._notify, schema=schema, transactions=self._transactions)

    # Opening and closing

    def when_open(self, function: Callable[[Work], Awaitable[None]]) -> Callable[[Work], Awaitable[None]]:
        """Call an async function with a transaction each time the app has been opened: for tables of your own.

        Processes that open the app at the same time call it one after the other.
        """
        self._when_open.append(function)
        return function

    def when_closed(self, function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Call an async function each time the app has been closed: for clients and files that your handlers share."""
        self._when_closed.append(function)
        return function

    def mount(self, path: str, asgi: Any) -> None:
        """Have an ASGI app of your own served below a path, beside the console and the API."""
        if not path.startswith("/") or path.strip("/") == "":
            message = f"an app is mounted below a path such as /hooks, not {path!r}"
            raise ConfigurationError(message)
        path = path.rstrip("/")
        if path in self._mounts:
            message = f"something is mounted at {path} already: choose another path"
            raise ConfigurationError(message)
        self._mounts[path] = asgi

    @property
    def mounts(self) -> dict[str, Any]:
        """What is served beside the console and the API, by its path."""
        return dict(self._mounts)

    def measure(self, function: Callable[[], Awaitable[Iterable[Any]]]) -> Callable[[], Awaitable[Iterable[Any]]]:
        """Have metrics of your own told beside ours: an async function that gives ``redrive.operate.reading.Reading``s.

        It is asked at most every few seconds, however many scrape; one that fails is logged and left out.
        """
        self._measures.append(function)
        return function

    @property
    def measures(self) -> tuple[Callable[[], Awaitable[Iterable[Any]]], ...]:
        """Who is asked for metrics beside the engine."""
        return tuple(self._measures)

    async def open(self) -> Self:
        """Open the store and check its schema. Called by itself on first use."""
        if self._opened:
            return self
        self._check_fork()
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if not self._opened:
                await self._store.open()
                try:
                    if self._migrate:
                        await self._store.migrate()
                    await self._store.check_schema()
                    for function in self._when_open:
                        async with self._store.transaction(Use.APP) as tx:
                            await tx.run("setting_lock", name="when_open")  # one process after the other
                            await function(Work(tx, self.new_events))
                except BaseException:
                    await self._store.close()
                    raise
                self._opened = True
        return self

    async def close(self) -> None:
        self._opened = False
        self._opening = None
        await self._store.close()
        await asyncio.to_thread(self._door.close)
        for function in self._when_closed:
            await function()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def store(self) -> Store:
        """The store itself, for tools built on top."""
        return caller.writable(self._store)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Work]:
        """Open one transaction for tables of your own in this database, and for what is published with them."""
        await self.open()
        async with caller.writable(self._store).transaction(Use.APP) as tx:
            yield Work(tx, self.new_events)

    @property
    def dialect(self) -> str:
        """Whose SQL the database speaks: ``sqlite`` or ``postgres``."""
        return self._store.name

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of the tables (``core.outbox``); on SQLite their prefix (``core_outbox``)."""
        return self._store.schema

    # Publishing

    async def publish(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """Store an event; when this returns it is durable. With several targets, the first one's row is returned."""
        if not self._opened:
            await self.open()
        return (await caller.writable(self._store).publish(self.new_events(type_, payload, **options)))[0]

    async def publish_many(self, events: Iterable[Draft]) -> list[Published]:
        """Store many events in one transaction: ``(type, payload)`` or ``(type, payload, {"retry_key": …})`` each."""
        if not self._opened:
            await self.open()
        rows = self._drafted(events)
        return await caller.writable(self._store).publish(rows) if rows else []

    async def publish_in(
        self, connection: Any, type_: str, payload: Any = None, **options: Unpack[Options]
    ) -> Published:
        """Publish in the transaction of your own connection: committed with it, rolled back with it."""
        return (await self._publish_in(connection, self.new_events(type_, payload, **options)))[0]

    async def publish_many_in(self, connection: Any, events: Iterable[Draft]) -> list[Published]:
        """Publish many events in the transaction of your own connection."""
        return await self._publish_in(connection, self._drafted(events))

    async def _publish_in(self, connection: Any, rows: list[NewEvent]) -> list[Published]:
        answers: list[Any] = []
        asked = rows
        while asked:
            for call in self._calls(connection, asked):
                answers += await caller.run(connection, *call)
            asked = unanswered(asked, answers)
        return published_from(rows, answers)

    def publish_in_sync(
        self, connection: Any, type_: str, payload: Any = None, **options: Unpack[Options]
    ) -> Published:
        """``publish_in`` for code without an event loop: sqlite3, psycopg, SQLAlchemy, Django."""
        rows = asked = self.new_events(type_, payload, **options)
        answers: list[Any] = []
        while asked:
            for call in self._calls(connection, asked):
                answers += caller.run_sync(connection, *call)
            asked = unanswered(asked, answers)
        return published_from(rows, answers)[0]

    def _calls(self, connection: Any, rows: list[NewEvent]) -> list[tuple[Statement, dict[str, Any]]]:
        """Say what to run on the caller's connection: one statement on PostgreSQL, one a row on SQLite."""
        spoken = caller.dialect(connection)
        caller.admit(self._store, connection, "publish_in")
        statement = load(spoken, "publish", self._store.schema)
        if spoken == "postgres":
            values = postgres_values(first_of_each_key(rows), self.clock.database_now(), notify=self._notify)
            return [(statement, values)] if rows else []
        now = to_micros(self.clock.now())
        # Members of a batch first: if it is closed, nothing has been written yet.
        return [(statement, sqlite_values(row, now)) for row in sorted(rows, key=lambda row: row.batch_id is None)]

    def _drafted(self, events: Iterable[Draft]) -> list[NewEvent]:
        rows: list[NewEvent] = []
        for draft in events:
            type_, payload, *options = _checked_draft(draft)
            rows += self.new_events(type_, payload, **(options[0] if options else {}))
        return rows

    def publish_sync(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """``publish`` for code without an event loop; a thread of ours has one."""
        rows = self.new_events(type_, payload, **options)
        return self._beside(lambda store: store.publish(rows))[0]

    def _beside(self, job: Callable[[Store], Awaitable[T]]) -> T:
        """Run something on the store for a caller without an event loop."""
        caller.check_outside("what code without an event loop writes")
        return self._door.run(job)

    def _new_portal(self) -> Portal:
        if self.url.endswith(":memory:"):
            message = "without an event loop, :memory: will not do: two threads share the database, use a file"
            raise ConfigurationError(message)
        self._check_fork()
        return Portal(self._new_store(self._store.schema), migrate=self._migrate)

    # Forks: gunicorn --preload, multiprocessing

    def _begin_in_child(self, is_left: bool) -> None:  # noqa: FBT001 - the one answer of a callback
        """Begin anew after a fork: the connections that were open are the parent's."""
        was_open, self._opened, self._opening = self._opened, False, None
        if was_open:
            leave_to_parent(self._store)
            self._store = self._new_store(self._store.schema)
        self._forked_open = self._store.name == "sqlite" and (was_open or is_left)

    def _check_fork(self) -> None:
        if self._forked_open:
            message = (
                f"this process was forked while {self.url} was open, and SQLite would mistake the file locks of the"
                " parent for its own: close the app before the fork (`await app.close()`), or fork first"
            )
            raise ConfigurationError(message)

    def new_events(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> list[NewEvent]:
        """Make the rows of one publish without storing them."""
        options.setdefault("source", self._source)
        options.setdefault("generation", self._generation)
        if self.site:
            options["headers"] = stamped(options.get("headers"), self.site)
        rows = self._rows(type_, payload, options)
        if self._queues:
            for row in rows:
                row.queue = self._queues.get(row.target, row.queue)
        return rows

    def _rows(self, type_: str, payload: Any, options: Options) -> list[NewEvent]:
        targets = self._targets.get(type_) or (type_,)
        if self.site and is_foreign(options.get("headers"), self.site):
            targets = self.traffic.open_to_foreign(targets) or (type_,)
        if not tracing.is_on():
            return new_events(self.clock, self.limits, targets, type_, payload, options)
        with tracing.publishing(type_, options) as noted:
            return noted(new_events(self.clock, self.limits, targets, type_, payload, options))

    # Working

    def worker(
        self,
        *,
        concurrency: int = 100,
        queues: Sequence[str] | None = None,
        lease: str | float = "30s",
        poll: str | float = "1s",
        drain: str | float = "30s",
        max_lost: int = 5,
        children: int | None = None,
        generation: int | None = None,
        name: str = "",
    ) -> Worker:
        """Make a worker for the registered handlers; ``await worker.run()`` works until ``worker.stop()``.

        It serves events of the app's generation and of none; ``generation`` names another, for what an older release
        has left behind. ``queues``: without it, ``default`` and those of the routes. ``children``: how many processes
        handlers with ``isolation="process"`` may have; as many as the machine has cores without it.
        """
        if not self._opened:
            message = "open the app before making a worker: `async with app:`, or `await app.open()`"
            raise ConfigurationError(message)
        options = WorkerOptions(
            concurrency=concurrency,
            queues=("default", *self.traffic.queues) if queues is None else check.texts(queues, "queues", like="mail"),
            lease_seconds=check.seconds(lease, "lease"),
            poll_seconds=check.seconds(poll, "poll"),
            drain_seconds=check.seconds(drain, "drain"),
            max_lost=max_lost,
            children=children,
            generation=self._generation if generation is None else check_whole(generation, "generation"),
            name=name,
            mask=self.mask,
        )
        if os.environ.get(notice.ENVIRONMENT) and not self._notices.addresses:
            self.notices()
        apart = isolated(self._handlers)
        return Worker(
            self._store,
            self._handlers,
            self.clock,
            retry=self.retry,
            retention=self.retention,
            new_events=self.new_events,
            limits=self.limits,
            circuits=self._circuits,
            options=options,
            hello=find_app(self, apart, self.url) if apart else None,
            duties=self._duties(),
            counts=self.counts,
        )

    def _duties(self) -> list[Duty]:
        """List what workers of this app do beside what every worker does."""
        return [
            self.schedules.duty(),
            self.batches.duty(),
            Duty("selfcheck", SelfCheck(self._ready).act),
            *self._notices.duties(),
            *self.traffic.duties(),
        ]

    async def _ready(self) -> Store:
        await self.open()
        return caller.writable(self._store)


def _checked_draft(draft: object) -> Sequence[Any]:
    match draft:
        case (_, _) | (_, _, {}):
            return draft
    return check.refuse("events", "(type, payload) or (type, payload, options) for each event", draft)


def store_for(
    url: str, clock: Clock, *, notify: bool = True, schema: str | None = None, transactions: int = 10
) -> Store:
    """Choose the store by the URL."""
    try:
        url, named = without_schema(url)
        parts = urlsplit(url)
        scheme, _ = parts.scheme, parts.port
    except ValueError as error:
        message = f"{url!r} is not a URL ({error}): use sqlite:///file.db or postgresql://user@host:5432/database"
        raise ConfigurationError(message) from error
    schema = checked_schema(schema, named)
    if scheme == "sqlite":
        from redrive.store.sqlite import SqliteStore  # noqa: PLC0415 - a driver is imported when it is asked for

        if parts.query:
            raise ConfigurationError(f"a SQLite URL takes no option but ?schema=, not ?{parts.query[:64]}")
        path = unquote(url.removeprefix("sqlite://").removeprefix("/"))
        if not path:
            message = f"the URL {url!r} names no file: write sqlite:///orders.db, sqlite:////var/lib/orders.db or sqlite:///:memory:"
            raise ConfigurationError(message)
        return SqliteStore(path, clock, schema=schema)
    if scheme in ("postgresql", "postgres"):
        try:
            from redrive.store.postgres import PostgresStore  # noqa: PLC0415 - as above
        except ModuleNotFoundError as error:
            message = f"PostgreSQL needs the driver {error.name}: pip install 'redrive[postgres]'"
            raise MissingDriver(message) from error
        return PostgresStore(url, clock, notify=notify, schema=schema, transactions=transactions)
    message = (
        f"the URL {url!r} is not a database redrive knows: use sqlite:///file.db or postgresql://user@host/database"
    )
    raise ConfigurationError(message)


def without_schema(url: str) -> tuple[str, str | None]:
    """Take ``?schema=`` out of a URL; return the rest and the schema that it names, if any."""
    head, mark, query = url.rpartition("?")
    pairs = parse_qsl(query, keep_blank_values=True) if mark else []
    named = [value for name, value in pairs if name == "schema"]
    if not named:
        return url, None
    rest = urlencode([(name, value) for name, value in pairs if name != "schema"])
    return f"{head}?{rest}" if rest else head, named[-1]


def checked_schema(given: str | None, named: str | None) -> str:
    """Decide on the schema of the tables: the parameter, the URL, or the default."""
    if given is not None and named is not None and given != named:
        raise ConfigurationError(f"schema={given!r} and ?schema={named} in the URL name different schemas: use one")
    schema = SCHEMA if given is None and named is None else given if named is None else named
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigurationError(
            f"schema takes 1 to 40 lower-case letters, digits and underscores, a letter first, not {schema!r}"
        )
    if schema.startswith(("pg_", "sqlite")):
        raise ConfigurationError(
            f"schema must not begin with pg_ or sqlite, which belong to the database: not {schema!r}"
        )
    return schema
