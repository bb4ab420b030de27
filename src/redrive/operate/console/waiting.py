"""Waiting: ordering keys that a dead letter holds up, and dependencies, brakes and holds that events wait for."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.dependency import HOLD, QUEUE
from redrive.operate import masked, views
from redrive.operate.auth import Permission
from redrive.operate.console.shell import SHOWN, done, form, new_router, page
from redrive.operate.web.api.shared import CursorQuery, after, id_in
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()


# --- keys ---


@router.get("/keys")
@needs(Permission.LOOK)
async def keys(request: Request, app: AppOf, caller: CallerOf, cursor: CursorQuery = None) -> Response:
    """List the keys that are held up, the oldest first."""
    query = "keys None"
    found = await app.held_keys(after=id_in(query, cursor), limit=SHOWN)
    return page(
        request, "keys.html", caller, here="/keys", topics=("outbox",), is_first=cursor is None,
        keys=await masked.held_keys(app, found),
        next=after(query, found[-1].head if len(found) == SHOWN else None),
    )  # fmt: skip


@router.post("/keys/release")
@needs(Permission.ACT)
async def release(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Let the events behind the dead letter go."""
    said = await form(request)
    await app.release_key(said["key"], by=caller.actor, reason=said["reason"], target=said["target"] or None)
    return done(request, "/keys", "release")


@router.post("/keys/skip")
@needs(Permission.ACT)
async def skip(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Discard the dead letter that holds up a key, and go on with the next."""
    said = await form(request)
    await app.skip_key(said["key"], by=caller.actor, reason=said["reason"], target=said["target"] or None)
    return done(request, "/keys", "skip")


# --- dependencies ---


@router.get("/dependencies")
@needs(Permission.LOOK)
async def dependencies(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """List dependencies, brakes and holds: what is shut first."""
    found = [_shown(app, each) for each in await views.dependencies(app)]
    return page(
        request, "dependencies.html", caller, here="/dependencies", topics=("dependency", "outbox"), dependencies=found,
        known=sorted({each for handler in app.handlers.values() for each in handler.needs}),
    )  # fmt: skip


def _shown(app: Redrive, each: views.Standing) -> dict[str, Any]:
    told = masked.standing(app, each)
    held = told["name"].removeprefix(HOLD).removeprefix(QUEUE)
    return {
        **told,
        "next_at": each.of.next_at,
        "is_shut": each.of.is_shut,
        "held": held,
        "is_queue": told["name"].startswith(QUEUE),
    }


@router.post("/dependencies")
@needs(Permission.ACT)
async def switch(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Open or close a circuit by hand."""
    said = await form(request)
    if said["verb"] == "close":
        await app.close_dependency(said["name"], by=caller.actor, reason=said["reason"])
        return done(request, "/dependencies", "close")
    await app.open_dependency(said["name"], by=caller.actor, reason=said["reason"], degraded=said.has("degraded"))
    return done(request, "/dependencies", "open")


@router.post("/holds")
@needs(Permission.ACT)
async def hold(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Put a type or a queue on hold, or lift that."""
    said = await form(request)
    what = {"queue": said["what"]} if said["kind"] == "queue" else {"type_": said["what"]}
    act = app.lift if said["verb"] == "lift" else app.hold
    await act(by=caller.actor, reason=said["reason"], **what)
    return done(request, "/dependencies", "lift" if said["verb"] == "lift" else "hold")
