"""Tokens, settings, purges: what admins do."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from pydantic import Field

from redrive.app import Redrive
from redrive.duration import parse_duration
from redrive.errors import Refused
from redrive.operate import actions
from redrive.operate.auth import DEFAULT_EXPIRY, Permission, Role
from redrive.operate.web.api.shared import IdPath, Sent, Why, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, GuardOf, needs
from redrive.store.base import Purge

router = new_router("access")

_MOST_ROUNDS: Final = 100


@router.get("/tokens")
@needs(Permission.TOKENS)
async def tokens(guard: GuardOf) -> dict[str, Any]:
    """List tokens: whose they are, what they allow, when they were last used."""
    return page([each.to_json() for each in await guard.tokens.all()])


class NewToken(Sent):
    """Whose it is, and what it allows."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Annotated[Role, Field(strict=False)] = Role.VIEWER
    expires: str = DEFAULT_EXPIRY


@router.post("/tokens", status_code=201)
@needs(Permission.TOKENS)
async def create(guard: GuardOf, caller: CallerOf, wanted: NewToken) -> dict[str, Any]:
    """Make a token. It is told this once; the database keeps a hash of it."""
    token, secret = await guard.tokens.create(wanted.name, wanted.role, by=caller.actor, expires=wanted.expires)
    return {**token.to_json(), "token": secret}


@router.post("/tokens/{token_id}/revoke")
@needs(Permission.TOKENS)
async def revoke(guard: GuardOf, caller: CallerOf, token_id: IdPath) -> dict[str, Any]:
    """Have a token open nothing any more; other servers take notice within seconds."""
    return (await guard.tokens.revoke(await guard.tokens.find(token_id), by=caller.actor)).to_json()


@router.get("/settings")
@needs(Permission.LOOK)
async def settings(app: AppOf) -> dict[str, Any]:
    """Say above how many events a redrive needs a second person, and one that an agent starts any person."""
    return await _settings(app)


async def _settings(app: Redrive) -> dict[str, Any]:
    return {"approval_above": await actions.approval_limit(app), "agents_above": await actions.agents_limit(app)}


class Approval(Why):
    """Above how many events; what is left out stays."""

    approval_above: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(None, description="null: never.")
    agents_above: Annotated[int, Field(ge=0, lt=2**31)] = Field(10, description="For what agents start.")


@router.put("/settings")
@needs(Permission.SET)
async def set_(app: AppOf, caller: CallerOf, said: Approval) -> dict[str, Any]:
    """Say for everybody above how many events a redrive needs a second person, or one of an agent any person."""
    named = said.model_fields_set - {"reason"}
    if not named:
        raise Refused("say what to set: approval_above, agents_above, or both")
    if "approval_above" in named:
        await actions.set_approval(app, said.approval_above, by=caller.actor, reason=said.reason)
    if "agents_above" in named:
        await actions.set_agents_limit(app, said.agents_above, by=caller.actor, reason=said.reason)
    return await _settings(app)


class Gone(Sent):
    """What may go."""

    older_than: str = Field(description="Ended longer ago: `30d`")
    dead_letters: bool = Field(default=False, description="Dead letters too; they are kept otherwise.")
    dry_run: bool = Field(default=True, description="Only say what would go.")


@router.post("/purge")
@needs(Permission.PURGE)
async def purge(app: AppOf, caller: CallerOf, what: Gone) -> dict[str, Any]:
    """Remove what ended long ago; up to 100,000 at once, `more` says whether to ask again."""
    seconds = parse_duration(what.older_than)
    if what.dry_run:
        gone, more = await actions.would_purge(app, older_than=seconds, dead_letters=what.dead_letters, by=caller.actor)
    else:
        gone, more = await _purged(
            actions.purge(app, older_than=seconds, dead_letters=what.dead_letters, by=caller.actor)
        )
    return {"dry_run": what.dry_run, "events": gone.events, "dead_letters": gone.dead_letters, "more": more}


async def _purged(rounds: AsyncIterator[Purge]) -> tuple[Purge, bool]:
    gone, count = Purge(), 0
    async for so_far in rounds:
        gone, count = so_far, count + 1
        if count >= _MOST_ROUNDS:
            return gone, True
    return gone, False
