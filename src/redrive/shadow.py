"""Shadow: run a handler on a dead letter without anything coming of it.

The handler's transaction is real and always rolled back; what it publishes is captured. The answer is "would succeed",
"fails with …" or "has had its effect already". What a handler does outside its transaction cannot be rolled back, so
one that declares outside effects is refused, and one that declares nothing must be forced. Finished steps answer what
they have kept; at one that has not been done the shadow ends. What would be committed elsewhere by a documented way
(``ctx.once_in``, ``publish_in``, ``app.publish``, a reservation, a batch, …) is refused, and so is the shadow.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redrive.caller import Trial, trying
from redrive.classify import civil, classify, describe
from redrive.context import Context, Desk
from redrive.deliver import Handler, deliver
from redrive.errors import AlreadyHandled, Refused, StepPending
from redrive.event import Event, NewEvent, Published
from redrive.policy import RetryPolicy
from redrive.store.base import Row, Store, Transaction
from redrive.store.connections import Use


@dataclass(frozen=True, slots=True)
class Shadow:
    """How an event would end if it were replayed now."""

    would: str  # "succeed", "fail" or "do nothing"
    error: str | None
    error_class: str | None
    published: tuple[tuple[str, Any], ...]


class _Rollback(Exception):
    """Ends a transaction that must not be committed."""


class _ShadowTransaction:
    """The real transaction, except for what must not happen."""

    def __init__(self, inner: Transaction, captured: list[NewEvent]) -> None:
        self._inner = inner
        self._captured = captured

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]:
        return _capture(self._captured, events)

    async def deliver(self, _event_id: Any, _fence: int) -> bool:
        return True


class _ShadowStore:
    """A store that commits nothing."""

    def __init__(self, store: Store, captured: list[NewEvent], trial: Trial) -> None:
        self.clock = store.clock
        self.schema = store.schema
        self.check_connection = store.check_connection
        self._store = store
        self._captured = captured
        self._trial = trial

    @asynccontextmanager
    async def transaction(self, use: Use = Use.OURS) -> AsyncIterator[_ShadowTransaction]:
        try:
            async with self._store.transaction(use) as inner:
                self._trial.own.append(inner.connection)
                try:
                    yield _ShadowTransaction(inner, self._captured)
                finally:
                    self._trial.own.clear()
                raise _Rollback  # noqa: TRY301 - the way out of a transaction that must not be committed
        except _Rollback:
            pass

    async def publish(self, events: Sequence[NewEvent]) -> list[Published]:
        return _capture(self._captured, events)

    async def deliver_with(self, _event_id: Any, _fence: int, events: Sequence[NewEvent]) -> bool:
        _capture(self._captured, events)
        return True

    async def ask(self, verb: str, clauses: Sequence[str] = (), **values: Any) -> list[dict[str, Any]]:
        return await self._store.ask(verb, clauses, **values)


def _capture(into: list[NewEvent], events: Sequence[NewEvent]) -> list[Published]:
    into.extend(events)
    return [Published(event.id, event.target, created=True) for event in events]


async def shadow(
    handler: Handler,
    event: Event,
    store: Store,
    new_events: Callable[..., list[NewEvent]],
    retry: RetryPolicy,
    *,
    handlers: Mapping[str, Handler],
    force: bool,
) -> Shadow:
    """Run the handler once and roll back whatever it did."""
    if handler.effects == "outside":
        raise Refused(f"{handler.name} declares effects outside its transaction: they could not be rolled back")
    if handler.effects is None and not force:
        raise Refused(
            f"{handler.name} does not say whether it reaches outside its transaction: "
            "declare effects='inside' on the handler, or force it if you know"
        )
    if event.unreadable is not None:
        raise Refused(f"event {event.id} cannot be read: {event.unreadable}")
    with trying() as trial:
        tried = await _tried(handler, event, store, new_events, retry, handlers, trial)
    if trial.refused:  # whatever the handler made of it
        raise Refused(trial.refused[0])
    return tried


async def _tried(
    handler: Handler, event: Event, store: Store, new_events: Callable[..., list[NewEvent]], retry: RetryPolicy,
    handlers: Mapping[str, Handler], trial: Trial,
) -> Shadow:  # fmt: skip
    captured: list[NewEvent] = []
    shown: Any = _ShadowStore(store, captured, trial)
    desk = Desk(shown, new_events, asyncio.get_running_loop(), handlers, is_shadow=True)
    row = _row(event)
    threads = ThreadPoolExecutor(1, thread_name_prefix="redrive-shadow")
    would, error, error_class = "succeed", None, None
    try:
        await deliver(handler, row, Context(row, desk), threads)
    except AlreadyHandled as handled:
        would, error = "do nothing", str(handled)
    except StepPending as pending:
        raise Refused(str(pending)) from pending
    except asyncio.CancelledError:
        raise
    except BaseException as raised:  # noqa: BLE001 - any shape of failure is an answer
        shown_error = civil(raised)
        failure = classify(shown_error, handler.retry or retry, handler.rules)
        would, error, error_class = "fail", describe(shown_error), failure.error_class.value
    finally:
        threads.shutdown(wait=False)
    return Shadow(would, error, error_class, tuple((each.type, json.loads(each.payload)) for each in captured))


def _row(event: Event) -> Row:
    """Lay out an event like a claimed row (the places are in ``store.base``)."""
    return (
        event.id, event.fence, event.target, event.attempts + 1, event.lost_count, json.dumps(event.payload),
        event.type, event.queue, event.priority, event.due_at, event.source, event.subject, json.dumps(event.headers),
        event.idempotency_key, event.retry_key, event.correlation_id, event.causation_id, event.ordering_key,
        event.generation, event.cycle, event.created_at, event.deadline_at,
    )  # fmt: skip
