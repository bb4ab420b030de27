"""Masked: what operators are shown of events, with secret fields hidden. Console, API and agents all show this.

Whoever may reveal asks for one event at a time, says why, and is on the trail.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from redrive.app import Redrive
from redrive.attention import SHOWN, Matter
from redrive.batch import Batch, BatchLook
from redrive.event import Event, TrailEntry
from redrive.finding import Finding, ReconcileRun
from redrive.finding import Standing as Reconciling
from redrive.group import Group, Skew
from redrive.mask import HIDDEN
from redrive.operate import task as tasks
from redrive.operate import views
from redrive.operate.auth import Caller, Forbidden, Permission
from redrive.operate.views import GroupStory, Report, Standing, Step, entry_json, group_json, plain, skew_json
from redrive.ordering import HeldKey
from redrive.redrive import Redriving
from redrive.replay import check_reason
from redrive.selection import Selection
from redrive.steps import StepRecord

_BULKY: Final = ("payload", "headers", "failure_history", "last_error")
_REPORTS: Final = ("first", "final")
_LONGEST_LINE: Final = 300


def secrets_of(app: Redrive, event: Event) -> set[str]:
    """Collect what is secret in an event, so that it is hidden wherever it is quoted."""
    return app.mask.secrets(event.payload, event.headers)


def event(app: Redrive, found: Event) -> dict[str, Any]:
    """Show one event."""
    mask, secrets = app.mask, secrets_of(app, found)
    told = found.to_json()
    told["payload"] = mask.everywhere(found.payload, secrets=secrets)
    told["headers"] = mask.everywhere(found.headers, secrets=secrets)
    told["last_error"] = None if found.last_error is None else mask.text(found.last_error, secrets)
    for cycle in told["failure_history"]:
        cycle["last_error"] = None if cycle["last_error"] is None else mask.text(cycle["last_error"], secrets)
    return told


def unread(found: Event) -> str | None:
    """Say in a line that a row cannot be read, and why; None for all others."""
    return None if found.unreadable is None else f"unreadable: {found.unreadable}"


def event_line(app: Redrive, found: Event) -> dict[str, Any]:
    """Show one event in a list: without what may be large."""
    told = {name: value for name, value in found.to_json().items() if name not in _BULKY}
    line = unread(found) or (found.last_error or "").partition("\n")[0]
    told["error"] = app.mask.text(line, secrets_of(app, found))[:_LONGEST_LINE] or None
    return told


def timeline(app: Redrive, found: Event, steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Show the story of one event."""
    secrets = secrets_of(app, found)
    shown = []
    for step in steps:
        told = step.to_json()
        for name in ("what", "because"):
            told[name] = None if told[name] is None else app.mask.text(told[name], secrets)
        told["facts"] = app.mask.everywhere(told["facts"], secrets=secrets)
        shown.append(told)
    return shown


def steps(app: Redrive, found: Event, done: Iterable[StepRecord]) -> list[dict[str, Any]]:
    """Show what one event has done in steps."""
    secrets = secrets_of(app, found)
    return [{**each.to_json(), "result": app.mask.everywhere(each.result, secrets=secrets)} for each in done]


def story(app: Redrive, told: GroupStory) -> dict[str, Any]:
    """Show a group, one of its members, and what sets them apart."""
    secrets = set() if told.sample is None else secrets_of(app, told.sample)
    shown = group_json(told.group)
    return {
        **shown,
        "title": app.mask.text(shown["title"], secrets),
        "note": shown["note"],
        "sample": None if told.sample is None else event(app, told.sample),
        "compared": {"dead": told.dead, "delivered": told.delivered},
        "skew": [_skew(app, skew_json(each)) for each in told.skews],
        "redrives": [
            {"id": str(each.id), "state": each.state, "members": members, "reason": each.reason}
            for each, members in told.redrives
        ],
    }


def hidden_story(app: Redrive, told: GroupStory) -> GroupStory:
    """Hide the secrets of a story before it is told in sentences."""
    secrets = set() if told.sample is None else secrets_of(app, told.sample)
    skews = [Skew(**_skew(app, skew_json(each))) for each in told.skews]
    return replace(told, group=replace(told.group, title=app.mask.text(told.group.title, secrets)), skews=skews)


async def group(app: Redrive, found: Group) -> dict[str, Any]:
    """Show one group."""
    (shown,) = await groups(app, [found])
    return shown


async def groups(app: Redrive, found: Sequence[Group]) -> list[dict[str, Any]]:
    """Show groups in a list; the title of each is the error of its latest dead letter."""
    secrets = await _secrets(app, [each.sample_event_id for each in found])
    return [
        {**group_json(each), "title": app.mask.text(each.title, secrets.get(str(each.sample_event_id), ()))}
        for each in found
    ]


async def report(app: Redrive, told: Report) -> dict[str, Any]:
    """Show what a redrive has brought; its groups are named by the errors of their dead letters."""
    shown = told.to_json()
    secrets = await _secrets(app, [each.sample_event_id for _, each, _ in told.groups if each is not None])
    for line, (_, each, _) in zip(shown["groups"], told.groups, strict=True):
        if each is not None:
            line["title"] = app.mask.text(each.title, secrets.get(str(each.sample_event_id), ()))
    return shown


# --- batches ---


async def batch(app: Redrive, found: Batch | BatchLook, *, most: int | None = None) -> dict[str, Any]:
    """Show one batch; the reports of its notices quote the errors of its members, of at most so many."""
    shown = found.to_json()
    reports = [shown[name] for name in _REPORTS if shown[name]]
    for each in reports:
        each["more"] += len(each["failures"][most:]) if most is not None else 0
        each["failures"] = each["failures"][:most]
    failures = [failure for each in reports for failure in each["failures"]]
    secrets = await _secrets(app, [each["id"] for each in failures])
    for each in failures:
        each["reason"] = app.mask.text(each["reason"], secrets.get(each["id"], ()))
    return shown


# --- reconcilers ---


async def reconciler(app: Redrive, found: Reconciling) -> dict[str, Any]:
    """Show how a reconciler stands; the error of its last run may quote what it compared."""
    shown = found.to_json()
    if found.error is not None:
        shown["error"] = app.mask.text(found.error, await _compared(app, found.name))
    return shown


async def run(app: Redrive, found: ReconcileRun) -> dict[str, Any]:
    """Show one run: both sides of what it found, and its error."""
    secrets = app.mask.secrets(*(side for each in found.found for side in (each.desired, each.actual)))
    if found.error is not None:
        secrets |= await _compared(app, found.name)
    shown: dict[str, Any] = app.mask.everywhere(found.to_json(), secrets=secrets)
    return shown


def finding(app: Redrive, found: Finding) -> dict[str, Any]:
    """Show one finding: both sides of it."""
    secrets = app.mask.secrets(found.desired, found.actual)
    shown: dict[str, Any] = app.mask.everywhere(found.to_json(), secrets=secrets)
    return shown


async def _compared(app: Redrive, name: str) -> set[str]:
    """Collect what is secret in the latest findings of a reconciler: of what a failed run saw, nothing else is kept."""
    latest = await app.reconcilers.findings(name, state=None)
    return app.mask.secrets(*(side for each in latest for side in (each.desired, each.actual)))


# --- what texts quote ---


async def held_keys(app: Redrive, found: Sequence[HeldKey]) -> list[dict[str, Any]]:
    """Show keys that are held up."""
    errors = await quoted(app, [(each.head, (each.last_error or "").partition("\n")[0]) for each in found])
    return [{**plain(each), "last_error": error or None} for each, error in zip(found, errors, strict=True)]


async def overview(app: Redrive) -> dict[str, Any]:
    """Show what an operator asks first."""
    told = await views.overview(app)
    secrets = await _quoted_secrets(app)
    return {**told, "needs_a_person": [app.mask.text(each, secrets) for each in told["needs_a_person"]]}


async def matters(app: Redrive, kinds: Collection[str] = ()) -> list[dict[str, Any]]:
    """Show what will not move by itself."""
    return await told(app, await app.attention(kinds=kinds))


async def told(app: Redrive, found: Iterable[Matter]) -> list[dict[str, Any]]:
    """Show matters."""
    secrets = await _quoted_secrets(app)
    return [app.mask.everywhere(each.to_json(), secrets=secrets) for each in found]


async def task(app: Redrive, correlation_id: str, also: Sequence[str] = ()) -> dict[str, Any]:
    """Show everything of one correlation id, in this database and in others."""
    found = await tasks.task([app, *also], correlation_id)
    told = found.to_json()
    hidden = [
        {**shown, "last_error": None if shown["last_error"] is None else app.mask.text(shown["last_error"], secrets)}
        for shown, secrets in zip(told["events"], (secrets_of(app, each.event) for each in found.events), strict=True)
    ]
    return {**told, "events": hidden}


async def _quoted_secrets(app: Redrive) -> set[str]:
    """Collect what is secret in the dead letters whose errors such a list quotes."""
    events = {each.sample_event_id for each in await app.groups(limit=SHOWN)}
    events |= {each.head for each in await app.held_keys(limit=SHOWN)}
    return {secret for each in (await _secrets(app, events)).values() for secret in each}


async def quoted(app: Redrive, texts: Sequence[tuple[UUID | None, str]]) -> list[str]:
    """Hide in each text what is secret in the event that it speaks of."""
    secrets = await _secrets(app, [event_id for event_id, _ in texts if event_id is not None])
    return [app.mask.text(text, secrets.get(str(event_id), ())) for event_id, text in texts]


async def _secrets(app: Redrive, ids: Iterable[UUID | str]) -> dict[str, set[str]]:
    """Collect what is secret in each of these events, by id; what is gone has no secrets any more."""
    wanted = sorted({str(each) for each in ids})
    rows = await app.store.ask("payloads", ids=wanted) if wanted else []
    return {str(row["id"]): app.mask.stored_secrets(row["payload"], row["headers"]) for row in rows}


def entry(app: Redrive, found: TrailEntry, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Show one entry of the trail; what one without an event calls its token is an id or a number, not a secret."""
    told = entry_json(found)
    kept = {name: value for name, value in told["detail"].items() if name == "token" and found.event_id is None}
    told["detail"] = {**app.mask.everywhere(told["detail"], secrets=secrets), **kept}
    return told


async def proposed(app: Redrive, standing: Redriving) -> list[dict[str, Any]]:
    """Show what an edit that waits for approval would change."""
    found = await views.proposed(app, standing)
    if found is None:
        return []
    edited, changes = found
    return [_change(app, each.to_json(), secrets_of(app, edited)) for each in changes]


def _change(app: Redrive, told: dict[str, Any], secrets: set[str]) -> dict[str, Any]:
    if any(app.mask.hides(part) for part in str(told["field"]).split(".")):
        return {name: value if name == "field" else HIDDEN for name, value in told.items()}
    shown: dict[str, Any] = app.mask.everywhere(told, secrets=secrets)
    return shown


def _skew(app: Redrive, told: dict[str, Any]) -> dict[str, Any]:
    hidden = any(app.mask.hides(part) for part in str(told["field"]).split("."))
    return {**told, "value": HIDDEN if hidden else app.mask.text(str(told["value"]))}


def standing(app: Redrive, told: Standing) -> dict[str, Any]:
    """Show what events may wait for; its reason may quote an error."""
    shown = told.to_json()
    return {**shown, "reason": None if shown["reason"] is None else app.mask.text(shown["reason"])}


# --- who may ask ---


def check_selection(app: Redrive, caller: Caller, selection: Selection) -> None:
    """Refuse to search for what the caller may not see: an answer that is empty or not would tell it."""
    if caller.may(Permission.REVEAL):
        return
    for term in selection.terms:
        if term.field in ("payload", "header") and any(app.mask.hides(str(part)) for part in term.path):
            place = ".".join((term.field, *map(str, term.path)))
            raise Forbidden(f"{place} is hidden from you, so it cannot be searched for")


def seen(app: Redrive, caller: Caller, selection: Selection, found: Sequence[Event]) -> list[Event]:
    """Leave out what was found only by a text that is hidden from the caller."""
    if caller.may(Permission.REVEAL) or all(term.field != "text" for term in selection.terms):
        return list(found)
    now = app.clock.now()
    texts = Selection(tuple(term for term in selection.terms if term.field == "text"))
    return [
        each
        for each in found
        if each.last_error is None
        or texts.matches(replace(each, last_error=app.mask.text(each.last_error, secrets_of(app, each))), now)
    ]


async def reveal(app: Redrive, found: Event, *, by: str, reason: str) -> dict[str, Any]:
    """Show one event with its secrets, and write down who has seen them."""
    why = check_reason(reason, "reveal")
    async with app.store.transaction() as tx:
        await tx.record([(UUID(str(found.id)), "revealed", found.source, by, {"reason": why})])
    return found.to_json()
