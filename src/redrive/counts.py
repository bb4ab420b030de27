"""Counts: what the workers of this process have seen, in plain numbers.

Deliveries are counted a turn at a time, from the rows that were just written down, and failures where they are settled:
a delivered event pays less than a microsecond. Whoever is asked for metrics reads them; nothing here knows how they are
shown. Names are bounded: after so many types, all further ones count as ``other``.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from operator import itemgetter
from typing import Any, Final

from redrive.event import Outcome, Settlement, Status
from redrive.store.base import ATTEMPTS, CREATED_AT, CYCLE, LOST_COUNT, TYPE, Row, seconds_of

OTHER: Final = "other"
MOST_NAMES: Final = 200
RUN_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TURN_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
RECOVERY_BOUNDS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0)
_SHORT: Final = RUN_BOUNDS[0]
_TYPE: Final = itemgetter(TYPE)


@dataclass(slots=True)
class Tally:
    """What a worker has done since it started."""

    claimed: int = 0
    delivered: int = 0
    retried: int = 0
    deferred: int = 0
    blocked: int = 0
    dead_lettered: int = 0
    deduplicated: int = 0
    put_back: int = 0
    swept: int = 0
    leases_lost: int = 0
    timed_out: int = 0
    cancelled: int = 0
    throttled: int = 0
    left_behind: int = 0  # given up while the handler went on: deaf to cancellation, or in a thread
    waited_for_key: int = 0  # given back because another transaction had the idempotency key
    unknown_targets: dict[str, int] = field(default_factory=dict)


class Histogram:
    """How many values lie in each range, and what they add up to."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def quantile(self, share: float) -> float:
        """Name the bound below which this share of the values lies; infinite when it is above all of them."""
        wanted, seen = share * self.count, 0
        for bound, number in zip((*self.bounds, float("inf")), self.buckets, strict=True):
            seen += number
            if seen >= wanted:
                return bound
        return float("inf")


class _Runs(dict[str, Histogram]):
    """How long handlers took, by target."""

    def __missing__(self, target: str) -> Histogram:
        shown = target if len(self) < MOST_NAMES else OTHER
        return self.setdefault(shown, Histogram(RUN_BOUNDS))


class Counts:
    """The numbers of one process; an app's workers share them."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str, str]] = Counter()  # by type, outcome, error class
        self.at_once: Counter[str] = Counter()  # delivered by the first attempt, by type
        self.recovered: Counter[tuple[str, str]] = Counter()  # by type, and by what
        self.dead_lettered: Counter[tuple[str, str]] = Counter()  # by type, error class
        self.hooks_failed: Counter[tuple[str, str]] = Counter()  # by target, and which hook
        self.recovery = {by: Histogram(RECOVERY_BOUNDS) for by in ("retry", "replay")}
        self.runs = _Runs()
        self.turns = Histogram(TURN_BOUNDS)
        self.reconciled: Counter[tuple[str, str]] = Counter()  # runs by reconciler, outcome
        self._types: dict[str, str] = {}
        self._past = Tally()
        self._following: list[tuple[Tally, Tally]] = []

    def delivered(self, rows: Sequence[Row], now: float) -> None:
        """Count what was written down as delivered, at this time of the store."""
        for type_, number in Counter(map(_TYPE, rows)).items():
            name = self._name(type_)
            self.attempts[name, Outcome.DELIVERED.value, ""] += number
            self.at_once[name] += number
        for row in [each for each in rows if each[ATTEMPTS] > 1 or each[CYCLE] or each[LOST_COUNT]]:
            name, by = self._name(row[TYPE]), "replay" if row[CYCLE] else "retry"
            self.at_once[name] -= 1
            self.recovered[name, by] += 1
            self.recovery[by].add(max(0.0, now - seconds_of(row[CREATED_AT])))

    def settled(self, row: Row, settlement: Settlement) -> None:
        """Count an attempt that did not succeed."""
        name = self._name(row[TYPE])
        self.attempts[name, settlement.outcome.value, settlement.error_class] += 1
        if settlement.status is Status.FAILED:
            self.dead_lettered[name, settlement.error_class] += 1

    def ended(self, row: Row, outcome: Outcome) -> None:
        """Count an attempt that nobody settles: its event was called off, or its worker is gone."""
        self.attempts[self._name(row[TYPE]), outcome.value, ""] += 1

    def ran(self, target: str, seconds: float) -> None:
        """Count how long a handler took, however it ended. By hand: this is on the way of every event."""
        runs = self.runs[target]
        runs.buckets[0 if seconds <= _SHORT else bisect_left(RUN_BOUNDS, seconds)] += 1
        runs.total += seconds

    def _name(self, type_: str) -> str:
        name = self._types.get(type_)
        if name is None:
            if len(self._types) >= MOST_NAMES:
                return OTHER
            name = self._types[type_] = type_
        return name

    @contextmanager
    def following(self, tally: Tally) -> Iterator[None]:
        """Add up what a worker does from here on with what others have done."""
        entry = (tally, replace(tally, unknown_targets=dict(tally.unknown_targets)))
        self._following.append(entry)
        try:
            yield
        finally:
            self._following.remove(entry)
            _add(self._past, *entry)

    @property
    def together(self) -> Tally:
        """What all workers of this process have done."""
        total = replace(self._past, unknown_targets=dict(self._past.unknown_targets))
        for tally, before in self._following:
            _add(total, tally, before)
        return total


def _add(total: Tally, tally: Tally, before: Tally) -> None:
    for each in fields(Tally):
        now: Any = getattr(tally, each.name)
        was: Any = getattr(before, each.name)
        if isinstance(now, int):
            setattr(total, each.name, getattr(total, each.name) + now - was)
    for target, number in tally.unknown_targets.items():
        shown = target if target in total.unknown_targets or len(total.unknown_targets) < MOST_NAMES else OTHER
        more = number - before.unknown_targets.get(target, 0)
        total.unknown_targets[shown] = total.unknown_targets.get(shown, 0) + more
