"""What a store must be able to do: the contract that SQLite and PostgreSQL both keep.

A store moves events between statuses, one transaction a move, and refuses a move whose fence is not the current one.
It knows nothing of handlers, policies or workers. Every method ends within its time limit; when the database does not
answer, ``StoreUnavailable`` is raised and nothing is known to have changed.

Claimed rows stay what the driver gave (a tuple-like sequence): no object is made on the way to the handler.
The places in such a row are the constants below.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from redrive.clock import Clock
from redrive.errors import Refused, SchemaMissing, SchemaTooNew
from redrive.event import Event, FailureCycle, NewEvent, Published, Settlement, Status, TrailEntry

Row = Sequence[Any]

(
    ID, FENCE, TARGET, ATTEMPTS, LOST_COUNT, PAYLOAD, TYPE, QUEUE, PRIORITY, DUE_AT,
    SOURCE, SUBJECT, HEADERS, IDEMPOTENCY_KEY, RETRY_KEY, CORRELATION_ID, CAUSATION_ID,
    ORDERING_KEY, GENERATION, CYCLE, CREATED_AT,
) = range(21)  # fmt: skip
SWEPT_STATUS: Final = 21

EVENT_COLUMNS: Final = (
    "id", "type", "source", "target", "subject", "payload", "headers", "idempotency_key", "retry_key", "correlation_id",
    "causation_id", "ordering_key", "queue", "priority", "status", "due_at", "attempts", "lost_count", "max_attempts",
    "fence", "session_id", "generation", "cycle", "first_failed_at", "last_error", "error_class", "error_type",
    "safe_to_retry", "fingerprint", "failure_history", "cancelled_by", "cancel_reason", "created_at", "ended_at",
    "deleted_at", "blocked_on", "deferred_count", "degraded",
)  # fmt: skip

_ID_DIGITS: Final = 32

Lane = tuple[str, int]
"""A queue and a priority: events of one lane are claimed in the order of their due time."""


@dataclass(slots=True)
class Finished:
    """What a worker has to write down in its next turn."""

    delivered: list[Row] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    put_back: list[tuple[Row, float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.delivered) + len(self.settlements) + len(self.put_back)

    @property
    def ids(self) -> list[Any]:
        """Which events it is about."""
        ids = [row[ID] for row in self.delivered]
        ids += [settlement.id for settlement in self.settlements]
        return ids + [row[ID] for row, _ in self.put_back]


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a turn: rows that are ours now, and leases that were not ours any more."""

    claimed: Sequence[Row]
    refused: Sequence[Any] = ()  # ids as the store gave them


@dataclass(frozen=True, slots=True)
class Session:
    """A worker process as the others see it."""

    id: UUID
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    targets: tuple[str, ...]
    concurrency: int
    generation: int = 0
    started_at: datetime | None = None
    seen_at: datetime | None = None
    lease_until: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to list: everything that is given must hold. Newest first, one page at a time."""

    status: Status | None = None
    type: str | None = None
    target: str | None = None
    error_class: str | None = None
    retry_key: str | None = None
    correlation_id: str | None = None
    id_prefix: str | None = None
    before: UUID | None = None
    discarded: bool | None = False  # none: both
    limit: int = 50
    clauses: tuple[str, ...] = ()  # further conditions in the store's own SQL, and the values they bind
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Purge:
    """How many rows retention removed, or would remove."""

    events: int = 0
    dead_letters: int = 0
    handled: int = 0
    sessions: int = 0


class Transaction(Protocol):
    """One database transaction: the handler's work and ours, committed together or not at all."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, for libraries that want one."""

    async def execute(self, sql: str, *parameters: Any) -> int: ...
    async def fetch(self, sql: str, *parameters: Any) -> list[Any]: ...
    async def publish(self, events: Sequence[NewEvent]) -> list[Published]: ...
    async def mark_handled(self, target: str, idempotency_key: str, event_id: Any) -> bool: ...
    async def deliver(self, event_id: Any, fence: int) -> bool: ...
    async def settle(self, settlements: Sequence[Settlement], *, chain: str, actor: str) -> set[Any]: ...
    async def run(self, verb: str, clauses: Sequence[str] = (), **values: Any) -> list[dict[str, Any]]: ...
    async def release(
        self, redrive_id: UUID, *, limit: int, stage: int, priority: int | None, chain: str
    ) -> list[tuple[UUID, str | None]]: ...
    async def note_outcomes(self, redrive_id: UUID) -> None: ...
    async def note(self, kind: str, actor: str, facts: Mapping[str, Any]) -> None: ...


class Store(Protocol):
    """The contract. One conformance suite runs against every implementation."""

    name: str
    clock: Clock

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def version(self) -> str: ...

    async def schema_version(self) -> int: ...
    async def check_schema(self) -> None: ...
    async def migrate(self, *, to: int | None = None) -> list[str]: ...

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]: ...
    def transaction(self) -> AbstractAsyncContextManager[Transaction]: ...

    async def begin_session(self, session: Session, lease_seconds: float) -> None: ...
    async def end_session(self, session_id: UUID) -> None: ...
    def heartbeat(self, session_id: UUID, lease_seconds: float) -> Awaitable[bool]: ...
    def pulse(self) -> AbstractAsyncContextManager[Callable[[UUID, float], Awaitable[bool]]]: ...
    async def sessions(self) -> list[Session]: ...

    def claims(self, session_id: UUID, lanes: Sequence[Lane], *, actor: str) -> "Claims": ...
    async def sweep(
        self, session_id: UUID, *, max_lost: int, limit: int, base_seconds: float, actor: str
    ) -> list[Row]: ...
    def wakes(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[None]: ...

    async def replay(
        self, event_id: UUID, *, generation: int | None, by: str, reason: str, payload: str | None = None
    ) -> None: ...
    async def cancel(self, event_id: UUID, *, by: str, reason: str) -> None: ...
    async def discard(self, event_id: UUID, *, by: str, reason: str) -> None: ...
    async def restore(self, event_id: UUID, *, by: str, reason: str) -> None: ...
    async def purge(
        self, *, ended_before: datetime | None, failed_before: datetime | None, handled_before: datetime | None,
        by: str, dry_run: bool, limit: int,
    ) -> Purge: ...  # fmt: skip

    async def ask(self, verb: str, clauses: Sequence[str] = (), **values: Any) -> list[dict[str, Any]]: ...
    async def event(self, event_id: UUID) -> Event | None: ...
    async def events(self, wanted: EventFilter) -> list[Event]: ...
    async def counts(self) -> dict[tuple[str, str], int]: ...
    async def overview(self) -> Mapping[str, Any]: ...
    def trail(self, event_id: UUID | None = None) -> AsyncIterator[TrailEntry]: ...
    async def write_trail(self, entries: Sequence[tuple[UUID | None, str, str, str, Mapping[str, Any]]]) -> None: ...


class Claims(Protocol):
    """The worker's own line to the store: one turn after the other, never two at once."""

    async def turn(self, finished: Finished, want: int) -> Turn: ...
    async def next_due(self) -> float | None: ...
    async def forget(self, held: Iterable[Any]) -> int: ...
    async def close(self) -> None: ...


def judge_schema(place: str, found: int, newest: int) -> None:
    """Refuse to work on a schema that is missing, older or newer than this code."""
    if found == 0:
        raise SchemaMissing(f"{place} has no redrive tables yet: run `redrive migrate`")
    if found > newest:
        raise SchemaTooNew(f"{place} has schema version {found}, this redrive knows up to {newest}: upgrade redrive")
    if found < newest:
        raise SchemaMissing(f"{place} has schema version {found} of {newest}: run `redrive migrate`")


def refusal(verb: str, event: Event) -> str:
    """Explain why a dead letter could not be discarded or restored."""
    if event.status is not Status.FAILED:
        return (
            f"event {event.id} is {event.status}: only a dead letter can be {verb}{'d' if verb.endswith('e') else 'ed'}"
        )
    if verb == "discard":
        return f"event {event.id} was discarded already"
    return f"event {event.id} is not discarded: there is nothing to restore"


def filter_clauses(wanted: EventFilter) -> tuple[list[str], dict[str, Any]]:
    """Turn a filter into conditions and their values. Column names are ours, values are always bound."""
    clauses: list[str] = []
    values: dict[str, Any] = {}
    for name in ("status", "type", "target", "error_class", "retry_key"):
        value = getattr(wanted, name)
        if value is not None:
            # A type or target may end in ``*``; the status is written out so that partial indexes can serve.
            if name == "status":
                clauses.append(f"and status = '{Status(value)}'")
            elif value.endswith("*"):
                clauses.append(f"and substr({name}, 1, {len(value) - 1}) = :{name}")
                values[name] = value[:-1]
            else:
                clauses.append(f"and {name} = :{name}")
                values[name] = value
    if wanted.correlation_id is not None:
        clauses.append("and (correlation_id = :correlation_id or cast(id as text) = :correlation_id)")
        values["correlation_id"] = wanted.correlation_id
    if wanted.id_prefix is not None:
        clauses.append("and id between :first_id and :last_id")
        digits = wanted.id_prefix.replace("-", "").lower()
        if not digits or len(digits) > _ID_DIGITS or not set(digits) <= set("0123456789abcdef"):
            raise Refused(f"{wanted.id_prefix!r} is not the beginning of an event id: those are hexadecimal")
        values["first_id"], values["last_id"] = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if wanted.before is not None:
        clauses.append("and id < :before")
        values["before"] = wanted.before
    if wanted.discarded is not None:
        clauses.append(f"and deleted_at is {'not null' if wanted.discarded else 'null'}")
    clauses += wanted.clauses
    values.update(wanted.values)
    clauses.append("order by id desc limit :limit")
    values["limit"] = wanted.limit
    return clauses, values


def event_from(row: Mapping[str, Any], instant: Callable[[Any], datetime]) -> Event:
    """Build the read view of an event from a row that has ``EVENT_COLUMNS``."""

    def at(name: str) -> datetime | None:
        return None if row[name] is None else instant(row[name])

    values = {name: row[name] for name in EVENT_COLUMNS}
    history = values["failure_history"]
    values.update(
        id=UUID(str(row["id"])),
        session_id=None if row["session_id"] is None else UUID(str(row["session_id"])),
        degraded=bool(row["degraded"]),
        payload=json.loads(row["payload"]),
        headers=json.loads(row["headers"]),
        status=Status(row["status"]),
        due_at=instant(row["due_at"]),
        created_at=instant(row["created_at"]),
        first_failed_at=at("first_failed_at"),
        ended_at=at("ended_at"),
        deleted_at=at("deleted_at"),
        safe_to_retry=None if row["safe_to_retry"] is None else bool(row["safe_to_retry"]),
        failure_history=tuple(FailureCycle.from_json(cycle) for cycle in json.loads(history)),
    )
    return Event(**values)
