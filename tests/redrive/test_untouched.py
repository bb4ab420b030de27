"""What a redrive leaves alone: every column of every event that was not released, whoever starts, stops or restarts."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import EventFilter, Redrive, RetryPolicy, Status
from redrive.event import Priority
from redrive.store.base import TYPE
from tests.redrive.helpers import Shop, items, outbox, sound
from tests.stores.helpers import Hands
from tests.waiting import until
from tests.worker.conftest import working


async def not_released(app: Redrive, redrive_id: Any) -> set[str]:
    return {str(each["event_id"]) for each in await items(app, redrive_id) if each["released_at"] is None}


@pytest.mark.req("B1")
@pytest.mark.parametrize("act", ["pause", "abort"])
async def test_what_was_not_released_is_the_same_byte_for_byte(app: Redrive, act: str) -> None:
    shop = Shop(app)
    await shop.bury(30)
    before = await outbox(app)
    plan = await shop.plan()
    assert await outbox(app) == before
    shop.broken = False
    running = await shop.start(plan, max_in_flight=4)
    assert await outbox(app) == before
    await shop.tick()
    await (app.pause if act == "pause" else app.abort)(running.id, by="bob", reason="enough")
    async with working(app):
        await until(lambda: _has_ended(app, running.id, 4))

    left = await not_released(app, running.id)
    after = await outbox(app)
    assert len(left) == 26
    assert {each: after[each] for each in left} == {each: before[each] for each in left}
    stopped = await sound(app, running.id)
    assert (stopped.delivered, stopped.untouched) == (4, 26)


async def _has_ended(app: Redrive, redrive_id: Any, number: int) -> bool:
    return (await app.redriving(redrive_id)).ended == number


@pytest.mark.req("W6")
async def test_no_restart_replays_anything(store_url: str) -> None:
    async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True) as app:
        shop = Shop(app)
        done = await shop.start(await _a_set_of(shop, "done"))
        await app.worker().drain()
        halted = await shop.start(await _a_set_of(shop, "halted"), ramp=(1,))
        await app.worker().drain()
        paused = await shop.start(await _a_set_of(shop, "paused"), max_in_flight=1)
        await app.pause(paused.id, by="bob", reason="lunch")
        planned = await _a_set_of(shop, "planned")
        aborted = await _a_set_of(shop, "aborted")
        await app.abort(aborted.redrive.id, by="bob", reason="enough")
        ids = [done.id, halted.id, paused.id, planned.redrive.id, aborted.redrive.id]
        states = [(await app.redriving(each)).state for each in ids]
        assert states == ["done", "halted", "paused", "planned", "aborted"]
        before = (await outbox(app), [await items(app, each) for each in ids])

    for _ in range(3):
        async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True) as app:
            shop = Shop(app)
            shop.broken = False
            await _a_lively_worker(app)
            assert not (await shop.tick()).moved
            await app.worker().drain()
            after = {event_id: row for event_id, row in (await outbox(app)).items() if event_id in before[0]}
            assert (after, [await items(app, each) for each in ids]) == before
            assert shop.calls == 0


async def _a_set_of(shop: Shop, name: str) -> Any:
    await shop.app.publish_many([("order.paid", {"set": name}) for _ in range(3)])
    await shop.app.worker().drain()
    return await shop.app.plan(f"type:order.paid payload.set:{name}", by="ada", unsafe=True)


async def _a_lively_worker(app: Redrive) -> None:
    """Run a worker for long enough that it has worked and ticked."""

    @app.handler("live")
    async def live(_payload: Any) -> None: ...

    async with working(app):
        for _ in range(3):
            published = await app.publish("live", {})
            await until(lambda: _is_delivered(app, published.id))  # noqa: B023


async def _is_delivered(app: Redrive, event_id: Any) -> bool:
    event = await app.event(event_id)
    return event is not None and event.status is Status.DELIVERED


@pytest.mark.req("B1")
async def test_live_events_go_before_those_of_a_redrive(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(20)
    running = await shop.start(await shop.plan())
    await shop.tick()
    redriven = await app.events(EventFilter(type="order.paid", limit=50))
    assert {event.priority for event in redriven} == {Priority.REDRIVEN}
    await app.publish_many([("live", {}) for _ in range(20)])

    hands = await Hands.begin(app)
    try:
        claimed = [row[TYPE] for _ in range(5) for row in await hands.claim(5)]
        assert claimed == ["live"] * 20 + ["order.paid"] * 5
    finally:
        await hands.claims.close()
    assert (await app.redriving(running.id)).outstanding == 20
