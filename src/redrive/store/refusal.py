"""Refusal: what the database's own rules say, in our words, whoever's connection it was.

PostgreSQL gives such an error a state of ours. SQLite has nothing but the text that the migration wrote.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from redrive.errors import BatchClosed, BatchNotFound, EventNotFound, RedriveError, Refused

STATES: Final[Mapping[str, type[RedriveError]]] = {
    "RD400": Refused,
    "RD404": EventNotFound,
    "RD409": Refused,
    "RD410": BatchClosed,
    "RD414": BatchNotFound,
}
_TEXTS: Final[Mapping[str, type[RedriveError]]] = {
    "there is no such batch:": BatchNotFound,
    "the batch is closed:": BatchClosed,
}


def refusal(error: BaseException) -> RedriveError | None:
    """Find a refusal of ours in what a driver raised, or a library around it."""
    for each in _chain(error):
        said = str(each).partition("\n")[0]
        kind = STATES.get(getattr(each, "sqlstate", None) or "")
        kind = kind or next((kind for text, kind in _TEXTS.items() if said.startswith(text)), None)
        if kind is not None:
            return kind(said)
    return None


@contextmanager
def refusals() -> Iterator[None]:
    """Raise our own errors instead of the driver's, where there is one."""
    try:
        yield
    except Exception as error:
        own = None if isinstance(error, RedriveError) else refusal(error)
        if own is None:
            raise
        raise own from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "orig", None)  # SQLAlchemy keeps the driver's error there
        if isinstance(inner, BaseException):
            yield from _chain(inner)
        yield error
        error = error.__cause__
