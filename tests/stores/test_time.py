"""Whose time counts, and what happens when a clock is wrong."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from redrive import Redrive, Status, dependency
from redrive.clock import SystemClock, VirtualClock
from tests.stores.helpers import Hands, found, retried, uuid_of

pytestmark = pytest.mark.promise("not-early")


@pytest.mark.req("H4")
async def test_a_due_time_survives_a_restart(store_url: str) -> None:
    clock = VirtualClock()
    async with Redrive(store_url, clock=clock, migrate=True) as app:
        hands = await Hands.begin(app)
        published = await app.publish("t")
        await hands.settle(retried(await hands.claim_one(), 300.0))
        before = await found(app, published.id)
        await app.store.end_session(hands.id)
        await hands.claims.close()

    after_restart = VirtualClock(start=clock.now() + timedelta(seconds=299), seed=1)
    async with Redrive(store_url, clock=after_restart) as app:
        hands = await Hands.begin(app)
        swept, early = await hands.sweep(), await hands.claim()
        due_in = await hands.claims.next_due()
        after = await found(app, published.id)
        after_restart.advance(1)
        claimed = await hands.claim()
        await hands.claims.close()

    assert (swept, early, due_in) == ([], [], 1.0)
    assert after == before
    assert [uuid_of(row) for row in claimed] == [published.id]


@pytest.mark.req("H4")
async def test_on_sqlite_a_clock_set_back_runs_nothing_early_and_freezes_nothing(sqlite_url: str) -> None:
    clock = VirtualClock()
    async with Redrive(sqlite_url, clock=clock) as app:
        hands = await Hands.begin(app)
        published = await app.publish("t")
        await hands.settle(retried(await hands.claim_one(), 10.0))
        clock.advance(4)
        clock.set(clock.now() - timedelta(days=1))

        early = await hands.claim()
        clock.advance(5.9)
        still_early = await hands.claim()
        clock.advance(0.11)
        claimed = await hands.claim()

    assert (early, still_early) == ([], [])
    assert [uuid_of(row) for row in claimed] == [published.id]


class Stalling(VirtualClock):
    """One whose reader is put to sleep for a minute by the machine, just before it reads what is named."""

    before: str | None = None

    def now(self) -> datetime:
        self._stall("now")
        return super().now()

    def monotonic(self) -> float:
        self._stall("monotonic")
        return super().monotonic()

    def _stall(self, reading: str) -> None:
        if self.before == reading and threading.current_thread().name == "redrive-writer":
            self.before = None
            self.advance(60)


@pytest.mark.req("H4")
@pytest.mark.parametrize("reading", ["now", "monotonic"])
async def test_on_sqlite_a_process_that_stalls_while_it_looks_at_its_clocks_does_not_run_ahead(
    reading: str, sqlite_url: str
) -> None:
    clock = Stalling()
    async with Redrive(sqlite_url, clock=clock) as app:
        await app.publish("t")
        began = clock.now()
        clock.before = reading
        await app.publish("t")
        stalled = clock.now() - began
        clock.advance(1)
        published = await app.publish("last")
        last = await found(app, published.id)

    assert stalled == timedelta(seconds=60)
    assert last.created_at == clock.now()


@pytest.mark.req("H4")
async def test_on_sqlite_the_highest_time_is_remembered_across_a_restart(sqlite_url: str) -> None:
    clock = VirtualClock()
    async with Redrive(sqlite_url, clock=clock) as app:
        clock.advance("1d")
        await app.publish("t")
        seen = (await app.events())[0].created_at

    set_back = VirtualClock()
    async with Redrive(sqlite_url, clock=set_back) as app:
        hands = await Hands.begin(app)
        await app.publish("later", delay=5)
        (due_at,) = [event.due_at for event in await app.events() if event.type == "later"]
        due_now = await hands.claim()
        set_back.advance(4.9)
        early = await hands.claim()
        set_back.advance(0.11)
        later = await hands.claim()

    assert due_at == seen + timedelta(seconds=5)
    assert [len(rows) for rows in (due_now, early, later)] == [1, 0, 1]


@pytest.mark.req("H4")
async def test_on_sqlite_a_deadline_in_a_callers_own_transaction_begins_at_the_time_of_the_file(
    sqlite_url: str,
) -> None:
    clock = VirtualClock()
    async with Redrive(sqlite_url, clock=clock) as app:
        first = await found(app, (await app.publish("t")).id)
        clock.set(clock.now() - timedelta(days=2))
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
            for key in (None, "k"):
                app.publish_in_sync(connection, "in theirs", deadline="10m", retry_key=key)
            connection.commit()
        await app.publish("in ours", deadline="10m")
        later = [event for event in await app.events() if event.type != "t"]

    begun = first.created_at
    assert [(e.created_at, e.deadline_at) for e in later] == [(begun, begun + timedelta(minutes=10))] * 3


@pytest.mark.req("H4")
async def test_on_sqlite_a_callers_own_transaction_goes_by_the_time_of_the_file_too(sqlite_url: str) -> None:
    clock = VirtualClock()
    async with Redrive(sqlite_url, clock=clock) as app:
        hands = await Hands.begin(app)
        await app.publish("t")
        await hands.deliver(*await hands.claim())
        clock.set(clock.now() - timedelta(hours=1))
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        try:
            app.publish_in_sync(connection, "later", delay=5)
            connection.commit()
        finally:
            connection.close()

        early = await hands.claim()
        clock.advance(5)
        claimed = await hands.claim()

    assert early == []
    assert len(claimed) == 1


@pytest.mark.req("H4")
async def test_on_sqlite_whoever_only_asks_goes_by_the_time_of_the_file_too(sqlite_url: str) -> None:
    """Else a dependency that is down would not be probed until a clock that was set back has caught up."""
    clock = VirtualClock()
    async with Redrive(sqlite_url, clock=clock) as app:
        await dependency.register(app.store, ["bank"])
        before = clock.now()
        clock.set(before - timedelta(hours=1))
        clock.advance(2)

        (bank,) = await app.dependencies()

    assert bank.now == before + timedelta(seconds=2)


async def test_on_sqlite_a_small_step_of_time_does_not_write_by_itself(sqlite_url: str) -> None:
    async with Redrive(sqlite_url, clock=SystemClock()) as app:
        hands = await Hands.begin(app)
        watcher = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        try:
            before = watcher.execute("pragma data_version").fetchone()
            for _ in range(3):
                await hands.claim()
                await hands.claims.next_due()
                await asyncio.sleep(0.06)
            after = watcher.execute("pragma data_version").fetchone()
        finally:
            watcher.close()

    assert after == before


class WrongClock(SystemClock):
    """A worker's machine whose clock is hours off; its database's clock is right."""

    def __init__(self, off: timedelta) -> None:
        super().__init__()
        self._off = off

    def now(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        return super().now() + self._off


@pytest.mark.parametrize("hours", [-5, 5])
async def test_on_postgres_the_workers_clock_does_not_matter(hours: int, postgres_url: str) -> None:
    async with Redrive(postgres_url, clock=WrongClock(timedelta(hours=hours)), migrate=True) as app:
        hands = await Hands.begin(app)
        now = await app.publish("now")
        later = await app.publish("later", delay="1h")

        claimed = await hands.claim()
        await hands.settle(retried(claimed[0], 1800.0))
        retry = await found(app, now.id)
        swept = await hands.sweep()

        assert [uuid_of(row) for row in claimed] == [now.id]
        assert swept == []
        assert (retry.due_at - retry.created_at) == pytest.approx(timedelta(seconds=1800), abs=timedelta(seconds=30))
        assert abs(retry.created_at - SystemClock().now()) < timedelta(seconds=30)
        assert (await found(app, later.id)).status is Status.PENDING
        await hands.claims.close()
