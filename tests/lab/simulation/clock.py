"""The clock of one process of the simulation: it follows the loop, with a skew of its own and the jumps of all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from redrive.clock import VirtualClock
from redrive.instant import from_micros
from tests.lab.simulation.loop import Loop

_START = 1_893_456_000  # the year 2030


@dataclass(slots=True)
class Wall:
    """The wall clock of the machine; an administrator may set it."""

    offset: float = 0.0


class SimClock(VirtualClock):
    """Time is the loop's; chance follows from the seed."""

    def __init__(self, loop: Loop, wall: Wall, seed: int, skew: float) -> None:
        super().__init__(seed=seed)
        self._loop = loop
        self._wall = wall
        self._skew = skew

    @property
    def micros(self) -> int:
        return int((_START + self._loop.now + self._wall.offset + self._skew) * 1e6)

    def now(self) -> datetime:
        return from_micros(self.micros)

    def monotonic(self) -> float:
        return self._loop.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def pause(self, seconds: float) -> None:
        self._loop.pass_time(seconds)

    def new_id(self) -> UUID:
        return self._ids.next(self.micros // 1_000)
