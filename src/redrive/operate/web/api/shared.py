"""What the routes share: routers, pages with cursors, reasons, what an error looks like."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from redrive.operate.cursor import after, id_in, number_in, place_in
from redrive.operate.web.guard import Guarded
from redrive.replay import REASON_LIMIT

__all__ = [
    "BASE", "CursorQuery", "IdPath", "LimitQuery", "NamePath", "SelectionQuery", "Sent", "Strict", "Text", "Why",
    "after", "id_in", "number_in", "page", "place_in", "router",
]  # fmt: skip

BASE: Final = "/api/v1"
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


class Strict(BaseModel):
    """What a caller sends; what nobody knows is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Sent(Strict):
    """The same, and no text in it holds what no database has a place for."""

    @model_validator(mode="after")
    def _has_no_nul(self) -> Self:
        if any(isinstance(value, str) and "\0" in value for value in self.__dict__.values()):
            raise ValueError("a text holds NUL: no database has a place for it")
        return self


class Why(Sent):
    """A reason, kept on the trail."""

    reason: Text = Field(description="Why; it is kept on the trail.")


# --- pages ---


def page(items: Sequence[Any], next_: str | None = None) -> dict[str, Any]:
    """Return some items, and the cursor of those that follow."""
    return {"items": items, "next": next_}
