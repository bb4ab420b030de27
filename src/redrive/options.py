"""Options: how a worker works, and what it refuses to work with."""

import os
from dataclasses import dataclass
from typing import Final

from redrive import check
from redrive.errors import ConfigurationError
from redrive.event import Priority
from redrive.mask import DEFAULT as DEFAULT_MASK
from redrive.mask import Mask
from redrive.store.base import Lane

_CORES: Final = os.cpu_count() or 1
_MOST_AT_ONCE: Final = 100_000
_FOR_EACH_CHILD: Final = 8  # events in hand, so that it need not wait for the database after each


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works; spans in seconds."""

    concurrency: int = 100
    queues: tuple[str, ...] = ("default",)
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    drain_seconds: float = 30.0
    max_lost: int = 5
    children: int | None = None
    unknown_delay_seconds: float = 30.0
    stall_seconds: float = 900.0
    generation: int = 0
    name: str = ""
    mask: Mask = DEFAULT_MASK

    def lanes(self) -> list[Lane]:
        """List what it claims, first things first; of each, its own generation and what has none."""
        generations = dict.fromkeys((self.generation, 0))
        return [(queue, each.value, of) for each in Priority for queue in self.queues for of in generations]

    @property
    def most_children(self) -> int:
        return self.children or _CORES

    @property
    def most_apart(self) -> int:
        """How many events that need a child it takes at once: enough to keep all busy, with hands left for others."""
        return max(self.most_children, min(_FOR_EACH_CHILD * self.most_children, self.concurrency // 2))

    def check(self) -> None:
        """Refuse what cannot work."""
        check.whole(self.concurrency, "concurrency", 1, _MOST_AT_ONCE)
        if not check.texts(self.queues, "queues", like="default"):
            raise ConfigurationError("queues takes at least one queue: queues=['default']")
        check.seconds(self.lease_seconds, "lease", 1.0)  # it is renewed three times in its span
        check.seconds(self.poll_seconds, "poll", 0.001)
        check.seconds(self.drain_seconds, "drain")
        check.seconds(self.unknown_delay_seconds, "unknown_delay_seconds")
        check.seconds(self.stall_seconds, "stall_seconds")
        check.whole(self.max_lost, "max_lost")
        check.maybe(self.children, check.whole, "children", 1, _MOST_AT_ONCE)
        check.whole(self.generation, "generation", 0)
        if self.name != "":
            check.text(self.name, "name")
        check.a(self.mask, "mask", Mask, "a Mask")
