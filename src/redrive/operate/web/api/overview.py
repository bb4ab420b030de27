"""What an operator asks first."""

from typing import Annotated, Any

from fastapi import Query, Request

from redrive.operate import doctor, masked
from redrive.operate.auth import ALLOWED, Permission
from redrive.operate.web import api
from redrive.operate.web.api.shared import page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("overview")


@router.get("/overview")
@needs(Permission.LOOK)
async def overview(app: AppOf) -> dict[str, Any]:
    """Say how many stand where, who works, how old the backlog is, and what needs a person."""
    return await masked.overview(app)


@router.get("/attention")
@needs(Permission.LOOK)
async def attention(app: AppOf, kind: Annotated[list[str] | None, Query(max_length=20)] = None) -> dict[str, Any]:
    """List what will not move by itself: why, since when, and which command comes next."""
    return page(await masked.matters(app, kind or ()))


@router.get("/problems")
@needs(Permission.LOOK)
async def problems(app: AppOf) -> dict[str, Any]:
    """Look for what will hurt later."""
    await app.open()
    return page([check.to_json() async for check in doctor.look(app)])


@router.get("/whoami")
@needs(Permission.LOOK)
async def whoami(caller: CallerOf) -> dict[str, Any]:
    """Say who you are here, and what you may do."""
    return {
        "name": caller.name,
        "actor": caller.actor,
        "role": str(caller.role),
        "permissions": sorted(map(str, ALLOWED[caller.role])),
    }


@router.get("/openapi.json", include_in_schema=False)
@needs(Permission.LOOK)
async def openapi(request: Request) -> dict[str, Any]:
    """Describe this API."""
    return api.described(request.app.routes)
