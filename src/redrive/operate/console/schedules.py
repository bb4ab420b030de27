"""Schedules: what comes by the clock, and when next."""

from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from fastapi import Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.cadence import Cadence, check_zone
from redrive.duration import format_duration
from redrive.errors import ConfigurationError
from redrive.operate.auth import Permission
from redrive.operate.console.shell import done, form, new_router, page
from redrive.operate.console.tree import lines
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.schedule import Schedule

router = new_router()

_TICKS: Final = 3
_DAY: Final = timedelta(days=1)


@router.get("/schedules")
@needs(Permission.LOOK)
async def schedules(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """List schedules, the next to tick first."""
    found = sorted(await app.schedules.ls(), key=lambda each: (each.paused_at is not None, each.next_at is None,
                                                               each.next_at, each.name))  # fmt: skip
    return page(
        request, "schedules.html", caller, here="/schedules", topics=("schedule",),
        schedules=[_shown(app, each) for each in found],
    )  # fmt: skip


def _shown(app: Redrive, each: Schedule) -> dict[str, Any]:
    told = each.to_json()
    payload = app.mask.everywhere(told["payload"])
    return {**told, "how_often": how_often(each), "ticks": ticks(each), "lines": lines(payload), "has_payload": payload}


def how_often(each: Schedule) -> str:
    """Say it in words, or as the cron line."""
    if each.every_seconds is None:
        return str(each.cron)
    shift = f", {format_duration(each.offset_seconds)} later" if each.offset_seconds else ""
    return f"every {format_duration(each.every_seconds)}{shift}"


def ticks(each: Schedule) -> list[tuple[datetime, str]]:
    """Reckon the ticks that come next, by the clock of its zone; none while it is paused, or its zone is not known."""
    if each.next_at is None or each.paused_at is not None:
        return []
    try:
        zone = ZoneInfo(check_zone(each.time_zone))
        cadence = Cadence(each.cron, each.every_seconds, each.offset_seconds, each.time_zone)
        found = [each.next_at, *islice(cadence.after(each.next_at), _TICKS - 1)]
    except ConfigurationError:
        return []
    is_daily = found[-1] - found[0] >= _DAY
    return [(at, f"{at.astimezone(zone):{'%a %d %b %H:%M' if is_daily else '%H:%M'}}") for at in found]


@router.post("/schedules/pause")
@needs(Permission.TUNE)
async def pause(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Let it tick no more until it is resumed."""
    said = await form(request)
    await app.schedules.pause(said["name"], by=caller.actor, reason=said["reason"])
    return done(request, "/schedules", "schedule-pause")


@router.post("/schedules/resume")
@needs(Permission.TUNE)
async def resume(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Let it tick again, from now on."""
    said = await form(request)
    await app.schedules.resume(said["name"], by=caller.actor, reason=said["reason"])
    return done(request, "/schedules", "schedule-resume")


@router.post("/schedules/run")
@needs(Permission.ACT)
async def run(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Publish one event more, now."""
    said = await form(request)
    published = await app.schedules.run_now(said["name"], by=caller.actor, reason=said["reason"])
    return done(request, f"/events/{published.id}", "schedule-run")
