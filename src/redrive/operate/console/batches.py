"""Batches: events that belong together, and what their two notices said."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from redrive.batch import Batch, BatchReport
from redrive.event import LIVE, Status
from redrive.operate import masked
from redrive.operate.auth import Permission
from redrive.operate.console.draw import Part, stack
from redrive.operate.console.shell import SHOWN, done, form, new_router, page
from redrive.operate.web.api.shared import CursorQuery, IdPath, after, id_in, place_in
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()

_PAGE: Final = 25
"""Fewer than elsewhere: the members of those that are not done are counted for the page."""

_FAILURES: Final = 25
_PARTS: Final = (("delivered", "good"), ("failed", "bad"), ("cancelled", "quiet"), ("not ended", "busy"))
MEANING: Final = {
    "open": "Events can be added.",
    "running": "Closed; not every event has had an attempt.",
    "tried": "Every event has had an attempt; some go on.",
    "done": "Nothing can move any more.",
    "forced": "The final notice did not wait for all of them.",
}
Numbers = Mapping[str, int]


@router.get("/batches")
@needs(Permission.LOOK)
async def batches(
    request: Request, app: AppOf, caller: CallerOf, cursor: CursorQuery = None,
    name: Annotated[str, Query(max_length=255)] = "",
    unfinished: bool = False,  # noqa: FBT001, FBT002 - a query
) -> Response:  # fmt: skip
    """List batches, newest first."""
    query = f"batches {name} {unfinished}"
    found = await app.batches.ls(name=name or None, unfinished=unfinished, before=id_in(query, cursor), limit=_PAGE)
    rows = [(each, numbers, drawn(numbers)) for each in found for numbers in [await _numbers(each)]]
    return page(
        request, "batches.html", caller, here="/batches", topics=("batch", "outbox"), batches=rows, name=name,
        unfinished=unfinished, is_first=cursor is None, meaning=MEANING,
        next=after(query, found[-1].id if len(found) == _PAGE else None),
    )  # fmt: skip


async def _numbers(batch: Batch) -> Numbers:
    """Say how many members stand where: from the final notice of one that is done, else counted."""
    if batch.final is not None and not batch.final.leftover:
        return _of_report(batch.final)
    look = await batch.look()
    counts = {str(status): number for status, number in look.counts.items()}
    return {**counts, "not ended": look.live, "total": look.total, "recovered": look.recovered, "untried": look.untried}


def _of_report(report: BatchReport) -> Numbers:
    return {
        "delivered": report.delivered, "failed": report.failed, "cancelled": report.cancelled,
        "not ended": report.leftover, "total": report.total, "recovered": report.recovered, "untried": 0,
    }  # fmt: skip


def drawn(numbers: Numbers) -> list[Part]:
    """Draw how many members stand where."""
    return stack([(name, numbers[name], tone) for name, tone in _PARTS], numbers["total"])


@router.get("/batches/{batch_id}")
@needs(Permission.LOOK)
async def batch(
    request: Request, app: AppOf, caller: CallerOf, batch_id: IdPath, cursor: CursorQuery = None
) -> Response:
    """Show one batch: its members by status, its groups, and what its notices said."""
    look = await (await app.batches.find(batch_id)).look()
    found = look.batch
    counts = {str(status): number for status, number in look.counts.items()}
    live = {str(status): number for status, number in look.counts.items() if status in LIVE and number}
    numbers = {**counts, "not ended": look.live, "total": look.total}
    query = f"batch groups {found.id}"
    groups = await found.groups(after=place_in(query, cursor), limit=SHOWN)
    return page(
        request, "batch.html", caller, here="/batches", topics=("batch", "outbox"), batch=found, look=look,
        parts=drawn(numbers), live=live, meaning=MEANING[found.state], dead=look.counts[Status.FAILED],
        told=await masked.batch(app, found, most=_FAILURES), drawn={
            name: drawn(_of_report(said)) for name, said in (("first", found.first), ("final", found.final)) if said
        },
        groups=[(each, _group_parts(each)) for each in groups], is_first=cursor is None,
        next=after(query, groups[-1].name if len(groups) == SHOWN else None),
    )  # fmt: skip


def _group_parts(each: Any) -> list[Part]:
    numbers = {"delivered": each.delivered, "failed": each.failed, "cancelled": each.cancelled, "not ended": each.live}
    return drawn({**numbers, "total": each.total})


@router.post("/batches/{batch_id}/close")
@needs(Permission.ACT)
async def close(request: Request, app: AppOf, caller: CallerOf, batch_id: IdPath) -> Response:
    """Let nothing more be added."""
    said, found = await form(request), await app.batches.find(batch_id)
    await app.batches.close(found.id, by=caller.actor, reason=said["reason"])
    return done(request, f"/batches/{found.id}", "batch-close")


@router.post("/batches/{batch_id}/force")
@needs(Permission.ACT)
async def force(request: Request, app: AppOf, caller: CallerOf, batch_id: IdPath) -> Response:
    """Send the notices now, whatever is left."""
    said, found = await form(request), await app.batches.find(batch_id)
    await app.batches.force(found.id, by=caller.actor, reason=said["reason"])
    return done(request, f"/batches/{found.id}", "batch-force")
