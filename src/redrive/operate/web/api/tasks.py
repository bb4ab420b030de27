"""Tasks: everything of one correlation id."""

from typing import Annotated, Any

from fastapi import Path, Request

from redrive.errors import NotFound
from redrive.operate import masked
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, needs

router = new_router("tasks")


@router.get("/tasks/{correlation_id:path}")
@needs(Permission.LOOK)
async def task(
    request: Request, app: AppOf, correlation_id: Annotated[str, Path(min_length=1, max_length=255)]
) -> dict[str, Any]:
    """Show a whole task: its events below one another by cause, and how it stands. At most 1,000 events."""
    told = await masked.task(app, correlation_id, request.app.state.also)
    if not told["events"]:
        raise NotFound(f"no event has the correlation id {correlation_id[:80]!r}")
    return told
