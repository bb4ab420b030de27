"""Cadence: when a schedule ticks.

A cron line ticks by the wall clock of its time zone: five fields, read as Debian's cron reads them. ``every`` ticks at
multiples of a span since 1970 (UTC), so that workers who know nothing of each other agree, and clocks that are put
forward or back do not matter. What could never tick is refused where it is written.

Daylight saving: a line with a fixed hour and minute ticks once on each day it names; a time that the day leaves out
ticks when the clocks have gone forward, one that comes twice ticks the first time. A line whose hour or minute begins
with ``*`` ticks as real time passes: not in the hour that is left out, in both of those that are alike.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from redrive import check
from redrive.duration import span
from redrive.errors import BadDuration, ConfigurationError
from redrive.instant import from_micros, to_micros

COUNTED: Final = 10_000
"""How many missed ticks are counted one by one."""

_FIELDS: Final = (
    ("minute", "0-59"), ("hour", "0-23"), ("day-of-month", "1-31, L for the last"),
    ("month", "1-12 or JAN-DEC"), ("day-of-week", "0-7 (0 and 7: Sunday) or SUN-SAT, 5#2 for the second Friday"),
)  # fmt: skip
_LONGEST_LINE: Final = 255
_LEAST_SECONDS: Final = 1.0
_LOOKS_BACK: Final = tuple(timedelta(hours=hours) for hours in (1, 24, 24 * 32, 24 * 367, 24 * 366 * 9))
_SOME_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cadence:
    """A cron line in a time zone, or a span."""

    cron: str | None = None
    every_seconds: float | None = None
    offset_seconds: float = 0.0
    time_zone: str = "UTC"

    @classmethod
    def of(cls, *, cron: object = None, every: object = None, offset: object = None, tz: object = "UTC") -> Self:
        """Read what somebody has written."""
        if (cron is None) == (every is None):
            raise ConfigurationError('say how often, one way: cron="0 3 * * *" or every="10m"')
        zone = check_zone(tz)
        if cron is not None:
            if offset is not None:
                raise ConfigurationError("offset shifts the ticks of `every`: a cron line says its minutes itself")
            return cls(cron=check_cron(cron), time_zone=zone)
        if zone != "UTC":
            raise ConfigurationError(f"every counts spans of time, in which {zone} makes no difference: leave tz out")
        seconds = span(every, "every")
        if seconds < _LEAST_SECONDS:
            raise BadDuration("every must be at least 1s: what has to happen more often is no schedule")
        shift = 0.0 if offset is None else check.seconds(offset, "offset")
        if shift >= seconds:
            raise BadDuration("offset must be shorter than every: it shifts the ticks, it does not put them off")
        return cls(every_seconds=seconds, offset_seconds=shift)

    def after(self, at: datetime) -> Iterator[datetime]:
        """Tell the ticks after an instant, in UTC, one after the other."""
        if self.every_seconds is not None:
            step, shift = self._micros()
            tick = (to_micros(at) - shift) // step * step + shift
            while True:
                tick += step
                yield from_micros(tick)
        assert self.cron is not None
        last = at
        for each in CronSim(self.cron, at.astimezone(_zone(self.time_zone))):
            tick_at = each.astimezone(UTC)
            # A time that comes twice is taken the first time, and may lie before us when we ask in between.
            if tick_at > last:
                last = tick_at
                yield tick_at

    def next_after(self, at: datetime) -> datetime | None:
        """Tell the first tick after an instant; nothing when there is none in the next fifty years."""
        return next(self.after(at), None)

    def due(self, first: datetime, now: datetime, most: int) -> tuple[list[datetime], int]:
        """Tell the latest ``most`` ticks from ``first`` until now, and how many there were (see ``COUNTED``)."""
        before = first - timedelta(microseconds=1)
        if self.every_seconds is not None:
            step, shift = self._micros()
            low, high = (to_micros(before) - shift) // step, (to_micros(now) - shift) // step
            numbers = range(max(low + 1, high - most + 1), high + 1)
            return [from_micros(number * step + shift) for number in numbers], max(0, high - low)
        kept, count = self._collect(before, now, most, COUNTED)
        if count < COUNTED:
            return kept, count
        for back in _LOOKS_BACK:  # too many to walk through: only the end is of interest
            kept, found = self._collect(max(before, now - back), now, most, None)
            if found >= most:
                break
        return kept, max(count, len(kept))

    def _collect(self, after: datetime, now: datetime, most: int, limit: int | None) -> tuple[list[datetime], int]:
        kept: deque[datetime] = deque(maxlen=most)
        count = 0
        for tick in self.after(after):
            if tick > now or count == limit:
                break
            kept.append(tick)
            count += 1
        return list(kept), count

    def _micros(self) -> tuple[int, int]:
        assert self.every_seconds is not None
        return round(self.every_seconds * 1e6), round(self.offset_seconds * 1e6)


def check_zone(name: object) -> str:
    """Refuse a time zone that does not exist, and name those that are spelled alike."""
    if isinstance(name, str):
        try:
            _zone(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
        else:
            return name
    raise ConfigurationError(f"there is no time zone {str(name)[:64]!r}: {_alike(str(name)[:64])}")


def check_cron(line: object) -> str:
    """Refuse a cron line that cannot be read, and say which field; or one that never fires."""
    if not isinstance(line, str) or len(line) > _LONGEST_LINE:
        raise ConfigurationError(f"a cron line is a text like '0 3 * * *', not {str(line)[:64]!r}")
    return _checked(line)


@lru_cache(maxsize=1_024)
def _checked(line: str) -> str:
    parts = line.split()
    if len(parts) != len(_FIELDS):
        names = " ".join(name for name, _ in _FIELDS)
        raise ConfigurationError(f"cron {line!r} has {len(parts)} fields instead of five: {names}")
    text = " ".join(parts)
    try:
        first = next(CronSim(text, _SOME_DAY), None)
    except CronSimError as error:
        raise ConfigurationError(_wrong_field(parts, str(error))) from None
    if first is None:
        raise ConfigurationError(_never(text))
    return text


def _wrong_field(parts: list[str], said: str) -> str:
    text = " ".join(parts)
    place = next((n for n, (name, _) in enumerate(_FIELDS) if said.endswith(name)), None)
    if place is None:
        return f"cron {text!r} cannot be read: {said}"
    name, allowed = _FIELDS[place]
    if name == "day-of-month" and _reads(" ".join([*parts[:3], "*", *parts[4:]])):
        return _never(text)
    begins = sum(len(part) + 1 for part in parts[:place])
    return (
        f"the {name} of this cron line cannot be read: it takes {allowed}; lists 1,2, ranges 1-5, steps */5\n"
        f"  {text}\n  {' ' * begins}{'^' * len(parts[place])}"
    )


def _reads(text: str) -> bool:
    try:
        CronSim(text, _SOME_DAY)
    except CronSimError:
        return False
    return True


def _never(text: str) -> str:
    return f"cron {text!r} never fires: no such day comes in fifty years. Check day and month"


def _alike(name: str) -> str:
    known = {each.casefold(): each for each in available_timezones()}
    ends = {each.rpartition("/")[2].casefold(): each for each in known.values()}
    near = [known[each] for each in get_close_matches(name.casefold(), known, n=3, cutoff=0.7)]
    near += [ends[each] for each in get_close_matches(name.casefold().rpartition("/")[2], ends, n=3, cutoff=0.8)]
    names = list(dict.fromkeys(near))[:3]
    return f"did you mean {' or '.join(names)}?" if names else "zones have names like Europe/Berlin, or UTC"


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
