"""Groups: dead letters by their cause."""

from enum import StrEnum
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field

from redrive import group as engine
from redrive.errors import Refused
from redrive.operate import actions, explain, masked, views
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import CursorQuery, LimitQuery, Sent, Text, after, page, place_in
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("groups")

GroupPath = Annotated[str, Path(max_length=64, description="The fingerprint, or a unique beginning of it.")]


class State(StrEnum):
    """Where a group stands in its life."""

    NEW = "new"
    ONGOING = "ongoing"
    RESOLVED = "resolved"
    REGRESSED = "regressed"


@router.get("/groups")
@needs(Permission.LOOK)
async def groups(
    app: AppOf,
    state: State | None = None,
    everything: Annotated[bool, Query(alias="all", description="Also those without dead letters.")] = False,  # noqa: FBT002 - a query
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """List groups, the latest failure first."""
    query = f"groups {state} {everything}"
    place = place_in(query, cursor)
    await app.open()
    last = None if place is None else await views.find_group(app, place)
    found = await engine.groups(
        app.store, everything=everything or state is State.RESOLVED, state=state, limit=limit, after=last
    )
    following = found[-1].fingerprint if len(found) == limit else None
    return page(await masked.groups(app, found), after(query, following))


@router.get("/groups/{fingerprint}")
@needs(Permission.LOOK)
async def group(app: AppOf, fingerprint: GroupPath) -> dict[str, Any]:
    """Show one group: why these belong together, one of them, what sets them apart, past redrives."""
    return masked.story(app, await views.group_story(app, await views.find_group(app, fingerprint)))


@router.get("/groups/{fingerprint}/explain")
@needs(Permission.LOOK)
async def explained(app: AppOf, fingerprint: GroupPath) -> dict[str, Any]:
    """Say in sentences why these belong together and what sets them apart from what was delivered."""
    story = masked.hidden_story(app, await views.group_story(app, await views.find_group(app, fingerprint)))
    return {"fingerprint": story.group.fingerprint, "sentences": list(explain.sentences(story, app.clock.now()))}


class Said(Sent):
    """What people say of a group; what is left out stays."""

    owner: Annotated[Text, Field(max_length=255)] | None = None
    note: Text | None = None
    muted_seconds: Annotated[float, Field(ge=0, le=366 * 86_400)] | None = None
    resolved: bool = Field(default=False, description="The cause is mended; should it come back, it is regressed.")


@router.patch("/groups/{fingerprint}")
@needs(Permission.ACT)
async def describe(app: AppOf, caller: CallerOf, fingerprint: GroupPath, said: Said) -> dict[str, Any]:
    """Say who looks after a group, what is known of it, that it may be quiet for a while, or that it is resolved."""
    if not said.model_fields_set:
        raise Refused("say something of it: owner, note, muted_seconds or resolved")
    found = await actions.describe(
        app, await views.find_group(app, fingerprint), by=caller.actor, owner=said.owner, note=said.note,
        muted_for=said.muted_seconds, state="resolved" if said.resolved else None,
    )  # fmt: skip
    return await masked.group(app, found)
