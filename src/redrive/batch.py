"""Batch: events that belong together, and what became of all of them.

A batch is opened, and events are added (from anywhere, handlers too) until it is closed. Then it says two things, each
once, as events: the first notice when every member has had an attempt, the final notice when nothing can move any more
or its deadline has passed. The database publishes them in the transaction that makes them true, whoever ends the last
member: see 0008_batches.sql. Numbers are always counted from the members themselves.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack
from uuid import UUID

from redrive import caller
from redrive.clock import Clock
from redrive.duration import span
from redrive.duty import Duty, Tick
from redrive.errors import BatchNotFound, ConfigurationError, LockHeld, Refused
from redrive.event import LIVE, HasId, NewEvent, Options, Priority, Published, Status
from redrive.instant import instant_of, iso, to_micros
from redrive.payload import check_text
from redrive.store.base import Store, Transaction
from redrive.store.sql import load

FIRST_NOTICE: Final = "redrive.batch.first_notice"
FINAL_NOTICE: Final = "redrive.batch.final_notice"
GRACE_SECONDS: Final = 60.0
"""How long after the deadline of a batch that fails what is left members may take to be failed."""

Leftovers = Literal["leave", "fail"]
Drafted = tuple[str, Any] | tuple[str, Any, Options]

_NAME_LIMIT: Final = 255
_REASON_LIMIT: Final = 2_000
_LOOK_SECONDS: Final = 0.75
_AT_ONCE: Final = 100
_ID_DIGITS: Final = 32
_DEADLINE: Final = "its deadline has passed"


@dataclass(frozen=True, slots=True)
class Failure:
    """One member that failed for good, as a notice tells it."""

    id: UUID
    type: str
    subject: str | None
    group: str | None
    error_class: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a notice says; its payload has the same fields. It never changes, whatever members do later."""

    batch_id: UUID
    name: str
    kind: Literal["first", "final"]
    forced: bool
    """It did not wait for all that it should have waited for: the deadline had passed, or somebody said so."""
    opened_at: datetime
    closed_at: datetime
    closed_by: str | None
    at: datetime
    total: int
    delivered: int
    failed: int
    cancelled: int
    leftover: int
    """Members that had not ended."""
    recovered: int
    """Delivered after at least one failure."""
    leftover_by_status: Mapping[str, int]
    by_class: Mapping[str, int]
    """Members by the class of their last error, of those that were not delivered."""
    by_group: Mapping[str, int]
    """How many groups are ``complete`` (all delivered), ``failed`` (none) and ``partly``."""
    failures: tuple[Failure, ...]
    """Those that failed for good, up to 100 of them."""
    more: int
    """How many further ones there are."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the payload of a notice."""
        known = {each.name: stored[each.name] for each in fields(cls)}
        instants = ("opened_at", "closed_at", "at")
        known |= {name: datetime.fromisoformat(known[name]).astimezone(UTC) for name in instants}
        known["batch_id"] = UUID(known["batch_id"])
        known["by_group"] = {name: int(n) for name, n in known["by_group"].items()}
        known["failures"] = tuple(Failure(**{**each, "id": UUID(each["id"])}) for each in known["failures"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """How one group of a batch stands."""

    name: str
    total: int
    delivered: int
    failed: int
    cancelled: int
    live: int

    @property
    def state(self) -> str:
        """``complete`` (all delivered), ``under way`` (some are live), ``failed`` (none delivered) or ``partly``."""
        if self.delivered == self.total:
            return "complete"
        if self.live:
            return "under way"
        return "partly" if self.delivered else "failed"


@dataclass(frozen=True, slots=True)
class Hands:
    """How a batch reaches the database: in the open transaction of a handler, else by itself."""

    ready: Callable[[], Awaitable[Store]]
    new_events: Callable[..., list[NewEvent]]
    transaction: Callable[[], Transaction | None] = lambda: None

    async def publish(self, rows: list[NewEvent]) -> list[Published]:
        """Store events."""
        return await (self.transaction() or await self.ready()).publish(rows) if rows else []

    async def read(self, verb: str, **values: Any) -> list[dict[str, Any]]:
        """Run a statement that changes nothing."""
        within = self.transaction()
        return await (within.run(verb, **values) if within else (await self.ready()).ask(verb, **values))

    async def write(self, verb: str, **values: Any) -> list[dict[str, Any]]:
        """Run a statement in the open transaction, or in one of its own."""
        within = self.transaction()
        if within is not None:
            return await within.run(verb, **values)
        async with (await self.ready()).transaction() as tx:
            return await tx.run(verb, **values)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as it was read. ``async with`` closes it at the end, and leaves it open on an error."""

    id: UUID
    name: str
    source: str
    correlation_id: str | None
    deadline_at: datetime | None
    leftovers: str
    opened_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    first_at: datetime | None
    final_at: datetime | None
    forced: bool
    first: BatchReport | None
    """What the first notice said, once it was sent."""
    final: BatchReport | None
    """What the final notice said, once it was sent."""
    _hands: Hands = field(repr=False, compare=False)

    @property
    def state(self) -> str:
        """``open``, ``running`` (closed), ``tried`` (first notice sent), ``done`` or ``forced`` (final notice sent)."""
        if self.final_at is not None:
            return "forced" if self.forced else "done"
        if self.first_at is not None:
            return "tried"
        return "open" if self.closed_at is None else "running"

    async def add(
        self, type_: str, payload: Any = None, *, group: str | None = None, **options: Unpack[Options]
    ) -> Published:
        """Publish an event as a member; ``BatchClosed`` when it is too late for that.

        ``Refused`` when a live event outside the batch has its retry key: the batch could not count that one.
        """
        return (await self._hands.publish(self._rows(type_, payload, group, options)))[0]

    async def add_many(self, events: Iterable[Drafted]) -> list[Published]:
        """Publish many members in one transaction: ``(type, payload)`` or with ``{"batch_group": …}`` as a third."""
        rows: list[NewEvent] = []
        for type_, payload, *options in events:
            rows += self._rows(type_, payload, None, options[0] if options else {})
        return await self._hands.publish(rows)

    def _rows(self, type_: str, payload: Any, group: str | None, options: Options) -> list[NewEvent]:
        said: Options = {"correlation_id": self.correlation_id or str(self.id), **options, "batch": self.id}
        if group is not None:
            said["batch_group"] = group
        return self._hands.new_events(type_, payload, **said)

    async def close(self) -> bool:
        """Let nothing more be added; ``False`` when it was closed. The notices can come from now on."""
        return bool(await self._hands.write("batch_close", id=str(self.id), by=None))

    async def look(self) -> "BatchLook":
        """Count the members as they stand now."""
        rows = await self._hands.read("batch_get", id=str(self.id))
        if not rows:
            raise BatchNotFound(f"batch {self.id} is gone: retention has removed it")
        counts = await self._hands.read("batch_counts", id=str(self.id))
        return _look(batch_from(rows[0], self._hands), counts)

    async def groups(self, *, after: str | None = None, limit: int = 100) -> list[BatchGroup]:
        """List the groups by name, ``after`` the last one of the page before."""
        rows = await self._hands.read("batch_groups", id=str(self.id), after=after, limit=limit)
        return [BatchGroup(row.pop("batch_group"), **row) for row in rows]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, with the reports as they were sent."""
        shown = {each.name: _plain(getattr(self, each.name)) for each in fields(self) if each.name != "_hands"}
        return {**shown, "state": self.state}


@dataclass(frozen=True, slots=True)
class BatchLook:
    """A batch and its members by status, at one moment."""

    batch: Batch
    counts: Mapping[Status, int]
    untried: int
    """Members that have not had an attempt."""
    recovered: int

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def live(self) -> int:
        """Members that have not ended."""
        return sum(self.counts[status] for status in LIVE)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        counts = {status.value: n for status, n in self.counts.items()}
        numbers = {"total": self.total, "live": self.live, "untried": self.untried, "recovered": self.recovered}
        return {**self.batch.to_json(), "counts": counts, **numbers}


class Batches:
    """``app.batches``: open, find and list them, and act on them."""

    def __init__(
        self,
        ready: Callable[[], Awaitable[Store]],
        clock: Callable[[], Clock],
        new_events: Callable[..., list[NewEvent]],
        targets: Callable[[str], Sequence[str]],
        *,
        source: str,
        generation: int,
        store: Callable[[], Store],
    ) -> None:
        self._ready = ready
        self._clock = clock
        self._store = store
        self._hands = Hands(ready, new_events)
        self._targets = targets
        self._source = source
        self._generation = generation

    async def open(
        self,
        name: str,
        *,
        deadline: str | float | timedelta | datetime | None = None,
        leftovers: Leftovers = "leave",
        first_notice: str | None = None,
        final_notice: str | None = None,
        correlation_id: str | UUID | None = None,
        queue: str = "default",
        priority: Priority | int = Priority.NORMAL,
    ) -> Batch:
        """Open a batch to add events to.

        At the ``deadline`` the notices are sent whatever is left; ``leftovers="fail"`` makes that a dead letter, with
        ``"leave"`` it goes on. The notices are events of the types ``redrive.batch.first_notice`` and
        ``redrive.batch.final_notice`` where this app knows a handler or a route for them, or of the types named here.
        """
        if leftovers not in ("leave", "fail"):
            raise ConfigurationError(f'leftovers is "leave" or "fail", not {leftovers!r}')
        if leftovers == "fail" and deadline is None:
            raise ConfigurationError('leftovers="fail" needs a deadline: say when what is left fails')
        batch_id = self._clock().new_id()
        told = [
            *self._notices("first", FIRST_NOTICE, first_notice),
            *self._notices("final", FINAL_NOTICE, final_notice),
        ]
        values = {
            "id": str(batch_id), "name": _said(name, "name"), "source": self._source, "leftovers": leftovers,
            "correlation_id": None if correlation_id is None else _said(str(correlation_id), "correlation_id"),
            **self._deadline(deadline),
        }  # fmt: skip
        place: dict[str, Any] = {"queue": check_text(queue, "queue", _NAME_LIMIT), "priority": int(Priority(priority))}
        async with (await self._ready()).transaction() as tx:
            await tx.run("batch_open", **values)
            for notice in told:
                await tx.run("batch_notice", batch_id=str(batch_id), **notice, **place)
            (row,) = await tx.run("batch_get", id=str(batch_id))
        return batch_from(row, self._hands)

    def _notices(self, kind: str, usual: str, named: str | None) -> list[dict[str, Any]]:
        """Make the events of one notice: one for each target, as a publish would."""
        type_ = usual if named is None else _said(named, f"{kind}_notice")
        targets = self._targets(type_) or (() if named is None else (type_,))
        return [
            {"id": str(self._clock().new_id()), "kind": kind, "type": type_, "target": each,
             "generation": self._generation}
            for each in targets
        ]  # fmt: skip

    def _deadline(self, deadline: object) -> dict[str, Any]:
        if not isinstance(deadline, datetime):
            return {"deadline_at": None, "deadline": None if deadline is None else span(deadline, "deadline")}
        if deadline.utcoffset() is None or deadline <= self._clock().now():
            raise ConfigurationError(f"the deadline {deadline.isoformat()} must lie ahead, and know its time zone")
        return {"deadline_at": deadline, "deadline": None}

    async def get(self, batch_id: UUID | str) -> Batch:
        """Read a batch by its id."""
        rows = await self._hands.read("batch_get", id=str(_uuid(batch_id)))
        if not rows:
            raise BatchNotFound(f"there is no batch {batch_id}")
        return batch_from(rows[0], self._hands)

    async def find(self, name: str) -> Batch:
        """Find a batch by the beginning of its id, or the newest one by its name."""
        ids = _between(name)
        found = await self._page(first_id=ids[0], last_id=ids[1], limit=2) if ids else []
        if len(found) > 1:
            raise Refused(f"several batches begin with {name}: write more of the id")
        found = found or await self._page(name=name, limit=1)
        if not found:
            raise BatchNotFound(f"there is no batch {name[:80]!r}: `redrive batches ls` lists them")
        return found[0]

    async def ls(
        self, *, name: str | None = None, unfinished: bool = False, before: UUID | None = None, limit: int = 50
    ) -> list[Batch]:
        """List batches, newest first; ``before`` the last one of the page before."""
        return await self._page(name=name, unfinished=unfinished, before=before, limit=limit)

    async def _page(self, **wanted: Any) -> list[Batch]:
        values = {"before": None, "name": None, "first_id": None, "last_id": None, "unfinished": False, **wanted}
        rows = await self._hands.read("batches", **values)
        return [batch_from(row, self._hands) for row in rows]

    async def close(self, batch_id: UUID, *, by: str, reason: str) -> Batch:
        """Close a batch in the name of somebody; refused when it is closed."""
        who, why = _said(by, "by"), _said(reason, "reason", _REASON_LIMIT)
        async with (await self._ready()).transaction() as tx:
            row = await _known(tx, batch_id)
            if not await tx.run("batch_close", id=str(batch_id), by=who):
                raise Refused(f"batch {batch_id} ({row['name']}) is closed already")
            await tx.run("batch_look_now")
            await tx.note("batch-closed", who, {"batch": str(batch_id), "name": row["name"], "reason": why})
            return batch_from(await _known(tx, batch_id), self._hands)

    async def force(self, batch_id: UUID, *, by: str, reason: str) -> Batch:
        """Send the notices that have not been sent, whatever is left; members go on. Closes it first if it is open."""
        who, why = _said(by, "by"), _said(reason, "reason", _REASON_LIMIT)
        if not await force(await self._ready(), batch_id, by=who, reason=why):
            raise Refused(f"batch {batch_id} has sent its final notice: nothing is left to force")
        return await self.get(batch_id)

    async def close_in(self, connection: Any, batch: UUID | str | HasId) -> bool:
        """Close a batch in the transaction of your own connection; ``False`` when it was closed."""
        closing, getting = self._closing(connection, batch)
        if await caller.run(connection, *closing):
            return True
        return self._was_closed(await caller.run(connection, *getting), batch)

    def close_in_sync(self, connection: Any, batch: UUID | str | HasId) -> bool:
        """``close_in`` for code without an event loop."""
        closing, getting = self._closing(connection, batch)
        if caller.run_sync(connection, *closing):
            return True
        return self._was_closed(caller.run_sync(connection, *getting), batch)

    def _closing(self, connection: Any, batch: UUID | str | HasId) -> list[tuple[Any, dict[str, Any]]]:
        spoken = caller.dialect(connection)
        caller.admit(self._store(), connection, "close_in")
        named = str(_uuid(batch if isinstance(batch, UUID | str) else batch.id))
        now = to_micros(self._clock().now()) if spoken == "sqlite" else self._clock().database_now()
        return [
            (load(spoken, "batch_close", self._store().schema), {"id": named, "by": None, "now": now}),
            (load(spoken, "batch_get", self._store().schema), {"id": named}),
        ]

    @staticmethod
    def _was_closed(rows: Sequence[Any], batch: object) -> bool:
        if not rows:
            raise BatchNotFound(f"there is no batch {batch}")
        return False

    def duty(self) -> Duty:
        """Say what workers do for batches: force what is overdue."""
        return Duty("batches", self._tend)

    async def _tend(self, by: str) -> Tick:
        store = await self._ready()
        overdue = await store.ask("batch_overdue", grace=GRACE_SECONDS, limit=_AT_ONCE)
        moved = 0
        for row in overdue:
            with suppress(LockHeld):  # somebody has the batch or one of its members: the others do not wait
                moved += await force(store, row["id"], by=by, reason=_DEADLINE)
        return Tick(moved > 0, 0.0 if moved == _AT_ONCE else _LOOK_SECONDS)


async def force(store: Store, batch_id: Any, *, by: str, reason: str) -> bool:
    """Send what a batch has not sent, whatever is left; say whether there was anything to send."""
    async with store.transaction() as tx:
        row = await _known(tx, batch_id)
        if row["final_at"] is not None:
            return False
        closed = await tx.run("batch_close", id=str(batch_id), by=by) if row["closed_at"] is None else []
        sent = await tx.run("batch_look", ids=[str(batch_id)], force=True, by=by)
        row = await _known(tx, batch_id)
        if closed or sent:
            kind = "batch-forced" if row["forced"] else "batch-closed"
            await tx.note(kind, by, {"batch": str(batch_id), "name": row["name"], "reason": reason})
        return bool(closed or sent)


async def repair(store: Store, overdue: Iterable[UUID]) -> list[UUID]:
    """Send the notices of these batches that are due and that nobody has sent; return which had one.

    There is none while the database's triggers are on and transactions see what others have committed.
    """
    mended: set[UUID] = set()
    for batch_id in overdue:
        async with store.transaction() as tx:
            rows = await tx.run("batch_look", ids=[str(batch_id)], force=False, by=None)
            mended |= {UUID(str(row["id"])) for row in rows}
    return sorted(mended)


async def batch_of(hands: Hands, event_id: Any) -> Batch | None:
    """Read the batch that an event belongs to."""
    rows = await hands.read("batch_of", id=str(event_id))
    return batch_from(rows[0], hands) if rows else None


def batch_from(row: Mapping[str, Any], hands: Hands) -> Batch:
    """Read a row of either store."""
    values = dict(row)
    first, final = values.pop("first_report"), values.pop("final_report")
    values |= {name: instant_of(at) for name, at in values.items() if name.endswith("_at")}
    values |= {"id": UUID(str(row["id"])), "forced": bool(row["forced"])}
    return Batch(**values, first=_report(first), final=_report(final), _hands=hands)


def _report(text: str | None) -> BatchReport | None:
    return None if text is None else BatchReport.from_json(json.loads(text))


def _look(batch: Batch, rows: Sequence[Mapping[str, Any]]) -> BatchLook:
    counts = dict.fromkeys(Status, 0) | {Status(row["status"]): row["n"] for row in rows}
    recovered = sum(row["tried_again"] for row in rows if row["status"] == Status.DELIVERED)
    return BatchLook(batch, counts, sum(row["untried"] for row in rows), recovered)


async def _known(tx: Transaction, batch_id: object) -> dict[str, Any]:
    rows = await tx.run("batch_get", id=str(batch_id))
    if not rows:
        raise BatchNotFound(f"there is no batch {batch_id}")
    return rows[0]


def _said(text: str, what: str, limit: int = _NAME_LIMIT) -> str:
    if not check_text(text, what, limit).strip():
        raise Refused(f"say something for {what}: it is empty")
    return text


def _uuid(text: UUID | str) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise BatchNotFound(f"{str(text)[:80]!r} is not the id of a batch") from None


def _between(prefix: str) -> tuple[UUID, UUID] | None:
    digits = prefix.replace("-", "").lower()
    if not digits or len(digits) > _ID_DIGITS or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(digits.ljust(_ID_DIGITS, "0")), UUID(digits.ljust(_ID_DIGITS, "f"))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, BatchReport | Failure):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, UUID) else value
