"""Transports: how it stands with brokers; sending a window again."""

from datetime import timedelta

from fastapi import Request
from starlette.responses import Response

from redrive.duration import span
from redrive.operate.auth import Permission
from redrive.operate.console.shell import done, form, new_router, page
from redrive.operate.web.api.transports import MOST_COPIES
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()


@router.get("/transports")
@needs(Permission.LOOK)
async def transports(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """List routes and intakes, what is in trouble first."""
    found = sorted(await app.traffic.standing(), key=lambda each: (each.state in ("ok", "idle"), each.kind, each.name))
    return page(
        request, "transports.html", caller, here="/transports", topics=("transport_state", "outbox"), most=MOST_COPIES,
        transports=[{**each.to_json(), "error": app.mask.text(each.error)} for each in found],
    )  # fmt: skip


@router.post("/transports/republish")
@needs(Permission.ACT)
async def republish(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Send once more what a route delivered in a window that ends some time ago."""
    said = await form(request)
    now = app.clock.now()
    since = now - timedelta(seconds=span(said["since"], "since"))
    until = now - timedelta(seconds=span(said["until"], "until")) if said["until"] else now
    sent = await app.traffic.republish(
        said["route"], since=since, until=until, by=caller.actor, reason=said["reason"], limit=MOST_COPIES
    )
    return done(request, "/transports", "republish", n=sent.copies)
