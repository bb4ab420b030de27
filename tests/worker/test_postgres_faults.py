"""PostgreSQL goes away and comes back: the worker stays, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import Context, Redrive, RetryPolicy, Status, StoreUnavailable
from redrive.store.postgres import PostgresStore
from tests.servers import Postgres
from tests.waiting import until
from tests.worker.conftest import FAST, working

pytestmark = pytest.mark.promise("not-stuck")


@pytest.fixture
def admin(postgres_server: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def app_on(url: str) -> AsyncIterator[Redrive]:
    app = Redrive(url, retry=FAST, migrate=True)
    async with app:
        yield app


def cut_all(admin: psycopg.Connection, url: str) -> int:
    name = url.rsplit("/", 1)[1]
    return len(
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,)).fetchall()
    )


@contextmanager
def silenced(admin: psycopg.Connection, pid: int) -> Iterator[None]:
    """Stop a backend between two statements: in the middle of one it would keep its locks, and nobody could go on."""
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            found = admin.execute("select state from pg_stat_activity where pid = %s", (pid,)).fetchone()
            if found == ("idle",):
                break
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.lab_short
@pytest.mark.req("O9")
async def test_a_worker_survives_the_loss_of_all_its_connections_again_and_again(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    effects: dict[int, int] = {}

    async with app_on(postgres_url) as app:
        async with app.store.transaction() as tx:
            await tx.execute("create table ledger (n int)")

        @app.handler("work")
        async def work(payload: int, ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("insert into ledger values ($1)", payload)

        @app.handler("plain")
        async def plain(payload: int) -> None:
            effects[payload] = effects.get(payload, 0) + 1

        await app.publish_many([("work", n) for n in range(300)] + [("plain", n) for n in range(2_000)])
        async with working(app, lease="2s", concurrency=20):
            await until(lambda: bool(effects))  # a worker that cannot even begin says so, and ends
            for _ in range(8):
                await asyncio.sleep(0.1)
                cut_all(admin, postgres_url)

            async def all_ended() -> bool:
                try:
                    counts = await app.store.counts()
                except StoreUnavailable:
                    return False
                return {status for _, status in counts} == {"delivered"}

            await until(all_ended)
        async with app.store.transaction() as tx:
            rows = await tx.fetch("select n, count(*) from ledger group by n")
        assert (await app.verify_trail()).sound

    assert len(rows) == 300
    assert all(row[1] == 1 for row in rows), "an effect was committed twice"
    assert len(effects) == 2_000


@pytest.mark.req("O9")
async def test_a_connection_cut_under_a_handler_spends_none_of_its_attempts(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    fences: list[int] = []
    async with app_on(postgres_url) as app:

        @app.handler("work", retry=RetryPolicy(max_attempts=1))
        async def work(payload: Any, ctx: Context) -> None:
            async with ctx.transaction() as tx:
                fences.append(ctx.fence)
                if len(fences) == 1:
                    await asyncio.to_thread(cut_all, admin, postgres_url)
                await tx.execute("select 1")

        published = await app.publish("work")
        async with working(app):
            await until(lambda: len(fences) == 2)
        event = await app.event(published.id)

    assert event is not None
    assert (event.status, event.attempts) == (Status.DELIVERED, 1)


async def test_publishing_works_again_after_connections_were_cut(postgres_url: str, admin: psycopg.Connection) -> None:
    async with app_on(postgres_url) as app:
        await app.publish("x", 1)
        cut_all(admin, postgres_url)
        for _ in range(20):
            try:
                await app.publish("x", 2)
                break
            except StoreUnavailable:
                continue
        assert len(await app.events()) == 2


async def test_a_silent_server_costs_an_error_and_not_a_hanging_call(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    """SIGSTOP on the backend: the connection is open, and nothing ever comes back."""
    from redrive.clock import SystemClock

    store = PostgresStore(postgres_url, SystemClock(), call_seconds=1.0, transactions=1)
    await store.open()
    await store.migrate()
    pid = await store._run(lambda connection: connection.fetchval("select pg_backend_pid()"))
    began = time.monotonic()
    try:
        with silenced(admin, pid):
            with pytest.raises(StoreUnavailable):
                await store.counts()
            took = time.monotonic() - began
            counts = await store.counts()
    finally:
        await store.close()

    assert took < 30.0
    assert counts == {}


async def test_a_worker_goes_on_when_its_backend_falls_silent(postgres_url: str, admin: psycopg.Connection) -> None:
    seen: list[int] = []
    app = Redrive(postgres_url, retry=FAST, migrate=True)
    store = app.store
    assert isinstance(store, PostgresStore)
    store._call_seconds = 1.5

    @app.handler("work")
    async def work(payload: int) -> None:
        seen.append(payload)

    async with app:
        async with working(app, lease="30s") as worker:
            await app.publish("work", 1)
            await until(lambda: seen == [1])
            pid = worker._claims._connection.get_server_pid()  # type: ignore[attr-defined]
            with silenced(admin, pid):
                await app.publish("work", 2)
                await until(lambda: seen == [1, 2])

        async def delivered() -> bool:
            return {event.status for event in await app.events()} == {Status.DELIVERED}

        await until(delivered)


async def test_what_was_claimed_by_an_answer_that_never_arrived_is_put_back(postgres_url: str) -> None:
    """The rows are ours, their lease is renewed, and nobody would ever run them: `forget` finds them."""
    from redrive.store.base import Finished, Session

    async with app_on(postgres_url) as app:
        await app.publish("work", 1)
        session = Session(app.clock.new_id(), "w", "h", 1, ("default",), (), 1)
        await app.store.begin_session(session, 60.0)
        claims = app.store.claims(session.id, [("default", 1, 0)], actor="w")
        await claims.turn(Finished(), 10)

        forgotten = await claims.forget([], max_lost=5)

        await claims.close()
        (event,) = await app.events()
        assert forgotten == 1
        assert (event.status, event.attempts) == (Status.PENDING, 0)


async def test_what_was_to_be_put_back_before_a_silence_is_not_put_back_after_it(postgres_url: str) -> None:
    """The backend reads the statement when it wakes up; by then the worker has given up, and claimed anew."""
    from redrive.store.base import Finished, Session

    async with app_on(postgres_url) as app:
        store = app.store
        assert isinstance(store, PostgresStore)
        store._call_seconds = 1.0
        session = Session(app.clock.new_id(), "w", "h", 1, ("default",), (), 1)
        await store.begin_session(session, 60.0)
        silent, awake = (store.claims(session.id, [("default", 1, 0)], actor="w") for _ in range(2))
        await silent.forget([], max_lost=5)
        assert silent._connection is not None
        pid, ask = silent._connection.get_server_pid(), silent._ask

        async def falling_silent(text: str, *values: Any) -> list[Any]:
            if "redrive.outbox" in text:
                os.kill(pid, signal.SIGSTOP)
            return await ask(text, *values)

        silent._ask = falling_silent  # type: ignore[method-assign]
        try:
            with pytest.raises(StoreUnavailable):
                await silent.forget([], max_lost=5)
            await app.publish("work", 1)
            assert len((await awake.turn(Finished(), 1)).claimed) == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not Path(f"/proc/{pid}").exists())  # it has done what it was told, and found us gone
        await awake.close()
        (event,) = await app.events()

    assert event.status is Status.IN_FLIGHT


@pytest.mark.req("O9")
async def test_through_a_transaction_pooler_the_worker_needs_neither_listen_nor_prepared_statements(
    postgres_url: str,
) -> None:
    seen: list[int] = []
    app = Redrive(f"{postgres_url}?pooler=transaction", retry=FAST, migrate=True)

    @app.handler("work")
    async def work(payload: int) -> None:
        seen.append(payload)

    async with app, working(app, poll="100ms"):
        await app.publish("work", 1)
        await until(lambda: seen == [1])


@pytest.mark.req("O9")
async def test_a_lost_listener_comes_back(postgres_url: str, admin: psycopg.Connection) -> None:
    seen: list[float] = []
    async with app_on(postgres_url) as app:

        @app.handler("work")
        async def work(payload: Any) -> None:
            seen.append(time.monotonic())

        async with working(app, poll="30s"):
            await asyncio.sleep(0.3)
            cut_all(admin, postgres_url)
            await asyncio.sleep(2.5)
            began = time.monotonic()
            for _ in range(20):
                try:
                    await app.publish("work")
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
            await until(lambda: bool(seen))

    assert seen[0] - began < 20.0  # and not at the poll
