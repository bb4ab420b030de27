"""A turn on PostgreSQL is several statements; the connection may be lost between two of them."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from redrive import Redrive, Rejected, Status, StoreUnavailable
from redrive.clock import SystemClock
from redrive.options import WorkerOptions
from redrive.store.base import Finished
from redrive.store.postgres import PostgresStore
from redrive.worker import Worker
from tests.stores.helpers import Hands, failed, found, refused

pytestmark = pytest.mark.promise("fence")

# The claim looks at the sessions, settling does not: who locks them cuts a turn in half.
LOCK = "lock table redrive.session in access exclusive mode"


async def test_what_a_half_turn_has_written_is_not_asked_for_again(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        patient, app._store = app.store, PostgresStore(postgres_url, SystemClock(), call_seconds=0.3)
        store = app.store
        await store.open()
        hands = await Hands.begin(app)
        await app.publish_many([("t", n) for n in range(3)])
        first, second, third = await hands.claim()
        finished = Finished(delivered=[first], settlements=[failed(second)], put_back=[(third, 60.0)])
        with psycopg.connect(postgres_url) as other:
            other.execute(LOCK)
            with pytest.raises(StoreUnavailable):
                await hands.claims.turn(finished, 5)
            other.rollback()
        left = (list(finished.delivered), list(finished.settlements), list(finished.put_back))

        again = refused(await hands.claims.turn(finished, 5))

        assert left == ([first], [], [])
        assert again == []
        assert await store.counts() == {("t", "delivered"): 1, ("t", "failed"): 1, ("t", "pending"): 1}
        await hands.claims.close()
        await store.close()
        app._store = patient


async def test_a_worker_lets_go_of_what_a_half_turn_has_settled(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app, await psycopg.AsyncConnection.connect(postgres_url) as other:
        store = PostgresStore(postgres_url, SystemClock(), call_seconds=0.3)
        await store.open()

        @app.handler("t")
        async def fails(payload: Any) -> None:
            await other.execute(LOCK)
            raise Rejected("for good")

        published = await app.publish("t")
        worker = Worker(
            store, app.handlers, app.clock, retry=app.retry, retention=app.retention, new_events=app.new_events,
            options=WorkerOptions(concurrency=2),
        )  # fmt: skip
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(1.0)
        await other.rollback()

        async with asyncio.timeout(30):
            await draining

        assert (await found(app, published.id)).status is Status.FAILED
        assert worker._hands.held == {}
        await store.close()
