"""Throttle: how many attempts at one target run at once, and how many start in a span of time, over all workers.

A claimed event of a throttled target runs when there is a permit for it. Permits are given under the lock of the
target's row: as many as its rate has earned since the last one, at most what a fifth of a second earns, and as many as
are not in use. A worker says how many it holds, so that those of one that is gone come free with its session. An event
without a permit waits, ``blocked`` under the name of its lane and target, and spends no attempt; whoever gets the next
permits takes the first who wait. Nobody tries in vain, however many wait, and a new limit holds for all at once.

A target whose handler runs in a child process passes here with or without a limit: a worker takes as many as keep its
children busy, and the others wait where a worker with a free child finds them, instead of in the hands of this one.
"""

import asyncio
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from redrive.clock import Clock
from redrive.errors import LockHeld
from redrive.event import THROTTLE
from redrive.instant import instant_of
from redrive.rate import Rate
from redrive.store.base import (
    FENCE,
    GENERATION,
    ID,
    PRIORITY,
    QUEUE,
    TARGET,
    Lane,
    Row,
    Store,
    Transaction,
    claimed_row,
)

HELD_SECONDS: Final = 2.0
"""How long the limits of a target are left alone whose row somebody else's transaction holds."""

_LOOK_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 1.0
_LOOSEN_SECONDS: Final = 5.0
_LOOSEN_CHUNK: Final = 500
_LEAST_PAUSE: Final = 0.01
_ROUNDING: Final = 1e-6
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Throttle:
    """The limits of one target; nothing: none."""

    concurrency: int | None = None
    rate: Rate | None = None

    def permits(self, free_at: datetime, now: datetime, used: int) -> int:
        """How many may start now, when so many are running and the rate's permits are given away until then."""
        unused = _MOST if self.concurrency is None else self.concurrency - used
        return max(0, min(unused, self.permits_of_rate(free_at, now)))

    def permits_of_rate(self, free_at: datetime, now: datetime) -> int:
        """How many the rate alone would let start now."""
        if self.rate is None:
            return _MOST
        given = max(0.0, (free_at - now).total_seconds()) * self.rate.per_second
        return max(0, math.floor(self.rate.burst - given + _ROUNDING))

    def given(self, free_at: datetime, now: datetime, count: int) -> datetime:
        """Until when permits are given away after so many more."""
        if self.rate is None:
            return free_at
        return max(free_at, now) + timedelta(seconds=count / self.rate.per_second)

    def seconds_to_next(self, free_at: datetime, now: datetime) -> float:
        """When it is worth to ask again: half of what may start at once has been earned by then."""
        if self.rate is None:
            return 0.0
        ahead = (self.rate.burst - math.ceil(self.rate.burst / 2)) / self.rate.per_second
        return max(0.0, (free_at - now).total_seconds() - ahead)


@dataclass(slots=True)
class Admitted:
    """What became of one look at a target."""

    running: list[Row] = field(default_factory=list)  # those that have arrived and may run
    taken: list[Row] = field(default_factory=list)  # those that have waited and may run
    waiting: list[Row] = field(default_factory=list)  # those that have arrived and wait now


@dataclass(slots=True)
class _Gate:
    """What one worker knows of one throttled target."""

    throttle: Throttle
    arrived: dict[Any, Row] = field(default_factory=dict)
    holding: dict[Any, Row] = field(default_factory=dict)
    told: int | None = None  # how many permits the others believe we hold
    look_at: float = 0.0
    held_until: float = 0.0  # somebody else's transaction holds its row
    wants_hands: bool = False


class Throttles:
    """One worker's view of the targets it may not run as it likes."""

    def __init__(
        self, store: Store, clock: Clock, targets: Iterable[str], lanes: Sequence[Lane],
        apart: Container[str] = (), most_apart: int = 0,
    ) -> None:  # fmt: skip
        self.news = asyncio.Event()
        self._apart = apart
        self._most_apart = most_apart
        self._store = store
        self._clock = clock
        self._lanes = lanes
        self._target_of = {_name(lane, target): target for target in targets for lane in lanes}
        self._gates: dict[str, _Gate] = {}
        self._loosen_at = 0.0

    def limit(self, throttles: Mapping[str, Throttle], held: Mapping[Any, Row]) -> list[Row]:
        """Take over new limits; return the events that were about to ask for a permit and need none any more."""
        loose = [
            row for target, gate in self._gates.items() if target not in throttles for row in gate.arrived.values()
        ]
        for target in self._gates.keys() - throttles.keys():
            del self._gates[target]
        for target, throttle in throttles.items():
            gate = self._gates.get(target)
            if gate is None:  # what runs already goes on, and counts
                running = {row[ID]: row for row in held.values() if row[TARGET] == target}
                self._gates[target] = _Gate(throttle, holding=running)
            else:
                gate.throttle, gate.told, gate.look_at = throttle, None, 0.0
        self._loosen_at = 0.0
        self.news.set()
        return loose

    def arrive(self, row: Row, *, is_probe: bool = False) -> bool:
        """Take a claimed event that needs a permit; false: it needs none. A probe is one, and asks no rate for that."""
        if not self._gates or row[TARGET] not in self._gates:
            return False
        gate = self._gates[row[TARGET]]
        if is_probe and gate.throttle.concurrency is None:
            return False
        gate.arrived[row[ID]] = row
        self.news.set()
        return True

    def look(self, held: Mapping[Any, Row], hands: int) -> None:
        """See which permits have come free, and whether there are hands for those who wait."""
        for target, gate in self._gates.items():
            gone = [key for key, row in gate.holding.items() if held.get(key) is not row]
            for key in gone:
                del gate.holding[key]
            has_hands = gate.wants_hands and self._hands_for(target, hands) > 0
            if has_hands or (gone and gate.throttle.concurrency is not None):
                gate.look_at = 0.0
                self.news.set()

    def leave(self, target: str | None = None) -> list[Row]:
        """Give back the events that have no permit yet, of one target or of all."""
        gates = [gate for name, gate in self._gates.items() if target in (None, name)]
        rows = [row for gate in gates for row in gate.arrived.values()]
        for gate in gates:
            gate.arrived.clear()
        return rows

    def drop(self, row: Row) -> bool:
        """Forget one that was called off while it had no permit; false: it was not here."""
        gate = self._gates.get(row[TARGET])
        return gate is not None and gate.arrived.pop(row[ID], None) is not None

    def begin_anew(self) -> None:
        """Forget everything that belonged to the session before."""
        for gate in self._gates.values():
            gate.arrived.clear()
            gate.holding.clear()
            gate.told, gate.look_at = None, 0.0

    def _hands_for(self, target: str, hands: int) -> int:
        """How many more of a target could run here: of all that need a child, as many as keep the children busy."""
        if target not in self._apart:
            return hands
        taken = sum(len(gate.holding) for name, gate in self._gates.items() if name in self._apart)
        return min(hands, self._most_apart - taken)

    @property
    def has_arrivals(self) -> bool:
        """Whether an event asks for a permit."""
        return any(gate.arrived for gate in self._gates.values())

    def due(self, *, every: bool = False) -> list[str]:
        """Which targets are to be looked at now."""
        self.news.clear()
        now = self._clock.monotonic()
        return [target for target, gate in self._gates.items() if every or gate.arrived or gate.look_at <= now]

    def pause(self) -> float:
        """For how many seconds there is nothing to look at."""
        now = self._clock.monotonic()
        looks = [gate.look_at for gate in self._gates.values()]
        return max(0.0, min([*looks, self._loosen_at]) - now)

    # In the database

    async def admit(self, target: str, session: UUID, hands: int, paused: Container[str] = ()) -> Admitted:
        """Let in as many of a target as its limits and our free hands allow; the others wait, and paused queues."""
        gate = self._gates[target]
        if self._clock.monotonic() < gate.held_until:
            raise LockHeld(f"another transaction holds the limits of {target}")
        try:
            return await self._admitted(gate, target, session, hands, paused)
        except LockHeld:
            gate.held_until = gate.look_at = self._clock.monotonic() + HELD_SECONDS
            raise

    async def _admitted(self, gate: _Gate, target: str, session: UUID, hands: int, paused: Container[str]) -> Admitted:
        hands = self._hands_for(target, hands)
        names = [_name(lane, target) for lane in self._lanes if lane[0] not in paused]
        if self._is_quiet(gate):
            gate.look_at = self._clock.monotonic() + _IDLE_SECONDS
            gate.wants_hands = hands <= 0
            if gate.wants_hands or not await self._store.ask("throttle_waiting", names=names):
                return Admitted()
        arrived = dict(gate.arrived)
        told, gate.told = gate.told, None  # unless we hear otherwise
        async with self._store.transaction() as tx:
            free_at, now, used = await _standing(tx, target, session)
            holding = len(gate.holding)
            allowed = min(gate.throttle.permits(free_at, now, used + holding), max(0, hands))
            waiting = [row["name"] for row in await tx.run("throttle_waiting", names=names)]
            admitted = await _pick(tx, session, names, waiting, arrived.values(), allowed)
            count = len(admitted.running) + len(admitted.taken)
            free_at = gate.throttle.given(free_at, now, count)
            if count and gate.throttle.rate is not None:
                await tx.run("throttle_write", target=target, free_at=free_at)
            if gate.throttle.concurrency is not None and told != holding + count:
                await tx.run("throttle_use", target=target, session=session, used=holding + count)
        gate.told = holding + count
        admitted.running = [row for row in admitted.running if row[ID] in gate.arrived]  # unless called off meanwhile
        for key in arrived:
            gate.arrived.pop(key, None)
        gate.holding.update({row[ID]: row for row in (*admitted.running, *admitted.taken)})
        self._look_again(gate, hands - count, free_at, now, is_waited=bool(waiting or admitted.waiting))
        return admitted

    def _is_quiet(self, gate: _Gate) -> bool:
        in_step = gate.throttle.concurrency is None or gate.told == len(gate.holding)
        return not gate.arrived and in_step

    def _look_again(self, gate: _Gate, hands: int, free_at: datetime, now: datetime, *, is_waited: bool) -> None:
        """Decide when to look next: when the rate has earned something; what others give back we see in passing."""
        gate.wants_hands = is_waited and hands <= 0
        pause = _IDLE_SECONDS
        if is_waited:
            earned = gate.throttle.permits_of_rate(free_at, now) > 0
            pause = _LOOK_SECONDS if earned or hands <= 0 else gate.throttle.seconds_to_next(free_at, now)
        gate.look_at = self._clock.monotonic() + min(max(pause, _LEAST_PAUSE), _LOOSEN_SECONDS)

    async def loosen(self, *, at_once: bool = False) -> int:
        """Let those go who wait for a limit that is no more; say how many. Looks now and then, or ``at_once``."""
        if self._clock.monotonic() < self._loosen_at and not at_once:
            return 0
        gone = 0
        for row in await self._store.ask("waited_for"):
            target = self._target_of.get(row["name"])
            if target is not None and target not in self._gates:
                async with self._store.transaction() as tx:
                    gone += len(await tx.run("unblock", name=row["name"], limit=_LOOSEN_CHUNK))
        if self._gates and not gone:
            with suppress(LockHeld):
                async with self._store.transaction() as tx:
                    await tx.run("throttle_forget")
        self._loosen_at = self._clock.monotonic() + (0.1 if gone else _LOOSEN_SECONDS)
        return gone


def _name(lane: Lane, target: str) -> str:
    """Under which name events of a lane wait; as throttle_wait.sql writes it."""
    queue, priority, generation = lane
    return f"{THROTTLE}{priority}:{generation}:{queue}:{target}"


async def _standing(tx: Transaction, target: str, session: UUID) -> tuple[datetime, datetime, int]:
    (locked,) = await tx.run("throttle_lock", target=target)
    (row,) = await tx.run("throttle_used", target=target, session=session)
    return _instant(locked["free_at"]), _instant(row["now"]), row["used"]


async def _pick(
    tx: Transaction, session: UUID, names: Iterable[str], waiting: Sequence[str], arrived: Iterable[Row],
    allowed: int,
) -> Admitted:  # fmt: skip
    """Give permits lane by lane, first to those who have waited, then to those who have just come."""
    picked = Admitted()
    come: dict[str, list[Row]] = {}
    for row in arrived:
        come.setdefault(_name((row[QUEUE], row[PRIORITY], row[GENERATION]), row[TARGET]), []).append(row)
    for name in names:
        if allowed > 0 and name in waiting:
            rows = await tx.run("throttle_take", name=name, session=session, limit=allowed)
            picked.taken += [claimed_row(tuple(row.values())) for row in rows]
            allowed -= len(rows)
        mine = come.pop(name, [])
        picked.running += mine[:allowed]
        picked.waiting += mine[allowed:]
        allowed -= min(allowed, len(mine))
    picked.waiting += [row for rows in come.values() for row in rows]  # of no lane of ours: others will take them
    if picked.waiting:
        await tx.run(
            "throttle_wait",
            ids=[row[ID] for row in picked.waiting],
            fences=[row[FENCE] for row in picked.waiting],
            leases=[f"{row[ID]}:{row[FENCE]}" for row in picked.waiting],
        )
    return picked


def _instant(value: Any) -> datetime:
    return instant_of(value)
