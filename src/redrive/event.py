"""Event: the words for one durable row on its way to an end.

An event is published ``pending``, claimed (``in_flight``), and settled: ``delivered``, back to ``pending``
with a later ``due_at``, or ``failed``, which makes it a dead letter. Attempts fail; events end.

``Event`` is what a reader sees, ``NewEvent`` what is inserted, ``Settlement`` how an unhappy attempt is
written down. Nothing here reads or writes anything: the store does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final, Protocol, Self, TypedDict
from uuid import UUID

from redrive.instant import iso

__all__ = [
    # words
    "Status",
    "LIVE",
    "Outcome",
    "ErrorClass",
    "Priority",
    "COMPENSATE",
    "TRAIL_KINDS",
    # going in
    "Options",
    "NewEvent",
    "Published",
    # settling
    "Settlement",
    # looking
    "HISTORY_LIMIT",
    "FailureCycle",
    "Event",
    "TrailEntry",
]

COMPENSATE: Final = "redrive.compensate"
"""The type of the events that undo a step."""

HISTORY_LIMIT: Final = 20
"""Cycles kept in ``failure_history``; older ones are dropped and counted (O12)."""

THROTTLE: Final = "throttle:"
"""How ``blocked_on`` begins for events that wait for the limit of their handler."""

TRAIL_KINDS: Final = (
    "retry-scheduled",
    "blocked",
    "dead-lettered",
    "lost",
    "put-back",
    "edited",
    "replayed",
    "cancelled",
    "discarded",
    "restored",
    "purged",
    "evidence-failed",
    "key-released",
    "redrive-planned",
    "redrive-approved",
    "redrive-started",
    "redrive-paused",
    "redrive-halted",
    "redrive-resumed",
    "redrive-aborted",
    "dependency-opened",
    "dependency-degraded",
    "dependency-closed",
    "hold-placed",
    "hold-lifted",
    "group-described",
    "setting-changed",
    "imported",
    "policy-set",
    "policy-cleared",
    "schedule-set",
    "schedule-paused",
    "schedule-resumed",
    "schedule-removed",
    "schedule-run",
    "reservation-released",
    "reconcile-requested",
    "finding-ignored",
    "batch-closed",
    "batch-forced",
    "token-created",
    "token-revoked",
    "revealed",
    "republished",
)


class Status(StrEnum):
    """Where an event stands."""

    PENDING = "pending"
    """Waits for its ``due_at``. Left by a worker's claim, or by a cancel."""

    IN_FLIGHT = "in_flight"
    """A worker holds the lease. Left by that worker's settle, by the sweep of lost leases, or by a cancel."""

    DELIVERED = "delivered"
    """The handler has done its work. Never left; retention removes the row."""

    FAILED = "failed"
    """A dead letter. Left only by a deliberate replay; retention or a purge removes the row."""

    BLOCKED = "blocked"
    """Waits for a dependency, the head of its ordering key, or its limit. Left when that clears, or by a cancel."""

    CANCELLED = "cancelled"
    """Somebody called it off, and said why. Never left; retention removes the row."""


LIVE: Final = frozenset({Status.PENDING, Status.IN_FLIGHT, Status.BLOCKED})
"""Statuses that still lead somewhere by themselves; a retry key is unique among these."""


class Outcome(StrEnum):
    """How one attempt ended."""

    DELIVERED = "delivered"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    BLOCKED = "blocked"
    DEFERRED = "deferred"


class ErrorClass(StrEnum):
    """What kind of trouble it was; the first two lie outside, the others with the event or with us."""

    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    DEPENDENCY_DEGRADED = "dependency_degraded"
    INVALID = "invalid"
    MISSING = "missing"
    REJECTED = "rejected"
    BROKEN = "broken"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"


class Priority(IntEnum):
    """Lower numbers are claimed first; what is redriven waits behind live work."""

    HIGH = 0
    NORMAL = 1
    LOW = 2
    REDRIVEN = 3


@dataclass(frozen=True, slots=True)
class FailureCycle:
    """The attempts between two entrances, as a replay found them. Fields may be added, never changed."""

    cycle: int
    attempts: int
    lost_count: int
    first_failed_at: datetime | None
    failed_at: datetime | None
    last_error: str | None
    error_class: str | None
    error_type: str | None
    fingerprint: str | None
    generation: int
    replayed_at: datetime | None
    replayed_by: str | None
    reason: str | None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read a cycle written by any version: what is unknown is ignored, what is missing is empty.

        Raises ``TypeError`` or ``ValueError`` for what no version has written.
        """
        return cls(
            cycle=_whole(stored.get("cycle")),
            attempts=_whole(stored.get("attempts")),
            lost_count=_whole(stored.get("lost_count")),
            first_failed_at=_instant(stored.get("first_failed_at")),
            failed_at=_instant(stored.get("failed_at")),
            last_error=_text(stored.get("last_error")),
            error_class=_text(stored.get("error_class")),
            error_type=_text(stored.get("error_type")),
            fingerprint=_text(stored.get("fingerprint")),
            generation=_whole(stored.get("generation")),
            replayed_at=_instant(stored.get("replayed_at")),
            replayed_by=_text(stored.get("replayed_by")),
            reason=_text(stored.get("reason")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, instants as ISO 8601 in UTC."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Event:
    """One row, as read."""

    id: UUID
    type: str
    source: str
    target: str
    subject: str | None
    payload: Any
    headers: dict[str, str]
    idempotency_key: str
    retry_key: str | None
    correlation_id: str | None
    causation_id: str | None
    ordering_key: str | None
    queue: str
    priority: int
    status: Status
    due_at: datetime
    attempts: int
    lost_count: int
    max_attempts: int | None
    fence: int
    session_id: UUID | None
    generation: int
    cycle: int
    first_failed_at: datetime | None
    last_error: str | None
    error_class: str | None
    error_type: str | None
    safe_to_retry: bool | None
    fingerprint: str | None
    failure_history: tuple[FailureCycle, ...]
    cancelled_by: str | None
    cancel_reason: str | None
    compensation: str | None
    steps_from: int
    created_at: datetime
    ended_at: datetime | None
    deleted_at: datetime | None
    deadline_at: datetime | None = field(default=None, kw_only=True)
    blocked_on: str | None = None
    deferred_count: int = 0
    degraded: bool = False
    batch_id: UUID | None = None
    batch_group: str | None = None
    unreadable: str | None = None
    """Which columns of its row cannot be read, and why; None for every row that Redrive wrote itself."""

    @property
    def attempt_count(self) -> int:
        """Attempts of this cycle."""
        return self.attempts

    @property
    def next_retry_at(self) -> datetime | None:
        """When the next attempt may run; ``None`` before the first one and once nothing is scheduled."""
        tried = self.attempts + self.lost_count > 0
        return self.due_at if tried and self.status is Status.PENDING else None

    @property
    def is_dead_letter(self) -> bool:
        """In quarantine, and not discarded."""
        return self.status is Status.FAILED and self.deleted_at is None

    @property
    def dropped_cycles(self) -> int:
        """Cycles that ``failure_history`` no longer holds."""
        return max(0, self.cycle - len(self.failure_history))

    @property
    def operation(self) -> str:
        """Which operation failed (W2): the target."""
        return self.target

    @property
    def resource(self) -> str | None:
        """On which resource (W2): the subject."""
        return self.subject

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict: the columns in order, then what follows from them."""
        shown = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        shown["failure_history"] = [cycle.to_json() for cycle in self.failure_history]
        if self.unreadable is None:
            del shown["unreadable"]
        derived = (
            "attempt_count",
            "next_retry_at",
            "is_dead_letter",
            "dropped_cycles",
            "operation",
            "resource",
        )
        return shown | {name: _plain(getattr(self, name)) for name in derived}


class HasId(Protocol):
    """Something that is named by its id, like a batch."""

    @property
    def id(self) -> UUID: ...


class Options(TypedDict, total=False):
    """What a publisher may say beside type and payload."""

    id: UUID | str | None
    subject: str | None
    source: str
    idempotency_key: str | None
    retry_key: str | None
    correlation_id: str | UUID | None
    causation_id: str | UUID | None
    headers: Mapping[str, str] | None
    queue: str
    priority: Priority | int
    delay: str | float
    due_at: datetime | None
    deadline: str | float | timedelta | datetime | None
    generation: int
    ordering_key: str | None
    batch: "UUID | str | HasId | None"
    batch_group: str | None


@dataclass(slots=True)
class NewEvent:
    """A row to be inserted; payload and headers are JSON text already."""

    id: UUID
    type: str
    source: str
    target: str
    subject: str | None
    payload: str
    headers: str
    idempotency_key: str
    retry_key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    ordering_key: str | None = None
    queue: str = "default"
    priority: int = Priority.NORMAL
    delay_seconds: float = 0.0
    due_at: datetime | None = None
    generation: int = 0
    deadline_at: datetime | None = None
    deadline_seconds: float | None = None  # from the publish on; the store knows its own time
    batch_id: UUID | None = None
    batch_group: str | None = None

    @property
    def has_deadline(self) -> bool:
        """Whether the publisher set one; the handler may have one of its own."""
        return self.deadline_at is not None or self.deadline_seconds is not None


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publish: ``created`` is false when the live event with that retry key was returned."""

    id: UUID
    target: str
    created: bool


@dataclass(slots=True)
class Settlement:
    """How an unhappy attempt ended, to be written under its fence: ``pending`` again, ``blocked`` or ``failed``.

    One that ``spends`` nothing is taken back from the count. Without a ``last_error`` none was made.
    """

    id: UUID
    fence: int
    status: Status
    outcome: Outcome
    delay_seconds: float | None
    last_error: str
    error_class: str
    error_type: str
    safe_to_retry: bool
    fingerprint: str | None
    max_attempts: int | None
    passed: bool = False  # a dead letter that does not hold up its ordering key
    is_terminal: bool = False
    is_outside: bool = False
    """Whether something outside did not answer."""
    spends: bool = True
    is_round: bool = False
    """It is one of the free rounds of an event, of which there are so many."""
    blocked_on: str | None = None


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One thing that happened, chained to the one before by its hash."""

    chain: str
    seq: int
    at: datetime
    event_id: UUID | None
    kind: str
    source: str
    actor: str
    detail: str
    hash: str

    @property
    def facts(self) -> dict[str, Any]:
        """The detail, decoded. The text itself is what the hash covers."""
        try:
            return dict(json.loads(self.detail))
        except (ValueError, TypeError, RecursionError):  # written by somebody else: the chain still covers it
            return {}


def _whole(value: Any) -> int:
    if value is not None and not isinstance(value, int):
        raise TypeError("a number of a failure cycle is none")
    return value or 0


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("a text of a failure cycle is none")
    return value


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, UUID | StrEnum):
        return str(value)
    return value
