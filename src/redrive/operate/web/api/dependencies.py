"""What events wait for: dependencies, brakes, holds."""

from typing import Annotated, Any

from pydantic import Field

from redrive.app import Redrive
from redrive.operate import masked, views
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import NamePath, Why, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("dependencies")


@router.get("/dependencies")
@needs(Permission.LOOK)
async def dependencies(app: AppOf) -> dict[str, Any]:
    """List dependencies, brakes and holds: what is shut first, and how many wait."""
    return page([masked.standing(app, each) for each in await views.dependencies(app)])


@router.get("/dependencies/{name}")
@needs(Permission.LOOK)
async def dependency(app: AppOf, name: NamePath) -> dict[str, Any]:
    """Show one: its state, who shut it and why, how many wait, when it is looked at next."""
    return await _one(app, name)


async def _one(app: Redrive, name: str) -> dict[str, Any]:
    return masked.standing(app, await views.dependency(app, name))


class Opened(Why):
    """Whether it is gone, or works in a reduced mode."""

    degraded: bool = False


@router.post("/dependencies/{name}/open")
@needs(Permission.ACT)
async def open_(app: AppOf, caller: CallerOf, name: NamePath, how: Opened) -> dict[str, Any]:
    """Open a circuit by hand: events that need it wait until it is closed by hand."""
    await app.open_dependency(name, by=caller.actor, reason=how.reason, degraded=how.degraded)
    return await _one(app, name)


@router.post("/dependencies/{name}/close")
@needs(Permission.ACT)
async def close(app: AppOf, caller: CallerOf, name: NamePath, why: Why) -> dict[str, Any]:
    """Close a circuit or a brake: those who wait come back, oldest first, at a growing rate."""
    await app.close_dependency(name, by=caller.actor, reason=why.reason)
    return await _one(app, name)


class Hold(Why):
    """A type, `order.*` for all that begin so, or a queue."""

    type: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    queue: Annotated[str, Field(min_length=1, max_length=255)] | None = None


@router.post("/holds")
@needs(Permission.ACT)
async def hold(app: AppOf, caller: CallerOf, what: Hold) -> dict[str, Any]:
    """Pause a type or a queue; workers take notice within a second."""
    placed = await app.hold(what.type, queue=what.queue, by=caller.actor, reason=what.reason)
    return await _one(app, placed.name)


@router.post("/holds/lift")
@needs(Permission.ACT)
async def lift(app: AppOf, caller: CallerOf, what: Hold) -> dict[str, Any]:
    """Let a paused type or queue go on; those who waited come back at a growing rate."""
    lifted = await app.lift(what.type, queue=what.queue, by=caller.actor, reason=what.reason)
    return await _one(app, lifted.name)
