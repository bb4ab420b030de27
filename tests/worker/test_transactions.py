"""Transactions of handlers: more of them than connections, and what else goes on meanwhile."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from redrive import ConfigurationError, Context, Redrive, RetryPolicy, Status, StoreUnavailable, hook
from redrive.store.base import FENCE, TYPE
from redrive.store.connections import PLACES, Places, Use
from tests.stores.helpers import Hands
from tests.waiting import until
from tests.worker.conftest import FAST, working

ONCE = RetryPolicy(max_attempts=1)


async def all_delivered(app: Redrive, number: int) -> bool:
    counts = await app.store.counts()
    return sum(counts.values()) == number and {status for _, status in counts} == {"delivered"}


@pytest.mark.req("O9")
async def test_transactions_wait_for_a_connection_without_failing(postgres_url: str) -> None:
    """However short the time of a call is: waiting for one of our own connections is no call."""
    open_now = most = 0
    app = Redrive(postgres_url, retry=ONCE, migrate=True, transactions=2)
    app.store._call_seconds = 0.3  # type: ignore[attr-defined]

    @app.handler("work")
    async def work(payload: int, ctx: Context) -> None:
        nonlocal open_now, most
        async with ctx.transaction() as tx:
            open_now += 1
            most = max(most, open_now)
            await tx.execute("select pg_sleep(0.05)")
            await asyncio.sleep(0.05)
            await app.publish("told", payload)
            await ctx.publish("told", payload)
            open_now -= 1

    @app.handler("told")
    async def told(_payload: int) -> None: ...

    async with app:
        await app.publish_many([("work", n) for n in range(30)])
        async with working(app, concurrency=30) as worker:
            await until(lambda: all_delivered(app, 90))

    assert worker.tally.deferred == worker.tally.retried == worker.tally.dead_lettered == 0
    assert most <= 2


@pytest.mark.req("O9")
async def test_what_is_published_by_the_context_inside_a_transaction_is_part_of_it(store_url: str) -> None:
    app = Redrive(store_url, retry=FAST, migrate=True)
    seen: list[str] = []

    @app.handler("work")
    async def work(payload: str, ctx: Context) -> None:
        async with ctx.transaction():
            await asyncio.gather(*[ctx.publish("told", f"{payload} {ctx.attempt} {n}") for n in range(3)])
            if ctx.attempt == 1:
                raise ValueError("not yet")

    @app.handler("sync")
    def sync(payload: str, ctx: Context) -> None:
        with ctx.transaction():
            ctx.publish_sync("told", f"{payload} {ctx.attempt}")
            if ctx.attempt == 1:
                raise ValueError("not yet")

    @app.handler("told")
    async def told(payload: str) -> None:
        seen.append(payload)

    async with app:
        await app.publish("work", "a")
        await app.publish("sync", "b")
        async with working(app):
            await until(lambda: all_delivered(app, 6))

    assert sorted(seen) == ["a 2 0", "a 2 1", "a 2 2", "b 2"]


@pytest.mark.req("O9")
async def test_transactions_inside_transactions_do_not_wait_for_each_other(postgres_url: str) -> None:
    app = Redrive(postgres_url, retry=ONCE, migrate=True, transactions=2)
    app.store._call_seconds = 2.0  # type: ignore[attr-defined]

    @app.handler("work")
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("select 1")
            async with app.transaction() as other:
                await other.publish("deep", payload)
                async with app.transaction() as third:
                    await third.publish("deeper", payload)
                await app.schedules.ls()

    @app.handler("deep")
    @app.handler("deeper")
    async def deep(_payload: int) -> None: ...

    async with app:
        await app.publish_many([("work", n) for n in range(20)])
        async with working(app, concurrency=20):
            await until(lambda: all_delivered(app, 60))


@pytest.mark.req("O9")
async def test_cancels_schedules_and_publishing_go_on_while_every_transaction_is_open(postgres_url: str) -> None:
    app = Redrive(postgres_url, retry=ONCE, migrate=True, transactions=2)
    app.store._call_seconds = 1.0  # type: ignore[attr-defined]
    ticks: list[int] = []
    may_end = asyncio.Event()
    begun = 0

    @app.handler("long")
    async def long(_payload: int, ctx: Context) -> None:
        nonlocal begun
        async with ctx.transaction():
            begun += 1
            await may_end.wait()

    @app.handler("tick")
    async def tick(_payload: Any) -> None:
        ticks.append(begun)

    @app.handler("stop")
    async def stop(_payload: Any) -> None:
        await asyncio.Event().wait()

    async with app:
        app.schedules.add("often", "tick", every="1s")
        await app.publish_many([("long", n) for n in range(20)])
        called_off = await app.publish("stop")
        async with working(app, concurrency=50) as worker:
            await until(lambda: begun == 2)
            await asyncio.gather(*[app.publish("tick") for _ in range(50)])
            await app.cancel(called_off.id, by="test", reason="enough")
            await until(lambda: worker.tally.cancelled == 1)
            await until(lambda: len(ticks) >= 52)
            assert begun == 2, "they were all open until now"
            may_end.set()
            await until(lambda: begun == 20)

    assert worker.tally.dead_lettered == worker.tally.deferred == 0


@pytest.mark.req("O9")
async def test_hooks_that_publish_do_not_wait_for_other_hooks(postgres_url: str) -> None:
    app = Redrive(postgres_url, retry=ONCE, migrate=True, transactions=2)
    told: list[int] = []

    async def letter_written(letter: Any, _tx: Any) -> None:
        await app.publish("told", letter.payload)

    @app.handler("work", on_dead_letter=letter_written, brake=False)
    async def work(_payload: int) -> None:
        raise ValueError("always")

    @app.handler("told")
    async def hear(payload: int) -> None:
        told.append(payload)

    async with app:
        await app.publish_many([("work", n) for n in range(60)])
        async with working(app):
            await until(lambda: len(told) == 60)
        assert (await app.verify_trail()).sound
    assert sorted(told) == list(range(60))


@pytest.mark.req("O9")
async def test_a_slow_hook_keeps_nobody_else_from_settling(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_HOOK_SECONDS", 600.0)  # whoever waits for it shall not be helped by its end
    app = Redrive(postgres_url, retry=ONCE, migrate=True)
    app.store._call_seconds = 1.0  # type: ignore[attr-defined]
    may_end, begun = asyncio.Event(), asyncio.Event()

    async def slow(_letter: Any, _tx: Any) -> None:
        begun.set()
        await may_end.wait()

    @app.handler("slow", on_dead_letter=slow, brake=False)
    @app.handler("plain", brake=False)
    async def work(_payload: Any) -> None:
        raise ValueError("always")

    async with app:
        first = await app.publish("slow")
        async with working(app) as worker:
            await begun.wait()
            await app.publish_many([("plain", n) for n in range(5)])
            await until(lambda: worker.tally.dead_lettered == 6)

            async def plain_settled() -> bool:
                return (await app.store.counts()).get(("plain", "failed")) == 5

            await until(plain_settled)
            may_end.set()

            async def slow_settled() -> bool:
                event = await app.event(first.id)
                return event is not None and event.status is Status.FAILED

            await until(slow_settled)
        assert (await app.verify_trail()).sound


@pytest.mark.parametrize("fault", ["for ever", "unavailable"])
async def test_a_hook_has_a_bound(store_url: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_HOOK_SECONDS", 0.05)
    monkeypatch.setattr(hook, "_PATIENCE_SECONDS", 0.2)
    app = Redrive(store_url, retry=ONCE, migrate=True)

    async def hanging(_letter: Any, _tx: Any) -> None:
        if fault == "for ever":
            await asyncio.Event().wait()
        raise StoreUnavailable("another database does not answer")

    @app.handler("work", on_dead_letter=hanging)
    async def work(_payload: Any) -> None:
        raise ValueError("always")

    async with app:
        published = await app.publish("work")
        async with working(app) as worker:

            async def settled() -> bool:
                event = await app.event(published.id)
                return event is not None and event.status is Status.FAILED

            await until(settled)
            assert worker.counts.hooks_failed["work", "on_dead_letter"] == 1
        kinds = [entry.kind async for entry in app.store.trail(published.id)]
    assert "evidence-failed" in kinds


@pytest.mark.parametrize("end", ["commit", "error", "timeout"])
async def test_a_connection_is_clean_whatever_became_of_its_last_transaction(postgres_url: str, end: str) -> None:
    app = Redrive(postgres_url, migrate=True, transactions=1)
    async with app:
        pids = set()
        with pytest.raises(OSError) if end == "timeout" else pytest.raises(ValueError):
            async with app.transaction() as tx:
                pids.add((await tx.fetch("select pg_backend_pid()"))[0][0])
                for dirt in (
                    "select pg_advisory_lock(1)", "set work_mem = '77MB'", "create temp table rest (n int)",
                    "listen rest", "set lock_timeout = '7ms'", "create role somebody", "set role somebody", "commit",
                    "begin", "declare rest cursor with hold for select 1",
                ):  # fmt: skip
                    await tx.execute(dirt)
                if end == "error":
                    raise ValueError("failed")
                if end == "timeout":
                    raise TimeoutError
            raise ValueError("committed")
        async with app.transaction() as tx:
            pids.add((await tx.fetch("select pg_backend_pid()"))[0][0])
            left = {
                "locks": (await tx.fetch("select count(*) from pg_locks where locktype = 'advisory'"))[0][0],
                "memory": (await tx.fetch("show work_mem"))[0][0],
                "timeout": (await tx.fetch("show lock_timeout"))[0][0],
                "tables": (await tx.fetch("select count(*) from pg_class where relname = 'rest'"))[0][0],
                "channels": (await tx.fetch("select count(*) from pg_listening_channels()"))[0][0],
                "cursors": (await tx.fetch("select count(*) from pg_cursors where name = 'rest'"))[0][0],
                "role": (await tx.fetch("select current_user = session_user"))[0][0],
            }
            isolation = (await tx.fetch("show default_transaction_isolation"))[0][0]
            await tx.execute("drop role somebody")

    assert len(pids) == 1, "it is the same connection"
    assert left == {
        "locks": 0, "memory": "4MB", "timeout": "0", "tables": 0, "channels": 0, "cursors": 0, "role": True,
    }  # fmt: skip
    assert isolation == "read committed"


async def test_a_publisher_hears_nothing_of_the_states_of_the_driver(postgres_url: str) -> None:
    """Connections that the server ended while they were idle are replaced; what was not sent is sent on another."""
    app = Redrive(postgres_url, migrate=True)
    async with app:
        await asyncio.gather(*[app.publish("x", n) for n in range(20)])
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            for _ in range(10):
                query = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
                admin.execute(query + " and datname = current_database()")
                said = await asyncio.gather(*[app.publish("x", n) for n in range(20)], return_exceptions=True)
                assert not [each for each in said if "state" in str(each)]
                begun = await asyncio.gather(*[_touch(app) for n in range(5)], return_exceptions=True)
                assert not [each for each in begun if "state" in str(each)]


async def _touch(app: Redrive) -> None:
    async with app.transaction() as tx:
        await tx.execute("select 1")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_a_number_of_transactions_that_cannot_work_is_refused(postgres_url: str, wrong: Any) -> None:
    from redrive import PayloadRefused

    with pytest.raises((ConfigurationError, PayloadRefused), match="transactions"):
        Redrive(postgres_url, transactions=wrong)


async def test_a_queue_that_moves_is_no_error_and_one_that_stands_still_is() -> None:
    places = Places(1)
    await places.enter(None)

    async def one_after_the_other() -> None:
        await places.enter(0.2)
        await asyncio.sleep(0.1)
        places.note_progress()
        places.leave()

    waiting = [asyncio.create_task(one_after_the_other()) for _ in range(6)]
    await asyncio.sleep(0)
    places.leave()
    await asyncio.gather(*waiting)

    await places.enter(None)
    with pytest.raises(TimeoutError):
        await places.enter(0.05)
    called_off = asyncio.create_task(places.enter(None))
    await asyncio.sleep(0)
    called_off.cancel()
    places.leave()
    await asyncio.wait([called_off])
    await asyncio.wait_for(places.enter(None), 5)


def test_a_worker_fits_three_times_into_a_server_with_a_hundred_connections() -> None:
    own = 3  # turns, wake-ups, heartbeat
    reserved = 3  # of the server's 100, for its administrators
    assert 3 * (own + 10 + sum(PLACES.values())) <= 100 - reserved
    assert set(PLACES) == set(Use) - {Use.HANDLER, Use.APP}


@pytest.mark.req("O9")
async def test_the_wait_for_a_connection_is_not_the_time_of_the_attempt(store_url: str) -> None:
    app = Redrive(store_url, retry=ONCE, migrate=True, transactions=1)
    begun, seen = asyncio.Event(), []

    @app.handler("holds")
    async def holds(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            begun.set()
            await asyncio.sleep(2.5)

    @app.handler("waits", timeout="2s")
    async def waits(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            seen.append("async")

    @app.handler("waits.too", timeout="2s")
    def waits_too(_payload: Any, ctx: Context) -> None:
        with ctx.transaction():
            seen.append("sync")

    async with app:
        await app.publish_many([("holds", 0), ("waits", 1), ("waits.too", 2)])
        async with working(app) as worker:
            await begun.wait()
            await until(lambda: worker.tally.delivered == 3)

    assert worker.tally.timed_out == 0


@pytest.mark.req("O9")
async def test_the_deadline_of_an_event_goes_on_while_it_waits_for_a_connection(postgres_url: str) -> None:
    app = Redrive(postgres_url, retry=ONCE, migrate=True, transactions=1)
    may_end, begun = asyncio.Event(), asyncio.Event()

    @app.handler("holds")
    async def holds(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            begun.set()
            await may_end.wait()

    @app.handler("waits", timeout="30s", deadline="1s")
    async def waits(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            raise AssertionError("its deadline has passed")

    async with app:
        await app.publish("holds")
        async with working(app) as worker:
            await begun.wait()
            published = await app.publish("waits")
            await until(lambda: worker.tally.dead_lettered == 1)
            may_end.set()
        event = await app.event(published.id)
    assert event is not None
    assert event.error_type is not None
    assert "DeadlinePassed" in event.error_type


@pytest.mark.req("O9")
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_waiting_for_a_key_spends_nothing_and_ends_with_the_transaction_that_has_it(
    postgres_url: str, end: str
) -> None:
    app = Redrive(postgres_url, retry=ONCE, migrate=True)
    ran = 0

    @app.handler("work")
    async def work(_payload: Any, ctx: Context) -> None:
        nonlocal ran
        async with ctx.transaction():
            ran += 1

    async with app, app.transaction() as tx:
        await tx.execute("alter function redrive.mark_handled set lock_timeout = '100ms'")
        await tx.execute("commit")
        await tx.execute("begin")
    async with app:
        with psycopg.connect(postgres_url) as other:
            held = "insert into redrive.event_handled (target, idempotency_key, event_id, handled_at)"
            other.execute(held + " values ('work', 'k', gen_random_uuid(), now())")
            published = await app.publish("work", idempotency_key="k")
            async with working(app) as worker:
                await until(lambda: worker.tally.waited_for_key >= 1)
                other.commit() if end == "commit" else other.rollback()
                await until(lambda: worker.tally.delivered == 1)
        event = await app.event(published.id)

    assert event is not None
    assert (event.status, event.attempts, event.lost_count, event.deferred_count) == (Status.DELIVERED, 1, 0, 0)
    assert ran == (end == "rollback")


@pytest.mark.req("O9")
async def test_a_transaction_whose_lease_is_gone_is_ended_and_no_other(postgres_url: str) -> None:
    """As of a worker that was stopped inside it: nothing else would ever end it, or give its key free."""
    app = Redrive(postgres_url, retry=ONCE, migrate=True)
    other = Redrive(postgres_url)
    effects: list[int] = []

    @app.handler("work")
    async def work(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            effects.append(ctx.fence)

    async with app, other:
        published = await app.publish("work")
        kept = await app.publish("elsewhere")
        stopped = await Hands.begin(other)
        rows = {row[TYPE]: row for row in await stopped.claim()}
        alive = await Hands.begin(other)
        async with other.store.transaction(Use.HANDLER) as living:
            await living.mark_handled("elsewhere", "k", kept.id, rows["elsewhere"][FENCE])
            with pytest.raises(StoreUnavailable):
                async with other.store.transaction(Use.HANDLER) as tx:
                    await tx.mark_handled("work", str(published.id), published.id, rows["work"][FENCE])
                    async with app.transaction() as admin:
                        sets = "update redrive.outbox set session_id = $1 where id = $2"
                        await admin.execute(sets, alive.id, kept.id)
                        await admin.execute("update redrive.session set ended_at = now() where id = $1", stopped.id)
                    async with working(app, lease="1s") as worker:
                        await until(lambda: worker.tally.delivered == 1)
                    await tx.execute("select 1")
            await living.execute("select 1")
        await stopped.claims.close()
        await alive.claims.close()
        event = await app.event(published.id)

    assert event is not None
    assert (event.status, event.attempts, event.lost_count) == (Status.DELIVERED, 1, 1)
    assert len(effects) == 1


@asynccontextmanager
async def limited_to(url: str, connections: int) -> AsyncIterator[str]:
    """Give a role that may have so many connections, as a server has that is nearly full."""
    name = f"few_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as admin:
        async with Redrive(url, migrate=True):
            pass

        def run(text: str) -> None:
            admin.execute(text.format(name=name).encode())

        run(f"create role {{name}} login password 'few' connection limit {connections}")
        run("grant all on schema redrive, public to {name}")
        run("grant all on all tables in schema redrive to {name}")
        run("grant all on all sequences in schema redrive to {name}")
        parts = urlsplit(url)
        try:
            yield urlunsplit(parts._replace(netloc=f"{name}:few@{parts.netloc.rpartition('@')[2]}"))
        finally:
            run("drop owned by {name}")
            run("drop role {name}")


@pytest.mark.req("O9")
async def test_a_server_without_a_free_connection_is_named_so(postgres_url: str) -> None:
    async with limited_to(postgres_url, 1) as few, Redrive(few) as app:
        async with app.transaction() as tx:
            with pytest.raises(StoreUnavailable, match="has no free connection"):
                await app.publish("x")
            await tx.execute("select 1")
        await app.publish("x")


@pytest.mark.req("O9")
async def test_transactions_share_the_connections_that_the_server_has_left(postgres_url: str) -> None:
    async with limited_to(postgres_url, 7) as few:
        app = Redrive(few, retry=ONCE)

        @app.handler("work")
        async def work(_payload: int, ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("select pg_sleep(0.02)")

        async with app:
            await app.publish_many([("work", n) for n in range(30)])
            async with working(app) as worker:
                await until(lambda: worker.tally.delivered == 30)

        assert worker.tally.deferred == worker.tally.dead_lettered == 0
