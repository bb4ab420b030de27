"""Many workers on one batch, and workers that are killed: one first notice, one final notice, and both right."""

from __future__ import annotations

import random
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from redrive import Batch, Redrive, Status
from redrive.testing import Harness
from tests import warm
from tests.batch.crashing import POINTS
from tests.batch.helpers import depot_on, equip, notices
from tests.waiting import until
from tests.worker.conftest import working

ROOT = Path(__file__).parents[2]
KILLED = -9


async def sound(app: Redrive, batch: Batch) -> None:
    """Prove that a finished batch was told of once, and that what was said is what there is."""
    look = await batch.look()
    assert await notices(app, batch) == ["first", "final"]
    assert look.batch.final is not None
    assert (look.batch.state, look.live) == ("done", 0)
    said = look.batch.final
    assert (said.total, said.delivered, said.failed, said.recovered) == (
        look.total, look.counts[Status.DELIVERED], look.counts[Status.FAILED], look.recovered,
    )  # fmt: skip


@pytest.mark.req("E8")
async def test_workers_that_end_the_last_members_together_tell_once(store_url: str) -> None:
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(depot_on(store_url)) for _ in range(4)]
        first = apps[0].app
        for each in apps:
            await stack.enter_async_context(working(each.app, concurrency=3))
        made = []
        for number in range(20):
            batch = await first.batches.open(f"round {number}")
            kinds: list[dict[str, Any]] = [{}, {"fails": 1}, {"inside": True}, {"refused": True}]
            await batch.add_many([("parcel", kind) for kind in kinds for _ in range(3)])
            await batch.close()
            made.append(batch)

        async def over() -> bool:
            return all(each.state == "done" for each in await first.batches.ls())

        await until(over)
        for batch in made:
            await sound(first, batch)
        await until(lambda: sum(len(each.told) for each in apps) == 40)


@pytest.mark.req("E8")
async def test_small_batches_side_by_side_meet_no_deadlock(postgres_url: str) -> None:
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(depot_on(postgres_url)) for _ in range(3)]
        app = apps[0].app
        made = [await app.batches.open(f"small {n}") for n in range(60)]
        for _ in range(4):
            order = random.Random(4).sample(made, len(made))
            await app.publish_many([("parcel", {}, {"batch": each}) for each in order])
        for each in made:
            await each.close()
        for depot in apps:
            await stack.enter_async_context(working(depot.app, concurrency=40))

        async def over() -> bool:
            return all(each.state == "done" for each in await app.batches.ls(limit=100))

        await until(over)
        for each in made:
            await sound(app, each)
        connection = await asyncpg.connect(postgres_url)
        assert await connection.fetchval(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ) == 0  # fmt: skip
        await connection.close()


@pytest.mark.req("E8")
async def test_a_held_snapshot_keeps_no_notice_back(postgres_url: str) -> None:
    async with depot_on(postgres_url) as depot:
        holder = await asyncpg.connect(postgres_url)
        holding = holder.transaction(isolation="repeatable_read")
        await holding.start()
        await holder.fetch("select 1")
        async with await depot.app.batches.open("import") as batch:
            await batch.add_many([("parcel", {}) for _ in range(2_000)])
        await depot.drain()
        await sound(depot.app, batch)
        await holding.rollback()
        await holder.close()


def process(url: str, point: str) -> subprocess.Popen[bytes]:
    return warm.python(["-m", "tests.batch.crashing", url, point], cwd=ROOT)


@pytest.mark.req("E8")
async def test_processes_that_are_killed_tell_once(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        equip(app)
        async with await app.batches.open("import") as batch:
            kinds: list[dict[str, Any]] = [{}, {"fails": 1}, {"inside": True}]
            await batch.add_many([("parcel", kind) for kind in kinds for _ in range(12)])
        for point in POINTS:
            killed = process(store_url, point)
            try:
                await until(lambda killed=killed: killed.poll() is not None)  # type: ignore[misc]
            finally:
                killed.kill()
                killed.wait()
            assert killed.returncode == KILLED, point
        await finish(store_url, app, batch, others=1)


@pytest.mark.req("E8")
async def test_processes_that_are_killed_at_random_tell_once(store_url: str) -> None:
    dice = random.Random(7)
    async with Redrive(store_url, migrate=True) as app:
        equip(app)
        async with await app.batches.open("import") as batch:
            kinds: list[dict[str, Any]] = [{}, {"fails": 1}, {"inside": True}]
            await batch.add_many([("parcel", kind, {"delay": dice.random()}) for kind in kinds for _ in range(40)])
        for _ in range(4):
            running = [process(store_url, "none") for _ in range(2)]
            ended = (await batch.look()).total - (await batch.look()).live
            some = min(ended + dice.randrange(5, 30), 119)

            async def gone(some: int = some) -> bool:
                look = await batch.look()
                return look.total - look.live >= some

            try:
                await until(gone)
            finally:
                for each in running:
                    each.kill()
                    each.wait()
        await finish(store_url, app, batch, others=2)


async def finish(url: str, app: Redrive, batch: Batch, others: int) -> None:
    """Let others work until the batch is over."""
    running = [process(url, "none") for _ in range(others)]
    try:

        async def over() -> bool:
            return (await batch.look()).batch.final_at is not None

        await until(over)
    finally:
        for each in running:
            each.kill()
            each.wait()
    await sound(app, batch)


@pytest.mark.req("E8")
async def test_a_batch_can_be_tested_with_the_harness(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    depot = equip(app)
    async with Harness(app) as harness:
        batch = await app.batches.open("import", deadline="1h")
        await batch.add("parcel", {})
        await batch.close()
        await harness.run_due()
    assert depot.kinds() == ["first", "final"]
