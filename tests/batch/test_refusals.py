"""What is closed stays closed: on every way in, with an error that says so, and nothing written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from redrive import BatchClosed, BatchNotFound, ConfigurationError, Context, Redrive
from tests.batch.helpers import Depot
from tests.stores.helpers import is_postgres, raw

UNKNOWN = "01a1e2c3-0000-7000-8000-000000000000"


def path(url: str) -> str:
    return url.removeprefix("sqlite:///")


async def rows(depot: Depot) -> int:
    return sum((await depot.app.store.counts()).values())


@pytest.mark.req("E8")
async def test_a_closed_or_unknown_batch_takes_nothing_on_any_way_in(depot: Depot, store_url: str) -> None:
    app = depot.app
    made = await app.batches.open("import")
    await made.close()
    await depot.drain()
    before = await rows(depot)

    for batch, error in ((made, BatchClosed), (UNKNOWN, BatchNotFound)):
        with pytest.raises(error, match="batch"):
            await app.publish("parcel", {}, batch=batch)
        with pytest.raises(error, match="batch"):
            await app.publish("parcel", {}, batch=batch, retry_key="k")
        with pytest.raises(error, match="batch"):
            await app.publish_many([("parcel", {}), ("parcel", {}, {"batch": batch})])
        with pytest.raises(error, match="batch"):
            await asyncio.to_thread(app.publish_sync, "parcel", {}, batch=batch)
    with pytest.raises(BatchClosed):
        await made.add_many([("parcel", {}), ("parcel", {})])

    assert await rows(depot) == before


async def _through(url: str, act: Callable[[Any], Any], act_sync: Callable[[Any], Any]) -> list[str]:
    """Act on connections of every library in turn, each in a transaction that is committed; say which came that far."""
    came: list[str] = []

    async def tried(name: str, acting: Any) -> None:
        await acting
        came.append(name)

    if is_postgres(url):
        plain = await asyncpg.connect(url)
        async with plain.transaction():
            await tried("asyncpg", act(plain))
        await plain.close()
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await tried("psycopg async", act(connection))
        with psycopg.connect(url) as connection_:
            act_sync(connection_)
            came.append("psycopg")
        tail = url.partition("://")[2]
        sync_url, async_url = f"postgresql+psycopg://{tail}", f"postgresql+asyncpg://{tail}"
    else:
        file = sqlite3.connect(path(url))
        act_sync(file)
        came.append("sqlite3")
        file.commit()
        file.close()
        async with aiosqlite.connect(path(url)) as other:
            await tried("aiosqlite", act(other))
            await other.commit()
        sync_url, async_url = f"sqlite:///{path(url)}", f"sqlite+aiosqlite:///{path(url)}"
    engine = sqlalchemy.create_engine(sync_url)
    with engine.begin() as bound:
        act_sync(bound)
        came.append("SQLAlchemy")
    engine.dispose()
    engine_ = create_async_engine(async_url)
    async with engine_.begin() as bound_:
        await tried("SQLAlchemy async", act(bound_))
    await engine_.dispose()
    return came


@pytest.mark.req("E8")
async def test_a_closed_batch_refuses_the_callers_own_transaction_too(depot: Depot, store_url: str) -> None:
    app = depot.app
    made = await app.batches.open("import")
    await made.close()
    await depot.drain()
    before = await rows(depot)
    refused = 0

    async def add(connection: Any) -> None:
        nonlocal refused
        with pytest.raises(BatchClosed, match="is closed"):
            await app.publish_many_in(connection, [("parcel", {}), ("parcel", {}, {"batch": made})])
        refused += 1

    def add_sync(connection: Any) -> None:
        nonlocal refused
        with pytest.raises(BatchClosed, match="is closed"):
            app.publish_in_sync(connection, "parcel", {}, batch=made.id)
        refused += 1

    came = await _through(store_url, add, add_sync)

    assert refused == len(came) >= 4
    assert await rows(depot) == before


@pytest.mark.req("E8")
async def test_members_are_added_and_batches_closed_in_the_callers_own_transaction(
    depot: Depot, store_url: str
) -> None:
    app = depot.app
    made: list[Any] = [await app.batches.open(f"import {n}") for n in range(8)]
    waiting = iter(made)

    async def add_and_close(connection: Any) -> None:
        batch = next(waiting)
        await app.publish_in(connection, "parcel", {}, batch=batch, batch_group="g")
        assert await app.batches.close_in(connection, batch)
        assert not await app.batches.close_in(connection, batch.id)

    def add_and_close_sync(connection: Any) -> None:
        batch = next(waiting)
        app.publish_in_sync(connection, "parcel", {}, batch=batch)
        assert app.batches.close_in_sync(connection, batch)

    came = await _through(store_url, add_and_close, add_and_close_sync)
    await depot.drain()

    done = [each for each in made if (await each.look()).batch.state == "done"]
    assert len(done) == len(came) >= 4
    assert len(depot.told) == 2 * len(came)


@pytest.mark.req("E8")
async def test_an_unknown_batch_cannot_be_closed(depot: Depot, store_url: str) -> None:
    with pytest.raises(BatchNotFound):
        await depot.app.batches.close(depot.app.clock.new_id(), by="ada", reason="try")

    async def close(connection: Any) -> None:
        with pytest.raises(BatchNotFound):
            await depot.app.batches.close_in(connection, UNKNOWN)

    def close_sync(connection: Any) -> None:
        with pytest.raises(BatchNotFound):
            depot.app.batches.close_in_sync(connection, UNKNOWN)

    assert len(await _through(store_url, close, close_sync)) >= 4


@pytest.mark.req("E8")
async def test_a_handler_that_comes_too_late_may_go_on_without(depot: Depot) -> None:
    app = depot.app
    made = await app.batches.open("import")
    await made.close()

    @app.handler("late")
    async def late(_payload: None, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            with pytest.raises(BatchClosed):
                await tx.publish("parcel", {}, batch=made)
            await tx.publish("parcel", {"instead": True})

    one = await app.publish("late")
    await depot.drain()

    event = await app.event(one.id)
    assert event is not None
    assert event.status == "delivered"
    assert [each.payload for each in await app.events() if each.type == "parcel"] == [{"instead": True}]


async def test_a_group_needs_a_batch_and_a_batch_an_id(depot: Depot) -> None:
    with pytest.raises(ConfigurationError, match="needs a batch"):
        await depot.app.publish("parcel", {}, batch_group="g")
    with pytest.raises(ConfigurationError, match="not the id of a batch"):
        await depot.app.publish("parcel", {}, batch="monday")


@pytest.mark.req("E8")
async def test_sql_adds_and_closes(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        made = await app.batches.open("by hand", final_notice="over")
        with raw(postgres_url) as sql:
            sql(f"select redrive.publish('parcel', '{{}}', p_batch_id => '{made.id}', p_batch_group => 'g')")
            sql(f"select redrive.batch_close('{made.id}')")
            with pytest.raises(psycopg.Error, match="is closed"):
                sql(f"select redrive.publish('parcel', '{{}}', p_batch_id => '{made.id}')")
            sql("update {outbox} set status = 'delivered', ended_at = now() where type = 'parcel'")
        assert sorted(each.type for each in await app.events()) == ["over", "parcel"]


@pytest.mark.req("E8")
async def test_who_has_closed_a_batch_adds_no_more_in_the_same_transaction(depot: Depot) -> None:
    made = await depot.app.batches.open("import")
    rows = depot.app.new_events("parcel", {}, batch=made)
    async with depot.app.store.transaction() as tx:
        await tx.publish(rows)
        await tx.publish(depot.app.new_events("parcel", {}, batch=made))
        await tx.run("batch_close", id=str(made.id), by=None)
        with pytest.raises(BatchClosed):
            await tx.publish(depot.app.new_events("parcel", {}, batch=made))
    assert (await made.look()).total == 2


@pytest.mark.req("E8")
async def test_a_snapshot_older_than_the_close_cannot_add(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        made = await app.batches.open("import")
        connection = await asyncpg.connect(postgres_url)
        try:
            with pytest.raises(asyncpg.SerializationError):
                async with connection.transaction(isolation="repeatable_read"):
                    await connection.fetch("select 1 from redrive.batch")
                    await made.close()
                    await app.publish_in(connection, "parcel", {}, batch=made)
        finally:
            await connection.close()
        assert await app.events() == []
