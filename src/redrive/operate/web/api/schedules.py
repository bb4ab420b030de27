"""Schedules: what comes by the clock."""

from typing import Annotated, Any

from pydantic import Field

from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import Why, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.schedule import Schedule

router = new_router("schedules")


class Named(Why):
    """Which schedule, and why. Names are free text, so they travel in the body, not in the path."""

    name: Annotated[str, Field(min_length=1, max_length=255)]


@router.get("/schedules")
@needs(Permission.LOOK)
async def schedules(app: AppOf) -> dict[str, Any]:
    """List them: what they publish, how often, when next."""
    return page([_shown(app, each) for each in await app.schedules.ls()])


@router.post("/schedules/pause")
@needs(Permission.TUNE)
async def pause(app: AppOf, caller: CallerOf, what: Named) -> dict[str, Any]:
    """Let it tick no more until it is resumed."""
    return _shown(app, await app.schedules.pause(what.name, by=caller.actor, reason=what.reason))


@router.post("/schedules/resume")
@needs(Permission.TUNE)
async def resume(app: AppOf, caller: CallerOf, what: Named) -> dict[str, Any]:
    """Let it tick again, from now on."""
    return _shown(app, await app.schedules.resume(what.name, by=caller.actor, reason=what.reason))


def _shown(app: AppOf, found: Schedule) -> dict[str, Any]:
    told = found.to_json()
    return {**told, **{name: app.mask.everywhere(told[name]) for name in ("payload", "options")}}


@router.post("/schedules/run")
@needs(Permission.ACT)
async def run(app: AppOf, caller: CallerOf, what: Named) -> dict[str, Any]:
    """Publish one event more, now; the ticks stay as they are."""
    published = await app.schedules.run_now(what.name, by=caller.actor, reason=what.reason)
    return {"event_id": str(published.id)}
