"""Views: what an operator can ask. Nothing here changes anything.

Events are found by any unique beginning of their id. A timeline puts the row and its trail together into one story:
the trail knows what went wrong and who did what, the row knows when it began and how it stands.
"""

import heapq
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive import revision
from redrive.app import Redrive
from redrive.attention import Urgency
from redrive.dependency import Dependency
from redrive.errors import EventNotFound, NotFound, RedriveError
from redrive.event import Event, FailureCycle, Status, TrailEntry
from redrive.group import Group, Skew, skew
from redrive.instant import instant_of, iso
from redrive.operate.edit import Difference, differences
from redrive.payload import decode
from redrive.redrive import Plan, Redriving, redriving_from
from redrive.selection import Selection, parse
from redrive.store import listing
from redrive.store.base import EventFilter, Session

CANDIDATES: Final = 10
_PAGE: Final = 200
_ID_CHARACTERS: Final = re.compile(r"[0-9a-f-]{1,36}")
_DIGITS_OF_AN_ID: Final = 32
_FINGERPRINT: Final = re.compile(r"(?:[0-9]+:)?([0-9a-f]{1,16})")
_WHOLE_FINGERPRINT: Final = re.compile(r"[0-9]+:[0-9a-f]{16}")
_ITEMS_PAGE: Final = 2_000
_COMPARED: Final = 200
_PAST_REDRIVES: Final = 10
_GROUPS_REPORTED: Final = 50
_SAMPLES_SEARCHED: Final = 200
_HELD_SHOWN: Final = 100
RATES: Final = (10.0, 50.0, 200.0, 1_000.0)
"""At which a plan says how long it would take."""


class Ambiguous(RedriveError):
    """The beginning of an id fits several things; ``candidates`` are some of them."""

    def __init__(self, message: str, candidates: Sequence[Event | Redriving | Group]) -> None:
        super().__init__(message)
        self.candidates = candidates


# --- events ---


async def find(app: Redrive, text: str) -> Event:
    """Read the one event whose id begins like this, discarded or not."""
    digits = text.strip().lower()
    if not _ID_CHARACTERS.fullmatch(digits) or not 0 < len(digits.replace("-", "")) <= _DIGITS_OF_AN_ID:
        raise EventNotFound(f"{text[:64]!r} is not an id or the beginning of one: `redrive events ls` shows them")
    if len(digits.replace("-", "")) == _DIGITS_OF_AN_ID:
        event = await app.event(UUID(digits))
        found = [] if event is None else [event]
    else:
        wanted = EventFilter(id_prefix=digits, limit=CANDIDATES + 1)
        found = [*await app.events(wanted), *await app.events(replace(wanted, discarded=True))]
    if not found:
        raise EventNotFound(f"there is no event whose id begins with {digits}")
    if len(found) > 1:
        many = f"more than {CANDIDATES}" if len(found) > CANDIDATES else str(len(found))
        raise Ambiguous(f"{many} events begin with {digits}: give more of the id", found[:CANDIDATES])
    return found[0]


async def pages(app: Redrive, wanted: EventFilter, at_most: int | None = None) -> AsyncIterator[Event]:
    """Walk through all events of a filter, newest first, a page at a time."""
    left = at_most
    while left is None or left > 0:
        page = await app.page(replace(wanted, limit=_PAGE if left is None else min(_PAGE, left)))
        for event in page.events:
            yield event
        if page.before is None:
            return
        left = None if left is None else left - len(page.events)
        wanted = replace(wanted, before=page.before)


def dead_letters(wanted: EventFilter) -> EventFilter:
    """Narrow a filter to what stands in quarantine."""
    return replace(wanted, status=Status.FAILED)


def narrowed(app: Redrive, wanted: EventFilter, selection: Selection) -> EventFilter:
    """Narrow a filter by a selection; one that speaks of discarded events decides itself whether they are meant."""
    clauses, values = selection.where("postgres" if app.store.name == "postgres" else "sqlite", app.clock.now())
    says = any(term.field == "discarded" for term in selection.terms)
    discarded = None if says and not wanted.discarded else wanted.discarded
    served = {name: value for name, value in _served(selection).items() if getattr(wanted, name) is None}
    return replace(wanted, discarded=discarded, clauses=tuple(clauses), values=values, **served)


def _served(selection: Selection) -> dict[str, Any]:
    """Find the terms that an index serves: they say which rows are walked through, not only which are shown."""
    found: dict[str, Any] = {}
    for term in selection.terms:
        if term.negated or term.op != ":" or len(term.values) > 1:
            continue
        value = term.values[0]
        if term.field == "status":
            found["status"] = Status(value)
        elif term.field == "corr" and value.is_exact:
            found["correlation_id"] = value.parts[0]
        elif term.field == "group" and value.is_exact and _WHOLE_FINGERPRINT.fullmatch(value.parts[0]):
            found["fingerprint"] = value.parts[0]
    return found


async def selected(app: Redrive, selection: str, *, limit: int = 50, before: UUID | None = None) -> list[Event]:
    """Read a page of the events that a selection means, newest first."""
    return await app.events(narrowed(app, EventFilter(limit=limit, before=before), parse(selection)))


# --- the story of one event ---


@dataclass(frozen=True, slots=True)
class Step:
    """One thing in the life of an event; ``what`` is a sentence, ``because`` the error or the reason."""

    at: datetime
    kind: str
    what: str
    by: str = ""
    because: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "at": iso(self.at),
            "kind": self.kind,
            "what": self.what,
            "by": self.by or None,
            "because": self.because or None,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Timeline:
    """An event and what happened to it, oldest first; the last step may lie ahead."""

    event: Event
    steps: Sequence[Step]


async def timeline(app: Redrive, event: Event) -> Timeline:
    """Put the row and its trail together."""
    entries = await app.trail(event.id)
    source = event.source or "a publisher"
    steps = [Step(event.created_at, "published", f"published by {source}", by=event.source)]
    story = _Story(event)
    steps += [story.step(entry) for entry in entries]
    steps += story.ending(await _worker_of(app, event))
    return Timeline(event, steps)


class _Story:
    """Words for trail entries; counts the cycles as it goes, to find the error each of them ended with."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._cycle = 0
        self._cycles: dict[int, FailureCycle] = {each.cycle: each for each in event.failure_history}

    def step(self, entry: TrailEntry) -> Step:
        facts = entry.facts
        words = getattr(self, "_" + entry.kind.replace("-", "_"), None)
        what, because = words(facts, entry) if words else (entry.kind, str(facts.get("reason") or ""))
        return Step(entry.at, entry.kind, what, entry.actor, because, facts)

    def _retry_scheduled(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        wait = datetime.fromisoformat(facts["next_retry_at"]) - entry.at
        later = f"next one {max(0.0, wait.total_seconds()):.1f} s later"
        if facts.get("outcome") == "deferred":
            return f"a dependency failed, no attempt was spent; {later}", _kind_of(facts)
        return f"attempt {facts['attempt']} {_failed(facts)}; {later}", _kind_of(facts)

    def _blocked(self, facts: Mapping[str, Any], _entry: TrailEntry) -> tuple[str, str]:
        tried = "its handler could not reach it" if facts.get("tried") else "not run"
        return f"blocked on {facts.get('blocked_on')} ({tried}); no attempt was spent", ""

    def _dead_lettered(self, facts: Mapping[str, Any], _entry: TrailEntry) -> tuple[str, str]:
        kept = self._cycles.get(self._cycle)
        error = kept.last_error if kept else self._event.last_error if self._cycle == self._event.cycle else None
        said = (error or "").partition("\n")[0]
        return f"attempt {facts['attempt']} {_failed(facts)}: dead letter", said or _kind_of(facts)

    def _lost(self, facts: Mapping[str, Any], _entry: TrailEntry) -> tuple[str, str]:
        return f"its worker was lost ({facts.get('lost_count')} so far); taken back", ""

    def _replayed(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        self._cycle = int(facts.get("cycle") or self._cycle + 1)
        anew = ", from the start" if facts.get("from_start") else ""
        if facts.get("already_handled"):
            return f"ended as delivered by {entry.actor}: its effect was there", str(facts.get("reason") or "")
        return f"replayed by {entry.actor}{anew}", str(facts.get("reason") or "")

    def _cancelled(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"cancelled by {entry.actor} while {facts.get('was')}", str(facts.get("reason") or "")

    def _edited(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"payload edited by {entry.actor}; the original is revision {facts.get('revision')}", ""

    def _imported(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        self._cycle = self._event.cycle
        return f"imported by {entry.actor}", str(facts.get("reason") or "")

    def _discarded(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"discarded by {entry.actor}", str(facts.get("reason") or "")

    def _restored(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"restored by {entry.actor}", str(facts.get("reason") or "")

    def _key_released(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"told by {entry.actor} to hold up its ordering key no longer", str(facts.get("reason") or "")

    def ending(self, worker: str) -> list[Step]:
        """Say what the row knows and the trail does not: delivered, running, or still to come."""
        event = self._event
        if event.status is Status.DELIVERED and event.ended_at is not None:
            return [Step(event.ended_at, "delivered", f"attempt {event.attempts} succeeded: delivered")]
        if event.status is Status.IN_FLIGHT:
            return [Step(event.due_at, "in-flight", f"attempt {event.attempts} is running", worker)]
        if event.status is Status.PENDING:
            return [Step(event.due_at, "due", f"attempt {event.attempts + 1} is due")]
        if event.status is Status.BLOCKED and event.blocked_on is None:
            return [Step(event.due_at, "blocked", f"waits for an earlier event with the key {event.ordering_key}")]
        return []


async def _worker_of(app: Redrive, event: Event) -> str:
    if event.session_id is None or event.status is not Status.IN_FLIGHT:
        return ""
    return next((each.name for each in await workers(app) if each.id == event.session_id), "")


def _failed(facts: Mapping[str, Any]) -> str:
    return {"timed_out": "timed out", "lost": "was lost with its worker"}.get(str(facts.get("outcome")), "failed")


def _kind_of(facts: Mapping[str, Any]) -> str:
    kind = str(facts.get("error_type") or "").rpartition(".")[2]
    return " · ".join(filter(None, (kind, str(facts.get("error_class") or ""))))


# --- the whole ---


async def workers(app: Redrive) -> list[Session]:
    """List the workers that are here, and those that left lately."""
    await app.open()
    return await app.store.sessions()


async def live_workers(app: Redrive) -> list[Session]:
    """List the workers that are at work now."""
    now = app.clock.now()
    return [each for each in await workers(app) if each.ended_at is None and (each.lease_until or now) > now]


async def not_served(app: Redrive, ids: Sequence[UUID]) -> list[Event]:
    """List those of these events that wait in a generation which no running worker serves."""
    serving = await live_workers(app)
    events = [event for each in ids if (event := await app.event(each)) is not None]
    return [
        event
        for event in events
        if event.status is Status.PENDING
        and event.generation
        and not any(
            event.generation == each.generation and event.queue in each.queues and event.target in each.targets
            for each in serving
        )
    ]


async def overview(app: Redrive) -> dict[str, Any]:
    """Answer what an operator asks first: how many stand where, who works, how old the backlog is."""
    await app.open()
    return {**await app.store.overview(), "needs_a_person": await needs_a_person(app)}


@dataclass(frozen=True, slots=True)
class Unserved:
    """Pending events of a queue and a generation that no worker takes (counted up to 10,001 a priority)."""

    queue: str
    generation: int
    waiting: int


async def unserved(app: Redrive) -> list[Unserved]:
    """List what waits for a worker that is not there."""
    await app.open()
    return [Unserved(**row) for row in await app.store.ask("unserved")]


async def needs_a_person(app: Redrive) -> list[str]:
    """Say what will not go on by itself, a sentence each; ``app.attention()`` has the whole of it."""
    return [each.sentence for each in await app.attention() if each.urgency is not Urgency.KNOW]


@dataclass(frozen=True, slots=True)
class Standing:
    """What events may wait for, and how many do; counted up to 10,001."""

    of: Dependency
    waiting: int

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        told = _plain(asdict(self.of))
        return {**told, "kind": str(self.of.kind), "state": str(self.of.state), "waiting": self.waiting}


async def dependencies(app: Redrive) -> list[Standing]:
    """List dependencies, brakes and holds with those who wait: what is shut first."""
    found = [Standing(each, await _waiting(app, each)) for each in await app.dependencies()]
    return sorted(found, key=lambda each: (not each.of.is_shut, not each.waiting, each.of.name))


async def dependency(app: Redrive, name: str) -> Standing:
    """Read one of them."""
    for each in await app.dependencies():
        if each.name == name:
            return Standing(each, await _waiting(app, each))
    raise NotFound(f"no dependency is called {name!r}: `redrive deps ls` lists them")


async def _waiting(app: Redrive, each: Dependency) -> int:
    if not each.is_waited_for:
        return 0
    return int((await app.store.ask("dependency_waiting", name=each.name))[0]["n"])


async def recent_trail(app: Redrive, limit: int) -> list[TrailEntry]:
    """Read the newest entries of all chains, newest first. Walks the whole trail: chains are kept apart."""
    await app.open()
    newest: list[tuple[datetime, str, int, TrailEntry]] = []
    async for entry in app.store.trail():
        item = (entry.at, entry.chain, entry.seq, entry)
        if len(newest) < limit:
            heapq.heappush(newest, item)
        else:
            heapq.heappushpop(newest, item)
    return [item[-1] for item in sorted(newest, key=lambda item: item[:3], reverse=True)]


async def chain_of_trail(app: Redrive, chain: str, *, before: int | None, limit: int) -> list[TrailEntry]:
    """Read a page of one chain, newest first."""
    await app.open()
    rows = await app.store.ask("trail_chain", chain=chain, before=before, limit=limit)
    return [
        TrailEntry(
            **{
                **row,
                "at": instant_of(row["at"]),
                "event_id": None if row["event_id"] is None else UUID(str(row["event_id"])),
            }
        )
        for row in rows
    ]


def entry_json(entry: TrailEntry) -> dict[str, Any]:
    """Return a trail entry as a plain dict."""
    return {
        "chain": entry.chain,
        "seq": entry.seq,
        "at": iso(entry.at),
        "event_id": None if entry.event_id is None else str(entry.event_id),
        "kind": entry.kind,
        "source": entry.source,
        "actor": entry.actor,
        "detail": entry.facts,
        "hash": entry.hash,
    }


# --- groups ---


async def find_group(app: Redrive, text: str) -> Group:
    """Find the one group whose fingerprint begins like this, with its version before it or without."""
    match = _FINGERPRINT.fullmatch(text.strip().lower())
    if match is None:
        raise NotFound(f"{text[:64]!r} is not a group or the beginning of one: `redrive groups ls --all` shows them")
    await app.open()
    rows = await app.store.ask("group", fingerprint=match[1])
    if not rows:
        raise NotFound(f"there is no group that begins with {match[1]}: `redrive groups ls --all` lists them")
    found = [await app.group(row["fingerprint"]) for row in rows]
    if len(found) > 1:
        raise Ambiguous(f"several groups begin with {match[1]}: give more of it", found)
    return found[0]


@dataclass(frozen=True, slots=True)
class GroupStory:
    """A group, one of its members, what sets them apart, and the redrives that took some of them."""

    group: Group
    sample: Event | None
    skews: Sequence[Skew]
    dead: int
    delivered: int
    redrives: Sequence[tuple[Redriving, int]]


async def group_story(app: Redrive, group: Group) -> GroupStory:
    """Put together what is known of a group; compares at most 200 dead letters with 200 delivered events."""
    members = narrowed(app, EventFilter(status=Status.FAILED), parse(f"group:{group.fingerprint}"))
    dead = [event async for event in pages(app, members, _COMPARED)]
    delivered = await listing.delivered_lately(app.store, group.target, _COMPARED)
    sample = next((event for event in dead if event.id == group.sample_event_id), None) or next(iter(dead), None)
    redrives = await _redrives_of(app, group)
    return GroupStory(group, sample, skew(dead, delivered), len(dead), len(delivered), redrives)


async def _redrives_of(app: Redrive, group: Group) -> list[tuple[Redriving, int]]:
    """Find the latest redrives with members of a group, and how many members."""
    rows = await app.store.ask("group_redrives", fingerprint=group.fingerprint, limit=_PAST_REDRIVES)
    return [(redriving_from(row), row["members"]) for row in rows]


def group_json(group: Group) -> dict[str, Any]:
    """Return a group as a plain dict."""
    told = {each.name: getattr(group, each.name) for each in fields(group)}
    return {**_plain(told), "short": group.short, "why": group.why}


def skew_json(each: Skew) -> dict[str, Any]:
    """Return what sets dead letters apart as a plain dict."""
    return asdict(each)


# --- redrives ---


async def find_redrive(app: Redrive, text: str) -> Redriving:
    """Read the one redrive whose id begins like this; a token will do, too."""
    digits = text.strip().lower().partition(":")[0]
    bare = digits.replace("-", "")
    if not _ID_CHARACTERS.fullmatch(digits) or not 0 < len(bare) <= _DIGITS_OF_AN_ID:
        raise NotFound(f"{text[:64]!r} is not the id of a redrive or its beginning: `redrive redrives ls` shows them")
    last = UUID(int=min(int(bare.ljust(_DIGITS_OF_AN_ID, "f"), 16) + 1, 2**128 - 1))
    page = await app.redrivings(before=last, limit=CANDIDATES + 1)
    found = [each for each in page if each.id.hex.startswith(bare)]
    if not found:
        raise NotFound(f"there is no redrive whose id begins with {digits}: `redrive redrives ls` lists them")
    if len(found) > 1:
        many = f"more than {CANDIDATES}" if len(found) > CANDIDATES else str(len(found))
        raise Ambiguous(f"{many} redrives begin with {digits}: give more of the id", found[:CANDIDATES])
    return found[0]


async def proposed(app: Redrive, standing: Redriving) -> tuple[Event, list[Difference]] | None:
    """Say which fields an edit that waits for approval would change, and of which event."""
    if not standing.edited:
        return None
    found = await revision.waiting(app.store, standing.id)
    event = None if found is None else await app.event(found.event_id)
    if found is None or event is None:
        return None
    return event, differences(event.payload, decode(found.payload))


@dataclass(frozen=True, slots=True)
class Item:
    """One member of a redrive, and what became of it."""

    position: int
    event_id: UUID
    cycle: int
    fingerprint: str | None
    state: str
    reason: str | None
    stage: int | None
    released_at: datetime | None
    ended_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return _plain(asdict(self))


async def items_after(app: Redrive, redrive_id: UUID, position: int, limit: int) -> list[Item]:
    """Read the members of a redrive that come after a position."""
    rows = await app.store.ask("redrive_items", id=redrive_id, after=position, limit=limit)
    return [_item(row) for row in rows]


async def items(app: Redrive, redrive_id: UUID) -> AsyncIterator[Item]:
    """Walk through the members of a redrive in their order, a page at a time."""
    after = 0
    while True:
        rows = await app.store.ask("redrive_items", id=redrive_id, after=after, limit=_ITEMS_PAGE)
        for row in rows:
            yield _item(row)
        if len(rows) < _ITEMS_PAGE:
            return
        after = rows[-1]["position"]


def _item(row: Mapping[str, Any]) -> Item:
    values = dict(row)
    values["event_id"] = UUID(str(row["event_id"]))
    for name in ("released_at", "ended_at"):
        values[name] = instant_of(row[name])
    return Item(**values)


@dataclass(frozen=True, slots=True)
class Report:
    """What a redrive has brought: the members of every group by their state, and why some did not go."""

    redrive: Redriving
    groups: Sequence[tuple[str | None, Group | None, Mapping[str, int]]]
    ineligible: Mapping[str, int]
    skipped: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "redrive": redriving_json(self.redrive),
            "groups": [
                {
                    "fingerprint": fingerprint,
                    "title": None if group is None else group.title,
                    "state": None if group is None else group.state,
                    "dead_count": None if group is None else group.dead_count,
                    "members": sum(states.values()),
                    "outcomes": dict(states),
                }
                for fingerprint, group, states in self.groups
            ],
            "ineligible": dict(self.ineligible),
            "skipped": dict(self.skipped),
        }


async def report(app: Redrive, standing: Redriving) -> Report:
    """Count the members of a redrive by group and outcome; names the largest 50 groups."""
    counts: dict[str | None, Counter[str]] = {}
    ineligible: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for row in await app.store.ask("redrive_report", id=standing.id):
        counts.setdefault(row["fingerprint"], Counter())[row["state"]] += row["n"]
        if row["state"] in ("ineligible", "skipped"):
            (skipped if row["state"] == "skipped" else ineligible)[row["reason"] or "no reason was noted"] += row["n"]
    largest = sorted(counts.items(), key=lambda each: -each[1].total())[:_GROUPS_REPORTED]
    groups = [(fingerprint, await _group_or_none(app, fingerprint), states) for fingerprint, states in largest]
    return Report(standing, groups, dict(ineligible.most_common()), dict(skipped.most_common()))


async def _group_or_none(app: Redrive, fingerprint: str | None) -> Group | None:
    if fingerprint is None or not await app.store.ask("group", fingerprint=fingerprint):
        return None
    return await app.group(fingerprint)


async def samples(app: Redrive, plan: Plan, most: int = 5) -> list[Event]:
    """Read some of the members of a plan that are ready to go, of different groups where there are several."""
    rows = await app.store.ask("redrive_items", id=plan.redrive.id, after=0, limit=_SAMPLES_SEARCHED)
    ready = [_item(row) for row in rows if row["state"] == "ready"]
    one_of_each = list({item.fingerprint: item for item in reversed(ready)}.values())[::-1]
    others = [item for item in ready if item not in one_of_each]
    events = [await app.event(item.event_id) for item in (one_of_each + others)[:most]]
    return [event for event in events if event is not None]


@dataclass(frozen=True, slots=True)
class PlanStory:
    """A plan with what is said beside it."""

    plan: Plan
    samples: Sequence[Event]
    workers: Sequence[Session]
    approval_above: int | None = None

    @property
    def needs_approval(self) -> bool:
        """Whether a second person must agree before it can be started."""
        return self.approval_above is not None and self.standing.ready > self.approval_above

    @property
    def standing(self) -> Redriving:
        return self.plan.redrive

    @property
    def sentence(self) -> str:
        """Say what is meant, with its count."""
        return parse(self.standing.selection).sentence(self.standing.planned_at, self.standing.total)

    @property
    def unattended(self) -> list[str]:
        """Name the targets that no worker of those at work handles."""
        attended = {target for each in self.workers for target in each.targets}
        return sorted({str(part["target"]) for part in self.plan.parts} - attended) if self.workers else []

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "redrive": redriving_json(self.standing),
            "sentence": self.sentence,
            "total": self.standing.total,
            "ready": self.standing.ready,
            "ineligible": self.plan.ineligible,
            "parts": [_plain(part) for part in self.plan.parts],
            "samples": [str(event.id) for event in self.samples],
            "seconds_at": {f"{rate:g}/s": self.plan.seconds_at(rate) for rate in RATES},
            "live_workers": len(self.workers),
            "unattended_targets": self.unattended,
            "token": self.standing.token,
            "needs_approval": self.needs_approval,
        }


def redriving_json(standing: Redriving) -> dict[str, Any]:
    """Return a redrive as a plain dict; a plan has its token."""
    told = _plain(asdict(standing))
    told |= {"failed": standing.failed, "ended": standing.ended, "is_over": standing.is_over}
    if standing.state == "planned":
        told["token"] = standing.token
    return told


def plain(told: Any) -> dict[str, Any]:
    """Return a dataclass as a plain dict."""
    return _plain(asdict(told))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return iso(value) if isinstance(value, datetime) else str(value) if isinstance(value, UUID) else value

    return {name: plain(value) for name, value in values.items()}
