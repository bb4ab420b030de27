"""One publish, several handlers: a row each, one story."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from redrive import ConfigurationError, Context, Redrive, Status
from tests.stores.helpers import Hands, failed, is_postgres


def with_handlers(app: Redrive) -> None:
    @app.handler("order.placed")
    async def place(order: Any) -> None: ...

    @app.handler("order.placed", name="mail")
    async def mail(order: Any) -> None: ...

    @app.handler("order.placed", name="stock")
    async def stock(order: Any) -> None: ...


async def test_each_handler_has_a_row_of_its_own_with_the_same_key_and_correlation(app: Redrive) -> None:
    with_handlers(app)

    published = await app.publish("order.placed", {"n": 1}, correlation_id="c", headers={"a": "b"})
    events = await app.events()

    assert published.target == "order.placed"
    assert {event.target for event in events} == {"order.placed", "mail", "stock"}
    assert {(event.type, event.idempotency_key, event.correlation_id) for event in events} == {
        ("order.placed", str(published.id), "c")
    }
    assert [event.payload for event in events] == [{"n": 1}] * 3
    assert len({event.id for event in events}) == 3


async def test_each_row_has_a_fate_of_its_own(app: Redrive) -> None:
    with_handlers(app)
    await app.publish("order.placed", {"n": 1})
    hands = await Hands.begin(app)
    first, second, _third = await hands.claim()

    await hands.deliver(first)
    await hands.settle(failed(second))

    assert sorted(event.status for event in await app.events()) == [
        Status.DELIVERED, Status.FAILED, Status.IN_FLIGHT,
    ]  # fmt: skip
    await hands.claims.close()


async def test_a_process_that_only_publishes_can_be_told_the_targets(app: Redrive) -> None:
    app.route("order.placed", "mail", "stock", "mail")

    await app.publish("order.placed")

    assert {event.target for event in await app.events()} == {"mail", "stock"}
    assert len(await app.events()) == 2


async def test_all_rows_of_a_publish_stand_and_fall_together_in_the_callers_transaction(
    app: Redrive, store_url: str
) -> None:
    with_handlers(app)
    caller: Any = (
        psycopg.connect(store_url) if is_postgres(store_url) else sqlite3.connect(store_url.removeprefix("sqlite:///"))
    )
    try:
        app.publish_in_sync(caller, "order.placed")
        caller.rollback()
        after_rollback = len(await app.events())
        app.publish_in_sync(caller, "order.placed")
        caller.commit()
    finally:
        caller.close()

    assert after_rollback == 0
    assert len(await app.events()) == 3


@pytest.mark.req("W5")
async def test_a_follow_up_inherits_the_correlation_and_names_its_cause(app: Redrive) -> None:
    seen: dict[str, tuple[str, str | None]] = {}

    @app.handler("first")
    async def first(payload: Any, ctx: Context) -> None:
        seen["first"] = (ctx.correlation_id, ctx.causation_id)
        await ctx.publish("second")

    @app.handler("second")
    async def second(payload: Any, ctx: Context) -> None:
        seen["second"] = (ctx.correlation_id, ctx.causation_id)
        async with ctx.transaction() as tx:
            await tx.publish("third")

    @app.handler("third")
    async def third(payload: Any, ctx: Context) -> None:
        seen["third"] = (ctx.correlation_id, ctx.causation_id)
        await ctx.publish("fourth", correlation_id="another story")

    root = await app.publish("first")
    await app.worker().drain()
    events = {event.type: event for event in await app.events()}

    assert seen == {
        "first": (str(root.id), None),
        "second": (str(root.id), str(root.id)),
        "third": (str(root.id), str(events["second"].id)),
    }
    assert (events["fourth"].correlation_id, events["fourth"].causation_id) == (
        "another story", str(events["third"].id),
    )  # fmt: skip


def test_two_handlers_of_a_type_cannot_have_the_same_target(store_url: str) -> None:
    app = Redrive(store_url)
    with_handlers(app)

    with pytest.raises(ConfigurationError, match="give this handler a name of its own"):

        @app.handler("order.placed")
        async def again(order: Any) -> None: ...
