"""Every failure is retried up to the limit, and the messages can be asked for in plain SQL."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from redrive import Context, PolicyViolation, Rejected, RetryPolicy, Status
from redrive.apps.webhooks import Source
from redrive.clock import VirtualClock
from tests.apps.webhooks.conftest import SECRET, Open, Receiver, receiver

THIS = "tests.apps.webhooks.test_every_failure"
AT_ONCE = RetryPolicy.stepwise("0s", "0s", 3)
MAX_ATTEMPTS = 3


class Order(BaseModel):
    """What one of the handlers wants to be given."""

    order: int


async def of_a_model(_: Order) -> None:
    raise AssertionError("the payload does not fit")


async def fail(payload: Any, _: Context) -> None:
    if payload == "unique":
        raise sqlite3.IntegrityError("UNIQUE constraint failed: orders.id")
    if payload == "model":
        TypeAdapter(int).validate_python("seven")
    if payload == "rule":
        raise PolicyViolation("no orders on Sundays")
    raise Rejected("no such customer")


def to(function: str) -> Source:
    return Source("shop", "standard", (SECRET,), (f"{THIS}:{function}",))


async def asked(shop: Receiver, condition: str) -> list[tuple[Any, ...]]:
    """Ask as anybody with an SQL client would; on PostgreSQL with the app's schema on the search path."""
    async with shop.app.transaction() as tx:
        if shop.app.dialect == "postgres":
            await tx.execute("set local search_path = webhooks")
        rows = await tx.fetch(f"select status, attempts, last_error, retry_after from events where {condition}")
    return [tuple(row) for row in rows]


@pytest.mark.req("H2", "H5")
async def test_every_failure_is_retried_and_the_query_finds_all_dead_letters(receiving: Open) -> None:
    async with receiving(to("fail"), retry=AT_ONCE) as shop:
        for payload in ("unique", "model", "rule", "no"):
            await shop.send(payload)
        await shop.app.worker().drain()

        dead = await asked(shop, f"status = 'failed' and attempts >= {MAX_ATTEMPTS}")
        assert [(row[0], row[1], row[3]) for row in dead] == [("failed", MAX_ATTEMPTS, None)] * 4
        assert {each.error_class for each in await shop.events()} >= {"rejected", "invalid"}
        assert await asked(shop, f"status = 'failed' and attempts < {MAX_ATTEMPTS}") == []


@pytest.mark.req("H2")
async def test_a_payload_that_does_not_fit_its_model_is_retried_too(receiving: Open) -> None:
    async with receiving(to("of_a_model"), retry=AT_ONCE) as shop:
        await shop.send({"order": "seven"})
        await shop.app.worker().drain()

        (event,) = await shop.events()
        assert (event.status, event.attempts) == (Status.FAILED, MAX_ATTEMPTS)


async def test_permanent_failures_may_be_left_alone(receiving: Open) -> None:
    async with receiving(to("fail"), retry=AT_ONCE, retry_every=False) as shop:
        await shop.send("no")
        await shop.app.worker().drain()

        (event,) = await shop.events()
        assert (event.status, event.attempts) == (Status.FAILED, 1)


@pytest.mark.req("H2")
async def test_the_wait_is_an_iso_instant_that_can_be_compared(receiving: Open) -> None:
    clock = VirtualClock()
    async with receiving(to("fail"), clock=clock) as shop:
        await shop.send("no", at=clock.now().timestamp())
        assert await asked(shop, "status in ('pending', 'processing') and retry_after is null") == [
            ("pending", 0, None, None)
        ]
        await shop.app.worker().drain()

        ((status, attempts, error, retry_after),) = await asked(shop, "retry_after is not null")
        assert (status, attempts) == ("pending", 1)
        assert "no such customer" in error
        assert datetime.fromisoformat(retry_after) == clock.now() + timedelta(seconds=10)
        for seconds, found in ((9, 0), (11, 1)):
            now = (clock.now() + timedelta(seconds=seconds, microseconds=1)).isoformat()
            due = await asked(shop, f"status = 'pending' and (retry_after is null or retry_after <= '{now}')")
            assert len(due) == found


async def test_the_view_follows_the_schema_of_the_tables(store_url: str) -> None:
    async with receiver(f"{store_url}?schema=core", to("fail"), retry=AT_ONCE) as shop:
        await shop.send("no")
        await shop.app.worker().drain()

        assert len(await asked(shop, "status = 'failed'")) == 1
