"""The worker: claim, deliver, settle, over and over. Start reading here.

    turn      settle what has finished and claim what there are free hands for: one round trip to the store
    slot      a long-lived task that takes an event from the hand, runs its handler, keeps the result for the next turn
    heartbeat a thread that renews the session, so that a blocked event loop does not lose its leases
    duties    what is done beside the turns, each in its own task (see duty.py): the sweep of leases whose worker is
              gone and retention; redrives; telling who was called off; dependencies, and those who wait for them;
              policies that somebody has changed, and permits for throttled events

While a turn is under way results pile up, and the next turn takes them all: batches grow with the load by themselves,
and there are no timers to tune. A database that blinks costs a pause; the worker goes on when it is back.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Unpack
from uuid import UUID

from redrive import alarm, ordering, override, redrive
from redrive.attempt import Attempt, Watch
from redrive.circuit import Circuits
from redrive.claim import Appetite
from redrive.classify import DEFAULT_RULES, civil, leaves
from redrive.clock import Clock
from redrive.context import Context, Desk
from redrive.counts import Counts, Tally
from redrive.deliver import DeadLetter, FailedAttempt, Handler, Retry, deliver
from redrive.dependency import FREE_ROUNDS, Circuit, round_seconds
from redrive.duration import format_duration
from redrive.duty import Duty, Tick, keep
from redrive.errors import (
    AlreadyHandled,
    AttemptStopped,
    Cancelled,
    ConfigurationError,
    DeadlinePassed,
    LeaseLost,
    RedriveError,
    StoreUnavailable,
    TimedOut,
)
from redrive.event import NewEvent, Options, Outcome, Priority, Settlement, Status
from redrive.heartbeat import Heartbeat
from redrive.inbox import Settling
from redrive.instant import from_micros
from redrive.isolate import Children, Hello
from redrive.logs import log
from redrive.mask import DEFAULT as DEFAULT_MASK
from redrive.mask import Mask
from redrive.payload import DEFAULT_LIMITS, Limits, decode
from redrive.policy import RetryPolicy
from redrive.retention import Retention
from redrive.settle import blocked, deferred, settlement_for, settlement_for_blocked, settlement_for_lost
from redrive.store.base import (
    ATTEMPTS,
    CORRELATION_ID,
    CREATED_AT,
    CYCLE,
    DEADLINE_AT,
    FENCE,
    ID,
    IDEMPOTENCY_KEY,
    LOST_COUNT,
    ORDERING_KEY,
    PAYLOAD,
    RETRY_KEY,
    SOURCE,
    SUBJECT,
    SWEPT_LEASE_UNTIL,
    SWEPT_STATUS,
    TARGET,
    TYPE,
    Finished,
    Lane,
    Row,
    Session,
    Store,
    Turn,
    seconds_of,
)
from redrive.throttle import Admitted, Throttle, Throttles
from redrive.tracing import traced

FAILED_TYPE: Final = "redrive.event.failed"
"""The lifecycle event of a dead letter; published for those who handle it."""

_TURN_OF_LOOP: Final = 0.005  # seconds a slot may go on without letting others run
_SWEEP_LIMIT: Final = 500
_PURGE_LIMIT: Final = 1_000
_PURGE_EVERY: Final = 60.0
_HOOK_TRIES: Final = 3
_POLICY_SECONDS: Final = 2.0
_CANCEL_SECONDS: Final = 5.0
_DOUBT_LEASES: Final = 20
_RIDE_OUT_SECONDS: Final = 1.5  # with jitter 2.25 at most: work goes on three seconds after the store is back
_LOOK_AGAIN: Final = 0.05
_NEWS_SECONDS: Final = 0.4  # how often we ask what was called off; whoever runs it hears of it within a second
_TEND_SECONDS: Final = 0.5
_FOR_EACH_CHILD: Final = 8  # events in hand, so that it need not wait for the database after each
_MOST_LEFT_BEHIND: Final = 1_000  # threads that do not end; each holds memory, and the machine has only so many


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works; spans in seconds."""

    concurrency: int = 100
    queues: tuple[str, ...] = ("default",)
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    drain_seconds: float = 30.0
    max_lost: int = 5
    children: int | None = None
    unknown_delay_seconds: float = 30.0
    stall_seconds: float = 900.0
    generation: int = 0
    name: str = ""
    mask: Mask = DEFAULT_MASK

    def lanes(self) -> list[Lane]:
        """List what it claims, first things first; of each, its own generation and what has none."""
        generations = dict.fromkeys((self.generation, 0))
        return [(queue, each.value, of) for each in Priority for queue in self.queues for of in generations]

    @property
    def most_children(self) -> int:
        return self.children or os.cpu_count() or 1

    @property
    def most_apart(self) -> int:
        """How many events that need a child it takes at once: enough to keep all busy, with hands left for others."""
        return max(self.most_children, min(_FOR_EACH_CHILD * self.most_children, self.concurrency // 2))

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.concurrency < 1:
            message = f"concurrency must be at least 1, not {self.concurrency}"
            raise ConfigurationError(message)
        if not self.queues:
            message = "a worker needs at least one queue: queues=('default',)"
            raise ConfigurationError(message)
        if self.lease_seconds < 1:
            message = f"the lease must be at least 1s, not {self.lease_seconds}s: it is renewed three times in its span"
            raise ConfigurationError(message)
        if self.max_lost < 1:
            message = f"max_lost must be at least 1, not {self.max_lost}"
            raise ConfigurationError(message)
        if self.children is not None and self.children < 1:
            message = f"children must be at least 1, not {self.children}; leave it out for one a core"
            raise ConfigurationError(message)


class Worker:
    """Runs handlers until it is told to stop."""

    heart: type[Heartbeat] = Heartbeat

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        clock: Clock,
        *,
        retry: RetryPolicy,
        retention: Retention,
        new_events: Callable[..., list[NewEvent]],
        limits: Limits = DEFAULT_LIMITS,
        circuits: Mapping[str, Circuit] | None = None,
        options: WorkerOptions | None = None,
        hello: Hello | None = None,
        duties: Sequence[Duty] = (),
        counts: Counts | None = None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.options.check()
        self.tally, self.counts = Tally(), counts or Counts()
        self.session_id: UUID | None = None
        self._store = store
        self._registered = handlers
        self._handlers = dict(handlers)  # under the policies that hold now
        self._clock = clock
        self._retry = retry
        self._retention = retention
        self._new_events = new_events
        self._limits = limits
        self._lifecycle = any(handler.type == FAILED_TYPE for handler in handlers.values())
        self._lanes = self.options.lanes()
        self._circuits = Circuits(store, clock, handlers, circuits or {})
        self._unclaimed: frozenset[str] = frozenset()
        apart = [target for target, handler in handlers.items() if handler.isolation]
        self._throttles = Throttles(store, clock, handlers, self._lanes, apart, self.options.most_apart)
        self._duties = duties
        self._strangers: set[Any] = set()
        self._walked_to = ordering.START
        self._purge_at = clock.monotonic() + _PURGE_EVERY * clock.random()
        self._policy_version = 0
        self._policies_at = 0.0
        self._taking = asyncio.Lock()
        self._appetite = Appetite(self.options.concurrency)
        self._hand: deque[Row] = deque()
        self._alone: Row | None = None
        self._running: dict[Any, Attempt] = {}
        self._slots: list[asyncio.Task[None]] = []
        self._deaf: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._hello = hello
        self._store_ahead = 0.0
        self._alone_running = False
        self._begun = 0
        self._held: dict[Any, Row] = {}
        self._finished = Finished()
        self._buried: dict[Any, tuple[Row, Settlement]] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._bell = asyncio.Event()
        self._crew: object = None
        self._look = True
        self._key_freed = False
        self._ask_at = self._due_at = self._strays_at = 0.0
        self._doubt_until = 0.0
        self._stopping = False
        self._at_once = False
        self._abandoning = False
        self._session_lost = False

    @property
    def name(self) -> str:
        return self.options.name or f"{socket.gethostname()}:{os.getpid()}"

    # Running

    async def run(self) -> None:
        """Work until ``stop``; then finish what is running, hand back the rest and return."""
        async with self._at_work(alive=True):
            while not self._stopping:
                await self._turn()
                await self._wait()
                await self._put_back_strays()
                if self._session_lost:
                    await self._begin_anew()
            await self._drain_and_hand_back()

    async def drain(self) -> Tally:
        """Run everything that is due and return. No threads, no waiting: for tests, scripts and benchmarks.

        Redrives are carried on until nothing of them can move; one with a rate goes as far as its rate allows by then,
        and the next worker carries it on.
        """
        async with self._at_work(alive=False):
            await self._sweep()
            seen = 0
            while True:
                await self._turn()
                if self._stopping:
                    await self._drain_and_hand_back()
                    return self.tally
                idle = not self._held and not self._look
                if idle and self.tally.claimed > seen:  # the end of an event may publish another, like a notice
                    seen = self.tally.claimed
                    self._look = True
                    continue
                if not await self._admit(every=idle) and idle:
                    if not await self._carry_on():
                        return self.tally
                    self._look = True
                # What has ended meanwhile has rung already: only what is still held will ring again.
                may_go_on = len(self._finished) or self._may_claim() or self._throttles.has_arrivals
                if self._held and not may_go_on:
                    self._bell.clear()
                    await self._bell.wait()

    async def _carry_on(self) -> bool:
        """Let come what is not due by itself: members of redrives, and those who waited; say whether any did."""
        moved = [(await redrive.tick(self._store, chain=str(self._session()))).moved]
        moved += [(await duty.act(self.name)).moved for duty in self._duties]
        return await self._tend() or any(moved)

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more; ``run`` returns when what is running has ended or the drain time is over.

        ``at_once``: do not wait for what is running, cancel it and hand it back.
        """
        self._stopping = True
        self._at_once = self._at_once or at_once
        self._bell.set()

    @asynccontextmanager
    async def _at_work(self, *, alive: bool) -> AsyncIterator[None]:
        """Everything a worker needs around its turns, taken down in reverse order."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self.counts.following(self.tally))
            # More than there are slots: a thread that does not end must not take the place of one that would.
            most = self.options.concurrency + _MOST_LEFT_BEHIND
            self._threads = ThreadPoolExecutor(most, thread_name_prefix="redrive-handler")
            stack.callback(self._threads.shutdown, wait=False, cancel_futures=True)
            self._watch = Watch(self._overdue)
            stack.callback(self._watch.close)
            if self._hello is not None:
                self._children = Children(self.options.most_children, self._hello)
                stack.push_async_callback(self._children.close)
                await self._children.start()
            self._deliver = traced(deliver, lambda _handler, row, *_: row)
            self._deliver_apart = traced(self._in_child, lambda attempt: attempt.row)
            self._desk = Desk(
                self._store, self._new_events, asyncio.get_running_loop(), self._handlers, self._threads, self._limits
            )
            await self._begin_session()
            stack.push_async_callback(self._end_session)
            stack.push_async_callback(self._close_claims)
            for duty in self._duties:
                if duty.during is not None:
                    await stack.enter_async_context(duty.during(self.name))
            self._add_slots(self.options.concurrency)
            stack.push_async_callback(self._stop_slots)
            await self._tend_anyhow()
            await self._read_policies()
            if alive:
                heartbeat = self.heart(
                    self._store, self._clock, self.options.lease_seconds, self.options.stall_seconds, self._session,
                    self._on_session_lost, self._watch,
                )  # fmt: skip
                heartbeat.start()
                stack.push_async_callback(asyncio.to_thread, heartbeat.stop)
                await stack.enter_async_context(self._store.wakes(self._wake))
                tasks = [
                    asyncio.create_task(keep(duty, self._clock, self.name), name=f"redrive-{duty.name}")
                    for duty in self._all_duties()
                ]
                stack.push_async_callback(_cancelled, tasks)
            yield

    async def _begin_session(self) -> None:
        session = Session(
            id=self._clock.new_id(),
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.options.queues,
            targets=tuple(sorted(self._handlers)),
            concurrency=self.options.concurrency,
            generation=self.options.generation,
        )
        await self._store.begin_session(session, self.options.lease_seconds)
        self.session_id = session.id
        self._claims = self._store.claims(session.id, self._claimed_lanes(), actor=self.name)
        log.info("worker started", worker=self.name, session=str(session.id), targets=len(self._handlers))

    def _session(self) -> UUID:
        assert self.session_id is not None
        return self.session_id

    async def _end_session(self) -> None:
        with suppress(StoreUnavailable):  # its lease will run out by itself
            await self._store.end_session(self._session())

    async def _close_claims(self) -> None:
        await self._claims.close()

    # Turns

    def _claimed_lanes(self) -> list[Lane]:
        """Leave out the queues that are paused."""
        self._unclaimed = self._circuits.held_queues
        return [lane for lane in self._lanes if lane[0] not in self._unclaimed]

    async def _turn(self) -> None:
        """Settle what has finished, claim what there is room for."""
        if self._circuits.held_queues != self._unclaimed:
            await self._claims.close()
            self._claims = self._store.claims(self._session(), self._claimed_lanes(), actor=self.name)
        self._throttles.look(self._held, self._hands)
        want = (
            0
            if self._stopping or self._alone is not None
            else self._appetite.want(len(self._held) - len(self._finished))
        )
        if want <= 0 and not len(self._finished):
            return
        batch, self._finished = self._finished, Finished()
        settling, delivered = batch.ids, batch.delivered.copy()  # the store takes out what it has written
        self._key_freed = batch.frees_a_key
        began = self._clock.monotonic()
        try:
            turn = await self._claims.turn(batch, want)
        except StoreUnavailable as error:
            self._let_go(set(settling).difference(batch.ids))  # a part of it may have been written
            self._keep(batch)
            await self._ride_out(error)
            return
        now = self._clock.monotonic()
        self._store_ahead = turn.now - now
        self._count(delivered, turn, now - began)
        self._note_refused(turn.refused)
        self._let_go(settling, turn.refused)
        self._take(turn.claimed)
        self._throttles.look(self._held, self._hands)
        self._appetite.learn(len(settling), turn.claimed)
        self._look = want <= 0 or turn.more or self._key_freed
        if turn.held:
            self._due_at = min(self._due_at, self._clock.monotonic() + _LOOK_AGAIN)

    def _count(self, delivered: list[Row], turn: Turn, seconds: float) -> None:
        self.counts.turns.add(seconds)
        if turn.refused:
            delivered = [row for row in delivered if row[ID] not in turn.refused]
        if delivered:
            self.counts.delivered(delivered, turn.now)

    def _let_go(self, settled: Iterable[Any], refused: Any = ()) -> None:
        for event_id in settled:
            self._held.pop(event_id, None)
        self._report_buried(refused)

    def _keep(self, batch: Finished) -> None:
        """Put results back that could not be written; they go first in the next turn."""
        later = self._finished
        self._finished = Finished(
            batch.delivered + later.delivered,
            batch.settlements + later.settlements,
            batch.put_back + later.put_back,
        )

    async def _ride_out(self, error: StoreUnavailable) -> None:
        """Wait until the store answers again.

        The answer to a claim may have been lost on the way: what the store says we hold and we do not know is put back.
        """
        pause = 0.05
        self._doubt()
        log.warning("store unavailable, waiting", worker=self.name, error=str(error))
        while not (self._stopping and pause > 1.0):
            await self._clock.sleep(pause * (0.5 + self._clock.random()))
            pause = min(pause * 2, _RIDE_OUT_SECONDS)
            try:
                async with self._taking:
                    forgotten = await self._claims.forget(self._held)
            except StoreUnavailable:
                continue
            log.info("store available again", worker=self.name, put_back=forgotten)
            break
        self._look = True

    def _doubt(self) -> None:
        self._doubt_until = self._clock.monotonic() + _DOUBT_LEASES * self.options.lease_seconds

    async def _put_back_strays(self) -> None:
        """Look for what the store says we hold and we do not know, for a while after a call has failed.

        A server that fell silent may carry out a claim long after we have given up waiting for it. Not all the time:
        while somebody holds a snapshot, the look steps over everything this session has ever claimed (0.3 s).
        """
        now = self._clock.monotonic()
        if self._strays_at <= now < self._doubt_until:
            self._strays_at = now + self.options.lease_seconds
            with suppress(StoreUnavailable):
                async with self._taking:
                    strays = await self._claims.forget(self._held)
                if strays:
                    log.warning("events of a lost answer put back", worker=self.name, events=strays)
                    self._look = True

    def _take(self, rows: Any, *, throttled: bool = True) -> None:
        """Lay claimed events into the hand."""
        self.tally.claimed += len(rows)
        last_chance = self.options.max_lost - 1
        for row in rows:
            self._held[row[ID]] = row
            if row[LOST_COUNT] >= last_chance > 0:
                self._alone = row
            elif throttled and self._throttles.arrive(row):
                continue
            self._hand.append(row)
        self._start()

    def _start(self) -> None:
        if self._alone is not None:
            self._clear_for(self._alone)
        if self._held:
            self._wake_slot()

    def _clear_for(self, suspect: Row) -> None:
        """Let go of everything that has not been started, for the sake of an event that may kill us.

        It has been lost with its worker until only one chance is left. It takes that alone, so that no neighbour is
        lost once more, and buried, for what it did.
        """
        for row in (*self._hand, *self._throttles.leave()):
            if row is not suspect:
                self._handed_back(row)
        self._hand.clear()

    def _note_refused(self, refused: Any) -> None:
        for event_id in refused:
            self.tally.leases_lost += 1
            self._buried.pop(event_id, None)
            log.warning("lease lost: the outcome was not written", worker=self.name, event_id=str(event_id))

    def _report_buried(self, refused: Any) -> None:
        if self._buried:
            settled = [event_id for event_id in self._buried if event_id not in self._held and event_id not in refused]
            for event_id in settled:
                row, settlement = self._buried.pop(event_id)
                alarm.dead_lettered(row, settlement, self._handler_name(row), self.options.mask)

    def _handler_name(self, row: Row) -> str:
        handler = self._handlers.get(row[TARGET])
        return handler.name if handler else "(unknown)"

    async def _wait(self) -> None:
        """Sleep until there is a result to write, something may be due, or a poll's time has passed."""
        if self._stopping or self._session_lost or len(self._finished):
            return
        if self._may_claim():
            return
        free = self._appetite.want(len(self._held)) > 0
        self._bell.clear()
        seconds = await self._seconds_to_next() if free else self.options.poll_seconds
        if seconds > 0 and not self._bell.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._bell.wait()
        self._look = True

    def _may_claim(self) -> bool:
        return self._look and self._alone is None and self._appetite.want(len(self._held)) > 0

    async def _seconds_to_next(self) -> float:
        """How long nothing comes due. The store is asked once a poll; what we put off ourselves is known meanwhile."""
        now = self._clock.monotonic()
        if now >= self._ask_at:
            self._ask_at = self._due_at = now + self.options.poll_seconds * (0.75 + 0.5 * self._clock.random())
            with suppress(StoreUnavailable):
                due = await self._claims.next_due()
                if due is not None:
                    self._due_at = min(self._due_at, now + due)
        if self._due_at <= now:
            self._ask_at = 0.0
        return self._due_at - now

    def _wake(self) -> None:
        self._look = True
        self._bell.set()

    # Slots

    async def _slot(self, crew: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        while crew is self._crew and task not in self._deaf:
            row = self._next()
            if row is None:
                ready = self._desk.loop.create_future()
                self._idle.append(ready)
                await ready
                continue
            if self._hand:
                self._wake_slot()
            await self._run(row, crew, task)
        if task in self._deaf:  # another has taken this place
            self._deaf.discard(task)
            self._slots = [each for each in self._slots if each is not task]

    def _next(self) -> Row | None:
        """Pick the next event to run; one that may kill the worker only when nothing else is held."""
        if self._alone is not None:
            if self._alone_running or len(self._held) > 1:
                return None
            self._alone_running = True
            return self._alone
        return self._hand.popleft() if self._hand else None

    def _wake_slot(self) -> None:
        if self._idle:
            ready = self._idle.pop()
            if not ready.done():
                ready.set_result(None)

    async def _run(self, row: Row, crew: object, task: asyncio.Task[None]) -> None:
        """Run one event, and as many more of the hand as fit into a turn of the loop."""
        monotonic, ran = self._clock.monotonic, self.counts.ran
        now = monotonic()
        until = now + _TURN_OF_LOOP
        current: Row | None = row
        while current is not None:
            began, begun = now, self._begun + 1
            self._begun = begun
            try:
                tried = await self._attempt(current)
            except Exception as error:  # noqa: BLE001 - ours, not the handler's: it must not end the slot, or keep the event
                log.error("attempt broken off, trying again later", event_id=str(current[ID]), error=repr(error)[:500])
                self._put_back_later(current)
                tried = True
            finally:
                self._bell.set()
                if current is self._alone:
                    self._alone, self._alone_running = None, False
            now = monotonic()
            if tried:
                ran(current[TARGET], now - began)
            if now > until:
                if begun == self._begun:  # else the handler has waited, and others ran: that was a turn
                    await self._clock.sleep(0)
                    now = monotonic()
                until = now + _TURN_OF_LOOP
            current = self._next() if crew is self._crew and task not in self._deaf else None

    async def _attempt(self, row: Row) -> bool:
        """One attempt: deliver, and remember how it went; false: its handler was not run."""
        handler = self._handlers.get(row[TARGET])
        if handler is None:
            self._put_back_unknown(row)
            return False
        if (name := self._circuits.gate(handler, row)) is not None:
            self._blocked(row, settlement_for_blocked(row, name))
            self._circuits.let_go(row)
            return False
        await self._try(handler, row)
        return True

    async def _try(self, handler: Handler, row: Row) -> None:
        task = asyncio.current_task()
        assert task is not None
        attempt = self._running[row[ID]] = Attempt(row, handler, task)
        context = Context(row, self._desk, attempt, self._circuits.degraded(handler))
        error: BaseException | None = None
        try:
            try:
                if context.degraded and not await self._mark_degraded(row):
                    self._handed_back(row)
                    return
                if handler.isolation is None:
                    if handler.is_limited or row[DEADLINE_AT] is not None:
                        self._limit(attempt)
                    await self._deliver(handler, row, context, self._threads)
                else:
                    await self._deliver_apart(attempt)
            except asyncio.CancelledError as raised:
                if self._abandoning and attempt.why is None and not context.settled:
                    self._handed_back(row)
                    raise
                error = raised
            except BaseException as raised:  # noqa: BLE001 - SystemExit and friends are a handler's failure too
                error = civil(raised)
            finally:
                self._over(attempt)
            if error is None and attempt.why is None and not context.settled:
                self._delivered(row)
            else:
                await self._conclude(attempt, context, error)
        finally:
            self._forget(attempt)

    async def _in_child(self, attempt: Attempt) -> None:
        """Run it in a child process; its time is counted from when it has one."""
        async with self._children.taken() as child:
            self._limit(attempt)
            attempt.child = child
            try:
                reply = await child.run(attempt.row, self._session(), self.options.lease_seconds)
                attempt.settled = reply.settled
                reply.check()
            finally:
                attempt.child = None

    def _over(self, attempt: Attempt) -> None:
        """Note that the handler has ended, or that nobody waits for it any more: there is nothing left to tell it."""
        attempt.is_over = True
        if attempt.until:  # it was watched: most are not
            self._watch.discard(attempt)
            attempt.calm()

    def _forget(self, attempt: Attempt) -> None:
        event_id = attempt.row[ID]
        if self._running.get(event_id) is attempt:  # not a later attempt at the same event
            del self._running[event_id]

    async def _conclude(self, attempt: Attempt, context: Context, error: BaseException | None) -> None:
        """Remember an end that was not plain success."""
        row = attempt.row
        if attempt.given_up:
            log.warning("a handler that was given up has ended", event_id=str(row[ID]), target=row[TARGET])
        elif context.settled:
            if error is not None:
                said = alarm.hidden(row, repr(error), self.options.mask)[:500]
                log.error("handler raised after its transaction", event_id=str(row[ID]), error=said)
            self._settled(row)
        elif isinstance(error, AlreadyHandled):
            self.tally.deduplicated += 1
            self._delivered(row)
        elif isinstance(error, LeaseLost):
            self._release(row)
            self._circuits.let_go(row)
            self.tally.leases_lost += 1
            log.warning("lease lost", worker=self.name, event_id=str(row[ID]), error=str(error))
        elif attempt.why is not None:
            await self._stopped(attempt, error)
        elif error is not None:
            await self._failed(attempt.handler, row, error)

    # Time limits, and being called off

    def _limit(self, attempt: Attempt) -> None:
        """Set the attempt's time limit: its timeout, or what is left until the deadline."""
        handler = attempt.handler
        seconds = handler.timeout
        left = self._until_deadline(handler, attempt.row)
        if left is not None:
            if left <= 0:
                message = "the deadline of the event passed before the attempt was started"
                raise DeadlinePassed(message)
            if seconds is None or left < seconds:
                seconds, attempt.is_last = left, True
        if seconds is not None:
            self._watch.add(attempt, seconds)

    def _until_deadline(self, handler: Handler, row: Row) -> float | None:
        """How many seconds are left, by the store's clock. A replay is somebody's decision and has no deadline."""
        ends = [] if row[DEADLINE_AT] is None else [seconds_of(row[DEADLINE_AT])]
        if handler.deadline is not None and row[CYCLE] == 0:
            ends.append(seconds_of(row[CREATED_AT]) + handler.deadline)
        return min(ends) - self._clock.monotonic() - self._store_ahead if ends else None

    def _overdue(self, attempt: Attempt) -> None:
        """Tell an attempt whose time is over to stop; give up one that was told and has not ended."""
        if attempt.why is not None:
            self._give_up(attempt)
        elif attempt.is_last:
            self._tell(attempt, DeadlinePassed("the deadline of the event passed during the attempt"))
        else:
            limit = format_duration(attempt.handler.timeout or 0.0)
            self._tell(attempt, TimedOut(f"the attempt took longer than its timeout of {limit}"))

    def _tell(self, attempt: Attempt, why: TimedOut | Cancelled) -> None:
        attempt.tell(why)
        self._watch.add(attempt, _CANCEL_SECONDS)

    def _give_up(self, attempt: Attempt) -> None:
        """Settle without the handler: it is deaf to cancellation, or in a thread that does not end."""
        self.tally.left_behind += 1
        log.error(
            "handler does not stop, leaving it behind",
            event_id=str(attempt.row[ID]),
            target=attempt.row[TARGET],
            why=str(attempt.why),
            left_behind=self.tally.left_behind,
        )
        if attempt.runs_in_thread:
            attempt.cancel()  # the slot stops waiting for it, and settles
            return
        attempt.given_up = True
        self._over(attempt)
        self._forget(attempt)
        if attempt.row is self._alone:
            self._alone, self._alone_running = None, False
        self._deaf.add(attempt.task)
        self._slots.append(asyncio.create_task(self._slot(self._crew), name="redrive-slot"))
        settling = asyncio.create_task(self._stopped(attempt, None), name="redrive-settle")
        self._settling.add(settling)
        settling.add_done_callback(self._after_settling)

    def _after_settling(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._bell.set()

    async def _stopped(self, attempt: Attempt, error: BaseException | None) -> None:
        """Write down an attempt that we ended, whatever its handler made of that."""
        why, row = attempt.why, attempt.row
        assert why is not None
        if isinstance(why, Cancelled):
            self._release(row)
            self._circuits.let_go(row)
            self.tally.cancelled += 1
            self.counts.ended(row, Outcome.CANCELLED)
            log.info("handler stopped: the event was called off", event_id=str(row[ID]), target=row[TARGET])
            return
        if error is not why:
            why.__cause__ = error  # where the handler was when its time was over
        self.tally.timed_out += 1
        await self._failed(attempt.handler, row, why)

    async def _hear_of_cancels(self, by: str) -> Tick:
        """Ask, while we hold events, which of them were called off, and tell their handlers."""
        if not self._held:
            return Tick(moved=False, pause=_NEWS_SECONDS)
        rows = await self._store.ask("cancelled", session=self._session())
        told = self._tell_cancelled(rows)
        # One we do not know may have been claimed by a turn whose answer is on its way: look once more.
        told |= self._strangers & {row["id"] for row in rows}
        self._strangers = {row["id"] for row in rows} - told
        if told:
            async with self._store.transaction() as transaction:
                await transaction.run("told", ids=list(told))
            log.debug("told what was called off", worker=by, events=len(told))
        return Tick(bool(told), _NEWS_SECONDS)

    def _tell_cancelled(self, rows: Iterable[Mapping[str, Any]]) -> set[Any]:
        """Stop what runs and drop what waits in the hand; returns what was ours."""
        told = set()
        for row in rows:
            event_id = row["id"]
            held, attempt = self._held.get(event_id), self._running.get(event_id)
            if held is None or held[FENCE] != row["fence"]:
                continue
            told.add(event_id)
            if attempt is not None and attempt.why is None and not attempt.is_over:
                self._watch.discard(attempt)
                self._tell(attempt, Cancelled(f"called off by {row['cancelled_by']}: {row['cancel_reason']}"))
            elif attempt is None and (self._throttles.drop(held) or held in self._hand):
                with suppress(ValueError):
                    self._hand.remove(held)
                self._release(held)
                self.tally.cancelled += 1
        return told

    def _is_ours(self, row: Row) -> bool:
        """Tell a live attempt from one that was given up, whose handler came to an end all the same."""
        return self._held.get(row[ID]) is row

    def _delivered(self, row: Row) -> None:
        if not self._is_ours(row):
            return
        self.tally.delivered += 1
        self._circuits.passed(row)
        self._finished.delivered.append(row)

    def _settled(self, row: Row) -> None:
        """Let go: the handler's own transaction has written it down."""
        self.tally.delivered += 1
        self.counts.delivered([row], self._clock.monotonic() + self._store_ahead)
        self._circuits.passed(row)
        self._key_freed = self._key_freed or row[ORDERING_KEY] is not None
        self._release(row)

    def _release(self, row: Row) -> None:
        """Take one attempt's row out of the hands, and never a later claim of the same event."""
        if self._is_ours(row):
            del self._held[row[ID]]

    def _handed_back(self, row: Row) -> None:
        if not self._is_ours(row):
            return
        self.tally.put_back += 1
        self._circuits.let_go(row)
        self._finished.put_back.append((row, 0.0))

    def _put_back_unknown(self, row: Row) -> None:
        """Nobody here knows the target: another version may. Put it back for a while, and say so."""
        target = row[TARGET]
        if target not in self.tally.unknown_targets:
            log.warning("no handler for target, putting events back", worker=self.name, target=target, type=row[TYPE])
        self.tally.unknown_targets[target] = self.tally.unknown_targets.get(target, 0) + 1
        self._put_back_later(row)

    def _put_back_later(self, row: Row) -> None:
        if self._is_ours(row):
            self._circuits.let_go(row)
            later = self.options.unknown_delay_seconds * (0.75 + 0.5 * self._clock.random())
            self._finished.put_back.append((row, later))

    async def _failed(self, handler: Handler | None, row: Row, error: BaseException) -> None:
        if not self._is_ours(row):
            return
        settlement = self._settlement(handler, row, error)
        if handler is not None:
            settlement = await self._weighed(handler, row, error, settlement)
            if not self._is_ours(row):
                return
        left = None if handler is None else self._until_deadline(handler, row)
        if left is not None and settlement.delay_seconds is not None and settlement.delay_seconds >= left:
            late = DeadlinePassed("the deadline of the event leaves no time for another attempt")
            late.__cause__, late.safe_to_retry = error, settlement.safe_to_retry
            settlement = self._settlement(handler, row, late)
        if settlement.status is Status.FAILED:
            await self._bury(handler, row, settlement)
        elif settlement.status is Status.BLOCKED:
            self._blocked(row, settlement)
        else:
            await self._put_off(handler, row, settlement)

    async def _put_off(self, handler: Handler | None, row: Row, settlement: Settlement) -> None:
        """Let it wait for another attempt: with the next turn, or in a transaction of its own with its hook."""
        self.counts.settled(row, settlement)
        self.tally.retried += settlement.spends
        self.tally.deferred += not settlement.spends
        log.info(
            "attempt failed, retry scheduled",
            event_id=str(row[ID]),
            target=row[TARGET],
            attempt=row[ATTEMPTS],
            error_class=settlement.error_class,
            error=settlement.last_error.partition("\n")[0][:200],
            seconds=round(settlement.delay_seconds or 0.0, 3),
        )
        has_hook = handler is not None and handler.on_retry is not None
        if not has_hook or not await self._settled_together(handler, row, settlement):
            self._finished.settlements.append(settlement)
        self._due_at = min(self._due_at, self._clock.monotonic() + (settlement.delay_seconds or 0.0))

    # What is not the event's own fault

    async def _weighed(self, handler: Handler, row: Row, error: BaseException, settlement: Settlement) -> Settlement:
        """Look for the fault elsewhere: in a dependency or our own database, or when nearly everything fails here.

        Below the threshold of a circuit an attempt is deferred. To fail for something that is not shut is free, but not
        for ever, or an event that fails alone while others pass would go round and round.
        """
        circuits = self._circuits
        if settlement.is_terminal:
            circuits.let_go(row)
            return settlement
        name = circuits.blamed(handler, error, settlement.error_class)
        is_ours = name is None and any(isinstance(each, StoreUnavailable) for each in leaves(error))
        if name is None and not is_ours:
            brake = circuits.stumbled(handler, row, settlement.error_class)
            return settlement if brake is None else blocked(settlement, brake)
        was_shut, is_shut = (False, False) if name is None else circuits.failed(name, row, error)
        if name is not None and was_shut:
            return blocked(settlement, name)
        rounds = await self._free_rounds(row)
        if rounds >= FREE_ROUNDS:
            return settlement
        if name is not None and is_shut:
            return blocked(settlement, name, is_round=True)
        return deferred(settlement, round_seconds(rounds, self._clock.random))

    async def _free_rounds(self, row: Row) -> int:
        with suppress(StoreUnavailable):
            event = await self._store.event(UUID(str(row[ID])))
            return event.deferred_count if event else FREE_ROUNDS
        return 0  # nothing can be written now either; the next failure will count

    def _blocked(self, row: Row, settlement: Settlement) -> None:
        if self._is_ours(row):
            self.tally.blocked += 1
            self.counts.settled(row, settlement)
            self._finished.settlements.append(settlement)

    async def _mark_degraded(self, row: Row) -> bool:
        """Write down that it is run in a reduced mode, before it is; false: that cannot be written now."""
        with suppress(StoreUnavailable):
            async with self._store.transaction() as transaction:
                if not await transaction.run("degrade", id=row[ID], fence=row[FENCE]):
                    message = f"event {row[ID]} is no longer ours: it was not run"
                    raise LeaseLost(message)
            return True
        return False

    def _settlement(self, handler: Handler | None, row: Row, error: BaseException) -> Settlement:
        policy = self._retry_for(row)
        return settlement_for(row, error, policy, handler.rules if handler else DEFAULT_RULES, self._clock.random)

    def _retry_for(self, row: Row) -> RetryPolicy:
        """Say which policy holds now, whenever the attempt began."""
        handler = self._handlers.get(row[TARGET])
        return (handler.retry if handler else None) or self._retry

    # Dead letters

    async def _bury(self, handler: Handler | None, row: Row, settlement: Settlement) -> None:
        """Make it a dead letter: with the next turn, or in a transaction of its own when somebody has a part in it."""
        self.tally.dead_lettered += 1
        self.counts.settled(row, settlement)
        settlement.passed = handler is not None and handler.on_failed == "pass" and row[ORDERING_KEY] is not None
        has_part = (handler is not None and handler.on_dead_letter is not None) or self._is_told(row)
        if not has_part or not await self._settled_together(handler, row, settlement):
            self._buried[row[ID]] = (row, settlement)
            self._finished.settlements.append(settlement)

    def _is_told(self, row: Row) -> bool:
        """Whether somebody handles the lifecycle event of its end."""
        return self._lifecycle and row[TYPE] != FAILED_TYPE

    # Hooks

    async def _settled_together(self, handler: Handler | None, row: Row, settlement: Settlement) -> bool:
        """Settle in one transaction with what a hook writes; false: the hook cannot, and it has to go without.

        While the store does not answer nobody can settle: that is waited for, and is not the fault of the hook.
        """
        hook = "on_dead_letter" if settlement.status is Status.FAILED else "on_retry"
        tries, pause = 0, 0.05
        while tries < _HOOK_TRIES:
            try:
                shortfalls = await self._settle_together(handler, row, settlement)
            except LeaseLost as error:
                log.warning("lease lost", worker=self.name, event_id=str(row[ID]), error=str(error))
                self._release(row)
                return True
            except StoreUnavailable as error:
                log.warning("outcome not written yet", event_id=str(row[ID]), error=str(error))
            except Exception as error:  # noqa: BLE001 - a hook of the user's; the event must go on visibly all the same
                tries += 1
                log.error(
                    "hook failed", event_id=str(row[ID]), target=row[TARGET], hook=hook, tries=tries,
                    error=alarm.hidden(row, repr(error), self.options.mask)[:500],
                )  # fmt: skip
                if tries == _HOOK_TRIES:
                    await self._note_missing(row, hook, [(f"all of {hook}", error)])
            else:
                self._release(row)
                await self._after_settled(row, settlement, hook, shortfalls)
                return True
            await self._clock.sleep(pause * self._clock.random())
            pause = min(pause * 4, 3.0)
        return False

    async def _settle_together(
        self, handler: Handler | None, row: Row, settlement: Settlement
    ) -> list[tuple[str, Exception]]:
        """Write the outcome and what hooks add to it; return the parts of that which were left out."""
        async with self._store.transaction() as transaction:
            if await transaction.settle([settlement], chain=str(self._session()), actor=self.name):
                message = f"event {row[ID]} is no longer ours: its outcome was not written"
                raise LeaseLost(message)
            (written,) = await transaction.run("settled", id=row[ID])
            told = _told(row, settlement, written)
            work = Settling(transaction, partial(self._caused_by, told))
            if isinstance(told, Retry):
                if handler is not None and handler.on_retry is not None:
                    await handler.on_retry(told, work)
                return work.shortfalls
            if handler is not None and handler.on_dead_letter is not None:
                await handler.on_dead_letter(told, work)
            if self._is_told(row):
                await transaction.publish(self._caused_by(told, FAILED_TYPE, _as_payload(told)))
            return work.shortfalls

    async def _after_settled(
        self, row: Row, settlement: Settlement, hook: str, shortfalls: Sequence[tuple[str, Exception]]
    ) -> None:
        if settlement.status is Status.FAILED:
            self._key_freed = self._key_freed or settlement.passed
            alarm.dead_lettered(row, settlement, self._handler_name(row), self.options.mask)
        if shortfalls:
            await self._note_missing(row, hook, shortfalls)

    def _caused_by(
        self, told: FailedAttempt, type_: str, payload: Any = None, **options: Unpack[Options]
    ) -> list[NewEvent]:
        options.setdefault("correlation_id", told.correlation_id or str(told.id))
        options.setdefault("causation_id", str(told.id))
        return self._new_events(type_, payload, **options)

    async def _note_missing(self, row: Row, hook: str, shortfalls: Sequence[tuple[str, Exception]]) -> None:
        """Say everywhere that something a hook should have written is missing."""
        for what, error in shortfalls:
            self.counts.hooks_failed[row[TARGET], hook] += 1
            alarm.hook_failed(row, hook, what, error, self.options.mask)
            detail = {"error": repr(error)[:1_000], "hook": hook, "what": what}
            with suppress(RedriveError):
                await self._store.write_trail([(UUID(str(row[ID])), "evidence-failed", row[SOURCE], self.name, detail)])

    # Duties

    def _all_duties(self) -> list[Duty]:
        return [
            Duty("upkeep", self._doubting(self._keep_up)),
            Duty("redrives", self._carry_redrives),
            Duty("cancels", self._hear_of_cancels),
            Duty("dependencies", self._doubting(self._keep_tending), self._circuits.news),
            Duty("limits", self._doubting(self._keep_limits), self._throttles.news),
            *self._duties,
        ]

    def _doubting(self, act: Callable[[str], Awaitable[Tick]]) -> Callable[[str], Awaitable[Tick]]:
        """Look for strays after a duty that may claim something: the answer may have been lost."""

        async def acted(by: str) -> Tick:
            try:
                return await act(by)
            except StoreUnavailable:
                self._doubt()
                raise

        return acted

    async def _keep_up(self, by: str) -> Tick:
        """Sweep, look at the ordering keys, and purge now and then."""
        await self._sweep()
        self._walked_to = await ordering.unstick(self._store, self._walked_to)
        if self._clock.monotonic() >= self._purge_at:
            await self._purge(by)
            self._purge_at = self._clock.monotonic() + _PURGE_EVERY * (0.75 + 0.5 * self._clock.random())
        return Tick(moved=False, pause=self.options.lease_seconds / 3)

    async def _keep_tending(self, _: str) -> Tick:
        """Exchange what is known of dependencies, twice a second and at once when there is something to say."""
        return Tick(await self._tend(), _TEND_SECONDS * (0.75 + 0.5 * self._clock.random()))

    async def _tend_anyhow(self) -> None:
        """Tend where nobody tries again: a worker that begins or ends does so all the same."""
        try:
            await self._tend()
        except Exception as error:  # noqa: BLE001 - the duty will say more, if it lasts
            log.warning("dependencies not tended", worker=self.name, error=repr(error)[:500])

    async def _tend(self) -> bool:
        """Bring the circuits up to date; say whether anything came back."""
        may_probe = not self._stopping and self._alone is None
        async with self._taking:  # what has been claimed for a probe is ours before anybody looks for strays
            probes, released = await self._circuits.tend(
                self._session(), self.options.queues, self.options.generation, self._held, by=self.name, probe=may_probe
            )
            if probes:
                self._take(probes, throttled=False)  # one at a time: it need not wait for a permit
                if self._stopping:
                    self._hand_back_waiting()
        if probes or released:
            self._wake()
        return bool(probes or released)

    # Limits

    async def _keep_limits(self, _: str) -> Tick:
        """Read changed policies every few seconds; give permits whenever there may be some to give."""
        if self._clock.monotonic() >= self._policies_at:
            await self._read_policies()
        started = await self._admit()
        if await self._throttles.loosen():
            self._wake()
        hindered = self._stopping or self._alone is not None or self._session_lost  # and would look in vain at once
        pause = min(self._throttles.pause(), max(0.0, self._policies_at - self._clock.monotonic()))
        return Tick(started, max(pause, _LOOK_AGAIN if hindered else 0.0))

    async def _read_policies(self) -> None:
        """Work under what operators have said from now on; an attempt under way keeps its time limit."""
        self._policies_at = self._clock.monotonic() + _POLICY_SECONDS * (0.75 + 0.5 * self._clock.random())
        news = await override.news(self._store, self._policy_version)
        if news is None:
            return
        self._policy_version, overrides = news
        self._handlers = {
            target: _under(handler, self._retry, overrides) for target, handler in self._registered.items()
        }
        throttles = {
            target: Throttle(handler.concurrency, handler.rate)
            for target, handler in self._handlers.items()
            if handler.concurrency is not None or handler.rate is not None or handler.isolation is not None
        }
        self._hand.extend(self._throttles.limit(throttles, self._held))
        self._start()
        if overrides:
            log.info("policies read", worker=self.name, overrides=len(overrides), throttled=len(throttles))

    async def _admit(self, *, every: bool = False) -> bool:
        """Start throttled events as far as their limits allow, and let the others wait; say whether one was started."""
        started = False
        for target in self._throttles.due(every=every):
            async with self._taking:
                if self._stopping or self._alone is not None or self._session_lost:
                    return started
                try:
                    admitted = await self._throttles.admit(
                        target, self._session(), self._hands, self._circuits.held_queues
                    )
                except BaseException:
                    # The answer may have been lost, and they may wait already: only the fence can tell.
                    for row in self._throttles.leave(target):
                        self._handed_back(row)
                    self._bell.set()
                    raise
                started |= self._let_in(admitted)
        return started

    @property
    def _hands(self) -> int:
        """How many more events could be started at once."""
        return self.options.concurrency - len(self._running) - len(self._hand)

    def _let_in(self, admitted: Admitted) -> bool:
        for row in admitted.waiting:
            self._release(row)
        for row in admitted.taken:
            self._held[row[ID]] = row
        self._hand.extend(row for row in (*admitted.running, *admitted.taken) if self._is_ours(row))
        self.tally.throttled += len(admitted.waiting)
        self.tally.claimed += len(admitted.taken)
        self._start()
        if admitted.waiting:
            self._bell.set()  # there is room for others again
        return bool(admitted.running or admitted.taken)

    async def _carry_redrives(self, _: str) -> Tick:
        """Carry on the redrives that run. Looking in vain for what can move takes a fifth of the time at most."""
        began = self._clock.monotonic()
        moved, pause = await redrive.tick(self._store, chain=str(self._session()))
        return Tick(moved, pause if moved else max(pause, 4 * (self._clock.monotonic() - began)))

    async def _sweep(self) -> None:
        while True:
            async with self._taking:  # what has been taken over is ours before anybody looks for strays
                rows = await self._store.sweep(
                    self._session(),
                    max_lost=self.options.max_lost,
                    limit=_SWEEP_LIMIT,
                    base_seconds=5.0,
                    actor=self.name,
                )
                self._held.update({row[ID]: row for row in rows if row[SWEPT_STATUS] == Status.IN_FLIGHT})
            self.tally.swept += len(rows)
            for row in rows:
                if row[SWEPT_LEASE_UNTIL] is not None:
                    self.tally.timed_out += 1
                    late = TimedOut("the attempt took longer than its timeout, and blocked its worker")
                    await self._failed(self._handlers.get(row[TARGET]), row, late)
                    continue
                log.warning(
                    "worker lost, event taken back",
                    event_id=str(row[ID]),
                    type=row[TYPE],
                    lost_count=row[LOST_COUNT],
                )
                if row[SWEPT_STATUS] == Status.IN_FLIGHT:
                    policy = self._retry_for(row)
                    await self._bury(
                        self._handlers.get(row[TARGET]), row, settlement_for_lost(row, policy.max_attempts)
                    )
                else:
                    self.counts.ended(row, Outcome.LOST)
            if rows:
                self._wake()
            if len(rows) < _SWEEP_LIMIT:
                return

    async def _purge(self, by: str) -> None:
        ended, failed, handled = self._retention.cutoffs(self._clock.now())
        while True:
            gone = await self._store.purge(
                ended_before=ended,
                failed_before=failed,
                handled_before=handled,
                by=by,
                dry_run=False,
                limit=_PURGE_LIMIT,
            )
            if max(gone.events, gone.dead_letters, gone.handled, gone.members, gone.runs, gone.findings) < _PURGE_LIMIT:
                return
            await self._clock.sleep(0.1)  # leave room for the work itself

    # Stopping, and starting over

    def _on_session_lost(self) -> None:
        self._session_lost = True
        self._bell.set()

    async def _begin_anew(self) -> None:
        """Start a new session: others have declared us gone and taken our events; what was running is void."""
        log.error("session lost: abandoning what was held", worker=self.name, held=len(self._held))
        self.tally.leases_lost += len(self._held)
        async with self._taking:
            await self._abandon()
            self._finished = Finished()
            self._held.clear()
            self._buried.clear()
            self._throttles.begin_anew()
        self._session_lost = False
        await self._claims.close()
        while not self._stopping:
            with suppress(StoreUnavailable):
                await self._begin_session()
                self._look = True
                return
            await self._clock.sleep(1.0)

    async def _abandon(self) -> None:
        """Cancel the running handlers and empty the hand. Threads cannot be stopped; their results are ignored."""
        self._hand.clear()
        self._alone, self._alone_running = None, False
        in_threads = [attempt for attempt in self._running.values() if attempt.runs_in_thread]
        await self._stop_slots()
        for attempt in in_threads:
            attempt.why = attempt.why or AttemptStopped("the worker has stopped: the event was handed back")
        self._running.clear()
        if self._settling:
            await asyncio.wait(tuple(self._settling), timeout=_CANCEL_SECONDS)
        self._add_slots(self.options.concurrency)

    def _add_slots(self, number: int) -> None:
        self._abandoning = False
        self._crew = object()
        self._slots = [asyncio.create_task(self._slot(self._crew), name=f"redrive-slot-{n}") for n in range(number)]

    async def _stop_slots(self) -> None:
        self._abandoning = True
        self._crew = None
        for slot in self._slots:
            slot.cancel()
        _, deaf = await asyncio.wait(self._slots, timeout=_CANCEL_SECONDS)
        if deaf:
            log.error("handlers ignore cancellation, leaving them behind", worker=self.name, handlers=len(deaf))
        self._idle.clear()

    def _hand_back_waiting(self) -> None:
        for row in (*self._hand, *self._throttles.leave()):
            self._handed_back(row)
        self._hand.clear()
        if self._alone is not None and not self._alone_running:
            self._handed_back(self._alone)
            self._alone = None  # or a slot would still start it once the others are gone

    async def _drain_and_hand_back(self) -> None:
        """Stop gracefully: return what was not started, let the rest finish, then return that too."""
        async with self._taking:  # what is being admitted is ours by then
            self._hand_back_waiting()
        until = self._clock.monotonic() + self.options.drain_seconds
        while (self._running or self._settling or len(self._finished)) and not self._session_lost:
            if len(self._finished):
                await self._turn()
            left = until - self._clock.monotonic()
            if left <= 0 or self._at_once:
                break
            if (self._running or self._settling) and not len(self._finished):
                self._bell.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._bell.wait()
        if self._session_lost:
            return
        unfinished = [self._held[event_id] for event_id in self._running if event_id in self._held]
        await self._abandon()
        returned = {row[ID] for row, _ in self._finished.put_back}
        for row in unfinished:  # handlers in threads cannot be stopped: their fence is given up here
            if row[ID] in self._held and row[ID] not in returned:
                self._handed_back(row)
        if len(self._finished):
            await self._turn()
        if self._circuits.is_probing:
            await self._tend_anyhow()  # or the others would wait for the end of its lease
        log.info("worker stopped", worker=self.name, delivered=self.tally.delivered, put_back=self.tally.put_back)


def _under(handler: Handler, retry: RetryPolicy, overrides: list[override.Override]) -> Handler:
    """Put what operators say in the place of what a handler says."""
    said = override.matching(overrides, handler.type, handler.target)
    if not said:
        return handler
    terms = override.Terms(handler.retry or retry, handler.timeout, handler.concurrency, handler.rate)
    try:
        terms = override.under(terms, said)
    except (ConfigurationError, TypeError) as error:  # written past us: the handler's own word is better than none
        log.error("policy cannot be used", target=handler.target, pattern=said[-1].pattern, error=str(error)[:500])
        return handler
    return replace(
        handler, retry=terms.retry, timeout=terms.timeout, concurrency=terms.concurrency, rate=terms.rate,
        is_limited=terms.timeout is not None or handler.deadline is not None,
    )  # fmt: skip


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _told(row: Row, settlement: Settlement, written: Mapping[str, Any]) -> DeadLetter | Retry:
    """Say what a hook is told, from what was claimed and what has just been written."""
    common: dict[str, Any] = {
        "id": UUID(str(row[ID])),
        "type": row[TYPE],
        "target": row[TARGET],
        "source": row[SOURCE],
        "subject": row[SUBJECT],
        "payload": decode(row[PAYLOAD]),
        "idempotency_key": row[IDEMPOTENCY_KEY],
        "retry_key": row[RETRY_KEY],
        "correlation_id": row[CORRELATION_ID],
        "attempts": written["attempts"],
        "error_class": settlement.error_class,
        "error_type": settlement.error_type,
        "last_error": settlement.last_error,
        "safe_to_retry": settlement.safe_to_retry,
    }
    if settlement.status is Status.FAILED:
        return DeadLetter(**common, failed_at=_instant(written["ended_at"]))
    return Retry(**common, next_retry_at=_instant(written["due_at"]))


def _instant(stored: Any) -> datetime:
    return from_micros(stored) if isinstance(stored, int) else stored


def _as_payload(letter: DeadLetter) -> dict[str, Any]:
    return {
        "event_id": str(letter.id),
        "type": letter.type,
        "target": letter.target,
        "source": letter.source,
        "subject": letter.subject,
        "attempts": letter.attempts,
        "error_class": letter.error_class,
        "error_type": letter.error_type,
        "last_error": letter.last_error,
    }
