"""Pulse: how it goes right now, in one look. Behind `redrive top`; every query is bounded, however much there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redrive.app import Redrive
from redrive.dependency import Dependency, Kind, State, standing
from redrive.event import THROTTLE
from redrive.group import Group
from redrive.instant import instant_of
from redrive.operate import views
from redrive.redrive import Redriving
from redrive.store.base import Session

CAP: Final = 10_000
"""Counts above this are not exact."""

_WINDOW_SECONDS: Final = 10.0
_LATEST_ENDED: Final = 5_000
_LOOKED_AT: Final = 1_000
_MOST: Final = 50
_OLD_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Events of a queue and a type that are due and wait; of the oldest thousand of each lane."""

    queue: str
    type: str
    due: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Coming:
    """How many events come within a span: retries, and those that wait for their first time."""

    within_seconds: int
    retries: int
    others: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is shut, or waited for, and how many wait (counted up to 1,001)."""

    of: Dependency
    waiting: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """Everything an operator sees at a glance."""

    at: datetime
    workers: Sequence[Session]
    pending: int
    in_flight: int
    blocked: int
    dead: int
    delivered_rate: float
    dead_lettered: int
    dead_rate: float | None  # since the pulse before, if there was one
    oldest_due_seconds: float
    backlog: Sequence[Backlog]
    coming: Sequence[Coming]
    groups: Sequence[Group]
    needs_a_person: int  # causes that are new or came back, and are not muted
    dependencies: Sequence[Waiting]
    redrives: Sequence[Redriving]

    @property
    def troubles(self) -> list[str]:
        """Say what is wrong, the worst first; nothing when all is well."""
        told = []
        if not self.workers and self.pending:
            told.append("no worker is running, and events wait")
        shut = [each.of.name for each in self.dependencies if each.of.is_shut and each.of.kind is Kind.DEPENDENCY]
        brakes = [each.of.name for each in self.dependencies if each.of.is_shut and each.of.kind is Kind.BRAKE]
        if shut:
            told.append(f"{_some(shut)} {'is' if len(shut) == 1 else 'are'} down")
        if brakes:
            told.append(f"nearly everything of {_some([each.partition(':')[2] for each in brakes])} fails")
        halted = sum(each.state == "halted" for each in self.redrives)
        if halted:
            told.append("a redrive has halted" if halted == 1 else f"{halted} redrives have halted")
        if self.needs_a_person:
            one = self.needs_a_person == 1
            told.append(
                "a cause of dead letters needs" if one else f"{self.needs_a_person} causes of dead letters need"
            )
            told[-1] += " a person"
        if self.workers and self.oldest_due_seconds > _OLD_SECONDS:
            told.append(f"the oldest event that is due has waited for {self.oldest_due_seconds:,.0f} s")
        return told

    @property
    def sentence(self) -> str:
        """Say in one sentence how it goes."""
        troubles = self.troubles
        if troubles:
            said = "; ".join(troubles[:3])
            return f"{said[0].upper()}{said[1:]}."
        if self.dead:
            many = f"{self.dead:,} dead letters stand" if self.dead > 1 else "one dead letter stands"
            return f"All is well; {many} in quarantine."
        return "All is well."


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004


async def pulse(app: Redrive, before: Pulse | None = None) -> Pulse:
    """Take it; with the one before, what happened since is known too."""
    await app.open()
    (row,) = await app.store.ask("standing")
    now = _instant(row["now"])
    queues = await app.store.ask("depths", limit=_MOST)
    dead = await app.store.ask("dead_counts")
    groups = await app.groups(limit=_MOST)
    (ended,) = await app.store.ask("delivered_rate", window=_WINDOW_SECONDS, looked_at=_LATEST_ENDED)
    due = await app.store.ask("due_types", looked_at=_LOOKED_AT, limit=_MOST)
    coming = await app.store.ask("retries", looked_at=_LOOKED_AT)
    redrives = [each for each in await app.redrivings(limit=_MOST) if each.state in ("running", "paused", "halted")]
    return Pulse(
        at=now,
        workers=[each for each in await views.workers(app) if _is_alive(each, now)],
        pending=sum(each["waiting"] for each in queues),
        in_flight=row["in_flight"],
        blocked=row["blocked"],
        dead=sum(each["dead"] for each in dead),
        delivered_rate=_rate(ended["ended"], ended["seconds"]),
        dead_lettered=row["dead_lettered"],
        dead_rate=_since(before, row["dead_lettered"], now),
        oldest_due_seconds=max((each["oldest_due_seconds"] or 0.0 for each in queues), default=0.0),
        backlog=[Backlog(each["queue"], each["type"], each["due"], each["oldest_due_seconds"]) for each in due],
        coming=[Coming(each["within"], each["retries"], each["others"]) for each in coming],
        groups=groups,
        needs_a_person=sum(each.state in ("new", "regressed") and not each.is_muted(now) for each in groups),
        dependencies=await _dependencies(app),
        redrives=redrives,
    )


async def _dependencies(app: Redrive) -> list[Waiting]:
    """List what is shut or waited for, what is shut first."""
    names = [row["name"] for row in await app.store.ask("waited_for")][:_MOST]
    counts = {row["name"]: row["n"] for row in await app.store.ask("blocked_counts", names=names)} if names else {}
    known = await standing(app.store, {name: app.clock.now() for name in names if not name.startswith(THROTTLE)})
    found = [Waiting(each, counts.get(each.name, 0)) for each in known]
    shown = [each for each in found if each.of.state is not State.CLOSED or each.waiting]
    return sorted(shown, key=lambda each: (not each.of.is_shut, -each.waiting, each.of.name))


def _is_alive(each: Session, now: datetime) -> bool:
    return each.ended_at is None and each.lease_until is not None and each.lease_until > now


def _rate(ended: int, seconds: float | None) -> float:
    """Say how many a second: over the window, or over what the latest so many took when there were more."""
    if not ended or seconds is None:
        return 0.0
    return ended / (max(seconds, 0.001) if ended >= _LATEST_ENDED else _WINDOW_SECONDS)


def _since(before: Pulse | None, dead_lettered: int, now: datetime) -> float | None:
    if before is None:
        return None
    seconds = (now - before.at).total_seconds()
    return max(0, dead_lettered - before.dead_lettered) / seconds if seconds > 0 else None


def _instant(value: Any) -> datetime:
    return instant_of(value)
