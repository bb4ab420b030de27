"""Cursors: where a list goes on, written down so that it fits that very list and no other."""

import base64
import binascii
import hashlib
import re
from typing import Final
from uuid import UUID

from redrive.errors import RedriveError

_CHECK: Final = 6
_NUMBER: Final = re.compile(r"[0-9]{1,18}")  # what a column holds
_WRONG: Final = "the cursor was changed on its way, or belongs to another list or selection"


class BadCursor(RedriveError):
    """A cursor is none of ours, or of another list."""


def after(query: str, place: str | UUID | int | None) -> str | None:
    """Write down where a list goes on; it fits the same query only."""
    if place is None:
        return None
    text = str(place).encode()
    return base64.urlsafe_b64encode(_check(query, text) + text).rstrip(b"=").decode("ascii")


def place_in(query: str, given: str | None) -> str | None:
    """Read a cursor."""
    if given is None:
        return None
    try:
        raw = base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
        check, text = raw[:_CHECK], raw[_CHECK:]
        written = after(query, text.decode("utf-8"))
    except (binascii.Error, ValueError):
        check, text, written = b"", b"", None
    if not text or check != _check(query, text) or written != given or b"\0" in text:
        raise BadCursor(_WRONG)
    return text.decode("utf-8")


def id_in(query: str, given: str | None) -> UUID | None:
    """Read a cursor that is an id."""
    place = place_in(query, given)
    try:
        return None if place is None else UUID(place)
    except ValueError:
        raise BadCursor(_WRONG) from None


def number_in(query: str, given: str | None) -> int | None:
    """Read a cursor that is a number."""
    place = place_in(query, given)
    if place is not None and not _NUMBER.fullmatch(place):
        raise BadCursor(_WRONG)
    return None if place is None else int(place)


def _check(query: str, text: bytes) -> bytes:
    # Not a signature: a cursor opens nothing. It keeps one from being bent, or used for another list, unnoticed. Who
    # has read this can make one of any text; whoever reads a cursor expects that.
    return hashlib.sha256(query.encode("utf-8", "surrogatepass") + b"\0" + text).digest()[:_CHECK]
