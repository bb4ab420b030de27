"""Gates and stages: a stage releases exactly its number, its gate judges exactly those, and every mode halts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from redrive import Redrive, Rejected, redrive
from redrive.redrive import JUDGED, Release
from tests.redrive.helpers import Shop, items, sound
from tests.waiting import until
from tests.worker.conftest import working


class Mixed:
    """Events of some keys succeed, all others fail as before."""

    def __init__(self, app: Redrive) -> None:
        self.app = app
        self.good: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()

        @app.handler("order.paid", on_failed="pass", brake=False)
        async def ship(payload: dict[str, int]) -> None:
            await self.gate.wait()
            if payload["n"] not in self.good:
                raise Rejected("carrier says no")

    async def bury(self, events: list[tuple[int, str | None]]) -> None:
        was, self.good = self.good, set()
        options: list[Any] = [("order.paid", {"n": n}, {"ordering_key": key} if key else {}) for n, key in events]
        await self.app.publish_many(options)
        await self.app.worker().drain()
        self.good = was

    async def start(self, **options: Any) -> redrive.Redriving:
        plan = await self.app.plan("type:order.paid", by="ada", unsafe=True)
        return await self.app.start(plan.redrive.token, by="ada", reason="mended", release=Release(**options))

    async def tick(self, redrive_id: Any) -> redrive.Redriving:
        await redrive.tick(self.app.store, chain="test")
        return await redrive.get(self.app.store, redrive_id)


def in_stages(members: list[dict[str, Any]]) -> dict[int | None, Counter[str]]:
    found: dict[int | None, Counter[str]] = {}
    for each in members:
        found.setdefault(each["stage"], Counter())[each["state"]] += 1
    return found


@pytest.mark.req("B1", "B6")
async def test_a_gate_judges_every_member_of_its_stage_though_others_of_their_keys_still_wait(app: Redrive) -> None:
    mixed = Mixed(app)
    mixed.good = set(range(6))
    await mixed.bury([*((n, "a") for n in range(6)), *((100 + n, None) for n in range(60))])

    running = await mixed.start(ramp=(2, 2))
    async with working(app):
        await until(lambda: _is(app, running, "halted"))

    halted = await sound(app, running.id)
    assert (halted.stage, halted.released, halted.delivered, halted.failed_same) == (0, 2, 1, 1)
    assert "1 of 2" in (halted.stop_reason or "")


@pytest.mark.req("B1", "B6")
@pytest.mark.parametrize("keys", [1, 3, 50])
async def test_a_stage_releases_its_number_and_no_more_while_its_members_are_slow(app: Redrive, keys: int) -> None:
    mixed = Mixed(app)
    await mixed.bury([(n, f"k{n % keys}") for n in range(50)])
    mixed.gate.clear()

    running = await mixed.start(ramp=(5, 3))
    async with working(app):
        for _ in range(12):  # a tick must not go past those that wait
            assert (await mixed.tick(running.id)).released <= min(keys, 5)
        mixed.gate.set()
        await until(lambda: _is(app, running, "halted"))

    halted = await sound(app, running.id)
    assert (halted.released, halted.failed_same, halted.stage) == (5, 5, 0)
    assert in_stages(await items(app, running.id))[0] == {"failed_same": 5}


@pytest.mark.req("B1", "B6")
async def test_the_members_of_a_stage_add_up_to_its_number_when_each_waits_for_the_one_before_it(app: Redrive) -> None:
    mixed = Mixed(app)
    mixed.good = set(range(20))
    await mixed.bury([(n, "a" if n % 2 else "b") for n in range(20)])

    running = await mixed.start(ramp=(3, 4))
    async with working(app):
        await until(lambda: _is(app, running, "done"))

    stages = in_stages(await items(app, running.id))
    assert stages == {0: {"delivered": 3}, 1: {"delivered": 4}, None: {"delivered": 13}}
    await sound(app, running.id)


@pytest.mark.req("B1")
@pytest.mark.parametrize(
    "release",
    [{}, {"max_in_flight": 10}, {"rate": 40.0}, {"ramp": (1,)}],
    ids=["all at once", "max in flight", "rate", "rest after the ramp"],
)
async def test_every_way_to_release_halts_when_the_same_failure_comes_back(app: Redrive, release: Any) -> None:
    mixed = Mixed(app)
    await mixed.bury([(n, None) for n in range(200)])
    mixed.good = set(range(200)) if "ramp" in release else set()

    running = await mixed.start(**release)
    async with working(app):
        if "ramp" in release:
            await until(lambda: _stage_is(app, running, 1))
            mixed.good = set()
        await until(lambda: _is(app, running, "halted"))

    halted = await sound(app, running.id)
    assert halted.untouched > 0
    assert "same failure" in (halted.stop_reason or "")


@pytest.mark.req("B1")
async def test_a_redrive_without_a_ramp_begins_with_as_many_as_the_gate_needs(app: Redrive) -> None:
    mixed = Mixed(app)
    mixed.good = set(range(300))
    await mixed.bury([(n, None) for n in range(300)])

    mixed.gate.clear()
    running = await mixed.start()
    async with working(app):
        for _ in range(5):
            assert (await mixed.tick(running.id)).released <= JUDGED
        mixed.gate.set()
        await until(lambda: _is(app, running, "done"))

    assert (await sound(app, running.id)).delivered == 300


@pytest.mark.req("B1")
async def test_a_few_unlucky_events_do_not_halt_many(app: Redrive) -> None:
    mixed = Mixed(app)
    mixed.good = set(range(2, 200))
    await mixed.bury([(n, None) for n in range(200)])

    running = await mixed.start(max_in_flight=4)
    async with working(app):
        await until(lambda: _is(app, running, "done", "halted"))

    assert (await sound(app, running.id)).state == "done"


@pytest.mark.req("B1")
@pytest.mark.parametrize("release", [{}, {"ramp": (2, 3)}, {"rate": 1000.0}])
async def test_a_redrive_that_was_told_never_to_halt_goes_on(app: Redrive, release: Any) -> None:
    mixed = Mixed(app)
    await mixed.bury([(n, None) for n in range(60)])

    running = await mixed.start(halt_at=None, **release)
    assert (await redrive.get(app.store, running.id)).halt_at is None
    async with working(app):
        await until(lambda: _is(app, running, "done", "halted"))

    done = await sound(app, running.id)
    assert (done.state, done.failed_same) == ("done", 60)


@pytest.mark.req("B1")
async def test_a_halted_redrive_that_is_resumed_is_judged_by_what_comes_then(app: Redrive) -> None:
    mixed = Mixed(app)
    await mixed.bury([(n, None) for n in range(90)])
    running = await mixed.start(max_in_flight=JUDGED)
    async with working(app):
        await until(lambda: _is(app, running, "halted"))
        once = await redrive.get(app.store, running.id)
        await app.resume(running.id, by="ada")
        await until(lambda: _is(app, running, "halted"))
        twice = await redrive.get(app.store, running.id)
        mixed.good = set(range(90))
        await app.resume(running.id, by="ada")
        await until(lambda: _is(app, running, "done"))

    assert (once.failed_same, twice.failed_same) == (JUDGED, 2 * JUDGED)
    assert (await sound(app, running.id)).delivered == 90 - 2 * JUDGED


@pytest.mark.req("B1")
async def test_failures_that_begin_late_halt_a_redrive_that_went_well_before(app: Redrive) -> None:
    mixed = Mixed(app)
    mixed.good = set(range(1_100))
    await mixed.bury([(n, None) for n in range(3_000)])

    running = await mixed.start(max_in_flight=200)
    async with working(app):
        await until(lambda: _is(app, running, "done", "halted"))

    halted = await redrive.get(app.store, running.id)
    assert halted.state == "halted"
    assert halted.failed_same < 700  # a tenth of a window, and what was under way


@pytest.mark.req("B1", "B6")
async def test_a_rate_is_kept_beside_a_key_that_is_slow(app: Redrive) -> None:
    slow, mended, started = asyncio.Event(), False, Counter[str]()

    @app.handler("order.paid", on_failed="pass", brake=False)
    async def ship(payload: dict[str, str]) -> None:
        if not mended:
            raise Rejected("carrier says no")
        started[payload["key"]] += 1
        if payload["key"] == "slow":
            await slow.wait()

    await app.publish_many([("order.paid", {"key": "slow"}, {"ordering_key": "slow"}) for _ in range(100)])
    await app.publish_many([("order.paid", {"key": "other"}) for _ in range(30)])
    await app.worker().drain()
    mended = True
    plan = await app.plan("type:order.paid", by="ada", unsafe=True)

    running = await app.start(plan.redrive.token, by="ada", reason="mended", release=Release(rate=20.0))
    async with working(app):
        await until(lambda: started["other"] == 30)
        midway = await redrive.get(app.store, running.id)
        assert (midway.released, started["slow"]) == (31, 1)
        slow.set()
        await until(lambda: _is(app, running, "done"))

    assert (await sound(app, running.id)).delivered == 130


async def _is(app: Redrive, running: redrive.Redriving, *states: str) -> bool:
    return (await redrive.get(app.store, running.id)).state in states


async def _stage_is(app: Redrive, running: redrive.Redriving, stage: int) -> bool:
    return (await redrive.get(app.store, running.id)).stage == stage


async def test_a_shop_with_few_events_is_done_though_all_failed(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(10)
    async with working(app):
        done = await shop.over(await shop.start(await shop.plan()), "done", "halted")
    assert (done.state, done.failed_same) == ("done", 10)
