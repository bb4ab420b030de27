"""Overview: is all well, and if not, where to look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from redrive import group as engine
from redrive.app import Redrive
from redrive.operate import masked, views
from redrive.operate.auth import Permission
from redrive.operate.console import pace
from redrive.operate.console.shell import new_router, page
from redrive.operate.console.words import plural, span
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.redrive import Redriving

router = new_router()

_OLD_BACKLOG: Final = 60.0
_GROUPS: Final = 6
_RUNNING: Final = ("running", "paused", "halted")


@dataclass(frozen=True, slots=True)
class Health:
    """How things stand, in a sentence, and what is said below it."""

    tone: str
    word: str
    sentence: str
    more: str = ""


@router.get("/")
@needs(Permission.LOOK)
async def overview(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Draw the first page."""
    counts = await views.overview(app)
    standing = await views.dependencies(app)
    shut = [masked.standing(app, each) for each in standing if each.of.is_shut]
    groups = await engine.groups(app.store, limit=_GROUPS)
    redrives = [each for each in await app.redrivings(limit=20) if each.state in _RUNNING]
    return page(
        request, "overview.html", caller, here="/", topics=("outbox", "failure_group", "redrive", "dependency", "session"),
        counts=counts, health=health(counts, shut, redrives), shut=shut, redrives=redrives,
        groups=[await masked.group(app, each) for each in groups],
        lines=await pace.of_groups(app, [each.fingerprint for each in groups]),
        ended=await pace.ended(app), failed=await pace.failed(app), due=await pace.due(app),
        is_new=await _is_new(app, counts),
    )  # fmt: skip


async def _is_new(app: Redrive, counts: Mapping[str, Any]) -> bool:
    return not any(counts[name] for name in ("pending", "in_flight", "blocked", "failed", "delivered", "workers"))


def health(counts: Mapping[str, Any], shut: list[dict[str, Any]], redrives: Sequence[Redriving]) -> Health:
    """Say the most pressing thing first."""
    waiting, workers, failed = counts["pending"], counts["workers"], counts["failed"]
    old = counts["oldest_due_seconds"] or 0.0
    quarantine = f"{plural(failed, 'dead letter')} in quarantine." if failed else "The quarantine is empty."
    if not workers and waiting:
        return Health(
            "bad", "Stopped", f"Nobody is at work, and {plural(waiting, 'event')} {_wait(waiting)}.",
            f"Start a worker: redrive worker APP. {quarantine}",
        )  # fmt: skip
    if shut:
        held = sum(each["waiting"] for each in shut)
        first = shut[0]["name"]
        others = f" and {len(shut) - 1} more" if len(shut) > 1 else ""
        verb = "are" if len(shut) > 1 else "is"
        return Health(
            "wait", "Waiting",
            f"{first}{others} {verb} shut; {plural(held, 'event')} {_wait(held)} and spend{'s' if held == 1 else ''} no attempts.",
            f"Circuits close by themselves, holds are lifted by people. {quarantine}",
        )  # fmt: skip
    if old > _OLD_BACKLOG:
        return Health(
            "wait", "Behind", f"The workers are behind: the oldest due event has waited for {span(old)}.", quarantine
        )
    if any(each.state == "halted" for each in redrives):
        return Health("bad", "Halted", "A redrive has halted itself, and waits for a person.", quarantine)
    if failed:
        running = f"{plural(len(redrives), 'redrive')} under way." if redrives else ""
        return Health(
            "wait", "Attention", f"{plural(failed, 'dead letter')} {_wait(failed)} for a person.",
            running or "Nothing leaves the quarantine by itself.",
        )  # fmt: skip
    if not workers:
        return Health("quiet", "Idle", "Nothing waits, and nobody is at work.", "")
    return Health("good", "Well", "All is well.", f"{plural(workers, 'worker')} at work, nothing needs a person.")


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"
