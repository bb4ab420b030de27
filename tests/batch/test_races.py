"""PostgreSQL: what two transactions do at the same moment, step by step. Each notice comes once, and none is lost.

`set constraints all immediate` is the first half of a commit: the look at the batch happens, and its locks are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from redrive import Batch, BatchClosed, Redrive
from redrive.store.base import ID, TYPE, Row
from tests.batch.helpers import Depot, depot_on, notices
from tests.stores.helpers import Hands, uuid_of
from tests.waiting import until

pytestmark = pytest.mark.promise("notices")

LOOK = "set constraints all immediate"


@pytest.fixture
async def depot(postgres_url: str) -> AsyncIterator[Depot]:
    async with depot_on(postgres_url) as made:
        yield made


@asynccontextmanager
async def somebody(app: Redrive) -> AsyncIterator[Any]:
    """A connection in a transaction, committed at the end of the block unless it was before."""
    connection = await asyncpg.connect(app.url)
    try:
        await connection.execute("begin")
        yield connection
        await connection.execute("commit")
    finally:
        await connection.close()


async def waits(app: Redrive, act: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begin something that has to wait for a lock, and come back when it does."""
    task = asyncio.ensure_future(act)

    async def waiting() -> bool:
        async with app.store.transaction() as tx:
            ((number,),) = await tx.fetch(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            )
        return bool(number) or task.done()

    await until(waiting)
    assert not task.done(), "it did not have to wait"
    return task


async def in_flight(depot: Depot, number: int, *, close: bool = True) -> tuple[Batch, list[Row]]:
    """Open a batch whose members are all in flight, oldest first."""
    batch = await depot.app.batches.open("import")
    await batch.add_many([("parcel", {}) for _ in range(number)])
    if close:
        await batch.close()
    hands = await Hands.begin(depot.app)
    rows = [row for row in await hands.claim(100) if row[TYPE] == "parcel"]
    await hands.claims.close()
    assert len(rows) == number
    return batch, sorted(rows, key=lambda row: uuid_of(row).bytes)


async def deliver(connection: Any, row: Row) -> None:
    sql = "update redrive.outbox set status = 'delivered', ended_at = clock_timestamp() where id = $1"
    await connection.execute(sql, row[ID])


@pytest.mark.req("E8")
async def test_of_two_who_end_the_last_members_the_second_waits_and_tells(depot: Depot) -> None:
    batch, (one, two) = await in_flight(depot, 2)
    async with somebody(depot.app) as ann, somebody(depot.app) as bob:
        await deliver(bob, two)  # so that it is no witness for Ann
        await deliver(ann, one)
        await ann.execute(LOOK)
        looking = await waits(depot.app, bob.execute(LOOK))
        await ann.execute("commit")
        assert await notices(depot.app, batch) == []
        await looking
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_who_leaves_without_looking_holds_a_member_that_cannot_end_before(depot: Depot) -> None:
    batch, (one, two) = await in_flight(depot, 2)
    async with somebody(depot.app) as ann, somebody(depot.app) as bob:
        await deliver(ann, one)
        await ann.execute(LOOK)
        ending = await waits(depot.app, deliver(bob, two))
        await ann.execute("commit")
        await ending
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_no_pending_member_is_locked_so_claims_pass_over_none(depot: Depot) -> None:
    batch, (one,) = await in_flight(depot, 1, close=False)
    await batch.add("parcel", {})
    await batch.close()
    async with somebody(depot.app) as ann:
        await deliver(ann, one)
        await ann.execute(LOOK)
        hands = await Hands.begin(depot.app)
        (other,) = await hands.claim(10)
        await hands.claims.close()
    assert uuid_of(other) != uuid_of(one)


@pytest.mark.req("E8")
async def test_who_closes_waits_for_whoever_ended_a_member_of_the_open_batch(depot: Depot) -> None:
    batch, (one,) = await in_flight(depot, 1, close=False)
    async with somebody(depot.app) as ann:
        await deliver(ann, one)
        await ann.execute(LOOK)
        closing = await waits(depot.app, batch.close())
        await ann.execute("commit")
        assert await closing
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_who_ends_a_member_waits_for_whoever_is_closing_and_tells(depot: Depot) -> None:
    batch, (one,) = await in_flight(depot, 1, close=False)
    async with somebody(depot.app) as ann, somebody(depot.app) as bob:
        await bob.execute("select redrive.batch_close($1)", batch.id)
        await deliver(ann, one)
        await bob.execute(LOOK)
        looking = await waits(depot.app, ann.execute(LOOK))
        await bob.execute("commit")
        await looking
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_who_closes_waits_for_whoever_adds_and_counts_it(depot: Depot) -> None:
    batch = await depot.app.batches.open("import")
    async with somebody(depot.app) as ann:
        await depot.app.publish_in(ann, "parcel", {}, batch=batch)
        closing = await waits(depot.app, batch.close())
        await ann.execute("commit")
        await closing
    assert await notices(depot.app, batch) == []
    await depot.drain()
    assert [each.total for each in depot.told] == [1, 1]


@pytest.mark.req("E8")
async def test_who_adds_waits_for_whoever_is_closing_and_is_refused(depot: Depot) -> None:
    batch = await depot.app.batches.open("import")
    async with somebody(depot.app) as ann:
        await ann.execute("select redrive.batch_close($1)", batch.id)
        await ann.execute(LOOK)
        adding = await waits(depot.app, batch.add("parcel", {}))
        await ann.execute("commit")
        with pytest.raises(BatchClosed):
            await adding
    assert (await batch.look()).total == 0
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_a_long_transaction_that_has_closed_a_batch_keeps_no_worker_waiting(depot: Depot) -> None:
    batch, (one, two) = await in_flight(depot, 2, close=False)
    async with somebody(depot.app) as ann:
        await ann.execute("select redrive.batch_close($1)", batch.id)
        async with somebody(depot.app) as bob:
            await bob.execute("set lock_timeout = '2s'")
            await deliver(bob, one)
            await deliver(bob, two)
        assert await notices(depot.app, batch) == []
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_what_a_savepoint_takes_back_is_not_looked_at_and_what_follows_is(depot: Depot) -> None:
    batch, (one, two) = await in_flight(depot, 2)
    async with somebody(depot.app) as ann:
        await ann.execute("savepoint a")
        await deliver(ann, one)
        await ann.execute("rollback to a")
        await deliver(ann, two)
        await ann.execute(LOOK)
        await deliver(ann, one)
    assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_two_who_end_members_of_the_same_batches_in_opposite_order_do_not_wait_for_each_other(
    depot: Depot,
) -> None:
    made = [await in_flight(depot, 2) for _ in range(2)]
    async with somebody(depot.app) as ann, somebody(depot.app) as bob:
        for number, order in ((0, made), (1, made[::-1])):
            for _, rows in order:
                await deliver((ann, bob)[number], rows[number])
        await ann.execute(LOOK)
        looking = await waits(depot.app, bob.execute(LOOK))
        await ann.execute("commit")
        await looking
    for batch, _ in made:
        assert await notices(depot.app, batch) == ["first", "final"]


@pytest.mark.req("E8")
async def test_many_who_end_members_at_once_tell_once(depot: Depot) -> None:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(asyncpg.create_pool(depot.app.url, min_size=8, max_size=8))
        made: list[UUID] = []
        for _ in range(25):
            batch, rows = await in_flight(depot, 24)
            made.append(batch.id)
            await asyncio.gather(*(_end(pool, rows[n::8]) for n in range(8)))
            assert await notices(depot.app, batch) == ["first", "final"]
        assert len(set(made)) == 25


async def _end(pool: Any, rows: list[Row]) -> None:
    async with pool.acquire() as connection:
        for row in rows:
            await deliver(connection, row)
