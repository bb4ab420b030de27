"""The desk: where receipts are submitted, adjudicated and looked at.

A decision, and the execution that it sets going, are one commit. The execution is published before the receipt is
locked: whoever settles one holds its event first and the receipt then, and two that lock in different order would wait
for one another.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

import structlog

from redrive import Context, EventFilter, PrerequisiteMissing, Redrive, Rejected, Status, Work
from redrive.apps.adjudication.records import Records, iso
from redrive.apps.adjudication.words import (
    AdjudicationError,
    Conflict,
    Decision,
    LateDecision,
    Look,
    Order,
    Progress,
    Receipt,
    Submission,
    UnknownReceipt,
)

EXECUTE: Final = "adjudication.execute"
UNKNOWN: Final = "adjudication.unknown"
_EXECUTION: Final = ("retry_key", "attempt_count", "next_retry_at", "error_class", "ended_at")
log = structlog.get_logger("redrive.apps.adjudication")


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a submission or a decision; ``created`` is false when it was there already."""

    look: Look
    created: bool


class _Executed(Exception):
    """Everything has been done: roll back what was begun for it once more."""


class Desk:
    """What clients and operators ask for."""

    def __init__(self, app: Redrive, records: Records, unknown_kept: int) -> None:
        self._app = app
        self._records = records
        self._unknown_kept = unknown_kept

    async def submit(self, new: Submission) -> Answer:
        """Keep a receipt; the same once more is the same, another under its id is refused."""
        async with self._app.transaction() as tx:
            created = await self._records.submit(tx, new)
            receipt = await self._found(tx, new.transaction_receipt_id)
        if any(getattr(receipt, name) != value for name, value in new.model_dump().items()):
            raise Conflict(f"receipt {new.transaction_receipt_id} was submitted before, with other values; that stays")
        return Answer(await self.look(new.transaction_receipt_id), created)

    async def adjudicate(self, receipt_id: str, decision: Decision) -> Answer:
        """Record a decision and set its execution going; while one lives, the same decision is answered with that."""
        order = Order(
            transaction_receipt_id=receipt_id,
            outcome=decision.outcome,
            dispatch_reference=decision.dispatch_reference,
        )
        created = False
        try:
            async with self._app.transaction() as tx:
                published = await tx.publish(
                    EXECUTE, order, retry_key=order.key, idempotency_key=order.key, correlation_id=receipt_id,
                    subject=f"receipt/{receipt_id}",
                )  # fmt: skip
                receipt = await self._found(tx, receipt_id, lock=True)
                share = receipt.check(decision)
                if receipt.is_executed:
                    raise _Executed  # noqa: TRY301 - the way to roll back
                if published.created:
                    await self._records.adjudicated(tx, receipt, decision, share, str(published.id))
            created = published.created
        except _Executed:
            pass
        return Answer(await self.look(receipt_id), created)

    async def look(self, receipt_id: str) -> Look:
        """Show a receipt, its execution, the evidence and what was booked."""
        async with self._app.transaction() as tx:
            receipt = await self._found(tx, receipt_id)
            trail = await self._records.trail(tx, receipt_id)
            entries = await self._records.entries(tx, receipt_id)
        return Look(as_json(receipt), await self._execution(receipt.execution_event_id), [*trail], [*entries])

    async def standing(self, status: Progress, after: str = "", limit: int = 50) -> list[Mapping[str, Any]]:
        """List the receipts in a status, by id."""
        async with self._app.transaction() as tx:
            return [as_json(receipt) for receipt in await self._records.receipts(tx, status, after, limit)]

    async def _found(self, tx: Work, receipt_id: str, *, lock: bool = False) -> Receipt:
        receipt = await self._records.receipt(tx, receipt_id, lock=lock)
        if receipt is None:
            raise UnknownReceipt(f"nobody has submitted a receipt {receipt_id}")
        return receipt

    async def _execution(self, event_id: str | None) -> Mapping[str, Any] | None:
        """Show the event of the latest execution, while it is kept."""
        event = None if event_id is None else await self._app.event(UUID(event_id))
        if event is None:
            return None
        reason = None if event.last_error is None else event.last_error.partition("\n")[0]
        shown = {name: iso(getattr(event, name)) for name in _EXECUTION}
        return {"event_id": str(event.id), "status": event.status.value, **shown, "last_error": reason}

    # Decisions about receipts that nobody knows

    async def keep_unknown(self, receipt_id: str, decision: Decision) -> UUID | None:
        """Keep such a decision as a dead letter, where operators look and can replay it; none: there are enough."""
        late = LateDecision(transaction_receipt_id=receipt_id, decision=decision)
        key = f"unknown:{receipt_id}:{decision.outcome}"
        kept = [
            event
            for status in (Status.FAILED, Status.PENDING)
            for event in await self._app.events(EventFilter(type=UNKNOWN, status=status, limit=self._unknown_kept))
        ]
        for event in kept:
            if event.retry_key == key:
                return event.id
        if len(kept) >= self._unknown_kept:
            log.error("decision about an unknown receipt not kept", receipt=receipt_id, kept=len(kept))
            return None
        published = await self._app.publish(UNKNOWN, late, retry_key=key, correlation_id=receipt_id)
        return published.id

    async def try_again(self, late: LateDecision, _: Context) -> None:
        """Handle a decision that came before its receipt; a replay finds the receipt when it has come meanwhile."""
        try:
            await self.adjudicate(late.transaction_receipt_id, late.decision)
        except UnknownReceipt as error:
            raise PrerequisiteMissing(str(error)) from error
        except AdjudicationError as error:
            raise Rejected(str(error)) from error


def as_json(receipt: Receipt) -> dict[str, Any]:
    """Write a receipt with its instants as text."""
    return {name: iso(value) for name, value in asdict(receipt).items()}
