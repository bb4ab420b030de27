"""What others do at the same moment: nothing is counted twice, replayed twice, or held up for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from redrive import EventFilter, Redrive, Refused, RetryPolicy, Status, redrive
from redrive.clock import VirtualClock
from tests.redrive.helpers import Shop, items, sound
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = pytest.mark.promise("redrive-safe")


@pytest.fixture
async def on_postgres(postgres_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(postgres_url, retry=RetryPolicy(max_attempts=1), migrate=True) as app:
        yield app


@asynccontextmanager
async def beside(app: Redrive) -> AsyncIterator[Any]:
    """A connection of somebody else, in a transaction."""
    connection = await asyncpg.connect(app.url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def is_waiting(app: Redrive, number: int = 1) -> bool:
    async with app.store.transaction() as tx:
        ((waiting,),) = await tx.fetch(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
    return bool(waiting >= number)


async def while_it_waits(app: Redrive, act: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begin something that has to wait for a lock, and come back when it does."""
    task = asyncio.ensure_future(act)
    await until(lambda: is_waiting(app))
    return task


@pytest.mark.req("B1")
async def test_outcomes_that_two_note_at_once_are_counted_once(on_postgres: Redrive) -> None:
    app, shop = on_postgres, Shop(on_postgres)
    await shop.bury(5)
    shop.broken = False
    running = await shop.start(await shop.plan())
    await shop.tick()
    hands = app.worker()
    async with app.store.transaction() as tx:  # as if a worker had delivered them, and not ticked yet
        await tx.execute("update redrive.outbox set status = 'delivered', ended_at = now() where status = 'pending'")

    async with beside(app) as first:
        await first.execute("select redrive.note_outcomes($1, null)", running.id)
        second = await while_it_waits(app, _note(app, running.id))
    await second

    assert hands.tally.claimed == 0
    assert (await sound(app, running.id)).delivered == 5


async def _note(app: Redrive, redrive_id: UUID) -> None:
    async with app.store.transaction() as tx:
        await tx.note_outcomes(redrive_id)


@pytest.mark.req("B1")
async def test_a_release_sees_what_was_done_to_a_member_while_it_waited(on_postgres: Redrive) -> None:
    app, shop = on_postgres, Shop(on_postgres)
    await shop.bury(3)
    plan = await shop.plan()
    one, two, three = await app.events()
    await app.discard(one.id, by="bob", reason="not needed")
    running = await shop.start(plan)

    async with beside(app) as other:
        await other.execute("update redrive.outbox set deleted_at = null where id = $1", one.id)
        await other.execute("select redrive.count_dead(array[$1::uuid], false, now())", one.id)
        await other.execute("update redrive.outbox set deleted_at = now() where id = $1", two.id)
        await other.execute("select redrive.uncount_dead(array[$1::text])", two.fingerprint)
        ticking = await while_it_waits(app, shop.tick())
    await ticking

    states = {each["event_id"]: (each["state"], each["reason"]) for each in await items(app, running.id)}
    assert states == {
        one.id: ("released", None),
        two.id: ("skipped", "it was discarded"),
        three.id: ("released", None),
    }
    await sound(app, running.id)


@pytest.mark.req("B1")
async def test_who_resumes_what_is_halted_in_that_moment_says_that_it_was(on_postgres: Redrive) -> None:
    app, shop = on_postgres, Shop(on_postgres)
    await shop.bury(2)
    running = await shop.start(await shop.plan(), rate=1.0)

    async with beside(app) as other:
        await other.execute("update redrive.redrive set state = 'halted'")
        resuming = await while_it_waits(app, app.resume(running.id, by="bob"))
    resumed = await resuming

    assert resumed.state == "running"
    assert [each.facts["was"] async for each in app.store.trail() if each.kind == "redrive-resumed"] == ["halted"]


@pytest.mark.parametrize("act", ["settle", "release", "discard", "restore"])
async def test_who_waits_for_a_group_holds_no_chain_of_the_trail(on_postgres: Redrive, act: str) -> None:
    app, shop = on_postgres, Shop(on_postgres)
    await shop.bury(2)
    (event, *_) = await app.events()
    if act == "release":
        await shop.start(await shop.plan())
    if act == "restore":
        await app.discard(event.id, by="bob", reason="x")
    if act == "settle":
        await app.publish("order.paid", {"n": 3})
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "settle": lambda: app.worker().drain(),
        "release": shop.tick,
        "discard": lambda: app.discard(event.id, by="bob", reason="x"),
        "restore": lambda: app.restore(event.id, by="bob", reason="x"),
    }

    async with beside(app) as other:
        await other.execute("select from redrive.failure_group for update")
        acting = await while_it_waits(app, acts[act]())
        held = await other.fetchval(
            "select count(*) from pg_locks where locktype = 'advisory' and granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
    await acting

    assert held == 0


@pytest.mark.req("B2")
async def test_groups_counted_anew_while_dead_letters_come_in_are_right(on_postgres: Redrive) -> None:
    app, shop = on_postgres, Shop(on_postgres)
    await shop.bury(2)
    (event, *_) = await app.events()

    async with beside(app) as other:
        await other.execute("update redrive.outbox set deleted_at = now() where id = $1", event.id)
        await other.execute("select redrive.uncount_dead(array[$1::text])", event.fingerprint)
        rebuilding = await while_it_waits(app, _rebuild(app))
    assert await rebuilding == {}

    (group,) = await app.groups()
    assert group.dead_count == 1


async def _rebuild(app: Redrive) -> dict[str, int]:
    from redrive import group

    return await group.rebuild(app.store)


async def test_a_replay_beaten_by_a_publish_of_its_retry_key_is_refused(on_postgres: Redrive) -> None:
    app, _shop = on_postgres, Shop(on_postgres)
    await app.publish("order.paid", {}, retry_key="k")
    await app.worker().drain()
    (event,) = await app.events()

    async with beside(app) as other:
        await other.fetchval("select redrive.publish('order.paid', '{}', p_retry_key => 'k')")
        replaying = await while_it_waits(app, app.replay(event.id, by="ada", reason="fixed"))
    with pytest.raises(Refused, match="retry key"):
        await replaying


@pytest.mark.req("B1")
async def test_two_redrives_of_the_same_events_at_once_replay_each_of_them_once(app: Redrive, store_url: str) -> None:
    shop = Shop(app)
    await shop.bury(40)
    await shop.bury(3, always=True)
    plans = [await shop.plan() for _ in range(3)]
    shop.broken = False

    async with Redrive(store_url, retry=RetryPolicy(max_attempts=1)) as second:
        other = Shop(second)
        other.broken = False
        async with working(app), working(second):
            redrives = [await shop.start(plan, max_in_flight=7) for plan in plans]
            for each in redrives:
                await shop.over(each, "done")

    done = [await sound(app, each.id) for each in redrives]
    assert [each.ended for each in done] == [43, 43, 43]
    assert sum(each.delivered for each in done) == 40
    assert all(event.cycle == 1 for event in await app.events(EventFilter(status=Status.DELIVERED, limit=100)))


async def test_ticks_of_many_workers_at_once_release_each_member_once(app: Redrive, store_url: str) -> None:
    shop = Shop(app)
    await shop.bury(60)
    running = await shop.start(await shop.plan(), max_in_flight=20)

    async with Redrive(store_url) as second, Redrive(store_url) as third:
        stores = [app.store, second.store, third.store]
        await asyncio.gather(*(redrive.tick(store, chain=f"test-{n}") for n, store in enumerate(stores * 4)))

    assert (await sound(app, running.id)).released == 20


async def test_an_abort_during_a_release_waits_for_it_and_nothing_goes_after_it(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(60)
    running = await shop.start(await shop.plan(), max_in_flight=10)

    await asyncio.gather(shop.tick(), app.abort(running.id, by="bob", reason="enough"), shop.tick())
    aborted = await sound(app, running.id)
    assert not (await shop.tick()).moved

    assert aborted.state == "aborted"
    assert aborted.released in (0, 10)
    assert (await app.redriving(running.id)).released == aborted.released


async def test_a_member_that_is_cancelled_or_purged_on_its_way_has_an_outcome_that_says_so(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    running = await shop.start(await shop.plan(), max_in_flight=2)
    await shop.tick()
    cancelled, purged = [event for event in await app.events() if event.status is Status.PENDING]
    await app.cancel(cancelled.id, by="bob", reason="not needed")
    async with app.store.transaction() as tx:
        table, mark = ("redrive.outbox", "$1") if app.store.name == "postgres" else ("redrive_outbox", "?")
        given: Any = purged.id if app.store.name == "postgres" else str(purged.id)
        await tx.execute(f"delete from {table} where id = {mark}", given)
    await shop.tick()

    standing = await app.redriving(running.id)
    reasons = sorted(each["reason"] or "" for each in await items(app, running.id))
    assert reasons == ["", "it was cancelled", "the event is gone"]
    assert (standing.skipped, standing.released, standing.untouched) == (2, 3, 0)


@pytest.mark.req("O10")
async def test_the_generation_of_a_redrive_is_given_to_its_members_and_only_to_them(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(2)
    kept, *_ = await app.events()
    await app.discard(kept.id, by="bob", reason="x")
    await shop.start(await shop.plan(), generation=7)
    await shop.tick()

    found = {event.id: event.generation for event in await app.events(EventFilter(discarded=None, limit=10))}
    assert found.pop(kept.id) == 0
    assert set(found.values()) == {7}


@pytest.mark.req("B1")
async def test_many_replays_under_way_do_not_hold_up_a_redrive(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(120)
    for event in await app.events(EventFilter(limit=200)):
        await app.replay(event.id, by="ada", reason="fixed")
    for n in range(3):
        await app.publish("order.paid", {"n": n}, queue="fast")
    await app.worker(queues=["fast"]).drain()

    running = await shop.start(await shop.plan())
    await shop.tick()

    assert (await app.redriving(running.id)).released == 3


# --- rates and ramps ---


@pytest.fixture
async def timed(store_url: str) -> AsyncIterator[Redrive]:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True, clock=clock) as app:
        yield app


def later(app: Redrive, seconds: float) -> None:
    assert isinstance(app.clock, VirtualClock)
    app.clock.advance(timedelta(seconds=seconds))


async def released(shop: Shop, redrive_id: UUID, ticks: int) -> int:
    for _ in range(ticks):
        await shop.tick()
    return (await shop.app.redriving(redrive_id)).released


async def test_an_hour_without_workers_is_not_made_up_in_a_burst(timed: Redrive) -> None:
    shop = Shop(timed)
    await shop.bury(60)
    running = await shop.start(await shop.plan(), rate=5.0)

    assert await released(shop, running.id, 3) == 1
    later(timed, 3_600)
    assert await released(shop, running.id, 5) <= 1 + 6
    later(timed, 2)
    assert 11 <= await released(shop, running.id, 5) <= 18


async def test_skipped_members_cost_nothing_of_the_rate(timed: Redrive) -> None:
    shop = Shop(timed)
    await shop.bury(30)
    plan = await shop.plan()
    for event in (await timed.events(EventFilter(limit=100)))[10:]:
        await timed.discard(event.id, by="bob", reason="x")
    running = await shop.start(plan, rate=1.0)

    for _ in range(22):
        await shop.tick()
    first = await timed.redriving(running.id)
    await timed.pause(running.id, by="bob", reason="lunch")
    await timed.resume(running.id, by="bob")
    later(timed, 3)

    assert (first.skipped, first.released) == (20, 1)
    assert await released(shop, running.id, 5) >= 3


async def test_a_clock_set_back_does_not_stop_a_redrive(on_postgres: Redrive) -> None:
    app, shop = on_postgres, Shop(on_postgres)
    await shop.bury(5)
    running = await shop.start(await shop.plan(), rate=100.0)
    async with app.store.transaction() as tx:
        await tx.execute("update redrive.redrive set metered_from = now() + interval '1 day'")

    async def all_gone() -> bool:
        return await released(shop, running.id, 1) == 5

    await until(all_gone)


@pytest.mark.req("B1")
async def test_a_stage_of_the_ramp_is_not_passed_by_members_that_were_skipped(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(10)
    plan = await shop.plan()
    for event in (await app.events())[-4:]:  # newest first: these go first
        await app.discard(event.id, by="bob", reason="x")

    async with working(app):
        halted = await shop.over(await shop.start(plan, ramp=(2,)), "halted", "done")

    assert (halted.state, halted.released, halted.skipped) == ("halted", 2, 4)


# --- the groups of what was redriven ---


async def test_aborting_when_all_that_went_has_ended_resolves_its_groups(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(2)
    plan = await shop.plan()
    (last, *_) = await app.events()
    shop.broken = False
    running = await shop.start(plan, max_in_flight=1)
    await shop.tick()
    await app.worker(queues=["none"]).drain()
    await app.pause(running.id, by="bob", reason="lunch")
    await app.worker().drain()
    await app.discard(last.id, by="bob", reason="x")
    await app.abort(running.id, by="bob", reason="enough")

    (group,) = await app.groups(everything=True)
    assert (group.state, group.dead_count) == ("resolved", 0)
