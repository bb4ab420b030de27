"""The watermark: where a claim on PostgreSQL starts to look.

Claimed events leave dead entries in the index of due events, and while anybody holds an old snapshot open they cannot
be removed: a scan from the left steps over all of them, every time (measured: from 15,800/s to 4,300/s in 50 s, and
falling). So each lane remembers how far its claims have come and starts there.

Rows may still appear to the left: published by a transaction that commits late. Such a transaction had its number (xid)
before it read the clock (``redrive.moment``), so numbers tell: each look takes one too, and when everything below the
number of a look at the instant T has ended (``xmin`` of a later snapshot), everything published before T was visible.
(Not ``xmax``: that is the last number that *ended*, and a lone writer's own is above it.)
``_Lane.clear`` is that bound; a look from there misses nothing. While a long writer holds it back, the near look
(50 ms) runs in between and the thorough one takes at most a twentieth of the time. A full look now and then is the net
for what no bound covers: a due time changed by hand, a server whose clock was set back, a claim that was rolled back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from redrive.store.base import DUE_AT, GENERATION, PRIORITY, QUEUE, Lane, Row

BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
NEAR: Final = timedelta(milliseconds=50)
FULL_EVERY_SECONDS: Final = 30.0
SHARE: Final = 20  # a costly look may take 1/20 of the time
_MOST_SAMPLES: Final = 1_000


@dataclass(slots=True)
class _Lane:
    key: Lane
    reached: datetime = BEGINNING  # claims have come this far
    clear: datetime = BEGINNING  # nothing unclaimed can stand before this


class Watermark:
    """Decides for each look where it starts, and learns from what it found."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = [_Lane(key) for key in lanes]
        self._samples: deque[tuple[int, datetime]] = deque()
        self._full_after = 0.0
        self._thorough_after = 0.0
        self._full = False
        self._thorough = False

    def starts(self, monotonic: float) -> list[datetime]:
        """Say where the next look starts in each lane."""
        self._full = monotonic >= self._full_after
        self._thorough = self._full or monotonic >= self._thorough_after
        if self._full:
            return [BEGINNING for _ in self._lanes]
        return [self._start(lane) for lane in self._lanes]

    def _start(self, lane: _Lane) -> datetime:
        near = max(lane.reached - NEAR, BEGINNING)
        return min(near, lane.clear) if self._thorough else near

    def learn(
        self,
        found: Sequence[Row],
        want: int,
        now: datetime,
        xids: tuple[int, int],
        took: float,
        monotonic: float,
    ) -> None:
        """Take in what a look from ``starts`` found, claimed or not; when it began, its xmin and xid, its cost."""
        ended_before = self._all_ended_before(now, *xids)
        for lane, reached in self._progress(found, want, now):
            scanned_from = BEGINNING if self._full else self._start(lane)
            if scanned_from <= lane.clear:
                lane.clear = max(lane.clear, min(reached, ended_before))
            lane.reached = max(lane.reached, reached) if not self._full else reached
        if self._full:
            self._full_after = monotonic + max(FULL_EVERY_SECONDS, 3 * SHARE * took)
        if self._thorough:
            self._thorough_after = monotonic + SHARE * took

    def _progress(self, found: Sequence[Row], want: int, now: datetime) -> list[tuple[_Lane, datetime]]:
        """How far each lane was looked through: to now, or to the last row taken when the hands were full."""
        if len(found) < want:
            return [(lane, now) for lane in self._lanes]
        last: dict[Lane, datetime] = {}
        for row in found:
            key = (row[QUEUE], row[PRIORITY], row[GENERATION])
            if key not in last or row[DUE_AT] > last[key]:
                last[key] = row[DUE_AT]
        progress: list[tuple[_Lane, datetime]] = []
        for (
            lane
        ) in self._lanes:  # in the order of the scan: whatever stands before the lane that filled the hands is empty
            if lane.key in last:
                reached = last.pop(lane.key)
                progress.append((lane, now if last else reached))
            elif last:
                progress.append((lane, now))
        return progress

    def _all_ended_before(self, now: datetime, xmin: int, number: int) -> datetime:
        """Find the latest instant whose transactions had all ended when this snapshot was taken."""
        self._samples.append((number, now))
        while len(self._samples) > 1 and self._samples[1][0] <= xmin:
            self._samples.popleft()
        if len(self._samples) > _MOST_SAMPLES:  # a writer stays open for long: a coarser bound is a bound too
            self._samples = deque(list(self._samples)[::2])
        first, at = self._samples[0]
        return at if first <= xmin else BEGINNING
