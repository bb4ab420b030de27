"""What Prometheus is told of batches, routes, reconcilers, schedules, and of what needs a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Redrive, TerminalHandlerError
from redrive.attention import SOURCES
from redrive.operate.watched import Endings
from redrive.transport.nats import Nats
from tests.signals.test_metrics import of, told


async def moved_back(app: Redrive, table: str, column: str) -> None:
    """Let an instant lie ten minutes further back."""
    sqlite = app.store.name == "sqlite"
    ago = "- 600000000" if sqlite else "- interval '10 minutes'"
    async with app.store.transaction() as tx:
        await tx.execute(f"update {'redrive_' if sqlite else 'redrive.'}{table} set {column} = {column} {ago}")


# --- batches ---


@pytest.mark.req("E8", "W10")
async def test_batches_are_told_by_where_they_stand_and_how_long_they_took(app: Redrive) -> None:
    @app.handler("row.done")
    async def handle(row: int) -> None: ...

    async with await app.batches.open("ended before anybody asked") as batch:
        await batch.add("row.done", 0)
    await app.worker().drain()
    first = await told(app)
    await app.batches.open("open")
    async with await app.batches.open("running", deadline="5m") as batch:
        await batch.add("row.done", 1)
    before = await told(app)
    await app.worker().drain()
    after, again = await told(app), await told(app)

    assert first[of("redrive_batch_seconds_count")] == 0
    assert before[of("redrive_batches", state="open")] == 1
    assert before[of("redrive_batches", state="running")] == 1
    assert after[of("redrive_batches", state="running")] == 0
    assert after[of("redrive_batches", state="open")] == 1
    assert after[of("redrive_batch_seconds_count")] == again[of("redrive_batch_seconds_count")] == 1
    assert after[of("redrive_batches_overdue")] == 0


async def test_a_batch_whose_deadline_nobody_heeds_is_overdue(app: Redrive) -> None:
    async with await app.batches.open("late", deadline="5m") as batch:
        await batch.add("row.done", 1)
    before = await told(app)
    await moved_back(app, "batch", "deadline_at")

    assert before[of("redrive_batches_overdue")] == 0
    assert (await told(app))[of("redrive_batches_overdue")] == 1


def ending(id_: str, ended: datetime | None, first: datetime | None = None) -> dict[str, Any]:
    return {"id": id_, "closed_at": first, "first_at": first, "final_at": ended}


def test_an_ending_is_counted_once_whenever_it_comes_into_sight() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    endings = Endings()

    endings.take([ending("a", None), ending("b", now)], now)
    assert endings.unfinished == {"a"}
    assert endings.times.count == 0  # b had ended before anybody looked

    later = now + timedelta(seconds=60)
    endings.take([ending("a", later, now), ending("b", now), ending("c", later, later)], later)
    assert (endings.times.count, endings.times.total) == (2, 60)

    for seconds in (5, 290, 600, 6_000):  # long after, a and b are forgotten, and seen to be old
        later = now + timedelta(seconds=60 + seconds)
        endings.take([ending("a", now + timedelta(seconds=60), now), ending("b", now)], later)
    assert endings.times.count == 2


# --- brokers ---


@pytest.mark.req("W10")
async def test_a_route_says_how_much_it_has_not_sent_and_since_when(app: Redrive) -> None:
    app.relay("order.paid", to=Nats("nats://127.0.0.1:9", name="far").subject("orders.paid"))
    app.relay("order.sent", to=Nats("nats://127.0.0.1:9", name="farther").subject("orders.sent"), queue="slow")
    route = "far:orders.paid"
    await app.worker().drain()  # makes the brokers known
    nothing = await told(app)
    await app.publish_many([("order.paid", n) for n in range(3)] + [("order.sent", 1), ("order.kept", 1)])
    waiting = await told(app)
    for broker in ("far", "farther"):
        await app.open_dependency(broker, by="ada", reason="a test")
    await app.worker().drain()
    blocked = await told(app)

    assert nothing[of("redrive_relay_unsent", route=route)] == 0
    assert nothing[of("redrive_relay_oldest_unsent_seconds", route=route)] == 0
    for found in (waiting, blocked):
        assert found[of("redrive_relay_unsent", route=route)] == 3
        assert found[of("redrive_relay_unsent", route="farther:orders.sent")] == 1
        assert 0 < found[of("redrive_relay_oldest_unsent_seconds", route=route)] < 60
    assert blocked[of("redrive_events", status="blocked")] == 4
    assert blocked[of("redrive_relay_sent_total", route=route)] == 0


# --- reconcilers ---


@pytest.mark.req("W7", "W10")
async def test_findings_are_told_by_kind_and_runs_by_how_they_ended(app: Redrive) -> None:
    broken = False

    def desired() -> dict[str, int]:
        if broken:
            raise ConnectionError("the ledger does not answer")
        return {"a": 1, "b": 2, "c": 3}

    async def converge(key: str, desired: Any, actual: Any) -> None: ...

    app.reconcilers.add("ledger", desired=desired, actual=lambda: {"a": 1, "b": 7, "d": 4}, converge=converge)
    run = await app.reconcilers.run_here("ledger")
    await app.reconcilers.ignore((await app.reconcilers.findings("ledger"))[0].id, by="ada", reason="it may stay")
    well = await told(app)
    broken = True
    with pytest.raises(ConnectionError):
        await app.reconcilers.run_here("ledger")
    failing = await told(app)

    assert (run.missing, run.extra, run.different) == (1, 1, 1)
    standing = {labels: n for (name, labels), n in well.items() if name == "redrive_findings"}
    assert sum(standing.values()) == 3
    assert {dict(labels)["kind"] for labels in standing} == {"missing", "extra", "different"}
    assert sorted(dict(labels)["state"] for labels in standing) == ["ignored", "open", "open"]
    assert well[of("redrive_reconciler_failing", reconciler="ledger")] == 0
    assert 0 <= well[of("redrive_reconciler_last_run_seconds", reconciler="ledger")] < 60
    assert failing[of("redrive_reconciler_failing", reconciler="ledger")] == 1
    for outcome in ("done", "failed"):
        assert failing[of("redrive_reconcile_runs_total", reconciler="ledger", outcome=outcome)] == 1


# --- schedules, and people ---


async def test_a_schedule_that_nobody_publishes_is_late(app: Redrive) -> None:
    app.schedules.add("hourly", "report.due", every="1h")
    await app.worker().drain()
    on_time = await told(app)
    for _ in range(6):  # an hour: whatever the time is, it should have come by now
        await moved_back(app, "schedule", "next_at")
    late = await told(app)

    assert on_time[of("redrive_schedules_late")] == 0
    assert on_time[of("redrive_schedule_late_seconds")] == 0
    assert late[of("redrive_schedules_late")] == 1
    assert 0 < late[of("redrive_schedule_late_seconds")] <= 4_200


@pytest.mark.req("W10")
async def test_what_needs_a_person_is_told_by_kind(app: Redrive) -> None:
    @app.handler("order.bad")
    async def refuse(order: int) -> None:
        raise TerminalHandlerError("never")

    before = await told(app)
    await app.publish("order.bad", 1)
    await app.worker().drain()
    after = [await told(app) for _ in SOURCES][-1]  # each look asks for one kind

    assert {value for (name, _), value in before.items() if name == "redrive_attention"} == {0}
    assert after[of("redrive_attention", kind="dead-letters", urgency="soon")] == 1
    assert sum(value for (name, _), value in after.items() if name == "redrive_attention") == 1
