"""Hook: an outcome, and what the user's hooks and listeners write with it, in one commit.

Most failures are written down with the next turn, hundreds at once. Where a handler has a hook (``on_retry``,
``on_dead_letter``), or somebody handles the lifecycle event of a dead letter, the outcome gets a transaction of its
own: both are there or neither is. A hook that fails three times is left out, loudly; the event goes on all the same.
Each try has 30 seconds. It may call the app: what it waits for is never held by another outcome.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, Final, Unpack
from uuid import UUID

from redrive import alarm
from redrive.clock import Clock
from redrive.counts import Counts
from redrive.deliver import DeadLetter, FailedAttempt, Handler, Retry
from redrive.errors import LeaseLost, PayloadInvalid, RedriveError, StoreUnavailable
from redrive.event import NewEvent, Options, Settlement, Status
from redrive.hands import Hands
from redrive.inbox import Settling
from redrive.instant import instant_of
from redrive.logs import log
from redrive.mask import Mask
from redrive.payload import decode
from redrive.store.base import (
    ATTEMPTS,
    CORRELATION_ID,
    ID,
    IDEMPOTENCY_KEY,
    PAYLOAD,
    RETRY_KEY,
    SOURCE,
    SUBJECT,
    TARGET,
    TYPE,
    Row,
    Store,
    Transaction,
    id_of,
)
from redrive.store.connections import Use

FAILED_TYPE: Final = "redrive.event.failed"
"""The lifecycle event of a dead letter; published for those who handle it."""

_TRIES: Final = 3
_HOOK_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 60.0  # how long a hook is tried again whose own calls find a database unavailable
Shortfalls = Sequence[tuple[str, Exception]]


class _CallUnavailable(Exception):
    """A call of a hook's own has found its database unavailable, while the outcome could be written."""


class Hooks:
    """Settles what others have a part in."""

    def __init__(
        self, store: Store, clock: Clock, hands: Hands, counts: Counts, new_events: Callable[..., list[NewEvent]],
        *, session: Callable[[], UUID], by: str, mask: Mask, has_listeners: bool,
    ) -> None:  # fmt: skip
        self._store = store
        self._clock = clock
        self._hands = hands
        self._counts = counts
        self._new_events = new_events
        self._session = session
        self._by = by
        self._mask = mask
        self._has_listeners = has_listeners
        self._chains: set[int] = set()  # numbers of those in use

    def have_part(self, handler: Handler | None, row: Row, settlement: Settlement) -> bool:
        """Whether anybody writes something together with this outcome."""
        if settlement.status is Status.FAILED:
            return (handler is not None and handler.on_dead_letter is not None) or self._is_told(row)
        return handler is not None and handler.on_retry is not None

    def _is_told(self, row: Row) -> bool:
        """Whether somebody handles the lifecycle event of its end."""
        return self._has_listeners and row[TYPE] != FAILED_TYPE

    async def settle(self, handler: Handler | None, row: Row, settlement: Settlement) -> bool:
        """Settle in one transaction with what a hook writes; false: the hook cannot, and it has to go without.

        While the store does not answer nobody can settle: that is waited for, and is not the fault of the hook.
        """
        hook = "on_dead_letter" if settlement.status is Status.FAILED else "on_retry"
        tries, pause = 0, 0.05
        until = self._clock.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                shortfalls = await self._settle(handler, row, settlement)
            except LeaseLost as error:
                log.warning("lease lost", worker=self._by, event_id=str(row[ID]), error=str(error))
                self._hands.release(row)
                return True
            except StoreUnavailable as error:
                log.warning("outcome not written yet", event_id=str(row[ID]), error=str(error))
            except Exception as error:  # noqa: BLE001 - a hook of the user's; the event must go on visibly all the same
                tries += 1
                log.error(
                    "hook failed", event_id=str(row[ID]), target=row[TARGET], hook=hook, tries=tries,
                    error=alarm.hidden(row, repr(error), self._mask)[:500],
                )  # fmt: skip
                is_patient = isinstance(error, _CallUnavailable)
                if self._clock.monotonic() >= until if is_patient else tries >= _TRIES:
                    await self._note_missing(row, hook, [(f"all of {hook}", error)])
                    return False
            else:
                self._hands.release(row)
                if settlement.status is Status.FAILED:
                    self._hands.key_freed = self._hands.key_freed or settlement.passed
                    self.report(handler, row, settlement)
                await self._note_missing(row, hook, shortfalls)
                return True
            await self._clock.sleep(pause * self._clock.random())
            pause = min(pause * 4, 3.0)

    async def _settle(self, handler: Handler | None, row: Row, settlement: Settlement) -> Shortfalls:
        """Write the outcome and what hooks add to it; return the parts of that which were left out."""
        async with self._store.transaction(Use.HOOK) as transaction:
            with self._chain() as chain:
                if await transaction.settle([settlement], chain=chain, actor=self._by):
                    message = f"event {row[ID]} is no longer ours: its outcome was not written"
                    raise LeaseLost(message)
                (written,) = await transaction.run("settled", id=row[ID])
                told = _told(row, settlement, written)
                work = Settling(transaction, partial(self._caused_by, told))
                if isinstance(told, Retry):
                    if handler is not None and handler.on_retry is not None:
                        await _bounded(handler.on_retry(told, work), row, transaction)
                    return work.shortfalls
                if handler is not None and handler.on_dead_letter is not None:
                    await _bounded(handler.on_dead_letter(told, work), row, transaction)
                if self._is_told(row):
                    await transaction.publish(self._caused_by(told, FAILED_TYPE, _as_payload(told)))
                return work.shortfalls

    @contextmanager
    def _chain(self) -> Iterator[str]:
        """Choose a chain of the trail that no other outcome is being written to.

        Who writes to a chain keeps it until the end of the transaction: on the worker's own one, all its turns would
        wait for a slow hook.
        """
        number = next(each for each in count() if each not in self._chains)
        self._chains.add(number)
        try:
            yield f"{self._session()}/hook-{number}"
        finally:
            self._chains.discard(number)

    def report(self, handler: Handler | None, row: Row, settlement: Settlement) -> None:
        """Say out loud that an event is a dead letter now."""
        alarm.dead_lettered(row, settlement, handler.name if handler else "(unknown)", self._mask)

    def report_retry(self, row: Row, settlement: Settlement) -> None:
        """Say that an attempt failed and another comes, if anybody hears it: to hide secrets the payload is read."""
        if log.is_told(logging.INFO):
            log.info(
                "attempt failed, retry scheduled",
                event_id=str(row[ID]),
                target=row[TARGET],
                attempt=row[ATTEMPTS],
                error_class=settlement.error_class,
                error=alarm.hidden(row, settlement.last_error.partition("\n")[0], self._mask)[:200],
                seconds=round(settlement.delay_seconds or 0.0, 3),
            )

    def _caused_by(
        self, told: FailedAttempt, type_: str, payload: Any = None, **options: Unpack[Options]
    ) -> list[NewEvent]:
        options.setdefault("correlation_id", told.correlation_id or str(told.id))
        options.setdefault("causation_id", str(told.id))
        return self._new_events(type_, payload, **options)

    async def _note_missing(self, row: Row, hook: str, shortfalls: Shortfalls) -> None:
        """Say everywhere that something a hook should have written is missing."""
        for what, error in shortfalls:
            self._counts.hooks_failed[row[TARGET], hook] += 1
            alarm.hook_failed(row, hook, what, error, self._mask)
            detail = {"error": repr(error)[:1_000], "hook": hook, "what": what}
            with suppress(RedriveError):
                await self._store.write_trail([(id_of(row[ID]), "evidence-failed", row[SOURCE], self._by, detail)])


async def _bounded(hook: Awaitable[None], row: Row, transaction: Transaction) -> None:
    """Wait for a hook, but not for ever."""
    limit = asyncio.timeout(_HOOK_SECONDS)
    try:
        async with limit:
            await hook
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"the hook took longer than {_HOOK_SECONDS:g} s") from error
        raise
    except StoreUnavailable as error:
        await transaction.run("settled", id=row[ID])  # if this does not answer either, nobody can settle now
        raise _CallUnavailable(str(error)) from error


def _told(row: Row, settlement: Settlement, written: Mapping[str, Any]) -> DeadLetter | Retry:
    """Say what a hook is told, from what was claimed and what has just been written."""
    common: dict[str, Any] = {
        "id": id_of(row[ID]),
        "type": row[TYPE],
        "target": row[TARGET],
        "source": row[SOURCE],
        "subject": row[SUBJECT],
        "payload": _payload(row),
        "idempotency_key": row[IDEMPOTENCY_KEY],
        "retry_key": row[RETRY_KEY],
        "correlation_id": row[CORRELATION_ID],
        "attempts": written["attempts"],
        "error_class": settlement.error_class,
        "error_type": settlement.error_type,
        "last_error": settlement.last_error,
        "safe_to_retry": settlement.safe_to_retry,
    }
    if settlement.status is Status.FAILED:
        return DeadLetter(**common, failed_at=_instant(written["ended_at"]))
    return Retry(**common, next_retry_at=_instant(written["due_at"]))


def _payload(row: Row) -> Any:
    """Return the payload for a hook; None when it cannot be read, which is why the event failed."""
    with suppress(PayloadInvalid):
        return decode(row[PAYLOAD])
    return None


def _instant(stored: Any) -> datetime:
    return instant_of(stored)


def _as_payload(letter: DeadLetter) -> dict[str, Any]:
    return {
        "event_id": str(letter.id),
        "type": letter.type,
        "target": letter.target,
        "source": letter.source,
        "subject": letter.subject,
        "attempts": letter.attempts,
        "error_class": letter.error_class,
        "error_type": letter.error_type,
        "last_error": letter.last_error,
    }
