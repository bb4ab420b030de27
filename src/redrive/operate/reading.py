"""Reading: a value that Prometheus is told, and the family it belongs to."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redrive.counts import Histogram


@dataclass(frozen=True, slots=True)
class Metric:
    """A family: its name, what kind it is, what it says, and by what it is told apart."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a family."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = field(default=())


def seconds_between(since: Any, now: Any) -> float:
    """Say how long ago an instant of either store was; 0 for one that has not come, or that there is not."""
    if since is None:
        return 0.0
    span = (now - since).total_seconds() if isinstance(now, datetime) else (now - since) / 1e6
    return max(0.0, float(span))
