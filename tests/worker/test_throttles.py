"""How many run at once and how many start in a second, over all workers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from redrive import (
    ConfigurationError,
    Context,
    DependencyUnavailable,
    Priority,
    Redrive,
    RetryPolicy,
    Status,
    StoreUnavailable,
)
from tests.servers import Postgres
from tests.waiting import until
from tests.worker.conftest import FAST, found, working


class Watched:
    """Counts how many run at the same time, and when each began."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.begun: list[float] = []
        self.order: list[Any] = []

    @asynccontextmanager
    async def one(self, payload: Any = None) -> AsyncIterator[None]:
        self.begun.append(time.monotonic())
        self.order.append(payload)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1


def limited(url: str, watched: Watched, *, seconds: float = 0.0, generation: int = 0, **limits: Any) -> Redrive:
    app = Redrive(url, retry=FAST, migrate=True, generation=generation)

    @app.handler("mail.due", **limits)
    async def send(payload: Any) -> None:
        async with watched.one(payload):
            await asyncio.sleep(seconds)

    return app


async def statuses(app: Redrive, ids: list[UUID]) -> list[Status]:
    return [(await found(app, each)).status for each in ids]


@pytest.mark.req("A8")
async def test_one_at_a_time_never_overlaps_across_two_workers(store_url: str) -> None:
    watched = Watched()
    apps = [limited(store_url, watched, seconds=0.01, concurrency=1) for _ in range(2)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        published = await apps[0].publish_many([("mail.due", n) for n in range(60)])
        for app in apps:
            await stack.enter_async_context(working(app))
        await until(lambda: len(watched.begun) >= 60)

    assert watched.most == 1
    assert sorted(watched.order) == list(range(60))
    async with apps[0]:
        events = [await found(apps[0], each.id) for each in published]
    assert {event.status for event in events} == {Status.DELIVERED}
    assert {event.attempts for event in events} == {1}


@pytest.mark.req("A8")
async def test_one_that_has_only_one_chance_left_waits_for_a_permit_too(store_url: str) -> None:
    watched = Watched()
    apps = [limited(store_url, watched, seconds=0.5, concurrency=1) for _ in range(2)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        held = await apps[0].publish("mail.due", "held")
        await stack.enter_async_context(working(apps[0], max_lost=3, concurrency=1))
        await until(lambda: watched.order == ["held"])
        suspect = await apps[0].publish("mail.due", "suspect")
        table = "redrive.outbox" if apps[0].store.name == "postgres" else "redrive_outbox"
        async with apps[0].store.transaction() as tx:
            await tx.execute(f"update {table} set lost_count = 2 where id = '{suspect.id}'")
        await stack.enter_async_context(working(apps[1], max_lost=3))
        await until(lambda: _all_delivered(apps[0], [held.id, suspect.id]))

    assert (watched.order, watched.most) == (["held", "suspect"], 1)


async def _all_delivered(app: Redrive, ids: list[UUID]) -> bool:
    return set(await statuses(app, ids)) == {Status.DELIVERED}


@pytest.mark.req("A8")
async def test_a_probe_of_a_dependency_does_not_run_beside_the_one_that_may(app: Redrive) -> None:
    watched, over, tried = Watched(), asyncio.Event(), Counter[str]()
    app.dependency("api", threshold=1, probe_after=1.5, probe_cap=1.5)  # by then the long one has begun

    @app.handler("mail.due", concurrency=1)
    async def send(payload: str) -> None:
        async with watched.one(payload):
            tried[payload] += 1
            if payload == "down" and tried[payload] == 1:
                raise DependencyUnavailable("api")
            if payload == "long":
                await over.wait()

    async with working(app) as worker:
        down = await app.publish("mail.due", "down")
        await until(lambda: tried["down"] == 1)
        long = await app.publish("mail.due", "long")
        await until(lambda: tried["long"] == 1)
        await until(lambda: worker.tally.throttled > 0)  # the probe has found no place
        over.set()
        await until(lambda: _all_delivered(app, [down.id, long.id]))

    assert watched.most == 1


@pytest.mark.req("A8")
async def test_a_drain_runs_what_waited_for_a_limit_that_is_no_more(app: Redrive) -> None:
    @app.handler("mail.due")
    async def send(_: Any) -> None: ...

    await app.set_policy("mail.due", rate="1/d", by="ann", reason="slowly")
    published = await app.publish_many([("mail.due", n) for n in range(3)])
    await app.worker().drain()
    assert sorted(await statuses(app, [each.id for each in published])).count(Status.BLOCKED) == 2

    await app.clear_policy("mail.due", by="ann", reason="as fast as it goes")
    await app.worker().drain()

    assert await _all_delivered(app, [each.id for each in published])


@pytest.mark.req("A8")
async def test_a_rate_holds_over_two_workers(store_url: str) -> None:
    watched = Watched()
    apps = [limited(store_url, watched, rate="20/s") for _ in range(2)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        await apps[0].publish_many([("mail.due", n) for n in range(200)])
        began = time.monotonic()
        for app in apps:
            await stack.enter_async_context(working(app))
        await until(lambda: len(watched.begun) >= 80)
        ended = watched.begun[79]

    # 20 a second, and one batch (a fifth of a second's worth); starts are seen after their permits, never before.
    for count, at in enumerate(watched.begun, 1):
        assert count <= 20 * (at - began) + 4 + 1, f"{count} began within {at - began} s"
    assert ended - began < 20, "it should take about 4 s"


@pytest.mark.req("A8")
async def test_what_waits_for_its_limit_spends_nothing_and_is_seen(app: Redrive) -> None:
    gate = asyncio.Event()

    @app.handler("mail.due", concurrency=1)
    async def send(_: Any) -> None:
        await gate.wait()

    async with working(app) as worker:
        published = await app.publish_many([("mail.due", n) for n in range(3)])
        await until(lambda: worker.tally.throttled == 2)

        async def two_wait() -> bool:
            return sorted(await statuses(app, [each.id for each in published])).count(Status.BLOCKED) == 2

        await until(two_wait)
        waiting = [await found(app, each.id) for each in published]
        assert sorted(event.attempts for event in waiting) == [0, 0, 1]
        gate.set()

        async def all_done() -> bool:
            return set(await statuses(app, [each.id for each in published])) == {Status.DELIVERED}

        await until(all_done)
    events = [await found(app, each.id) for each in published]
    assert [event.attempts for event in events] == [1, 1, 1]


@pytest.mark.req("A8")
async def test_a_limit_comes_and_goes_while_the_worker_runs(app: Redrive) -> None:
    watched = Watched()

    @app.handler("mail.due")
    async def send(_: Any) -> None:
        async with watched.one():
            await asyncio.sleep(0.02)

    async with working(app, concurrency=20) as worker:
        await app.set_policy("mail.*", by="ann", reason="they complain", concurrency=1, rate="1/m")
        await until(lambda: bool(worker._throttles._gates))
        await app.publish_many([("mail.due", n) for n in range(800)])
        await until(lambda: worker.tally.throttled >= 799)
        assert len(watched.begun) == 1

        await app.set_policy("mail.*", by="ann", reason="a little more", concurrency=2, rate="none")
        await until(lambda: len(watched.begun) >= 10)
        assert watched.most <= 2

        await app.clear_policy("mail.*", by="ann", reason="they are glad")
        await until(lambda: len(watched.begun) == 800)
    assert watched.most > 2


async def test_permits_of_a_worker_that_died_come_free(store_url: str) -> None:
    watched = Watched()
    dead, heir = (limited(store_url, watched, seconds=0.01, concurrency=1) for _ in range(2))
    async with dead, heir:
        await dead.publish("mail.due", 0)
        worker = dead.worker(lease="1s")
        async with worker._at_work(alive=False):
            await worker._turn()
            await worker._admit()
            worker._end_session = _nothing  # type: ignore[method-assign]
            (used,) = await dead.store.ask("throttle_used", target="mail.due", session=UUID(int=0))
            assert used["used"] == 1
            await dead.publish("mail.due", 1)
            async with working(heir, lease="1s"):
                await until(lambda: 1 in watched.order)


async def _nothing() -> None:
    return None


async def test_the_unlimited_do_not_wait_for_the_limited(app: Redrive) -> None:
    done: list[int] = []

    @app.handler("mail.due", rate="1/m")
    async def send(_: Any) -> None: ...

    @app.handler("order.paid")
    async def ship(number: int) -> None:
        done.append(number)

    await app.publish_many([("mail.due", n) for n in range(2_000)])
    await app.publish_many([("order.paid", n) for n in range(100)])
    async with working(app, concurrency=5):
        await until(lambda: len(done) == 100)


async def test_what_is_more_urgent_gets_the_next_permit(app: Redrive) -> None:
    watched = Watched()
    gate = asyncio.Event()

    @app.handler("mail.due", concurrency=1)
    async def send(payload: str) -> None:
        async with watched.one(payload):
            await gate.wait()

    async with working(app) as worker:
        await app.publish("mail.due", "first")
        await until(lambda: watched.order == ["first"])
        await app.publish("mail.due", "redriven", priority=Priority.REDRIVEN)
        await app.publish("mail.due", "normal")
        await app.publish("mail.due", "urgent", priority=Priority.HIGH)
        await until(lambda: worker.tally.throttled == 3)
        gate.set()
        await until(lambda: len(watched.order) == 4)
    assert watched.order == ["first", "urgent", "normal", "redriven"]


async def test_an_event_that_waits_can_be_called_off(app: Redrive) -> None:
    @app.handler("mail.due", rate="1/d")
    async def send(_: Any) -> None: ...

    first, second = await app.publish_many([("mail.due", 1), ("mail.due", 2)])
    await app.worker().drain()
    assert await statuses(app, [first.id, second.id]) == [Status.DELIVERED, Status.BLOCKED]
    await app.cancel(second.id, by="ann", reason="not needed")
    await app.worker().drain()
    assert await statuses(app, [second.id]) == [Status.CANCELLED]


async def test_draining_runs_all_that_a_concurrency_allows_one_after_the_other(app: Redrive) -> None:
    watched = Watched()

    @app.handler("mail.due", concurrency=3)
    async def send(payload: int) -> None:
        async with watched.one(payload):
            await asyncio.sleep(0.001)

    await app.publish_many([("mail.due", n) for n in range(40)])
    tally = await app.worker().drain()
    assert tally.delivered == 40
    assert watched.most == 3


async def test_retries_of_a_limited_handler_need_a_permit_each(app: Redrive) -> None:
    begun: list[float] = []

    @app.handler("mail.due", rate="10/s", retry=RetryPolicy(max_attempts=5, base_delay=0, jitter="none"))
    async def send(_: Any) -> None:
        begun.append(time.monotonic())
        raise RuntimeError("no")

    began = time.monotonic()
    async with working(app):
        published = await app.publish_many([("mail.due", n) for n in range(3)])

        async def all_dead() -> bool:
            return set(await statuses(app, [each.id for each in published])) == {Status.FAILED}

        await until(all_dead)
    assert len(begun) == 15
    assert begun[-1] - began > 1.0
    assert {(await found(app, each.id)).attempts for each in published} == {5}


async def test_a_stopping_worker_gives_back_what_has_no_permit(app: Redrive) -> None:
    @app.handler("mail.due", concurrency=1)
    async def send(_: Any) -> None:
        await asyncio.sleep(0.05)

    published = await app.publish_many([("mail.due", n) for n in range(30)])
    async with working(app) as worker:
        await until(lambda: worker.tally.delivered >= 1)
    left = await statuses(app, [each.id for each in published])
    assert Status.IN_FLIGHT not in left
    await app.worker().drain()
    assert set(await statuses(app, [each.id for each in published])) == {Status.DELIVERED}


@pytest.mark.parametrize("limits", [{"concurrency": 0}, {"concurrency": 1.5}, {"rate": "fast"}, {"rate": "0/s"}])
async def test_a_limit_that_cannot_work_is_refused_where_it_is_written(sqlite_url: str, limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        limited(sqlite_url, Watched(), **limits)


@pytest.mark.lab_short
async def test_cut_connections_neither_lose_an_event_nor_break_the_limit(
    postgres_url: str, postgres_server: Postgres
) -> None:
    watched = Watched()
    app = limited(postgres_url, watched, seconds=0.005, concurrency=2)
    name = postgres_url.rsplit("/", 1)[1]
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"

    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        async with app:
            await app.publish_many([("mail.due", n) for n in range(200)])
            async with working(app, lease="2s"):
                for _ in range(8):
                    await asyncio.sleep(0.1)
                    admin.execute(cut, (name,))

                async def all_ended() -> bool:
                    try:
                        return {status for _, status in await app.store.counts()} == {"delivered"}
                    except StoreUnavailable:
                        return False

                await until(all_ended)
    assert watched.most <= 2
    assert set(watched.order) == set(range(200))


async def test_a_place_comes_free_when_the_handlers_own_transaction_has_settled_the_event(app: Redrive) -> None:
    done: list[int] = []

    @app.handler("mail.due", concurrency=1)
    async def send(payload: int, ctx: Context) -> None:
        async with ctx.transaction():
            done.append(payload)

    published = await app.publish_many([("mail.due", n) for n in range(20)])
    async with working(app, concurrency=1):
        await until(lambda: len(done) == 20, 60)  # not if each place was missed for a while
    assert set(await statuses(app, [each.id for each in published])) == {Status.DELIVERED}


async def test_what_runs_when_a_limit_comes_counts_for_the_other_workers_too(app: Redrive) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @app.handler("mail.due", rate="100/s")
    async def send(_: Any) -> None:
        begun.set()
        await gate.wait()

    async def used() -> int:
        (row,) = await app.store.ask("throttle_used", target="mail.due", session=UUID(int=0))
        return int(row["used"])

    async with working(app):
        await app.publish("mail.due", 1)
        await begun.wait()
        assert await used() == 0
        await app.set_policy("mail.due", by="ann", reason="one at a time", concurrency=1)

        async def is_counted() -> bool:
            return await used() == 1

        await until(is_counted)
        gate.set()

        async def is_free() -> bool:
            return await used() == 0

        await until(is_free)


@pytest.mark.req("B6")
async def test_an_ordering_key_is_kept_by_those_who_wait_for_a_permit(store_url: str) -> None:
    watched = Watched()
    apps = [limited(store_url, watched, seconds=0.002, concurrency=3) for _ in range(2)]
    drafts: list[Any] = [("mail.due", [n % 5, n], {"ordering_key": f"customer-{n % 5}"}) for n in range(100)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        await apps[0].publish_many(drafts)
        for app in apps:
            await stack.enter_async_context(working(app))
        await until(lambda: len(watched.begun) >= 100)
    for key in range(5):
        mine = [number for of, number in watched.order if of == key]
        assert mine == sorted(mine)
    assert watched.most <= 3


@pytest.mark.req("B6")
async def test_a_replayed_elder_of_its_key_goes_before_one_that_waits_for_a_permit(app: Redrive) -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    @app.handler("mail.due", concurrency=1, on_failed="pass", retry=RetryPolicy(max_attempts=1))
    async def send(payload: str) -> None:
        begun.append(payload)
        if payload == "elder" and begun.count("elder") == 1:
            raise RuntimeError("no")
        if payload == "other":
            await gate.wait()

    async with working(app) as worker:
        elder = await app.publish("mail.due", "elder", ordering_key="k")
        await until(lambda: worker.tally.dead_lettered == 1)
        await app.publish("mail.due", "other")
        await until(lambda: "other" in begun)
        await app.publish("mail.due", "younger", ordering_key="k")
        await until(lambda: worker.tally.throttled == 1)
        await app.replay(elder.id, by="ann", reason="mended")
        await until(lambda: worker.tally.throttled == 2)
        gate.set()
        await until(lambda: len(begun) == 4)
    assert begun == ["elder", "other", "elder", "younger"]


async def test_only_workers_of_its_generation_take_what_waits(store_url: str) -> None:
    watched = [Watched(), Watched()]
    apps = [limited(store_url, mine, generation=number, rate="20/s") for number, mine in enumerate(watched, 1)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        for app, name in zip(apps, "ab", strict=True):
            await app.publish_many([("mail.due", f"{name}{n}") for n in range(15)])
        for app in apps:
            await stack.enter_async_context(working(app))
        await until(lambda: len(watched[0].order) + len(watched[1].order) == 30)
    assert {each[0] for each in watched[0].order} == {"a"}
    assert {each[0] for each in watched[1].order} == {"b"}


@pytest.mark.req("W4")
async def test_what_waits_for_its_limit_is_not_taken_for_what_waits_for_a_dependency(app: Redrive) -> None:
    @app.handler("mail.due", rate="1/d")
    async def send(_: Any) -> None: ...

    published = await app.publish_many([("mail.due", n) for n in range(5)])
    began = time.monotonic()
    async with working(app) as worker:
        await until(lambda: worker.tally.throttled >= 4)
        await until(lambda: time.monotonic() - began > 2)  # dependencies are tended twice a second
        assert worker.tally.throttled == 4, "somebody let them go in vain"
    assert await app.dependencies() == []
    assert (await statuses(app, [each.id for each in published])).count(Status.BLOCKED) == 4


async def test_nothing_that_waits_is_taken_from_a_paused_queue(app: Redrive) -> None:
    done: list[str] = []
    gate = asyncio.Event()

    @app.handler("mail.due", concurrency=1)
    async def send(payload: str) -> None:
        done.append(payload)
        if payload == "first":
            await gate.wait()

    async with working(app, queues=("default", "slow")) as worker:
        await app.publish("mail.due", "first")
        await until(lambda: done == ["first"])
        await app.publish("mail.due", "paused", queue="slow")
        await until(lambda: worker.tally.throttled == 1)
        await app.publish("mail.due", "second")
        await until(lambda: worker.tally.throttled == 2)
        await app.hold(queue="slow", by="ann", reason="not now")
        await until(lambda: worker._circuits.held_queues == {"slow"})
        gate.set()
        await until(lambda: len(done) == 2)
        assert done == ["first", "second"]
        await app.lift(queue="slow", by="ann", reason="now")
        await until(lambda: len(done) == 3)


async def test_a_worker_that_stops_does_not_look_for_permits_again_and_again(app: Redrive) -> None:
    """It gives none any more; looking in vain without a pause took a whole core for as long as handlers ran."""
    gate = asyncio.Event()
    running: list[str] = []

    @app.handler("mail.due", concurrency=1)
    async def send(payload: str) -> None:
        running.append(payload)
        await gate.wait()

    async with working(app) as worker:
        await app.publish("mail.due", "first")
        await until(lambda: running == ["first"])
        looks = 0
        due = worker._throttles.due

        def counted(*, every: bool = False) -> list[str]:
            nonlocal looks
            looks += 1
            return due(every=every)

        worker._throttles.due = counted  # type: ignore[method-assign]
        worker.stop()
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 1.5)
        gate.set()

    assert looks < 50
