"""Alarm: say out loud that an event became a dead letter, or that evidence of a failure is missing, when it happens.

One structured log line at level error and, when Sentry is set up in this process, one Sentry event, both with what a
person needs to start: which event, of what type, from where, for whom, what went wrong, after how many attempts.
"""

import sys
from typing import Any

from redrive.event import Settlement
from redrive.logs import alarms
from redrive.mask import DEFAULT, Mask
from redrive.store.base import ATTEMPTS, HEADERS, ID, LOST_COUNT, PAYLOAD, SOURCE, TARGET, TYPE, Row


def dead_lettered(row: Row, settlement: Settlement, handler_name: str, mask: Mask = DEFAULT) -> None:
    """Report a transition to ``failed``, after it has been committed; what is secret in the event is hidden."""
    error = hidden(row, settlement.last_error, mask)
    facts: dict[str, Any] = {
        "event_id": str(row[ID]),
        "event_type": row[TYPE],
        "source": row[SOURCE],
        "target": row[TARGET],
        "handler_name": handler_name,
        "error_class": settlement.error_class,
        "error_type": settlement.error_type,
        "last_error": error.partition("\n")[0],
        "attempts": row[ATTEMPTS],
        "lost_count": row[LOST_COUNT],
    }
    sentry = _sentry()
    alarms.error("event dead-lettered", **facts)
    if sentry is not None:
        _tell(sentry, facts, settlement, error)


def hidden(row: Row, text: str, mask: Mask) -> str:
    """Hide in a text about an event what is secret in that event."""
    return mask.about(text, row[PAYLOAD], row[HEADERS])


def hook_failed(row: Row, hook: str, what: str, error: Exception, mask: Mask) -> None:
    """Report that a hook, or a part of it, could not write what it should: evidence is missing."""
    facts: dict[str, Any] = {
        "event_id": str(row[ID]),
        "event_type": row[TYPE],
        "target": row[TARGET],
        "attempts": row[ATTEMPTS],
        "hook": hook,
        "what": what,
        "error": hidden(row, repr(error), mask)[:500],
    }
    sentry = _sentry()
    alarms.error("evidence not written", **facts)
    if sentry is not None:
        with sentry.new_scope() as scope:
            scope.fingerprint = ["redrive", "evidence", facts["target"], hook]
            scope.set_context("redrive", facts)
            sentry.capture_message(f"{hook} of {facts['target']} failed: {facts['error']}", level="error")


def _sentry() -> Any:
    """Find Sentry, if it is active here, and keep it from making a second event of the log line."""
    # Not imported but looked up: Sentry is set up by the application or not at all.
    sentry = sys.modules.get("sentry_sdk")
    if sentry is None or not sentry.get_client().is_active():
        return None
    if (integration := sys.modules.get("sentry_sdk.integrations.logging")) is not None:
        integration.ignore_logger(alarms.name)
    return sentry


def _tell(sentry: Any, facts: dict[str, Any], settlement: Settlement, error: str) -> None:
    with sentry.new_scope() as scope:
        scope.set_level("error")
        scope.fingerprint = ["redrive", facts["target"], settlement.fingerprint or settlement.error_class]
        for name in ("event_type", "target", "error_class"):
            scope.set_tag(f"redrive.{name}", facts[name])
        scope.set_context("redrive", {**facts, "last_error": error})
        sentry.capture_message(f"{facts['target']} dead-lettered: {facts['last_error']}", level="error")
