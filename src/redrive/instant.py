"""Instants as whole microseconds since 1970 (UTC): exact in both directions, and what the trail's hashes cover."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_micros(at: datetime) -> int:
    """Express an instant in whole microseconds."""
    return (at - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Turn microseconds into an instant."""
    return EPOCH + timedelta(microseconds=micros)


def earlier(at: datetime, seconds: float) -> datetime:
    """Go back from an instant, at most to 1970."""
    return from_micros(max(0, to_micros(at) - int(seconds * 1e6)))


def iso(at: datetime) -> str:
    """Write an instant the way trail entries and failure cycles hold it on every store."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
