"""A stranger's open transaction holds a row while workers turn: nobody else stands still, and all ends as it should."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from redrive import DependencyUnavailable, Redrive, Rejected, RetryPolicy, Status
from redrive.trail import verify
from tests.waiting import until
from tests.worker.conftest import found, working

pytestmark = pytest.mark.promise("not-stuck")

OTHERS = 40


@dataclass
class World:
    """An app whose handlers wait until they are told to end, and what they have done."""

    app: Redrive
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    carrier_is_up: bool = True


def world(url: str) -> World:
    app = Redrive(url, retry=RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02), migrate=True)
    app.dependency("carrier", probe_after="200ms", probe_cap="400ms")
    this = World(app)

    @app.handler("slow")
    async def slow(payload: Any) -> None:
        this.begun[payload["name"]] += 1
        await this.gate.wait()
        this.done[payload["name"]] += 1

    @app.handler("other")
    async def other(payload: Any) -> None:
        this.done["other"] += 1

    @app.handler("limited", concurrency=1)
    async def limited(payload: Any) -> None:
        this.done["limited"] += 1

    @app.handler("second", concurrency=1)
    async def second(payload: Any) -> None:
        this.done["second"] += 1

    @app.handler("failing")
    async def failing(payload: Any) -> None:
        this.done["failing"] += 1
        raise Rejected("no")

    @app.handler("shipping", needs=["carrier"])
    async def shipping(payload: Any) -> None:
        if not this.carrier_is_up:
            raise DependencyUnavailable("carrier")
        this.done["shipping"] += 1

    return this


@contextmanager
def held(url: str, statement: LiteralString, **parameters: object) -> Iterator[None]:
    """Run a statement in a transaction that stays open for the length of the block."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(statement, parameters)
        assert rows.rowcount >= 1, "the stranger holds nothing"
        yield
        connection.commit()


async def publish_others(this: World, *types: str) -> None:
    for type_ in types:
        await this.app.publish_many([(type_, {"n": n}) for n in range(OTHERS)])


@asynccontextmanager
async def crew(this: World) -> AsyncIterator[None]:
    async with working(this.app, concurrency=10, lease="3s", poll="100ms", drain="20s"):
        yield


async def all_ended(this: World) -> None:
    """Wait until nothing is under way, and look that the trail is whole."""

    async def is_over() -> bool:
        counts = await this.app.store.counts()
        return sum(n for (_, status), n in counts.items() if status in ("pending", "in_flight", "blocked")) == 0

    await until(is_over)
    assert (await verify(this.app.store.trail(), {})).problems == []


HOLDS: dict[str, LiteralString] = {
    "its row": "select from redrive.outbox where id = %(id)s for update",
    "its row, by a cancel": "select redrive.cancel(%(id)s, 'stranger', 'forgot to commit')",
    "the next of its key": "select from redrive.outbox where ordering_key = 'k' and status = 'blocked' for update",
    "its batch": "select from redrive.batch for update",
    "its batch, by name": "select redrive.batch_lock(id) from redrive.batch",
}


@pytest.mark.req("O5")
@pytest.mark.parametrize("what", HOLDS)
async def test_an_event_whose_end_a_stranger_holds_up_keeps_no_other_waiting(postgres_url: str, what: str) -> None:
    this = world(postgres_url)
    async with this.app as app:
        async with await app.batches.open("import") as batch:
            first = await batch.add("slow", {"name": "first"}, ordering_key="k")
            await app.publish("slow", {"name": "next"}, ordering_key="k")
        async with crew(this):
            await until(lambda: this.begun["first"] == 1)
            await until(lambda: is_status(this, Status.BLOCKED))
            with held(postgres_url, HOLDS[what], id=first.id):
                this.gate.set()
                await until(lambda: this.done["first"] == 1)
                await publish_others(this, "other", "limited", "failing")
                await until(lambda: all(this.done[each] == OTHERS for each in ("other", "limited", "failing")))
                await until(lambda: is_status(this, Status.FAILED, OTHERS))
                assert (await found(app, first.id)).status is Status.IN_FLIGHT
            await all_ended(this)

        assert this.done["first"] == this.done["next"] == 1
        expected = Status.CANCELLED if "cancel" in what else Status.DELIVERED
        assert (await found(app, first.id)).status is expected


@pytest.mark.req("O5")
async def test_dead_letters_whose_group_a_stranger_holds_keep_no_other_waiting(postgres_url: str) -> None:
    this = world(postgres_url)
    async with this.app as app:
        dead = await app.publish("failing", {})
        async with crew(this):
            await until(lambda: is_status(this, Status.FAILED))
            with held(postgres_url, "select redrive.outbox_replay(%(id)s, null, 'stranger')", id=dead.id):
                await publish_others(this, "failing", "other", "limited")
                await until(lambda: all(this.done[each] >= OTHERS for each in ("other", "limited", "failing")))
            await all_ended(this)

        assert (await app.store.counts())["failing", "failed"] == OTHERS + 1


ROWS: dict[str, LiteralString] = {
    "the session": "select from redrive.session for update",
    "a circuit": "select from redrive.dependency for update",
    "the limits of a target": "select from redrive.throttle where target = 'limited' for update",
    "the permits of a target": "select from redrive.throttle_use where target = 'limited' for update",
    "a redrive": "select from redrive.redrive for update",
    "a member of a redrive": "select from redrive.outbox where status = 'failed' for update",
    "a schedule": "select from redrive.schedule for update",
    "a schedule, by name": "select pg_advisory_xact_lock(hashtextextended('redrive.schedule:tick', 0))",
    "the operators' chain": "select pg_advisory_xact_lock(hashtextextended('redrive.trail:operator', 0))",
    "a replay": "select redrive.outbox_replay(id, null, 'stranger') from redrive.outbox where status = 'failed'",
}


@pytest.mark.req("O5")
@pytest.mark.parametrize("what", ROWS)
async def test_a_row_of_the_engine_that_a_stranger_holds_keeps_no_worker_waiting(postgres_url: str, what: str) -> None:
    """Its lease lasts 3 s: a worker whose heartbeat waits for long must not lose its session, and keeps its events."""
    this = world(postgres_url)
    others = ("other", "second") if "of a target" in what else ("other", "limited", "second")
    async with this.app as app:
        app.schedules.add("tick", "other", {}, every="1d")
        await publish_others(this, "limited", "second")
        for _ in range(3):
            await app.publish("failing", {})
        async with crew(this):
            await until(lambda: this.done["limited"] == this.done["second"] == OTHERS)
            await until(lambda: is_status(this, Status.FAILED, 3))
            plan = await app.plan("status:failed", by="ann")
            before = await sessions(app)
            with held(postgres_url, ROWS[what]):
                starting = asyncio.ensure_future(app.start(plan.redrive.token, by="ann", reason="again"))
                this.carrier_is_up = False
                await publish_others(this, *others, "shipping")
                await until(lambda: all(this.done[each] == OTHERS * (1 + (each != "other")) for each in others))
                await asyncio.sleep(4.0 if what == "the session" else 1.0)
                await publish_others(this, *others)
                await until(lambda: all(this.done[each] == OTHERS * (2 + (each != "other")) for each in others))
            await asyncio.gather(starting, return_exceptions=True)
            this.carrier_is_up = True
            await all_ended(this)

        assert await sessions(app) == before
        assert this.done["shipping"] == OTHERS


@pytest.mark.req("O5")
async def test_a_worker_writes_its_own_chain_while_a_stranger_holds_the_operators(postgres_url: str) -> None:
    """An open replay holds the operators' chain: a circuit opens all the same, for all workers."""
    this = world(postgres_url)
    this.carrier_is_up = False
    async with this.app as app:
        dead = await app.publish("failing", {})
        async with crew(this):
            await until(lambda: is_status(this, Status.FAILED))
            with held(postgres_url, "select redrive.outbox_replay(%(id)s, null, 'stranger')", id=dead.id):
                await publish_others(this, "shipping", "limited")
                await until(lambda: this.done["limited"] == OTHERS)
                await until(lambda: is_open(app))
            this.carrier_is_up = True
            await all_ended(this)

    assert this.done["shipping"] == OTHERS


async def is_open(app: Redrive) -> bool:
    return any(each.name == "carrier" and each.is_shut for each in await app.dependencies())


async def sessions(app: Redrive) -> set[UUID]:
    return {each.id for each in await app.store.sessions()}


async def is_status(this: World, status: Status, count: int = 1) -> bool:
    counts = await this.app.store.counts()
    return sum(n for (_, found), n in counts.items() if found == status) == count
