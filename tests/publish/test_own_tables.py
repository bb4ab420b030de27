"""Tables of the user's own in the same database: made when the app opens, written with what is published."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Redrive, Work


async def make_orders(tx: Work) -> None:
    await tx.execute("create table if not exists orders (id integer primary key, state text not null)")


async def states(app: Redrive) -> list[str]:
    async with app.transaction() as tx:
        return [row[0] for row in await tx.fetch("select state from orders order by id")]


@pytest.mark.req("O8")
async def test_own_rows_and_what_is_published_with_them_are_one_commit(app: Redrive) -> None:
    async with app.transaction() as tx:
        await make_orders(tx)
    async with app.transaction() as tx:
        await tx.execute("insert into orders values (1, 'placed')")
        await tx.publish("order.placed", {"id": 1})

    assert await states(app) == ["placed"]
    assert [event.type for event in await app.events()] == ["order.placed"]


@pytest.mark.req("O8")
async def test_what_fails_leaves_neither_row_nor_event(app: Redrive) -> None:
    async with app.transaction() as tx:
        await make_orders(tx)

    with pytest.raises(RuntimeError):
        async with app.transaction() as tx:
            await tx.execute("insert into orders values (1, 'placed')")
            await tx.publish("order.placed", {"id": 1})
            raise RuntimeError

    assert await states(app) == []
    assert await app.events() == []


async def test_tables_are_made_when_the_app_opens_and_once_at_a_time(store_url: str) -> None:
    apps = [Redrive(store_url, migrate=True) for _ in range(5)]
    inside = 0

    async def make(tx: Work) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        await make_orders(tx)
        inside -= 1

    for app in apps:
        app.when_open(make)
    async with apps[0]:
        await asyncio.gather(*(app.open() for app in apps[1:]))
        assert await states(apps[-1]) == []
        await asyncio.gather(*(app.close() for app in apps[1:]))


async def test_an_app_whose_tables_cannot_be_made_is_not_open(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)

    @app.when_open
    async def make(tx: Work) -> None:
        await make_orders(tx)
        message = "no room"
        raise OSError(message)

    with pytest.raises(OSError, match="no room"):
        await app.open()
    async with Redrive(store_url) as other:
        with pytest.raises(Exception, match="orders"):
            await states(other)


def test_the_dialect_is_known_before_it_is_opened(store_url: str) -> None:
    assert Redrive(store_url).dialect == ("sqlite" if store_url.startswith("sqlite") else "postgres")
