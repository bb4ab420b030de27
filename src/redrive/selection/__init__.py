"""Selection: which events are meant, in one line of text.

``type:order.* class:missing,invalid -key:order-7 payload.currency:XOF age>1h text:"timed out"``: terms are joined by
*and*, alternatives by commas; ``-`` or ``not`` turns a term round; ``*`` outside quotes is any text; a bare word is
looked for in the error. ``reading`` makes terms of a text, or a ``SelectionError`` that points at the mistake;
``fields`` is the table of what can be asked for, and each kind of field knows how its values are read, written,
judged, turned into SQL and said.

``matches`` defines what each term means; ``where`` gives the same as conditions for either store, its values always
bound. A term about something that an event does not have is false, its negation true. Next: ``store`` runs it,
``operate`` plans a redrive with it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from redrive.errors import SelectionError
from redrive.event import Event, Status
from redrive.selection.fields import FIELDS
from redrive.selection.reading import read
from redrive.selection.sentence import sentence
from redrive.selection.sql import Binder, Dialect
from redrive.selection.terms import MAX_ALTERNATIVES, MAX_LENGTH, MAX_TERMS, JsonLiteral, Pattern, Term

__all__ = [
    # reading
    "parse",
    "dead_letters",
    # what was read
    "Selection",
    "Term",
    "Pattern",
    "JsonLiteral",
    "FIELDS",
    # asking a store
    "Dialect",
    # bounds
    "MAX_LENGTH",
    "MAX_TERMS",
    "MAX_ALTERNATIVES",
]


@dataclass(frozen=True, slots=True)
class Selection:
    """Terms that must all hold. Without any, every event is meant."""

    terms: tuple[Term, ...] = ()

    @property
    def text(self) -> str:
        """The canonical form, on one line and printable; it parses to an equal selection."""
        return " ".join(FIELDS[term.field].spelled(term) for term in self.terms)

    def matches(self, event: Event, now: datetime) -> bool:
        """Judge one event. This is what the conditions of ``where`` are tested against."""
        kinds = ((FIELDS[term.field], term) for term in self.terms)
        return all(kind.holds(kind.at(term, now), event) is not term.negated for kind, term in kinds)

    def where(self, dialect: Dialect, now: datetime) -> tuple[list[str], dict[str, Any]]:
        """Turn the terms into conditions and their values, for the end of a statement on the outbox."""
        bind = Binder(dialect)
        clauses = []
        for term in self.terms:
            kind = FIELDS[term.field]
            condition = kind.condition(kind.at(term, now), bind)
            if term.negated:
                clauses.append(f"and ({condition}) is not true")
            else:
                clauses.append(f"and ({condition})" if " or " in condition else f"and {condition}")
        return clauses, bind.values

    def sentence(self, now: datetime, count: int | None = None) -> str:
        """Say in English what is meant; times are UTC, and without a date when they are of today."""
        return sentence(self.terms, now.astimezone(UTC), count)


def parse(text: str) -> Selection:
    """Read a selection, or point at what is wrong with it."""
    selection = Selection(read(text))
    if len(text) > _ALWAYS_SHORT and len(selection.text) > MAX_LENGTH:
        reason = f"written out in full, this selection has more than {MAX_LENGTH:,} characters: shorten it"
        raise SelectionError(reason, text, len(text))
    return selection


def dead_letters(selection: Selection) -> Selection:
    """Narrow a selection to the quarantine, unless it says itself which status it wants, or the discarded ones."""
    said = {term.field for term in selection.terms if not term.negated}
    added = tuple(term for term in _QUARANTINE if term.field not in said)
    narrowed = Selection(added + selection.terms)
    if len(narrowed.terms) > MAX_TERMS or len(narrowed.text) > MAX_LENGTH:
        names = " and ".join(Selection((term,)).text for term in added)
        raise SelectionError(f"there is no room left for {names}: say less, or say that too", selection.text)
    return narrowed


_QUARANTINE: Final = (Term("status", ":", (Status.FAILED.value,)), Term("discarded", ":", (False,)))
_ALWAYS_SHORT: Final = 512  # even with six characters for each, and fifty long names of fields
