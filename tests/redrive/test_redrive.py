"""Plan, start, release, outcome: on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import EventFilter, Redrive, Refused, Status, redrive
from redrive.redrive import Release
from redrive.store.base import Ages
from tests.redrive.helpers import Shop
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.req("B1")
async def test_a_redrive_brings_every_member_to_an_outcome(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(30)
    await shop.bury(2, always=True)
    plan = await shop.plan()
    assert (plan.redrive.total, plan.redrive.ready, plan.ineligible) == (32, 32, {})
    shop.broken = False

    async with working(app):
        running = await shop.start(plan)
        done = await shop.over(running, "done")

    assert (done.released, done.delivered, done.failed_same, done.skipped) == (32, 30, 2, 0)
    assert {event.status for event in await app.events(EventFilter(limit=100))} == {Status.DELIVERED, Status.FAILED}
    assert (await app.verify_trail()).sound


@pytest.mark.req("B1")
async def test_a_ramp_halts_itself_when_the_same_failure_comes_back_and_leaves_the_rest_untouched(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(20)
    before = {event.id: event for event in await app.events(EventFilter(limit=100))}
    plan = await shop.plan()

    async with working(app):
        running = await shop.start(plan, ramp=(1, 5))
        halted = await shop.over(running, "halted")

    assert (halted.released, halted.failed_same) == (1, 1)
    assert "same failure" in (halted.stop_reason or "")
    after = {event.id: event for event in await app.events(EventFilter(limit=100))}
    assert sum(after[event_id] == event for event_id, event in before.items()) == 19


async def test_a_ramp_goes_through_its_stages_when_all_is_well(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(20)
    plan = await shop.plan()
    shop.broken = False

    async with working(app):
        running = await shop.start(plan, ramp=(1, 5))
        done = await shop.over(running, "done")

    assert (done.delivered, done.stage) == (20, 2)


async def test_a_rate_is_kept(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(40)
    plan = await shop.plan()
    shop.broken = False

    async with working(app):
        running = await shop.start(plan, rate=20.0)
        await asyncio.sleep(1.2)
        midway = await redrive.get(app.store, running.id)
        done = await shop.over(running, "done")

    assert midway.started_at is not None
    assert 0 < midway.released <= 20.0 * (midway.now - midway.started_at).total_seconds() + 1
    assert done.delivered == 40
    assert done.ended_at is not None
    assert done.started_at is not None
    assert (done.ended_at - done.started_at).total_seconds() >= 1.8


async def test_pause_resume_and_abort(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(50)
    plan = await shop.plan()
    shop.broken = False

    async with working(app):
        running = await shop.start(plan, rate=10.0)
        await asyncio.sleep(1.2)
        paused = await redrive.stop(app.store, running.id, to="paused", by="bob", reason="lunch")
        await asyncio.sleep(0.5)
        assert (await redrive.get(app.store, running.id)).released == paused.released
        await redrive.resume(app.store, running.id, by="bob")
        await asyncio.sleep(0.5)
        aborted = await redrive.stop(app.store, running.id, to="aborted", by="bob", reason="enough")

    assert paused.state == "paused"
    assert 0 < aborted.released < 50
    dead = await app.events(EventFilter(status=Status.FAILED, limit=100))
    assert len(dead) == 50 - aborted.released
    with pytest.raises(Refused):
        await redrive.resume(app.store, running.id, by="bob")


@pytest.mark.req("B1")
async def test_a_member_that_changed_since_the_plan_is_skipped_with_the_reason(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    plan = await shop.plan()
    one, two, _three = await app.events()
    await app.discard(one.id, by="bob", reason="not needed")
    await app.replay(two.id, by="bob", reason="me first")
    shop.broken = False

    async with working(app):
        running = await shop.start(plan)
        done = await shop.over(running, "done")
    reasons = {row["reason"] for row in await app.store.ask("redrive_items", id=running.id, after=0, limit=10)}

    assert (done.delivered, done.skipped) == (1, 2)
    assert "it was discarded" in reasons


async def test_what_may_not_go_is_said_in_the_plan(app: Redrive) -> None:
    shop = Shop(app)
    await app.publish("order.paid", {}, retry_key="k")
    await app.worker().drain()
    await app.publish("order.paid", {}, retry_key="k")
    await shop.bury(1)
    await app.publish("order.paid", {}, retry_key="k2")
    await app.worker().drain()
    await app.publish("order.paid", {}, retry_key="k2", delay="1h")

    plan = await shop.plan(targets=["order.paid"])
    unknown = await shop.plan(targets=["something.else"])

    assert plan.ineligible == {"live duplicate of its retry key": 1, "second dead letter with its retry key": 1}
    assert unknown.ineligible["handler unknown"] >= 1


async def test_a_start_needs_the_token_of_its_plan_and_a_reason_and_happens_once(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(2)
    plan, other = await shop.plan(), await shop.plan()
    swapped = f"{plan.redrive.id}:ffffffffffff"

    async def start(token: str, reason: str = "fixed") -> redrive.Redriving:
        return await app.start(token, by="ada", reason=reason)

    for token in ("nonsense", swapped, str(plan.redrive.id)):
        with pytest.raises(Refused, match="token"):
            await start(token)
    with pytest.raises(Refused, match="reason"):
        await start(plan.redrive.token, " ")
    await start(plan.redrive.token)
    with pytest.raises(Refused, match="already"):
        await start(plan.redrive.token)
    assert (await redrive.get(app.store, other.redrive.id)).state == "planned"


async def test_above_a_size_a_second_person_approves(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    plan = await shop.plan()

    async def start() -> redrive.Redriving:
        return await redrive.start(
            app.store, plan.redrive.token, by="ada", reason="r", release=Release(), generation=None, approval_above=2
        )

    with pytest.raises(Refused, match="approves"):
        await start()
    with pytest.raises(Refused, match="somebody else"):
        await redrive.approve(app.store, plan.redrive.id, by="ada")
    await redrive.approve(app.store, plan.redrive.id, by="bob")
    assert (await start()).state == "running"


@pytest.mark.parametrize(
    "wrong", [{"rate": 0.0}, {"rate": -1.0}, {"max_in_flight": 0}, {"ramp": (0,)}, {"halt_at": 2.0}]
)
def test_a_release_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    from redrive import ConfigurationError

    with pytest.raises(ConfigurationError):
        Release(**wrong).check()


@pytest.mark.req("B1", "O5")
async def test_a_single_replay_is_a_redrive_of_one_with_an_outcome(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(1)
    (event,) = await app.events()
    shop.broken = False

    async with working(app):
        await app.replay(event.id, by="ada", reason="fixed")

        async def done() -> bool:
            (only,) = await app.store.ask("redrives", before=None, limit=10)
            return bool(only["state"] == "done" and only["delivered"] == 1)

        await until(done)


@pytest.mark.req("B2")
async def test_groups_count_their_dead_letters_and_have_a_life(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(5)

    async def group() -> dict[str, Any]:
        (found,) = await app.store.ask("groups", all=True, state=None, seen_before=None, after=None, limit=10)
        return found

    assert ((await group())["state"], (await group())["dead_count"]) == ("new", 5)
    one, two, *_ = await app.events()
    await app.discard(one.id, by="bob", reason="x")
    assert (await group())["dead_count"] == 4
    await app.restore(one.id, by="bob", reason="x")
    await app.replay(two.id, by="bob", reason="x")
    assert (await group())["dead_count"] == 4
    await app.worker().drain()
    assert ((await group())["dead_count"], (await group())["total_count"]) == (5, 6)

    plan = await shop.plan()
    shop.broken = False
    async with working(app):
        await shop.over(await shop.start(plan), "done")
    assert ((await group())["state"], (await group())["dead_count"]) == ("resolved", 0)
    shop.broken = True
    await shop.bury(1)
    assert ((await group())["state"], (await group())["dead_count"]) == ("regressed", 1)

    async with app.store.transaction() as tx:
        assert await tx.run("groups_rebuild") == []


@pytest.mark.req("B1", "W6")
async def test_a_plan_cannot_be_started_by_the_back_door(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(2)
    plan = await shop.plan()

    with pytest.raises(Refused):
        await app.pause(plan.redrive.id, by="bob", reason="x")
    with pytest.raises(Refused):
        await app.resume(plan.redrive.id, by="bob")

    assert (await app.redriving(plan.redrive.id)).state == "planned"


async def test_what_was_released_before_an_abort_still_comes_to_its_outcome(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    plan = await shop.plan()
    shop.broken = False
    running = await shop.start(plan)
    await redrive.tick(app.store, chain="test")
    await app.abort(running.id, by="bob", reason="enough")
    await app.worker().drain()
    await redrive.tick(app.store, chain="test")

    aborted = await app.redriving(running.id)
    assert (aborted.state, aborted.delivered, aborted.outstanding) == ("aborted", 3, 0)
    kinds = {entry.kind async for entry in app.store.trail()}
    assert {"redrive-planned", "redrive-started", "redrive-aborted"} <= kinds


@pytest.mark.req("B1")
async def test_a_selection_names_the_set_and_says_it_back(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    await app.publish("order.paid", {"n": 9, "currency": "XOF"})
    await app.worker().drain()

    plan = await app.plan("type:order.paid payload.currency:XOF", by="ada", unsafe=True)

    assert (plan.redrive.total, plan.redrive.ready) == (1, 1)
    assert "order.paid" in plan.redrive.sentence


@pytest.mark.req("B2")
async def test_purged_dead_letters_leave_their_groups(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    discarded, *_ = await app.events()
    await app.discard(discarded.id, by="bob", reason="x")

    await app.store.purge(Ages(failed=0.0), by="bob", limit=100)

    (group,) = await app.groups(everything=True)
    assert group.dead_count == 0
    async with app.store.transaction() as tx:
        assert await tx.run("groups_rebuild") == []


async def test_a_plan_that_was_never_finished_can_be_aborted_and_not_started(app: Redrive) -> None:
    await Shop(app).bury(1)
    left = app.clock.new_id()  # its planner died after the first statement
    async with app.store.transaction() as tx:
        await tx.run("redrive_plan", id=left, selection="type:order.paid", sentence="all", by="ada", keep=60.0)

    with pytest.raises(Refused, match="not of this plan"):
        await app.start(f"{left}:0", by="ada", reason="mended")
    assert (await app.abort(left, by="ada", reason="its planner is gone")).state == "aborted"
