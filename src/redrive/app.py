"""Redrive: the registry of handlers, and the only place that wires the parts together."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack
from urllib.parse import unquote, urlsplit
from uuid import UUID

from redrive import caller, dependency, group, notice, ordering, override, redrive, replay, revision, tracing
from redrive.attention import Matter, attention
from redrive.batch import Batches
from redrive.classify import DEFAULT_RULES, Rule
from redrive.clock import Clock, SystemClock
from redrive.counts import Counts
from redrive.deliver import DeadLetterHook, Handler, RetryHook, handler_from
from redrive.dependency import Circuit, Dependency
from redrive.duration import parse_duration, span
from redrive.duty import Duty
from redrive.errors import (
    ConfigurationError,
    EventNotFound,
    MissingDriver,
    NeedsApproval,
    PayloadInvalid,
    Refused,
)
from redrive.event import COMPENSATE, Event, NewEvent, Options, Published, TrailEntry
from redrive.group import Group
from redrive.inbox import Draft, Work
from redrive.instant import to_micros
from redrive.isolate import find_app, isolated
from redrive.lock import Locks
from redrive.mask import DEFAULT_NAMES, Mask
from redrive.notice import Notices
from redrive.ordering import HeldKey, InLine
from redrive.override import Override
from redrive.payload import Limits, check_text, check_whole, encode
from redrive.policy import RetryPolicy
from redrive.publish import NAME_LIMIT, new_events
from redrive.rate import Rate
from redrive.reconcile import Reconcilers
from redrive.redrive import Plan, Redriving, Release
from redrive.replay import check_actor, check_reason
from redrive.reserve import Reservations
from redrive.retention import Retention
from redrive.revision import Revision
from redrive.schedule import Schedules
from redrive.selection import dead_letters, parse
from redrive.selfcheck import SelfCheck
from redrive.shadow import Shadow, shadow
from redrive.steps import COMPENSATE_ON, DEFAULT_COMPENSATE_ON, StepRecord, steps_of
from redrive.store import listing
from redrive.store.base import EventFilter, Store
from redrive.store.listing import Page
from redrive.store.rows import first_of_each_key, postgres_values, published_from, sqlite_values, unanswered
from redrive.store.sql import Statement, load
from redrive.trail import Verdict, verify
from redrive.transport.base import Destination, Inlet
from redrive.transport.envelope import is_foreign, stamped
from redrive.transport.intake import RAW, Parse
from redrive.transport.relay import QUEUE, Verbatim
from redrive.transport.traffic import Traffic
from redrive.worker import FAILED_TYPE, Worker, WorkerOptions

CompensateOn = Literal["cancelled", "deadline", "dead_letter"]
UNCHANGED: Final = object()
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Redrive:
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
        clock: Clock | None = None,
    ) -> None:
        """Name the database; nothing is opened yet.

        ``migrate``: create missing tables when opening. On by default for SQLite, off for PostgreSQL, where
        `redrive migrate` is a step of your deployment. ``approval_above``: a redrive of more events than this needs
        the approval of a second person; where the database says a smaller number for everybody, that one holds.
        ``mask``: fields with these names are hidden from operators, in payloads, headers and errors. ``site``: where
        this is; events that are published here bear its name wherever they go, and routes carry no others.
        """
        self.url = url
        self.clock: Clock = clock or SystemClock()
        self.retry = retry or RetryPolicy()
        self.rules = tuple(rules)
        self.retention = retention or Retention()
        self.retention.check()
        self._source = check_text(source, "source", NAME_LIMIT)
        self.site = check_text(site, "site", NAME_LIMIT)
        self._generation = check_whole(generation, "generation")
        self.limits = limits or Limits()
        self.counts = Counts()
        self._notify = notify
        self.approval_above = approval_above
        self.mask = Mask.of(mask)
        self._handlers: dict[str, Handler] = {}
        self._circuits: dict[str, Circuit] = {}
        self._targets: dict[str, tuple[str, ...]] = {}
        self._queues: dict[str, str] = {}
        self._store = store_for(url, self.clock, notify=notify)
        self._migrate = self._store.name == "sqlite" if migrate is None else migrate
        self._opened = False
        self._opening: asyncio.Lock | None = None
        self._when_open: list[Callable[[Work], Awaitable[None]]] = []
        self._when_closed: list[Callable[[], Awaitable[None]]] = []
        self._mounts: dict[str, Any] = {}
        self._measures: list[Callable[[], Awaitable[Iterable[Any]]]] = []
        self._portal: _Portal | None = None
        self._portal_lock = threading.Lock()
        self.schedules = Schedules(self._ready, self.new_events)
        self.reservations = Reservations(self._ready, lambda: self.clock, self._beside)
        self.locks = Locks(self._ready, self.reservations)
        self.reconcilers = Reconcilers(
            self._ready, self.new_events, self.limits, self.rules, self._register, self.schedules.add, self.counts
        )
        self.batches = Batches(
            self._ready, lambda: self.clock, self.new_events, lambda type_: self._targets.get(type_, ()),
            source=self._source, generation=self._generation,
        )  # fmt: skip
        """Events that belong together: open, find and close batches."""
        self._notices = Notices(self._ready, self.clock, self.new_events, self.mask)
        self.traffic = Traffic(self._ready, self.new_events, self.clock, self.site)

    # Handlers

    def handler(
        self,
        type_: str,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] | None = None,
        on_dead_letter: DeadLetterHook | None = None,
        on_retry: RetryHook | None = None,
        effects: Literal["inside", "outside"] | None = None,
        timeout: str | float | timedelta | None = None,
        deadline: str | float | timedelta | None = None,
        isolation: Literal["process"] | None = None,
        on_failed: Literal["block", "pass"] = "block",
        compensate_on: Sequence[CompensateOn] = DEFAULT_COMPENSATE_ON,
        needs: Sequence[str] = (),
        degraded: Literal["block", "proceed"] = "block",
        brake: bool = True,
        concurrency: int | None = None,
        rate: str | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function for events of a type.

        A type's first handler needs no name: its target is the type itself, so that whoever publishes need not know it.
        Every further handler of the type has one; each gets a row, a retry state and a dead letter of its own.
        ``on_dead_letter`` and ``on_retry`` are async functions that are called with what failed and the transaction in
        which that is written down: what they write is committed with it. One that fails is an error that people are
        told of, and the event goes its way without it.
        ``effects="inside"`` says that all it does is in its transaction, so that it may be run as a shadow;
        ``"outside"`` that it reaches further, so that it may not. ``on_failed`` is about ordering keys: a dead letter
        holds up the later events of its key (``"block"``) until somebody acts, or lets them pass (``"pass"``).
        ``compensate_on`` says at which ends its steps are undone: when it is ``"cancelled"``, has passed its
        ``"deadline"``, or becomes a ``"dead_letter"``.
        ``timeout`` limits each attempt, ``deadline`` all of them together, counted from the publish.
        ``isolation="process"`` runs it in a child process, which is killed when its time is over.
        ``needs`` names the dependencies it cannot do without: while one is down its events wait, blocked, and spend no
        attempts. With ``degraded="proceed"`` it runs while one works in a reduced mode, and finds it in
        ``ctx.degraded``. ``brake=False``: let its events become dead letters even when nearly all of them fail at once.
        ``concurrency``: how many attempts run at once, ``rate`` ("20/s"): how many start, over all workers. Events
        beyond that wait, and spend no attempt. An operator may say otherwise while it runs: ``set_policy``.
        """
        if on_failed not in ("block", "pass"):
            raise ConfigurationError(f'on_failed is "block" or "pass", not {on_failed!r}')
        check_text(type_, "type", NAME_LIMIT)
        target = type_ if name is None else check_text(name, "name", NAME_LIMIT)
        unknown = set(compensate_on) - set(COMPENSATE_ON)
        if unknown or isinstance(compensate_on, str):
            message = f"compensate_on takes some of {COMPENSATE_ON}, not {compensate_on!r}"
            raise ConfigurationError(message)
        needed = dependency.check_needs(needs, f"the handler of {target!r}")
        if degraded not in ("block", "proceed"):
            raise ConfigurationError(f"degraded must be 'block' or 'proceed', not {degraded!r}")
        at_once = None if concurrency is None else override.check_concurrency(concurrency)
        speed = None if rate is None else Rate.parse(rate)

        def register(function: F) -> F:
            if target in self._handlers:
                taken = self._handlers[target].name
                message = f"target {target!r} is taken by {taken}: give this handler a name of its own, name='…'"
                raise ConfigurationError(message)
            self._handlers[target] = handler_from(
                function,
                type_=type_,
                target=target,
                retry=retry,
                rules=self.rules if rules is None else (*rules, *self.rules),
                on_dead_letter=on_dead_letter,
                on_retry=on_retry,
                effects=effects,
                timeout=timeout,
                deadline=deadline,
                isolation=isolation,
                on_failed=on_failed,
                compensate_on=tuple(compensate_on),
                needs=needed,
                degraded=degraded,
                brake=brake,
                concurrency=at_once,
                rate=speed,
            )
            self.route(type_, target)
            return function

        return register

    def _register(self, handler: Handler) -> None:
        """Take a handler that another part of the app has made."""
        self._handlers[handler.target] = handler
        self.route(handler.type, handler.target)

    def compensation(
        self,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] | None = None,
        on_dead_letter: DeadLetterHook | None = None,
        on_retry: RetryHook | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as one that undoes a step: ``ctx.step(…, compensate=it)``.

        It is called with the step's result, and the context if it takes one, as an event of its own: with retries, and
        a dead letter if it cannot be done. If it takes ``None`` as well (``Label | None``), it is also called for a
        step that began and whose end nobody knows. ``name`` is what stays when the function is renamed.
        """

        def register(function: F) -> F:
            target = f"compensate:{check_text(name or function.__name__, 'name', NAME_LIMIT - 11)}"
            if target in self._handlers:
                taken = self._handlers[target].name
                message = f"a compensation named {name or function.__name__!r} is there ({taken}): give it name='…'"
                raise ConfigurationError(message)
            self._handlers[target] = handler_from(
                function,
                type_=COMPENSATE,
                target=target,
                retry=retry,
                rules=self.rules if rules is None else (*rules, *self.rules),
                on_dead_letter=on_dead_letter,
                on_retry=on_retry,
                is_compensation=True,
            )
            return function

        return register

    def dependency(
        self,
        name: str,
        *,
        errors: Sequence[type[BaseException] | str] = (),
        hosts: Sequence[str] = (),
        threshold: int = dependency.DEFAULT.threshold,
        window: str | float = dependency.DEFAULT.window,
        probe_after: str | float = dependency.DEFAULT.probe_after,
        probe_cap: str | float = dependency.DEFAULT.probe_cap,
        release_rate: float = dependency.DEFAULT.release_rate,
    ) -> None:
        """Say how a dependency is judged; one that is not declared has the defaults.

        ``threshold`` failures in a row, none more than ``window`` after the one before, open its circuit. A first probe
        comes after ``probe_after``, each further one after twice the wait, up to ``probe_cap``. ``release_rate``: how
        many blocked events a second come back at most. ``errors`` (classes, or dotted names of classes that are not
        imported) and ``hosts`` say which exceptions speak of it.
        """
        self._circuits[name] = Circuit.of(
            name, errors=errors, hosts=hosts, threshold=threshold, window=window, probe_after=probe_after,
            probe_cap=probe_cap, release_rate=release_rate,
        )  # fmt: skip

    def notices(self, *urls: str, on: Sequence[str] = notice.KINDS, most_an_hour: int = 30) -> None:
        """Tell people, once for each matter: a new failure, one that is back, a redrive that halted, a dependency.

        The addresses are those of Apprise (``slack://…``, ``mailto://…``, ``json://…``); without any they come from
        REDRIVE_NOTICES, with spaces between them. ``on`` names the matters: ``group-new``, ``group-regressed``,
        ``redrive-halted``, ``dependency-opened``, ``dependency-closed``. Workers send them as events: one for each
        matter and address, retried, and visible when they fail. Groups that are muted stay quiet.
        """
        for each in self._notices.to(urls, on=on, most_an_hour=most_an_hour):
            self._handlers[each.target] = each
            self.route(each.type, each.target)

    def route(self, type_: str, *targets: str, queue: str | None = None) -> None:
        """Say which targets events of a type have, for a process that publishes but does not handle them.

        ``queue``: the one that events of these targets go into, whatever the publisher says.
        """
        named = [check_text(target, "target", NAME_LIMIT) for target in targets]
        self._targets[type_] = tuple(dict.fromkeys((*self._targets.get(type_, ()), *named)))
        if queue is not None:
            self._queues |= dict.fromkeys(named, check_text(queue, "queue", NAME_LIMIT))

    # Brokers

    def relay(
        self,
        *types: str,
        to: Destination,
        name: str | None = None,
        mode: Literal["structured", "binary"] = "structured",
        queue: str = QUEUE,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] | None = None,
        on_dead_letter: DeadLetterHook | None = None,
        on_retry: RetryHook | None = None,
        on_failed: Literal["block", "pass"] = "block",
        timeout: str | float | timedelta | None = None,
        deadline: str | float | timedelta | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        dead_letters: bool = False,
        foreign: bool = False,
    ) -> None:
        """Send events of these types to a broker, as CloudEvents; one is delivered when the broker has acknowledged it.

        Its target is ``relay:<broker>:<destination>``, or ``relay:<name>``; the other options are those of a handler.
        The broker is a dependency: while it is down, events wait and spend no attempts. They go into a ``queue`` of
        their own, so that a process may do nothing else: ``redrive relay``. A process that only publishes need not
        reach the broker; it may have this line, or ``app.route(type, target, queue=…)`` in its place.
        ``dead_letters``: no types, but every event that becomes a dead letter, with headers that say where it came from
        and why it failed, in the words of Kafka Connect; a message that could not be read goes as it came.
        ``foreign``: in an app with a ``site``, send what came from other sites, too. Only to where nothing comes back
        from: they would have it twice.
        """
        if dead_letters and types:
            raise ConfigurationError("dead_letters=True sends the dead letters of all types: leave the types out")
        types = (FAILED_TYPE,) if dead_letters else types
        route = self.traffic.relay(
            types, to, mode=mode, queue=check_text(queue, "queue", NAME_LIMIT), name=name, of_dead_letters=dead_letters,
            foreign=foreign,
        )  # fmt: skip
        self._handlers[check_text(route.target, "name", NAME_LIMIT)] = Handler(
            type=types[0],
            target=route.target,
            function=route.send,
            retry=retry,
            rules=self.rules if rules is None else (*rules, *self.rules),
            on_dead_letter=on_dead_letter,
            on_retry=on_retry,
            effects="outside",
            on_failed=on_failed,
            decoder=Verbatim(),
            timeout=None if timeout is None else span(timeout, "timeout"),
            deadline=None if deadline is None else span(deadline, "deadline"),
            is_limited=timeout is not None or deadline is not None,
            needs=dependency.check_needs((to.broker.name,), f"the route {route.target!r}"),
            concurrency=None if concurrency is None else override.check_concurrency(concurrency),
            rate=None if rate is None else Rate.parse(rate),
        )
        for each in types:
            self.route(check_text(each, "type", NAME_LIMIT), route.target, queue=route.queue)

    def intake(
        self,
        inlet: Inlet,
        *,
        types: Mapping[str, str] | None = None,
        parse: Parse | None = None,
        batch: int = 500,
        max_backlog: int | None = None,
        remember: str | float = "30d",
    ) -> None:
        """Take messages from a broker and publish them here: stored first, acknowledged then, each once.

        A CloudEvent keeps its type, or gets the one that ``types`` has for it. Plain JSON needs a type for its topic
        there; ``parse`` reads anything else. What cannot be read is kept raw, as a dead letter of the target
        ``intake:<name>``, and is read again when replayed. ``max_backlog``: take nothing while more events than this
        have not ended. ``remember``: how long a repetition is recognised; longer than the broker may bring one again.
        """
        made = self.traffic.intake(
            inlet, types=types, parse=parse, batch=batch, max_backlog=max_backlog, remember=remember
        )
        self._handlers[check_text(made.target, "name", NAME_LIMIT)] = handler_from(
            made.again, type_=RAW, target=made.target, retry=None, rules=self.rules, on_dead_letter=None
        )

    @property
    def handlers(self) -> dict[str, Handler]:
        """The registered handlers by target."""
        return dict(self._handlers)

    @property
    def circuits(self) -> dict[str, Circuit]:
        """The declared dependencies by name."""
        return dict(self._circuits)

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
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if not self._opened:
                await self._store.open()
                try:
                    if self._migrate:
                        await self._store.migrate()
                    await self._store.check_schema()
                    for function in self._when_open:
                        async with self._store.transaction() as tx:
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
        portal, self._portal = self._portal, None
        if portal is not None:
            await asyncio.to_thread(portal.close)
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
        return self._store

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Work]:
        """Open one transaction for tables of your own in this database, and for what is published with them."""
        await self.open()
        async with self._store.transaction() as tx:
            yield Work(tx, self.new_events)

    @property
    def dialect(self) -> str:
        """Whose SQL the database speaks: ``sqlite`` or ``postgres``."""
        return self._store.name

    # Publishing

    async def publish(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """Store an event; when this returns it is durable. With several targets, the first one's row is returned."""
        if not self._opened:
            await self.open()
        return (await self._store.publish(self.new_events(type_, payload, **options)))[0]

    async def publish_many(self, events: Iterable[Draft]) -> list[Published]:
        """Store many events in one transaction: ``(type, payload)`` or ``(type, payload, {"retry_key": …})`` each."""
        if not self._opened:
            await self.open()
        rows = self._drafted(events)
        return await self._store.publish(rows) if rows else []

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
        statement = load(spoken, "publish")
        if spoken == "postgres":
            values = postgres_values(first_of_each_key(rows), self.clock.database_now(), notify=self._notify)
            return [(statement, values)] if rows else []
        now = to_micros(self.clock.now())
        # Members of a batch first: if it is closed, nothing has been written yet.
        return [(statement, sqlite_values(row, now)) for row in sorted(rows, key=lambda row: row.batch_id is None)]

    def _drafted(self, events: Iterable[Draft]) -> list[NewEvent]:
        rows: list[NewEvent] = []
        for type_, payload, *options in events:
            rows += self.new_events(type_, payload, **(options[0] if options else {}))
        return rows

    def publish_sync(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """``publish`` for code without an event loop; a thread of ours has one."""
        rows = self.new_events(type_, payload, **options)
        return self._beside(lambda store: store.publish(rows))[0]

    def _beside(self, job: Callable[[Store], Awaitable[T]]) -> T:
        """Run something on the store for a caller without an event loop."""
        with self._portal_lock:
            if self._portal is None:
                if self.url.endswith(":memory:"):
                    message = "without an event loop, :memory: will not do: two threads share the database, use a file"
                    raise ConfigurationError(message)
                self._portal = _Portal(self)
            portal = self._portal
        return portal.run(job)

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
            queues=("default", *self.traffic.queues) if queues is None else tuple(queues),
            lease_seconds=parse_duration(lease),
            poll_seconds=parse_duration(poll),
            drain_seconds=parse_duration(drain),
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
        return self._store

    # Looking and acting

    async def event(self, event_id: UUID) -> Event | None:
        """Read one event."""
        await self.open()
        return await self._store.event(event_id)

    async def events(self, wanted: EventFilter | None = None) -> list[Event]:
        """List events, newest first."""
        await self.open()
        return await listing.events(self._store, wanted or EventFilter())

    async def page(self, wanted: EventFilter | None = None) -> Page:
        """List some events, newest first, in a time that does not grow with the table; the page says where to go on.

        It may hold fewer than asked for, even none, and yet not be the last: then more rows are to be looked at.
        """
        await self.open()
        return await listing.page(self._store, wanted or EventFilter())

    async def trail(self, event_id: UUID) -> list[TrailEntry]:
        """Everything that was recorded of one event."""
        await self.open()
        return [entry async for entry in self._store.trail(event_id)]

    async def steps(self, event_id: UUID) -> list[StepRecord]:
        """Everything that one event has done in steps, in order."""
        await self.open()
        return await steps_of(self._store, event_id)

    async def verify_trail(self, noted: dict[str, tuple[int, str]] | None = None) -> Verdict:
        """Check every chain of the trail."""
        await self.open()
        return await verify(self._store.trail(), noted or {})

    async def replay(
        self, event_id: UUID, *, by: str, reason: str, generation: int | None = None, payload: Any = UNCHANGED,
        cycle: int | None = None, from_start: bool = False,
    ) -> None:  # fmt: skip
        """Send a dead letter round again.

        It goes on after the steps it has finished; ``from_start`` forgets them. One whose steps were undone starts anew
        by itself; while they are being undone it is refused.
        With ``payload`` it goes with an edited one: checked against today's handler, the original kept as a revision.
        Identity (id, keys, correlation, causation) cannot be edited. With the ``cycle`` of the event that you have seen
        it is refused when somebody else has replayed it since. Where redrives need approval, an edit does: propose it.
        """
        await self.open()
        if payload is not UNCHANGED and await redrive.approval_limit(self._store, self.approval_above) is not None:
            raise NeedsApproval("an edited payload needs a second person here: app.propose(…), and somebody approves")
        text = None if payload is UNCHANGED else (await self._edited(event_id, payload))[1]
        await replay.replay(
            self._store,
            event_id,
            by=by,
            reason=reason,
            generation=generation,
            payload=text,
            cycle=cycle,
            from_start=from_start,
        )

    async def propose(
        self, event_id: UUID, payload: Any, *, by: str, reason: str, generation: int | None = None,
        cycle: int | None = None, from_start: bool = False,
    ) -> Redriving:  # fmt: skip
        """Propose to replay a dead letter with an edited payload: it goes when somebody else approves."""
        await self.open()
        if generation is not None:
            check_whole(generation, "generation")
        who, why = check_actor(by, "replay"), check_reason(reason, "replay")
        event, text = await self._edited(event_id, payload)
        edit = Revision(event_id, event.cycle if cycle is None else cycle, text)
        return await revision.propose(
            self._store, self.clock.new_id(), edit, by=who, reason=why, generation=generation, from_start=from_start
        )

    async def _edited(self, event_id: UUID, payload: Any) -> tuple[Event, str]:
        text = encode(payload, self.limits)
        event = await self._store.event(event_id)
        if event is None:
            raise EventNotFound(f"there is no event {event_id}")
        handler = self._handlers.get(event.target)
        if handler is not None:
            try:
                handler.decoder(text)
            except PayloadInvalid as error:
                raise Refused(f"the edited payload does not fit {handler.name}: {error}") from error
        return event, text

    async def shadow(self, event_id: UUID, *, force: bool = False) -> Shadow:
        """Run the handler on an event in a transaction that is always rolled back; say how it would end."""
        await self.open()
        event = await self._store.event(event_id)
        if event is None:
            raise EventNotFound(f"there is no event {event_id}")
        handler = self._handlers.get(event.target)
        if handler is None:
            raise Refused(f"nobody here handles {event.target!r}: run this with the app that does")
        return await shadow(
            handler, event, self._store, self.new_events, self.retry, handlers=self._handlers, force=force
        )

    # Redrives and groups

    async def plan(self, selection: str, *, by: str, unsafe: bool = False) -> Plan:
        """Plan a redrive: freeze the dead letters that a selection means, and say what would become of each.

        Nothing moves until ``start`` is called with the plan's token. An app with handlers leaves out what none of them
        would take, or could read.
        """
        await self.open()
        wanted = dead_letters(parse(selection))
        now = self.clock.now()
        clauses, values = wanted.where("postgres" if self._store.name == "postgres" else "sqlite", now)
        return await redrive.plan(
            self._store, self.clock.new_id(), selection=wanted.text, sentence=wanted.sentence(now), clauses=clauses,
            values=values, by=check_actor(by, "plan"), targets=sorted(self._handlers), unsafe=unsafe,
            readers={name: each.decoder for name, each in self._handlers.items() if not each.decoder.takes_anything},
        )  # fmt: skip

    async def start(
        self, token: str, *, by: str, reason: str, release: Release | None = None, generation: int | None = None,
        from_start: bool = False,
    ) -> Redriving:  # fmt: skip
        """Start a planned redrive. The workers carry it on; ``redriving`` tells how it goes.

        Its events go on after the steps they have finished; ``from_start`` forgets those.
        """
        if generation is not None:
            check_whole(generation, "generation")
        await self.open()
        return await redrive.start(
            self._store, token, by=check_actor(by, "start"), reason=check_reason(reason, "start"),
            release=release or Release(), generation=generation, approval_above=self.approval_above,
            from_start=from_start,
        )  # fmt: skip

    async def redriving(self, redrive_id: UUID) -> Redriving:
        """Read one redrive as it stands."""
        await self.open()
        return await redrive.get(self._store, redrive_id)

    async def redrivings(self, *, before: UUID | None = None, limit: int = 50) -> list[Redriving]:
        """List redrives, newest first."""
        await self.open()
        rows = await self._store.ask("redrives", before=None if before is None else str(before), limit=limit)
        return [redrive.redriving_from(row) for row in rows]

    async def approve(self, redrive_id: UUID, *, by: str) -> Redriving:
        """Agree with a plan as a second person. An edited payload goes at once; a plan can then be started."""
        await self.open()
        who = check_actor(by, "approve")
        if (await redrive.get(self._store, redrive_id)).edited:
            return await revision.approve(self._store, redrive_id, by=who)
        return await redrive.approve(self._store, redrive_id, by=who)

    async def pause(self, redrive_id: UUID, *, by: str, reason: str) -> Redriving:
        """Release nothing more until ``resume``."""
        await self.open()
        return await redrive.stop(
            self._store, redrive_id, to="paused", by=check_actor(by, "pause"), reason=check_reason(reason, "pause")
        )

    async def resume(self, redrive_id: UUID, *, by: str) -> Redriving:
        """Go on after a pause or a halt."""
        await self.open()
        return await redrive.resume(self._store, redrive_id, by=check_actor(by, "resume"))

    async def abort(self, redrive_id: UUID, *, by: str, reason: str) -> Redriving:
        """End a redrive; what was not released stays what it was."""
        await self.open()
        return await redrive.stop(
            self._store, redrive_id, to="aborted", by=check_actor(by, "abort"), reason=check_reason(reason, "abort")
        )

    async def groups(self, *, everything: bool = False, state: str | None = None, limit: int = 100) -> list[Group]:
        """List the causes that dead letters have, the latest failure first."""
        await self.open()
        return await group.groups(self._store, everything=everything, state=state, limit=limit)

    async def group(self, fingerprint: str) -> Group:
        """Find a group by its fingerprint or a beginning of it."""
        await self.open()
        return await group.find(self._store, fingerprint)

    async def attention(self, *, kinds: Collection[str] = ()) -> list[Matter]:
        """List what will not move by itself, or some kinds of it: why, since when, and what to do next."""
        return await attention(await self._ready(), kinds=kinds, approval_above=self.approval_above)

    # Ordering keys

    async def held_keys(
        self, *, ordering_key: str | None = None, target: str | None = None, after: UUID | None = None, limit: int = 100
    ) -> list[HeldKey]:
        """List the ordering keys that a dead letter holds up, the oldest first."""
        await self.open()
        return await ordering.held_keys(self._store, ordering_key=ordering_key, target=target, after=after, limit=limit)

    async def line(self, target: str, ordering_key: str, *, limit: int = 50) -> list[InLine]:
        """List the events of one target with an ordering key that have not ended, in their order."""
        await self.open()
        return await ordering.line(self._store, target, ordering_key, limit=limit)

    async def release_key(self, ordering_key: str, *, by: str, reason: str, target: str | None = None) -> HeldKey:
        """Let the events behind a dead letter go; it stays a dead letter and can be replayed."""
        await self.open()
        who, why = check_actor(by, "release"), check_reason(reason, "release")
        return await ordering.release(self._store, ordering_key, target=target, by=who, reason=why)

    async def skip_key(self, ordering_key: str, *, by: str, reason: str, target: str | None = None) -> HeldKey:
        """Discard the dead letter that holds up a key, and go on with the next; it can be restored."""
        await self.open()
        who, why = check_actor(by, "skip"), check_reason(reason, "skip")
        held = await ordering.find(self._store, ordering_key, target)
        await replay.discard(self._store, held.head, by=who, reason=why)
        return held

    # Dependencies and holds

    async def dependencies(self) -> list[Dependency]:
        """List what events may wait for: dependencies, brakes and holds."""
        await self.open()
        return await dependency.standing(self._store)

    async def open_dependency(self, name: str, *, by: str, reason: str, degraded: bool = False) -> Dependency:
        """Let every event that needs a dependency wait until ``close_dependency``; it is not probed meanwhile.

        ``degraded``: those of handlers that can proceed in a reduced mode run.
        """
        await self.open()
        who, why = check_actor(by, "open"), check_reason(reason, "open")
        return await dependency.open_by_hand(self._store, name, by=who, reason=why, degraded=degraded)

    async def close_dependency(self, name: str, *, by: str, reason: str) -> Dependency:
        """Say that a dependency is back; those who wait come back oldest first, at a bounded, growing rate."""
        await self.open()
        who, why = check_actor(by, "close"), check_reason(reason, "close")
        return await dependency.close_by_hand(self._store, name, by=who, reason=why)

    async def hold(self, type_: str | None = None, *, queue: str | None = None, by: str, reason: str) -> Dependency:
        """Pause a type (``order.*``: all that begin so) or a queue; workers take notice within a second.

        Events of a paused type are blocked when they would run; from a paused queue nothing is claimed.
        """
        await self.open()
        who, why = check_actor(by, "pause"), check_reason(reason, "pause")
        return await dependency.hold(self._store, dependency.hold_name(type_, queue), by=who, reason=why)

    async def lift(self, type_: str | None = None, *, queue: str | None = None, by: str, reason: str) -> Dependency:
        """End a hold; those who wait come back oldest first, at a bounded, growing rate."""
        await self.open()
        who, why = check_actor(by, "resume"), check_reason(reason, "resume")
        return await dependency.lift(self._store, dependency.hold_name(type_, queue), by=who, reason=why)

    # Policies while it runs

    async def set_policy(self, pattern: str, *, by: str, reason: str, **values: Any) -> Override:
        """Say how the handlers that a pattern matches are worked with; workers take notice within seconds.

        The pattern is a target, a type, a beginning (``order.*``) or ``*``; of several that match, the most specific
        one that says something about a value decides on it. Values: ``max_attempts``, ``base_delay``, ``multiplier``,
        ``max_delay``, ``jitter``, ``timeout``, ``concurrency``, ``rate``; ``"none"`` takes one of the last three away.
        What was set for the pattern before and is not named stays.
        """
        who, why = check_actor(by, "set_policy"), check_reason(reason, "set_policy")
        await self.open()
        return await override.put(self._store, pattern, values, by=who, reason=why)

    async def clear_policy(self, pattern: str, *, by: str, reason: str) -> Override:
        """Take back what was set for a pattern; return what that was."""
        who, why = check_actor(by, "clear_policy"), check_reason(reason, "clear_policy")
        await self.open()
        return await override.clear(self._store, pattern, by=who, reason=why)

    async def policies(self) -> list[Override]:
        """List what operators have set."""
        await self.open()
        return await override.standing(self._store)

    async def cancel(self, event_id: UUID, *, by: str, reason: str) -> None:
        """End an event that has not ended; a handler that is running it is told within a second.

        If it finishes first, ``Refused`` says so: there is one answer.
        """
        await self.open()
        await replay.cancel(self._store, event_id, by=by, reason=reason)

    async def cancel_all(self, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]:
        """End those of some events that have not ended, in one transaction; return which they were.

        What a worker is settling in the same instant may be left out: ask again.
        """
        await self.open()
        return await replay.cancel_all(self._store, event_ids, by=by, reason=reason)

    async def discard(self, event_id: UUID, *, by: str, reason: str) -> None:
        """Hide a dead letter; it can be restored."""
        await self.open()
        await replay.discard(self._store, event_id, by=by, reason=reason)

    async def restore(self, event_id: UUID, *, by: str, reason: str) -> None:
        """Take a discarded dead letter back."""
        await self.open()
        await replay.restore(self._store, event_id, by=by, reason=reason)


def store_for(url: str, clock: Clock, *, notify: bool = True) -> Store:
    """Choose the store by the URL."""
    try:
        parts = urlsplit(url)
        scheme, _ = parts.scheme, parts.port
    except ValueError as error:
        message = f"{url!r} is not a URL ({error}): use sqlite:///file.db or postgresql://user@host:5432/database"
        raise ConfigurationError(message) from error
    if scheme == "sqlite":
        from redrive.store.sqlite import SqliteStore  # noqa: PLC0415 - a driver is imported when it is asked for

        path = unquote(url.removeprefix("sqlite://").removeprefix("/"))
        if not path:
            message = (
                f"{url!r} names no file: write sqlite:///orders.db, sqlite:////var/lib/orders.db or sqlite:///:memory:"
            )
            raise ConfigurationError(message)
        return SqliteStore(path, clock)
    if scheme in ("postgresql", "postgres"):
        try:
            from redrive.store.postgres import PostgresStore  # noqa: PLC0415 - as above
        except ModuleNotFoundError as error:
            message = f"PostgreSQL needs the driver {error.name}: pip install 'redrive[postgres]'"
            raise MissingDriver(message) from error
        return PostgresStore(url, clock, notify=notify)
    message = f"{url!r} is not a database redrive knows: use sqlite:///file.db or postgresql://user@host/database"
    raise ConfigurationError(message)


class _Portal:
    """A thread with an event loop and a store of its own, for callers that have none."""

    def __init__(self, app: Redrive) -> None:
        self._store = store_for(app.url, app.clock, notify=app._notify)  # noqa: SLF001 - a part of the app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-portal", daemon=True)
        self._thread.start()
        try:
            self._call(self._open(migrate=app._migrate))  # noqa: SLF001
        except BaseException:
            self.close()
            raise

    async def _open(self, *, migrate: bool) -> None:
        await self._store.open()
        if migrate:
            await self._store.migrate()
        await self._store.check_schema()

    def run(self, job: Callable[[Store], Awaitable[T]]) -> T:
        return self._call(job(self._store))  # type: ignore[no-any-return]

    def close(self) -> None:
        self._call(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
