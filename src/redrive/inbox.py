"""The inbox: remembered effects, so that an event delivered twice has its effect once.

A handler's work, the record in ``event_handled`` and ``delivered`` are one commit. A duplicate or a replay with the
same idempotency key finds the record and does nothing; a worker whose lease ran out finds its fence gone and everything
it did is rolled back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, Self, Unpack

from redrive import caller
from redrive.errors import AlreadyHandled, ConfigurationError, LeaseLost, StoreUnavailable
from redrive.event import NewEvent, Options, Published
from redrive.instant import to_micros
from redrive.store.base import Store, Transaction
from redrive.store.connections import Use
from redrive.store.sql import Statement, load

NewEvents = Callable[..., list[NewEvent]]
Draft = tuple[str, Any] | tuple[str, Any, Options]


@dataclass(slots=True)
class Lease:
    """The right to settle one event once."""

    event_id: Any
    fence: int
    target: str
    idempotency_key: str
    loop: asyncio.AbstractEventLoop
    settled: bool = False
    is_open: bool = False


class Work:
    """A transaction as user code sees it: statements in the database's own dialect, and follow-ups."""

    def __init__(self, transaction: Transaction | None, new_events: NewEvents) -> None:
        self._inner = transaction
        self._new_events = new_events

    @property
    def connection(self) -> Any:
        """The driver's own connection (sqlite3 or asyncpg), inside the transaction."""
        return self._transaction.connection

    async def execute(self, sql: str, *parameters: Any) -> int:
        """Run one statement in the database's own dialect; return how many rows it changed."""
        return await self._transaction.execute(sql, *parameters)

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """Run one query; return its rows."""
        return await self._transaction.fetch(sql, *parameters)

    async def publish(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        """Publish a follow-up that is committed with the rest."""
        return (await self._transaction.publish(self._new_events(type_, payload, **options)))[0]

    async def publish_many(self, events: Iterable[Draft]) -> list[Published]:
        """Publish many with one statement: ``(type, payload)`` or ``(type, payload, {"subject": …})`` each."""
        made = [self._new_events(type_, payload, **(said[0] if said else {})) for type_, payload, *said in events]
        firsts = accumulate(map(len, made), initial=0)
        published = await self._transaction.publish([row for each in made for row in each]) if made else []
        return [published[place] for place, _ in zip(firsts, made, strict=False)]

    @property
    def _transaction(self) -> Transaction:
        if self._inner is None:
            message = "the transaction is not open: use `async with ctx.transaction() as tx:`"
            raise ConfigurationError(message)
        return self._inner


class Settling(Work):
    """The transaction in which a failure is written down, as hooks see it."""

    def __init__(self, transaction: Transaction, new_events: NewEvents) -> None:
        super().__init__(transaction, new_events)
        self.shortfalls: list[tuple[str, Exception]] = []
        """What was tried with ``best_effort`` and failed."""

    @asynccontextmanager
    async def best_effort(self, what: str) -> AsyncIterator[None]:
        """Write something, such as evidence, without which the rest shall be committed all the same.

        If it fails, what was written in this block is undone, and nothing else. That is an error: it is logged, counted
        (``redrive_hook_failures_total``), on the trail of the event, and in the list of what needs a person.
        """
        await self.execute("savepoint redrive_best_effort")
        try:
            yield
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the rest goes on
            await self.execute("rollback to savepoint redrive_best_effort")
            self.shortfalls.append((what, error))
        await self.execute("release savepoint redrive_best_effort")


class HandlerTransaction(Work):
    """``async with ctx.transaction() as tx`` in async handlers, ``with ctx.transaction() as tx`` in the others."""

    def __init__(self, lease: Lease, store: Store, new_events: NewEvents, kept: Sequence[NewEvent] = ()) -> None:
        super().__init__(None, new_events)
        self._lease = lease
        self._store = store
        self._kept = kept
        self._outer: AbstractAsyncContextManager[Transaction] | None = None

    @property
    def opened(self) -> Transaction | None:
        """The store's own transaction, while this one is open."""
        return self._inner if self._lease.is_open else None

    async def __aenter__(self) -> Self:
        lease = self._lease
        if lease.settled:
            message = "a handler has one transaction: it ends the event. Do all the work inside it"
            raise ConfigurationError(message)
        self._outer = self._store.transaction(Use.HANDLER)
        self._inner = await self._outer.__aenter__()
        try:
            if not await self._inner.mark_handled(lease.target, lease.idempotency_key, lease.event_id, lease.fence):
                message = f"key {lease.idempotency_key} has had its effect in {lease.target}"
                raise AlreadyHandled(message)  # noqa: TRY301 - leaves through the same door as everything else
        except BaseException as error:
            await self._outer.__aexit__(type(error), error, error.__traceback__)
            raise
        lease.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._outer is not None
        assert self._inner is not None
        self._lease.is_open = False
        if error is None:
            try:
                if self._kept:  # published before the transaction began
                    await self._inner.publish(self._kept)
                if not await self._inner.deliver(self._lease.event_id, self._lease.fence):
                    message = f"event {self._lease.event_id} is no longer ours: what this handler did was rolled back"
                    raise LeaseLost(message)  # noqa: TRY301 - leaves through the same door as everything else
            except BaseException as lost:
                await self._outer.__aexit__(type(lost), lost, lost.__traceback__)
                raise
        await self._outer.__aexit__(kind, error, traceback)
        self._inner = None
        if error is None:
            self._lease.settled = True

    # For `def` handlers, which run in a thread beside the event loop.

    def __enter__(self) -> "ThreadTransaction":
        loop = self._lease.loop
        asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result()
        return ThreadTransaction(self, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.__aexit__(kind, error, traceback), self._lease.loop).result()


class ThreadTransaction:
    """The same transaction, used from a thread."""

    def __init__(self, transaction: HandlerTransaction, loop: asyncio.AbstractEventLoop) -> None:
        self._transaction = transaction
        self._loop = loop

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def execute(self, sql: str, *parameters: Any) -> int:
        return asyncio.run_coroutine_threadsafe(self._transaction.execute(sql, *parameters), self._loop).result()

    def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        return asyncio.run_coroutine_threadsafe(self._transaction.fetch(sql, *parameters), self._loop).result()

    def publish(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> Published:
        return asyncio.run_coroutine_threadsafe(
            self._transaction.publish(type_, payload, **options), self._loop
        ).result()


async def mark_handled_in(store: Store, connection: Any, target: str, idempotency_key: str, event_id: Any) -> bool:
    """Record a key in the caller's own transaction; ``False`` when it was there."""
    return bool(await caller.run(connection, *_handled(store, connection, target, idempotency_key, event_id)))


def mark_handled_in_sync(store: Store, connection: Any, target: str, idempotency_key: str, event_id: Any) -> bool:
    """Record a key in the caller's own transaction, without an event loop."""
    return bool(caller.run_sync(connection, *_handled(store, connection, target, idempotency_key, event_id)))


def _handled(
    store: Store, connection: Any, target: str, idempotency_key: str, event_id: Any
) -> tuple[Statement, dict[str, Any]]:
    spoken = caller.dialect(connection)
    caller.admit(store, connection, "once_in")
    at = to_micros(store.clock.now()) if spoken == "sqlite" else None
    values = {"target": target, "idempotency_key": idempotency_key, "event_id": event_id, "now": at}
    return load(spoken, "handled", store.schema), values
