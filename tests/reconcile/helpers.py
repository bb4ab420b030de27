"""A resource that drifts, and a reconciler that keeps it right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redrive import Redrive, RetryPolicy

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


@dataclass
class Carts:
    """What should be, what is, and what was done about the difference."""

    desired: dict[str, Any] = field(default_factory=dict)
    actual: dict[str, Any] = field(default_factory=dict)
    done: list[tuple[str, Any, Any]] = field(default_factory=list)

    async def converge(self, key: str, desired: Any, actual: Any) -> None:
        self.done.append((key, desired, actual))
        if desired is None:
            self.actual.pop(key, None)
        else:
            self.actual[key] = desired

    def add_to(self, app: Redrive, name: str = "carts", **options: Any) -> Carts:
        sides = {"desired": lambda: self.desired, "actual": lambda: self.actual, "converge": self.converge}
        app.reconcilers.add(name, **{**sides, **options})
        return self


async def counted(app: Redrive, type_: str) -> int:
    """Count the events of a type, whatever became of them."""
    return sum(count for (target, _), count in (await app.store.counts()).items() if target == type_)
