"""The context of one attempt: what a handler can ask about its event, and do in its name.

Follow-ups that a handler publishes through its context belong to the attempt. They are kept here and written in the
commit that ends the event, so that an attempt that fails publishes nothing and a retry publishes nothing twice.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from redrive.batch import Batch, Hands, batch_of
from redrive.deliver import Handler
from redrive.errors import AttemptStopped, LeaseLost, StepMisused
from redrive.event import COMPENSATE, NewEvent, Options, Published
from redrive.inbox import HandlerTransaction, Lease, mark_handled_in, mark_handled_in_sync
from redrive.instant import from_micros
from redrive.payload import DEFAULT_LIMITS, Limits, decode
from redrive.steps import Begun, Compensation, Steps, inside, read_result, running_step, shape_of
from redrive.store.base import (
    ATTEMPTS,
    CAUSATION_ID,
    CORRELATION_ID,
    CREATED_AT,
    CYCLE,
    DEADLINE_AT,
    FENCE,
    GENERATION,
    HEADERS,
    ID,
    IDEMPOTENCY_KEY,
    ORDERING_KEY,
    RETRY_KEY,
    SOURCE,
    SUBJECT,
    TARGET,
    TYPE,
    Row,
    Store,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """What all contexts of a worker share."""

    store: Store
    new_events: Callable[..., list[NewEvent]]
    loop: asyncio.AbstractEventLoop
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    threads: Executor | None = None
    limits: Limits = DEFAULT_LIMITS
    is_shadow: bool = False


class Fate(Protocol):
    """What becomes of the attempt from outside: it shall end, or its child process has settled it."""

    why: AttemptStopped | None
    settled: bool


class Context:
    """One attempt at one event. Cheap to make: everything is read from the claimed row when asked for."""

    __slots__ = ("_desk", "_fate", "_in_steps", "_kept", "_lease", "_row", "_steps", "_work", "degraded")

    def __init__(self, row: Row, desk: Desk, fate: Fate | None = None, degraded: frozenset[str] = frozenset()) -> None:
        self.degraded = degraded
        """The dependencies that work only in a reduced mode now; empty unless the handler declares to proceed so."""
        self._row = row
        self._desk = desk
        self._lease: Lease | None = None
        self._fate = fate
        self._steps: Steps | None = None
        self._work: HandlerTransaction | None = None
        self._kept: list[NewEvent] = []
        self._in_steps: dict[str, list[NewEvent]] = {}

    @property
    def row(self) -> Row:
        """The claimed row itself, for handlers of ours that count microseconds."""
        return self._row

    @property
    def id(self) -> UUID:
        return UUID(str(self._row[ID]))

    @property
    def type(self) -> str:
        return str(self._row[TYPE])

    @property
    def target(self) -> str:
        return str(self._row[TARGET])

    @property
    def source(self) -> str:
        return str(self._row[SOURCE])

    @property
    def subject(self) -> str | None:
        return self._row[SUBJECT]  # type: ignore[no-any-return]

    @property
    def headers(self) -> Mapping[str, str]:
        return decode(self._row[HEADERS])  # type: ignore[no-any-return]

    @property
    def attempt(self) -> int:
        """Which attempt of this cycle it is, from 1."""
        return int(self._row[ATTEMPTS])

    @property
    def cycle(self) -> int:
        """How often the event was replayed before."""
        return int(self._row[CYCLE])

    @property
    def generation(self) -> int:
        return int(self._row[GENERATION])

    @property
    def fence(self) -> int:
        """The number of this claim. Pass it along where somebody else must tell a late writer from the current one."""
        return int(self._row[FENCE])

    @property
    def idempotency_key(self) -> str:
        return str(self._row[IDEMPOTENCY_KEY])

    @property
    def retry_key(self) -> str | None:
        return self._row[RETRY_KEY]  # type: ignore[no-any-return]

    @property
    def ordering_key(self) -> str | None:
        return self._row[ORDERING_KEY]  # type: ignore[no-any-return]

    @property
    def correlation_id(self) -> str:
        """The conversation this event belongs to; the first event of one is its own."""
        return str(self._row[CORRELATION_ID] or self._row[ID])

    @property
    def causation_id(self) -> str | None:
        return self._row[CAUSATION_ID]  # type: ignore[no-any-return]

    @property
    def created_at(self) -> datetime:
        created = self._row[CREATED_AT]
        return created if isinstance(created, datetime) else from_micros(created)

    @property
    def settled(self) -> bool:
        """Whether the handler's own transaction has already ended the event."""
        apart = self._fate is not None and self._fate.settled
        return apart or (self._lease is not None and self._lease.settled)

    @property
    def deadline_at(self) -> datetime | None:
        """When the publisher wants it done; the handler's own ``deadline`` is not in here."""
        at = self._row[DEADLINE_AT]
        return at if at is None or isinstance(at, datetime) else from_micros(at)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt shall end: it took too long, or the event was called off. For ``def`` handlers.

        An ``async def`` handler is cancelled, an isolated one killed; a thread can only be asked.
        """
        return self._fate is not None and self._fate.why is not None

    def check_cancelled(self) -> None:
        """Raise ``AttemptStopped`` when this attempt shall end: let it through. For between the steps of long work."""
        if self._fate is not None and self._fate.why is not None:
            raise self._fate.why

    def transaction(self) -> HandlerTransaction:
        """Open the one transaction in which your work, the record that it was done and ``delivered`` are committed.

        Entering it raises ``AlreadyHandled`` when this key has had its effect; let it through, the event is delivered.
        It raises ``KeyInUse`` when another attempt with this key is still open; let it through, the event waits.
        """
        self._work = HandlerTransaction(self._the_lease(), self._desk.store, self._new_events, self._kept)
        return self._work

    def _the_lease(self) -> Lease:
        if self._lease is None:
            self._lease = Lease(self._row[ID], self.fence, self.target, self.idempotency_key, self._desk.loop)
        return self._lease

    async def batch(self) -> Batch | None:
        """Read the batch this event belongs to; what is added or closed inside ``ctx.transaction()`` is part of it."""

        async def store() -> Store:
            return self._desk.store

        hands = Hands(store, self._new_events, lambda: self._work.opened if self._work is not None else None)
        return await batch_of(hands, self.id)

    async def once_in(self, connection: Any) -> bool:
        """Record the idempotency key in a transaction of your own; ``False``: it was there, do nothing."""
        return await mark_handled_in(self._desk.store, connection, self.target, self.idempotency_key, self._row[ID])

    # Steps

    @overload
    async def step(
        self, name: str, function: Callable[..., Awaitable[T]], /, *arguments: Any,
        compensate: Callable[..., Any] | None = None,
    ) -> T: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., T], /, *arguments: Any, compensate: Callable[..., Any] | None = None
    ) -> T: ...
    async def step(
        self, name: str, function: Callable[..., Any], /, *arguments: Any,
        compensate: Callable[..., Any] | None = None,
    ) -> Any:  # fmt: skip
        """Run a function once, however many attempts the event takes, and keep what it returned.

        A later attempt gets the kept result, as the type the function is annotated to return. ``def`` functions run in
        a thread. ``compensate`` names the registered function (``@app.compensation``) that undoes the step.
        """
        begun = await self._begin(name, compensate)
        shape = shape_of(function, arguments, begun.step)
        if begun.kept is not None:
            return read_result(name, begun.kept, shape.decoder)
        with inside(name):
            value = await (shape.call() if shape.is_async else self._in_thread(shape.call))
            if isawaitable(value):
                value = await value
        return await self._the_steps().finish(begun, value, shape.decoder, self._in_steps.pop(name, ()))

    def step_sync(
        self, name: str, function: Callable[..., T], /, *arguments: Any, compensate: Callable[..., Any] | None = None
    ) -> T:
        """``step`` for ``def`` handlers: the function runs in the handler's own thread."""
        if iscoroutinefunction(function) or _in_event_loop():
            raise StepMisused(f"step {name!r} is asynchronous: make the handler `async def`, and `await ctx.step(…)`")
        loop = self._desk.loop
        begun = asyncio.run_coroutine_threadsafe(self._begin(name, compensate), loop).result()
        shape = shape_of(function, arguments, begun.step)
        if begun.kept is not None:
            return read_result(name, begun.kept, shape.decoder)  # type: ignore[no-any-return]
        with inside(name):
            value = shape.call()
        finishing = self._the_steps().finish(begun, value, shape.decoder, self._in_steps.pop(name, ()))
        return asyncio.run_coroutine_threadsafe(finishing, loop).result()  # type: ignore[no-any-return]

    async def _begin(self, name: str, compensate: Callable[..., Any] | None) -> Begun:
        if self._lease is not None and (self._lease.is_open or self._lease.settled):
            raise StepMisused(
                f"step {name!r} comes after ctx.transaction(): that ends the event, so take the steps before it"
            )
        return await self._the_steps().begin(name, self._compensation(name, compensate))

    def _the_steps(self) -> Steps:
        if self._steps is None:
            desk = self._desk
            self._steps = Steps(desk.store, self._row, desk.limits, shadow=desk.is_shadow)
        return self._steps

    def _compensation(self, name: str, function: Callable[..., Any] | None) -> Compensation | None:
        if function is None:
            return None
        if self.type == COMPENSATE:
            raise StepMisused(f"step {name!r} belongs to a compensation: what undoes cannot be undone")
        handlers = self._desk.handlers
        for handler in handlers.values():
            if handler.compensates is function:
                own = handlers.get(self.target)
                return Compensation(handler.target, own.compensate_on if own else (), handler.takes_none)
        named = getattr(function, "__qualname__", repr(function))
        raise StepMisused(
            f"{named} is not registered: put @app.compensation on it, so that it can run after a restart too"
        )

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        run = contextvars.copy_context().run
        outcome, value = await self._desk.loop.run_in_executor(self._desk.threads, run, _outcome, call)
        if outcome:
            return value
        raise value

    async def publish(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """Publish a follow-up with this event's correlation, caused by it, when this attempt succeeds.

        It is written in the commit that ends the event: an attempt that fails publishes nothing. Inside
        ``ctx.transaction()`` it is part of that transaction, and inside a step it is written with the step's result.
        ``app.publish`` publishes at once. With a ``retry_key`` the live event that has it at the commit stays the only
        one, whatever id is returned here.
        """
        if self._lease is not None and self._lease.is_open and self._work is not None:
            return await self._work.publish(type_, payload, **options)
        events = self._new_events(type_, payload, **options)
        if self.settled:  # the handler's transaction has ended the event
            return (await self._desk.store.publish(events))[0]
        return self._keep(events)

    def publish_sync(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """``publish`` for ``def`` handlers, which run in a thread."""
        return asyncio.run_coroutine_threadsafe(self.publish(type_, payload, **options), self._desk.loop).result()

    def _keep(self, events: list[NewEvent]) -> Published:
        """Keep follow-ups until the running step, or else the attempt, is written down as done."""
        step = running_step()
        (self._kept if step is None else self._in_steps.setdefault(step, [])).extend(events)
        return Published(events[0].id, events[0].target, created=True)

    async def write_follow_ups(self) -> None:
        """End the event as delivered and publish what was kept, in one commit; nothing to do when nothing was kept."""
        if not self._kept or self.settled:
            return
        lease = self._the_lease()
        if not await self._desk.store.deliver_with(lease.event_id, lease.fence, self._kept):
            message = f"event {lease.event_id} is no longer ours: its follow-ups were not published"
            raise LeaseLost(message)
        lease.settled = True

    def once_in_sync(self, connection: Any) -> bool:
        """``once_in`` for ``def`` handlers with a connection of a synchronous library."""
        return mark_handled_in_sync(self._desk.store, connection, self.target, self.idempotency_key, self._row[ID])

    def _new_events(self, type_: str, payload: Any, **options: Unpack[Options]) -> list[NewEvent]:
        options.setdefault("correlation_id", self.correlation_id)
        options.setdefault("causation_id", str(self._row[ID]))
        return self._desk.new_events(type_, payload, **options)


def _outcome(call: Callable[[], Any]) -> tuple[bool, Any]:
    # Returned instead of raised: a StopIteration or SystemExit must not pass through the executor's machinery.
    try:
        return True, call()
    except BaseException as error:  # noqa: BLE001 - any shape of failure is the handler's failure
        return False, error


def _in_event_loop() -> bool:
    """Tell whether waiting here would keep the event loop from doing what is waited for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
