"""Edit and replay: mend a payload, see what changed, send it round again. Identity cannot be edited."""

import json
from typing import Any

from fastapi import Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.event import Event
from redrive.mask import kept
from redrive.operate import actions, edit, masked, views
from redrive.operate.auth import Caller, Permission
from redrive.operate.console.events import number, told
from redrive.operate.console.shell import Form, done, form, new_router, page
from redrive.operate.web.api.events import etag
from redrive.operate.web.api.shared import IdPath
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.operate.web.problems import CHANGED, Problem
from redrive.payload import parse_strict

router = new_router()


@router.get("/events/{event_id}/edit")
@needs(Permission.ACT)
async def edit_page(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Show a payload to be edited; hidden values that are left alone stay what they are."""
    found = await views.find(app, event_id)
    return _page(request, app, caller, found, text=_written(masked.event(app, found)["payload"]))


def _page(request: Request, app: Redrive, caller: Caller, found: Event, *, text: str, **more: Any) -> Response:
    shown: dict[str, Any] = {"wrong": "", "changes": None, "reason": "", "generation": "", "from_start": False, **more}
    return page(
        request, "edit.html", caller, here="/events", event=masked.event_line(app, found), text=text,
        state=etag(found), rows=min(32, max(8, text.count("\n") + 2)), **shown,
    )  # fmt: skip


def _written(payload: Any) -> str:
    return json.dumps(payload, indent=2, ensure_ascii=False)


@router.post("/events/{event_id}/edit")
@needs(Permission.ACT)
async def edit_and_replay(request: Request, app: AppOf, caller: CallerOf, event_id: IdPath) -> Response:
    """Say what would change; on the second time, replay with it."""
    said, found = await form(request), await views.find(app, event_id)
    if said["state"] != etag(found):
        raise Problem(CHANGED, f"event {found.id} is not what it was when you read it")
    text = said["payload"]
    try:
        payload = kept(_read(text), found.payload)
    except ValueError as error:
        return _page(request, app, caller, found, text=text, status=422, wrong=str(error), **_rest(said))
    if said["step"] != "go":
        changes = [each.to_json() for each in edit.differences(found.payload, payload)]
        shown = app.mask.everywhere(changes, secrets=masked.secrets_of(app, found))
        return _page(request, app, caller, found, text=text, changes=shown, **_rest(said))
    (how,) = await actions.replay(
        app, [found], by=caller.actor, reason=said["reason"], generation=number(said, "generation"),
        from_start=said.has("from_start"), payloads={found.id: payload},
    )  # fmt: skip
    if how.waits is not None:
        return done(request, f"/redrives/{how.waits.id}", "propose")
    return told(request, how, "edit")


def _rest(said: Form) -> dict[str, Any]:
    return {"reason": said["reason"], "generation": said["generation"], "from_start": said.has("from_start")}


def _read(text: str) -> Any:
    try:
        return parse_strict(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
