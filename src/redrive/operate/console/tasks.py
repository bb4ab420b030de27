"""Tasks: everything of one correlation id, whatever services and sites it went through."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from redrive.operate import masked
from redrive.operate.auth import Permission
from redrive.operate.console.shell import new_router, page
from redrive.operate.task import LIMIT
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()


@router.get("/tasks")
@needs(Permission.LOOK)
async def task(
    request: Request, app: AppOf, caller: CallerOf, id: Annotated[str, Query(max_length=255)] = ""  # noqa: A002 - a query
) -> Response:  # fmt: skip
    """Show a whole task, below one another by cause; ids are free text, so they travel in the query."""
    also = request.app.state.also
    wanted = id.strip()
    told = await masked.task(app, wanted, also) if wanted else None
    return page(
        request, "task.html", caller, here="/tasks", topics=("outbox",) if told else (), wanted=wanted, task=told,
        has_others=bool(also), most=LIMIT, has_sites=told is not None and any(each["site"] for each in told["events"]),
    )  # fmt: skip
