"""Views: what an operator can ask. Nothing here changes anything.

Events are found by any unique beginning of their id. A timeline puts the row and its trail together into one story:
the trail knows what went wrong and who did what, the row knows when it began and how it stands.
"""

import heapq
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.app import Redrive
from redrive.errors import EventNotFound, RedriveError
from redrive.event import Event, FailureCycle, Status, TrailEntry
from redrive.instant import iso
from redrive.store.base import EventFilter, Session

CANDIDATES: Final = 10
_PAGE: Final = 200
_ID_CHARACTERS: Final = re.compile(r"[0-9a-f-]{1,36}")
_DIGITS_OF_AN_ID: Final = 32


class Ambiguous(RedriveError):
    """The beginning of an id fits several events; ``candidates`` are some of them."""

    def __init__(self, message: str, candidates: Sequence[Event]) -> None:
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
        size = _PAGE if left is None else min(_PAGE, left)
        page = await app.events(replace(wanted, limit=size))
        for event in page:
            yield event
        if len(page) < size:
            return
        left = None if left is None else left - size
        wanted = replace(wanted, before=page[-1].id)


def dead_letters(wanted: EventFilter) -> EventFilter:
    """Narrow a filter to what stands in quarantine."""
    return replace(wanted, status=Status.FAILED)


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
        what = f"attempt {facts['attempt']} {_failed(facts)}; next one {max(0.0, wait.total_seconds()):.1f} s later"
        return what, _kind_of(facts)

    def _dead_lettered(self, facts: Mapping[str, Any], _entry: TrailEntry) -> tuple[str, str]:
        kept = self._cycles.get(self._cycle)
        error = kept.last_error if kept else self._event.last_error if self._cycle == self._event.cycle else None
        said = (error or "").partition("\n")[0]
        return f"attempt {facts['attempt']} {_failed(facts)}: dead letter", said or _kind_of(facts)

    def _lost(self, facts: Mapping[str, Any], _entry: TrailEntry) -> tuple[str, str]:
        return f"its worker was lost ({facts.get('lost_count')} so far); taken back", ""

    def _replayed(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        self._cycle = int(facts.get("cycle") or self._cycle + 1)
        return f"replayed by {entry.actor}", str(facts.get("reason") or "")

    def _cancelled(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"cancelled by {entry.actor} while {facts.get('was')}", str(facts.get("reason") or "")

    def _discarded(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"discarded by {entry.actor}", str(facts.get("reason") or "")

    def _restored(self, facts: Mapping[str, Any], entry: TrailEntry) -> tuple[str, str]:
        return f"restored by {entry.actor}", str(facts.get("reason") or "")

    def ending(self, worker: str) -> list[Step]:
        """Say what the row knows and the trail does not: delivered, running, or still to come."""
        event = self._event
        if event.status is Status.DELIVERED and event.ended_at is not None:
            return [Step(event.ended_at, "delivered", f"attempt {event.attempts} succeeded: delivered")]
        if event.status is Status.IN_FLIGHT:
            return [Step(event.due_at, "in-flight", f"attempt {event.attempts} is running", worker)]
        if event.status is Status.PENDING:
            return [Step(event.due_at, "due", f"attempt {event.attempts + 1} is due")]
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


async def overview(app: Redrive) -> dict[str, Any]:
    """Answer what an operator asks first: how many stand where, who works, how old the backlog is."""
    await app.open()
    return dict(await app.store.overview())


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
