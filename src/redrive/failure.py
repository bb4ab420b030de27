"""Failure: what becomes of an event whose attempt failed.

The classifier and the policy have the first word (``settle``). Then the fault is looked for elsewhere: a dependency
that is down, our own database, a target of which nearly everything fails. What is not the event's own fault spends no
attempt: it is blocked or deferred. And what would be tried again after its deadline is a dead letter now.

Next: the worker's next turn writes it down, or ``hook`` when somebody has a part in it.
"""

from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from redrive.circuit import Circuits
from redrive.classify import DEFAULT_RULES, leaves
from redrive.clock import Clock
from redrive.counts import Counts, Tally
from redrive.deliver import Handler
from redrive.dependency import FREE_ROUNDS, round_seconds
from redrive.errors import DeadlinePassed, StoreUnavailable
from redrive.event import Settlement, Status
from redrive.hands import Hands
from redrive.hook import Hooks
from redrive.policy import RetryPolicy
from redrive.settle import blocked, deferred, settlement_for, settlement_for_lost
from redrive.store.base import ID, ORDERING_KEY, TARGET, Row, Store


class Failures:
    """Decides for one worker."""

    def __init__(
        self, store: Store, clock: Clock, hands: Hands, circuits: Circuits, hooks: Hooks,
        handlers: Mapping[str, Handler], retry: RetryPolicy, tally: Tally, counts: Counts,
    ) -> None:  # fmt: skip
        self._store = store
        self._clock = clock
        self._hands = hands
        self._circuits = circuits
        self._hooks = hooks
        self._handlers = handlers
        self._retry = retry
        self._tally = tally
        self._counts = counts

    async def failed(self, handler: Handler | None, row: Row, error: BaseException) -> None:
        """Decide what becomes of it, unless others have it by now."""
        if not self._hands.is_ours(row):
            return
        settlement = self._settlement(handler, row, error)
        if handler is not None:
            settlement = await self._weighed(handler, row, error, settlement)
            if not self._hands.is_ours(row):
                return
        left = None if handler is None else self._hands.seconds_left(handler, row)
        if left is not None and settlement.delay_seconds is not None and settlement.delay_seconds >= left:
            late = DeadlinePassed("the deadline of the event leaves no time for another attempt")
            late.__cause__, late.safe_to_retry = error, settlement.safe_to_retry
            settlement = self._settlement(handler, row, late)
        if settlement.status is Status.FAILED:
            await self._bury(handler, row, settlement)
        elif settlement.status is Status.BLOCKED:
            self._hands.blocked(row, settlement)
        else:
            await self._put_off(handler, row, settlement)

    async def lost_too_often(self, row: Row) -> None:
        """Bury an event whose workers keep dying."""
        handler = self._handlers.get(row[TARGET])
        await self._bury(handler, row, settlement_for_lost(row, self._retry_of(handler).max_attempts))

    def _settlement(self, handler: Handler | None, row: Row, error: BaseException) -> Settlement:
        # Which policy holds now, whenever the attempt began.
        policy = self._retry_of(self._handlers.get(row[TARGET]))
        rules, home = (handler.rules, handler.home) if handler else (DEFAULT_RULES, "")
        return settlement_for(row, error, policy, rules, self._clock.random, home)

    def _retry_of(self, handler: Handler | None) -> RetryPolicy:
        return (handler.retry if handler else None) or self._retry

    # What is not the event's own fault

    async def _weighed(self, handler: Handler, row: Row, error: BaseException, settlement: Settlement) -> Settlement:
        """Look for the fault elsewhere: in a dependency or our own database, or when nearly everything fails here.

        Below the threshold of a circuit an attempt is deferred. To fail for something that is not shut is free, but not
        for ever, or an event that fails alone while others pass would go round and round.
        """
        circuits = self._circuits
        if settlement.is_terminal:
            circuits.let_go(row)
            return settlement
        name = circuits.blamed(handler, error, is_outside=settlement.is_outside)
        is_ours = name is None and any(isinstance(each, StoreUnavailable) for each in leaves(error))
        if name is None and not is_ours:
            brake = circuits.stumbled(handler, row, settlement.error_class)
            return settlement if brake is None else blocked(settlement, brake)
        was_shut, is_shut = (False, False) if name is None else circuits.failed(name, row, error)
        if name is not None and was_shut:
            return blocked(settlement, name)
        rounds = await self._free_rounds(row)
        if rounds >= FREE_ROUNDS:
            return settlement
        if name is not None and is_shut:
            return blocked(settlement, name, is_round=True)
        return deferred(settlement, round_seconds(rounds, self._clock.random))

    async def _free_rounds(self, row: Row) -> int:
        with suppress(StoreUnavailable):
            event = await self._store.event(UUID(str(row[ID])))
            return event.deferred_count if event else FREE_ROUNDS
        return 0  # nothing can be written now either; the next failure will count

    # Ends

    async def _put_off(self, handler: Handler | None, row: Row, settlement: Settlement) -> None:
        """Let it wait for another attempt: with the next turn, or in a transaction of its own with its hook."""
        self._counts.settled(row, settlement)
        self._tally.retried += settlement.spends
        self._tally.deferred += not settlement.spends
        self._hooks.report_retry(row, settlement)
        if not await self._settled_with_hooks(handler, row, settlement):
            self._hands.put_off(settlement)
        self._hands.due_in(settlement.delay_seconds or 0.0)

    async def _bury(self, handler: Handler | None, row: Row, settlement: Settlement) -> None:
        """Make it a dead letter: with the next turn, or in a transaction of its own when somebody has a part in it."""
        self._tally.dead_lettered += 1
        self._counts.settled(row, settlement)
        settlement.passed = handler is not None and handler.on_failed == "pass" and row[ORDERING_KEY] is not None
        if not await self._settled_with_hooks(handler, row, settlement):
            self._hands.bury(row, settlement)

    async def _settled_with_hooks(self, handler: Handler | None, row: Row, settlement: Settlement) -> bool:
        return self._hooks.have_part(handler, row, settlement) and await self._hooks.settle(handler, row, settlement)
