"""Attention: what will not move by itself, with the place where one acts, and the command that does the same."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from redrive.operate import masked
from redrive.operate.auth import Permission
from redrive.operate.console import glance
from redrive.operate.console.shell import link, new_router, page
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()

TOPICS: Final = ("outbox", "failure_group", "redrive", "dependency", "session", "finding")
_UUID_LENGTH: Final = len(str(UUID(int=0)))
_LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "worker": ("/workers", "See the workers"),
    "unserved": ("/workers", "See the workers"),
    "key": ("/keys", "Blocked keys"),
    "redrive": ("/redrives", "See the redrives"),
    "dead-letters": ("/failures", "See the failures"),
    "compensation": ("/failures", "See the failures"),
    "hook": ("/failures", "See the failures"),
    "hold": ("/dependencies", "See the dependencies"),
    "dependency": ("/dependencies", "See the dependencies"),
    "finding": ("/reconcilers", "See the reconcilers"),
}
_UNGROUPED: Final = (link("/events", q="status:failed -group:*"), "See them")


@router.get("/attention")
@needs(Permission.LOOK)
async def attention(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """List what needs a person, the most pressing first."""
    found = await glance.of(request).look(app)
    matters = await masked.told(app, found)
    return page(
        request, "attention.html", caller, here="/attention", topics=TOPICS,
        matters=[{**each, "places": places(each)} for each in matters], waiting=glance.of(request).count,
    )  # fmt: skip


def places(matter: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Say where something can be done about a matter, and what the way there is called."""
    kind, about = matter["kind"], matter["about"]
    if matter["what"] == "no group":
        return [_UNGROUPED]
    one = [_one(kind, about)] if about else []
    every = [_LISTS[kind]] if kind in _LISTS and (not one or kind == "key") else []
    return [*one, *every]


def _one(kind: str, about: str) -> tuple[str, str]:
    if kind == "redrive":
        return f"/redrives/{about}", "Open the redrive"
    if kind == "finding":
        return link("/reconcilers", name=about), "See the findings"
    if len(about) == _UUID_LENGTH:
        return f"/events/{about}", "Open the event"
    return f"/failures/{about}", "Open the group"
