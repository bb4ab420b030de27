"""Instants as whole microseconds since 1970 (UTC): exact in both directions, and what the trail's hashes cover."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EARLIEST: Final = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // _MICROSECOND  # a day from the ends, for time zones
_LATEST: Final = (datetime(9999, 12, 30, tzinfo=UTC) - EPOCH) // _MICROSECOND


def to_micros(at: datetime) -> int:
    """Express an instant in whole microseconds."""
    return (at - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Turn microseconds into an instant; one that Python does not have is the nearest that it has."""
    return EPOCH + timedelta(microseconds=min(max(micros, _EARLIEST), _LATEST))


def instant_of(stored: Any) -> datetime:
    """Read an instant as a store gives it, microseconds or a datetime; None stays, and what is none is 1970."""
    if stored is None or isinstance(stored, datetime):
        return stored  # type: ignore[return-value]  # a column that may be empty has a reader who knows
    return from_micros(int(stored)) if isinstance(stored, int | float) else EPOCH


def earlier(at: datetime, seconds: float) -> datetime:
    """Go back from an instant, at most to 1970."""
    return from_micros(max(0, to_micros(at) - int(seconds * 1e6)))


def iso(at: datetime) -> str:
    """Write an instant the way trail entries and failure cycles hold it on every store."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
