"""Retention: how long ended events are kept.

Delivered and cancelled events leave after a while, in bounded batches. A dead letter is never removed unless somebody
says so, and the keys of handled events are kept at least as long as an event with such a key could still be replayed:
otherwise a replay could have its effect a second time. A configuration that breaks this is refused.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from redrive.duration import format_duration, parse_duration
from redrive.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Retention:
    """Spans in seconds; ``None`` keeps for ever."""

    delivered: float | None = 30 * 86_400.0
    failed: float | None = None
    handled: float | None = None

    @classmethod
    def of(
        cls,
        delivered: str | float | None = "30d",
        failed: str | float | None = None,
        handled: str | float | None = None,
    ) -> Self:
        """Build from durations like ``30d``; check that no replay can meet a forgotten key."""
        spans = [None if span is None else parse_duration(span) for span in (delivered, failed, handled)]
        kept = cls(*spans)
        kept.check()
        return kept

    def check(self) -> None:
        """Refuse a configuration in which a dead letter outlives the memory of its effect."""
        if self.handled is None:
            return
        if self.failed is None:
            message = (
                f"retention.handled is {format_duration(self.handled)} but dead letters are kept for ever: a replay "
                "after that could have its effect twice. Keep handled keys for ever too (None), or limit `failed`"
            )
            raise ConfigurationError(message)
        if self.handled < self.failed:
            message = (
                f"retention.handled ({format_duration(self.handled)}) is shorter than retention.failed "
                f"({format_duration(self.failed)}): a late replay could have its effect twice. Make it at least as long"
            )
            raise ConfigurationError(message)

    def cutoffs(self, now: datetime) -> tuple[datetime | None, datetime | None, datetime | None]:
        """Say before which instants delivered, failed and handled may go."""
        delivered, failed, handled = (
            None if span is None else now - timedelta(seconds=span)
            for span in (self.delivered, self.failed, self.handled)
        )
        return delivered, failed, handled
