"""An event loop with virtual time, for several processes in one thread.

A *process* of the simulation has four lanes, as a real one has threads: its event loop, its writer, its heartbeat and
its pool. What belongs to which lane is told by the context of the callback. Within a lane callbacks run in their order;
which lane goes next is decided by the dice. When nothing is ready, time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio.events import Handle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

MAIN, WRITER, HEART, POOL = range(4)
_TICK = 2e-5  # seconds of virtual time that every callback takes, so that nobody spins for ever in one instant
_MOST_CALLBACKS = 120_000


class Stalled(Exception):
    """Nothing can ever happen again, or too much happens without an end."""


class Blocked(BaseException):
    """A job in the pool would have to wait, for a lock: it is done again when something was let go."""


class Over(BaseException):
    """The seed is over; thrown into what has not ended."""


class Call(Handle):
    """A callback; there are 1,500 in a seed, so without what asyncio keeps for its debug mode."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Loop, context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True


class Lane:
    """Callbacks of one thread of a process."""

    __slots__ = ("context", "is_held", "is_listed", "owner", "queue")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.queue: deque[Call] = deque()
        self.is_held = False
        self.is_listed = False
        self.context: Context = copy_context()
        self.context.run(LANE.set, self)


class Owner:
    """Whoever has lanes: a process, or the simulation itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.lanes = [Lane(self) for _ in range(4)]

    @property
    def main(self) -> Lane:
        return self.lanes[MAIN]


LANE: ContextVar[Lane] = ContextVar("lane")


class Loop(asyncio.BaseEventLoop):
    """Runs one callback at a time, of a lane that the dice choose."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._roll = dice.random
        self.now = 1_000.0
        self._listed: list[Lane] = []
        self._timers: list[tuple[float, int, Call]] = []
        self._timer_number = 0
        self._parked: list[Callable[[], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.callbacks = 0

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass for everybody, as when the machine was busy."""
        self.now += seconds

    # Taking callbacks in

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Call:  # type: ignore[override]
        call = Call(callback, args, self, context)
        lane: Lane = call._context[LANE]
        if not lane.owner.is_dead:
            lane.queue.append(call)
            if not lane.is_listed:
                lane.is_listed = True
                self._listed.append(lane)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Call:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Call:  # type: ignore[override]
        call = Call(callback, args, self, context)
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, call))
        return call

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do a job of the pool in this thread, as a later callback."""
        answer = self.create_future()
        lane = LANE.get().owner.lanes[POOL]
        self.call_soon(self._work, lane, answer, func, args, context=lane.context)
        return answer

    def _work(self, lane: Lane, answer: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except Blocked:
            self.park(lambda: self.call_soon(self._work, lane, answer, func, args, context=lane.context))
        except BaseException as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self, **options)
        self.tasks.append(task)
        return task

    # Those who wait for a lock

    def park(self, again: Callable[[], Any]) -> None:
        """Have something tried again when somebody lets go of something."""
        self._parked.append(again)

    def let_go(self) -> None:
        """Wake all who wait for a lock."""
        if self._parked:
            parked, self._parked = self._parked, []
            for again in parked:
                again()

    # Lanes

    def hold(self, lane: Lane) -> None:
        """Run nothing of a lane until it is resumed."""
        lane.is_held = True

    def resume(self, lane: Lane) -> None:
        lane.is_held = False
        if lane.queue and not lane.is_listed:
            lane.is_listed = True
            self._listed.append(lane)

    def drop(self, owner: Owner) -> None:
        """Forget everything that a dead process would have done."""
        owner.is_dead = True
        for lane in owner.lanes:
            lane.queue.clear()

    def _put(self, call: Call) -> None:
        lane: Lane = call._context[LANE]
        if lane.owner.is_dead:
            return
        lane.queue.append(call)
        if not lane.is_listed:
            lane.is_listed = True
            self._listed.append(lane)

    # Running

    def _run_once(self) -> None:
        """Run until it is told to stop; asyncio would call this once for every callback."""
        timers, listed, roll, run, pop = self._timers, self._listed, self._roll, self._run, heapq.heappop
        while not self._stopping:  # type: ignore[attr-defined]
            self.now += _TICK
            while timers and (timers[0][0] <= self.now or timers[0][2]._cancelled):
                call = pop(timers)[2]
                if not call._cancelled:
                    self._put(call)
            while listed:
                place = int(roll() * len(listed)) if len(listed) > 1 else 0
                lane = listed[place]
                if lane.queue and not lane.is_held:
                    call = lane.queue.popleft()
                    if not call._cancelled:
                        run(call)
                    break
                lane.is_listed = False
                listed[place] = listed[-1]
                listed.pop()
            else:
                if not timers:
                    raise Stalled("nothing is ready, and no timer is set")
                self.now = max(self.now, timers[0][0])

    def _run(self, call: Call) -> None:
        self.callbacks += 1
        if self.callbacks > _MOST_CALLBACKS:
            raise Stalled(f"{_MOST_CALLBACKS} callbacks, and no end: the last one was {call._callback!r}")
        try:
            call._context.run(call._callback, *call._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"in {call._callback!r}", "exception": error})

    def _process_events(self, event_list: Any) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """There is nobody to wake."""

    def bury(self) -> None:
        """End what dead processes have left unfinished: nothing of it reaches the file any more."""
        asyncio._set_running_loop(self)
        try:
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    _end(task.get_coro())
                elif not task.cancelled():
                    task.exception()
        finally:
            asyncio._set_running_loop(None)
        self.tasks.clear()
        self._listed.clear()
        self._timers.clear()
        self._parked.clear()


def _end(coroutine: Any) -> None:
    """Throw it out of wherever it waits, as often as it takes."""
    for _ in range(100):
        try:
            coroutine.throw(Over())
        except BaseException:
            return
    raise Stalled(f"{coroutine!r} does not end")
