"""Redrives: plan, approve, start with a ramp, watch, pause, resume, abort, judge."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.errors import Refused, SelectionError
from redrive.operate import actions, masked, views
from redrive.operate.auth import Caller, Forbidden, Permission
from redrive.operate.console.draw import Part, stack
from redrive.operate.console.events import SelectionText, number, with_ticked
from redrive.operate.console.shell import SHOWN, Form, done, fields, form, new_router, page
from redrive.operate.web.api.shared import CursorQuery, IdPath, after, id_in, number_in
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.redrive import DEFAULT_IN_FLIGHT, Redriving, Release
from redrive.selection import dead_letters, parse

router = new_router()

RAMP: Final = (1, 5, 25, 100)
_COUNTED: Final = 20_000
"""Members that a page looks at one by one; what comes after is known by its totals."""

_GROUPS: Final = 12
_REMEMBERED: Final = 50
_RATES: Final = (10.0, 50.0, 200.0)
_LONGEST_RAMP: Final = 20
_TONES: Final = {
    "delivered": "good", "failed_same": "bad", "failed_other": "wait", "skipped": "quiet", "outstanding": "busy",
    "untouched": "none",
}  # fmt: skip
_WORDS: Final = {
    "delivered": "delivered", "failed_same": "failed the same way", "failed_other": "failed in another way",
    "skipped": "skipped", "outstanding": "under way", "untouched": "untouched",
}  # fmt: skip


# --- looking ---


@router.get("/redrives")
@needs(Permission.LOOK)
async def redrives(
    request: Request, app: AppOf, caller: CallerOf, q: SelectionText = "", cursor: CursorQuery = None
) -> Response:
    """List redrives, newest first; a plan can be made here."""
    await app.open()
    found = await app.redrivings(before=id_in("redrives", cursor), limit=SHOWN)
    following = found[-1].id if len(found) == SHOWN else None
    chosen = with_ticked(q, Form(fields(request.url.query)).all("id"))
    return page(
        request, "redrives.html", caller, here="/redrives", topics=("redrive",),
        redrives=[(each, outcome(each)) for each in found], q=chosen, meant=await _meant(app, caller, chosen),
        next=after("redrives", following), is_first=cursor is None,
    )  # fmt: skip


async def _meant(app: Redrive, caller: Caller, selection: str) -> dict[str, str]:
    """Say back what a plan would be of, or what is wrong with it."""
    if not selection:
        return {}
    try:
        wanted = parse(selection)
        masked.check_selection(app, caller, wanted)
    except SelectionError as error:
        return {"wrong": error.reason}
    except Forbidden as error:
        return {"wrong": str(error)}
    return {"sentence": dead_letters(wanted).sentence(app.clock.now())}


def outcome(standing: Redriving) -> list[Part]:
    """Draw what became of the members that were ready."""
    numbers = {
        "delivered": standing.delivered, "failed_same": standing.failed_same, "failed_other": standing.failed_other,
        "skipped": standing.skipped, "outstanding": standing.outstanding, "untouched": max(0, standing.untouched),
    }  # fmt: skip
    return stack([(_WORDS[name], value, _TONES[name]) for name, value in numbers.items()], standing.ready)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a ramp: how many it tries, and what became of them."""

    number: int
    size: int | None
    state: str
    counts: Mapping[str, int]
    parts: Sequence[Part]

    @property
    def tried(self) -> int:
        return sum(self.counts.values())


@router.get("/redrives/{redrive_id}")
@needs(Permission.LOOK)
async def redrive(request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath) -> Response:
    """Show one redrive: a plan with the form that starts it, or how it goes."""
    standing = await views.find_redrive(app, redrive_id)
    limit = await actions.approval_limit(app)
    asks = await actions.waits_for_a_person(app, standing, standing.planned_by)
    live = await views.live_workers(app)
    return page(
        request, "redrive.html", caller, here="/redrives", topics=("redrive", "outbox"), redrive=standing,
        sentence=_sentence(app, standing), parts=outcome(standing), stages=await _stages(app, standing),
        groups=await _groups(app, standing), ineligible=await _ineligible(app, standing), workers=len(live),
        needs_approval=_needs_approval(standing, limit), limit=limit, asks=asks,
        changes=await masked.proposed(app, standing), own_plan=standing.planned_by == caller.actor,
        ramp=", ".join(map(str, RAMP)), in_flight=DEFAULT_IN_FLIGHT,
        seconds_at=[(rate, standing.ready / rate) for rate in _RATES], eta=_eta(standing), words=_WORDS,
    )  # fmt: skip


def _sentence(app: Redrive, standing: Redriving) -> str:
    """Say what is meant, with its count."""
    if standing.edited:
        return app.mask.text(standing.sentence)
    with suppress(SelectionError):  # planned by a release that understood more
        return app.mask.text(parse(standing.selection).sentence(standing.planned_at, standing.total))
    return app.mask.text(standing.sentence)


def _needs_approval(standing: Redriving, limit: int | None) -> bool:
    if standing.state != "planned" or standing.approved_by is not None:
        return False
    return standing.edited or (limit is not None and standing.ready > limit)


def _eta(standing: Redriving) -> float | None:
    """Reckon how long the rest takes at the pace so far."""
    if standing.state != "running" or standing.started_at is None or not standing.ended:
        return None
    passed = (standing.now - standing.started_at).total_seconds()
    return max(0.0, passed * (standing.ready - standing.ended) / standing.ended)


async def _stages(app: Redrive, standing: Redriving) -> list[Stage]:
    """Put the stages of a ramp together; the last one, which has no size, takes what the others leave."""
    if not standing.ramp or standing.started_at is None:
        return []
    found: dict[int, dict[str, int]] = {}
    for row in await app.store.ask("redrive_stages", id=standing.id, stages=len(standing.ramp)):
        found.setdefault(int(row["stage"]), {})[row["state"]] = int(row["n"])
    sizes: list[int | None] = []
    left = standing.ready
    for size in standing.ramp:
        if left <= 0:
            break
        sizes.append(min(size, left))
        left -= size
    if left > 0:
        sizes.append(None)
    stages = [_stage(standing, at, size, found.get(at, {})) for at, size in enumerate(sizes) if size is not None]
    if left > 0:
        stages.append(_stage(standing, len(sizes) - 1, None, _rest(standing, stages), most=left))
    return stages


def _rest(standing: Redriving, stages: Sequence[Stage]) -> dict[str, int]:
    totals = {
        "delivered": standing.delivered, "failed_same": standing.failed_same, "failed_other": standing.failed_other,
        "skipped": standing.skipped, "released": standing.outstanding,
    }  # fmt: skip
    return {
        name: rest
        for name, total in totals.items()
        if (rest := total - sum(stage.counts.get(name, 0) for stage in stages)) > 0
    }


def _stage(standing: Redriving, at: int, size: int | None, counts: Mapping[str, int], most: int | None = None) -> Stage:
    names = {"released": "outstanding"}
    parts = [
        (_WORDS[names.get(state, state)], n, _TONES[names.get(state, state)])
        for state, n in sorted(counts.items(), key=lambda each: list(_TONES).index(names.get(each[0], each[0])))
    ]
    return Stage(at + 1, most if size is None else size, _state(standing, at), counts, stack(parts, size or most or 1))


def _state(standing: Redriving, at: int) -> str:
    if at < standing.stage or standing.state == "done":
        return "passed"
    if at > standing.stage:
        return "ahead" if not standing.is_over else "untouched"
    return {"halted": "halted", "paused": "paused", "aborted": "aborted"}.get(standing.state, "running")


async def _groups(app: Redrive, standing: Redriving) -> list[dict[str, Any]]:
    rows = await app.store.ask("redrive_members_of", id=standing.id, limit=_GROUPS)
    titles = await masked.quoted(app, [(row["sample_event_id"], row["title"] or "") for row in rows])
    return [{**row, "title": title} for row, title in zip(rows, titles, strict=True)]


_plans: dict[UUID, dict[str, int]] = {}


async def _ineligible(app: Redrive, standing: Redriving) -> dict[str, int] | None:
    """Say why some may not go; nothing when that would take long to count."""
    if standing.total == standing.ready:
        return {}
    if standing.id in _plans:
        return _plans[standing.id]
    if standing.total > _COUNTED:
        return None
    return dict((await views.report(app, standing)).ineligible)


@router.get("/redrives/{redrive_id}/members")
@needs(Permission.LOOK)
async def members(
    request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath, cursor: CursorQuery = None
) -> Response:
    """List the members of a redrive in their order, and what became of each."""
    standing = await views.find_redrive(app, redrive_id)
    query = f"items {standing.id}"
    found = await views.items_after(app, standing.id, number_in(query, cursor) or 0, SHOWN)
    following = found[-1].position if len(found) == SHOWN else None
    return page(
        request, "members.html", caller, here="/redrives", topics=("redrive",), redrive=standing, members=found,
        next=after(query, following), sentence=_sentence(app, standing), is_first=cursor is None,
    )  # fmt: skip


# --- acting ---


@router.post("/redrives")
@needs(Permission.REDRIVE)
async def plan(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Freeze the dead letters that a selection means, and show what would become of each."""
    said = await form(request)
    masked.check_selection(app, caller, parse(said["q"]))
    planned = await actions.plan(app, said["q"], by=caller.actor, unsafe=said.has("unsafe"))
    if planned is None:
        meant = dead_letters(parse(said["q"])).sentence(app.clock.now(), 0)
        raise Refused(f"nothing matched: there are {meant}. Only dead letters that are not discarded can be redriven")
    while len(_plans) >= _REMEMBERED:
        _plans.pop(next(iter(_plans)))
    _plans[planned.redrive.id] = planned.ineligible
    return done(request, f"/redrives/{planned.redrive.id}", "plan")


@router.post("/redrives/{redrive_id}/start")
@needs(Permission.REDRIVE)
async def start(request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath) -> Response:
    """Start a planned redrive with the token that its page held."""
    said, standing = await form(request), await views.find_redrive(app, redrive_id)
    if said["token"].partition(":")[0] != str(standing.id):
        raise Refused("this token is not of this plan: look at the plan again")
    await actions.start(
        app, said["token"], by=caller.actor, reason=said["reason"], release=_release(said),
        generation=number(said, "generation"), from_start=said.has("from_start"),
    )  # fmt: skip
    return done(request, f"/redrives/{standing.id}", "start")


def _release(said: Form) -> Release:
    """Read how fast they are let go: by a ramp, at a rate, or all."""
    how = said["how"]
    ramp = _ramp(said["ramp"]) if how == "ramp" else ()
    rate = _decimal(said["rate"], "the rate", "20") if how == "rate" else None
    halt = _decimal(said["halt_at"].removesuffix("%"), "the share at which it halts", "10") if said["halt_at"] else 10.0
    limit = None if said.has("no_halt") else halt / 100.0
    return Release(rate, number(said, "max_in_flight") or DEFAULT_IN_FLIGHT, ramp, limit)


def _ramp(text: str) -> tuple[int, ...]:
    sizes = [each for each in text.replace(",", " ").split() if each.lower() != "rest"]
    if not sizes or len(sizes) > _LONGEST_RAMP or not all(each.isdecimal() and len(each) < 10 for each in sizes):  # noqa: PLR2004
        raise Refused(f"a ramp is written as numbers, like 1, 5, 25, 100; this is not one: {text[:60]!r}")
    return tuple(map(int, sizes))


def _decimal(text: str, what: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"{what} is a number like {example}, not {text[:40]!r}") from None


@router.post("/redrives/{redrive_id}/approve")
@needs(Permission.APPROVE)
async def approve(request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath) -> Response:
    """Agree with somebody else's plan."""
    standing = await views.find_redrive(app, redrive_id)
    await actions.approve(app, standing, by=caller.actor)
    return done(request, f"/redrives/{standing.id}", "approve")


@router.post("/redrives/{redrive_id}/pause")
@needs(Permission.REDRIVE)
async def pause(request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath) -> Response:
    """Release nothing more until it is resumed."""
    said, standing = await form(request), await views.find_redrive(app, redrive_id)
    await actions.pause(app, standing, by=caller.actor, reason=said["reason"])
    return done(request, f"/redrives/{standing.id}", "pause")


@router.post("/redrives/{redrive_id}/resume")
@needs(Permission.REDRIVE)
async def resume(request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath) -> Response:
    """Go on after a pause or a halt."""
    standing = await views.find_redrive(app, redrive_id)
    await actions.resume(app, standing, by=caller.actor)
    return done(request, f"/redrives/{standing.id}", "resume")


@router.post("/redrives/{redrive_id}/abort")
@needs(Permission.REDRIVE)
async def abort(request: Request, app: AppOf, caller: CallerOf, redrive_id: IdPath) -> Response:
    """End a redrive; what was not released stays what it was."""
    said, standing = await form(request), await views.find_redrive(app, redrive_id)
    await app.abort(standing.id, by=caller.actor, reason=said["reason"])
    return done(request, f"/redrives/{standing.id}", "abort")
