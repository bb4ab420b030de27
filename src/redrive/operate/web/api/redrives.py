"""Redrives: many replays as one operation. Plan, approve, start, watch, stop, judge."""

from typing import Annotated, Any

from pydantic import Field

from redrive.errors import Refused
from redrive.operate import actions, masked, views
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import CursorQuery, IdPath, LimitQuery, Sent, Why, after, id_in, number_in, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.redrive import DEFAULT_IN_FLIGHT, Release
from redrive.selection import dead_letters, parse

router = new_router("redrives")


@router.get("/redrives")
@needs(Permission.LOOK)
async def redrives(app: AppOf, cursor: CursorQuery = None, limit: LimitQuery = 50) -> dict[str, Any]:
    """List redrives, newest first. A single replay is a redrive of one."""
    found = await app.redrivings(before=id_in("redrives", cursor), limit=limit)
    following = found[-1].id if len(found) == limit else None
    return page([views.redriving_json(each) for each in found], after("redrives", following))


class Wanted(Sent):
    """Which dead letters."""

    selection: Annotated[str, Field(max_length=4_096)]
    unsafe: bool = Field(default=False, description="Also those that are not safe to retry.")


@router.post("/redrives", status_code=201)
@needs(Permission.REDRIVE)
async def plan(app: AppOf, caller: CallerOf, wanted: Wanted) -> dict[str, Any]:
    """Plan a redrive: freeze the dead letters, say what would become of each. Nothing moves until it is started."""
    masked.check_selection(app, caller, parse(wanted.selection))
    planned = await actions.plan(app, wanted.selection, by=caller.actor, unsafe=wanted.unsafe)
    if planned is None:
        meant = dead_letters(parse(wanted.selection)).sentence(app.clock.now(), 0)
        raise Refused(f"nothing matched: there are {meant}. Only dead letters that are not discarded can be redriven")
    return (await actions.plan_story(app, planned)).to_json()


@router.get("/redrives/{redrive_id}")
@needs(Permission.LOOK)
async def redrive(app: AppOf, redrive_id: IdPath) -> dict[str, Any]:
    """Show one redrive: what was planned, by whom and why, and how it stands; what an edit that waits would change."""
    standing = await views.find_redrive(app, redrive_id)
    return {**views.redriving_json(standing), "changes": await masked.proposed(app, standing)}


@router.get("/redrives/{redrive_id}/items")
@needs(Permission.LOOK)
async def items(app: AppOf, redrive_id: IdPath, cursor: CursorQuery = None, limit: LimitQuery = 50) -> dict[str, Any]:
    """List the members of a redrive in their order, and what became of each."""
    standing = await views.find_redrive(app, redrive_id)
    query = f"items {standing.id}"
    found = await views.items_after(app, standing.id, number_in(query, cursor) or 0, limit)
    following = found[-1].position if len(found) == limit else None
    return page([each.to_json() for each in found], after(query, following))


@router.get("/redrives/{redrive_id}/report")
@needs(Permission.LOOK)
async def report(app: AppOf, redrive_id: IdPath) -> dict[str, Any]:
    """Say what a redrive has brought: by group and outcome, and why some did not go."""
    return await masked.report(app, await views.report(app, await views.find_redrive(app, redrive_id)))


class Start(Why):
    """With which token, and how fast."""

    token: Annotated[str, Field(max_length=100, description="What the plan was answered with.")]
    rate: Annotated[float, Field(gt=0, le=1e6, description="At most so many a second.")] | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = DEFAULT_IN_FLIGHT
    ramp: Annotated[list[Annotated[int, Field(ge=1, le=1_000_000_000)]], Field(max_length=20, default_factory=list)]
    halt_at: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=0.1, description="Halt when more than this share of the events fails: 0.1 is 10 %; null: never."
    )
    generation: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    from_start: bool = False
    repeat_steps: bool = Field(
        default=False, description="With `from_start`: run finished steps again that were not undone."
    )


@router.post("/redrives/{redrive_id}/start")
@needs(Permission.REDRIVE)
async def start(app: AppOf, caller: CallerOf, redrive_id: IdPath, how: Start) -> dict[str, Any]:
    """Start a planned redrive, with the token of its plan. The workers carry it on."""
    standing = await views.find_redrive(app, redrive_id)
    if how.token.partition(":")[0] != str(standing.id):
        raise Refused("this token is not of this plan: use the token that the plan was answered with")
    started = await actions.start(
        app, how.token, by=caller.actor, reason=how.reason, generation=how.generation, from_start=how.from_start,
        repeat_steps=how.repeat_steps, release=Release(how.rate, how.max_in_flight, tuple(how.ramp), how.halt_at),
    )  # fmt: skip
    return views.redriving_json(started)


@router.post("/redrives/{redrive_id}/approve")
@needs(Permission.APPROVE)
async def approve(app: AppOf, caller: CallerOf, redrive_id: IdPath) -> dict[str, Any]:
    """Agree with somebody else's plan. What was edited goes at once; any other plan can then be started."""
    standing = await views.find_redrive(app, redrive_id)
    return views.redriving_json(await actions.approve(app, standing, by=caller.actor))


@router.post("/redrives/{redrive_id}/pause")
@needs(Permission.REDRIVE)
async def pause(app: AppOf, caller: CallerOf, redrive_id: IdPath, why: Why) -> dict[str, Any]:
    """Release nothing more until it is resumed."""
    standing = await views.find_redrive(app, redrive_id)
    return views.redriving_json(await actions.pause(app, standing, by=caller.actor, reason=why.reason))


@router.post("/redrives/{redrive_id}/resume")
@needs(Permission.REDRIVE)
async def resume(app: AppOf, caller: CallerOf, redrive_id: IdPath) -> dict[str, Any]:
    """Go on after a pause or a halt."""
    standing = await views.find_redrive(app, redrive_id)
    return views.redriving_json(await actions.resume(app, standing, by=caller.actor))


@router.post("/redrives/{redrive_id}/abort")
@needs(Permission.REDRIVE)
async def abort(app: AppOf, caller: CallerOf, redrive_id: IdPath, why: Why) -> dict[str, Any]:
    """End a redrive; what was not released stays what it was."""
    standing = await views.find_redrive(app, redrive_id)
    return views.redriving_json(await app.abort(standing.id, by=caller.actor, reason=why.reason))
