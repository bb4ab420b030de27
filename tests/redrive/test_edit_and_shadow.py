"""Edit and replay, and shadow replay: on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

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
