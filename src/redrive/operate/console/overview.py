"""Overview: is all well, and if not, where to look."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from redrive import group as engine
from redrive.app import Redrive
from redrive.attention import Matter, Urgency
from redrive.operate import masked, views
from redrive.operate.auth import Permission
from redrive.operate.console import glance, pace
from redrive.operate.console.attention import TOPICS, places
from redrive.operate.console.shell import new_router, page
from redrive.operate.console.words import plural, span
from redrive.operate.web.guard import AppOf, CallerOf, needs

router = new_router()

_OLD_BACKLOG: Final = 60.0
_GROUPS: Final = 6
_RUNNING: Final = ("running", "paused", "halted")


@dataclass(frozen=True, slots=True)
class Health:
    """How things stand, in a sentence, and what is said below it."""

    tone: str
    word: str
    sentence: str
    more: str = ""


@router.get("/")
@needs(Permission.LOOK)
async def overview(request: Request, app: AppOf, caller: CallerOf) -> Response:
    """Draw the first page."""
    counts = await app.store.overview()
    pressing = [each for each in await glance.of(request).look(app) if each.urgency is not Urgency.KNOW]
    standing = await views.dependencies(app)
    shut = [masked.standing(app, each) for each in standing if each.of.is_shut]
    groups = await engine.groups(app.store, limit=_GROUPS)
    redrives = [each for each in await app.redrivings(limit=20) if each.state in _RUNNING]
    return page(
        request, "overview.html", caller, here="/", topics=TOPICS,
        counts=counts, health=health(counts, shut, pressing), shut=shut, redrives=redrives, pressing=len(pressing),
        matters=await _first_of_each_kind(app, pressing), groups=await masked.groups(app, groups),
        lines=await pace.of_groups(app, [each.fingerprint for each in groups]),
        ended=await pace.ended(app), failed=await pace.failed(app), due=await pace.due(app),
        is_new=_is_new(counts),
    )  # fmt: skip


async def _first_of_each_kind(app: Redrive, matters: Sequence[Matter]) -> list[dict[str, Any]]:
    kinds = Counter(each.kind for each in matters)
    firsts = {each.kind: each for each in reversed(matters)}
    told = await masked.told(app, [firsts[kind] for kind in kinds])
    return [{**each, "places": places(each), "others": kinds[each["kind"]] - 1} for each in told]


def _is_new(counts: Mapping[str, Any]) -> bool:
    return not any(counts[name] for name in ("pending", "in_flight", "blocked", "failed", "delivered", "workers"))


def health(counts: Mapping[str, Any], shut: Sequence[Mapping[str, Any]], matters: Sequence[Matter]) -> Health:
    """Say the most pressing thing first."""
    failed = counts["failed"]
    quarantine = f"{plural(failed, 'dead letter')} in quarantine." if failed else "The quarantine is empty."
    return next(_judgements(counts, shut, matters, quarantine))


def _judgements(
    counts: Mapping[str, Any], shut: Sequence[Mapping[str, Any]], matters: Sequence[Matter], quarantine: str
) -> Iterator[Health]:
    waiting, workers = counts["pending"], counts["workers"]
    if not workers and waiting:
        sentence = f"Nobody is at work, and {plural(waiting, 'event')} {_wait(waiting)}."
        yield Health("bad", "Stopped", sentence, f"Start a worker: redrive worker APP. {quarantine}")
    if at_once := sum(each.urgency is Urgency.NOW for each in matters):
        sentence = f"{plural(at_once, 'thing')} {_stand(at_once)} still until a person acts."
        yield Health("bad", "Act now", sentence, f"{_shut_sentence(shut)} {quarantine}" if shut else quarantine)
    if shut:
        more = f"Circuits close by themselves, holds are lifted by people. {quarantine}"
        yield Health("wait", "Waiting", _shut_sentence(shut), more)
    if (old := counts["oldest_due_seconds"] or 0.0) > _OLD_BACKLOG:
        sentence = f"The workers are behind: the oldest due event has waited for {span(old)}."
        yield Health("wait", "Behind", sentence, quarantine)
    if matters:
        sentence = f"{plural(len(matters), 'thing')} {'needs' if len(matters) == 1 else 'need'} a person."
        yield Health("wait", "Attention", sentence, quarantine)
    if not workers:
        yield Health("quiet", "Idle", "Nothing waits, and nobody is at work.")
    yield Health("good", "Well", "All is well.", f"{plural(workers, 'worker')} at work, nothing needs a person.")


def _shut_sentence(shut: Sequence[Mapping[str, Any]]) -> str:
    held = sum(each["waiting"] for each in shut)
    others = f" and {len(shut) - 1} more" if len(shut) > 1 else ""
    verb, spend = "are" if others else "is", "spends" if held == 1 else "spend"
    return f"{shut[0]['name']}{others} {verb} shut; {plural(held, 'event')} {_wait(held)} and {spend} no attempts."


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _stand(number: int) -> str:
    return "stands" if number == 1 else "stand"
