"""What a store must be able to do: the contract that SQLite and PostgreSQL both keep.

A store moves events between statuses, one transaction a move, and refuses a move whose fence is not the current one.
It knows nothing of handlers, policies or workers. Every method ends within its time limit; when the database does not
answer, ``StoreUnavailable`` is raised and nothing is known to have changed.

Claimed rows stay what the driver gave (a tuple-like sequence): no object is made on the way to the handler.
The places in such a row are the constants below.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import NAMESPACE_OID, UUID, uuid5

from redrive.clock import Clock
from redrive.errors import PayloadInvalid, SchemaMissing, SchemaTooNew
from redrive.event import Event, FailureCycle, NewEvent, Published, Settlement, Status, TrailEntry
from redrive.instant import instant_of
from redrive.payload import Garbled, decode, decode_headers
from redrive.store.connections import Use
from redrive.store.sql import Clauses

Row = Sequence[Any]

(
    ID, FENCE, TARGET, ATTEMPTS, LOST_COUNT, PAYLOAD, TYPE, QUEUE, PRIORITY, DUE_AT,
    SOURCE, SUBJECT, HEADERS, IDEMPOTENCY_KEY, RETRY_KEY, CORRELATION_ID, CAUSATION_ID,
    ORDERING_KEY, GENERATION, CYCLE, CREATED_AT, DEADLINE_AT,
) = range(22)  # fmt: skip
SWEPT_STATUS: Final = 22
SWEPT_LEASE_UNTIL: Final = 23  # set: the attempt took longer than its timeout, and the sweeper holds it now

EVENT_COLUMNS: Final = (
    "id", "type", "source", "target", "subject", "payload", "headers", "idempotency_key", "retry_key", "correlation_id",
    "causation_id", "ordering_key", "queue", "priority", "status", "due_at", "attempts", "lost_count", "max_attempts",
    "fence", "session_id", "generation", "cycle", "first_failed_at", "last_error", "error_class", "error_type",
    "safe_to_retry", "fingerprint", "failure_history", "cancelled_by", "cancel_reason", "compensation", "steps_from",
    "created_at", "ended_at", "deleted_at", "deadline_at", "blocked_on", "deferred_count", "degraded",
    "batch_id", "batch_group",
)  # fmt: skip

Entry = tuple[UUID | None, str, str, str, Mapping[str, Any]]
"""What goes on the trail: of which event if of one, its kind, the event's source, who, and the facts."""

OPERATOR: Final = "operator"
"""The chain of the trail that operators share."""

_chain: ContextVar[str] = ContextVar("chain", default=OPERATOR)


@contextmanager
def in_background(chain: str) -> Iterator[None]:
    """Run statements as a worker's own work beside its handlers.

    They write to the worker's chain of the trail, and fail with ``LockHeld`` instead of waiting for a lock for long: a
    stranger's open transaction may hold up operators, never a worker.
    """
    token = _chain.set(chain)
    try:
        yield
    finally:
        _chain.reset(token)


def current_chain() -> str:
    """Name the chain of the trail that this task writes to."""
    return _chain.get()


def is_background() -> bool:
    """Whether this task must not wait for locks."""
    return _chain.get() != OPERATOR


Lane = tuple[str, int, int]
"""A queue, a priority and a generation: events of one lane are claimed in the order of their due time."""


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

    def only(self, ids: Container[Any]) -> "Finished":
        """Pick what is about these events."""
        return Finished(
            [row for row in self.delivered if row[ID] in ids],
            [settlement for settlement in self.settlements if settlement.id in ids],
            [each for each in self.put_back if each[0][ID] in ids],
        )

    def clear(self) -> None:
        """Take out everything."""
        self.delivered.clear()
        self.settlements.clear()
        self.put_back.clear()

    def drop(self, ids: Container[Any]) -> None:
        """Take out what is about these events."""
        self.delivered[:] = [row for row in self.delivered if row[ID] not in ids]
        self.settlements[:] = [settlement for settlement in self.settlements if settlement.id not in ids]
        self.put_back[:] = [each for each in self.put_back if each[0][ID] not in ids]

    @property
    def frees_a_key(self) -> bool:
        """Whether the next of an ordering key may go once this is written."""
        return any(row[ORDERING_KEY] is not None for row in self.delivered) or any(s.passed for s in self.settlements)


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a turn: rows that are ours now, and leases that were not ours any more."""

    claimed: Sequence[Row]
    refused: Sequence[Any] = ()  # ids as the store gave them
    now: float = 0.0  # the store's time, in seconds since 1970
    more: bool = False  # as many were found as were wanted: there may be more
    held: bool = False  # some could not be taken because of their ordering key: look again soon


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
    process: str | None = None
    """Its process, for workers that can see whether it is still there (``presence``)."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to list: everything that is given must hold. Newest first, one page at a time."""

    status: Status | None = None
    type: str | None = None
    target: str | None = None
    error_class: str | None = None
    retry_key: str | None = None
    correlation_id: str | None = None
    fingerprint: str | None = None
    id_prefix: str | None = None
    before: UUID | None = None
    discarded: bool | None = False  # none: both
    limit: int = 50
    clauses: tuple[str, ...] = ()  # further conditions in the store's own SQL, and the values they bind
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ages:
    """How old, in seconds, rows of each kind must be for a purge to remove them; None removes none of that kind.

    Ages, never instants: the database subtracts them from its own clock, whatever the machine's clock says.
    """

    ended: float | None = None
    """Delivered and cancelled events, and the records of sessions, redrives, batches and reconcile runs."""
    failed: float | None = None
    handled: float | None = None
    messages: float | None = None
    """Ids of messages that an intake has taken in."""


@dataclass(frozen=True, slots=True)
class Purge:
    """How many rows retention removed, or would remove."""

    events: int = 0
    dead_letters: int = 0
    handled: int = 0
    sessions: int = 0
    members: int = 0  # of redrives
    redrives: int = 0
    runs: int = 0  # of reconcilers
    findings: int = 0
    batches: int = 0
    messages: int = 0  # ids that intakes remember

    @property
    def most(self) -> int:
        """The largest count of a kind that is removed in steps: below the limit, nothing is left for another step."""
        return max(self.events, self.dead_letters, self.handled, self.members, self.runs, self.findings, self.messages)

    def __add__(self, other: "Purge") -> "Purge":
        return Purge(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class Transaction(Protocol):
    """One database transaction: the handler's work and ours, committed together or not at all."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, for libraries that want one."""

    async def execute(self, sql: str, *parameters: Any) -> int: ...
    async def fetch(self, sql: str, *parameters: Any) -> list[Any]: ...
    async def publish(self, events: Sequence[NewEvent]) -> list[Published]: ...
    async def mark_handled(self, target: str, idempotency_key: str, event_id: Any, fence: int = 0) -> bool:
        """Record a key; ``False``: it was there. ``KeyInUse``: another transaction has it, and has not ended."""
        ...

    async def deliver(self, event_id: Any, fence: int) -> bool: ...
    async def settle(self, settlements: Sequence[Settlement], *, chain: str, actor: str) -> set[Any]: ...
    async def run(self, verb: str, clauses: Clauses = (), **values: Any) -> list[dict[str, Any]]: ...
    async def release(
        self, redrive_id: UUID, *, limit: int, stage: int | None, priority: int | None, chain: str
    ) -> list[tuple[UUID, str | None]]: ...
    async def note_outcomes(self, redrive_id: UUID) -> None: ...
    async def revise(self, event_id: UUID, payload: str, *, by: str, reason: str, cycle: int) -> bool: ...
    async def note(self, kind: str, actor: str, facts: Mapping[str, Any], event_id: UUID | None = None) -> None: ...
    async def record(self, entries: Sequence[Entry]) -> None: ...


class Beat(Protocol):
    """How the heartbeat thread renews a session, and lets others take what has run too long on a blocked loop."""

    def __call__(self, session_id: UUID, lease_seconds: float, overdue: Sequence[Row] = ()) -> Awaitable[bool]: ...


class Store(Protocol):
    """The contract. One conformance suite runs against every implementation."""

    name: str
    schema: str
    """The schema of the tables on PostgreSQL; on SQLite the prefix of their names."""
    clock: Clock

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def version(self) -> str: ...

    async def schema_version(self) -> int: ...

    async def schema_needs(self) -> int:
        """Say which migration this schema wants its code to know."""
        ...

    async def check_schema(self) -> None: ...
    async def migrate(self, *, to: int | None = None) -> list[str]: ...

    def check_connection(self, connection: Any, what: str) -> None:
        """Refuse a connection of the caller's that cannot lead to this database."""
        ...

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]: ...
    async def deliver_with(self, event_id: Any, fence: int, events: Sequence[NewEvent]) -> bool:
        """End an event as delivered and publish its follow-ups, in one commit; ``False``: the lease was lost."""
        ...

    def transaction(self, use: Use = Use.OURS) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction. ``use`` says whose code runs in it: only code of ours ends within a known time."""
        ...

    async def begin_session(self, session: Session, lease_seconds: float) -> None: ...
    def renew_with(self, session_id: UUID, lease_seconds: float) -> None: ...
    async def end_session(self, session_id: UUID) -> None: ...
    def heartbeat(self, session_id: UUID, lease_seconds: float) -> Awaitable[bool]: ...
    def pulse(self) -> AbstractAsyncContextManager["Beat"]: ...
    async def sessions(self) -> list[Session]: ...

    async def hear_out(self, gone: Sequence[UUID] = ()) -> None:
        """Let workers renew sessions that they could not renew, before a sweep ends these."""
        ...

    def claims(self, session_id: UUID, lanes: Sequence[Lane], *, actor: str) -> "Claims": ...
    async def sweep(
        self, session_id: UUID, *, max_lost: int, limit: int, base_seconds: float, actor: str,
        gone: Sequence[UUID] = (),
    ) -> list[Row]:  # fmt: skip
        """Take back what sessions still hold whose lease ran out, or whose process is known to be ``gone``."""
        ...

    async def end_lost_transactions(self) -> list[UUID]:
        """End transactions of attempts whose lease is gone; return their events."""
        ...

    def wakes(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[None]: ...

    async def replay(
        self, event_id: UUID, *, generation: int | None, by: str, reason: str, payload: str | None = None,
        cycle: int | None = None,
        from_start: bool = False,
    ) -> None: ...  # fmt: skip
    async def cancel(self, event_id: UUID, *, by: str, reason: str) -> None: ...
    async def cancel_all(self, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]: ...
    async def purge(self, ages: Ages, *, by: str, limit: int, dry_run: bool = False) -> Purge: ...

    async def ask(self, verb: str, clauses: Clauses = (), **values: Any) -> list[dict[str, Any]]: ...
    async def write(self, verb: str, **values: Any) -> list[dict[str, Any]]: ...
    async def event(self, event_id: UUID) -> Event | None: ...
    async def counts(self) -> dict[tuple[str, str], int]: ...
    async def overview(self) -> Mapping[str, Any]: ...
    def trail(self, event_id: UUID | None = None) -> AsyncIterator[TrailEntry]: ...
    async def write_trail(self, entries: Sequence[Entry]) -> None: ...


class Claims(Protocol):
    """The worker's own line to the store: one turn after the other, never two at once."""

    async def turn(self, finished: Finished, want: int) -> Turn:
        """Write down what has finished and claim ``want`` more.

        What is written or refused leaves ``finished``. An event whose row, or a row that its end changes, is locked by
        somebody else's transaction stays there: give it to a later turn.
        """
        ...

    async def next_due(self) -> float | None: ...
    async def forget(self, held: Iterable[Any], *, max_lost: int) -> int: ...
    async def close(self) -> None: ...


def seconds_of(instant: Any) -> float:
    """Express an instant of a claimed row in seconds since 1970: microseconds on SQLite, a datetime on PostgreSQL."""
    return float(instant.timestamp()) if isinstance(instant, datetime) else instant / 1e6


def edited_meanwhile(event_id: UUID) -> str:
    """Explain why an edit was not taken."""
    return f"event {event_id} was replayed by somebody else while it was edited: look at it again, and edit it anew"


def replayed_meanwhile(event_id: UUID) -> str:
    """Explain why a replay was not taken."""
    return f"event {event_id} was replayed by somebody else meanwhile: look at it again"


def judge_schema(place: str, found: int, needs: int, newest: int) -> None:
    """Refuse to work on a schema that is missing or older than this code, or so new that this code may not.

    ``needs``: which migration the schema wants its code to know. Code that rolls out goes on beside what only adds.
    """
    if found == 0:
        raise SchemaMissing(f"{place} has no redrive tables yet: run `redrive migrate`")
    if needs > newest:
        raise SchemaTooNew(
            f"{place} has schema version {found}, which needs a redrive that knows {needs}; this one knows up to "
            f"{newest}: upgrade redrive"
        )
    if found < newest:
        raise SchemaMissing(f"{place} has schema version {found} of {newest}: run `redrive migrate`")


# --- reading rows, whoever wrote them ---


class Unreadable(str):
    """Stands for the payload of a claimed row that cannot be read, and says why."""

    __slots__ = ()


def id_of(stored: Any) -> UUID:
    """Return the id of an event; text that is no id, which SQLite takes from anybody, gets one made of it."""
    try:
        return stored if isinstance(stored, UUID) else UUID(str(stored))
    except ValueError:
        return uuid5(NAMESPACE_OID, repr(stored))


class _Reader:
    """Reads the columns of one row, and remembers those that cannot be read.

    The one guard between the database and everybody who looks at events. What a column should hold is promised by
    publish and settle, but anybody with SQL can write into it, and on SQLite anything at all.
    """

    __slots__ = ("wrong",)

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def read(self, name: str, value: Any) -> Any:
        """Return the value of a column; what stands in for it when that cannot be read."""
        how, instead = _COLUMNS.get(name, _TEXT)
        try:
            return how(value)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            said = str(error) if isinstance(error, PayloadInvalid) else f"cannot be read: {type(error).__name__}"
            self.wrong.append(f"{name} {said}")
        return instead(value) if callable(instead) else instead

    @property
    def reason(self) -> str | None:
        return "; ".join(self.wrong) or None


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise PayloadInvalid(f"is {type(value).__name__}, not text")
    if type(value) is Garbled:
        raise PayloadInvalid("is not UTF-8")
    return value


def _clean(value: Any) -> str:
    """Write something that is no text so that it can be shown."""
    shown = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return str(shown)[:_MOST_SHOWN]


def _whole(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    raise PayloadInvalid(f"is {type(value).__name__}, not a whole number")


def _instant(value: Any) -> datetime | None:
    if value is not None and not isinstance(value, datetime | int):
        raise PayloadInvalid(f"is {type(value).__name__}, not an instant")
    return instant_of(value)


def _uuid(value: Any) -> UUID | None:
    return None if value is None else UUID(str(value))


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _history(value: Any) -> tuple[FailureCycle, ...]:
    return tuple(FailureCycle.from_json(cycle) for cycle in decode(value))


_MOST_SHOWN: Final = 8_192
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT: Final = (_text, _clean)
_COLUMNS: Final[Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
    "id": (lambda value: UUID(str(value)), id_of),
    "payload": (decode, None),
    "headers": (decode_headers, lambda _: {}),
    "failure_history": (_history, ()),
    "status": (Status, Status.FAILED),
    "session_id": (_uuid, None),
    "batch_id": (_uuid, None),
    "degraded": (bool, False),
    "safe_to_retry": (_flag, None),
    **dict.fromkeys(("due_at", "created_at"), (_instant, _NEVER)),
    **dict.fromkeys(("first_failed_at", "ended_at", "deleted_at", "deadline_at"), (_instant, None)),
    **dict.fromkeys(
        ("priority", "attempts", "lost_count", "fence", "generation", "cycle", "steps_from", "deferred_count"),
        (_whole, 0),
    ),
    "max_attempts": (_whole, None),
}


def event_from(row: Mapping[str, Any]) -> Event:
    """Build the read view of an event from a row of either store that has ``EVENT_COLUMNS``. Never fails.

    What cannot be read is empty, and ``unreadable`` says which columns that are.
    """
    reader = _Reader()
    values = {name: reader.read(name, row[name]) for name in EVENT_COLUMNS}
    return Event(**values, unreadable=reader.reason)


_ROW_COLUMNS: Final = (
    "id", "fence", "target", "attempts", "lost_count", "payload", "type", "queue", "priority", "due_at",
    "source", "subject", "headers", "idempotency_key", "retry_key", "correlation_id", "causation_id",
    "ordering_key", "generation", "cycle", "created_at", "deadline_at",
)  # fmt: skip


def claimed_row(row: Row) -> Row:
    """Return a claimed row of SQLite so that every part of a worker can go on with it.

    A column that cannot be read is empty, and the payload says so (``Unreadable``): deliver makes a dead letter of it.
    """
    reader = _Reader()
    values = list(row)
    for place, name in enumerate(_ROW_COLUMNS):
        known = len(reader.wrong)
        read = reader.read(name, values[place])
        if len(reader.wrong) > known and place != ID:  # by its id it is settled, whatever that is
            values[place] = 0 if isinstance(read, datetime) else read
    if reader.reason is not None:
        values[PAYLOAD], values[HEADERS] = Unreadable(reader.reason), "{}"
    return tuple(values)
