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
from redrive.operate.web.api.shared import CursorQuery, after, place_in
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()

_CHAINS: Final = 12
_PATIENCE: Final = 0.05
_FRESH_SECONDS: Final = 10.0


@router.get("/audit")
@needs(Permission.LOOK)
async def audit(
    request: Request, app: AppOf, caller: CallerOf,
    chain: Annotated[str, Query(max_length=64)] = "operator", cursor: CursorQuery = None,
) -> Response:  # fmt: skip
    """List what was recorded in a chain of the trail, newest first: what people did, unless another is named."""
    query = f"audit {chain}"
    place = place_in(query, cursor)
    found = await views.chain_of_trail(app, chain, before=None if place is None else int(place), limit=SHOWN)
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
async def problems(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Show what was found when somebody looked last. Looking may take long, so a page does not wait for it."""
    held: Examination = _examination(request, app)
    await held.look()
    return page(
        request, "problems.html", caller, here="/problems", checks=held.checks, looked_at=held.looked_at,
        is_looking=held.is_looking,
    )  # fmt: skip


def _examination(request: Request, app: Redrive) -> "Examination":
    state = request.app.state
    if not hasattr(state, "examination"):
        state.examination = Examination(app)
    found: Examination = state.examination
    return found


class Examination:
    """The last look at everything, and the one under way."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0
        self.checks: list[doctor.Check] = []
        self.looked_at: datetime | None = None

    @property
    def is_looking(self) -> bool:
        return self._task is not None and not self._task.done()

    async def look(self) -> None:
        """Begin to look if the last time is long ago, and wait for a moment."""
        if not self.is_looking and self._app.clock.monotonic() >= self._due:
            self._task = asyncio.create_task(self._examine())
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=_PATIENCE)
            for each in done:
                each.result()

    async def _examine(self) -> None:
        await self._app.open()
        self.checks = sorted(
            [check async for check in doctor.look(self._app)],
            key=lambda check: ("problem", "warning", "ok").index(check.health),
        )
        self.looked_at = self._app.clock.now()
        self._due = self._app.clock.monotonic() + _FRESH_SECONDS
