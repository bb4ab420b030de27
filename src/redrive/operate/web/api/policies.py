"""Policies while it runs: what holds, what would hold, what operators have set."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from redrive import override
from redrive.operate import tuning
from redrive.operate.auth import Permission
from redrive.operate.web.api.shared import Sent, Why, page
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router("policies")

Pattern = Annotated[str, Field(min_length=1, max_length=255, description="A target, a type, `order.*`, or `*`.")]


class Values(Sent):
    """What may be said; `none` takes one of the last three away."""

    max_attempts: int | None = None
    base_delay: str | float | None = None
    multiplier: float | None = None
    max_delay: str | float | None = None
    jitter: str | float | None = None
    timeout: str | float | None = None
    concurrency: int | str | None = None
    rate: str | None = None

    def said(self) -> dict[str, Any]:
        """Return what was said."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


@router.get("/policies")
@needs(Permission.LOOK)
async def policies(app: AppOf) -> dict[str, Any]:
    """List what operators have set, by pattern."""
    return page([each.to_json() for each in await app.policies()])


@router.get("/policies/effective")
@needs(Permission.LOOK)
async def effective(app: AppOf, name: Annotated[str, Query(min_length=1, max_length=255)]) -> dict[str, Any]:
    """Show what holds for a handler, who says so, and its schedule."""
    return tuning.standing(name, app if app.handlers else None, await app.policies(), {}).to_json()


class Preview(Sent):
    """For whom, and which values."""

    name: Pattern = "*"
    values: Values = Field(default_factory=Values)


@router.post("/policies/preview")
@needs(Permission.LOOK)
async def preview(app: AppOf, what: Preview) -> dict[str, Any]:
    """Say what would hold under other values. Nothing is stored."""
    values = override.checked(what.values.said())
    return tuning.standing(what.name, app if app.handlers else None, await app.policies(), values).to_json()


class Set(Why):
    """For whom, and what; what was set for the pattern before and is not named stays."""

    pattern: Pattern
    values: Values


@router.post("/policies")
@needs(Permission.TUNE)
async def set_(app: AppOf, caller: CallerOf, what: Set) -> dict[str, Any]:
    """Set values for the handlers that a pattern matches; workers take notice within seconds."""
    done = await app.set_policy(what.pattern, by=caller.actor, reason=what.reason, **what.values.said())
    return done.to_json()


class Clear(Why):
    """For whom."""

    pattern: Pattern


@router.post("/policies/clear")
@needs(Permission.TUNE)
async def clear(app: AppOf, caller: CallerOf, what: Clear) -> dict[str, Any]:
    """Take back what was set for a pattern: its handlers go back to what they say themselves."""
    return (await app.clear_policy(what.pattern, by=caller.actor, reason=what.reason)).to_json()
