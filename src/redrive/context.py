"""Context: what a handler can ask about its event, and do in its name."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from redrive.event import NewEvent, Options, Published
from redrive.inbox import HandlerTransaction, Lease, mark_handled_in, mark_handled_in_sync
from redrive.instant import from_micros
from redrive.payload import decode
from redrive.store.base import (
    ATTEMPTS,
    CAUSATION_ID,
    CORRELATION_ID,
    CREATED_AT,
    CYCLE,
    FENCE,
    GENERATION,
    HEADERS,
    ID,
    IDEMPOTENCY_KEY,
    ORDERING_KEY,
    RETRY_KEY,
    SOURCE,
    SUBJECT,
    TARGET,
    TYPE,
    Row,
    Store,
)


@dataclass(frozen=True, slots=True)
class Desk:
    """What all contexts of a worker share."""

    store: Store
    new_events: Callable[..., list[NewEvent]]
    loop: asyncio.AbstractEventLoop


class Context:
    """One attempt at one event. Cheap to make: everything is read from the claimed row when asked for."""

    __slots__ = ("_desk", "_lease", "_row", "degraded")

    def __init__(self, row: Row, desk: Desk, degraded: frozenset[str] = frozenset()) -> None:
        self.degraded = degraded
        """The dependencies that work only in a reduced mode now; empty unless the handler declares to proceed so."""
        self._row = row
        self._desk = desk
        self._lease: Lease | None = None

    @property
    def id(self) -> UUID:
        return UUID(str(self._row[ID]))

    @property
    def type(self) -> str:
        return str(self._row[TYPE])

    @property
    def target(self) -> str:
        return str(self._row[TARGET])

    @property
    def source(self) -> str:
        return str(self._row[SOURCE])

    @property
    def subject(self) -> str | None:
        return self._row[SUBJECT]  # type: ignore[no-any-return]

    @property
    def headers(self) -> Mapping[str, str]:
        return decode(self._row[HEADERS])  # type: ignore[no-any-return]

    @property
    def attempt(self) -> int:
        """Which attempt of this cycle it is, from 1."""
        return int(self._row[ATTEMPTS])

    @property
    def cycle(self) -> int:
        """How often the event was replayed before."""
        return int(self._row[CYCLE])

    @property
    def generation(self) -> int:
        return int(self._row[GENERATION])

    @property
    def fence(self) -> int:
        """The number of this claim. Pass it along where somebody else must tell a late writer from the current one."""
        return int(self._row[FENCE])

    @property
    def idempotency_key(self) -> str:
        return str(self._row[IDEMPOTENCY_KEY])

    @property
    def retry_key(self) -> str | None:
        return self._row[RETRY_KEY]  # type: ignore[no-any-return]

    @property
    def ordering_key(self) -> str | None:
        return self._row[ORDERING_KEY]  # type: ignore[no-any-return]

    @property
    def correlation_id(self) -> str:
        """The conversation this event belongs to; the first event of one is its own."""
        return str(self._row[CORRELATION_ID] or self._row[ID])

    @property
    def causation_id(self) -> str | None:
        return self._row[CAUSATION_ID]  # type: ignore[no-any-return]

    @property
    def created_at(self) -> datetime:
        created = self._row[CREATED_AT]
        return created if isinstance(created, datetime) else from_micros(created)

    @property
    def settled(self) -> bool:
        """Whether the handler's own transaction has already ended the event."""
        return self._lease is not None and self._lease.settled

    def transaction(self) -> HandlerTransaction:
        """Open the one transaction in which your work, the record that it was done and ``delivered`` are committed.

        Entering it raises ``AlreadyHandled`` when this key has had its effect; let it through, the event is delivered.
        """
        if self._lease is None:
            self._lease = Lease(self._row[ID], self.fence, self.target, self.idempotency_key, self._desk.loop)
        return HandlerTransaction(self._lease, self._desk.store, self._new_events)

    async def once_in(self, connection: Any) -> bool:
        """Record the idempotency key in a transaction of your own; ``False``: it was there, do nothing."""
        return await mark_handled_in(
            connection, self.target, self.idempotency_key, self._row[ID], self._desk.store.clock.now()
        )

    async def publish(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """Publish a follow-up with this event's correlation, caused by it."""
        return (await self._desk.store.publish(self._new_events(type_, payload, **options)))[0]

    def publish_sync(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """``publish`` for ``def`` handlers, which run in a thread."""
        return asyncio.run_coroutine_threadsafe(self.publish(type_, payload, **options), self._desk.loop).result()

    def once_in_sync(self, connection: Any) -> bool:
        """``once_in`` for ``def`` handlers with a connection of a synchronous library."""
        return mark_handled_in_sync(
            connection, self.target, self.idempotency_key, self._row[ID], self._desk.store.clock.now()
        )

    def _new_events(self, type_: str, payload: Any, **options: Unpack[Options]) -> list[NewEvent]:
        options.setdefault("correlation_id", self.correlation_id)
        options.setdefault("causation_id", str(self._row[ID]))
        return self._desk.new_events(type_, payload, **options)
