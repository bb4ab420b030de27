"""Kinds of fields that are JSON documents: a place in the payload, and a header by its name."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from redrive.event import Event
from redrive.selection.kinds import Kind
from redrive.selection.phrases import HELD, clipped, listed
from redrive.selection.spelling import (
    BARE_HEADER,
    BARE_STEP,
    Piece,
    Raw,
    read_name,
    read_path,
    write_path,
    write_pattern,
)
from redrive.selection.sql import Binder, PostgresPlace, SqlitePlace
from redrive.selection.terms import COMPARE, ORDERED, JsonLiteral, Path, Pattern, Term, is_comparable, is_json_literal

_SITE: Final = ("redrive.site",)


@dataclass(frozen=True, slots=True)
class Document(Kind):
    """A place in the payload. Text means a string; a number, true, false or null means that or a string like it."""

    operators: ClassVar[tuple[str, ...]] = (":", *ORDERED)
    bare: ClassVar[re.Pattern[str]] = BARE_STEP

    def read_path(self, head: Piece, at: int) -> Path | None:
        return read_path(head.source, at, head.end) if head.source[at] in ".[:=<>!" else None

    def write_path(self, path: Path) -> str:
        return write_path(path, self.bare)

    def read(self, raw: Raw) -> Pattern | JsonLiteral:
        text = raw.pattern.parts[0]
        return JsonLiteral(text) if raw.plain and is_json_literal(text) else raw.pattern

    def write(self, value: Pattern | JsonLiteral) -> str:
        if isinstance(value, JsonLiteral):
            return value.text
        return write_pattern(value, quoted=value.is_exact and is_json_literal(value.parts[0]))

    def checked(self, term: Term, raws: Sequence[Raw]) -> Term:
        value = term.values[0]
        if term.op != ":" and (isinstance(value, Pattern) or value.number is None):
            raise raws[0].error(f"{term.op} compares numbers, and this is none that every store could compare")
        return term

    def holds(self, term: Term, event: Event) -> bool:
        held = getattr(event, self.column)
        for step in term.path:
            inside = isinstance(held, dict) and step in held
            if not inside and not (isinstance(held, list) and isinstance(step, int) and step < len(held)):
                return False
            held = held[step]
        return any(_fits(held, term.op, value) for value in term.values)

    def condition(self, term: Term, bind: Binder) -> str:
        place = (PostgresPlace if bind.postgres else SqlitePlace)(self.column, term.path, bind)
        return place.condition(term.op, term.values)

    def place(self, path: Path) -> str:
        return f"payload{self.write_path(path)}"

    def said(self, term: Term, _: datetime) -> str:
        place = clipped(self.place(term.path))
        if all(isinstance(value, Pattern) and value.is_anything for value in term.values):
            return f"with any {place}"
        return f"with {place} {HELD[term.op]}{listed(map(self.shown, term.values))}"


class Header(Document):
    """A header: everything behind the first dot is its name, and its value is text."""

    __slots__ = ()

    operators = (":",)
    bare = BARE_HEADER

    def read_path(self, head: Piece, at: int) -> Path | None:
        if not head.source.startswith(".", at, head.end):
            raise head.error("say which header: header.tenant:acme")
        return (read_name(head.source, at + 1, head.end),)

    def read(self, raw: Raw) -> Pattern:
        return raw.pattern

    def write(self, value: Pattern | JsonLiteral) -> str:
        assert isinstance(value, Pattern)
        return write_pattern(value)

    def place(self, path: Path) -> str:
        return f"header {path[0]}"


class Site(Header):
    """The site at which an event began: a header with a name of its own."""

    __slots__ = ()

    def read_path(self, head: Piece, at: int) -> Path | None:
        return Kind.read_path(self, head, at)

    def write_path(self, _: Path) -> str:
        return ""

    def holds(self, term: Term, event: Event) -> bool:
        return super().holds(replace(term, path=_SITE), event)

    def condition(self, term: Term, bind: Binder) -> str:
        return super().condition(replace(term, path=_SITE), bind)

    def said(self, term: Term, _: datetime) -> str:
        return f"of site {listed(map(self.shown, term.values))}"


def _fits(held: Any, op: str, value: Pattern | JsonLiteral) -> bool:
    if isinstance(value, Pattern):
        return value.fits(held) if isinstance(held, str) else value.is_anything
    if isinstance(held, str):
        return op == ":" and held == value.text
    if held is None or isinstance(held, bool):
        return op == ":" and json.dumps(held) == value.text
    number = value.number
    if number is None or not isinstance(held, int | float) or not is_comparable(held):
        return False
    if isinstance(held, int) and isinstance(number, int):
        return COMPARE[op](held, number)
    return COMPARE[op](float(held), float(number))
