"""What is particular to one file with one writer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive import Context, Redrive, Status, StoreUnavailable
from redrive.errors import StoreFull
from redrive.store.base import Finished, Session
from tests.waiting import until
from tests.worker.conftest import FAST, working

pytestmark = pytest.mark.promise("not-stuck")


@pytest.mark.req("B4")
async def test_a_transaction_longer_than_the_lease_renews_it_when_it_commits(sqlite_url: str) -> None:
    """While it holds the file no heartbeat comes through, and at its end a sweep of another process may be first."""
    app, other = Redrive(sqlite_url), Redrive(sqlite_url)
    async with app, other:
        published = await app.publish("long")
        session = Session(app.clock.new_id(), "w", "h", 1, ("default",), (), 1)
        await app.store.begin_session(session, 0.4)
        await app.store.claims(session.id, [("default", 1, 0)], actor="w").turn(Finished(), 1)

        async with app.store.transaction():
            await asyncio.sleep(0.8)
        await other.store.sweep(app.clock.new_id(), max_lost=5, limit=10, base_seconds=0.0, actor="other")

        event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count) == (Status.IN_FLIGHT, 0)


@pytest.mark.req("B4", "O5")
async def test_a_foreign_lock_longer_than_the_lease_costs_no_living_worker_its_lease(sqlite_url: str) -> None:
    """When it ends, a sweep of another worker comes before the heartbeat: it hears the others out first."""
    app, other = Redrive(sqlite_url), Redrive(sqlite_url)
    async with app, other:
        published = await app.publish("long")
        session = Session(app.clock.new_id(), "w", "h", 1, ("default",), (), 1)
        await app.store.begin_session(session, 0.4)
        await app.store.claims(session.id, [("default", 1, 0)], actor="w").turn(Finished(), 1)
        with holding(sqlite_url):
            sweeping = asyncio.create_task(other.worker(lease="1s").drain())
            await asyncio.sleep(1.2)
            beating = asyncio.ensure_future(app.store.heartbeat(session.id, 30.0))
            await asyncio.sleep(0.2)
        assert await beating
        tally = await sweeping

        event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count, tally.swept) == (Status.IN_FLIGHT, 0, 0)


@pytest.mark.req("B4", "O5")
async def test_a_sweep_lets_the_others_renew_their_leases_first(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = Redrive(sqlite_url), Redrive(sqlite_url)
    async with app, other:
        published = await app.publish("long")
        session = Session(app.clock.new_id(), "w", "h", 1, ("default",), (), 1)
        await app.store.begin_session(session, 0.4)
        await app.store.claims(session.id, [("default", 1, 0)], actor="w").turn(Finished(), 1)

        async def meanwhile(_seconds: float) -> None:
            assert await app.store.heartbeat(session.id, 30.0)

        with holding(sqlite_url):
            await asyncio.sleep(0.6)
        monkeypatch.setattr(other.store.clock, "sleep", meanwhile)
        await other.worker(lease="1s").drain()

        event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count) == (Status.IN_FLIGHT, 0)


@pytest.mark.req("B4")
async def test_a_worker_that_is_gone_is_swept_also_after_a_foreign_lock(sqlite_url: str) -> None:
    app, other = Redrive(sqlite_url), Redrive(sqlite_url)
    async with app, other:
        await app.publish("long")
        session = Session(app.clock.new_id(), "w", "h", 1, ("default",), (), 1)
        await app.store.begin_session(session, 0.4)
        await app.store.claims(session.id, [("default", 1, 0)], actor="w").turn(Finished(), 1)
        with holding(sqlite_url):
            await asyncio.sleep(0.6)

        tally = await other.worker(lease="1s").drain()

    assert tally.swept == 1


@contextmanager
def holding(url: str) -> Iterator[None]:
    """Keep everybody else from writing to the file."""
    import sqlite3

    holder = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        holder.execute("begin immediate")
        yield
        holder.execute("rollback")
    finally:
        holder.close()


async def test_a_file_that_somebody_keeps_locked_costs_an_error_and_then_works_again(sqlite_url: str) -> None:
    import sqlite3

    app = Redrive(sqlite_url, retry=FAST)
    app.store._busy_seconds = 0.3  # type: ignore[attr-defined]
    async with app:
        holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="locked"):
            await app.publish("x", 1)
        holder.execute("rollback")
        holder.close()
        published = await app.publish("x", 2)

        assert [event.id for event in await app.events()] == [published.id]


async def test_several_processes_worth_of_apps_on_one_file_do_each_event_once(sqlite_url: str) -> None:
    apps = [Redrive(sqlite_url, retry=FAST) for _ in range(3)]
    done: list[int] = []
    for app in apps:

        @app.handler("work")
        async def work(payload: int) -> None:
            done.append(payload)

    for app in apps:
        await app.open()
    await apps[0].publish_many([("work", number) for number in range(600)])
    async with working(apps[0], concurrency=5), working(apps[1], concurrency=5), working(apps[2], concurrency=5):
        await until(lambda: len(done) >= 600)
    for app in apps:
        await app.close()

    assert sorted(done) == list(range(600))


async def test_a_file_in_memory_is_the_same_store(tmp_path: Path) -> None:
    app = Redrive("sqlite:///:memory:", retry=FAST)
    seen: list[int] = []

    @app.handler("work")
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("select 1")
        seen.append(payload)

    async with app:
        await app.publish("work", 1)
        async with working(app):
            await until(lambda: seen == [1])


async def test_a_disk_that_is_full_in_the_middle_of_a_transaction_is_called_that(sqlite_url: str) -> None:
    """Whoever acts on the store tells a disk error from an error of the code: it is waited for, not counted."""
    async with Redrive(sqlite_url) as app:
        connection = app.store.writer.connection  # type: ignore[attr-defined]
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count={pages}")

        with pytest.raises(StoreFull):
            async with app.store.transaction() as tx:
                await tx.note("said", "ann", {"much": "x" * 100_000})

        connection.execute("pragma max_page_count=1000000")
        async with app.store.transaction() as tx:
            await tx.note("said", "ann", {"much": "x" * 100_000})
