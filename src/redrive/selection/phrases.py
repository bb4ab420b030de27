"""Phrases: the words of which sentences and error messages are made.

A field says its term with a form for each operator. ``sentence`` puts the terms together.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from redrive.event import Status
from redrive.selection.spelling import quote

Forms = Mapping[str, str]  # what is said for each operator

# {0}: the values, {1}: the noun, {2}: its plural ending
AMOUNT: Final[Forms] = {
    ":": "with {0} {1}{2}", ">": "with more than {0} {1}{2}", ">=": "with at least {0} {1}{2}",
    "<": "with fewer than {0} {1}{2}", "<=": "with at most {0} {1}{2}",
}  # fmt: skip
ORDINAL: Final[Forms] = {
    ":": "of {1} {0}", ">": "of a {1} after {0}", ">=": "of {1} {0} or later", "<": "of a {1} before {0}",
    "<=": "of {1} {0} or earlier",
}  # fmt: skip
# The lower number is the higher priority.
RANK: Final[Forms] = {
    ":": "with {0} {1}", ">": "with a {1} below {0}", ">=": "with {0} {1} or below", "<": "with a {1} above {0}",
    "<=": "with {0} {1} or above",
}  # fmt: skip

# {}: a span of time
AGE: Final[Forms] = {">": "older than {}", ">=": "at least {} old", "<": "younger than {}", "<=": "at most {} old"}
AGO: Final[Forms] = {
    ">": "more than {} ago", ">=": "at least {} ago", "<": "less than {} ago", "<=": "at most {} ago",
}  # fmt: skip
AHEAD: Final[Forms] = {
    ">": "due in more than {}", ">=": "due in at least {}", "<": "due in less than {}", "<=": "due in at most {}",
}  # fmt: skip
OVERDUE: Final[Forms] = {
    ">": "due less than {} ago or later", ">=": "due at most {} ago or later", "<": "due more than {} ago",
    "<=": "due at least {} ago",
}  # fmt: skip
BY_NOW: Final[Forms] = {"<": "overdue", "<=": "due by now", ">": "not yet due", ">=": "due now or later"}

SIDE: Final[Forms] = {"<": "before", "<=": "at or before", ">": "after", ">=": "at or after"}
HELD: Final[Forms] = {":": "", ">": "above ", ">=": "of at least ", "<": "below ", "<=": "of at most "}

_MOST_LISTED: Final = 5
_LONGEST_SHOWN: Final = 80


def noun(statuses: Sequence[str], ending: str) -> str:
    """Name events by their status; a failed one is a dead letter."""
    plain = [status.replace("_", "-") for status in statuses if status != Status.FAILED]
    nouns = [f"{listed(plain)} event{ending}"] if plain else []
    return " or ".join(nouns + [f"dead letter{ending}"] * (Status.FAILED in statuses))


def listed(shown: Iterable[str]) -> str:
    """Join with commas and *or*; many are counted."""
    each = list(shown)
    if len(each) > _MOST_LISTED + 1:
        each = [*each[:_MOST_LISTED], f"{len(each) - _MOST_LISTED} others"]
    return " or ".join((", ".join(each[:-1]), each[-1]) if each[1:] else each)


def clipped(written: str) -> str:
    """Leave out the end of what is long."""
    return written if len(written) <= _LONGEST_SHOWN else written[:_LONGEST_SHOWN] + "…"


def cut(text: str) -> str:
    """Show a text of somebody else in a message."""
    return clipped(quote(text))
