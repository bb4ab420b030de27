"""The trail: everything that was done, by whom, and proof that it was not changed."""

from typing import Annotated, Any

from fastapi import Query

from redrive.operate import masked, views
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import CursorQuery, IdPath, LimitQuery, after, number_in, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, needs

router = new_router("audit")


@router.get("/audit")
@needs(Permission.LOOK)
async def audit(
    app: AppOf,
    chain: Annotated[str, Query(max_length=64, description="A worker's session, or `operator`.")] = "operator",
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """List what was recorded in a chain of the trail, newest first: what people did, unless another is named."""
    query = f"audit {chain}"
    found = await views.chain_of_trail(app, chain, before=number_in(query, cursor), limit=limit)
    following = found[-1].seq if len(found) == limit else None
    return page([masked.entry(app, each) for each in found], after(query, following))


@router.get("/events/{event_id}/trail")
@needs(Permission.LOOK)
async def trail(app: AppOf, event_id: IdPath) -> dict[str, Any]:
    """List everything that was recorded of one event."""
    found = await views.find(app, event_id)
    secrets = masked.secrets_of(app, found)
    return page([masked.entry(app, each, secrets) for each in await app.trail(found.id)])


@router.post("/audit/verify")
@needs(Permission.ACT)
async def verify(app: AppOf) -> dict[str, Any]:
    """Check every chain of the trail. Walks all of it."""
    verdict = await app.verify_trail()
    return {
        "sound": verdict.sound,
        "entries": verdict.entries,
        "chains": len(verdict.heads),
        "problems": verdict.problems,
    }
