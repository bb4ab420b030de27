"""Sentence: what a selection means, in English.

How many of what comes first, then what the events are and how they failed, then the rest in the order of the fields,
and at the end what shall not hold: "312 dead letters of order.paid that failed with GatewayTimeout before 14:05".
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from redrive.event import Status
from redrive.selection.fields import FIELDS
from redrive.selection.phrases import noun
from redrive.selection.terms import Term

_NEAR: Final = ("type", "target", "source", "queue", "group")
_FAILED: Final = ("error-type", "class", "text", "failed", "failed-at")


def sentence(terms: Sequence[Term], now: datetime, count: int | None) -> str:
    """Say what is meant, of how many when that is known."""
    subject, left = _counted(terms, count)

    def said(*names: str) -> list[str]:
        of_each = ([_said(term, now) for term in left if term.field == name and not term.negated] for name in names)
        return [" and ".join(phrases) for phrases in of_each if phrases]

    failed = said(*_FAILED)
    main = [" ".join((subject, *said(*_NEAR), *(["that failed", *failed] if failed else [])))]
    rest = said(*(name for name in FIELDS if name not in _NEAR + _FAILED))
    if main == [subject] and rest:  # no comma right behind the noun
        main = [f"{subject} {rest.pop(0)}"]
    denied = [
        f"{'failed ' if term.field.startswith('failed') else ''}{_said(term, now)}" for term in left if term.negated
    ]
    return ", ".join(main + rest) + (f", but not {', nor '.join(denied)}" if denied else "")


def _said(term: Term, now: datetime) -> str:
    return FIELDS[term.field].said(term, now)


def _counted(terms: Sequence[Term], count: int | None) -> tuple[str, list[Term]]:
    """Say how many of what, and return the terms that are still to be said."""
    number = ("" if terms else "all ") if count is None else f"{count or 'no':{',' if count else ''}} "
    ending = "" if count == 1 else "s"
    status = next((term for term in terms if term.field == "status" and not term.negated), None)
    if status is None:
        return f"{number}event{ending}", list(terms)
    left = [term for term in terms if term is not status]
    if status.values == (Status.FAILED,):
        discarded = next((term for term in left if term.field == "discarded" and len(term.values) == 1), None)
        left = [term for term in left if term is not discarded]
        number += "discarded " if discarded is not None and discarded.values[0] else ""
    return number + noun(status.values, ending), left
