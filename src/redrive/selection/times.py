"""Kinds of fields that hold a time: an instant, or a span before or after now, which is another way to say one."""

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from redrive.duration import ACCEPTED, format_duration, parse_duration
from redrive.errors import BadDuration
from redrive.event import Event, Status
from redrive.instant import to_micros
from redrive.selection.kinds import Kind
from redrive.selection.phrases import BY_NOW, OVERDUE, SIDE, Forms, cut
from redrive.selection.spelling import Raw
from redrive.selection.sql import Binder
from redrive.selection.terms import COMPARE, ORDERED, REVERSED, Term


@dataclass(frozen=True, slots=True)
class Time(Kind):
    """A date and time in a column; for some only in the status in which it means something."""

    operators: ClassVar[tuple[str, ...]] = ORDERED

    status: Status | None = None

    def holds(self, term: Term, event: Event) -> bool:
        held = getattr(event, self.column)
        return (
            held is not None
            and event.status is (self.status or event.status)
            and COMPARE[term.op](held, term.values[0])
        )

    def condition(self, term: Term, bind: Binder) -> str:
        at = term.values[0] if bind.postgres else to_micros(term.values[0])
        held = f"{self.column} {term.op} {bind(at, 'timestamptz')}"
        return held if self.status is None else f"status = '{self.status.value}' and {held}"


@dataclass(frozen=True, slots=True)
class Instant(Time):
    """Said as a date and time."""

    def read(self, raw: Raw) -> datetime:
        at = _instant(raw.text)
        if at is None or not _FIRST <= at < _LAST:
            accepted = "write 2026-11-01 or 2026-11-01T14:05 (UTC), or 2026-11-01T14:05+01:00"
            raise raw.error(f"{cut(raw.text)} is no date: {accepted}")
        return at

    def write(self, value: datetime) -> str:
        if value.second or value.microsecond:
            return value.replace(tzinfo=None).isoformat() + "Z"
        return f"{value:%Y-%m-%dT%H:%MZ}" if value.hour or value.minute else f"{value:%Y-%m-%d}"

    def said(self, term: Term, now: datetime) -> str:
        return self.phrase.format(_when(term, now))


@dataclass(frozen=True, slots=True)
class Span(Time):
    """Said as a span of time before now."""

    forms: Forms = field(kw_only=True)

    def read(self, raw: Raw) -> timedelta:
        return _span(raw.text, raw)

    def write(self, value: timedelta) -> str:
        seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
        days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
        millis = f"{micros / 1000:.3f}".rstrip("0").rstrip(".") if micros else 0
        units = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds % 60, "s"), (millis, "ms"))
        return ("-" if value < timedelta() else "") + ("".join(f"{n}{unit}" for n, unit in units if n) or "0s")

    def at(self, term: Term, now: datetime) -> Term:
        return replace(term, op=REVERSED[term.op], values=(now - term.values[0],))

    def form(self, term: Term) -> str:
        return self.forms[term.op]

    def said(self, term: Term, now: datetime) -> str:
        length = format_duration(abs(term.values[0]).total_seconds())
        return f"{self.form(term).format(length)} ({_when(self.at(term, now), now)})"


class Ahead(Span):
    """Said as a span of time from now on; a negative one has passed."""

    __slots__ = ()

    def read(self, raw: Raw) -> timedelta:
        text = raw.text
        return -_span(text[1:], raw) if text.startswith("-") else _span(text, raw)

    def at(self, term: Term, now: datetime) -> Term:
        return replace(term, values=(now + term.values[0],))

    def form(self, term: Term) -> str:
        span = term.values[0]
        return (self.forms if span > timedelta() else OVERDUE if span else BY_NOW)[term.op]


def _instant(text: str) -> datetime | None:
    if not _INSTANT.fullmatch(text):
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _span(text: str, raw: Raw) -> timedelta:
    try:
        return timedelta(seconds=parse_duration(text))
    except BadDuration:
        raise raw.error(f"{cut(raw.text)} is no duration: write {ACCEPTED}") from None


def _when(term: Term, now: datetime) -> str:
    at = term.values[0]
    clock = f"{at:%H:%M:%S}" if at.second or at.microsecond else f"{at:%H:%M}"
    return f"{SIDE[term.op]} {clock}" if at.date() == now.date() else f"{SIDE[term.op]} {at:%Y-%m-%d} {clock}"


_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
