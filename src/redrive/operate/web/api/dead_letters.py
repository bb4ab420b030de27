"""Dead letters: the quarantine. Nothing leaves it by itself."""

from typing import Annotated, Any, Final

from pydantic import Field

from redrive.app import Redrive
from redrive.errors import Refused
from redrive.event import Status
from redrive.operate import actions, masked
from redrive.operate.auth import Caller, Permission
from redrive.operate.web.api.events import acted, listed
from redrive.operate.web.api.shared import CursorQuery, IdPath, LimitQuery, SelectionQuery, Why
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.selection import parse
from redrive.store.base import EventFilter

router = new_router("dead letters")

MOST_AT_ONCE: Final = 10_000


@router.get("/dead-letters")
@needs(Permission.LOOK)
async def dead_letters(
    app: AppOf, caller: CallerOf, selection: SelectionQuery = "", cursor: CursorQuery = None, limit: LimitQuery = 50
) -> dict[str, Any]:
    """List dead letters, newest first."""
    return await listed(app, caller, parse(selection), EventFilter(status=Status.FAILED, limit=limit), cursor)


@router.post("/events/{event_id}/discard")
@needs(Permission.ACT)
async def discard(app: AppOf, caller: CallerOf, event_id: IdPath, why: Why) -> dict[str, Any]:
    """Take a dead letter out of sight; it can be restored."""
    return await acted(app, "discard", event_id, caller, why)


@router.post("/events/{event_id}/restore")
@needs(Permission.ACT)
async def restore(app: AppOf, caller: CallerOf, event_id: IdPath, why: Why) -> dict[str, Any]:
    """Take a discarded dead letter back into the quarantine."""
    return await acted(app, "restore", event_id, caller, why)


class Many(Why):
    """Which ones, and how many the caller has seen that there are."""

    selection: Annotated[str, Field(max_length=4_096)]
    count: Annotated[int, Field(ge=0, description="How many are meant; another number of them is refused.")]


@router.post("/discard")
@needs(Permission.ACT)
async def discard_many(app: AppOf, caller: CallerOf, what: Many) -> dict[str, Any]:
    """Discard all dead letters that a selection means, if they are as many as `count` says."""
    return await _all(app, "discard", caller, what)


@router.post("/restore")
@needs(Permission.ACT)
async def restore_many(app: AppOf, caller: CallerOf, what: Many) -> dict[str, Any]:
    """Restore all discarded dead letters that a selection means, if they are as many as `count` says."""
    return await _all(app, "restore", caller, what)


@router.post("/cancel")
@needs(Permission.ACT)
async def cancel_many(app: AppOf, caller: CallerOf, what: Many) -> dict[str, Any]:
    """Call off all events that a selection means and that have not ended, if they are as many as `count` says."""
    return await _all(app, "cancel", caller, what)


async def _all(app: Redrive, verb: actions.ManyVerb, caller: Caller, what: Many) -> dict[str, Any]:
    masked.check_selection(app, caller, parse(what.selection))
    matched = await actions.matched(app, verb, what.selection)
    if matched.count != what.count:
        raise Refused(f"there are {matched.sentence}, not {what.count:,}: look at them again, and say how many")
    if matched.count > MOST_AT_ONCE:
        raise Refused(f"{matched.count:,} are too many for one request: narrow the selection, or use the command line")
    steps = [each async for each in actions.act_on_all(app, verb, matched, by=caller.actor, reason=what.reason)]
    done = steps[-1] if steps else 0
    return {"action": verb, "sentence": matched.sentence, "matched": matched.count, "done": done}
