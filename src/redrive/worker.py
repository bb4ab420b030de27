"""The worker: claim, deliver, settle, over and over. Start reading here.

    turn      settle what has finished and claim what there are free hands for: one round trip to the store
    hands     what is held in between, and every way in which it leaves (``hands.py``)
    slots     long-lived tasks that run handlers (``slots.py``); what fails goes to ``failure.py``
    heartbeat a thread that renews the session, so that a blocked event loop does not lose its leases
    duties    what is done beside the turns, each in its own task (``duty.py``): the sweep of leases whose worker is
              gone and retention; redrives; telling who was called off; dependencies, and those who wait for them;
              policies that somebody has changed, and permits for throttled events

While a turn is under way results pile up, and the next turn takes them all: batches grow with the load by themselves,
and there are no timers to tune. A database that blinks costs a pause; the worker goes on when it is back.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from redrive import ordering, redrive
from redrive.circuit import Circuits
from redrive.claim import Appetite
from redrive.clock import Clock
from redrive.context import Desk
from redrive.counts import Counts, Tally
from redrive.deliver import Handler
from redrive.dependency import Circuit
from redrive.duty import Duty, Tick, keep
from redrive.errors import LockHeld, SchemaTooNew, StoreUnavailable, TimedOut
from redrive.event import NewEvent, Outcome, Status
from redrive.failure import Failures
from redrive.hands import Hands
from redrive.heartbeat import Heartbeat
from redrive.hook import FAILED_TYPE, Hooks
from redrive.isolate import Children, Hello
from redrive.logs import log
from redrive.options import WorkerOptions
from redrive.payload import DEFAULT_LIMITS, Limits
from redrive.policies import Policies
from redrive.policy import RetryPolicy
from redrive.presence import Presence
from redrive.retention import Retention
from redrive.slots import Slots
from redrive.store.base import (
    FENCE,
    ID,
    LOST_COUNT,
    SWEPT_LEASE_UNTIL,
    SWEPT_STATUS,
    TARGET,
    TYPE,
    Lane,
    Row,
    Session,
    Store,
    Turn,
    in_background,
)
from redrive.throttle import HELD_SECONDS, Admitted, Throttles

_SWEEP_LIMIT: Final = 500
_PURGE_LIMIT: Final = 1_000
_PURGE_EVERY: Final = 60.0
_DOUBT_LEASES: Final = 20
_RIDE_OUT_SECONDS: Final = 1.5  # with jitter 2.25 at most: work goes on three seconds after the store is back
_LOOK_AGAIN: Final = 0.05
_NEWS_SECONDS: Final = 0.4  # how often we ask what was called off; whoever runs it hears of it within a second
_TEND_SECONDS: Final = 0.5
_CALL_OFF_EVERY: Final = 5.0  # a duty has so long to tidy up
_MOST_LEFT_BEHIND: Final = 1_000  # threads that do not end; each holds memory, and the machine has only so many


class Worker:
    """Runs handlers until it is told to stop."""

    heart: type[Heartbeat] = Heartbeat
    crew: type[Slots] = Slots
    presence: Presence = Presence()

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
        self._process: str | None = None
        self._store = store
        self._clock = clock
        self._retention = retention
        self._new_events = new_events
        self._limits = limits
        self._hello = hello
        self._duties = duties
        self._lanes = self.options.lanes()
        self._unclaimed: frozenset[str] = frozenset()
        self._wire(handlers, retry, circuits or {})
        self._strangers: set[Any] = set()
        self._told: set[Any] = set()  # cancelled events whose handlers know it and have not ended
        self._hears_of_cancels = False
        self._walked_to = ordering.START
        self._purge_at = clock.monotonic() + _PURGE_EVERY * clock.random()
        self._taking = asyncio.Lock()
        self._appetite = Appetite(self.options.concurrency)
        self._look = True
        self._ask_at = self._strays_at = 0.0
        self._doubt_until = 0.0
        self._stopping = False
        self._at_once = False
        self._session_lost = False
        self._outdated: SchemaTooNew | None = None

    def _wire(self, handlers: Mapping[str, Handler], retry: RetryPolicy, circuits: Mapping[str, Circuit]) -> None:
        """Put together those who share the work."""
        store, clock, options, tally, counts = self._store, self._clock, self.options, self.tally, self.counts
        self._policies = Policies(store, clock, handlers, retry)
        self._handlers = self._policies.handlers
        self._circuits = Circuits(store, clock, handlers, circuits)
        apart = [target for target, handler in handlers.items() if handler.isolation]
        self._throttles = Throttles(store, clock, handlers, self._lanes, apart, options.most_apart)
        self._hands = Hands(clock, self._circuits, tally, counts)
        has_listeners = any(FAILED_TYPE in handler.types for handler in handlers.values())
        self._hooks = Hooks(
            store, clock, self._hands, counts, self._new_events,
            session=self._session, by=self.name, mask=options.mask, has_listeners=has_listeners,
        )  # fmt: skip
        self._failures = Failures(
            store, clock, self._hands, self._circuits, self._hooks, self._handlers, retry, tally, counts
        )
        self._slots = self.crew(
            options, store, clock, self._hands, self._circuits, self._failures, self._handlers, tally, counts,
            session=self._session, by=self.name,
        )  # fmt: skip

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
        if self._outdated is not None:
            raise self._outdated

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
                idle = not self._hands.held and not self._look
                if idle and self.tally.claimed > seen:  # the end of an event may publish another, like a notice
                    seen = self.tally.claimed
                    self._look = True
                    continue
                if not await self._admit(every=idle) and idle:
                    if not await self._carry_on():
                        return self.tally
                    self._look = True
                # What has ended meanwhile has rung already: only what is still held will ring again.
                may_go_on = self._hands.has_ends or self._may_claim() or self._throttles.has_arrivals
                if self._hands.held and not may_go_on:
                    self._hands.bell.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._hands.aside_seconds):
                            await self._hands.bell.wait()

    async def _carry_on(self) -> bool:
        """Let come what is not due by itself: members of redrives, and those who waited; say whether any did."""
        with in_background(str(self._session())):
            moved = [(await redrive.tick(self._store, chain=str(self._session()))).moved]
            moved += [(await duty.act(self.name)).moved for duty in self._duties]
            moved += [await self._throttles.loosen(at_once=True) > 0]
            moved += [(await self._hear_of_cancels(self.name)).moved]
            return await self._tend() or any(moved)

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more; ``run`` returns when what is running has ended or the drain time is over.

        ``at_once``: do not wait for what is running, cancel it and hand it back.
        """
        self._stopping = True
        self._at_once = self._at_once or at_once
        self._hands.bell.set()

    @asynccontextmanager
    async def _at_work(self, *, alive: bool) -> AsyncIterator[None]:
        """Everything a worker needs around its turns, taken down in reverse order."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self.counts.following(self.tally))
            # More than there are slots: a thread that does not end must not take the place of one that would.
            most = self.options.concurrency + _MOST_LEFT_BEHIND
            threads = ThreadPoolExecutor(most, thread_name_prefix="redrive-handler")
            stack.callback(threads.shutdown, wait=False, cancel_futures=True)
            children: Children | None = None
            if self._hello is not None:
                children = Children(self.options.most_children, self._hello)
                stack.push_async_callback(children.close)
                await children.start()
            loop = asyncio.get_running_loop()
            desk = Desk(self._store, self._new_events, loop, self._handlers, threads, self._limits)
            self._slots.open(desk, threads, children)
            stack.callback(self._slots.watch.close)
            await self._begin_session()
            stack.push_async_callback(self._end_session)
            stack.push_async_callback(self._close_claims)
            for duty in self._duties:
                if duty.during is not None:
                    await stack.enter_async_context(duty.during(self.name))
            self._slots.fill()
            stack.push_async_callback(self._slots.stop)
            await self._tend_anyhow()
            await self._read_policies()
            if alive:
                heartbeat = self.heart(
                    self._store, self._clock, self.options.lease_seconds, self.options.stall_seconds, self._session,
                    self._on_session_lost, self._slots.watch,
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
            process=await self.presence.process(),
        )
        await self._store.begin_session(session, self.options.lease_seconds)
        self.session_id, self._process = session.id, session.process
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
        hands = self._hands
        self._throttles.look(hands.busy, self._free_hands)
        is_free = not self._stopping and hands.alone is None
        want = self._appetite.want(hands.busy_count - len(hands.finished)) if is_free else 0
        if want <= 0 and not hands.has_ends:
            return
        batch = hands.collect()
        settling, delivered = batch.ids, batch.delivered.copy()  # the store takes out what it has written
        hands.key_freed = batch.frees_a_key
        began = self._clock.monotonic()
        try:
            turn = await self._claims.turn(batch, want)
        except StoreUnavailable as error:
            self._let_go(set(settling).difference(batch.ids))  # a part of it may have been written
            hands.keep(batch)
            await self._ride_out(error)
            return
        now = self._clock.monotonic()
        hands.store_ahead = turn.now - now
        kept = set(batch.ids)  # somebody else's transaction holds a lock: the others do not wait for them
        if kept:
            hands.set_aside(batch)
            settling = [each for each in settling if each not in kept]
            delivered = [row for row in delivered if row[ID] not in kept]
        self._count(delivered, turn, now - began)
        self._note_refused(turn.refused)
        self._let_go(settling, turn.refused)
        self._take(turn.claimed)
        self._throttles.look(hands.busy, self._free_hands)
        self._appetite.learn(len(settling), turn.claimed)
        self._look = want <= 0 or turn.more or hands.key_freed
        if turn.held:
            hands.due_in(_LOOK_AGAIN)

    def _count(self, delivered: list[Row], turn: Turn, seconds: float) -> None:
        self.counts.turns.add(seconds)
        if turn.refused:
            delivered = [row for row in delivered if row[ID] not in turn.refused]
        if delivered:
            self.counts.delivered(delivered, turn.now)

    def _let_go(self, settled: Iterable[Any], refused: Any = ()) -> None:
        self._hands.let_go(settled)
        self._report_buried(refused)

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
                    forgotten = await self._forget()
            except StoreUnavailable:
                continue
            log.info("store available again", worker=self.name, put_back=forgotten)
            break
        self._look = True

    async def _forget(self) -> int:
        return await self._claims.forget(self._hands.held, max_lost=self.options.max_lost)

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
                    strays = await self._forget()
                if strays:
                    log.warning("events of a lost answer put back", worker=self.name, events=strays)
                    self._look = True

    def _take(self, rows: Any, *, are_probes: bool = False) -> None:
        """Take claimed events into the hands."""
        self.tally.claimed += len(rows)
        self._hands.held.update({row[ID]: row for row in rows})
        self._start([row for row in rows if not self._throttles.arrive(row, is_probe=are_probes)])

    def _start(self, rows: Iterable[Row]) -> None:
        """Start events as soon as there are slots; one that has only one chance left, when nothing else is held."""
        last_chance = self.options.max_lost - 1
        for row in rows:
            if row[LOST_COUNT] >= last_chance > 0:
                self._hands.alone = row
            self._hands.waiting.append(row)
        if self._hands.alone is not None:
            self._clear_for(self._hands.alone)
        if self._hands.held:
            self._slots.wake()

    def _clear_for(self, suspect: Row) -> None:
        """Let go of everything that has not been started, for the sake of an event that may kill us.

        It has been lost with its worker until only one chance is left. It takes that alone, so that no neighbour is
        lost once more, and buried, for what it did.
        """
        for row in (*self._hands.waiting, *self._throttles.leave()):
            if row is not suspect:
                self._hands.hand_back(row)
        self._hands.waiting.clear()

    def _note_refused(self, refused: Any) -> None:
        self._hears_of_cancels = self._hears_of_cancels or bool(refused)  # it may have been cancelled
        for event_id in refused:
            self.tally.leases_lost += 1
            self._hands.buried.pop(event_id, None)
            log.warning("lease lost: the outcome was not written", worker=self.name, event_id=str(event_id))

    def _report_buried(self, refused: Any) -> None:
        buried, held = self._hands.buried, self._hands.held
        for event_id in [each for each in buried if each not in held and each not in refused] if buried else ():
            row, settlement = buried.pop(event_id)
            self._hooks.report(self._handlers.get(row[TARGET]), row, settlement)

    async def _wait(self) -> None:
        """Sleep until there is a result to write, something may be due, or a poll's time has passed."""
        if self._stopping or self._session_lost or self._hands.has_ends:
            return
        if self._may_claim():
            return
        free = self._appetite.want(self._hands.busy_count) > 0
        self._hands.bell.clear()
        seconds = await self._seconds_to_next() if free else self.options.poll_seconds
        aside = self._hands.aside_seconds
        seconds = seconds if aside is None else min(seconds, aside)
        if seconds > 0 and not self._hands.bell.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._hands.bell.wait()
        self._look = True

    def _may_claim(self) -> bool:
        return self._look and self._hands.alone is None and self._appetite.want(self._hands.busy_count) > 0

    async def _seconds_to_next(self) -> float:
        """How long nothing comes due. The store is asked once a poll; what we put off ourselves is known meanwhile."""
        now = self._clock.monotonic()
        if now >= self._ask_at:
            self._ask_at = self._hands.due_at = now + self.options.poll_seconds * (0.75 + 0.5 * self._clock.random())
            with suppress(StoreUnavailable):
                due = await self._claims.next_due()
                if due is not None:
                    self._hands.due_at = min(self._hands.due_at, now + due)
        if self._hands.due_at <= now:
            self._ask_at = 0.0
        return self._hands.due_at - now

    def _wake(self) -> None:
        self._look = True
        self._hands.bell.set()

    # Being called off

    async def _hear_of_cancels(self, by: str) -> Tick:
        """Ask, while we hold events, which of them were cancelled, and tell their handlers.

        When a handler has ended, or was given up, the next event of its key may go.
        """
        if not self._hands.held and not self._hears_of_cancels:
            return Tick(moved=False, pause=_NEWS_SECONDS)
        rows = await self._store.ask("cancelled", session=self._session())
        self._tell_cancelled(rows)
        over = {row["id"] for row in rows if row["id"] not in self._hands.running}
        # One we do not know may have been claimed by a turn whose answer is on its way: look once more.
        known = {each for each in over if each in self._told or each in self._strangers}
        self._strangers = over - known
        self._told &= {row["id"] for row in rows}
        self._hears_of_cancels = bool(rows)
        if known:
            await self._free_keys(known)
            log.debug("cancelled handlers have ended", worker=by, events=len(known))
        return Tick(bool(over), _NEWS_SECONDS)

    async def _free_keys(self, cancelled: Iterable[Any]) -> None:
        """Let the next of their keys go: nothing runs any more of these cancelled events."""
        async with self._store.transaction() as tx:
            freed = await tx.run("told", ids=list(cancelled))
            keys = {(row["target"], row["ordering_key"]) for row in freed if row["ordering_key"] is not None}
            for target, key in sorted(keys):
                await tx.run("promote", target=target, ordering_key=key)
        if keys:
            self._wake()

    def _tell_cancelled(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Stop what runs and drop what waits in the hand, once each."""
        for row in rows:
            event_id = row["id"]
            held, attempt = self._hands.held.get(event_id), self._hands.running.get(event_id)
            if held is None or held[FENCE] != row["fence"] or event_id in self._told:
                continue
            self._told.add(event_id)
            if attempt is not None:
                self._slots.call_off(attempt, f"called off by {row['cancelled_by']}: {row['cancel_reason']}")
            elif self._throttles.drop(held) or held in self._hands.waiting:
                with suppress(ValueError):
                    self._hands.waiting.remove(held)
                self._hands.release(held)
                self.tally.cancelled += 1

    # Duties

    def _all_duties(self) -> list[Duty]:
        duties = [
            Duty("upkeep", self._doubting(self._keep_up)),
            Duty("retention", self._keep_small),
            Duty("redrives", self._carry_redrives),
            Duty("cancels", self._hear_of_cancels),
            Duty("dependencies", self._doubting(self._keep_tending), self._circuits.news),
            Duty("limits", self._doubting(self._keep_limits), self._throttles.news),
            *self._duties,
        ]
        return [replace(duty, act=self._in_background(duty.act)) for duty in duties]

    def _in_background(self, act: Callable[[str], Awaitable[Tick]]) -> Callable[[str], Awaitable[Tick]]:
        """Let a duty write to the session's chain of the trail, and wait for nobody's lock."""

        async def acted(by: str) -> Tick:
            with in_background(str(self._session())):
                return await act(by)

        return acted

    def _doubting(self, act: Callable[[str], Awaitable[Tick]]) -> Callable[[str], Awaitable[Tick]]:
        """Look for strays after a duty that may claim something: the answer may have been lost."""

        async def acted(by: str) -> Tick:
            try:
                return await act(by)
            except StoreUnavailable:
                self._doubt()
                raise

        return acted

    async def _keep_up(self, _: str) -> Tick:
        """Sweep, look at the ordering keys, and whether this code may still work on the schema."""
        found_gone = await self._sweep()
        for event_id in await self._store.end_lost_transactions():
            log.warning("transaction without a lease ended", worker=self.name, event_id=str(event_id))
        self._walked_to = await ordering.unstick(self._store, self._walked_to)
        await self._check_schema()
        # The server may not know yet that the connections of a process are gone: its rows are free a moment later.
        return Tick(moved=False, pause=1.0 if found_gone else self.options.lease_seconds / 3)

    async def _check_schema(self) -> None:
        """Stop when somebody has migrated to a schema that needs newer code; what is running may finish."""
        try:
            await self._store.check_schema()
        except SchemaTooNew as error:
            log.error("schema too new, stopping", worker=self.name, error=str(error))
            self._outdated = error
            self.stop()

    async def _keep_small(self, by: str) -> Tick:
        """Purge now and then. A duty of its own: millions of rows take minutes, and nobody would be swept meanwhile."""
        rest = self._purge_at - self._clock.monotonic()
        if rest <= 0:
            await self._purge(by)
            rest = _PURGE_EVERY * (0.75 + 0.5 * self._clock.random())
            self._purge_at = self._clock.monotonic() + rest
        return Tick(moved=False, pause=rest)

    async def _keep_tending(self, _: str) -> Tick:
        """Exchange what is known of dependencies, twice a second and at once when there is something to say."""
        return Tick(await self._tend(), _TEND_SECONDS * (0.75 + 0.5 * self._clock.random()))

    async def _tend_anyhow(self) -> None:
        """Tend where nobody tries again: a worker that begins or ends does so all the same."""
        try:
            with in_background(str(self._session())):
                await self._tend()
        except Exception as error:  # noqa: BLE001 - the duty will say more, if it lasts
            log.warning("dependencies not tended", worker=self.name, error=repr(error)[:500])

    async def _tend(self) -> bool:
        """Bring the circuits up to date; say whether anything came back."""
        circuits = self._circuits
        await circuits.exchange(self._hands.held, by=self.name)
        may_probe = not self._stopping and self._hands.alone is None
        probes = [await self._probe(name) for name in circuits.worth_a_probe()] if may_probe else []
        moved = any(probes) or await circuits.release() > 0
        if moved:
            self._wake()
        return moved

    async def _probe(self, name: str) -> bool:
        """Take an event to try a dependency with; say whether there was one."""
        async with self._taking:  # what has been claimed is ours before anybody looks for strays
            options = self.options
            row = await self._circuits.probe(name, self._session(), options.queues, options.generation, by=self.name)
            if row is not None:
                self._take([row], are_probes=True)
                if self._stopping:
                    self._hand_back_waiting()
        return row is not None

    # Limits

    async def _keep_limits(self, _: str) -> Tick:
        """Read changed policies every few seconds; give permits whenever there may be some to give."""
        if not self._policies.pause:
            await self._read_policies()
        started = await self._admit()
        if await self._throttles.loosen():
            self._wake()
        is_hindered = self._stopping or self._hands.alone is not None or self._session_lost
        pause = min(self._throttles.pause(), self._policies.pause)
        return Tick(started, max(pause, _LOOK_AGAIN if is_hindered else 0.0))  # or it would look in vain at once

    async def _read_policies(self) -> None:
        """Work under what operators have said from now on."""
        throttles = await self._policies.read(self.name)
        if throttles is not None:
            self._start(self._throttles.limit(throttles, self._hands.held))

    async def _admit(self, *, every: bool = False) -> bool:
        """Start throttled events as far as their limits allow, and let the others wait; say whether one was started."""
        started = False
        for target in self._throttles.due(every=every):
            async with self._taking:
                if self._stopping or self._hands.alone is not None or self._session_lost:
                    return started
                try:
                    admitted = await self._throttles.admit(
                        target, self._session(), self._free_hands, self._circuits.held_queues
                    )
                except LockHeld:  # nothing was written: let them come back when the lock may be free
                    for row in self._throttles.leave(target):
                        self._hands.hand_back_later(row, HELD_SECONDS)
                    self._hands.bell.set()
                    continue
                except BaseException:
                    # The answer may have been lost, and they may wait already: only the fence can tell.
                    for row in self._throttles.leave(target):
                        self._hands.hand_back(row)
                    self._hands.bell.set()
                    raise
                started |= self._let_in(admitted)
        return started

    @property
    def _free_hands(self) -> int:
        """How many more events could be started at once."""
        return self.options.concurrency - len(self._hands.running) - len(self._hands.waiting)

    def _let_in(self, admitted: Admitted) -> bool:
        for row in admitted.waiting:
            self._hands.release(row)
        for row in admitted.taken:
            self._hands.held[row[ID]] = row
        self.tally.throttled += len(admitted.waiting)
        self.tally.claimed += len(admitted.taken)
        self._start([row for row in (*admitted.running, *admitted.taken) if self._hands.is_ours(row)])
        if admitted.waiting:
            self._hands.bell.set()  # there is room for others again
        return bool(admitted.running or admitted.taken)

    async def _carry_redrives(self, _: str) -> Tick:
        """Carry on the redrives that run. Looking in vain for what can move takes a fifth of the time at most."""
        began = self._clock.monotonic()
        moved, pause = await redrive.tick(self._store, chain=str(self._session()))
        return Tick(moved, pause if moved else max(pause, 4 * (self._clock.monotonic() - began)))

    async def _gone(self) -> list[UUID]:
        """Find the sessions of processes that have left this machine without a word."""
        if self._process is None:
            return []
        rows = await self._store.ask("sessions_of", place=self._process.partition(":")[0])
        gone = await self.presence.gone(row["process"] for row in rows if row["process"] != self._process)
        return [UUID(str(row["id"])) for row in rows if row["process"] in gone]

    async def _sweep(self) -> bool:
        """Take back what sessions that are gone still hold; say whether a process was found to be gone."""
        gone = await self._gone()
        await self._store.hear_out(gone)
        while True:
            async with self._taking:  # what has been taken over is ours before anybody looks for strays
                rows = await self._store.sweep(
                    self._session(),
                    max_lost=self.options.max_lost,
                    limit=_SWEEP_LIMIT,
                    base_seconds=5.0,
                    actor=self.name,
                    gone=gone,
                )
                self._hands.held.update({row[ID]: row for row in rows if row[SWEPT_STATUS] == Status.IN_FLIGHT})
            self.tally.swept += len(rows)
            for row in rows:
                if row[SWEPT_LEASE_UNTIL] is not None and row[LOST_COUNT] < self.options.max_lost:
                    self.tally.timed_out += 1
                    late = TimedOut("the attempt took longer than its timeout, and blocked its worker")
                    await self._failures.failed(self._handlers.get(row[TARGET]), row, late)
                    continue
                log.warning(
                    "worker lost, event taken back",
                    event_id=str(row[ID]),
                    type=row[TYPE],
                    lost_count=row[LOST_COUNT],
                )
                if row[SWEPT_STATUS] == Status.IN_FLIGHT:
                    await self._failures.lost_too_often(row)
                else:
                    self.counts.ended(row, Outcome.LOST)
            if rows:
                self._wake()
            if len(rows) < _SWEEP_LIMIT:
                break
        left = await self._store.ask("cancelled_gone")
        if left:  # nobody else would say that their handlers are gone
            with suppress(LockHeld):
                await self._free_keys(row["id"] for row in left)
        return bool(gone)

    async def _purge(self, by: str) -> None:
        while (await self._store.purge(self._retention.ages, by=by, limit=_PURGE_LIMIT)).most >= _PURGE_LIMIT:
            await self._clock.sleep(0.1)  # leave room for the work itself

    # Stopping, and starting over

    def _on_session_lost(self) -> None:
        self._session_lost = True
        self._hands.bell.set()

    async def _begin_anew(self) -> None:
        """Start a new session: others have declared us gone and taken our events; what was running is void."""
        log.error("session lost: abandoning what was held", worker=self.name, held=len(self._hands.held))
        self.tally.leases_lost += len(self._hands.held)
        async with self._taking:
            await self._abandon()
            self._hands.drop_all()
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
        """Cancel the running handlers, and forget what was not started."""
        self._hands.drop_waiting()
        await self._slots.abandon()

    def _hand_back_waiting(self) -> None:
        for row in (*self._hands.waiting, *self._throttles.leave()):
            self._hands.hand_back(row)
        self._hands.waiting.clear()
        if self._hands.alone is not None and not self._hands.alone_running:
            self._hands.hand_back(self._hands.alone)
            self._hands.alone = None  # or a slot would still start it once the others are gone

    async def _drain_and_hand_back(self) -> None:
        """Stop gracefully: return what was not started, let the rest finish, then return that too."""
        async with self._taking:  # what is being admitted is ours by then
            self._hand_back_waiting()
        until = self._clock.monotonic() + self.options.drain_seconds
        hands = self._hands
        while (self._slots.are_busy or len(hands.finished) or len(hands.aside)) and not self._session_lost:
            if hands.has_ends:
                await self._turn()
            left = until - self._clock.monotonic()
            if left <= 0 or self._at_once:
                break
            aside = hands.aside_seconds
            if (self._slots.are_busy or aside) and not hands.has_ends:
                hands.bell.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left if aside is None else min(left, aside)):
                        await hands.bell.wait()
        if self._session_lost:
            return
        unfinished = [hands.held[event_id] for event_id in hands.running if event_id in hands.held]
        await self._abandon()
        returned = {row[ID] for row, _ in hands.finished.put_back}
        for row in unfinished:  # handlers in threads cannot be stopped: their fence is given up here
            if row[ID] in hands.held and row[ID] not in returned:
                hands.hand_back(row)
        if len(hands.finished):
            await self._turn()
        if self._circuits.is_probing:
            await self._tend_anyhow()  # or the others would wait for the end of its lease
        log.info("worker stopped", worker=self.name, delivered=self.tally.delivered, put_back=self.tally.put_back)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Call them off, and again while one goes on.

    Drivers wait with ``asyncio.wait_for``: before Python 3.12 it forgets a cancellation that comes with the answer.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def call_off() -> None:
        nonlocal timer
        for task in tasks:
            task.cancel()
        timer = loop.call_later(_CALL_OFF_EVERY, call_off)

    call_off()
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        timer.cancel()
