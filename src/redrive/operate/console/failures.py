"""Failures: dead letters by their cause. Where an operator's day begins."""

from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from redrive import group as engine
from redrive.duration import span
from redrive.errors import Refused
from redrive.operate import actions, explain, masked, views
from redrive.operate.auth import Permission
from redrive.operate.console import pace
from redrive.operate.console.shell import done, form, new_router, page
from redrive.operate.console.tree import lines
from redrive.operate.web.api.groups import GroupPath, State
from redrive.operate.web.api.shared import CursorQuery, after, place_in
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()

_PAGE: Final = 25
_SUSTAINED: Final = 3


@router.get("/failures")
@needs(Permission.LOOK)
async def failures(
    request: Request, app: AppOf, caller: CallerOf, state: State | None = None,
    everything: Annotated[bool, Query(alias="all")] = False,  # noqa: FBT002 - a query
    cursor: CursorQuery = None,
) -> Response:  # fmt: skip
    """List the groups, the latest failure first."""
    query = f"groups {state} {everything}"
    place = place_in(query, cursor)
    await app.open()
    last = None if place is None else await views.find_group(app, place)
    found = await engine.groups(
        app.store, everything=everything or state is State.RESOLVED, state=state, limit=_PAGE, after=last
    )
    drawn = await pace.of_groups(app, [each.fingerprint for each in found])
    now = app.clock.now()
    return page(
        request, "failures.html", caller, here="/failures", topics=("failure_group",), state=state,
        everything=everything,
        groups=[
            {**shown, "line": line, "trend": trend(line), "is_muted": each.is_muted(now)}
            for each, shown in zip(found, await masked.groups(app, found), strict=True)
            for line in (drawn[each.fingerprint],)
        ], is_first=cursor is None,
        next=after(query, found[-1].fingerprint if len(found) == _PAGE else None), states=list(State),
    )  # fmt: skip


def trend(drawn: Any) -> str:
    """Say whether there are more or fewer of late: the last three hours beside the three before."""
    values = [bar.value for bar in drawn.bars]
    late, before = sum(values[-_SUSTAINED:]), sum(values[-2 * _SUSTAINED : -_SUSTAINED])
    if late == before == 0:
        return "quiet"
    if late > before * 1.5:
        return "rising"
    return "falling" if late * 1.5 < before else "steady"


@router.get("/failures/{fingerprint}")
@needs(Permission.LOOK)
async def group(request: Request, app: AppOf, caller: CallerOf, fingerprint: GroupPath) -> Response:
    """Show one group: why these belong together, what sets them apart, what was done."""
    found = await views.find_group(app, fingerprint)
    story = await views.group_story(app, found)
    shown = masked.story(app, story)
    hidden = masked.hidden_story(app, story)
    drawn = (await pace.of_groups(app, [found.fingerprint]))[found.fingerprint]
    return page(
        request, "group.html", caller, here="/failures", topics=("failure_group", "redrive"), group=shown,
        short=found.short, selection=f"group:{found.fingerprint}", drawn=drawn, trend=trend(drawn),
        is_muted=found.is_muted(app.clock.now()), compared=explain.compared(hidden),
        sample_lines=[] if shown["sample"] is None else lines(shown["sample"]["payload"]),
    )  # fmt: skip


@router.post("/failures/{fingerprint}")
@needs(Permission.ACT)
async def describe(request: Request, app: AppOf, caller: CallerOf, fingerprint: GroupPath) -> Response:
    """Say who looks after a group, what is known of it, that it may be quiet, or that it is resolved."""
    said, found = await form(request), await views.find_group(app, fingerprint)
    owner, note = said["owner"] or None, said["note"] or None
    muted = span(said["mute"], "mute") if said.has("mute") else None
    if owner is None and note is None and muted is None and not said.has("resolved"):
        raise Refused(
            "nothing was said of the group: give an owner, a note, for how long it may be quiet, or resolve it"
        )
    await actions.describe(
        app, found, by=caller.actor, owner=owner, note=note, muted_for=muted,
        state="resolved" if said.has("resolved") else None,
    )  # fmt: skip
    return done(request, f"/failures/{found.short}", "describe")
