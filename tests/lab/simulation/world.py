"""One seed: a world of processes that crash, stop and quarrel over one file, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redrive import Redrive
from redrive.errors import StoreUnavailable
from redrive.worker import Worker
from tests.lab.checker import Finding
from tests.lab.simulation import process as processes
from tests.lab.simulation import verdict
from tests.lab.simulation.clock import Wall
from tests.lab.simulation.disk import Dead, Disk
from tests.lab.simulation.loop import MAIN, Lane, Loop, Owner, Stalled
from tests.lab.simulation.process import Process, Unseen, chance
from tests.lab.simulation.scenario import LEASE, THROTTLED, Intent, app_of, drafted, make_peace, operate, produce
from tests.lab.simulation.store import LoopHeartbeat

_WAKE_SECONDS = 0.02
_LATE_SECONDS = 0.4
_ROUNDS = 40


@dataclass(slots=True)
class Outcome:
    """What one seed has shown."""

    seed: int
    found: Finding
    faults: Counter[str]
    reached: Counter[str]
    trace: list[str] = field(repr=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class World:
    """Everything that a seed decides."""

    max_lost = 2
    lease = LEASE
    runs_on: type[Loop] = Loop
    name = ""  # of the kind of world, before its seeds
    undoing_fails = False  # whether compensations may become dead letters
    others: tuple[tuple[str, Callable[[Process], Any]], ...] = ()  # who else is there

    def __init__(self, disk: Disk, seed: int, *, say: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.loop = self.runs_on(random.Random(seed + 1))
        self.loop.set_exception_handler(self._escaped)
        self.disk = disk
        self.wall = Wall()
        self.faults: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.acts: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self.found = Finding()
        self.said: list[dict[str, Any]] = []
        self.trace: list[str] = []
        self.is_calm = False
        self.with_batch = chance(self.dice, 0.4)
        self.batch_done = False
        self.intents: list[Intent] = [drafted(self.dice, n) for n in range(self.dice.randrange(4, 13))]
        self._say = say
        self._living: list[Process] = []
        self._woken: set[Process] = set()
        self._gone_home: set[str] = set()
        self._at_work: defaultdict[str, list[tuple[Process, str]]] = defaultdict(list)
        self._root = Owner("world")
        self._seeds = random.Random(seed + 2)
        disk.let_go = self.loop.let_go
        disk.max_lost = self.max_lost

    @property
    def is_throttled(self) -> bool:
        return any(intent.type == THROTTLED for intent in self.intents)

    # Told by processes

    def next_seed(self) -> int:
        return self._seeds.getrandbits(32)

    def note(self, process: Process | None, what: str) -> None:
        line = f"{self.loop.time():.5f} {process.name if process else '-'} {what}"
        self.trace.append(line)
        if self._say is not None:
            self._say(line)

    def fault(self, process: Process, kind: str) -> None:
        self.faults[kind] += 1
        self.note(process, f"{kind} at statement {process.statements}")

    def committed(self, process: Process, rows: int) -> None:
        self.note(process, f"commits {rows}")
        for other in self._living:
            if other is not process and other.wakes and other not in self._woken:
                self._woken.add(other)
                seconds = _WAKE_SECONDS if chance(self.dice, 0.3) else _LATE_SECONDS  # nobody depends on it
                self.loop.call_later(seconds, self._wake, other, context=self._root.main.context)

    def _wake(self, process: Process) -> None:
        self._woken.discard(process)
        for wake in tuple(process.wakes):
            self.loop.call_soon(wake, context=process.main.context)

    def _escaped(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Dead | None):
            self.found.add("escaped", f"{error!r}: {context.get('message')}")

    @contextmanager
    def at_work(self, process: Process, target: str, *, is_deaf: bool) -> Iterator[None]:
        """Watch that a target with one place is at work once.

        Whose session was ended does not count any more, nor one that is deaf: it is left behind when its time is over.
        """
        here, running = (process, process.session), self._at_work[target]
        if target == THROTTLED:
            live = {session for (session,) in self.disk.query("select id from redrive_session where ended_at is null")}
            if any(not other.is_dead and session in live for other, session in running):
                self.found.add("over-run", f"{target} has one place, and {process.name} is the second at work")
        if not is_deaf:
            running.append(here)
        try:
            yield
        finally:
            if not is_deaf:
                running.remove(here)

    # Running

    def run(self) -> Outcome:
        asyncio.set_event_loop(None)
        try:
            self._root.main.context.copy().run(self.loop.run_until_complete, self._live())
        except Stalled as error:
            self.found.add("stalled", str(error))
        finally:
            for process in self._living:
                process.vanish()
            self.disk.asking = None
            self._root.main.context.copy().run(self.loop.bury)
            self.loop.close()
        verdict.judge(self)
        return self.outcome

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.seed, self.found, self.faults, self.reached, self.trace)

    async def _live(self) -> None:
        dice = self.dice
        for number in range(dice.choice((2, 2, 3))):
            self._start(f"w{number}", self._work)
        self._start("p0", produce)
        self._start("o0", operate)
        for name, main in self.others:
            self._start(name, main)
        until = self.loop.time() + 2.0 + 2.5 * dice.random()
        while self.loop.time() < until and not self._is_over():
            await asyncio.sleep(0.2 + 0.8 * dice.random())
            self._meddle()
        await self._end()

    def _is_over(self) -> bool:
        """Nobody will ask for anything more, and nothing is left to be done: workers would only look in vain."""
        return self._gone_home >= {"p0", "o0", *(name for name, _ in self.others)} and self._seconds_to_next() is None

    def _start(self, name: str, main: Callable[[Process], Any], delay: float = 0.0) -> None:
        if delay:
            self.loop.call_later(delay, self._start, name, main, context=self._root.main.context)
            return
        if self.is_calm:
            return
        process = Process(self, name, self._strikes(), skew=self._skew())
        process.when_killed = lambda: self._after_kill(process, main)
        self._living.append(process)
        process.start(lambda me: self._alive(me, main))

    def _skew(self) -> float:
        return self.dice.choice((0.0, 0.0, 0.05, -0.05, 1.5, -1.5))

    def _strikes(self) -> list[tuple[int, str]]:
        """Decide what goes wrong in the life of a process, and when."""
        dice, kinds = self.dice, (processes.BEFORE, processes.AFTER, processes.ANSWER)
        deadly = [(dice.randrange(1, 300), dice.choice(kinds))] if chance(dice, 0.5) else []
        return deadly + [(dice.randrange(1, 250), kind) for kind in processes.ERRORS if chance(dice, 0.15)]

    async def _alive(self, process: Process, main: Callable[[Process], Any]) -> None:
        try:
            await main(process)
        except StoreUnavailable as error:
            self.note(process, f"gave up: {type(error).__name__}")
            self._exit(process)
            self._start(process.name, main, 0.3)
        except Exception as error:
            if not process.is_dead:
                self.found.add("crashed", f"{process.name}: {error!r}")
                if self._say is not None:
                    self._say(traceback.format_exc())
        else:
            self.note(process, "ended")
            self._gone_home.add(process.name)
            self._exit(process)

    def _exit(self, process: Process) -> None:
        if process in self._living:
            self._living.remove(process)
        for line in process.lines:
            line.close()

    def _after_kill(self, process: Process, main: Callable[[Process], Any]) -> None:
        self._living.remove(process)
        if not self.is_calm:
            self._start(process.name, main, 0.1 + 2.0 * self.dice.random())

    async def _work(self, process: Process) -> None:
        app = app_of(process)
        self.declare(app)
        await app.open()
        worker = self._worker(app, process)
        worker.heart = LoopHeartbeat
        worker.presence = Unseen()
        process.worker = worker
        try:
            await worker.run()
        finally:
            self._count(worker)
        await app.close()

    def _worker(self, app: Redrive, process: Process) -> Worker:
        return app.worker(
            concurrency=3, lease=self.lease, poll=1.0, drain=1.0, max_lost=self.max_lost, name=process.name
        )

    def _count(self, worker: Worker) -> None:
        tally = worker.tally
        for name, number in (
            ("lease lost", tally.leases_lost), ("duplicate suppressed", tally.deduplicated),
            ("timed out", tally.timed_out),
            ("put back", tally.put_back), ("left behind", tally.left_behind),
        ):  # fmt: skip
            self.reached[name] += number

    def _meddle(self) -> None:
        """Stop a process for a while, block its event loop, set the clock."""
        dice = self.dice
        workers = [each for each in self._living if each.worker is not None]
        roll = dice.random()
        if roll < 0.25 and workers:
            process = dice.choice(workers)
            self._pause(process, process.lanes, "stopped past its lease", LEASE * (0.5 + 1.5 * dice.random()))
        elif roll < 0.35 and workers:
            process = dice.choice(workers)
            self._pause(process, [process.lanes[MAIN]], "event loop blocked", LEASE * 2.0 * dice.random())
        elif roll < 0.45:
            self.wall.offset += dice.choice((-3600.0, -5.0, -1.0, 1.0, 4.0))
            self.faults["clock set"] += 1
            self.note(None, f"the clock is off by {self.wall.offset}")
        elif roll < 0.5 and workers:
            dice.choice(workers).kill("killed anywhere")

    def _pause(self, process: Process, lanes: list[Lane], what: str, seconds: float) -> None:
        self.fault(process, what)
        for lane in lanes:
            self.loop.hold(lane)
        self.loop.call_later(seconds, self._resume, process, lanes, context=self._root.main.context)

    def _resume(self, process: Process, lanes: list[Lane]) -> None:
        for lane in lanes:
            self.loop.resume(lane)

    # The end of all faults

    async def _end(self) -> None:
        self.is_calm = True
        self.note(None, "faults are over")
        for process in list(self._living):
            if process.worker is None or chance(self.dice, 0.5):
                process.kill("killed at the end")
            else:
                process.calm()
                process.worker.stop()
        while any(each.worker is not None for each in self._living):  # noqa: ASYNC110 - they end in their own time
            await asyncio.sleep(0.5)
        for process in list(self._living):
            process.kill("killed at the end")
        closer = Process(self, "z", [])
        self._living.append(closer)
        done = asyncio.Event()
        closer.start(lambda me: self._alive(me, lambda _: self._settle(closer, done)))
        await done.wait()

    async def _settle(self, process: Process, done: asyncio.Event) -> None:
        """Let time pass until everything has ended that can."""
        try:
            app = app_of(process)
            await app.open()
            await self.make_peace(app, process)
            await process.clock.sleep(self.lease)
            for number in range(_ROUNDS):
                worker = self._worker(app, process)
                process.worker = worker
                await worker.drain()
                self._count(worker)
                seconds = self._seconds_to_next()
                if seconds is None:
                    break
                await process.clock.sleep(seconds if number < _ROUNDS / 2 else seconds + 5.0)  # for a probe
            await app.close()
        finally:
            done.set()

    def declare(self, app: Redrive) -> None:
        """Say what workers write down when they begin."""

    async def make_peace(self, app: Redrive, process: Process) -> None:
        await make_peace(app, process)

    def _seconds_to_next(self) -> float | None:
        rows = self.disk.query(
            "select min(due_at) from redrive_outbox where status = 'pending' union all"
            " select 1 from redrive_outbox where status = 'in_flight' or (status = 'blocked' and blocked_on > '')"
            " or (status = 'cancelled' and session_id is not null)"  # it keeps its key until its session is gone
            " union all select 1 from redrive_redrive where state = 'running'"
            " union all select deadline_at from redrive_batch where final_at is null and deadline_at is not null"
        )
        times = [at for (at,) in rows if at is not None]
        return min(max((min(times) - self.disk.now) / 1e6, 0.0) + 0.5, 90.0) if times else None
