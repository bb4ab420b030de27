"""Kinds of fields that hold text: compared letter by letter, or as their own rules want it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from redrive.event import Event
from redrive.selection.kinds import Kind
from redrive.selection.phrases import clipped
from redrive.selection.spelling import Raw, write_pattern
from redrive.selection.sql import Binder, like
from redrive.selection.terms import Pattern, Term


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text, compared letter by letter, upper and lower case apart."""

    noun: str = ""

    def read(self, raw: Raw) -> Pattern:
        return raw.pattern

    def write(self, value: Pattern) -> str:
        return write_pattern(value)

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        """Say what a pattern stands for in this field."""
        return (pattern,)

    def holds(self, term: Term, event: Event) -> bool:
        held = getattr(event, self.column)
        return held is not None and any(each.fits(held) for each in self._patterns(term))

    def condition(self, term: Term, bind: Binder) -> str:
        return like(self.column, self._patterns(term), bind)

    def _patterns(self, term: Term) -> Sequence[Pattern]:
        return [each for value in term.values for each in self.expanded(value)]

    def said(self, term: Term, now: datetime) -> str:
        if all(value.is_anything for value in term.values):
            return f"with any {self.noun}"
        return Kind.said(self, term, now)  # `super()` fails in a dataclass with slots (CPython 90562)


class ErrorType(Text):
    """``ConnectTimeout`` is also ``httpx.ConnectTimeout``."""

    __slots__ = ()

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        first, *others = pattern.parts
        return (pattern, Pattern(("", f".{first}", *others))) if first else (pattern,)


class Group(Text):
    """A fingerprint or its beginning, with or without the version in front of the colon."""

    __slots__ = ()

    def read(self, raw: Raw) -> Pattern:
        if raw.pattern.parts == ("",):
            raise raw.error("a group cannot be empty: give its name, or the beginning of it")
        return raw.pattern

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        start = pattern.parts[0]
        if not pattern.is_exact or _FINGERPRINT.fullmatch(start):
            return (pattern,)
        return (Pattern((start, "")), *(() if ":" in start else (Pattern(("", f":{start}", "")),)))


class Correlation(Text):
    """The first event of a correlation is known by its own id."""

    __slots__ = ()

    def holds(self, term: Term, event: Event) -> bool:
        return Pattern((str(event.id),)) in term.values or super().holds(term, event)

    def condition(self, term: Term, bind: Binder) -> str:
        exact = (value.parts[0] for value in term.values if value.is_exact)
        own = [f"id = {bind.uuid(each)}" for each in exact if _UUID.fullmatch(each)]
        return " or ".join([super().condition(term, bind), *own])


class ErrorText(Text):
    """The text of the last error: anywhere in it, A to Z like a to z.

    Other letters must have the right case: SQLite folds no others, and PostgreSQL would do so by its locale.
    """

    __slots__ = ()

    def read(self, raw: Raw) -> Pattern:
        if raw.pattern.parts == ("",):
            raise raw.error("this text is empty: say what to look for")
        return raw.pattern

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        parts = [part.translate(_FOLD) for part in pattern.parts]
        return (Pattern((*[""][: len(parts[0])], *parts, *[""][: len(parts[-1])])),)

    def holds(self, term: Term, event: Event) -> bool:
        held = None if event.last_error is None else event.last_error.translate(_FOLD)
        return held is not None and any(each.fits(held) for each in self._patterns(term))

    def condition(self, term: Term, bind: Binder) -> str:
        column = f'{self.column} collate "C"' if bind.postgres else self.column
        return like(f"lower({column})", self._patterns(term), bind)

    def shown(self, value: Pattern) -> str:
        return clipped(write_pattern(value, quoted=True))


_FINGERPRINT: Final = re.compile(r"[0-9]+:[0-9a-f]{16}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
