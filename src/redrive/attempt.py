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

_LEAST_PAUSE: Final = 0.01  # seconds between two looks: thousands of limits may end in the same instant


class Killable(Protocol):
    """What an attempt needs to know of its child process."""

    def kill(self) -> None: ...


class Attempt:
    """One handler at work on one event."""

    __slots__ = (
        "_cancels",
        "child",
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
        self.is_last = False  # whether the limit is the deadline of the event, not the timeout of the attempt
        self.is_over = False
        self.why: AttemptStopped | None = None
        self.given_up = False
        self.settled = False  # by the transaction of a child process
        self._cancels = 0

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
