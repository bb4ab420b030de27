"""The engine reconciles itself: each kind of drift is made by hand, found, repaired, and seen to be healed."""

from __future__ import annotations

import sqlite3
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from redrive import Redrive, Rejected, Status, finding, selfcheck
from redrive.selfcheck import SelfCheck, look, own_checks
from redrive.store.base import Ages
from tests.reconcile.helpers import Carts
from tests.waiting import until
from tests.worker.conftest import working

CHECKS = {check.name: check for check in own_checks()}


def by_hand(url: str, sqlite: str, postgres: str | None = None, *values: Any) -> None:
    """Change the database behind the engine's back."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)
        with connection:
            connection.execute(sqlite, [str(value) if isinstance(value, UUID) else value for value in values])
        connection.close()
    else:
        with psycopg.connect(url) as there:
            text = postgres or sqlite.replace("redrive_", "redrive.").replace("?", "%s")
            there.execute(text, values)


async def check(app: Redrive, name: str) -> int:
    return await look(app.store, CHECKS[name], by="test")


async def healed(app: Redrive, name: str) -> bool:
    """Say whether the next look finds nothing any more, and has healed what it had found."""
    again = await check(app, name)
    return again == 0 and {each.state for each in await finding.findings(app.store, name=name, state=None)} == {
        "healed"
    }


async def test_a_healthy_engine_has_no_findings_and_writes_one_row(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        if payload == 3:
            raise Rejected("no")

    for n in range(5):
        await app.publish("order.paid", n, ordering_key="k" if n < 2 else None)
    await app.worker().drain()

    tick = await SelfCheck(app._ready, after=0.0).act("test")
    assert tick.moved is False
    assert [each.name for each in await app.reconcilers.standing()] == [selfcheck.ENGINE]
    assert await app.reconcilers.runs() == []


async def test_one_worker_looks_at_a_time(app: Redrive) -> None:
    looked = []

    async def find(_: Any) -> list[Any]:
        looked.append(1)
        return []

    checks = [selfcheck.Check("redrive:test", find, CHECKS["redrive:groups"].repair)]
    first, second = (SelfCheck(app._ready, checks, after=0.0) for _ in range(2))

    ticks = [await first.act("a"), await second.act("b"), await first.act("a")]

    assert [tick.moved for tick in ticks] == [False] * 3
    assert looked == [1]
    (row,) = await app.reconcilers.standing()
    assert row.looked_at is not None


@pytest.mark.req("W7")
@pytest.mark.parametrize("session", [uuid4(), None])
async def test_an_event_whose_session_nobody_knows_is_taken_back(
    app: Redrive, store_url: str, session: UUID | None
) -> None:
    ran = []

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        ran.append(payload)

    published = await app.publish("order.paid", 7)
    lost = "update redrive_outbox set status = 'in_flight', session_id = ?, fence = 1, attempts = 1 where id = ?"
    by_hand(store_url, lost, None, session, published.id)
    await app.worker().drain()
    assert ran == []

    assert await check(app, "redrive:leases") == 1

    (found,) = await app.reconcilers.findings("redrive:leases")
    assert (found.key, found.kind, found.converged_at is not None) == (str(published.id), "different", True)
    await app.worker().drain()
    assert ran == [7]
    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count) == (Status.DELIVERED, 1)
    assert await healed(app, "redrive:leases")


@pytest.mark.req("W7")
async def test_a_plan_whose_planner_is_gone_is_aborted(app: Redrive, store_url: str) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        raise Rejected("no")

    await app.publish("order.paid", 7)
    await app.worker().drain()
    plan = await app.plan("type:order.paid", by="ada", unsafe=True)
    by_hand(
        store_url, "update redrive_redrive set state = 'planning', planned_at = planned_at - 7200000000",
        "update redrive.redrive set state = 'planning', planned_at = planned_at - interval '2 hours'",
    )  # fmt: skip

    assert await check(app, "redrive:redrives") == 1

    redriving = await app.redriving(plan.redrive.id)
    assert (redriving.state, redriving.stopped_by) == ("aborted", "test")
    assert await healed(app, "redrive:redrives")


@pytest.mark.req("W7")
async def test_a_redrive_that_nobody_carries_on_is_carried_on(app: Redrive, store_url: str) -> None:
    mended = False

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        if not mended:
            raise Rejected("no")

    published = await app.publish("order.paid", 7)
    await app.worker().drain()
    plan = await app.plan("type:order.paid", by="ada", unsafe=True)
    await app.start(plan.redrive.token, by="ada", reason="mended")
    by_hand(
        store_url, "update redrive_redrive set started_at = started_at - 7200000000",
        "update redrive.redrive set started_at = started_at - interval '2 hours'",
    )  # fmt: skip

    assert await check(app, "redrive:redrives") == 1

    event = await app.event(published.id)
    assert event is not None
    assert event.status is Status.PENDING
    assert await healed(app, "redrive:redrives")


@pytest.mark.req("W7")
@pytest.mark.parametrize(
    "drift", ["update redrive_failure_group set dead_count = 9", "delete from redrive_failure_group"]
)
async def test_counters_of_groups_are_counted_anew(app: Redrive, store_url: str, drift: str) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        raise Rejected("no")

    await app.publish_many([("order.paid", n) for n in range(3)])
    await app.worker().drain()
    by_hand(store_url, drift)

    assert await check(app, "redrive:groups") == 1

    assert [each.dead_count for each in await app.groups()] == [3]
    (found,) = await app.reconcilers.findings("redrive:groups")
    assert (found.desired, found.actual) == (3, 9 if "update" in drift else None)
    assert await healed(app, "redrive:groups")


@pytest.mark.req("W7")
async def test_events_that_wait_for_a_dependency_that_is_back_come_back(app: Redrive, store_url: str) -> None:
    published = await app.publish("order.paid", 7)
    by_hand(
        store_url, "update redrive_outbox set status = 'blocked', blocked_on = 'carrier-api' where id = ?", None,
        published.id,
    )  # fmt: skip

    assert await check(app, "redrive:blocked") == 1

    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.blocked_on) == (Status.PENDING, None)
    assert await healed(app, "redrive:blocked")


async def test_events_that_wait_for_a_dependency_that_is_down_go_on_waiting(app: Redrive, store_url: str) -> None:
    published = await app.publish("order.paid", 7)
    by_hand(
        store_url, "update redrive_outbox set status = 'blocked', blocked_on = 'carrier-api' where id = ?", None,
        published.id,
    )  # fmt: skip
    await app.open_dependency("carrier-api", by="ada", reason="down")

    assert await check(app, "redrive:blocked") == 0


@pytest.mark.req("W7")
async def test_an_event_that_waits_for_nothing_is_let_go(app: Redrive, store_url: str) -> None:
    published = await app.publish("order.paid", 7)
    by_hand(store_url, "update redrive_outbox set status = 'blocked' where id = ?", None, published.id)

    assert await check(app, "redrive:stranded") == 1

    event = await app.event(published.id)
    assert event is not None
    assert event.status is Status.PENDING
    assert await healed(app, "redrive:stranded")


@pytest.mark.req("W7")
async def test_a_key_without_a_head_moves_again(app: Redrive, store_url: str) -> None:
    first = await app.publish("order.paid", 1, ordering_key="k")
    second = await app.publish("order.paid", 2, ordering_key="k")
    by_hand(store_url, "update redrive_outbox set status = 'blocked' where id = ?", None, second.id)
    by_hand(store_url, "delete from redrive_outbox where id = ?", None, first.id)

    assert await check(app, "redrive:keys") == 1

    event = await app.event(second.id)
    assert event is not None
    assert event.status is Status.PENDING
    assert await healed(app, "redrive:keys")


async def test_a_run_whose_process_is_gone_has_failed(app: Redrive, store_url: str) -> None:
    Carts({"a": 1}).add_to(app)
    asked = await app.reconcilers.run("carts")
    await finding.begin(app.store, asked.id, "carts", by="ada", event_id=asked.id)
    assert await check(app, "redrive:runs") == 0  # its event may still be run
    await app.cancel(asked.id, by="ada", reason="not now")

    assert await check(app, "redrive:runs") == 1

    run = await app.reconcilers.get_run(asked.id)
    assert (run.state, run.error) == ("failed", "its process is gone")
    assert await healed(app, "redrive:runs")


async def test_a_worker_looks_by_itself(app: Redrive, store_url: str) -> None:
    published = await app.publish("order.paid", 7)
    by_hand(store_url, "update redrive_outbox set status = 'blocked' where id = ?", None, published.id)

    async def is_found() -> bool:
        return bool(await app.reconcilers.findings("redrive:stranded", state=None))

    async with working(app):
        await until(is_found)


async def test_a_repair_that_fails_is_seen_on_its_run(app: Redrive, store_url: str) -> None:
    async def no(*_: Any) -> None:
        raise RuntimeError("cannot")

    published = await app.publish("order.paid", 7)
    by_hand(store_url, "update redrive_outbox set status = 'blocked' where id = ?", None, published.id)
    broken = selfcheck.Check("redrive:stranded", CHECKS["redrive:stranded"].find, no)

    with pytest.raises(RuntimeError):
        await look(app.store, broken, by="test")

    (run,) = await app.reconcilers.runs("redrive:stranded")
    assert (run.state, run.error) == ("failed", "RuntimeError: cannot")


async def test_runs_and_healed_findings_are_forgotten_with_old_events(app: Redrive) -> None:
    carts = Carts({"a": 1, "b": 1}, {}).add_to(app)
    await app.reconcilers.run_here("carts")
    carts.desired = {"b": 1}
    await app.reconcilers.run_here("carts")

    gone = await app.store.purge(Ages(ended=0.0), by="ada", limit=100)

    assert (gone.runs, gone.findings) == (2, 1)
    assert [each.key for each in await app.reconcilers.findings(state=None)] == ["b"]
    assert await app.reconcilers.runs() == []
