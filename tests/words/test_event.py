import json
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.event import (
    HISTORY_LIMIT,
    LIVE,
    TRAIL_KINDS,
    ErrorClass,
    Event,
    FailureCycle,
    NewEvent,
    Outcome,
    Priority,
    Status,
)

NOW = datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")

EVENT = Event(
    id=ID,
    type="order.paid",
    source="shop",
    target="ship",
    subject="order/7",
    payload={"order": 7},
    headers={"trace": "t"},
    idempotency_key="order-7",
    retry_key="receipt-7:paid",
    correlation_id="c",
    causation_id=None,
    ordering_key=None,
    queue="default",
    priority=1,
    status=Status.PENDING,
    due_at=NOW,
    attempts=0,
    lost_count=0,
    max_attempts=None,
    fence=0,
    session_id=None,
    generation=0,
    cycle=0,
    first_failed_at=None,
    last_error=None,
    error_class=None,
    error_type=None,
    safe_to_retry=None,
    fingerprint=None,
    failure_history=(),
    cancelled_by=None,
    cancel_reason=None,
    compensation=None,
    steps_from=0,
    created_at=NOW,
    ended_at=None,
    deleted_at=None,
)
INSTANTS = st.none() | st.datetimes(min_value=datetime(1990, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
COUNTS = st.integers(min_value=0, max_value=2**40)
TEXTS = st.none() | st.text(max_size=30)
CYCLES = st.builds(
    FailureCycle,
    COUNTS,
    COUNTS,
    COUNTS,
    INSTANTS,
    INSTANTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    COUNTS,
    INSTANTS,
    TEXTS,
    TEXTS,
)


@pytest.mark.req("A2")
def test_an_event_shows_retry_key_attempt_count_and_next_retry() -> None:
    fresh = EVENT
    retrying = replace(EVENT, attempts=2, due_at=NOW + timedelta(seconds=30))
    lost = replace(EVENT, lost_count=1)
    running = replace(retrying, status=Status.IN_FLIGHT)

    assert (fresh.retry_key, fresh.attempt_count, fresh.next_retry_at) == ("receipt-7:paid", 0, None)
    assert (retrying.attempt_count, retrying.next_retry_at) == (2, NOW + timedelta(seconds=30))
    assert lost.next_retry_at == NOW
    assert running.next_retry_at is None


@pytest.mark.req("W2")
def test_a_failure_names_operation_resource_class_and_safety_in_json() -> None:
    failed = replace(EVENT, status=Status.FAILED, error_class="invalid", safe_to_retry=False)

    shown = failed.to_json()

    wanted = ("operation", "resource", "error_class", "safe_to_retry")
    assert [shown[name] for name in wanted] == ["ship", "order/7", "invalid", False]


def test_a_dead_letter_is_failed_and_not_discarded() -> None:
    failed = replace(EVENT, status=Status.FAILED)

    assert failed.is_dead_letter
    assert not replace(failed, deleted_at=NOW).is_dead_letter
    assert not EVENT.is_dead_letter


@pytest.mark.req("O12")
def test_cycles_that_history_no_longer_holds_are_counted() -> None:
    kept = tuple(FailureCycle.from_json({"cycle": n}) for n in range(5, 5 + HISTORY_LIMIT))

    assert replace(EVENT, cycle=25, failure_history=kept).dropped_cycles == 5
    assert replace(EVENT, cycle=HISTORY_LIMIT, failure_history=kept).dropped_cycles == 0
    assert EVENT.dropped_cycles == 0


@pytest.mark.req("O5")
@given(CYCLES)
def test_a_failure_cycle_comes_back_from_json_as_it_went_in(cycle: FailureCycle) -> None:
    stored = json.dumps(cycle.to_json())

    assert FailureCycle.from_json(json.loads(stored)) == cycle


@pytest.mark.req("O5")
def test_a_failure_cycle_of_another_version_can_be_read() -> None:
    newer = FailureCycle.from_json({"cycle": 2, "attempts": 5, "invented_later": {"x": 1}})
    oldest = FailureCycle.from_json({})

    assert (newer.cycle, newer.attempts, newer.replayed_by) == (2, 5, None)
    assert (oldest.cycle, oldest.attempts, oldest.lost_count, oldest.generation) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "written",
    ["2030-01-01T12:30:00Z", "2030-01-01T12:30:00+00:00", "2030-01-01 14:30:00+02:00", "2030-01-01T12:30:00"],
)
def test_instants_written_by_either_database_are_read_as_utc(written: str) -> None:
    cycle = FailureCycle.from_json({"failed_at": written})

    assert cycle.failed_at == NOW
    assert cycle.failed_at.tzinfo is UTC


def test_an_instant_with_a_trimmed_fraction_is_read() -> None:
    cycle = FailureCycle.from_json({"failed_at": "2030-01-01T12:30:00.12345+00:00"})

    assert cycle.failed_at == NOW + timedelta(microseconds=123_450)


def test_an_event_as_json_is_plain_and_in_column_order() -> None:
    elsewhere = timezone(timedelta(hours=2))
    history = (FailureCycle.from_json({"cycle": 0, "failed_at": "2030-01-01T12:30:00Z"}),)
    event = replace(EVENT, session_id=ID, ended_at=NOW.astimezone(elsewhere), failure_history=history)

    shown: dict[str, Any] = json.loads(json.dumps(event.to_json()))

    columns = [f.name for f in fields(Event) if f.name != "unreadable"]  # said only where it is so
    assert list(shown)[: len(columns)] == columns
    assert replace(event, unreadable="payload is not UTF-8").to_json()["unreadable"] == "payload is not UTF-8"
    assert shown["id"] == shown["session_id"] == str(ID)
    assert shown["status"] == "pending"
    assert shown["ended_at"] == "2030-01-01T12:30:00.000000Z"
    assert shown["failure_history"][0]["failed_at"] == "2030-01-01T12:30:00.000000Z"
    assert shown["attempt_count"] == 0


def test_an_event_as_read_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EVENT.attempts = 3  # type: ignore[misc]


def test_a_new_event_goes_to_the_default_queue_at_once() -> None:
    new = NewEvent(ID, "order.paid", "shop", "ship", None, "{}", "{}", "order-7")

    assert (new.queue, new.priority, new.delay_seconds, new.due_at, new.generation) == (
        "default",
        1,
        0.0,
        None,
        0,
    )
    assert (new.retry_key, new.ordering_key) == (None, None)


@pytest.mark.req("W3")
def test_the_words_are_the_documented_ones() -> None:
    assert set(Status) == {"pending", "in_flight", "delivered", "failed", "blocked", "cancelled"}
    assert set(LIVE) == {"pending", "in_flight", "blocked"}
    assert set(Outcome) == {"delivered", "failed", "timed_out", "cancelled", "lost", "blocked", "deferred"}
    assert set(ErrorClass) == {
        "dependency_unavailable",
        "dependency_degraded",
        "invalid",
        "missing",
        "rejected",
        "broken",
        "timed_out",
        "worker_lost",
    }
    assert {"retry-scheduled", "dead-lettered", "replayed"} <= set(TRAIL_KINDS)


def test_what_is_redriven_waits_behind_live_work() -> None:
    assert Priority.REDRIVEN > Priority.LOW > Priority.NORMAL > Priority.HIGH
