"""Execution: carry a decision out in the background, and say what happened when that fails.

Three attempts from 25 ms, and only here. After each attempt but the last the evidence says when the next one comes.
After the last one the receipt goes back to people, in the transaction that makes the execution a dead letter.
Evidence is best effort: what could not be written is an error that is logged, counted and alerted, and stops nothing.
"""

from collections.abc import Callable
from typing import Any

from redrive import Context, DeadLetter, Redrive, Retry, Settling
from redrive.apps.adjudication.records import Records
from redrive.apps.adjudication.words import Instruction, Order


class Execution:
    """The handler of ``adjudication.execute`` and its hooks."""

    def __init__(self, app: Redrive, records: Records, dispatch: Callable[..., Any] | None) -> None:
        self._app = app
        self._records = records
        self._dispatch = dispatch

    async def execute(self, order: Order, ctx: Context) -> None:
        """Have the money moved outside, if that is asked for, then book it; the booking happens once."""
        reference = order.dispatch_reference
        if self._dispatch is not None:
            async with self._app.transaction() as tx:
                receipt = await self._records.receipt(tx, order.transaction_receipt_id)
            if receipt is None or receipt.is_executed:
                return
            reference = await ctx.step("dispatch", self._dispatch, Instruction.of(order, receipt)) or reference
        async with ctx.transaction() as tx:
            await self._records.executed(tx, order, reference)

    async def on_retry(self, retry: Retry, tx: Settling) -> None:
        """Leave evidence of a scheduled retry."""
        async with tx.best_effort("evidence of a scheduled retry"):
            await self._records.note_retry(tx, Order.model_validate(retry.payload), retry)

    async def on_dead_letter(self, letter: DeadLetter, tx: Settling) -> None:
        """Hand the receipt back to people, and leave evidence of why."""
        order = Order.model_validate(letter.payload)
        await self._records.re_escalated(tx, order)
        async with tx.best_effort("evidence of a dead letter"):
            await self._records.note_dead_letter(tx, order, letter)
