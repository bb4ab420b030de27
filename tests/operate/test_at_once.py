"""Two people at once: every dead letter is moved by one of them, and the groups count right."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from redrive import Event, EventFilter, Redrive, Refused, Rejected, RetryPolicy, Status
from redrive.operate import actions, views
from redrive.operate.taking_in import import_letters
from tests.operate.helpers import redrive


async def buried(url: str, count: int) -> None:
    app = Redrive(url, retry=RetryPolicy(max_attempts=1), migrate=True)

    @app.handler("order.paid")
    async def fail(_payload: Any) -> None:
        raise Rejected("not today")

    async with app:
        await app.publish_many([("order.paid", {"n": n}) for n in range(count)])
        await app.worker().drain()


async def events_of(app: Redrive, *, discarded: bool) -> list[Event]:
    return [event async for event in views.pages(app, EventFilter(discarded=discarded))]


async def discard_all(app: Redrive, by: str) -> int:
    what = await actions.matched(app, "discard", "type:order.paid")
    return [done async for done in actions.mark_all(app, "discard", what, by=by, reason="noise")][-1]


@pytest.mark.req("W5")
async def test_two_who_discard_the_same_set_discard_each_once(store_url: str) -> None:
    await buried(store_url, 1_300)

    async with Redrive(store_url) as ada, Redrive(store_url) as bob:
        done = await asyncio.gather(discard_all(ada, "ada"), discard_all(bob, "bob"))

        assert sum(done) == 1_300
        trail = Counter([entry.event_id async for entry in ada.store.trail() if entry.kind == "discarded"])
        assert (len(trail), max(trail.values())) == (1_300, 1)
        assert [group.dead_count for group in await ada.groups(everything=True)] == [0]
        assert await actions.rebuild_groups(ada) == {}
        assert (await ada.verify_trail()).sound


@pytest.mark.req("W5")
async def test_what_is_replayed_while_it_is_discarded_is_one_or_the_other(store_url: str) -> None:
    await buried(store_url, 300)

    async def replay_all(app: Redrive) -> int:
        replayed = 0
        for event in await events_of(app, discarded=False):
            try:
                await app.replay(event.id, by="bob", reason="again")
                replayed += 1
            except Refused:
                pass
        return replayed

    async with Redrive(store_url) as ada, Redrive(store_url) as bob:
        discarded, replayed = await asyncio.gather(discard_all(ada, "ada"), replay_all(bob))

        assert discarded + replayed == 300
        assert [event.status for event in await events_of(ada, discarded=False)] == [Status.PENDING] * replayed
        assert len(await events_of(ada, discarded=True)) == discarded
        assert await actions.rebuild_groups(ada) == {}


@pytest.mark.req("W5")
async def test_the_same_file_taken_in_by_two_comes_in_once(store_url: str, sqlite_url: str) -> None:
    other = f"{sqlite_url}.other"
    await buried(other, 700)
    lines = (await asyncio.to_thread(redrive, "dlq", "export", "-u", other)).out.encode().splitlines()

    async def take_in(app: Redrive) -> tuple[int, int]:
        came = [each async for each in import_letters(app, lines, by="ada", reason="moved")][-1]
        return came.imported, came.already

    async with Redrive(store_url, migrate=True) as ada, Redrive(store_url, migrate=True) as bob:
        (one, known), (two, known_too) = await asyncio.gather(take_in(ada), take_in(bob))

        assert (one + two, known + known_too) == (700, 700)
        assert [group.dead_count for group in await ada.groups(everything=True)] == [700]
        assert len([entry async for entry in ada.store.trail() if entry.kind == "imported"]) == 700
