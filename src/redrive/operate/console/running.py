"""Running: who works, and under which policies."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from redrive import override
from redrive.app import Redrive
from redrive.duration import format_duration
from redrive.errors import ConfigurationError, NotFound
from redrive.operate import tuning, views
from redrive.operate.auth import Permission
from redrive.operate.console.draw import schedule
from redrive.operate.console.shell import Form, done, form, new_router, page
from redrive.operate.web.guard import AppOf, CallerOf, needs
from redrive.store.base import Session

router = new_router()

_MOST_WAITS: Final = 14
_WHOLE: Final = ("max_attempts", "concurrency")
_NUMBERS: Final = ("multiplier",)
_SPANS: Final = ("base_delay", "max_delay", "timeout")
NameQuery = Annotated[str, Query(max_length=255)]


@router.get("/workers")
@needs(Permission.LOOK)
async def workers(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """List the workers that are here, and those that left lately."""
    live = {each.id for each in await views.live_workers(app)}
    found = [(each, _state(each, each.id in live)) for each in await views.workers(app)]
    unserved = await views.unserved(app)
    return page(
        request, "workers.html", caller, here="/workers", topics=("session",), unserved=unserved,
        workers=[each for each in found if each[1] != "left"], left=[each for each in found if each[1] == "left"][:20],
    )  # fmt: skip


def _state(each: Session, is_live: bool) -> str:  # noqa: FBT001 - one of two
    return "live" if is_live else "left" if each.ended_at is not None else "gone"


# --- policies ---


@router.get("/policies")
@needs(Permission.LOOK)
async def policies(request: Request, app: AppOf, caller: CallerOf, name: NameQuery = "*") -> Response:
    """Show what holds for a handler, and what would hold under other values."""
    overrides = await app.policies()
    said = Form({key: [value] for key, value in request.query_params.items()})
    wrong, values, standing = "", {}, None
    try:
        values = override.checked(_values(said))
        standing = tuning.standing(name, app if app.handlers else None, overrides, values)
    except (ConfigurationError, NotFound) as error:
        wrong = str(error)
    return page(
        request, "policies.html", caller, here="/policies", topics=("policy_override",), name=name, wrong=wrong,
        names=["*", *sorted(app.handlers)], overrides=overrides, standing=standing, tried=values,
        said={each: said[each] for each in override.FIELDS},
        shown={} if standing is None else _shown(standing), waits=[] if standing is None else _drawn(standing),
        more=0 if standing is None else max(0, standing.terms.retry.max_attempts - 1 - _MOST_WAITS),
        total=None if standing is None else _total(standing), status=422 if wrong else 200,
    )  # fmt: skip


def _shown(standing: tuning.Standing) -> dict[str, str]:
    """Write what holds the way it would be typed."""
    return {name: _typed(name, value) for name, value in standing.values.items()}


def _typed(name: str, value: Any) -> str:
    if value is None:
        return "no limit"
    if name in _SPANS:
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _drawn(standing: tuning.Standing) -> Any:
    waits = islice(standing.terms.retry.waits(), _MOST_WAITS)
    return schedule([(each.attempt, each.earliest, each.latest, each.mean, each.total_mean) for each in waits])


def _total(standing: tuning.Standing) -> float:
    last = None
    for last in islice(standing.terms.retry.waits(), 1_000):  # noqa: B007 - the last one counts
        pass
    return 0.0 if last is None else last.total_mean


def _values(said: Form) -> Mapping[str, Any]:
    """Read the values of a form; what is left empty is not said."""
    return {name: _value(name, said[name]) for name in override.FIELDS if said.has(name)}


def _value(name: str, text: str) -> Any:
    try:
        if name in _WHOLE:
            return text if text == override.NONE else int(text)
        if name in _NUMBERS:
            return float(text)
        if name == "jitter" and text not in ("full", "none"):
            return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} is a number, not {text[:40]!r}") from None
    return text


@router.post("/policies")
@needs(Permission.TUNE)
async def set_(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Set values for the handlers that a pattern matches, or take them back."""
    said = await form(request)
    pattern = said["name"]
    if said["verb"] == "clear":
        await app.clear_policy(pattern, by=caller.actor, reason=said["reason"])
        return done(request, "/policies", "clear")
    await _set(app, caller.actor, pattern, said)
    return done(request, "/policies", "set", name=pattern)


async def _set(app: Redrive, by: str, pattern: str, said: Form) -> None:
    await app.set_policy(pattern, by=by, reason=said["reason"], **_values(said))
