"""Reconcilers: what should be, what is, and what was done about the difference."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from redrive.operate import actions, masked
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import IdPath, LimitQuery, Sent, Why, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("reconcilers")

NameQuery = Annotated[str | None, Query(max_length=255, description="Of one reconciler only.")]


@router.get("/reconcilers")
@needs(Permission.LOOK)
async def reconcilers(app: AppOf) -> dict[str, Any]:
    """List them: when each was last at work, and how much it found."""
    return page([await masked.reconciler(app, each) for each in await app.reconcilers.standing()])


@router.get("/reconcilers/runs")
@needs(Permission.LOOK)
async def runs(app: AppOf, name: NameQuery = None, limit: LimitQuery = 50) -> dict[str, Any]:
    """List runs, the latest first."""
    return page([await masked.run(app, each) for each in await app.reconcilers.runs(name, limit=limit)])


@router.get("/reconcilers/runs/{run_id}")
@needs(Permission.LOOK)
async def run_of(app: AppOf, run_id: IdPath) -> dict[str, Any]:
    """Show one run and its first differences."""
    return await masked.run(app, await app.reconcilers.get_run(run_id))


@router.get("/reconcilers/findings")
@needs(Permission.LOOK)
async def findings(
    app: AppOf,
    name: NameQuery = None,
    recurring: bool = False,  # noqa: FBT001, FBT002 - FastAPI gives it by name
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """List open findings; with ``recurring`` only what keeps coming back."""
    listed = app.reconcilers.recurring if recurring else app.reconcilers.findings
    return page([masked.finding(app, each) for each in await listed(name, limit=limit)])


class Wanted(Sent):
    """Which reconciler; ``dry_run`` only says what differs."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    dry_run: bool = False


@router.post("/reconcilers/run")
@needs(Permission.ACT)
async def run(app: AppOf, caller: CallerOf, what: Wanted) -> dict[str, Any]:
    """Ask the workers for a run; while one is asked for or under way, that one is meant."""
    published = await actions.reconcile(app, what.name, dry_run=what.dry_run, by=caller.actor)
    return {"event_id": str(published.id), "run_id": str(published.id)}


@router.post("/reconcilers/findings/{finding_id}/ignore")
@needs(Permission.ACT)
async def ignore(app: AppOf, caller: CallerOf, finding_id: IdPath, why: Why) -> dict[str, Any]:
    """Let a difference be."""
    return masked.finding(app, await app.reconcilers.ignore(finding_id, by=caller.actor, reason=why.reason))
