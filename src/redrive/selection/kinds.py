"""Kinds of fields: how a value is read and written, what it means, how it is asked for and said.

``Kind`` is what a field must know. Here are the short ones: words, flags, numbers and ids; ``texts``, ``times`` and
``documents`` have the others. ``holds`` and ``condition`` stand side by side because they must say the same.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, ClassVar, Final
from uuid import UUID

from redrive.event import Event
from redrive.selection.phrases import Forms, clipped, cut, listed, noun
from redrive.selection.spelling import Piece, Raw
from redrive.selection.sql import Binder, one_of
from redrive.selection.terms import COMPARE, ORDERED, Path, Term, is_whole


@dataclass(frozen=True, slots=True)
class Kind(ABC):
    """A field of a selection, and the column behind it; ``phrase`` is how a sentence says its values."""

    operators: ClassVar[tuple[str, ...]] = (":",)

    column: str
    phrase: str = "{}"

    # Reading and writing

    def read_path(self, head: Piece, at: int) -> Path | None:
        """Read what follows the name of the field, from ``at``; none: no such field."""
        return () if at == head.end else None

    def write_path(self, _: Path) -> str:
        return ""

    @abstractmethod
    def read(self, raw: Raw) -> Any: ...

    @abstractmethod
    def write(self, value: Any) -> str: ...

    def checked(self, term: Term, _: Sequence[Raw]) -> Term:
        """Refuse what does not go together, and choose one of two ways to say the same."""
        return term

    def spelled(self, term: Term) -> str:
        """Write a term so that it reads as itself."""
        written = ",".join(self.write(value) for value in term.values)
        return f"{'-' if term.negated else ''}{term.field}{self.write_path(term.path)}{term.op}{written}"

    # Meaning

    def at(self, term: Term, _: datetime) -> Term:
        """Make a span of time an instant: what is true of an event is then true by its columns alone."""
        return term

    @abstractmethod
    def holds(self, term: Term, event: Event) -> bool:
        """Judge a term without its negation."""

    @abstractmethod
    def condition(self, term: Term, bind: Binder) -> str:
        """Write a term without its negation. A condition may come out as null, which is as good as false."""

    # Saying

    def shown(self, value: Any) -> str:
        return clipped(self.write(value))

    def said(self, term: Term, _: datetime) -> str:
        return self.phrase.format(listed(self.shown(value) for value in term.values))


@dataclass(frozen=True, slots=True)
class Word(Kind):
    """One of a few words."""

    words: tuple[str, ...] = ()
    noun: str = ""

    def read(self, raw: Raw) -> str:
        word = raw.text.lower().replace("-", "_")
        if word not in self.words:
            close = get_close_matches(word[:40], self.words, 1)
            hint = f"did you mean {close[0]}? There are" if close else "there are"
            raise raw.error(f"{cut(raw.text)} is no {self.noun}: {hint} {', '.join(self.words)}")
        return word

    def write(self, value: str) -> str:
        return value

    def holds(self, term: Term, event: Event) -> bool:
        return getattr(event, self.column) in term.values

    def condition(self, term: Term, _: Binder) -> str:
        # Written out, for a planner that must see that a partial index serves; hence from our own list.
        return f"{self.column} {one_of([repr(word) for word in self.words if word in term.values])}"


class Standing(Word):
    """The status: a sentence makes a noun of it."""

    __slots__ = ()

    def said(self, term: Term, _: datetime) -> str:
        return noun(term.values, "s")


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """Yes or no; when nobody knows, neither."""

    sayings: tuple[str, str] = ("no", "yes")

    def read(self, raw: Raw) -> bool:
        flag = _FLAGS.get(raw.text.lower())
        if flag is None:
            raise raw.error(f"{cut(raw.text)} is neither yes nor no")
        return flag

    def write(self, value: bool) -> str:  # noqa: FBT001 - that is what a flag is
        return "yes" if value else "no"

    def holds(self, term: Term, event: Event) -> bool:
        return getattr(event, self.column) in term.values

    def condition(self, term: Term, _: Binder) -> str:
        return " or ".join(f"{self.column} is {'true' if value else 'false'}" for value in term.values)

    def shown(self, value: bool) -> str:  # noqa: FBT001 - same
        return self.sayings[value]


class Presence(Flag):
    """Whether a column holds anything: always yes or no, hence not the one is the other."""

    __slots__ = ()

    def checked(self, term: Term, _: Sequence[Raw]) -> Term:
        if not term.negated or len(term.values) > 1:
            return term
        return replace(term, values=(not term.values[0],), negated=False)  # an index can serve this, and no negation

    def holds(self, term: Term, event: Event) -> bool:
        return (getattr(event, self.column) is not None) in term.values

    def condition(self, term: Term, _: Binder) -> str:
        return " or ".join(f"{self.column} is {'not null' if value else 'null'}" for value in term.values)


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A whole number; some have names."""

    operators: ClassVar[tuple[str, ...]] = (":", *ORDERED)

    noun: str = ""
    forms: Forms = field(kw_only=True)
    names: Mapping[str, int] = field(default_factory=dict)

    def read(self, raw: Raw) -> int:
        text = raw.text
        number = int(text) if is_whole(text) else self.names.get(text.lower())
        if number is None:
            raise raw.error(f"{cut(text)} is no whole number")
        if self.names and number not in self.names.values():
            allowed = listed(f"{value} ({name})" for name, value in self.names.items())
            raise raw.error(f"{number} cannot be: it is {allowed}")
        return number

    def write(self, value: int) -> str:
        return str(value)

    def holds(self, term: Term, event: Event) -> bool:
        return any(COMPARE[term.op](getattr(event, self.column), value) for value in term.values)

    def condition(self, term: Term, bind: Binder) -> str:
        bound = [bind(value, "bigint") for value in term.values]
        return f"{self.column} {one_of(bound) if term.op == ':' else f'{term.op} {bound[0]}'}"

    def shown(self, value: int) -> str:
        return next((name for name, number in self.names.items() if number == value), str(value))

    def said(self, term: Term, _: datetime) -> str:
        ending = "" if term.values[-1] == 1 else "s"
        return self.forms[term.op].format(listed(map(self.shown, term.values)), self.noun, ending)


@dataclass(frozen=True, slots=True)
class Id(Kind):
    """A UUID or the beginning of one."""

    def read(self, raw: Raw) -> str:
        digits = raw.pattern.parts[0].replace("-", "").lower()
        if raw.pattern.parts[1:] not in ((), ("",)) or not _HEX.fullmatch(digits):  # a star at the end is implied
            raise raw.error("this is no id: give its hexadecimal digits, or the first few of them")
        return digits

    def write(self, value: str) -> str:
        return str(UUID(value)) if len(value) == _DIGITS else value

    def holds(self, term: Term, event: Event) -> bool:
        return str(getattr(event, self.column, None) or "").replace("-", "").startswith(term.values)

    def condition(self, term: Term, bind: Binder) -> str:
        whole = [bind.uuid(value) for value in term.values if len(value) == _DIGITS]
        parts = [f"{self.column} {one_of(whole)}"] if whole else []
        for value in term.values:
            if len(value) < _DIGITS:
                first, last = bind.uuid(value.ljust(_DIGITS, "0")), bind.uuid(value.ljust(_DIGITS, "f"))
                parts.append(f"{self.column} between {first} and {last}")
        return " or ".join(parts)

    def shown(self, value: str) -> str:
        return self.write(value) + ("" if len(value) == _DIGITS else "…")


_FLAGS: Final = {"yes": True, "true": True, "no": False, "false": False}
_HEX: Final = re.compile(r"[0-9a-f]{1,32}")
_DIGITS: Final = 32
