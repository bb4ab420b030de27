"""Transports: how it stands with brokers, and sending a window again."""

from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import Why, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("transports")

MOST_COPIES = 10_000
"""How many events one call sends again; a larger window takes several."""


@router.get("/transports")
@needs(Permission.LOOK)
async def transports(app: AppOf) -> dict[str, Any]:
    """List routes and intakes: state, how much waits, since when the oldest does, how much has moved."""
    found = [each.to_json() for each in await app.traffic.standing()]
    return page([{**each, "error": app.mask.text(each["error"])} for each in found])


class Window(Why):
    """Which route, and what it delivered from when to when."""

    route: Annotated[str, Field(min_length=1, max_length=512)]
    since: Annotated[AwareDatetime, Field(strict=False)]
    until: Annotated[AwareDatetime, Field(strict=False)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_COPIES)] = MOST_COPIES


@router.post("/transports/republish")
@needs(Permission.ACT)
async def republish(app: AppOf, caller: CallerOf, what: Window) -> dict[str, Any]:
    """Send once more what a route delivered in a window, for a broker that lost what it had acknowledged."""
    done = await app.traffic.republish(
        what.route, since=what.since, until=what.until or app.clock.now(), by=caller.actor, reason=what.reason,
        limit=what.limit,
    )  # fmt: skip
    return {"target": done.target, "copies": done.copies, "more": done.more}
