"""Slots: the tasks of a worker that run handlers.

A slot lives as long as its worker: it takes an event from the hands, runs its handler, and leaves what became of it
for the next turn. A task for each event would cost more than a short handler does. Here an attempt also gets its time
limit, and is told to stop when that is over or the event was called off. A handler that does not stop is left behind,
and another slot takes its place.

Next: ``hands`` for what was delivered, ``failure`` for what was not.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final
from uuid import UUID

from redrive import alarm
from redrive.attempt import Attempt, Watch
from redrive.circuit import Circuits
from redrive.classify import civil, leaves
from redrive.clock import Clock
from redrive.context import Context, Desk
from redrive.counts import Counts, Tally
from redrive.deliver import Handler, deliver
from redrive.duration import format_duration
from redrive.errors import (
    AlreadyHandled,
    AttemptStopped,
    Cancelled,
    DeadlinePassed,
    KeyInUse,
    LeaseLost,
    StoreUnavailable,
    TimedOut,
)
from redrive.event import Outcome
from redrive.failure import Failures
from redrive.hands import Hands
from redrive.isolate import Children
from redrive.logs import log
from redrive.options import WorkerOptions
from redrive.settle import settlement_for_blocked
from redrive.store.base import DEADLINE_AT, FENCE, ID, TARGET, TYPE, Row, Store
from redrive.store.connections import Side, begin_attempt, begin_task
from redrive.tracing import traced

_TURN_OF_LOOP: Final = 0.005  # seconds a slot may go on without letting others run
_CANCEL_SECONDS: Final = 5.0
_KEY_SECONDS: Final = 2.0


class Slots:
    """Those of one worker."""

    def __init__(
        self, options: WorkerOptions, store: Store, clock: Clock, hands: Hands, circuits: Circuits, failures: Failures,
        handlers: Mapping[str, Handler], tally: Tally, counts: Counts, *, session: Callable[[], UUID], by: str,
    ) -> None:  # fmt: skip
        self.options = options
        self._store = store
        self._clock = clock
        self._hands = hands
        self._circuits = circuits
        self._failures = failures
        self._handlers = handlers
        self._tally = tally
        self._counts = counts
        self._session = session
        self._by = by
        self._tasks: list[asyncio.Task[None]] = []
        self._deaf: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._crew: object = None
        self._abandoning = False
        self._begun = 0

    # Their lives

    def open(self, desk: Desk, threads: ThreadPoolExecutor, children: Children | None) -> None:
        """Get ready to run something in this event loop."""
        self._desk = desk
        self._threads = threads
        self._children = children
        self.watch = Watch(self._overdue)
        self._deliver = traced(deliver, lambda _handler, row, *_: row, self.options.mask)
        self._deliver_apart = traced(self._in_child, lambda attempt: attempt.row, self.options.mask)

    def fill(self) -> None:
        """Start a slot for everything that may run at once."""
        self._abandoning = False
        crew = self._crew = object()
        self._tasks = [
            asyncio.create_task(self._slot(crew), name=f"redrive-slot-{n}") for n in range(self.options.concurrency)
        ]

    async def stop(self) -> None:
        """Cancel the running handlers, and the slots with them."""
        self._abandoning = True
        self._crew = None
        for slot in self._tasks:
            slot.cancel()
        _, deaf = await asyncio.wait(self._tasks, timeout=_CANCEL_SECONDS)
        if deaf:
            log.error("handlers ignore cancellation, leaving them behind", worker=self._by, handlers=len(deaf))
        self._idle.clear()

    async def abandon(self) -> None:
        """Cancel the running handlers and begin anew. Threads cannot be stopped; their results are ignored."""
        running = self._hands.running
        in_threads = [attempt for attempt in running.values() if attempt.runs_in_thread]
        await self.stop()
        for attempt in in_threads:
            attempt.why = attempt.why or AttemptStopped("the worker has stopped: the event was handed back")
        running.clear()
        if self._settling:
            await asyncio.wait(tuple(self._settling), timeout=_CANCEL_SECONDS)
        self.fill()

    @property
    def are_busy(self) -> bool:
        """Whether something runs, or is being settled without its handler."""
        return bool(self._hands.running or self._settling)

    def wake(self) -> None:
        """Have a slot look what there is to run."""
        if self._idle:
            ready = self._idle.pop()
            if not ready.done():
                ready.set_result(None)

    async def _slot(self, crew: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        begin_task(Side.HANDLER)
        while crew is self._crew and task not in self._deaf:
            row = self._hands.next()
            if row is None:
                ready = self._desk.loop.create_future()
                self._idle.append(ready)
                await ready
                continue
            if self._hands.waiting:
                self.wake()
            await self._run(row, crew, task)
        if task in self._deaf:  # another has taken this place
            self._deaf.discard(task)
            self._tasks = [each for each in self._tasks if each is not task]

    async def _run(self, row: Row, crew: object, task: asyncio.Task[None]) -> None:
        """Run one event, and as many more of the hand as fit into a turn of the loop."""
        hands, monotonic, ran = self._hands, self._clock.monotonic, self._counts.ran
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
                hands.hand_back_later(current, self.options.unknown_delay_seconds)
                tried = True
            finally:
                hands.bell.set()
                hands.over(current)
            now = monotonic()
            if tried:
                ran(current[TARGET], now - began)
            if now > until:
                if begun == self._begun:  # else the handler has waited, and others ran: that was a turn
                    await self._clock.sleep(0)
                    now = monotonic()
                until = now + _TURN_OF_LOOP
            current = hands.next() if crew is self._crew and task not in self._deaf else None

    # Attempts

    async def _attempt(self, row: Row) -> bool:
        """One attempt: deliver, and remember how it went; false: its handler was not run."""
        handler = self._handlers.get(row[TARGET])
        if handler is None:
            self._hand_back_unknown(row)
            return False
        if (name := self._circuits.gate(handler, row)) is not None:
            self._hands.blocked(row, settlement_for_blocked(row, name))
            self._circuits.let_go(row)
            return False
        await self._try(handler, row)
        return True

    def _hand_back_unknown(self, row: Row) -> None:
        """Nobody here knows the target: another version may. Put it back for a while, and say so."""
        target, unknown = row[TARGET], self._tally.unknown_targets
        if target not in unknown:
            log.warning("no handler for target, putting events back", worker=self._by, target=target, type=row[TYPE])
        unknown[target] = unknown.get(target, 0) + 1
        self._hands.hand_back_later(row, self.options.unknown_delay_seconds)

    async def _try(self, handler: Handler, row: Row) -> None:
        task = asyncio.current_task()
        assert task is not None
        attempt = self._hands.running[row[ID]] = Attempt(row, handler, task)
        begin_attempt(attempt)
        context = Context(row, self._desk, attempt, self._circuits.degraded(handler))
        error: BaseException | None = None
        try:
            try:
                if context.degraded and not await self._mark_degraded(row):
                    self._hands.hand_back(row)
                    return
                if handler.isolation is None:
                    if handler.is_limited or row[DEADLINE_AT] is not None:
                        self._limit(attempt)
                    await self._deliver(handler, row, context, self._threads)
                else:
                    await self._deliver_apart(attempt)
            except asyncio.CancelledError as raised:
                if self._abandoning and attempt.why is None and not context.settled:
                    self._hands.hand_back(row)
                    raise
                error = raised
            except BaseException as raised:  # noqa: BLE001 - SystemExit and friends are a handler's failure too
                error = civil(raised)
            finally:
                self._over(attempt)
            if error is None and attempt.why is None and not context.settled:
                self._hands.delivered(row)
            else:
                await self._conclude(attempt, context, error)
        finally:
            self._forget(attempt)

    async def _mark_degraded(self, row: Row) -> bool:
        """Write down that it is run in a reduced mode, before it is; false: that cannot be written now."""
        with suppress(StoreUnavailable):
            async with self._store.transaction() as transaction:
                if not await transaction.run("degrade", id=row[ID], fence=row[FENCE]):
                    message = f"event {row[ID]} is no longer ours: it was not run"
                    raise LeaseLost(message)
            return True
        return False

    async def _in_child(self, attempt: Attempt) -> None:
        """Run it in a child process; its time is counted from when it has one."""
        assert self._children is not None
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
            self.watch.discard(attempt)
            attempt.calm()

    def _forget(self, attempt: Attempt) -> None:
        event_id, running = attempt.row[ID], self._hands.running
        if running.get(event_id) is attempt:  # not a later attempt at the same event
            del running[event_id]

    async def _conclude(self, attempt: Attempt, context: Context, error: BaseException | None) -> None:
        """Remember an end that was not plain success."""
        row = attempt.row
        if attempt.given_up:
            log.warning("a handler that was given up has ended", event_id=str(row[ID]), target=row[TARGET])
        elif context.settled:
            if error is not None:
                said = alarm.hidden(row, repr(error), self.options.mask)[:500]
                log.error("handler raised after its transaction", event_id=str(row[ID]), error=said)
            self._hands.settled(row)
        elif isinstance(error, AlreadyHandled):
            self._tally.deduplicated += 1
            self._hands.delivered(row)
        elif error is not None and attempt.why is None and any(isinstance(each, KeyInUse) for each in leaves(error)):
            self._wait_for_key(row)
        elif isinstance(error, LeaseLost):
            self._hands.release(row)
            self._circuits.let_go(row)
            self._tally.leases_lost += 1
            log.warning("lease lost", worker=self._by, event_id=str(row[ID]), error=str(error))
        elif attempt.why is not None:
            await self._stopped(attempt, error)
        elif error is not None:
            await self._failed(attempt.handler, row, error)

    def _wait_for_key(self, row: Row) -> None:
        """Give the event back for a while: its key belongs to a transaction that is open elsewhere. Spends nothing."""
        self._tally.waited_for_key += 1
        log.info("idempotency key in use, trying again", event_id=str(row[ID]), target=row[TARGET])
        self._hands.hand_back_later(row, _KEY_SECONDS)

    async def _failed(self, handler: Handler, row: Row, error: BaseException) -> None:
        await self._failures.failed(handler, row, error)

    # Time limits, and being called off

    def _limit(self, attempt: Attempt) -> None:
        """Set the attempt's time limit: its timeout, or what is left until the deadline."""
        seconds = attempt.handler.timeout
        left = self._hands.seconds_left(attempt.handler, attempt.row)
        if left is not None:
            if left <= 0:
                message = "the deadline of the event passed before the attempt was started"
                raise DeadlinePassed(message)
            if seconds is None or left < seconds:
                seconds = left
        if seconds is not None:
            self.watch.limit(attempt, seconds, left)

    def _overdue(self, attempt: Attempt) -> None:
        """Tell an attempt whose time is over to stop; give up one that was told and has not ended."""
        if attempt.why is not None:
            self._give_up(attempt)
        elif attempt.is_last:
            self._tell(attempt, DeadlinePassed("the deadline of the event passed during the attempt"))
        else:
            limit = format_duration(attempt.handler.timeout or 0.0)
            self._tell(attempt, TimedOut(f"the attempt took longer than its timeout of {limit}"))

    def call_off(self, attempt: Attempt, why: str) -> None:
        """Tell an attempt to stop whose event was called off, unless it is stopping already."""
        if attempt.why is None and not attempt.is_over:
            self.watch.discard(attempt)
            self._tell(attempt, Cancelled(why))

    def _tell(self, attempt: Attempt, why: TimedOut | Cancelled) -> None:
        attempt.tell(why)
        self.watch.add(attempt, _CANCEL_SECONDS)

    def _give_up(self, attempt: Attempt) -> None:
        """Settle without the handler: it is deaf to cancellation, or in a thread that does not end."""
        self._tally.left_behind += 1
        log.error(
            "handler does not stop, leaving it behind",
            event_id=str(attempt.row[ID]),
            target=attempt.row[TARGET],
            why=str(attempt.why),
            left_behind=self._tally.left_behind,
        )
        if attempt.runs_in_thread:
            attempt.cancel()  # the slot stops waiting for it, and settles
            return
        attempt.given_up = True
        self._over(attempt)
        self._forget(attempt)
        self._hands.over(attempt.row)
        self._deaf.add(attempt.task)
        self._tasks.append(asyncio.create_task(self._slot(self._crew), name="redrive-slot"))
        settling = asyncio.create_task(self._stopped(attempt, None), name="redrive-settle")
        self._settling.add(settling)
        settling.add_done_callback(self._after_settling)

    def _after_settling(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._hands.bell.set()

    async def _stopped(self, attempt: Attempt, error: BaseException | None) -> None:
        """Write down an attempt that we ended, whatever its handler made of that."""
        why, row = attempt.why, attempt.row
        assert why is not None
        if isinstance(why, Cancelled):
            self._hands.release(row)
            self._circuits.let_go(row)
            self._tally.cancelled += 1
            self._counts.ended(row, Outcome.CANCELLED)
            log.info("handler stopped: the event was called off", event_id=str(row[ID]), target=row[TARGET])
            return
        if error is not why:
            why.__cause__ = error  # where the handler was when its time was over
        self._tally.timed_out += 1
        await self._failed(attempt.handler, row, why)
