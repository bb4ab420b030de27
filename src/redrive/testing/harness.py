"""The harness: an app's handlers, run when a test says so."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from pydantic_core import to_jsonable_python

from redrive import redrive
from redrive.app import Redrive, store_for
from redrive.clock import VirtualClock
from redrive.deliver import Handler
from redrive.duration import format_duration, parse_duration
from redrive.errors import ConfigurationError
from redrive.event import LIVE, Event, Status
from redrive.options import WorkerOptions
from redrive.slots import Slots
from redrive.store import listing
from redrive.store.base import ATTEMPTS, ID, TARGET, TYPE, EventFilter, Row, Store
from redrive.worker import Worker

__all__ = ["Attempt", "Harness", "Ran", "WorkerDied"]

T = TypeVar("T")

MEMORY: Final = "sqlite:///:memory:"
_PATIENCE_SECONDS: Final = 10.0
_MOST_ATTEMPTS: Final = 10_000
_MOST_SHOWN: Final = 20
_PAYLOAD_SHOWN: Final = 200
_EVERYTHING: Final = 1_000_000
_FIELDS: Final = frozenset(field.name for field in fields(Event))
_OUTCOMES: Final = {
    "dead_lettered": "dead-lettered",
    "retried": "retried",
    "deferred": "deferred",
    "blocked": "blocked",
    "deduplicated": "already handled",  # before delivered, which it counts as too
    "delivered": "delivered",
    "leases_lost": "lease lost",
}
_WORKER_LOST: Final = "worker lost"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, as it went."""

    at: datetime
    id: UUID
    type: str
    target: str
    attempt: int
    outcome: str
    """``delivered``, ``retried``, ``deferred``, ``blocked``, ``dead-lettered``, ``already handled``, ``lease lost``,
    ``worker lost`` or ``unknown target``."""
    error: BaseException | None = None


class Ran(list[Attempt]):
    """The attempts of one call, in the order in which they were made."""

    @property
    def delivered(self) -> int:
        """How many events reached their end, those whose effect had been there before included."""
        return sum(attempt.outcome in ("delivered", "already handled") for attempt in self)

    @property
    def retried(self) -> int:
        """How many attempts failed with another one to come."""
        return sum(attempt.outcome == "retried" for attempt in self)

    @property
    def dead_lettered(self) -> int:
        """How many events ended in quarantine."""
        return sum(attempt.outcome == "dead-lettered" for attempt in self)


class WorkerDied(BaseException):
    """Stands for the end of the whole process: nothing of the attempt is written down."""


@dataclass(slots=True)
class _Fault:
    left: int
    error: BaseException | type[BaseException]
    target: str | None
    awaits: int | None = 0
    """After how many awaits of the handler it strikes; ``None``: when it has ended."""

    def raised(self) -> BaseException:
        """Use it up once."""
        self.left -= 1
        return self.error() if isinstance(self.error, type) else self.error.with_traceback(None)


class Harness:
    """Runs an app's handlers when the test says so, at the time the test says it is."""

    def __init__(self, app: Redrive, *, url: str = MEMORY, seed: int = 0, start: datetime | None = None) -> None:
        """Take an app as it is; it is changed on entering and put back exactly on leaving.

        ``url``: a fresh test database instead of the one in memory, for code that publishes in its own transaction.
        ``seed`` decides jitter, and in memory the ids; in a database of yours, ids are new in each run, since your own
        tables may remember those of the last. ``start`` is the first instant (2030-01-01 in UTC).
        """
        self.app = app
        self.clock = VirtualClock(start, seed, new_ids=url != MEMORY)
        self._url = url
        self._faults: list[_Fault] = []
        self._awaits: dict[str, int] | None = None  # how often each handler has waited, where somebody counts
        self._busy = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._store = store_for(self._url, self.clock)
            await self._store.open()
            stack.push_async_callback(self._store.close)
            await self._store.migrate()
            if await listing.events(self._store, EventFilter(limit=1)):
                message = f"{self._url} holds events already: give the harness a fresh database"
                raise ConfigurationError(message)
            self._beside = _Beside(self._store, self._url, self.clock)
            stack.callback(self._beside.close)
            self._swap(stack)
            for function in self.app._when_open:  # noqa: SLF001 - a part of the app for a while
                async with self.app.transaction() as tx:
                    await function(tx)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for function in self.app._when_closed:  # noqa: SLF001 - a part of the app for a while
                await function()
        finally:
            await self._stack.aclose()

    def _swap(self, stack: AsyncExitStack) -> None:
        app, before = self.app, dict(vars(self.app))
        if "close" in before:
            message = "this app is in a Harness already: leave that one first, or use it"
            raise ConfigurationError(message)

        def put_back() -> None:
            vars(app).clear()
            vars(app).update(before)

        stack.callback(put_back)
        vars(app).update(
            url=self._url, clock=self.clock, _store=self._store, _migrate=True, _opened=True, _opening=None,
            _door=self._beside, _handlers=app.handlers, _targets=dict(before["_targets"]),
            close=_stay_open,  # code under test may open and close the app; the events must outlive that
        )  # fmt: skip

    # Time

    @property
    def now(self) -> datetime:
        """What time it is in here."""
        return self.clock.now()

    async def run_due(self) -> Ran:
        """Run everything that is due now, what that publishes and what a redrive releases included.

        Returns what happened.
        """
        ran = Ran()
        async with self._alone():
            while queues := await self._due_queues():
                worker = _Watched(
                    self._store,
                    {target: self._with_faults(handler) for target, handler in self.app.handlers.items()},
                    self.clock,
                    retry=self.app.retry,
                    retention=self.app.retention,
                    new_events=self.app.new_events,
                    limits=self.app.limits,
                    circuits=self.app.circuits,
                    options=WorkerOptions(
                        concurrency=1,
                        queues=queues,
                        generation=self.app._generation,  # noqa: SLF001 - a part of the app for a while
                        name="harness",
                    ),
                )
                worker.note_in(ran)
                before = len(ran)
                await worker.drain()
                if len(ran) == before:  # what is left waits for something that nobody here can try
                    break
        return ran

    async def advance(self, span: float | str | timedelta) -> Ran:
        """Let time pass: ``advance("5m")``. What comes due on the way runs at its own time, in order."""
        end = self.now + timedelta(seconds=parse_duration(span))
        ran = await self.run_due()
        while (at := await self._next_at()) is not None and at <= end:
            self.clock.advance(at - self.now)
            ran += await self.run_due()
        self.clock.advance(max(end - self.now, timedelta(0)))
        return ran

    async def _next_at(self) -> datetime | None:
        """When something will happen by itself.

        An event comes due, a schedule ticks, a redrive releases its next members, or a dependency is tried or lets
        events go.
        """
        moments = [event.due_at for event in await self.events(status=Status.PENDING)] + await self._releases()
        moments += [each.next_at for each in await self.app.dependencies() if each.next_at is not None]
        if (tick := await self.app.schedules.next_at()) is not None:
            moments.append(tick)
        return min((at for at in moments if at > self.now), default=None)

    async def _releases(self) -> list[datetime]:
        """Tell when the redrives that have a rate let their next members go."""
        running = [await redrive.get(self._store, each) for each in await redrive.movable(self._store)]
        return [
            self.now + timedelta(seconds=1 / each.rate)
            for each in running
            if each.rate is not None and each.outstanding < each.max_in_flight
        ]

    async def _due_queues(self) -> tuple[str, ...]:
        while (await redrive.tick(self._store, chain="harness")).moved:
            pass
        for duty in self.app._duties():  # noqa: SLF001 - a part of the app for a while
            while (await duty.act("harness")).moved:
                pass
        due = [event for event in await self.events(status=Status.PENDING) if event.due_at <= self.now]
        if any(each.next_at is not None and each.next_at <= self.now for each in await self.app.dependencies()):
            due += await self.events(status=Status.BLOCKED)
        due += await self.events(status=Status.IN_FLIGHT)  # of a worker that died
        return tuple(sorted({event.queue for event in due}))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        if self._busy:
            message = "run_due and advance cannot be called by a handler they are running: call them from the test"
            raise ConfigurationError(message)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # Faults

    def fail_next(
        self,
        times: int = 1,
        error: BaseException | type[BaseException] = ConnectionError,
        *,
        target: str | None = None,
        at_end: bool = False,
    ) -> None:
        """Let the next attempts raise before the handler runs, or when it has ended; of one target, or of any."""
        self._add(_Fault(times, error, target, None if at_end else 0))

    def crash_next(self, times: int = 1, *, target: str | None = None, after_awaits: int | None = None) -> None:
        """Let the worker die in the next attempts: when the handler has ended, or after so many of its awaits.

        What the handler has done by then stays done, an open transaction is rolled back, and nothing is written down;
        the event is taken back and runs again, as after the death of a process.
        """
        if after_awaits is not None and after_awaits < 1:
            message = f"after_awaits counts from 1, not {after_awaits}; leave it out for the end of the handler"
            raise ConfigurationError(message)
        self._add(_Fault(times, WorkerDied, target, after_awaits))

    def heal(self) -> None:
        """Let nothing fail or crash from now on."""
        self._faults.clear()

    def count_awaits(self) -> dict[str, int]:
        """Count from now on how often the async handler of each target waits in an attempt, at most."""
        self._awaits = {}
        return self._awaits

    def _add(self, fault: _Fault) -> None:
        if fault.target is not None and fault.target not in self.app.handlers:
            known = ", ".join(sorted(self.app.handlers)) or "none"
            message = f"no handler has the target {fault.target!r}: there are {known}"
            raise ConfigurationError(message)
        self._faults.append(fault)

    def _fault(self, target: str) -> _Fault | None:
        return next((each for each in self._faults if each.left > 0 and each.target in (None, target)), None)

    def _with_faults(self, handler: Handler) -> Handler:
        """Wrap a handler: what it raises then takes the way of every other failure."""
        function = handler.function

        @wraps(function)
        async def on_loop(*arguments: Any) -> None:
            fault = self._fault(handler.target)
            if fault is not None and fault.awaits == 0:
                raise fault.raised()
            steps = _Steps(_coroutine(function(*arguments)), fault)
            await steps
            if self._awaits is not None:
                self._awaits[handler.target] = max(steps.number, self._awaits.get(handler.target, 0))
            if fault is not None:  # also one that wanted to strike later than there was anything to wait for
                raise fault.raised()

        @wraps(function)
        def in_thread(*arguments: Any) -> None:
            fault = self._fault(handler.target)
            if fault is not None and fault.awaits == 0:
                raise fault.raised()
            function(*arguments)
            if fault is not None:
                raise fault.raised()

        # In the test's own process: there a child would see neither the store in memory nor the test's patches.
        return replace(handler, function=on_loop if handler.is_async else in_thread, isolation=None)

    # Looking

    async def events(self, type_: str | None = None, **wanted: Any) -> list[Event]:
        """List events, oldest first: by type, or by any field of ``Event`` (``status=…``, ``subject=…``)."""
        return _matching(await _everything(self._store), type_, wanted)

    async def dead_letters(self, type_: str | None = None) -> list[Event]:
        """List what is in quarantine, oldest first."""
        return [event for event in await self.events(type_) if event.is_dead_letter]

    def assert_published(self, type_: str, *, times: int | None = None, **wanted: Any) -> list[Event]:
        """Check that such events were published: at least once, or exactly so many times. Returns them.

        ``payload`` need only be a part of what was published; the other names are fields of ``Event``. A publish to
        several handlers counts once.
        """
        stored = self._beside.events()
        found = _matching(stored, type_, wanted)
        count = max(Counter(event.target for event in found).values(), default=0)
        if count == times or (times is None and count):
            return found
        expected = "at least once" if times is None else f"{times} times"
        said = f"{_described(type_, wanted)} should have been published {expected}, and was {count} times"
        raise AssertionError(f"{said}. Published were:{_listed(stored)}")

    def assert_delivered(self, type_: str | None = None, **wanted: Any) -> list[Event]:
        """Check that there are such events and that each of them was delivered. Returns them."""
        stored = self._beside.events()
        found = _matching(stored, type_, wanted)
        if found and all(event.status is Status.DELIVERED for event in found):
            return found
        problem = "should all have been delivered" if found else "should have been delivered, and none was published"
        raise AssertionError(f"{_described(type_, wanted)} {problem}. There are:{_listed(found or stored)}")

    def assert_nothing_pending(self) -> None:
        """Check that every event has ended: delivered, dead-lettered or cancelled."""
        live = [event for event in self._beside.events() if event.status in LIVE]
        if live:
            soonest = format_duration(max(0.0, (min(e.due_at for e in live) - self.now).total_seconds()))
            raise AssertionError(
                f"{len(live)} events have not ended; the next is due in {soonest}: `await h.run_due()` runs what is "
                f"due, `await h.advance(…)` lets time pass.{_listed(live)}"
            )


class _Noted(Slots):
    """The slots themselves, with a note of each attempt."""

    ran: Ran
    _error: BaseException | None
    _died: bool

    async def _attempt(self, row: Row) -> bool:
        before = replace(self._tally)
        self._error, self._died = None, False
        tried = await super()._attempt(row)
        changed = (text for name, text in _OUTCOMES.items() if getattr(self._tally, name) > getattr(before, name))
        outcome = _WORKER_LOST if self._died else next(changed, "unknown target")
        now, event_id = self._clock.now(), UUID(str(row[ID]))
        self.ran.append(Attempt(now, event_id, row[TYPE], row[TARGET], row[ATTEMPTS], outcome, self._error))
        return tried

    async def _failed(self, handler: Handler, row: Row, error: BaseException) -> None:
        self._error, self._died = error, isinstance(error, WorkerDied)
        if self._died:
            self._hands.release(row)  # whoever sweeps finds it, as after a real death
        else:
            await super()._failed(handler, row, error)


class _Watched(Worker):
    """The worker itself, with slots that take notes, and an end to it."""

    crew = _Noted
    _slots: _Noted

    def note_in(self, ran: Ran) -> None:
        self._slots.ran = ran

    async def _turn(self) -> None:
        if len(self._slots.ran) > _MOST_ATTEMPTS:
            message = f"{_MOST_ATTEMPTS:,} attempts, and still something is due: does a handler publish its own type?"
            raise ConfigurationError(message)
        await super()._turn()


class _Steps:
    """Awaits a coroutine, counts how often it waits, and has a fault strike when it comes back from such a wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], fault: _Fault | None) -> None:
        self._coroutine = coroutine
        self._fault = fault
        self.number = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        go: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            try:
                waits_for = go(value)
            except StopIteration as ended:
                return ended.value
            try:
                value, go = (yield waits_for), self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is meant for the coroutine
                value, go = error, self._coroutine.throw
                continue
            self.number += 1
            if self._fault is not None and self._fault.awaits == self.number:
                value, go = self._fault.raised(), self._coroutine.throw


class _Beside:
    """A thread with an event loop, for those who cannot await: assertions, and code that publishes from ``def``."""

    def __init__(self, store: Store, url: str, clock: VirtualClock) -> None:
        # Only the store in memory must be shared; a driver may be bound to the event loop it was opened in.
        self._store = store if url == MEMORY else store_for(url, clock)
        self._shared = url == MEMORY
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-harness", daemon=True)
        self._thread.start()
        if not self._shared:
            self._call(self._store.open())

    def events(self) -> list[Event]:
        return self._call(_everything(self._store))

    def run(self, job: Callable[[Store], Awaitable[T]]) -> T:
        return self._call(job(self._store))

    def close(self) -> None:
        if not self._shared:
            self._call(self._store.close())
        self._call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Awaitable[T]) -> T:
        answer = asyncio.run_coroutine_threadsafe(_coroutine(coroutine), self._loop)
        try:
            return answer.result(_PATIENCE_SECONDS)
        except TimeoutError:
            answer.cancel()
            message = (
                "the store did not answer: publish_sync and assertions wait for the transaction that is open. "
                "Inside ctx.transaction() publish with tx.publish(…), and assert after run_due"
            )
            raise ConfigurationError(message) from None


async def _coroutine(awaitable: Awaitable[T]) -> T:
    """Make a coroutine of whatever can be awaited."""
    return await awaitable


async def _stay_open() -> None:
    """Stand in for ``app.close``: the harness closes."""


async def _everything(store: Store) -> list[Event]:
    rows = await listing.events(store, EventFilter(limit=_EVERYTHING))
    rows += await listing.events(store, EventFilter(limit=_EVERYTHING, discarded=True))
    return sorted(rows, key=lambda event: (event.created_at, event.id))


def _matching(events: Sequence[Event], type_: str | None, wanted: Mapping[str, Any]) -> list[Event]:
    unknown = wanted.keys() - _FIELDS
    if unknown:
        message = f"events have no field {', '.join(sorted(unknown))}: there are {', '.join(sorted(_FIELDS))}"
        raise ConfigurationError(message)
    return [
        event
        for event in events
        if type_ in (None, event.type) and all(_fits(getattr(event, name), value) for name, value in wanted.items())
    ]


def _fits(actual: Any, expected: Any) -> bool:
    """Compare; a mapping may hold more than was expected of it, and a model or a date is taken as it is stored."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return all(key in actual and _fits(actual[key], value) for key, value in expected.items())
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(_fits, actual, expected))
    if bool(actual == expected):
        return True
    plain = to_jsonable_python(expected, fallback=repr)
    return type(plain) is not type(expected) and _fits(actual, plain)


def _described(type_: str | None, wanted: Mapping[str, Any]) -> str:
    return " ".join([type_ or "events", *(f"{name}={_short(value)}" for name, value in wanted.items())])


def _listed(events: Sequence[Event]) -> str:
    lines = []
    for event in events[:_MOST_SHOWN]:
        name = event.type if event.target == event.type else f"{event.type} → {event.target}"
        error = f": {event.last_error.partition(chr(10))[0]}" if event.last_error else ""
        lines.append(f"\n  {name}  {_short(event.payload)}  {event.status} after {event.attempts} attempts{error}")
    if len(events) > _MOST_SHOWN:
        lines.append(f"\n  … and {len(events) - _MOST_SHOWN} more")
    return "".join(lines) or " nothing"


def _short(value: Any) -> str:
    shown = json.dumps(to_jsonable_python(value, fallback=repr), ensure_ascii=False)
    return shown if len(shown) <= _PAYLOAD_SHOWN else f"{shown[:_PAYLOAD_SHOWN]}…"
