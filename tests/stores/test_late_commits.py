"""An event whose transaction commits late is claimed all the same, soon after (B5), on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from redrive import Redrive
from redrive.store.base import Finished, Row
from tests.stores.helpers import Hands, found, uuid_of

pytestmark = pytest.mark.promise("durable")

SOON = 15.0
"""Seconds, and far from the 30 of the full look that would find them all."""


@asynccontextmanager
async def flowing(app: Redrive) -> AsyncIterator[dict[UUID, float]]:
    """Let events flow through one claims object, and note when each was claimed."""
    hands = await Hands.begin(app, lease=600)
    claimed: dict[UUID, float] = {}
    going = True

    async def publish() -> None:
        while going:
            await app.publish_many([("flow", n) for n in range(3)])
            await asyncio.sleep(0.01)

    async def claim() -> None:
        finished: list[Row] = []
        while going:
            turn = await hands.claims.turn(Finished(delivered=finished), 50)
            finished = list(turn.claimed)
            claimed.update({uuid_of(row): time.monotonic() for row in finished})
            await asyncio.sleep(0.002)

    tasks = [asyncio.create_task(publish()), asyncio.create_task(claim())]
    try:
        await asyncio.sleep(0.3)
        yield claimed
    finally:
        going = False
        await asyncio.gather(*tasks)
        await hands.claims.close()


async def claimed_after(claimed: dict[UUID, float], event_id: UUID, committed: float) -> float:
    while event_id not in claimed and time.monotonic() < committed + 2 * SOON:  # noqa: ASYNC110 - a look at the clock
        await asyncio.sleep(0.01)
    return claimed.get(event_id, float("inf")) - committed


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(postgres_url, migrate=True) as app:
        yield app


@pytest.mark.req("B5")
@pytest.mark.parametrize("late", [0.2, 2.5])
async def test_a_row_committed_late_is_claimed_soon_after_its_commit(
    late: float, app: Redrive, postgres_url: str
) -> None:
    async with flowing(app) as claimed, await psycopg.AsyncConnection.connect(postgres_url) as caller:
        published = await app.publish_in(caller, "late")
        await asyncio.sleep(late)
        before = len(claimed)
        await caller.commit()

        waited = await claimed_after(claimed, published.id, time.monotonic())

    assert waited < SOON
    assert before > 10


@pytest.mark.req("B5")
async def test_a_row_committed_late_is_claimed_while_another_writer_stays_open(app: Redrive, postgres_url: str) -> None:
    async with (
        flowing(app) as claimed,
        await psycopg.AsyncConnection.connect(postgres_url) as writer,
        await psycopg.AsyncConnection.connect(postgres_url) as caller,
    ):
        await writer.execute("create table scratch (n int)")  # has a transaction id, and keeps it
        published = await app.publish_in(caller, "late")
        await asyncio.sleep(2.0)
        await caller.commit()

        waited = await claimed_after(claimed, published.id, time.monotonic())
        flow = len(claimed)
        await writer.rollback()

    assert waited < SOON
    assert flow > 10


@pytest.mark.req("B5")
async def test_a_row_that_waited_for_a_key_before_it_was_written_is_claimed_soon_after_its_commit(
    app: Redrive, postgres_url: str
) -> None:
    """The second publisher reads the clock, waits for the first one's key, and commits later still."""
    async with (
        flowing(app) as claimed,
        await psycopg.AsyncConnection.connect(postgres_url) as first,
        await psycopg.AsyncConnection.connect(postgres_url) as second,
    ):
        await app.publish_in(first, "late", retry_key="k")
        waiting = asyncio.create_task(app.publish_in(second, "late", retry_key="k"))
        await asyncio.sleep(0.7)
        await first.rollback()
        published = await waiting
        await asyncio.sleep(0.7)
        await second.commit()

        waited = await claimed_after(claimed, published.id, time.monotonic())

    assert published.created
    assert waited < SOON


@pytest.mark.req("B5")
async def test_a_replay_that_waited_for_a_lock_is_claimed_soon_after_its_commit(
    app: Redrive, postgres_url: str
) -> None:
    hands = await Hands.begin(app)
    dead = await hands.dead_letter("late")
    await hands.claims.close()
    async with (
        flowing(app) as claimed,
        await psycopg.AsyncConnection.connect(postgres_url) as reader,
        await psycopg.AsyncConnection.connect(postgres_url) as operator,
    ):
        await reader.execute("select 1 from redrive.outbox where id = %s for update", (dead,))
        waiting = asyncio.create_task(operator.execute("select redrive.outbox_replay(%s, 0, 'ann')", (dead,)))
        await asyncio.sleep(0.7)
        await reader.rollback()
        await waiting
        await asyncio.sleep(0.7)
        await operator.commit()

        waited = await claimed_after(claimed, dead, time.monotonic())

    assert waited < SOON


@pytest.mark.req("B5")
async def test_a_snapshot_held_open_keeps_nothing_from_being_claimed(app: Redrive, postgres_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url) as reader:
        await reader.execute("begin isolation level repeatable read")
        await reader.execute("select count(*) from redrive.outbox")
        async with flowing(app) as claimed:
            await asyncio.sleep(0.5)
            published = await app.publish("t")
            waited = await claimed_after(claimed, published.id, time.monotonic())
        await reader.rollback()

    assert waited < SOON


async def in_flight_and_pending(app: Redrive) -> tuple[Hands, Any, UUID]:
    hands = await Hands.begin(app)
    await app.publish("t", retry_key="one")
    row = await hands.claim_one()
    pending = await app.publish("t", retry_key="two")
    return hands, row, pending.id


@pytest.mark.req("A3")
async def test_a_second_submission_in_an_open_transaction_does_not_hold_up_the_worker(
    app: Redrive, postgres_url: str
) -> None:
    hands, row, pending = await in_flight_and_pending(app)
    async with await psycopg.AsyncConnection.connect(postgres_url) as caller:
        again = [await app.publish_in(caller, "t", retry_key=key) for key in ("one", "two")]

        async with asyncio.timeout(SOON):
            refused = await hands.deliver(row)
            claimed = await hands.claim()
        await caller.commit()

    assert [each.created for each in again] == [False, False]
    assert again[0].id == uuid_of(row)
    assert refused == []
    assert [uuid_of(each) for each in claimed] == [pending]
    assert (await found(app, pending)).attempts == 1
    await hands.claims.close()
