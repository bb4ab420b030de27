"""Draw: figures for charts. Templates turn them into SVG with sizes as attributes, since nothing is styled inline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HEIGHT: Final = 100.0
_LEAST: Final = 3.0  # what is there at all can be seen
_SLOT: Final = 10.0
_WHOLE: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart, in a box that is ten wide for each bar and a hundred high."""

    x: float
    y: float
    height: float
    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart; ``top`` is the value at its upper edge."""

    bars: Sequence[Bar]
    top: float
    ticks: Sequence[str] = ()

    @property
    def width(self) -> float:
        return len(self.bars) * _SLOT

    @property
    def is_empty(self) -> bool:
        return not any(bar.value for bar in self.bars)

    @property
    def total(self) -> float:
        return sum(bar.value for bar in self.bars)


def bars(values: Sequence[float], labels: Sequence[str], ticks: Sequence[str] = (), *, root: bool = False) -> Bars:
    """Draw values as bars. ``root``: by their square roots, so that a small one is seen beside a large one."""
    top = nice(max(values, default=0.0))
    found = []
    for number, (value, label) in enumerate(zip(values, labels, strict=True)):
        share = value / top if top else 0.0
        height = 0.0 if value <= 0 else max(_LEAST, HEIGHT * (math.sqrt(share) if root else share))
        found.append(Bar(number * _SLOT, HEIGHT - height, round(height, 2), value, label))
    return Bars(found, top, ticks)


def nice(value: float) -> float:
    """Round up to a figure that reads well at the edge of a chart."""
    if value <= 0:
        return 0.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 2, 3, 4, 5, 6, 8, 10) if value <= size * step * (1 + 1e-9))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a whole, from ``x`` on."""

    name: str
    x: float
    width: float
    value: int
    tone: str


def stack(parts: Sequence[tuple[str, int, str]], whole: int) -> list[Part]:
    """Draw parts of a whole beside one another, a thousand wide; what is there at all can be seen."""
    found: list[Part] = []
    x = 0.0
    for name, value, tone in parts:
        if value <= 0:
            continue
        width = min(max(4.0, _WHOLE * value / max(whole, 1)), _WHOLE - x)
        found.append(Part(name, round(x, 2), round(width, 2), value, tone))
        x += width
    return found


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of a schedule: its place on a row, and within which bounds it lies."""

    attempt: int
    earliest: float
    latest: float
    mean: float
    total: float
    x: float
    width: float
    middle: float


def schedule(waits: Sequence[tuple[int, float, float, float, float]]) -> list[Wait]:
    """Draw the waits of a policy below one another, a thousand wide."""
    longest = max((latest for _, _, latest, _, _ in waits), default=0.0) or 1.0
    return [
        Wait(
            attempt, earliest, latest, mean, total, round(_WHOLE * earliest / longest, 2),
            round(max(6.0, _WHOLE * (latest - earliest) / longest), 2), round(_WHOLE * mean / longest, 2),
        )
        for attempt, earliest, latest, mean, total in waits
    ]  # fmt: skip
