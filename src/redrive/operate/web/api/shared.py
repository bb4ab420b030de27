"""What the routes share: routers, pages with cursors, reasons, what an error looks like."""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from redrive.operate.web.guard import Guarded
from redrive.operate.web.problems import BAD_CURSOR, Problem
from redrive.replay import REASON_LIMIT

BASE: Final = "/api/v1"
_CHECK: Final = 6
_PROBLEM: Final = {
    "description": "A problem (RFC 9457).",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail", "next"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "next": {"type": "string", "description": "What to do now."},
                },
            }
        }
    },
}


def router(resource: str) -> APIRouter:
    """Make the router of a resource."""
    statuses: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 403, 404, 409, 422, 503), _PROBLEM)
    return APIRouter(prefix=BASE, tags=[resource], route_class=Guarded, responses=statuses)


# --- what callers send ---

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=REASON_LIMIT)]
IdPath = Annotated[str, Path(max_length=64, description="The id, or a unique beginning of it.")]
NamePath = Annotated[str, Path(max_length=512)]
LimitQuery = Annotated[int, Query(ge=1, le=200, description="At most so many.")]
CursorQuery = Annotated[str | None, Query(max_length=1_024, description="`next` of the page before.")]
SelectionQuery = Annotated[
    str, Query(max_length=4_096, description="Which: `type:order.* class:missing age>1h`; all without it.")
]


class Sent(BaseModel):
    """What a caller sends; what nobody knows is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Why(Sent):
    """A reason, kept on the trail."""

    reason: Text = Field(description="Why; it is kept on the trail.")


# --- pages ---


def page(items: Sequence[Any], next_: str | None = None) -> dict[str, Any]:
    """Return some items, and the cursor of those that follow."""
    return {"items": items, "next": next_}


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
    if not text or check != _check(query, text) or written != given:
        raise Problem(BAD_CURSOR, "the cursor was changed on its way, or belongs to another list or selection")
    return text.decode("utf-8")


def id_in(query: str, given: str | None) -> UUID | None:
    """Read a cursor that is an id."""
    place = place_in(query, given)
    return None if place is None else UUID(place)


def _check(query: str, text: bytes) -> bytes:
    # Not a signature: a cursor opens nothing. It keeps one from being bent, or used for another list, unnoticed.
    return hashlib.sha256(query.encode("utf-8", "surrogatepass") + b"\0" + text).digest()[:_CHECK]
