"""Durations: spans of time as people write them, and as they read them.

Settings say ``"5s"`` or ``"1h30m"``; everything inside counts seconds. What cannot be understood is refused
where it is written (``BadDuration``), not when the first retry is due.
"""

import math
import re
from datetime import timedelta

from redrive.errors import BadDuration

__all__ = ["ACCEPTED", "MAX_SECONDS", "format_duration", "parse_duration", "span"]

ACCEPTED = "a number of seconds, or units from large to small like '25ms', '5s', '1h30m', '2d' (w d h m s ms)"
# A hundred years: `now + duration` stays a valid instant in Python, SQLite and PostgreSQL.
MAX_SECONDS = 36_525 * 86_400.0

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_UNITS = re.compile(r"\s*".join(rf"(?:{_NUMBER}\s*{unit})?" for unit in ("w", "d", "h", "m(?!s)", "s", "ms")))
_SECONDS = (604_800.0, 86_400.0, 3_600.0, 60.0, 1.0, 0.001)
# Below these, rounding for display does not reach the next unit.
_SMALLEST, _TEN_MILLIS, _ABOUT_A_SECOND, _ABOUT_A_MINUTE = 0.000_000_5, 0.01, 0.999_5, 59.95
_PAIRS = ((3_600, (60, 1, "ms")), (86_400, (3_600, 60, "hm")), (math.inf, (86_400, 3_600, "dh")))
_BARE = re.compile(_NUMBER)
_LONGEST_TEXT = 64


def parse_duration(text: str | float | timedelta) -> float:
    """Return the span in seconds."""
    value: object = text  # what comes out of a configuration may be anything
    if isinstance(value, str):
        seconds = _parse_text(value.strip())
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = _as_float(value)
    else:
        seconds = math.nan
    if 0 <= seconds <= MAX_SECONDS:  # false for NaN too
        return seconds
    raise BadDuration(f"{_shown(text)} is not a duration from 0 to 100 years; accepted: {ACCEPTED}")


def span(value: object, name: str) -> float:
    """Read a setting that must be longer than nothing, and name it when it is not."""
    try:
        seconds = parse_duration(value)  # type: ignore[arg-type]  # what it cannot read it refuses
    except BadDuration as error:
        raise BadDuration(f"{name}: {error}") from None
    if seconds <= 0:
        raise BadDuration(f"{name} must be longer than 0: leave it out for none")
    return seconds


def format_duration(seconds: float) -> str:
    """Write the span for a person, in at most two units; ``parse_duration`` reads it back."""
    if not math.isfinite(seconds):
        raise BadDuration(f"{seconds!r} seconds is not a finite span")
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < _SMALLEST:
        return "0s"
    if seconds < _ABOUT_A_SECOND:
        return f"{sign}{_decimal(seconds * 1000, 0 if seconds >= _TEN_MILLIS else 3)}ms"
    if seconds < _ABOUT_A_MINUTE:
        return f"{sign}{_decimal(seconds, 1)}s"
    large, small, names = next(pair for below, pair in _PAIRS if _rounded(seconds, pair[1]) < below)
    first, rest = divmod(_rounded(seconds, small), large)
    return f"{sign}{first}{names[0]}" + (f"{rest // small}{names[1]}" if rest else "")


def _rounded(seconds: float, unit: int) -> int:
    return math.floor(seconds / unit + 0.5) * unit


def _parse_text(text: str) -> float:
    if not text or len(text) > _LONGEST_TEXT:
        return math.nan
    if _BARE.fullmatch(text):
        return _as_float(float(text))
    match = _UNITS.fullmatch(text)
    if match is None:
        return math.nan
    return math.fsum(float(n) * unit for n, unit in zip(match.groups(), _SECONDS, strict=True) if n is not None)


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _decimal(number: float, places: int) -> str:
    shown = f"{number:.{places}f}"
    return shown.rstrip("0").rstrip(".") if places else shown


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_SECONDS:  # repr() of a huge int raises
        return "a number this large"
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_TEXT else shown[:_LONGEST_TEXT] + "…"
