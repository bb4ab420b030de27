"""Ordering keys that a dead letter holds up."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from redrive.operate import masked
from redrive.operate.auth import Permission
from redrive.operate.views import plain
from redrive.operate.web.api.shared import CursorQuery, LimitQuery, Why, after, id_in, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("keys")

# Keys are free text, so they travel in the query or the body, not in the path.
KeyQuery = Annotated[str, Query(min_length=1, max_length=512)]
TargetQuery = Annotated[str | None, Query(max_length=255)]


@router.get("/keys")
@needs(Permission.LOOK)
async def keys(
    app: AppOf, target: TargetQuery = None, cursor: CursorQuery = None, limit: LimitQuery = 50
) -> dict[str, Any]:
    """List the keys that are held up, the oldest first: by which dead letter, since when, how many wait."""
    query = f"keys {target}"
    found = await app.held_keys(target=target, after=id_in(query, cursor), limit=limit)
    following = found[-1].head if len(found) == limit else None
    return page(await masked.held_keys(app, found), after(query, following))


@router.get("/keys/line")
@needs(Permission.LOOK)
async def line(
    app: AppOf, key: KeyQuery, target: Annotated[str, Query(min_length=1, max_length=255)], limit: LimitQuery = 50
) -> dict[str, Any]:
    """List the events of a key that have not ended, in the order in which they will go."""
    return page([plain(each) for each in await app.line(target, key, limit=limit)])


class Held(Why):
    """Which key; the target is needed when several have it."""

    key: Annotated[str, Field(min_length=1, max_length=512)]
    target: Annotated[str, Field(min_length=1, max_length=255)] | None = None


@router.post("/keys/release")
@needs(Permission.ACT)
async def release(app: AppOf, caller: CallerOf, held: Held) -> dict[str, Any]:
    """Let the events behind the dead letter go; it stays a dead letter and can be replayed."""
    done = await app.release_key(held.key, by=caller.actor, reason=held.reason, target=held.target)
    return (await masked.held_keys(app, [done]))[0]


@router.post("/keys/skip")
@needs(Permission.ACT)
async def skip(app: AppOf, caller: CallerOf, held: Held) -> dict[str, Any]:
    """Discard the dead letter that holds up the key and go on with the next; it can be restored."""
    done = await app.skip_key(held.key, by=caller.actor, reason=held.reason, target=held.target)
    return (await masked.held_keys(app, [done]))[0]
