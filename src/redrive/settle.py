"""Settle: decide how an attempt that raised is written down.

Transient failures go back to pending with a later due time while the policy allows another attempt; everything else
is a dead letter. What is not the event's own fault spends no attempt: it is blocked, or deferred. The store writes it
under the fence of the lease: when that has run out and another worker holds the event, nothing changes.

Next: ``replay`` for dead letters; the sweep for leases nobody settles.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from redrive.classify import Rule, classify, describe, fingerprint
from redrive.errors import DeadlinePassed, LeaseLost
from redrive.event import ErrorClass, Outcome, Settlement, Status
from redrive.policy import RetryPolicy
from redrive.store.base import ATTEMPTS, FENCE, ID, LOST_COUNT, TARGET, Row

ERROR_LIMIT: Final = 8_192
_OUTCOMES: Final = {ErrorClass.TIMED_OUT: Outcome.TIMED_OUT, ErrorClass.WORKER_LOST: Outcome.LOST}


def settlement_for(
    row: Row, error: BaseException, policy: RetryPolicy, rules: Sequence[Rule], dice: Callable[[], float],
    home: str = "",
) -> Settlement:  # fmt: skip
    """Turn what the handler raised into what will be stored; ``home`` is the module of the handler."""
    failure = classify(error, policy, rules)
    retry = not failure.terminal and policy.should_retry(row[ATTEMPTS]) and not isinstance(error, DeadlinePassed)
    return Settlement(
        id=row[ID],
        fence=row[FENCE],
        status=Status.PENDING if retry else Status.FAILED,
        outcome=_OUTCOMES.get(failure.error_class, Outcome.FAILED),
        delay_seconds=policy.delay_for(row[ATTEMPTS], dice) if retry else None,
        last_error=describe(error, ERROR_LIMIT),
        error_class=failure.error_class.value,
        error_type=failure.error_type,
        safe_to_retry=failure.safe_to_retry,
        fingerprint=fingerprint(error, row[TARGET], failure.error_class, home),
        max_attempts=policy.max_attempts,
        is_terminal=failure.terminal,
        is_outside=failure.is_outside,
    )


def blocked(settlement: Settlement, blocked_on: str, *, is_round: bool = False) -> Settlement:
    """Let the event wait for what it failed for, instead."""
    return replace(
        settlement, status=Status.BLOCKED, outcome=Outcome.BLOCKED, delay_seconds=None, spends=False,
        is_round=is_round, blocked_on=blocked_on,
    )  # fmt: skip


def deferred(settlement: Settlement, delay_seconds: float) -> Settlement:
    """Try again a little later without counting this attempt, instead."""
    return replace(
        settlement, status=Status.PENDING, outcome=Outcome.DEFERRED, delay_seconds=delay_seconds, spends=False,
        is_round=True,
    )  # fmt: skip


def settlement_for_blocked(row: Row, blocked_on: str) -> Settlement:
    """Let an event wait that was not even tried."""
    return Settlement(
        id=row[ID], fence=row[FENCE], status=Status.BLOCKED, outcome=Outcome.BLOCKED, delay_seconds=None, last_error="",
        error_class="", error_type="", safe_to_retry=True, fingerprint=None, max_attempts=None, spends=False,
        blocked_on=blocked_on,
    )  # fmt: skip


def settlement_for_lost(row: Row, max_attempts: int | None) -> Settlement:
    """Quarantine an event whose workers keep dying, so that it cannot take down another."""
    return Settlement(
        id=row[ID],
        fence=row[FENCE],
        status=Status.FAILED,
        outcome=Outcome.LOST,
        delay_seconds=None,
        last_error=f"the worker was lost {row[LOST_COUNT]} times while it held this event; it may be what kills it",
        error_class=ErrorClass.WORKER_LOST.value,
        error_type="",
        safe_to_retry=False,
        fingerprint=fingerprint(LeaseLost(), row[TARGET], ErrorClass.WORKER_LOST),
        max_attempts=max_attempts,
    )
