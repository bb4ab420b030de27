"""Options: how a worker works, and what it refuses to work with."""

import os
from dataclasses import dataclass
from typing import Final

from redrive.errors import ConfigurationError
from redrive.event import Priority
from redrive.mask import DEFAULT as DEFAULT_MASK
from redrive.mask import Mask
from redrive.store.base import Lane

_CORES: Final = os.cpu_count() or 1
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
        if self.concurrency < 1:
            message = f"concurrency must be at least 1, not {self.concurrency}"
            raise ConfigurationError(message)
        if not self.queues:
            message = "a worker needs at least one queue: queues=('default',)"
            raise ConfigurationError(message)
        if self.lease_seconds < 1:
            message = f"the lease must be at least 1s, not {self.lease_seconds}s: it is renewed three times in its span"
            raise ConfigurationError(message)
        if self.max_lost < 1:
            message = f"max_lost must be at least 1, not {self.max_lost}"
            raise ConfigurationError(message)
        if self.children is not None and self.children < 1:
            message = f"children must be at least 1, not {self.children}; leave it out for one a core"
            raise ConfigurationError(message)
