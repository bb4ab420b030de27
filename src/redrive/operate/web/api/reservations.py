"""Reservations and locks: who holds what, until when."""

from typing import Annotated, Any

from pydantic import Field

from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import CursorQuery, LimitQuery, Why, after, page, place_in
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("reservations")


@router.get("/reservations")
@needs(Permission.LOOK)
async def reservations(
    app: AppOf,
    everything: bool = False,  # noqa: FBT001, FBT002 - FastAPI gives it by name
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """List what is held; with ``everything`` also what was."""
    query = f"reservations {everything}"
    found = await app.reservations.ls(everything=everything, after=place_in(query, cursor) or "", limit=limit)
    following = found[-1].resource if len(found) == limit else None
    return page([_shown(app, each.to_json()) for each in found], after(query, following))


class Held(Why):
    """Which resource, and why."""

    resource: Annotated[str, Field(min_length=1, max_length=512)]


@router.post("/reservations/release")
@needs(Permission.ACT)
async def release(app: AppOf, caller: CallerOf, held: Held) -> dict[str, Any]:
    """Take it away from its holder, whose token is refused from now on."""
    done = await app.reservations.release(held.resource, by=caller.actor, reason=held.reason)
    return _shown(app, done.to_json())


def _shown(app: AppOf, told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "facts": app.mask.everywhere(told.get("facts"))}
