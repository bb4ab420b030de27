"""Who works, and what changes."""

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse

from redrive.operate import views
from redrive.operate.auth import Permission
from redrive.operate.views import plain
from redrive.operate.web.api.shared import page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.changes import Changes, read
from redrive.operate.web.guard import AppOf, needs

router = new_router("live")

SinceQuery = Annotated[str, Query(max_length=1_000, description="What a page says as `data-since`: how things stood.")]


@router.get("/workers")
@needs(Permission.LOOK)
async def workers(app: AppOf) -> dict[str, Any]:
    """List the workers that are here, and those that left lately."""
    live = {each.id for each in await views.live_workers(app)}
    return page([{**plain(each), "is_live": each.id in live} for each in await views.workers(app)])


@router.get(
    "/changes",
    responses={200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
    response_class=StreamingResponse,
)
@needs(Permission.LOOK)
async def changes(request: Request, since: SinceQuery = "") -> Response:
    """Tell what kind of thing has changed, as it changes: `event: changed`, `data: {"topics": ["outbox"]}`."""
    found: Changes = request.app.state.changes
    found.check_room()
    told = found.stream(read(since))
    return StreamingResponse(told, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
