"""More transactions than connections: handlers hold all there are, and everything else goes on beside them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from redrive import Context, Redrive, RetryPolicy
from tests.lab.record import Record
from tests.waiting import until
from tests.worker.conftest import working

PROMISES = ("not-stuck", "effect-once")
INSIDE_SECONDS = 0.05
CONNECTIONS = 10
"""How many transactions of handlers are open at the same time by default."""


@pytest.mark.req("O9")
@pytest.mark.promise(*PROMISES)
async def test_ten_times_more_transactions_than_connections(postgres_url: str, record: Callable[..., Record]) -> None:
    await held_up(postgres_url, record("transactions", "postgres"), events=300, fails=30)


@pytest.mark.lab
@pytest.mark.promise(*PROMISES)
async def test_thousands_of_transactions_on_ten_connections(postgres_url: str, record: Callable[..., Record]) -> None:
    run = record("transactions", "postgres")
    await held_up(postgres_url, run, events=2_000, fails=100)


async def held_up(url: str, run: Record, *, events: int, fails: int) -> None:
    """Handle events in slow transactions that publish beside themselves; cancel, tick and dead-letter meanwhile."""
    app = Redrive(url, retry=RetryPolicy(max_attempts=1), migrate=True)
    scene = Scene(app)
    async with app:
        await app.publish_many([("pay", n) for n in range(events)] + [("fail", n) for n in range(fails)])
        async with working(app, concurrency=100) as worker:
            await until(lambda: scene.open > 0)
            began, waits = time.monotonic(), []
            while scene.paid < events:
                waits.append(await scene.cancelled(worker))
            seconds = scene.paid_at - began
            await until(lambda: scene.told == events + fails, 120.0)
            sessions = await app.store.sessions()
        counts = await app.store.counts()
        async with app.transaction() as tx:
            effects = Counter(row[0] for row in await tx.fetch("select n from lab_paid"))
        assert (await app.verify_trail()).sound
    run.cases, run.faults["cancelled"] = events + fails, len(waits)
    run.reached["ticks"], run.reached["transactions at once"] = len(scene.ticked_at), scene.most
    run.figures["share of what the connections allow"] = round(events / seconds / (CONNECTIONS / INSIDE_SECONDS), 2)
    run.figures["cancel heard, slowest"] = round(max(waits), 2)
    ticks = pairwise(sorted(scene.ticked_at))
    run.figures["longest without a tick"] = round(max((later - earlier for earlier, later in ticks), default=0.0), 2)
    assert counts["pay", "delivered"] == events, counts
    assert counts["fail", "failed"] == fails, counts
    assert effects == dict.fromkeys(range(events), 1)
    assert worker.tally.deferred == worker.tally.retried == worker.tally.timed_out == worker.tally.leases_lost == 0
    assert scene.most <= CONNECTIONS
    assert [each for each in sessions if each.ended_at is None]


class Scene:
    """The handlers, and what they have seen."""

    def __init__(self, app: Redrive) -> None:
        self.open = self.most = self.paid = self.told = 0
        self.paid_at = 0.0
        self._app = app
        self.ticked_at: list[float] = []
        self._running = asyncio.Event()
        app.when_open(self.tables)
        app.handler("pay")(self.pay)
        app.handler("fail", on_dead_letter=self.buried, brake=False)(self.fail)
        app.handler("told")(self.hear)
        app.handler("long")(self.long)
        app.handler("tick")(self.tick)
        app.schedules.add("ticks", "tick", every="1s")

    async def tables(self, tx: Any) -> None:
        await tx.execute("create table if not exists lab_paid (n int)")

    async def pay(self, n: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            self.open += 1
            self.most = max(self.most, self.open)
            try:
                await tx.execute("insert into lab_paid values ($1)", n)
                await self._app.publish("told", n)  # at once, beside the transaction
                await asyncio.sleep(INSIDE_SECONDS)
            finally:
                self.open -= 1
        self.paid, self.paid_at = self.paid + 1, time.monotonic()

    async def fail(self, _n: int) -> None:
        raise ValueError("always")

    async def buried(self, _letter: Any, _tx: Any) -> None:
        await self._app.publish("told", -1)

    async def hear(self, _n: int) -> None:
        self.told += 1

    async def long(self, _payload: Any) -> None:
        self._running.set()
        await asyncio.Event().wait()

    async def tick(self, _payload: Any, ctx: Context) -> None:
        self.ticked_at.append(ctx.created_at.timestamp())

    async def cancelled(self, worker: Any) -> float:
        """Start something long, cancel it, and say how long it took to be heard."""
        self._running.clear()
        before = worker.tally.cancelled
        published = await self._app.publish("long", priority=0)
        await self._running.wait()
        began = time.monotonic()
        await self._app.cancel(published.id, by="lab", reason="enough")
        await until(lambda: worker.tally.cancelled > before)
        return time.monotonic() - began
