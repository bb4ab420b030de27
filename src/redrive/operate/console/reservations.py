"""Reservations and locks: who holds what, until when."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.lock import PREFIX
from redrive.operate.auth import Permission
from redrive.operate.console.shell import SHOWN, done, form, new_router, page
from redrive.operate.console.tree import lines
from redrive.operate.web.api.shared import CursorQuery, after, place_in
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.reserve import Reservation

router = new_router()


@router.get("/reservations")
@needs(Permission.LOOK)
async def reservations(
    request: Request, app: AppOf, caller: CallerOf, cursor: CursorQuery = None,
    everything: bool = False,  # noqa: FBT001, FBT002 - a query
) -> Response:  # fmt: skip
    """List what is held, by name; with ``everything`` also what was."""
    query = f"reservations {everything}"
    found = await app.reservations.ls(everything=everything, after=place_in(query, cursor) or "", limit=SHOWN)
    return page(
        request, "reservations.html", caller, here="/reservations", topics=("reservation",), everything=everything,
        held=[_shown(app, each) for each in found], is_first=cursor is None,
        next=after(query, found[-1].resource if len(found) == SHOWN else None),
    )  # fmt: skip


def _shown(app: Redrive, each: Reservation) -> dict[str, Any]:
    told = each.to_json()
    facts = app.mask.everywhere(told["facts"])
    is_lock = each.resource.startswith(PREFIX)
    return {
        **told, "name": each.resource.removeprefix(PREFIX) if is_lock else each.resource, "is_lock": is_lock,
        "lines": [] if facts is None else lines(facts),
        "state": "held" if each.is_held else "ran out" if each.released_at is None else "released",
    }  # fmt: skip


@router.post("/reservations/release")
@needs(Permission.ACT)
async def release(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Take a resource away from its holder."""
    said = await form(request)
    await app.reservations.release(said["resource"], by=caller.actor, reason=said["reason"])
    return done(request, "/reservations", "take-away")
