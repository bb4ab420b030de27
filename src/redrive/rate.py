"""Rate: how many in which span of time, as people write it: ``20/s``, ``100/m``, ``5/10s``.

What cannot be understood is refused where it is written (``ConfigurationError``), not when the first event waits.
"""

import math
import re
from dataclasses import dataclass
from typing import Final, Self

from redrive import check
from redrive.duration import format_duration, parse_duration
from redrive.errors import BadDuration, ConfigurationError

__all__ = ["Rate"]

ACCEPTED: Final = "a number and a span like '20/s', '100/m', '5/10s', '1000/d'"
_TEXT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) */ *([0-9a-z. ]{1,20})")
_UNIT: Final = re.compile("[smhd]")
_SLOWEST: Final = 1 / (366 * 86_400)
_FASTEST: Final = 1_000_000.0
_BURST_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so many seconds."""

    count: float
    seconds: float

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read what somebody wrote; a bare number is refused, for nobody could tell of which span it is."""
        match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is not None:
            count, span = float(match[1]), match[2].strip()
            try:
                seconds = parse_duration(f"1{span}" if _UNIT.fullmatch(span) else span)
            except BadDuration:
                seconds = 0.0
            if seconds > 0 and _SLOWEST <= count / seconds <= _FASTEST:
                return cls(count, seconds)
        raise ConfigurationError(
            f"rate must be {ACCEPTED}, from one a year to a million a second, not {check.shown(value)}; "
            "'none' stands for no limit"
        )

    @property
    def per_second(self) -> float:
        """The same, for reckoning."""
        return self.count / self.seconds

    @property
    def burst(self) -> int:
        """How many may start at once: what a fifth of a second allows, and at least one."""
        return max(1, math.ceil(self.per_second * _BURST_SECONDS))

    def __str__(self) -> str:
        span = format_duration(self.seconds)
        return f"{self.count:.12g}/{span.removeprefix('1') if _UNIT.fullmatch(span.removeprefix('1')) else span}"
