"""Batches: events that belong together, and the two notices about them."""

from typing import Annotated, Any

from fastapi import Query

from redrive.operate import masked
from redrive.operate.auth import Permission
from redrive.operate.views import plain
from redrive.operate.web.api.shared import CursorQuery, IdPath, LimitQuery, Why, after, id_in, page, place_in
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("batches")


@router.get("/batches")
@needs(Permission.LOOK)
async def batches(
    app: AppOf,
    name: Annotated[str | None, Query(max_length=255)] = None,
    unfinished: bool = False,  # noqa: FBT001, FBT002 - FastAPI gives it by name
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """List batches, the newest first; which members failed is told of one batch alone."""
    query = f"batches {name} {unfinished}"
    found = await app.batches.ls(name=name, unfinished=unfinished, before=id_in(query, cursor), limit=limit)
    following = found[-1].id if len(found) == limit else None
    return page([await masked.batch(app, each, most=0) for each in found], after(query, following))


@router.get("/batches/{batch_id}")
@needs(Permission.LOOK)
async def batch(app: AppOf, batch_id: IdPath) -> dict[str, Any]:
    """Show one: how many of its members stand where, and what its notices said."""
    return await masked.batch(app, await (await app.batches.find(batch_id)).look())


@router.get("/batches/{batch_id}/groups")
@needs(Permission.LOOK)
async def groups(app: AppOf, batch_id: IdPath, cursor: CursorQuery = None, limit: LimitQuery = 50) -> dict[str, Any]:
    """List the groups inside a batch, by name."""
    found = await app.batches.find(batch_id)
    query = f"batch groups {found.id}"
    listed = await found.groups(after=place_in(query, cursor), limit=limit)
    following = listed[-1].name if len(listed) == limit else None
    return page([{**plain(each), "state": each.state} for each in listed], after(query, following))


@router.post("/batches/{batch_id}/close")
@needs(Permission.ACT)
async def close(app: AppOf, caller: CallerOf, batch_id: IdPath, why: Why) -> dict[str, Any]:
    """Close it: nothing can be added from now on, and its notices come when they are due."""
    found = await app.batches.find(batch_id)
    return await masked.batch(app, await app.batches.close(found.id, by=caller.actor, reason=why.reason))


@router.post("/batches/{batch_id}/force")
@needs(Permission.ACT)
async def force(app: AppOf, caller: CallerOf, batch_id: IdPath, why: Why) -> dict[str, Any]:
    """Send the notices now, whatever is left; members go on."""
    found = await app.batches.find(batch_id)
    return await masked.batch(app, await app.batches.force(found.id, by=caller.actor, reason=why.reason))
