"""Record: what people did, and what will hurt later."""

import asyncio
from datetime import datetime
from typing import Annotated, Final

from fastapi import Query, Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.operate import doctor, masked, views
from redrive.operate.auth import Permission
from redrive.operate.console.shell import SHOWN, new_router, page
from redrive.operate.web.api.shared import CursorQuery, after, number_in
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()

_CHAINS: Final = 12
_FRESH_SECONDS: Final = 10.0


@router.get("/audit")
@needs(Permission.LOOK)
async def audit(
    request: Request, app: AppOf, caller: CallerOf,
    chain: Annotated[str, Query(max_length=64)] = "operator", cursor: CursorQuery = None,
) -> Response:  # fmt: skip
    """List what was recorded in a chain of the trail, newest first: what people did, unless another is named."""
    query = f"audit {chain}"
    found = await views.chain_of_trail(app, chain, before=number_in(query, cursor), limit=SHOWN)
    return page(
        request, "audit.html", caller, here="/audit", topics=("trail",), chain=chain, verdict=None,
        entries=[masked.entry(app, each) for each in found], is_first=cursor is None,
        workers=(await views.live_workers(app))[:_CHAINS],
        next=after(query, found[-1].seq if len(found) == SHOWN else None),
    )  # fmt: skip


@router.post("/audit/verify")
@needs(Permission.ACT)
async def verify(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Check every chain of the trail. Walks all of it."""
    verdict = await app.verify_trail()
    return page(request, "verdict.html", caller, here="/audit", verdict=verdict)


@router.get("/problems")
@needs(Permission.LOOK)
async def problems(request: Request, app: AppOf, caller: CallerOf, look: bool = False) -> Response:  # noqa: FBT001, FBT002 - a query
    """Show what was found when somebody looked last; looking may take long, so it is asked for."""
    held = _examination(request)
    if look:
        await held.look(app)
    return page(
        request, "problems.html", caller, here="/problems", checks=held.checks, looked_at=held.looked_at,
        is_due=not look and held.is_due(app),
    )  # fmt: skip


def _examination(request: Request) -> "Examination":
    state = request.app.state
    if not hasattr(state, "examination"):
        state.examination = Examination()
    found: Examination = state.examination
    return found


class Examination:
    """What was found when somebody looked last."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._due = 0.0
        self.checks: list[doctor.Check] = []
        self.looked_at: datetime | None = None

    def is_due(self, app: Redrive) -> bool:
        """Say whether that is long ago."""
        return app.clock.monotonic() >= self._due

    async def look(self, app: Redrive) -> None:
        """Look, unless somebody has just done so."""
        async with self._looking:
            if not self.is_due(app):
                return
            await app.open()
            found = [check async for check in doctor.look(app)]
            self.checks = sorted(found, key=lambda check: ("problem", "warning", "ok").index(check.health))
            self.looked_at = app.clock.now()
            self._due = app.clock.monotonic() + _FRESH_SECONDS
