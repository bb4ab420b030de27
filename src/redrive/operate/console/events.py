"""Events: search them, see one whole, act on one or on all that a selection means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from fastapi import Query, Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.errors import Refused, SelectionError
from redrive.event import Event
from redrive.operate import actions, masked, views
from redrive.operate.auth import Caller, Forbidden, Permission
from redrive.operate.console.shell import SHOWN, Form, done, fields, form, new_router, page
from redrive.operate.console.tree import lines
from redrive.operate.web.api.dead_letters import MOST_AT_ONCE
from redrive.operate.web.api.events import etag
from redrive.operate.web.api.shared import CursorQuery, IdPath, after, id_in
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.selection import parse
from redrive.store.base import EventFilter

router = new_router()

_RELATIVES: Final = 60
_VERBS: Final = ("discard", "restore", "cancel")
SelectionText = Annotated[str, Query(alias="q", max_length=4_096)]


# --- looking ---


@router.get("/events")
@needs(Permission.LOOK)
async def events(
    request: Request, app: AppOf, caller: CallerOf, q: SelectionText = "", cursor: CursorQuery = None
) -> Response:
    """List events that a selection means, newest first."""
    shown: dict[str, Any] = {"q": q, "wrong": None, "events": [], "next": None, "sentence": "", "is_first": not cursor}
    try:
        wanted = parse(q)
        masked.check_selection(app, caller, wanted)
    except (SelectionError, Forbidden) as error:
        return page(request, "events.html", caller, here="/events", status=422, **{**shown, "wrong": _fault(error)})
    query = f"events None {wanted.text}"
    await app.open()
    narrowed = views.narrowed(app, EventFilter(limit=SHOWN, before=id_in(query, cursor)), wanted)
    found = await app.page(narrowed)
    shown |= {
        "events": [masked.event_line(app, each) for each in masked.seen(app, caller, wanted, found.events)],
        "next": after(query, found.before),
        "sentence": wanted.sentence(app.clock.now()),
        "canonical": wanted.text,
    }
    return page(request, "events.html", caller, here="/events", topics=("outbox",), **shown)


def _fault(error: SelectionError | Forbidden) -> dict[str, Any]:
    if isinstance(error, Forbidden):
        return {"reason": str(error), "before": "", "marked": "", "after": ""}
    text, at = error.text, error.position
    end = at + max(1, error.length)
    return {"reason": error.reason, "before": text[:at], "marked": text[at:end] or " ", "after": text[end:]}


@router.get("/events/{event_id}")
@needs(Permission.LOOK)
async def event(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Show one event."""
    return await _event_page(request, app, caller, await views.find(app, event_id))


async def _event_page(
    request: Request, app: Redrive, caller: Caller, found: Event, *, told: Mapping[str, Any] | None = None, **more: Any
) -> Response:
    shown = dict(told or masked.event(app, found))
    story = await views.timeline(app, found)
    steps = [each.to_json() for each in story.steps] if told else masked.timeline(app, found, story.steps)
    return page(
        request, "event.html", caller, here="/events", topics=() if told else ("outbox", "trail"), event=shown,
        timeline=steps, payload=lines(shown["payload"]), header_lines=lines(shown["headers"]),
        steps=masked.steps(app, found, await app.steps(found.id)), family=await _family(app, found),
        handler=app.handlers.get(found.target), revealed=told is not None, cycles=_cycles(shown),
        **{"tried": None, **more},
    )  # fmt: skip


def _cycles(shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the errors of each cycle, the present one first."""
    now = {name: shown[name] for name in ("cycle", "attempts", "last_error", "error_class", "error_type", "generation")}
    found = [{**now, "replayed_by": None, "reason": None}] if shown["last_error"] else []
    return found + [each for each in reversed(shown["failure_history"]) if each["last_error"]]


@dataclass(frozen=True, slots=True)
class Relative:
    """An event of the same conversation, and how deep it stands below what caused it."""

    depth: int
    event: Mapping[str, Any]
    is_here: bool


async def _family(app: Redrive, found: Event) -> list[Relative]:
    """Put the events of a conversation into a tree of causes; some of them, when there are many."""
    conversation = found.correlation_id or str(found.id)
    others = await app.page(EventFilter(correlation_id=conversation, discarded=None, limit=_RELATIVES))
    known = {str(each.id): each for each in [*reversed(others.events), found]}
    return list(_tree(app, known, str(found.id))) if len(known) > 1 else []


def _tree(app: Redrive, known: Mapping[str, Event], here: str) -> Iterable[Relative]:
    children: dict[str, list[str]] = {}
    for each in sorted(known):
        above = known[each].causation_id or ""
        children.setdefault(above if above in known and above != each else "", []).append(each)
    waiting, seen = [(each, 0) for each in reversed(children.get("", []))], set[str]()
    while waiting:
        each, depth = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        yield Relative(min(depth, 6), masked.event_line(app, known[each]), each == here)
        waiting += [(inner, depth + 1) for inner in reversed(children.get(each, []))]
    for each in known.keys() - seen:  # events that name one another as their cause
        yield Relative(0, masked.event_line(app, known[each]), each == here)


# --- acting on one ---


@router.post("/events/{event_id}/cancel")
@needs(Permission.ACT)
async def cancel(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Call off an event that has not ended."""
    return await _acted(request, app, caller, event_id, "cancel")


@router.post("/events/{event_id}/discard")
@needs(Permission.ACT)
async def discard(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Take a dead letter out of sight."""
    return await _acted(request, app, caller, event_id, "discard")


@router.post("/events/{event_id}/restore")
@needs(Permission.ACT)
async def restore(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Take a discarded dead letter back."""
    return await _acted(request, app, caller, event_id, "restore")


async def _acted(request: Request, app: Redrive, caller: Caller, event_id: str, verb: actions.ManyVerb) -> Response:
    said, found = await form(request), await views.find(app, event_id)
    (how,) = await actions.act(app, verb, [found], by=caller.actor, reason=said["reason"])
    return told(request, how)


def told(request: Request, how: actions.Done, did: str = "") -> Response:
    """Go back to the event, or say why nothing was done."""
    if how.refused:
        raise Refused(how.refused)
    return done(request, f"/events/{how.event.id}", did or how.verb)


@router.post("/events/{event_id}/replay")
@needs(Permission.REPLAY)
async def replay(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Send a dead letter round again."""
    said, found = await form(request), await views.find(app, event_id)
    if said["state"] != etag(found):
        raise Refused(f"event {found.id} is not what it was when you read it: look at it again")
    (how,) = await actions.replay(
        app, [found], by=caller.actor, reason=said["reason"], generation=number(said, "generation"),
        from_start=said.has("from_start"),
    )  # fmt: skip
    return told(request, how)


def number(said: Form, name: str) -> int | None:
    """Read a whole number that may be left out."""
    text = said[name]
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:  # noqa: PLR2004 - what a column holds
        raise Refused(f"{name.replace('_', ' ')} is a whole number, not {text[:40]!r}")
    return int(text)


@router.post("/events/{event_id}/shadow")
@needs(Permission.REPLAY)
async def shadow(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Try a handler on a dead letter without any effect, and say how it went."""
    said, found = await form(request), await views.find(app, event_id)
    if said.has("force") and not caller.may(Permission.ACT):
        raise Forbidden(f"{caller.name} may try only handlers that say that all they do can be rolled back")
    (tried,) = await actions.shadow(app, [found], force=said.has("force"))
    if tried.refused:
        raise Refused(tried.refused)
    shown = tried.to_json()
    secrets = masked.secrets_of(app, found)
    shown["error"] = None if shown["error"] is None else app.mask.text(shown["error"], secrets)
    shown["published"] = app.mask.everywhere(shown["published"], secrets=secrets)
    return await _event_page(request, app, caller, found, tried=shown)


@router.post("/events/{event_id}/reveal")
@needs(Permission.REVEAL)
async def reveal(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Show one event with its secrets, this once; who asked is on the trail."""
    said, found = await form(request), await views.find(app, event_id)
    shown = await masked.reveal(app, found, by=caller.actor, reason=said["reason"])
    return await _event_page(request, app, caller, found, told=shown)


# --- acting on many ---


@router.get("/many")
@needs(Permission.ACT)
async def many(request: Request, app: AppOf, caller: CallerOf, verb: str, q: SelectionText = "") -> Response:
    """Say what would be discarded, restored or called off, and ask for a reason."""
    chosen = _verb(verb)
    selection = with_ticked(q, Form(fields(request.url.query)).all("id"))
    masked.check_selection(app, caller, parse(selection))
    found = await actions.matched(app, chosen, selection)
    return page(
        request, "many.html", caller, here="/events", verb=chosen, q=selection, count=found.count,
        sentence=found.sentence, most=MOST_AT_ONCE,
    )  # fmt: skip


@router.post("/many")
@needs(Permission.ACT)
async def act_on_many(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Do the same to all that were counted, if they are still as many."""
    said = await form(request)
    verb = _verb(said["verb"])
    masked.check_selection(app, caller, parse(said["q"]))
    found = await actions.matched(app, verb, said["q"])
    if str(found.count) != said["count"]:
        raise Refused(f"there are {found.sentence} now, not {said['count'][:20]}: look at them again")
    if found.count > MOST_AT_ONCE:
        raise Refused(f"{found.count:,} are too many at once: narrow the selection, or use the command line")
    steps = [each async for each in actions.act_on_all(app, verb, found, by=caller.actor, reason=said["reason"])]
    return done(request, "/events", f"many-{verb}", n=steps[-1] if steps else 0, q=said["q"])


def _verb(said: str) -> actions.ManyVerb:
    if said not in _VERBS:
        raise Refused("only discard, restore and cancel can be done to many at once")
    return cast("actions.ManyVerb", said)


def with_ticked(selection: str, ids: list[str]) -> str:
    """Mean those that were ticked, or all of the selection when none was."""
    return f"id:{','.join(ids)}" if ids else selection
