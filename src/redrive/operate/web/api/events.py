"""Events: find them, see one whole, read its story, act on it."""

from typing import Annotated, Any

from fastapi import Header, Response
from pydantic import Field

from redrive.app import Redrive
from redrive.errors import Refused
from redrive.event import Event
from redrive.mask import kept
from redrive.operate import actions, edit, masked, views
from redrive.operate.auth import Caller, Forbidden, Permission
from redrive.operate.web.api.shared import (
    CursorQuery,
    IdPath,
    LimitQuery,
    SelectionQuery,
    Sent,
    Why,
    after,
    id_in,
    page,
)
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.operate.web.problems import CHANGED, NEEDS_MATCH, Problem
from redrive.selection import Selection, parse
from redrive.store.base import EventFilter

router = new_router("events")


# --- looking ---


@router.get("/events")
@needs(Permission.LOOK)
async def events(
    app: AppOf, caller: CallerOf, selection: SelectionQuery = "", cursor: CursorQuery = None, limit: LimitQuery = 50
) -> dict[str, Any]:
    """List events, newest first. A page may hold fewer than asked for, even none: `next` says whether there is more."""
    return await listed(app, caller, parse(selection), EventFilter(limit=limit), cursor)


async def listed(
    app: Redrive, caller: Caller, wanted: Selection, filter_: EventFilter, cursor: str | None
) -> dict[str, Any]:
    """Read a page of events."""
    masked.check_selection(app, caller, wanted)
    query = f"events {filter_.status} {wanted.text}"
    before = id_in(query, cursor)
    await app.open()
    narrowed = views.narrowed(app, EventFilter(status=filter_.status, limit=filter_.limit, before=before), wanted)
    found = await app.page(narrowed)
    shown = masked.seen(app, caller, wanted, found.events)
    return page([masked.event_line(app, each) for each in shown], after(query, found.before))


@router.get("/events/{event_id}")
@needs(Permission.LOOK)
async def event(app: AppOf, event_id: IdPath, response: Response) -> dict[str, Any]:
    """Show one event: where it stands, what it carries, how it failed. Secret fields are hidden."""
    found = await views.find(app, event_id)
    response.headers["ETag"] = etag(found)
    return masked.event(app, found)


def etag(found: Event) -> str:
    """Name the state of an event."""
    return f'"{found.cycle}.{found.fence}.{found.status}.{int(found.deleted_at is not None)}"'


@router.get("/events/{event_id}/timeline")
@needs(Permission.LOOK)
async def timeline(app: AppOf, event_id: IdPath) -> dict[str, Any]:
    """Tell the story of one event: attempts, waits, dead letter, replays, the end."""
    story = await views.timeline(app, await views.find(app, event_id))
    return page(masked.timeline(app, story.event, story.steps))


@router.get("/events/{event_id}/steps")
@needs(Permission.LOOK)
async def steps(app: AppOf, event_id: IdPath) -> dict[str, Any]:
    """List what one event has done in steps."""
    found = await views.find(app, event_id)
    return page(masked.steps(app, found, await app.steps(found.id)))


@router.post("/events/{event_id}/reveal")
@needs(Permission.REVEAL)
async def reveal(app: AppOf, caller: CallerOf, event_id: IdPath, why: Why) -> dict[str, Any]:
    """Show one event with its secrets. Who asked, and why, is on the trail."""
    found = await views.find(app, event_id)
    return await masked.reveal(app, found, by=caller.actor, reason=why.reason)


# --- acting ---


@router.post("/events/{event_id}/cancel")
@needs(Permission.ACT)
async def cancel(app: AppOf, caller: CallerOf, event_id: IdPath, why: Why) -> dict[str, Any]:
    """Call off an event that has not ended; a running handler is told."""
    return await acted(app, "cancel", event_id, caller, why)


async def acted(app: Redrive, verb: actions.ManyVerb, event_id: str, caller: Caller, why: Why) -> dict[str, Any]:
    """Do something to one event, or say why not."""
    found = await views.find(app, event_id)
    (done,) = await actions.act(app, verb, [found], by=caller.actor, reason=why.reason)
    return told(done)


def told(done: actions.Done) -> dict[str, Any]:
    """Say what was done; what was not is an error here."""
    if done.refused:
        raise Refused(done.refused)
    return done.to_json()


class Replay(Why):
    """How to send a dead letter round again."""

    generation: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    from_start: bool = Field(default=False, description="Forget the finished steps; go on after them otherwise.")
    repeat_steps: bool = Field(
        default=False, description="With `from_start`: run finished steps again that were not undone."
    )


@router.post("/events/{event_id}/replay")
@needs(Permission.REPLAY)
async def replay(app: AppOf, caller: CallerOf, event_id: IdPath, how: Replay) -> dict[str, Any]:
    """Send a dead letter round again, in place: its identity and the history of failures stay."""
    found = await views.find(app, event_id)
    (done,) = await actions.replay(
        app, [found], by=caller.actor, reason=how.reason, generation=how.generation, from_start=how.from_start,
        repeat_steps=how.repeat_steps,
    )  # fmt: skip
    return told(done)


class Edited(Replay):
    """What is to become of the payload: fields changed and taken out, or all of it."""

    set: dict[str, Any] = Field(default_factory=dict, description='`{"payload.a.b": 1}`', max_length=100)
    unset: list[str] = Field(default_factory=list, description='`["payload.c"]`', max_length=100)
    payload: Any = Field(None, description="Another payload; a hidden value that is left alone stays what it was.")


@router.post("/events/{event_id}/edit")
@needs(Permission.ACT)
async def edit_and_replay(
    app: AppOf,
    caller: CallerOf,
    event_id: IdPath,
    how: Edited,
    if_match: Annotated[str | None, Header(description="The ETag of the event that was edited.")] = None,
) -> dict[str, Any]:
    """Replay a dead letter with another payload; the original is kept, and what identifies the event cannot change."""
    found = await views.find(app, event_id)
    if if_match is None:
        raise Problem(NEEDS_MATCH, "an edit needs to know what was edited")
    if if_match.strip() != etag(found):
        raise Problem(CHANGED, f"event {found.id} is not what it was when you read it")
    payload = _edited(found, how)
    (done,) = await actions.replay(
        app, [found], by=caller.actor, reason=how.reason, generation=how.generation, from_start=how.from_start,
        repeat_steps=how.repeat_steps, payloads={found.id: payload},
    )  # fmt: skip
    changes = [each.to_json() for each in edit.differences(found.payload, payload)]
    return {**told(done), "changes": app.mask.everywhere(changes, secrets=masked.secrets_of(app, found))}


def _edited(found: Event, how: Edited) -> Any:
    whole = "payload" in how.model_fields_set
    if whole == bool(how.set or how.unset):
        raise edit.BadEdit("say what to change: fields with `set` and `unset`, or all of it with `payload`")
    if whole:
        return kept(how.payload, found.payload)
    changes = [edit.assigned(field, value) for field, value in how.set.items()]
    return edit.edited(found.payload, [*changes, *map(edit.removal, how.unset)])


class Try(Sent):
    """How to try."""

    force: bool = Field(default=False, description="Also a handler that does not say whether it reaches outside.")


@router.post("/events/{event_id}/shadow")
@needs(Permission.REPLAY)
async def shadow(app: AppOf, caller: CallerOf, event_id: IdPath, how: Try) -> dict[str, Any]:
    """Run the handler in a transaction that is rolled back, and say how the event would end."""
    if how.force and not caller.may(Permission.ACT):
        raise Forbidden(f"{caller.name} may try only handlers that say that all they do can be rolled back")
    found = await views.find(app, event_id)
    (tried,) = await actions.shadow(app, [found], force=how.force)
    if tried.refused:
        raise Refused(tried.refused)
    shown = tried.to_json()
    secrets = masked.secrets_of(app, found)
    shown["error"] = None if shown["error"] is None else app.mask.text(shown["error"], secrets)
    return {**shown, "published": app.mask.everywhere(shown["published"], secrets=secrets)}
