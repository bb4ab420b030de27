"""Hands: what a worker holds between claim and settle, and every way in which an event leaves it.

Whatever was claimed is *held* until its end is written down. It waits until a slot is free, runs, and what became of
it lies in ``finished`` for the next turn. Of two claims of one event only the later counts: a handler that was given up
and ends all the same finds that its row is not ours any more.

Next: ``worker`` writes down what has finished.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from redrive.attempt import Attempt
from redrive.circuit import Circuits
from redrive.clock import Clock
from redrive.counts import Counts, Tally
from redrive.deliver import Handler
from redrive.event import Settlement
from redrive.store.base import CREATED_AT, CYCLE, DEADLINE_AT, ID, ORDERING_KEY, Finished, Row, seconds_of

_ASIDE_SECONDS: Final = 0.25


class Hands:
    """The events of one worker."""

    def __init__(self, clock: Clock, circuits: Circuits, tally: Tally, counts: Counts) -> None:
        self.held: dict[Any, Row] = {}
        self.waiting: deque[Row] = deque()
        self.running: dict[Any, Attempt] = {}
        self.finished = Finished()
        self.aside = Finished()  # ends that cannot be written while somebody else's transaction holds a lock
        self._aside_until = 0.0
        self.buried: dict[Any, tuple[Row, Settlement]] = {}  # dead letters that the next turn writes down
        self.alone: Row | None = None  # it may kill us, and gets its last chance when nothing else is held
        self.alone_running = False
        self.key_freed = False  # the next of an ordering key may be due by now
        self.due_at = 0.0  # when the next one that we know of comes due, in our monotonic time
        self.store_ahead = 0.0  # of our monotonic time
        self.bell = asyncio.Event()  # rung when there is something to do
        self._clock = clock
        self._circuits = circuits
        self._tally = tally
        self._counts = counts

    def next(self) -> Row | None:
        """Pick the next event to run; one that may kill the worker only when nothing else is held."""
        if self.alone is not None:
            if self.alone_running or len(self.held) - len(self.aside) > 1:
                return None
            self.alone_running = True
            return self.alone
        return self.waiting.popleft() if self.waiting else None

    def over(self, row: Row) -> None:
        """Note that an attempt has ended: if it was the one that had to be alone, others may go on."""
        if row is self.alone:
            self.alone, self.alone_running = None, False

    def is_ours(self, row: Row) -> bool:
        """Tell a live attempt from one that was given up, whose handler came to an end all the same."""
        return self.held.get(row[ID]) is row

    def seconds_left(self, handler: Handler, row: Row) -> float | None:
        """How long until its deadline, by the store's clock. A replay is somebody's decision and has no deadline."""
        ends = [] if row[DEADLINE_AT] is None else [seconds_of(row[DEADLINE_AT])]
        if handler.deadline is not None and row[CYCLE] == 0:
            ends.append(seconds_of(row[CREATED_AT]) + handler.deadline)
        return min(ends) - self._clock.monotonic() - self.store_ahead if ends else None

    # Ends, for the next turn

    def delivered(self, row: Row) -> None:
        if not self.is_ours(row):
            return
        self._tally.delivered += 1
        self._circuits.passed(row)
        self.finished.delivered.append(row)

    def blocked(self, row: Row, settlement: Settlement) -> None:
        if self.is_ours(row):
            self._tally.blocked += 1
            self._counts.settled(row, settlement)
            self.finished.settlements.append(settlement)

    def put_off(self, settlement: Settlement) -> None:
        self.finished.settlements.append(settlement)

    def bury(self, row: Row, settlement: Settlement) -> None:
        self.buried[row[ID]] = (row, settlement)
        self.finished.settlements.append(settlement)

    def hand_back(self, row: Row) -> None:
        """Return it at once, for another to run."""
        if self.is_ours(row):
            self._tally.put_back += 1
            self._circuits.let_go(row)
            self.finished.put_back.append((row, 0.0))

    def hand_back_later(self, row: Row, seconds: float) -> None:
        """Return it for a while."""
        if self.is_ours(row):
            self._circuits.let_go(row)
            self.finished.put_back.append((row, seconds * (0.75 + 0.5 * self._clock.random())))

    # Ends that are written down already

    def settled(self, row: Row) -> None:
        """Let go: the handler's own transaction has written it down."""
        self._tally.delivered += 1
        self._counts.delivered([row], self._clock.monotonic() + self.store_ahead)
        self._circuits.passed(row)
        self.key_freed = self.key_freed or row[ORDERING_KEY] is not None
        self.release(row)

    def release(self, row: Row) -> None:
        """Take one attempt's row out of the hands, and never a later claim of the same event."""
        if self.is_ours(row):
            del self.held[row[ID]]

    def let_go(self, written: Iterable[Any]) -> None:
        for event_id in written:
            self.held.pop(event_id, None)

    # Turns

    @property
    def busy(self) -> Mapping[Any, Row]:
        """The events that wait or run here: held, and not merely waiting for somebody else's lock."""
        if not len(self.aside):
            return self.held
        over = set(self.aside.ids)
        return {event_id: row for event_id, row in self.held.items() if event_id not in over}

    @property
    def busy_count(self) -> int:
        """How many events wait or run here."""
        return len(self.held) - len(self.aside)

    @property
    def aside_seconds(self) -> float | None:
        """How long until ends that were set aside are tried again; None: there are none."""
        return max(0.0, self._aside_until - self._clock.monotonic()) if len(self.aside) else None

    @property
    def has_ends(self) -> bool:
        """Whether there is something to write down now."""
        return len(self.finished) > 0 or self.aside_seconds == 0.0

    def collect(self) -> Finished:
        """Hand over what has finished, and what was set aside when its time has come."""
        if self.aside_seconds == 0.0:
            self.keep(self.aside)
            self.aside = Finished()
        batch, self.finished = self.finished, Finished()
        return batch

    def set_aside(self, batch: Finished) -> None:
        """Keep ends that somebody else's lock held up apart from the others, and try them again soon."""
        aside = self.aside
        self.aside = Finished(
            aside.delivered + batch.delivered, aside.settlements + batch.settlements, aside.put_back + batch.put_back
        )
        self._aside_until = self._clock.monotonic() + _ASIDE_SECONDS

    def keep(self, batch: Finished) -> None:
        """Take results back that could not be written; they go first in the next turn."""
        later = self.finished
        self.finished = Finished(
            batch.delivered + later.delivered,
            batch.settlements + later.settlements,
            batch.put_back + later.put_back,
        )

    def due_in(self, seconds: float) -> None:
        """Remember that something comes due so soon."""
        self.due_at = min(self.due_at, self._clock.monotonic() + seconds)

    def drop_waiting(self) -> None:
        """Forget what was not started."""
        self.waiting.clear()
        self.alone, self.alone_running = None, False

    def drop_all(self) -> None:
        """Forget everything: others have it."""
        self.finished, self.aside = Finished(), Finished()
        self.held.clear()
        self.buried.clear()
