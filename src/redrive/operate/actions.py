"""Actions: what an operator can do. Each has a name and a reason, and is on the trail.

Acts on several events go one by one: what one of them refuses does not undo the others, and the answer says how each
went. Long ones work in bounded batches, so that the workers are never kept waiting.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from redrive import group, setting
from redrive.app import Redrive
from redrive.errors import EventNotFound, NeedsApproval, Refused
from redrive.event import Event, Published, Status
from redrive.group import Group
from redrive.instant import instant_of
from redrive.operate import views
from redrive.operate.auth import is_agent
from redrive.operations import UNCHANGED
from redrive.payload import check_whole
from redrive.redrive import Plan, Redriving, Release
from redrive.replay import Mark, check_actor, check_reason, mark
from redrive.selection import Selection, dead_letters, live, parse
from redrive.setting import AGENTS_ABOVE, AGENTS_ALONE, APPROVAL_ABOVE, Setting
from redrive.shadow import Shadow
from redrive.store.base import Ages, EventFilter, Purge

Verb = Literal["replay", "discard", "restore", "cancel"]
ManyVerb = Literal["discard", "restore", "cancel"]
DONE: Final[dict[Verb, str]] = {
    "replay": "replayed", "discard": "discarded", "restore": "restored", "cancel": "cancelled",
}  # fmt: skip

_BATCH: Final = 1_000
_CHUNK: Final = 500
_DISCARDED: Final = parse("discarded:yes")
_DRY_RUN_LIMIT: Final = 100_000
_CANCEL_ROUNDS: Final = 20


@dataclass(frozen=True, slots=True)
class Done:
    """How an act on one event went; ``refused`` says why it was not done, ``waits`` for whose approval it waits."""

    event: Event
    verb: Verb
    refused: str = ""
    waits: Redriving | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "id": str(self.event.id),
            "type": self.event.type,
            "target": self.event.target,
            "action": self.verb,
            "done": not self.refused and self.waits is None,
            "refused": self.refused or None,
            "waits_for_approval": None if self.waits is None else str(self.waits.id),
        }


async def act(app: Redrive, verb: ManyVerb, events: Sequence[Event], *, by: str, reason: str) -> list[Done]:
    """Do the same to each of the events."""
    acts = {"discard": app.discard, "restore": app.restore, "cancel": app.cancel}
    return [await _done(event, verb, acts[verb](event.id, by=by, reason=reason)) for event in events]


async def replay(
    app: Redrive, events: Sequence[Event], *, by: str, reason: str, generation: int | None = None,
    payloads: Mapping[UUID, Any] | None = None, from_start: bool = False, repeat_steps: bool = False,
) -> list[Done]:  # fmt: skip
    """Replay each of the events, those in ``payloads`` with an edited one.

    Where redrives need approval, what was edited waits for a second person.
    """
    limit = await approval_limit(app)
    if limit is not None and len(events) > limit:
        raise NeedsApproval(
            f"{len(events):,} events are more than the {limit:,} that need no second person: "
            "`redrive plan` makes a plan of them that somebody else can approve"
        )
    if limit is not None and payloads is not None:
        how = {"by": by, "reason": reason, "generation": generation, "from_start": from_start,
               "repeat_steps": repeat_steps}  # fmt: skip
        return [await _proposed(app, event, payloads[event.id], **how) for event in events]
    return [
        await _done(
            event, "replay",
            app.replay(event.id, by=by, reason=reason, generation=generation,
                       payload=UNCHANGED if payloads is None else payloads[event.id], cycle=event.cycle,
                       from_start=from_start, repeat_steps=repeat_steps),
        )
        for event in events
    ]  # fmt: skip


async def _proposed(app: Redrive, event: Event, payload: Any, **how: Any) -> Done:
    try:
        return Done(event, "replay", waits=await app.propose(event.id, payload, cycle=event.cycle, **how))
    except (Refused, EventNotFound) as error:
        return Done(event, "replay", str(error))


async def _done(event: Event, verb: Verb, doing: Awaitable[None]) -> Done:
    try:
        await doing
    except (Refused, EventNotFound) as error:
        return Done(event, verb, str(error))
    return Done(event, verb)


# --- trying ---


@dataclass(frozen=True, slots=True)
class Shadowed:
    """How one event would end; ``refused`` says why that cannot be tried."""

    event: Event
    shadow: Shadow | None
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        shadow = self.shadow
        return {
            "id": str(self.event.id),
            "type": self.event.type,
            "target": self.event.target,
            "would": None if shadow is None else shadow.would,
            "error": None if shadow is None else shadow.error,
            "error_class": None if shadow is None else shadow.error_class,
            "published": [] if shadow is None else [{"type": each, "payload": what} for each, what in shadow.published],
            "refused": self.refused or None,
        }


async def shadow(app: Redrive, events: Sequence[Event], *, force: bool = False) -> list[Shadowed]:
    """Run each event's handler in a transaction that is rolled back; nothing of it is on the trail."""
    return [await _shadowed(app, event, force=force) for event in events]


async def _shadowed(app: Redrive, event: Event, *, force: bool) -> Shadowed:
    try:
        return Shadowed(event, await app.shadow(event.id, force=force))
    except (Refused, EventNotFound) as error:
        return Shadowed(event, None, str(error))


# --- discarding, restoring and cancelling many ---


@dataclass(frozen=True, slots=True)
class Matched:
    """Events that a selection means, as they were counted at ``until``."""

    selection: Selection
    count: int
    until: datetime

    @property
    def sentence(self) -> str:
        """Say what is meant, with its count."""
        return self.selection.sentence(self.until, self.count)


async def matched(app: Redrive, verb: ManyVerb, selection: str) -> Matched:
    """Count what would be discarded, restored or cancelled."""
    await app.open()
    wanted, discarded = parse(selection), verb == "restore"
    if discarded:
        wanted = Selection((*wanted.terms, *_DISCARDED.terms))
    wanted = live(wanted) if verb == "cancel" else dead_letters(wanted)
    clauses, values = _where(app, wanted, app.clock.now())
    if verb == "cancel":
        (row,) = await app.store.ask("live_count", clauses=clauses, **values)
    else:
        (row,) = await app.store.ask("dead_letters_count", clauses=clauses, discarded=discarded, **values)
    until = instant_of(row["now"])
    return Matched(wanted, row["n"], until)


def act_on_all(app: Redrive, verb: ManyVerb, what: Matched, *, by: str, reason: str) -> AsyncGenerator[int]:
    """Do the same to everything that was counted, in steps; yields how many are done."""
    if verb == "cancel":
        return cancel_all(app, what, by=by, reason=reason)
    return mark_all(app, verb, what, by=by, reason=reason)


async def mark_all(app: Redrive, verb: Mark, what: Matched, *, by: str, reason: str) -> AsyncGenerator[int]:
    """Discard or restore what was counted, a transaction for each few hundred; yields how many are done.

    What came in since is left alone, and so is what is no longer meant.
    """
    clauses, values = _where(app, what.selection, what.until)
    done, after = 0, UUID(int=0)
    while True:
        marked = await mark(
            app.store, verb, clauses=clauses, values=values, by=by, reason=reason, limit=_CHUNK, until=what.until,
            after=after,
        )  # fmt: skip
        done += len(marked)
        yield done
        if len(marked) < _CHUNK:
            return
        after = marked[-1]
        await app.clock.sleep(0.01)  # leave room for the work itself


async def cancel_all(app: Redrive, what: Matched, *, by: str, reason: str) -> AsyncGenerator[int]:
    """Call off what was counted, a transaction for each few hundred; yields how many are done.

    What came in since is left alone, and so is what has ended by itself.
    """
    clauses, values = _where(app, what.selection, what.until)

    async def ids_after(last: UUID) -> list[UUID]:
        rows = await app.store.ask("live", clauses=clauses, after=last, until=what.until, limit=_CHUNK, **values)
        return [UUID(str(row["id"])) for row in rows]

    done, after = 0, UUID(int=0)
    while ids := await ids_after(after):
        left = set(ids)
        for _ in range(_CANCEL_ROUNDS):  # what a worker is settling at this moment is passed over the first time
            gone = await app.cancel_all(sorted(left), by=by, reason=reason)
            done += len(gone)
            left.difference_update(gone)
            if not left or left.isdisjoint(await ids_after(after)):
                break
            await app.clock.sleep(0.05)
        yield done
        after = ids[-1]
        await app.clock.sleep(0.01)  # leave room for the work itself


def _where(app: Redrive, selection: Selection, now: datetime) -> tuple[list[str], dict[str, Any]]:
    return selection.where("postgres" if app.store.name == "postgres" else "sqlite", now)


# --- purging ---


async def purge(app: Redrive, *, older_than: float, dead_letters: bool, by: str) -> AsyncIterator[Purge]:
    """Remove what ended long ago; yields how much is gone so far. Keys of handled events stay: replays need them."""
    await app.open()
    gone = Purge()
    while True:
        batch = await app.store.purge(_ages(older_than, dead_letters=dead_letters), by=by, limit=_BATCH)
        gone += batch
        yield gone
        if batch.most < _BATCH:
            return
        await app.clock.sleep(0.05)  # leave room for the work itself


async def would_purge(app: Redrive, *, older_than: float, dead_letters: bool, by: str) -> tuple[Purge, bool]:
    """Say what ``purge`` would remove, and whether the count stopped at its limit. Nothing is removed."""
    await app.open()
    ages = _ages(older_than, dead_letters=dead_letters)
    would = await app.store.purge(ages, by=by, limit=_DRY_RUN_LIMIT, dry_run=True)
    return would, max(would.events, would.dead_letters) >= _DRY_RUN_LIMIT


def _ages(older_than: float, *, dead_letters: bool) -> Ages:
    return Ages(ended=older_than, failed=older_than if dead_letters else None)


# --- redrives ---


async def plan(app: Redrive, selection: str, *, by: str, unsafe: bool = False) -> Plan | None:
    """Plan a redrive; nothing, and nothing is written down, when no dead letter is meant."""
    if unsafe and is_agent(by):
        raise Refused("whether what is not safe to retry goes again is for a person to say: leave unsafe out")
    await app.open()
    wanted = views.narrowed(app, EventFilter(status=Status.FAILED, limit=1), parse(selection))
    if not await app.events(replace(wanted, discarded=False)):
        return None
    planned = await app.plan(selection, by=by, unsafe=unsafe)
    return planned if planned.redrive.total else None


async def plan_story(app: Redrive, planned: Plan) -> views.PlanStory:
    """Put together what is said beside a plan."""
    samples, workers = await views.samples(app, planned), await views.live_workers(app)
    return views.PlanStory(planned, samples, workers, await approval_limit(app))


async def start(
    app: Redrive, token: str, *, by: str, reason: str, release: Release, generation: int | None = None,
    from_start: bool = False, repeat_steps: bool = False,
) -> Redriving:  # fmt: skip
    """Start a planned redrive; an agent starts more than a few events only when a person has approved it."""
    if is_agent(by):
        planned = await views.find_redrive(app, token)
        if await waits_for_a_person(app, planned, by):
            raise NeedsApproval(
                f"{planned.ready:,} events are more than the {await agents_limit(app):,} that {by} may start alone: "
                f"a person approves first, in the console or with `redrive redrives approve {planned.id}`"
            )
    return await app.start(
        token, by=by, reason=reason, release=release, generation=generation, from_start=from_start,
        repeat_steps=repeat_steps,
    )  # fmt: skip


async def approval_limit(app: Redrive) -> int | None:
    """Say how many events may be redriven without a second person: the stricter of the database and the app."""
    found = await approval(app)
    limits = [app.approval_above, None if found is None else found.value]
    return min((each for each in limits if each is not None), default=None)


async def agents_limit(app: Redrive) -> int:
    """Say how many events a redrive may have that an agent starts alone."""
    await app.open()
    found = await setting.get(app.store, AGENTS_ABOVE)
    return AGENTS_ALONE if found is None else int(found.value)


async def set_agents_limit(app: Redrive, above: int, *, by: str, reason: str) -> Setting:
    """Say for everybody above how many events an agent needs a person to start a redrive; 0: for every one."""
    if check_whole(above, "above") < 0:
        raise Refused("the least that can be said is 0: then an agent starts nothing alone")
    await app.open()
    who, why = check_actor(by, "set"), check_reason(reason, "set")
    return await setting.put(app.store, AGENTS_ABOVE, above, by=who, reason=why)


async def waits_for_a_person(app: Redrive, planned: Redriving, by: str) -> bool:
    """Say whether somebody may start a plan only when a person has approved it, because they are an agent."""
    if not is_agent(by) or planned.state != "planned" or planned.approved_by is not None:
        return False
    return planned.ready > await agents_limit(app)


async def approve(app: Redrive, standing: Redriving, *, by: str) -> Redriving:
    """Agree with somebody else's plan; that is for people."""
    if is_agent(by):
        raise Refused(f"{by} is an agent: a person approves, in the console or with `redrive redrives approve`")
    return await app.approve(standing.id, by=by)


async def approval(app: Redrive) -> Setting | None:
    """Read what the database says for everybody; nothing when nobody ever said anything."""
    await app.open()
    return await setting.get(app.store, APPROVAL_ABOVE)


async def set_approval(app: Redrive, above: int | None, *, by: str, reason: str) -> Setting:
    """Say for everybody above how many events a redrive needs a second person; none: it never does."""
    if above is not None and check_whole(above, "above") < 1:
        raise Refused("a single replay needs no second person: the least that can be said is 1")
    await app.open()
    who, why = check_actor(by, "set"), check_reason(reason, "set")
    return await setting.put(app.store, APPROVAL_ABOVE, above, by=who, reason=why)


async def pause(app: Redrive, standing: Redriving, *, by: str, reason: str) -> Redriving:
    """Release nothing more until ``resume``."""
    if standing.state != "running":
        raise Refused(f"redrive {standing.id} is {standing.state}: only a running one can be paused")
    return await app.pause(standing.id, by=by, reason=reason)


async def resume(app: Redrive, standing: Redriving, *, by: str) -> Redriving:
    """Go on after a pause or a halt, which a person has to judge."""
    if is_agent(by):
        raise Refused(f"{by} is an agent: what stands still goes on when a person resumes it")
    if standing.started_at is None:
        raise Refused(f"redrive {standing.id} was never started: `redrive run` starts it, with the token of its plan")
    return await app.resume(standing.id, by=by)


# --- groups ---


async def describe(
    app: Redrive,
    found: Group,
    *,
    by: str,
    owner: str | None = None,
    note: str | None = None,
    muted_for: float | None = None,
    state: str | None = None,
) -> Group:
    """Say who looks after a group, what is known of it, that it may be quiet for a while, or that it is resolved."""
    until = None if muted_for is None else app.clock.now() + timedelta(seconds=muted_for)
    return await group.describe(
        app.store, found.fingerprint, by=by, owner=owner, note=note, muted_until=until, state=state
    )


async def rebuild_groups(app: Redrive, *, dry_run: bool = False) -> dict[str, int]:
    """Count every group anew; what is returned was wrong, with its right count. ``dry_run`` changes nothing."""
    await app.open()
    if dry_run:
        return {each.fingerprint: each.counted for each in await group.miscounts(app.store)}
    return await group.rebuild(app.store)


# --- reconcilers ---


async def reconcile(app: Redrive, name: str, *, dry_run: bool, by: str) -> Published:
    """Ask the workers for a run; while one is asked for or under way, that one is meant."""
    ask = app.reconcilers.run if app.handlers else app.reconcilers.ask  # without an app nobody here knows the names
    return await ask(name, dry_run=dry_run, by=by)
