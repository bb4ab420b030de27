"""Attempt: one running try, and the watch over those whose time is limited.

An attempt is first told to stop: an ``async def`` handler is cancelled, the child process of an isolated one is killed,
a ``def`` handler in a thread can only be asked (``ctx.cancelled``). One that has not ended some seconds later is given
up: its event is settled without it, and whatever it still does it can settle nothing.

Next: ``settle``.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from redrive.deliver import Handler
from redrive.errors import AttemptStopped
from redrive.store.base import Row

_NEVER: Final = float("inf")
_LEAST_PAUSE: Final = 0.01  # seconds between two looks: thousands of limits may end in the same instant


class Killable(Protocol):
    """What an attempt needs to know of its child process."""

    def kill(self) -> None: ...


class Attempt:
    """One handler at work on one event."""

    __slots__ = (
        "_cancels",
        "_pauses",
        "_rest",
        "_watch",
        "child",
        "ends",
        "given_up",
        "handler",
        "is_last",
        "is_over",
        "row",
        "settled",
        "task",
        "until",
        "why",
    )

    def __init__(self, row: Row, handler: Handler, task: asyncio.Task[None]) -> None:
        self.row = row
        self.handler = handler
        self.task = task
        self.child: Killable | None = None
        self.until = 0.0  # in the event loop's time; 0 as long as nothing limits it
        self.ends = _NEVER  # when the deadline of the event passes, in the event loop's time
        self.is_last = False  # whether the limit is the deadline of the event, not the timeout of the attempt
        self.is_over = False
        self.why: AttemptStopped | None = None
        self.given_up = False
        self.settled = False  # by the transaction of a child process
        self._cancels = 0
        self._watch: Watch | None = None
        self._pauses = 0
        self._rest = 0.0

    @property
    def runs_in_thread(self) -> bool:
        return not self.handler.is_async and self.handler.isolation is None

    def tell(self, why: AttemptStopped) -> None:
        """Ask the handler to stop, as plainly as its kind allows."""
        self.why = why
        if self.child is not None:
            self.child.kill()
        elif not self.runs_in_thread:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task that runs it."""
        self._cancels += 1
        self.task.cancel()

    def calm(self) -> None:
        """Take our cancellations back, so that the next handler in this task starts afresh."""
        while self._cancels:
            self._cancels -= 1
            self.task.uncancel()

    # What it waits for a connection of ours is not its own time

    def pause(self) -> None:
        """Stop the timeout; the deadline of the event goes on. From several tasks: until all have resumed."""
        if self._watch is None:
            return
        self._pauses += 1
        if self._pauses == 1 and self._is_timed:
            self._rest = self._watch.stop(self)

    def resume(self) -> None:
        """Let the timeout go on with the time that was left."""
        if self._watch is None or self._pauses == 0:
            return
        self._pauses -= 1
        if self._pauses == 0 and self._is_timed and self._rest:
            self._watch.go_on(self, self._rest)
            self._rest = 0.0

    @property
    def _is_timed(self) -> bool:
        return self.why is None and not self.is_over

    def watched_by(self, watch: "Watch", ends: float) -> None:
        self._watch, self.ends = watch, ends


class Watch:
    """One timer for all attempts with a time limit.

    A limit mostly ends unused: an entry in a set costs 0.2 µs, a timer of the event loop 2 µs.
    """

    def __init__(self, overdue: Callable[[Attempt], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._overdue = overdue
        self._attempts: set[Attempt] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._at = float("inf")

    def add(self, attempt: Attempt, seconds: float) -> None:
        """Call back when the attempt is still there after so long."""
        attempt.until = self._loop.time() + seconds
        self._attempts.add(attempt)
        if attempt.until < self._at:
            self._look_at(attempt.until)

    def limit(self, attempt: Attempt, seconds: float, left: float | None) -> None:
        """Set the time limit of an attempt, and how long is left until the deadline of its event."""
        ends = _NEVER if left is None else self._loop.time() + left
        attempt.watched_by(self, ends)
        self.go_on(attempt, seconds)

    def stop(self, attempt: Attempt) -> float:
        """Take the timeout off an attempt; return what is left of it. 0: its deadline comes first, and stays."""
        if attempt.is_last:
            return 0.0
        rest, attempt.is_last = max(attempt.until - self._loop.time(), _LEAST_PAUSE), True
        if attempt.ends == _NEVER:
            self.discard(attempt)
        else:
            self.add(attempt, attempt.ends - self._loop.time())
        return rest

    def go_on(self, attempt: Attempt, seconds: float) -> None:
        """Put the timeout on an attempt, or its deadline if that comes first."""
        left = attempt.ends - self._loop.time()
        attempt.is_last = left <= seconds
        self.add(attempt, min(left, seconds))

    def discard(self, attempt: Attempt) -> None:
        self._attempts.discard(attempt)

    def late(self, seconds: float) -> list[Attempt]:
        """Say what should have been called back for so long ago: the event loop is blocked. Asked by other threads."""
        before = self._loop.time() - seconds
        return [attempt for attempt in tuple(self._attempts) if attempt.until < before]

    def close(self) -> None:
        self._attempts.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self._at = float("inf")
        for attempt in [each for each in self._attempts if each.until <= now]:
            self._attempts.discard(attempt)
            self._overdue(attempt)
        if self._attempts:
            self._look_at(max(min(each.until for each in self._attempts), now + _LEAST_PAUSE))

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = when
        self._timer = self._loop.call_at(when, self._look)
