"""Edit and replay, and shadow replay: on every store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pydantic
import pytest

from redrive import Context, Redrive, Refused, Rejected, RetryPolicy, Status


class Order(pydantic.BaseModel):
    number: int


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    app = Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True)
    async with app:
        yield app


@pytest.mark.req("B1")
async def test_an_edited_payload_is_checked_replayed_and_the_original_kept(app: Redrive) -> None:
    seen: list[int] = []

    @app.handler("order.paid")
    async def ship(order: Order) -> None:
        if order.number < 0:
            raise Rejected("no such order")
        seen.append(order.number)

    published = await app.publish("order.paid", {"number": -7}, idempotency_key="i", correlation_id="c")
    await app.worker().drain()

    with pytest.raises(Refused, match="does not fit"):
        await app.replay(published.id, by="ada", reason="typo", payload={"number": "seven"})
    await app.replay(published.id, by="ada", reason="typo", payload={"number": 7})
    await app.worker().drain()

    event = await app.event(published.id)
    assert event is not None
    assert seen == [7]
    assert (event.status, event.payload, event.idempotency_key) == (Status.DELIVERED, {"number": 7}, "i")
    (revision,) = await app.store.ask("payload_revisions", id=published.id)
    assert (revision["revision"], revision["replaced_by"]) == (1, "ada")
    assert "-7" in revision["payload"]
    assert [entry.kind for entry in await app.trail(published.id)] == ["dead-lettered", "edited", "replayed"]
    assert (await app.verify_trail()).sound


async def test_an_edit_of_what_somebody_else_has_edited_meanwhile_is_refused(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(order: Order) -> None:
        raise Rejected("no such order")

    published = await app.publish("order.paid", {"number": 1})
    await app.worker().drain()
    read = await app.event(published.id)
    assert read is not None
    await app.replay(published.id, by="bob", reason="typo", payload={"number": 2}, cycle=read.cycle)
    await app.worker().drain()

    with pytest.raises(Refused, match="edit it anew"):
        await app.replay(published.id, by="ada", reason="typo", payload={"number": 3}, cycle=read.cycle)

    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.payload, event.cycle) == (Status.FAILED, {"number": 2}, 1)
    assert [entry.kind for entry in await app.trail(published.id)].count("edited") == 1


async def test_an_edit_that_cannot_be_replayed_changes_nothing(app: Redrive) -> None:
    published = await app.publish("order.paid", {"number": 1})

    with pytest.raises(Refused):
        await app.replay(published.id, by="ada", reason="typo", payload={"number": 2})

    event = await app.event(published.id)
    assert event is not None
    assert event.payload == {"number": 1}
    assert await app.store.ask("payload_revisions", id=published.id) == []


@pytest.mark.req("B9")
async def test_a_shadow_says_how_it_would_end_and_leaves_no_trace(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table ledger (n integer)")
    broken = True

    @app.handler("pay", effects="inside")
    async def pay(payload: Any, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("insert into ledger values (1)")
            await tx.publish("receipt", {"of": "pay"})
            if broken:
                raise Rejected("no funds")

    published = await app.publish("pay", {})
    await app.worker().drain()
    before = await app.event(published.id)

    failing = await app.shadow(published.id)
    broken = False
    succeeding = await app.shadow(published.id)

    assert (failing.would, failing.error_class) == ("fail", "rejected")
    assert (succeeding.would, succeeding.published) == ("succeed", (("receipt", {"of": "pay"}),))
    assert await app.event(published.id) == before
    assert [event.type for event in await app.events()] == ["pay"]
    async with app.store.transaction() as tx:
        assert await tx.fetch("select n from ledger") == []
    await app.replay(published.id, by="ada", reason="shadow was fine")
    await app.worker().drain()
    async with app.store.transaction() as tx:
        assert len(await tx.fetch("select n from ledger")) == 1


@pytest.mark.req("B9")
@pytest.mark.parametrize("effects", ["outside", None])
async def test_a_handler_that_may_reach_outside_is_not_run_as_a_shadow(app: Redrive, effects: Any) -> None:
    calls: list[int] = []

    @app.handler("pay", effects=effects)
    async def pay(payload: Any) -> None:
        calls.append(1)
        raise Rejected("no")

    published = await app.publish("pay", {})
    await app.worker().drain()
    with pytest.raises(Refused, match="outside"):
        await app.shadow(published.id)
    assert calls == [1]


@contextmanager
def _own_connection(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30, check_same_thread=False)
    else:
        connection = psycopg.connect(url)
    try:
        yield connection
    finally:
        connection.close()


async def _in_transaction(app: Redrive) -> None:
    async with app.transaction() as tx:
        await tx.publish("note.made", {})


async def _with_lock(app: Redrive) -> None:
    async with app.locks.hold("import"):
        pass


Way = Callable[[Redrive, Context, Any], Any]
OUTSIDE: dict[str, Way] = {
    "once_in": lambda _, ctx, connection: ctx.once_in(connection),
    "once_in_sync": lambda _, ctx, connection: asyncio.to_thread(ctx.once_in_sync, connection),
    "publish_in": lambda app, _, connection: app.publish_in(connection, "note.made", {}),
    "publish_in_sync": lambda app, _, connection: asyncio.to_thread(app.publish_in_sync, connection, "note.made"),
    "take_in": lambda app, _, connection: app.reservations.take_in(connection, "seat", owner="me"),
    "publish": lambda app, *_: app.publish("note.made", {}),
    "publish_many": lambda app, *_: app.publish_many([("note.made", {})]),
    "publish_sync": lambda app, *_: asyncio.to_thread(app.publish_sync, "note.made", {}),
    "transaction": lambda app, *_: _in_transaction(app),
    "store": lambda app, *_: app.store.publish(app.new_events("note.made", {})),
    "batches": lambda app, *_: app.batches.open("import"),
    "reservations": lambda app, *_: app.reservations.take("seat", owner="me"),
    "locks": lambda app, *_: _with_lock(app),
    "cancel": lambda app, ctx, _: app.cancel(ctx.id, by="me", reason="no"),
}
"""Every way of committing something that the documentation shows."""


@pytest.mark.req("B1")
@pytest.mark.parametrize("way", OUTSIDE)
async def test_a_shadow_refuses_everything_that_would_be_committed_elsewhere(
    app: Redrive, store_url: str, way: str
) -> None:
    tried = False

    @app.handler("order.paid", effects="inside", brake=False)
    async def ship(order: Order, ctx: Context) -> None:
        if not tried:
            raise Rejected("no such order")
        with _own_connection(store_url) as connection:
            with suppress(Refused):  # a handler that makes light of it is found out all the same
                await OUTSIDE[way](app, ctx, connection)
            connection.commit()

    published = await app.publish("order.paid", {"number": 7}, idempotency_key="i")
    await app.worker().drain()
    before = await app.event(published.id), await app.store.counts(), await app.reservations.ls(everything=True)
    tried = True

    with pytest.raises(Refused, match="a shadow could not roll it back"):
        await app.shadow(published.id)

    assert (
        await app.event(published.id),
        await app.store.counts(),
        await app.reservations.ls(everything=True),
    ) == before
    assert await app.batches.ls() == []
    plan = await app.plan("type:order.paid", by="ada", unsafe=True)
    assert (plan.redrive.ready, plan.ineligible) == (1, {})
    await app.publish("order.placed", {})  # outside a shadow all is as before


@pytest.mark.req("B1")
async def test_a_shadow_may_read_and_use_the_connection_of_its_own_transaction(app: Redrive) -> None:
    tried = False

    @app.handler("order.paid", effects="inside", brake=False)
    async def ship(order: Order, ctx: Context) -> None:
        if not tried:
            raise Rejected("no such order")
        assert await app.event(ctx.id) is not None
        async with ctx.transaction() as tx:
            await app.publish_in(tx.connection, "note.made", {})

    published = await app.publish("order.paid", {"number": 7})
    await app.worker().drain()
    tried = True

    shadow = await app.shadow(published.id)

    assert shadow.would == "succeed"
    assert len(await app.events()) == 1
