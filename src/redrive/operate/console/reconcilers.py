"""Reconcilers: what should be, what is, and what was done about the difference."""

from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.finding import Standing
from redrive.operate import actions, masked
from redrive.operate.auth import Permission
from redrive.operate.console.shell import done, form, new_router, page
from redrive.operate.web.api.shared import IdPath
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.reconcile import OWN, run_name
from redrive.schedule import Schedule

router = new_router()

_RUNS: Final = 20
_FINDINGS: Final = 50
_TOPICS: Final = ("reconcile_run", "finding", "schedule")
NameQuery = Annotated[str, Query(max_length=255)]


@router.get("/reconcilers")
@needs(Permission.LOOK)
async def reconcilers(
    request: Request, app: AppOf, caller: CallerOf, name: NameQuery = "",
    everything: bool = False,  # noqa: FBT001, FBT002 - a query
) -> Response:  # fmt: skip
    """List reconcilers with their runs and findings; with a name, those of one."""
    standing = await _standing(app)
    findings = await app.reconcilers.findings(name or None, state=None if everything else "open", limit=_FINDINGS)
    runs = await app.reconcilers.runs(name or None, limit=_RUNS)
    return page(
        request, "reconcilers.html", caller, here="/reconcilers", topics=_TOPICS, name=name, everything=everything,
        standing=[each for each in standing if not name or each["name"] == name], most=_FINDINGS,
        findings=[masked.finding(app, each) for each in findings],
        runs=[await masked.run(app, each) for each in runs],
    )  # fmt: skip


async def _standing(app: Redrive) -> list[dict[str, Any]]:
    """Put together the reconcilers that were at work here, those that this app has, and when they come next."""
    coming = {each.name: each for each in await app.schedules.ls()}
    found = {each.name: each for each in await app.reconcilers.standing()}
    for name in app.reconcilers:
        found.setdefault(name, _new(name))
    shown = [_shown(await masked.reconciler(app, each), coming.get(run_name(each.name))) for each in found.values()]
    return sorted(shown, key=lambda each: (each["is_own"], each["name"]))


def _new(name: str) -> Standing:
    return Standing(name, None, None, None, dry_run=False, ended_at=None, error=None, open_count=0, ignored_count=0,
                    recurring_count=0)  # fmt: skip


def _shown(each: dict[str, Any], comes: Schedule | None) -> dict[str, Any]:
    return {
        **each, "is_own": each["name"].startswith(OWN), "next_at": None if comes is None else comes.next_at,
        "is_paused": comes is not None and comes.paused_at is not None,
        "every": None if comes is None else comes.every_seconds,
    }  # fmt: skip


@router.get("/reconcilers/runs/{run_id}")
@needs(Permission.LOOK)
async def run_page(request: Request, app: AppOf, caller: CallerOf, run_id: IdPath) -> Response:
    """Show one run: what it compared, what it found, what was done."""
    found = await app.reconcilers.get_run(run_id)
    return page(
        request, "run.html", caller, here="/reconcilers", topics=("reconcile_run",),
        run=await masked.run(app, found),
    )  # fmt: skip


@router.post("/reconcilers/run")
@needs(Permission.ACT)
async def run(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Ask the workers for a run."""
    said = await form(request)
    published = await actions.reconcile(app, said["name"], dry_run=said.has("dry_run"), by=caller.actor)
    did = "reconcile" if published.created else "reconcile-known"
    return done(request, "/reconcilers", did, name=said["name"])


@router.post("/reconcilers/ignore")
@needs(Permission.ACT)
async def ignore(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Let a difference be."""
    said = await form(request)
    found = await app.reconcilers.ignore(said["finding"], by=caller.actor, reason=said["reason"])
    return done(request, "/reconcilers", "ignore", name=found.name)
