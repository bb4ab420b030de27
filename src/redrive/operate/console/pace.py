"""Pace: how many ended, failed and will come due, by time.

Everything is counted up to a cap, so that a page costs the same in a table of millions.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from redrive.app import Redrive
from redrive.instant import instant_of
from redrive.operate.console.draw import Bars, bars
from redrive.operate.console.words import brief, span

MINUTES: Final = 30
HOURS: Final = 24
_MOST_ENDED: Final = 500
_MOST_FAILED: Final = 500
_MOST_OF_GROUP: Final = 100
_MOST_DUE: Final = 1_000
_DUE: Final = (0.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0, 3.2e9)
_HOUR: Final = 3_600.0
_MINUTE: Final = 60.0


async def ended(app: Redrive) -> Bars:
    """Count what ended in each of the last minutes. What is more than can be counted is reckoned from its beginning."""
    since = app.clock.now() - timedelta(minutes=MINUTES)
    rows = await app.store.ask("ended_by_time", since=since, seconds=_MINUTE, spans=MINUTES, cap=_MOST_ENDED)
    values = [_reckoned(row, since + timedelta(minutes=row["number"])) for row in rows]
    labels = [
        f"{_about(row)}{brief(value)} ended, {MINUTES - row['number']} min ago"
        for row, value in zip(rows, values, strict=True)
    ]
    return bars(values, labels, (f"{MINUTES} min ago", "now"))


def _reckoned(row: dict[str, Any], low: datetime) -> float:
    reached = row["reached"]
    if reached is None:
        return float(row["n"])
    at = instant_of(reached)
    return float(row["n"]) * _MINUTE / max(0.001, (at - low).total_seconds())


def _about(row: dict[str, Any]) -> str:
    return "about " if row["reached"] is not None else ""


async def failed(app: Redrive) -> Bars:
    """Count the dead letters by the hour in which they were published."""
    rows = await app.store.ask("failed_by_time", fingerprints=[], bounds=_bounds(app), cap=_MOST_FAILED)
    values = [float(row["n"]) for row in sorted(rows, key=lambda row: int(row["number"]))]
    labels = [f"{_capped(value, _MOST_FAILED)} published {HOURS - hour} h ago" for hour, value in enumerate(values)]
    return bars(values, labels, (f"{HOURS} h ago", "now"))


async def of_groups(app: Redrive, fingerprints: Sequence[str]) -> dict[str, Bars]:
    """Count the dead letters of some groups by the hour in which they were published."""
    if not fingerprints:
        return {}
    rows = await app.store.ask(
        "failed_by_time", fingerprints=list(fingerprints), bounds=_bounds(app), cap=_MOST_OF_GROUP
    )
    found = {each: [0.0] * HOURS for each in fingerprints}
    for row in rows:
        found[row["fingerprint"]][int(row["number"])] = float(row["n"])
    return {each: bars(values, _hours(values), root=True) for each, values in found.items()}


def _hours(values: Sequence[float]) -> list[str]:
    return [f"{_capped(value, _MOST_OF_GROUP)} published {HOURS - hour} h ago" for hour, value in enumerate(values)]


def _capped(value: float, cap: int) -> str:
    return f"{cap:,} or more" if value >= cap else f"{value:,.0f}"


async def due(app: Redrive) -> Bars:
    """Count when those that wait for their time will come due."""
    rows = await app.store.ask("due_by_time", bounds=list(_DUE), cap=_MOST_DUE)
    values = [float(row["n"]) for row in sorted(rows, key=lambda row: int(row["number"]))]
    labels = [
        f"{brief(value)}{'+' if value >= _MOST_DUE else ''} within {span(high)}"
        if high <= _DUE[-2]
        else f"{brief(value)} later"
        for value, high in zip(values, _DUE[1:], strict=True)
    ]
    return bars(values, labels, ("now", "1m", "20m", "3h", "later"))


def _bounds(app: Redrive) -> list[str]:
    now = app.clock.now()
    return [_floor(now - timedelta(hours=HOURS - hour)) for hour in range(HOURS)] + [_floor(now + timedelta(days=1))]


def _floor(at: datetime) -> str:
    """Return the least id that could have been made at an instant."""
    return str(UUID(int=int(at.timestamp() * 1_000) << 80))
