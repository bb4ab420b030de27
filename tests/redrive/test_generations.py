"""A replay goes to a generation that a worker serves, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from redrive import Redrive, Rejected, RetryPolicy, Status
from redrive.operate import views
from redrive.redrive import Release
from tests.waiting import until
from tests.worker.conftest import found, working


@pytest.fixture
async def apps(store_url: str) -> AsyncIterator[tuple[Redrive, Redrive]]:
    """The same app in two generations: the first fails, the second is fixed."""
    once = RetryPolicy(max_attempts=1)
    async with (
        Redrive(store_url, retry=once, migrate=True, generation=1) as old,
        Redrive(store_url, retry=once, generation=2) as new,
    ):

        @old.handler("order.paid")
        async def fail(_payload: object) -> None:
            raise Rejected("carrier says no")

        @new.handler("order.paid")
        async def ship(_payload: object) -> None:
            pass

        yield old, new


@pytest.mark.req("B1", "O5")
async def test_a_replay_goes_to_the_generation_that_is_served(apps: tuple[Redrive, Redrive]) -> None:
    old, new = apps
    ids = [(await old.publish("order.paid")).id for _ in range(3)]
    await old.worker().drain()

    async with working(new):
        await until(lambda: _works(new))
        await new.replay(ids[0], by="ada", reason="fixed")
        plan = await new.plan("type:order.paid", by="ada", unsafe=True)
        await new.start(plan.redrive.token, by="ada", reason="fixed", release=Release())
        await until(lambda: _delivered(new, ids))

    assert {(await found(new, each)).generation for each in ids} == {2}
    replays = [entry for entry in await new.trail(ids[0]) if entry.kind == "replayed"]
    assert [entry.facts["generation"] for entry in replays] == [2]


@pytest.mark.req("B1")
async def test_a_replay_stays_in_its_generation_while_that_is_served_and_where_it_was_told_to_go(
    apps: tuple[Redrive, Redrive],
) -> None:
    old, new = apps
    ids = [(await old.publish("order.paid")).id for _ in range(2)]
    await old.worker().drain()

    async with working(new), working(old):
        await until(lambda: _works(new, 2))
        await new.replay(ids[0], by="ada", reason="again")
        await new.replay(ids[1], by="ada", reason="fixed", generation=2)
        await until(lambda: _delivered(new, ids[1:]))

    assert [(await found(new, each)).generation for each in ids] == [1, 2]


@pytest.mark.req("B1")
async def test_a_replay_that_no_worker_serves_waits_and_is_named(apps: tuple[Redrive, Redrive]) -> None:
    old, new = apps
    event_id = (await old.publish("order.paid")).id
    await old.worker().drain()

    await new.replay(event_id, by="ada", reason="fixed")

    event = await found(new, event_id)
    assert (event.status, event.generation) == (Status.PENDING, 1)
    assert [each.id for each in await views.not_served(new, [event_id])] == [event_id]


async def _works(app: Redrive, number: int = 1) -> bool:
    return len(await views.live_workers(app)) == number


async def _delivered(app: Redrive, ids: list[UUID]) -> bool:
    return all([(await found(app, each)).status is Status.DELIVERED for each in ids])
