"""Words and spans for people: text that cannot harm a terminal, times as one says them."""

import re
from datetime import UTC, datetime
from typing import Final

from redrive.duration import format_duration

# Escape sequences in a payload or an error must not reach the terminal; nor what turns the direction of writing.
_HARMFUL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE: Final = re.compile(r"\s+")
_NOW_SECONDS: Final = 0.95
_UNITS: Final = ((86_400 * 2, 86_400, "days"), (3_600 * 2, 3_600, "h"), (60 * 2, 60, "min"), (0, 1, "s"))


def clean(text: str) -> str:
    r"""Show control characters instead of obeying them: ``\x1b``."""
    return _HARMFUL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def harmless_json(text: str) -> str:
    """Write in JSON what a terminal would obey as the escapes of JSON; they mean the same there."""
    return _HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str, limit: int) -> str:
    """Bring text onto one line of bounded length."""
    line = _SPACE.sub(" ", clean(text[: limit * 4])).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def span(seconds: float) -> str:
    """Say a span in its largest unit: ``12 s``, ``3 min``, ``5 h``, ``9 days``."""
    seconds = abs(seconds)
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth matters
        return f"{seconds:.1f} s"
    unit, name = next((unit, name) for least, unit, name in _UNITS if seconds >= least)
    return f"{seconds / unit:.0f} {name}"


def when(at: datetime, now: datetime) -> str:
    """Say an instant as seen from now: ``3 min ago``, ``in 12 s``, ``now``."""
    seconds = (at - now).total_seconds()
    if abs(seconds) < _NOW_SECONDS:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"


def clock_time(at: datetime) -> str:
    """Say the time of day to the millisecond, in UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


def day(at: datetime) -> str:
    """Say the date, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d")


def duration(seconds: float) -> str:
    """Say a configured span the way it is configured: ``30d``."""
    return format_duration(seconds)


def number(count: int) -> str:
    """Write a count; the store stops counting at 10,000."""
    return "10,000+" if count > 10_000 else f"{count:,}"  # noqa: PLR2004 - the cap of overview.sql


def times(count: int) -> str:
    """Say how often."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def plural(count: int, noun: str) -> str:
    """Say how many: ``1 event``, ``1,204 events``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
