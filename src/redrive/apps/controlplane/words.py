"""Words: the states of a request, the kinds of things it consists of, and what the services tell one another.

    POST ─► PROVISIONING ── address, volume, machine are made ──► READY ── DELETE ─► UNDOING ─► RELEASED
                  │
                  └── one cannot be made, DELETE, or the deadline ─► UNDOING ─► REJECTED | CANCELLED | FAILED

``UNDOING`` takes the things away in reverse order, and lasts until all are gone. ``FORWARDED`` is what a site knows of
a request for another site before that one has answered.
"""

from enum import StrEnum
from itertools import pairwise
from typing import Final

from pydantic import BaseModel

KINDS: Final = ("address", "volume", "machine")
"""What a request consists of, in the order in which it is made; it is undone the other way round."""

SERVICES: Final = ("requests", "addresses", "volumes", "machines")
OWNER_OF: Final = {"address": "addresses", "volume": "volumes", "machine": "machines"}

FORWARDED: Final = "request.forwarded"
CALLED_OFF: Final = "request.called-off"
MOVED: Final = "request.moved"
BETWEEN_SITES: Final = (FORWARDED, CALLED_OFF, MOVED)


class State(StrEnum):
    """Where a request stands."""

    FORWARDED = "FORWARDED"
    PROVISIONING = "PROVISIONING"
    READY = "READY"
    UNDOING = "UNDOING"
    REJECTED = "REJECTED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    RELEASED = "RELEASED"


ENDED: Final = frozenset({State.REJECTED, State.CANCELLED, State.FAILED, State.RELEASED})
SIZES: Final = ("small", "medium", "large")
MOST_GIGABYTES: Final = 500

ANSWERED: Final = frozenset({"invalid", "missing", "rejected"})
"""Error classes that are an answer to whoever asked; all others are failures of ours."""


class Wanted(BaseModel):
    """A request, as the services are told of it. ``given`` names what was made before."""

    request: str
    owner: str
    size: str
    volume_gb: int
    image: str
    given: dict[str, str] = {}


class Forwarded(Wanted):
    """A request for another site."""

    site: str
    home: str
    deadline: str


class Unwanted(BaseModel):
    """Take away whatever there is of a request."""

    request: str
    by: str
    reason: str


class CalledOff(Unwanted):
    """The same, told to the site that has the request."""

    site: str


class Made(BaseModel):
    """Something is there."""

    request: str
    name: str
    reduced: bool = False


class Failed(BaseModel):
    """Something could not be made: what was attempted on which resource, of which class the error is, and its text."""

    request: str
    operation: str
    resource: str
    error_class: str
    error: str
    safe_to_retry: bool | None


class Gone(BaseModel):
    """Nothing of it is left."""

    request: str


class Moved(BaseModel):
    """How a request stands, told to the site where it was made; a lower ``version`` is older."""

    request: str
    home: str
    version: int
    state: State
    facts: dict[str, str | bool | None]


def wanted(kind: str) -> str:
    """Name the order to make one."""
    return f"{kind}.wanted"


def unwanted(kind: str) -> str:
    """Name the order to take it away."""
    return f"{kind}.unwanted"


def made(kind: str) -> str:
    """Name the answer that it is there."""
    return f"{kind}.made"


def failed(kind: str) -> str:
    """Name the answer that it cannot be made."""
    return f"{kind}.failed"


def gone(kind: str) -> str:
    """Name the answer that nothing of it is left."""
    return f"{kind}.gone"


def after(kind: str) -> str | None:
    """Say what is made after it."""
    return dict(pairwise(KINDS)).get(kind)


def before(kind: str) -> str | None:
    """Say what was made before it, and is undone after it."""
    return dict(pairwise(reversed(KINDS))).get(kind)
