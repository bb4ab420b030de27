"""Records: the app's own tables, in whatever transaction they are written.

Statements are written once, for PostgreSQL; SQLite has a prefix for the schema and another word for a parameter.
"""

import re
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from redrive import DeadLetter, Redrive, Retry, Work
from redrive.apps.adjudication.words import Decision, Dispute, Order, Progress, Receipt, Submission

_COLUMNS: Final = tuple(Receipt.__dataclass_fields__)
_RECEIPT: Final = f"select {', '.join(_COLUMNS)} from adjudication.receipt"  # noqa: S608 - constants
_TRAIL: Final = (
    "seq", "source", "kind", "event_id", "attempt", "outcome", "next_retry_at", "dispatch_reference",
    "dead_lettered_at", "reason", "recorded_at",
)  # fmt: skip


class Records:
    """What is kept about receipts."""

    def __init__(self, app: Redrive) -> None:
        self._app = app

    # Tables

    async def make_tables(self, tx: Work) -> None:
        """Make the tables where there are none. Nothing is touched where they are: an app may run with few rights."""
        if self._app.dialect == "sqlite":
            found = await tx.fetch("select 1 from sqlite_master where name = 'adjudication_receipt'")
        else:
            found = await tx.fetch("select 1 where to_regclass('adjudication.receipt') is not null")
        if not found:
            text = resources.files(__package__).joinpath(f"{self._app.dialect}.sql").read_text(encoding="utf-8")
            for statement in re.split(r";\n(?:\n|\Z)", text):
                if statement.strip():
                    await tx.execute(statement)

    def _said(self, sql: str) -> str:
        if self._app.dialect == "postgres":
            return sql
        return re.sub(r"\$(\d)", r"?\1", sql).replace("adjudication.", "adjudication_").replace(" for update", "")

    def _stored(self, instant: datetime) -> Any:
        return instant if self._app.dialect == "postgres" else iso(instant)

    def _now(self) -> Any:
        return self._stored(self._app.clock.now())

    async def _execute(self, tx: Work, sql: str, *values: Any) -> int:
        return await tx.execute(self._said(sql), *values)

    async def _fetch(self, tx: Work, sql: str, *values: Any) -> list[Any]:
        return await tx.fetch(self._said(sql), *values)

    # Receipts

    async def submit(self, tx: Work, new: Submission) -> bool:
        """Keep a receipt; false when there is one with this id."""
        return bool(
            await self._execute(
                tx,
                "insert into adjudication.receipt"
                " (transaction_receipt_id, buyer, seller, amount_minor, currency, submitted_at)"
                " values ($1, $2, $3, $4, $5, $6) on conflict (transaction_receipt_id) do nothing",
                new.transaction_receipt_id, new.buyer, new.seller, new.amount_minor, new.currency, self._now(),
            )
        )  # fmt: skip

    async def receipt(self, tx: Work, receipt_id: str, *, lock: bool = False) -> Receipt | None:
        """Read a receipt; with ``lock`` nobody else changes it before this transaction has ended."""
        end = " for update" if lock else ""
        rows = await self._fetch(tx, f"{_RECEIPT} where transaction_receipt_id = $1{end}", receipt_id)
        return Receipt(*rows[0]) if rows else None

    async def receipts(self, tx: Work, status: Progress, after: str, limit: int) -> list[Receipt]:
        """List the receipts in a status, by id."""
        rows = await self._fetch(
            tx,
            f"{_RECEIPT} where settlement_progression_status = $1 and transaction_receipt_id > $2"
            " order by transaction_receipt_id limit $3",
            status.value, after, limit,
        )  # fmt: skip
        return [Receipt(*row) for row in rows]

    async def adjudicated(self, tx: Work, receipt: Receipt, decision: Decision, share: int, event_id: str) -> None:
        """Record a decision and the execution that it set going; who decided first stays."""
        await self._execute(
            tx,
            "update adjudication.receipt set escrow_adjudication = $2, seller_minor = $3,"
            " adjudicated_by = coalesce(adjudicated_by, $4), adjudicated_at = coalesce(adjudicated_at, $5),"
            " settlement_progression_status = $6, settlement_progression_reason_code = 'adjudicated',"
            " settlement_progression_reason = 'adjudication recorded', dispute_lifecycle_status = $7,"
            " execution_event_id = $8 where transaction_receipt_id = $1",
            receipt.transaction_receipt_id, decision.outcome.value, share, decision.by, self._now(),
            Progress.EXECUTION_PENDING.value, Dispute.ADJUDICATED.value, event_id,
        )  # fmt: skip

    async def executed(self, tx: Work, order: Order, reference: str | None) -> None:
        """Book what was decided and close the dispute; once, however many executions say so."""
        changed = await self._execute(
            tx,
            "update adjudication.receipt set settlement_progression_status = $3,"
            " settlement_progression_reason_code = 'executed',"
            " settlement_progression_reason = 'post-adjudication execution completed',"
            " dispute_lifecycle_status = $4, dispatch_reference = $5, executed_at = $6"
            " where transaction_receipt_id = $1 and escrow_adjudication = $2 and settlement_progression_status <> $3",
            order.transaction_receipt_id, order.outcome.value, Progress.EXECUTED.value, Dispute.CLOSED.value,
            reference, self._now(),
        )  # fmt: skip
        if not changed:
            return
        receipt = await self.receipt(tx, order.transaction_receipt_id)
        assert receipt is not None
        to_seller = receipt.seller_minor or 0
        for party, amount in (("seller", to_seller), ("buyer", receipt.amount_minor - to_seller)):
            if amount:
                await self._execute(
                    tx,
                    "insert into adjudication.entry (transaction_receipt_id, party, amount_minor, booked_at)"
                    " values ($1, $2, $3, $4)",
                    order.transaction_receipt_id, party, amount, self._now(),
                )  # fmt: skip

    async def re_escalated(self, tx: Work, order: Order) -> None:
        """Hand a receipt back to people; the adjudication stays. One that was executed after all is left alone."""
        await self._execute(
            tx,
            "update adjudication.receipt set settlement_progression_status = $2,"
            " settlement_progression_reason_code = 'escalate',"
            " settlement_progression_reason = 'post-adjudication execution dead-lettered',"
            " dispute_lifecycle_status = $3"
            " where transaction_receipt_id = $1 and settlement_progression_status <> $4",
            order.transaction_receipt_id, Progress.DISPUTE_READY.value, Dispute.RE_ESCALATED.value,
            Progress.EXECUTED.value,
        )  # fmt: skip

    # Evidence

    async def note_retry(self, tx: Work, order: Order, retry: Retry) -> None:
        """Write down that another attempt is scheduled."""
        await self._execute(
            tx,
            "insert into adjudication.trail (transaction_receipt_id, kind, event_id, attempt, outcome, next_retry_at,"
            " dispatch_reference, recorded_at) values ($1, 'retry-scheduled', $2, $3, $4, $5, $6, $7)",
            order.transaction_receipt_id, str(retry.id), retry.attempts, order.outcome.value,
            self._stored(retry.next_retry_at), order.dispatch_reference, self._now(),
        )  # fmt: skip

    async def note_dead_letter(self, tx: Work, order: Order, letter: DeadLetter) -> None:
        """Write down that there will be no further attempt, and why."""
        await self._execute(
            tx,
            "insert into adjudication.trail (transaction_receipt_id, kind, event_id, attempt, outcome,"
            " dead_lettered_at, reason, recorded_at) values ($1, 'dead-lettered', $2, $3, $4, $5, $6, $7)",
            order.transaction_receipt_id, str(letter.id), letter.attempts, order.outcome.value,
            self._stored(letter.failed_at), letter.last_error.partition("\n")[0], self._now(),
        )  # fmt: skip

    async def trail(self, tx: Work, receipt_id: str) -> list[dict[str, Any]]:
        """Read the evidence about a receipt, in order, without what does not apply."""
        columns = ", ".join(_TRAIL)
        rows = await self._fetch(
            tx,
            f"select {columns} from adjudication.trail where transaction_receipt_id = $1 order by seq",  # noqa: S608 - constants
            receipt_id,
        )
        return [
            {name: iso(value) for name, value in zip(_TRAIL, row, strict=True) if value is not None} for row in rows
        ]

    async def entries(self, tx: Work, receipt_id: str) -> list[dict[str, Any]]:
        """Read what was booked for a receipt."""
        rows = await self._fetch(
            tx,
            "select party, amount_minor from adjudication.entry where transaction_receipt_id = $1 order by party",
            receipt_id,
        )
        return [{"party": row[0], "amount_minor": row[1]} for row in rows]


def iso(value: Any) -> Any:
    """Write an instant as ISO 8601 in UTC; everything else stays."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
