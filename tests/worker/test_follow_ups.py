"""Follow-ups belong to the attempt that publishes them: they are written when it succeeds, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive import Context, EventFilter, Redrive, RetryPolicy, Status
from tests.waiting import until
from tests.worker.conftest import working

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, retry=FAST, migrate=True) as app:
        yield app


async def ended(app: Redrive, type_: str = "order.paid") -> Status:
    """Work until the event of this type has ended; the rest stays where it is."""

    async def over() -> bool:
        (event,) = await app.events(EventFilter(type=type_))
        return event.status in (Status.DELIVERED, Status.FAILED, Status.CANCELLED)

    async with working(app, poll="50ms"):
        await until(over)
    (event,) = await app.events(EventFilter(type=type_))
    return event.status


async def mails(app: Redrive) -> list[Any]:
    return [event.payload for event in await app.events(EventFilter(type="mail.requested"))]


@pytest.mark.req("O8")
async def test_a_retry_publishes_its_follow_up_once(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        await ctx.publish("mail.requested", {"order": order["id"]}, delay="1h")
        if ctx.attempt < 3:
            raise ConnectionError("the carrier is away")

    await app.publish("order.paid", {"id": 7})

    assert await ended(app) is Status.DELIVERED
    assert await mails(app) == [{"order": 7}]


async def test_a_plain_function_publishes_its_follow_up_once_too(app: Redrive) -> None:
    @app.handler("order.paid")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        ctx.publish_sync("mail.requested", {"order": order["id"]}, delay="1h")
        if ctx.attempt < 3:
            raise ConnectionError("the carrier is away")

    await app.publish("order.paid", {"id": 7})

    assert await ended(app) is Status.DELIVERED
    assert await mails(app) == [{"order": 7}]


async def test_a_dead_letter_has_published_nothing(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(_order: Any, ctx: Context) -> None:
        await ctx.publish("mail.requested")
        raise ValueError("no such article")

    await app.publish("order.paid")

    assert await ended(app) is Status.FAILED
    assert await mails(app) == []


async def test_an_event_that_was_cancelled_meanwhile_publishes_nothing(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(_order: Any, ctx: Context) -> None:
        await ctx.publish("mail.requested")
        await app.cancel(ctx.id, by="ann", reason="the customer has called")

    await app.publish("order.paid")

    assert await ended(app) is Status.CANCELLED
    assert await mails(app) == []


async def test_follow_ups_keep_their_number_and_order(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(_order: Any, ctx: Context) -> None:
        made = [await ctx.publish("mail.requested", n, delay="1h", ordering_key="mails") for n in range(5)]
        assert len({each.id for each in made}) == 5

    await app.publish("order.paid")

    assert await ended(app) is Status.DELIVERED
    assert sorted(await mails(app)) == [0, 1, 2, 3, 4]


async def test_what_is_published_inside_the_handlers_transaction_is_part_of_it(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(_order: Any, ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.publish("mail.requested", {"attempt": ctx.attempt}, delay="1h")
            if ctx.attempt < 3:
                raise ConnectionError("the carrier is away")

    await app.publish("order.paid")

    assert await ended(app) is Status.DELIVERED
    assert await mails(app) == [{"attempt": 3}]


async def test_what_is_published_before_the_handlers_transaction_is_committed_with_it(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(_order: Any, ctx: Context) -> None:
        await ctx.publish("mail.requested", {"attempt": ctx.attempt}, delay="1h")
        async with ctx.transaction():
            if ctx.attempt < 3:
                raise ConnectionError("the carrier is away")

    await app.publish("order.paid")

    assert await ended(app) is Status.DELIVERED
    assert await mails(app) == [{"attempt": 3}]


@pytest.mark.req("B10")
async def test_what_a_step_publishes_is_written_with_its_result(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(_order: Any, ctx: Context) -> None:
        async def tell() -> None:
            await ctx.publish("mail.requested", {"attempt": ctx.attempt}, delay="1h")

        await ctx.step("tell", tell)
        raise ValueError("no such article")

    await app.publish("order.paid")

    assert await ended(app) is Status.FAILED
    assert await mails(app) == [{"attempt": 1}]


@pytest.mark.req("B10")
async def test_a_step_that_fails_has_published_nothing(app: Redrive) -> None:
    @app.handler("order.paid")
    def ship(_order: Any, ctx: Context) -> None:
        def tell() -> None:
            ctx.publish_sync("mail.requested", {"attempt": ctx.attempt}, delay="1h")
            if ctx.attempt < 2:
                raise ConnectionError("the mail server is away")

        ctx.step_sync("tell", tell)

    await app.publish("order.paid")

    assert await ended(app) is Status.DELIVERED
    assert await mails(app) == [{"attempt": 2}]
