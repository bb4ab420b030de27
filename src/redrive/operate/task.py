"""Task: everything of one correlation id, in one tree, however many databases it is spread over.

An event stands below the one that caused it; one that came in from a broker below the one that was sent. A database
that does not answer is named, and the others are shown.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RedriveError
from redrive.event import LIVE, Event, Status
from redrive.instant import iso
from redrive.store.base import EventFilter
from redrive.transport.envelope import SITE_HEADER
from redrive.transport.intake import ID_HEADER
from redrive.transport.relay import ORIGINAL, RELAY

LIMIT: Final = 1_000
_ANSWER_SECONDS: Final = 10.0
_NAMED: Final = 3
_OPEN: Final = (Status.FAILED, Status.IN_FLIGHT, Status.BLOCKED, Status.PENDING)
"""What the whole is judged by; looked for first when there is more than can be shown."""


class Progress(StrEnum):
    """How a task stands."""

    NEEDS_A_PERSON = "needs a person"
    RUNNING = "running"
    WAITING = "waiting"
    SENT = "sent"
    """Nothing is left to do here; something was sent to a broker and has come in at none of these databases."""
    UNKNOWN = "unknown"
    """All that was seen has ended, and a database does not answer."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An event of a task: in which database, and below which other one."""

    event: Event
    place: str
    depth: int = 0
    parent: str | None = None

    @property
    def site(self) -> str | None:
        """Where it began, if that site has a name."""
        return self.event.headers.get(SITE_HEADER)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        event = self.event

        def instant(at: datetime | None) -> str | None:
            return None if at is None else iso(at)

        return {
            "id": str(event.id), "place": self.place, "site": self.site, "source": event.source or None,
            "depth": self.depth, "parent": self.parent, "type": event.type, "target": event.target,
            "subject": event.subject, "status": str(event.status), "discarded": event.deleted_at is not None,
            "attempts": event.attempts, "max_attempts": event.max_attempts, "created_at": instant(event.created_at),
            "due_at": instant(event.due_at) if event.status is Status.PENDING else None,
            "ended_at": instant(event.ended_at), "blocked_on": event.blocked_on, "error_class": event.error_class,
            "last_error": (event.last_error or "").partition("\n")[0] or None, "cancel_reason": event.cancel_reason,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A task as a tree from top to bottom, and how the whole stands."""

    correlation_id: str
    events: Sequence[TaskEvent]
    now: datetime
    silent: Mapping[str, str] = field(default_factory=dict)
    """Databases that did not answer, and what was wrong."""
    is_cut: bool = False
    unseen: Sequence[TaskEvent] = ()
    """What was sent to a broker and has come in at none of these databases."""
    places: Sequence[str] = ()
    """The databases, in the order in which they were named."""

    @property
    def state(self) -> Progress:
        """Judge the whole by the event that is worst off."""
        events = [each.event for each in self.events]
        if any(event.is_dead_letter for event in events):
            return Progress.NEEDS_A_PERSON
        if any(self._runs(event) for event in events):
            return Progress.RUNNING
        if any(event.status in LIVE for event in events):
            return Progress.WAITING
        if self.silent:
            return Progress.UNKNOWN
        return Progress.SENT if self.unseen else Progress.DONE

    def _runs(self, event: Event) -> bool:
        return event.status is Status.IN_FLIGHT or (event.status is Status.PENDING and event.due_at <= self.now)

    @property
    def sentence(self) -> str:
        """Say in one line how the whole stands."""
        state = "sent, not confirmed" if self.state is Progress.SENT else self.state
        said = [f"{state.capitalize()}: {'; '.join(self._reasons())}"]
        if self.silent:
            said.append(f"{_listed(list(self.silent))} {'does' if len(self.silent) == 1 else 'do'} not answer")
        if self.is_cut:
            said.append(f"there are more than {len(self.events):,} events, the open and the newest ones are shown")
        return ". ".join(said) + "."

    def _reasons(self) -> list[str]:
        events = [each.event for each in self.events]
        dead = [event for event in events if event.is_dead_letter]
        running = sum(self._runs(event) for event in events)
        later = [event for event in events if event.status in LIVE and not self._runs(event)]
        ended = len(events) - len(dead) - running - len(later)
        said = []
        if dead:
            named = _listed(sorted({event.target for event in dead}))
            said.append(f"{_many(len(dead), 'dead letter')} of {named}")
        if running:
            said.append(f"{_many(running, 'event')} at work or due")
        if later:
            said.append(f"{_many(len(later), 'event')} waiting for {_listed(self._waits(later))}")
        if self.unseen:
            said.append(f"{_many(len(self.unseen), 'message')} sent to a broker and seen at none of these databases")
        cancelled = Counter(event.status for event in events)[Status.CANCELLED]
        told = f", {cancelled:,} of them cancelled" if cancelled else ""
        said.append(f"{ended:,} of {_many(len(events), 'event')} ended{told}")
        return said

    def _waits(self, events: Sequence[Event]) -> list[str]:
        blocked = [event for event in events if event.status is Status.BLOCKED]
        named = sorted({event.blocked_on or f"the ordering key {event.ordering_key}" for event in blocked})
        due = [event.due_at for event in events if event.status is Status.PENDING]
        return [*named, *([f"its time ({iso(min(due))})"] if due else ())]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "correlation_id": self.correlation_id, "state": str(self.state), "sentence": self.sentence,
            "cut": self.is_cut, "silent": dict(self.silent), "unseen": [str(each.event.id) for each in self.unseen],
            "places": list(self.places), "events": [each.to_json() for each in self.events],
        }  # fmt: skip


async def task(places: Sequence[Redrive | str], correlation_id: str, *, limit: int = LIMIT) -> Task:
    """Read all events of a correlation id from some databases: apps, or their URLs.

    At most ``limit`` events; if there are more, those that have not ended well come first, then the newest.
    Fails only when none of the databases answers.
    """
    if not places:
        raise ConfigurationError("name the databases to look at: task([app, 'postgresql://…'], correlation_id)")
    apps = [Redrive(each, migrate=False) if isinstance(each, str) else each for each in places]
    names = _names(apps)
    answers = await asyncio.gather(
        *(
            _asked(app, correlation_id, limit, ours=isinstance(given, str))
            for app, given in zip(apps, places, strict=True)
        )
    )
    silent = {name: said for name, said in zip(names, answers, strict=True) if isinstance(said, RedriveError)}
    if len(silent) == len(places):
        raise next(iter(silent.values()))
    found = [
        TaskEvent(event, name)
        for name, said in zip(names, answers, strict=True)
        if not isinstance(said, RedriveError)
        for event in said
    ]
    kept = _kept(found, limit)
    return Task(
        correlation_id, _tree(kept), apps[0].clock.now(), {name: _line(error) for name, error in silent.items()},
        is_cut=len(kept) < len(found), unseen=_unseen(kept, alone=len(places) == 1),
        places=names,
    )  # fmt: skip


# --- asking ---


async def _asked(app: Redrive, correlation_id: str, limit: int, *, ours: bool) -> list[Event] | RedriveError:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS), _opened(app, ours=ours):
            return await _events(app, correlation_id, limit)
    except RedriveError as error:
        return error
    except TimeoutError:
        return RedriveError(f"no answer within {_ANSWER_SECONDS:g} s")
    except OSError as error:
        return RedriveError(str(error))


@asynccontextmanager
async def _opened(app: Redrive, *, ours: bool) -> AsyncIterator[None]:
    """Open a database that must be there; what we have opened is closed again."""
    path = getattr(app.store, "path", ":memory:")
    if ours and path != ":memory:" and not await asyncio.to_thread(Path(path).exists):
        raise ConfigurationError(f"there is no file {path}")
    await app.open()
    try:
        yield
    finally:
        if ours:
            await app.close()


async def _events(app: Redrive, correlation_id: str, limit: int) -> list[Event]:
    """Read one more than the limit, if there are so many; then the open ones are among them."""
    wanted = EventFilter(correlation_id=correlation_id, discarded=None, limit=limit + 1)
    found = await app.events(wanted)
    if len(found) <= limit:
        return found
    opened = [event for status in _OPEN for event in await app.events(replace(wanted, status=status))]
    return list({event.id: event for event in (*opened, *found)}.values())


def _names(apps: Sequence[Redrive]) -> list[str]:
    """Name databases shortly, where that tells them apart."""
    short = [_short(app.url) for app in apps]
    return [name if short.count(name) == 1 else _long(app.url) for name, app in zip(short, apps, strict=True)]


def _short(url: str) -> str:
    parts = urlsplit(url)
    return Path(unquote(parts.path)).stem or parts.hostname or url


def _long(url: str) -> str:
    parts = urlsplit(url)
    return unquote(f"{parts.netloc.rpartition('@')[2]}{parts.path}").removeprefix("/")


def _line(error: RedriveError) -> str:
    return str(error).partition("\n")[0][:500]


# --- the tree ---


def _kept(found: Sequence[TaskEvent], limit: int) -> list[TaskEvent]:
    def rank(each: TaskEvent) -> tuple[bool, float]:
        return not (each.event.is_dead_letter or each.event.status in LIVE), -each.event.created_at.timestamp()

    return list(found) if len(found) <= limit else sorted(found, key=rank)[:limit]


def _tree(found: Sequence[TaskEvent]) -> list[TaskEvent]:
    """Put each below its cause, oldest first. What forms a ring is shown all the same."""
    known = {str(each.event.id) for each in found}
    below: dict[str | None, list[TaskEvent]] = {}
    for each in sorted(found, key=lambda each: (each.event.created_at, each.event.id)):
        cause = _cause(each.event, known)
        below.setdefault(cause, []).append(replace(each, parent=cause))
    told: list[TaskEvent] = []
    waiting = below.pop(None, [])[::-1]
    while waiting or below:
        if not waiting:  # only a ring is left: begin somewhere
            waiting = below.pop(next(iter(below)))[::-1]
        each = waiting.pop()
        told.append(each)
        children = below.pop(str(each.event.id), [])
        waiting += [replace(child, depth=each.depth + 1) for child in reversed(children)]
    return told


def _cause(event: Event, known: set[str]) -> str | None:
    named = (event.headers.get(ID_HEADER), event.headers.get(ORIGINAL), event.causation_id)
    return next((each for each in named if each in known and each != str(event.id)), None)


def _unseen(found: Sequence[TaskEvent], *, alone: bool) -> list[TaskEvent]:
    """Find what began here, was acknowledged by a broker, and was taken in by nobody; a copy is its original.

    A database that is read ``alone`` does not show its receiver: what comes back later from elsewhere confirms it.
    """
    came = {each.event.headers.get(ID_HEADER) for each in found}
    sent = [
        each
        for each in found
        if each.event.target.startswith(RELAY)
        and each.event.status is Status.DELIVERED
        and ID_HEADER not in each.event.headers
    ]
    unseen = [each for each in sent if (each.event.headers.get(ORIGINAL) or str(each.event.id)) not in came]
    if not alone:
        return unseen
    ours = {str(each.event.id) for each in found}
    foreign = [each.event for each in found if ID_HEADER in each.event.headers]
    back = [event.created_at for event in foreign if event.headers[ID_HEADER] not in ours]
    return [each for each in unseen if all(at <= each.event.created_at for at in back)]


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
