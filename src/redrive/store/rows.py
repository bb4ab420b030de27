"""Events as the parameters of publish.sql, for our own connections and the caller's alike."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.errors import Refused
from redrive.event import NewEvent, Published
from redrive.instant import to_micros

SQLITE_ORDER: Final = (
    "id", "type", "source", "target", "subject", "payload", "headers", "idempotency_key", "retry_key", "correlation_id",
    "causation_id", "ordering_key", "queue", "priority", "due_at", "delay", "generation", "now",
    "deadline_at", "deadline", "batch_id", "batch_group",
)  # fmt: skip


def sqlite_row(event: NewEvent, now: int) -> tuple[Any, ...]:
    """One event, one statement: the values in ``SQLITE_ORDER``."""
    return (
        str(event.id), event.type, event.source, event.target, event.subject, event.payload, event.headers,
        event.idempotency_key, event.retry_key, event.correlation_id, event.causation_id, event.ordering_key,
        event.queue, event.priority, None if event.due_at is None else to_micros(event.due_at),
        int(event.delay_seconds * 1e6), event.generation, now,
        None if event.deadline_at is None else to_micros(event.deadline_at),
        None if event.deadline_seconds is None else int(event.deadline_seconds * 1e6),
        None if event.batch_id is None else str(event.batch_id), event.batch_group,
    )  # fmt: skip


def sqlite_values(event: NewEvent, now: int) -> dict[str, Any]:
    """One event, one statement: the values by name."""
    return dict(zip(SQLITE_ORDER, sqlite_row(event, now), strict=True))


def postgres_values(events: Sequence[NewEvent], now: datetime | None, *, notify: bool) -> dict[str, Any]:
    """Any number of events, one statement: a column, an array."""
    return {
        "now": now,
        "notify": notify,
        "ids": [event.id for event in events],
        "types": [event.type for event in events],
        "sources": [event.source for event in events],
        "targets": [event.target for event in events],
        "subjects": [event.subject for event in events],
        "payloads": [event.payload for event in events],
        "headers": [event.headers for event in events],
        "idempotency_keys": [event.idempotency_key for event in events],
        "retry_keys": [event.retry_key for event in events],
        "correlation_ids": [event.correlation_id for event in events],
        "causation_ids": [event.causation_id for event in events],
        "ordering_keys": [event.ordering_key for event in events],
        "queues": [event.queue for event in events],
        "priorities": [event.priority for event in events],
        "delays": [event.delay_seconds for event in events],
        "due_ats": [event.due_at for event in events],
        "generations": [event.generation for event in events],
        "deadline_ats": [event.deadline_at for event in events],
        "deadlines": [event.deadline_seconds for event in events],
        "batch_ids": [event.batch_id for event in events],
        "batch_groups": [event.batch_group for event in events],
    }


_DEFAULTS: Final = {
    "subjects": None, "headers": "{}", "correlation_ids": None, "causation_ids": None, "ordering_keys": None,
    "queues": "default", "priorities": 1, "delays": 0.0, "due_ats": None, "generations": 0, "batch_ids": None,
    "batch_groups": None,
}  # fmt: skip


def postgres_new(events: Sequence[NewEvent], now: datetime | None, *, notify: bool) -> dict[str, Any]:
    """Any number of events without retry keys: like ``postgres_values``, with columns of defaults left empty."""
    values = postgres_values(events, now, notify=notify)
    for name, default in _DEFAULTS.items():
        column = values[name]
        if column.count(default) == len(column):
            values[name] = []
    return values


def postgres_one(event: NewEvent, now: datetime | None, *, notify: bool) -> dict[str, Any]:
    """Give the values of a single event without a retry key by name."""
    return {
        "now": now, "notify": notify, "id": event.id, "type": event.type, "source": event.source,
        "target": event.target, "subject": event.subject, "payload": event.payload, "headers": event.headers,
        "idempotency_key": event.idempotency_key, "correlation_id": event.correlation_id,
        "causation_id": event.causation_id, "ordering_key": event.ordering_key, "queue": event.queue,
        "priority": event.priority, "delay": event.delay_seconds, "due_at": event.due_at,
        "generation": event.generation, "batch_id": event.batch_id, "batch_group": event.batch_group,
    }  # fmt: skip


def first_of_each_key(events: Sequence[NewEvent]) -> Sequence[NewEvent]:
    """Leave out what repeats a retry key: one statement cannot meet its own new rows."""
    if all(event.retry_key is None for event in events):
        return events
    firsts: dict[object, NewEvent] = {}
    for event in events:
        firsts.setdefault(event.id if event.retry_key is None else (event.target, event.retry_key), event)
    return list(firsts.values())


def unanswered(events: Sequence[NewEvent], rows: Sequence[Any]) -> list[NewEvent]:
    """Find the events whose retry key was neither inserted nor seen: another came in the same instant. Ask again."""
    answered = {(row[1], row[2]) for row in rows}
    return [e for e in events if e.retry_key is not None and (e.target, e.retry_key) not in answered]


def published_from(events: Sequence[NewEvent], rows: Sequence[Any]) -> list[Published]:
    """Match what the database answered (id, target, retry key, batch) with what was asked.

    A member whose retry key belongs to a live event outside its batch is refused: the batch would not count it.
    """
    if all(event.retry_key is None for event in events):
        return [Published(event.id, event.target, created=True) for event in events]
    by_key = {(row[1], row[2]): UUID(str(row[0])) for row in rows if row[2] is not None}
    in_batch = {(row[1], row[2]): row[3] for row in rows if row[2] is not None}
    for event in events:
        if event.batch_id is not None and event.retry_key is not None:
            key = (event.target, event.retry_key)
            if str(in_batch[key]) != str(event.batch_id):
                raise Refused(_outside(by_key[key], event))
    found = [event.id if event.retry_key is None else by_key[event.target, event.retry_key] for event in events]
    return [Published(each, event.target, created=each == event.id) for each, event in zip(found, events, strict=True)]


def _outside(other: UUID, event: NewEvent) -> str:
    return (
        f"event {other} with retry key {event.retry_key!r} is under way outside batch {event.batch_id}: nothing was "
        "added. Wait until it has ended, or add this one without a retry key"
    )
