"""What reconcilers are for: roll-ups that are derived, work on a schedule, handlers under test."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Context, Redrive
from redrive.testing import Harness
from tests.reconcile.helpers import Carts


@pytest.mark.req("W7", "E2")
async def test_a_roll_up_that_has_drifted_from_its_artifacts_is_found_and_healed(app: Redrive) -> None:
    """The figures of a row are those of its artifacts; a run proves it, and mends what somebody changed by hand."""
    async with app.store.transaction() as tx:
        await tx.execute("create table evidence_row (id text primary key, attached int, failed int)")
        await tx.execute("create table artifact (row_id text, status text)")
        await tx.execute("insert into evidence_row values ('r1', 2, 0), ('r2', 1, 0), ('r3', 0, 0)")
        await tx.execute(
            "insert into artifact values ('r1', 'attached'), ('r1', 'failed'), ('r2', 'attached'), ('r3', 'failed')"
        )

    async def read(query: str) -> dict[str, Any]:
        async with app.store.transaction() as tx:
            return {row[0]: {"attached": row[1], "failed": row[2]} for row in await tx.fetch(query)}

    async def derived() -> dict[str, Any]:
        return await read(
            "select row_id, sum(case when status = 'attached' then 1 else 0 end),"
            " sum(case when status = 'failed' then 1 else 0 end) from artifact group by row_id"
        )

    async def stored() -> dict[str, Any]:
        return await read("select id, attached, failed from evidence_row")

    async def converge(key: str, desired: dict[str, int], _actual: Any, ctx: Context) -> None:
        async with ctx.transaction() as tx:  # the figures and "delivered": one commit
            attached, failed = desired["attached"], desired["failed"]
            await tx.execute(f"update evidence_row set attached = {attached}, failed = {failed} where id = '{key}'")

    app.reconcilers.add("roll-ups", desired=derived, actual=stored, converge=converge)

    drifted = await app.reconcilers.run_here("roll-ups")
    await app.worker().drain()
    proof = await app.reconcilers.run_here("roll-ups")

    assert {(each.key, each.kind) for each in drifted.found} == {("r1", "different"), ("r3", "different")}
    assert (proof.compared, proof.differences, proof.healed) == (3, 0, 2)
    assert await stored() == await derived()


async def test_a_reconciler_runs_by_itself_as_often_as_it_says(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    carts = Carts({"a": 1}).add_to(app, every="10m")

    async with Harness(app) as harness:
        await harness.advance("25m")
        runs = await app.reconcilers.runs("carts")

    assert [(run.state, run.started_by, run.missing) for run in runs][-1] == ("done", "schedule", 1)
    assert len(runs) >= 2
    assert carts.done[0] == ("a", 1, None)


async def test_a_reconciler_runs_in_a_harness(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    carts = Carts({"a": 1}).add_to(app)

    async with Harness(app) as harness:
        await app.reconcilers.run("carts")
        ran = await harness.run_due()
        (found,) = await app.reconcilers.findings()

    assert ran.delivered == 2
    assert carts.done == [("a", 1, None)]
    assert found.event_status == "delivered"


async def test_a_run_does_not_begin_while_something_it_needs_is_down(app: Redrive) -> None:
    carts = Carts({"a": 1}).add_to(app, needs=["warehouse"])
    await app.worker().drain()  # makes known what is needed
    await app.open_dependency("warehouse", by="ada", reason="maintenance")
    asked = await app.reconcilers.run("carts")

    await app.worker().drain()
    event = await app.event(asked.id)
    assert event is not None
    assert (event.status, event.blocked_on, event.attempts) == ("blocked", "warehouse", 0)

    await app.close_dependency("warehouse", by="ada", reason="back")
    await app.worker().drain()
    assert carts.done == [("a", 1, None)]
