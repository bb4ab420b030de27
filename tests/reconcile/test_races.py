"""Runs at once, and runs whose process is killed: one finding and one event for each key, whatever happens."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive import EventFilter, LeaseLost, Redrive, Status, finding
from tests import warm
from tests.reconcile.crashing import KEYS, POINTS, shop
from tests.reconcile.helpers import Carts
from tests.waiting import until
from tests.worker.conftest import working

ROOT = Path(__file__).parents[2]
KILLED = -9


def process(url: str, point: str) -> subprocess.Popen[bytes]:
    return warm.python(["-m", "tests.reconcile.crashing", url, point], cwd=ROOT)


async def events_of_keys(app: Redrive) -> Counter[str | None]:
    events = await app.events(EventFilter(target="converge:carts", limit=100_000))
    return Counter(event.retry_key for event in events)


@pytest.mark.lab_short
@pytest.mark.req("W7")
@pytest.mark.parametrize("point", POINTS)
async def test_a_run_that_is_killed_is_done_again_without_a_second_event_or_finding(store_url: str, point: str) -> None:
    app = shop(store_url)
    async with app:
        await app.hold("redrive.converge.*", by="ada", reason="they shall be counted")
        asked = await app.reconcilers.run("carts")
        dying = process(store_url, point)
        assert await asyncio.to_thread(dying.wait, 60) == KILLED

        async with working(app, lease="1s"):
            await until(lambda: _is(app, asked.id, Status.DELIVERED))

        run = await app.reconcilers.get_run(asked.id)
        assert (run.state, run.missing) == ("done", KEYS)
        findings = await app.reconcilers.findings("carts", state=None, limit=100_000)
        assert len(findings) == KEYS
        assert {each.seen_count for each in findings} == {1}
        seen = await events_of_keys(app)
        assert (len(seen), set(seen.values())) == (KEYS, {1})


async def _is(app: Redrive, event_id: Any, status: Status) -> bool:
    event = await app.event(event_id)
    return event is not None and event.status is status


@pytest.mark.lab_short
@pytest.mark.req("W7")
async def test_processes_that_run_at_once_make_one_event_and_one_finding_for_a_key(store_url: str) -> None:
    app = shop(store_url)
    async with app:
        others = [process(store_url, "here") for _ in range(2)]
        await asyncio.gather(app.reconcilers.run_here("carts"), app.reconcilers.run_here("carts"))
        assert [await asyncio.to_thread(each.wait, 60) for each in others] == [0, 0]

        seen = await events_of_keys(app)
        assert (len(seen), set(seen.values())) == (KEYS, {1})
        findings = await app.reconcilers.findings("carts", limit=100_000)
        assert (len(findings), {each.state for each in findings}) == (KEYS, {"open"})
        runs = await app.reconcilers.runs("carts")
        assert [each.state for each in runs] == ["done"] * 4
        assert sum(each.published for each in runs) == KEYS
        assert sum(each.published + each.coalesced for each in runs) == 4 * KEYS


async def test_a_run_that_has_lost_its_lease_writes_nothing_more(app: Redrive) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def desired() -> dict[str, int]:
        reading.set()
        await go_on.wait()
        return {"a": 1}

    Carts().add_to(app, desired=desired)
    asked = await app.reconcilers.run("carts")
    async with working(app):
        await reading.wait()
        await app.cancel(asked.id, by="ada", reason="not now")
        go_on.set()
        await until(lambda: _is(app, asked.id, Status.CANCELLED))

    assert await app.reconcilers.findings(state=None) == []
    assert await app.events(EventFilter(target="converge:carts")) == []


async def test_a_zombie_cannot_record(app: Redrive) -> None:
    Carts({"a": 1}).add_to(app)
    asked = await app.reconcilers.run("carts")
    run = await finding.begin(app.store, asked.id, "carts", by="late", event_id=asked.id, fence=99)

    with pytest.raises(LeaseLost):
        await finding.heal(app.store, run)
    with pytest.raises(LeaseLost):
        await finding.end(app.store, run, finding.Tally())


async def test_an_old_run_does_not_heal_what_a_newer_one_has_seen(app: Redrive) -> None:
    """One that began before, and saw no difference, must not close what another has found since."""
    began, go_on = asyncio.Event(), asyncio.Event()
    carts = Carts({"a": 1}, {})

    async def slow() -> dict[str, int]:
        before = dict(carts.desired)
        began.set()
        await go_on.wait()
        return before

    carts.desired = {}
    carts.add_to(app, desired=slow)
    old = asyncio.create_task(app.reconcilers.run_here("carts"))
    await began.wait()
    carts.desired = {"a": 1}
    newer = Redrive(app.url, migrate=True)
    async with newer:
        Carts({"a": 1}, {}).add_to(newer)
        assert (await newer.reconcilers.run_here("carts")).published == 1
    go_on.set()

    assert (await old).healed == 0

    assert [each.state for each in await app.reconcilers.findings("carts")] == ["open"]


async def test_a_run_that_takes_too_long_is_a_failure_of_the_run(app: Redrive) -> None:
    async def desired() -> dict[str, int]:
        await asyncio.Event().wait()
        return {}

    Carts().add_to(app, desired=desired, timeout="50ms")
    asked = await app.reconcilers.run("carts")
    async with working(app):
        await until(lambda: _is(app, asked.id, Status.FAILED))

    run = await app.reconcilers.get_run(asked.id)
    assert run.state == "failed"
    event = await app.event(asked.id)
    assert event is not None
    assert event.error_class == "timed_out"
