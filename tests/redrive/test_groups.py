"""The life of a group, its counts, and the redrives it had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from redrive import EventFilter, Redrive, RetryPolicy, group
from redrive.clock import VirtualClock
from redrive.instant import iso
from redrive.operate import doctor, views
from tests.redrive.helpers import Shop, items
from tests.worker.conftest import working


@pytest.fixture
async def timed(store_url: str) -> AsyncIterator[Redrive]:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True, clock=clock) as app:
        yield app


def later(app: Redrive, **span: float) -> None:
    assert isinstance(app.clock, VirtualClock)
    app.clock.advance(timedelta(**span))


async def only(app: Redrive) -> group.Group:
    (found,) = await app.groups(everything=True)
    return found


def table(app: Redrive) -> str:
    return "redrive.failure_group" if app.store.name == "postgres" else "redrive_failure_group"


@pytest.mark.req("B2")
async def test_a_group_is_new_then_ongoing_then_resolved_and_regresses(timed: Redrive) -> None:
    shop = Shop(timed)
    await shop.bury(1)
    assert (await only(timed)).state == "new"
    later(timed, minutes=59)
    await shop.bury(1)
    assert (await only(timed)).state == "new"
    later(timed, minutes=2)
    await shop.bury(1)
    assert (await only(timed)).state == "ongoing"

    shop.broken = False
    plan = await shop.plan()
    await shop.start(plan)
    await timed.worker().drain()
    resolved = await only(timed)
    assert (resolved.state, resolved.dead_count, resolved.total_count) == ("resolved", 0, 3)
    assert (resolved.resolved_by, resolved.resolved_at) == ("ada", timed.clock.now())

    shop.broken = True
    later(timed, days=1)
    await shop.bury(2)
    regressed = await only(timed)
    assert (regressed.state, regressed.dead_count, regressed.total_count) == ("regressed", 2, 5)
    assert (regressed.resolved_by, regressed.resolved_at) == (None, None)
    assert regressed.last_seen_at - regressed.first_seen_at == timedelta(days=1, hours=1, minutes=1)


@pytest.mark.req("B2")
async def test_people_own_note_mute_and_resolve_a_group(timed: Redrive) -> None:
    shop = Shop(timed)
    await shop.bury(1)
    fingerprint = (await only(timed)).fingerprint
    until = timed.clock.now() + timedelta(hours=1)

    await group.describe(timed.store, fingerprint, by="ada", owner="payments")
    await group.describe(timed.store, fingerprint, by="bob", note="carrier is down")
    muted = await group.describe(timed.store, fingerprint, by="bob", muted_until=until)
    assert (muted.state, muted.owner, muted.note, muted.muted_until) == (
        "ongoing",
        "payments",
        "carrier is down",
        until,
    )
    assert muted.is_muted(timed.clock.now())
    said = [(entry.actor, entry.facts) async for entry in timed.store.trail() if entry.kind == "group-described"]
    assert said == [
        ("ada", {"group": fingerprint, "owner": "payments"}),
        ("bob", {"group": fingerprint, "note": "carrier is down"}),
        ("bob", {"group": fingerprint, "muted_until": iso(until)}),
    ]
    later(timed, hours=1)
    assert not (await only(timed)).is_muted(timed.clock.now())

    resolved = await group.describe(timed.store, fingerprint, by="bob", state="resolved")
    assert (resolved.state, resolved.resolved_by, resolved.owner) == ("resolved", "bob", "payments")
    await shop.bury(1)
    back = await only(timed)
    assert (back.state, back.owner, back.note, back.resolved_by) == ("regressed", "payments", "carrier is down", None)


@pytest.mark.req("B2")
async def test_a_group_knows_the_generation_it_began_with_and_the_latest(store_url: str) -> None:
    seen = []
    for generation in (3, 5, 4):
        async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True, generation=generation) as app:
            await Shop(app).bury(1)
            found = await only(app)
            seen.append((found.first_generation, found.last_generation))

    assert seen == [(3, 3), (3, 5), (3, 5)]


@pytest.mark.req("B2")
async def test_wrong_and_missing_groups_are_found_and_mended(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(3)
    shop.broken = "otherwise"
    await shop.bury(2)
    lost, wrong = sorted(await app.groups(), key=lambda each: each.dead_count)
    assert await group.miscounts(app.store) == []
    async with app.store.transaction() as tx:
        await tx.execute(f"delete from {table(app)} where fingerprint = '{lost.fingerprint}'")
        await tx.execute(f"update {table(app)} set dead_count = 77, owner = 'payments'")

    found = {each.fingerprint: (each.dead_count, each.counted) for each in await group.miscounts(app.store)}
    checked = {check.name: check async for check in doctor.examine(Redrive(app.url))}["groups"]
    assert found == {lost.fingerprint: (None, 2), wrong.fingerprint: (77, 3)}
    assert (checked.health, checked.what) == ("warning", "wrong counts: 1, missing groups: 1")

    assert await group.rebuild(app.store) == {lost.fingerprint: 2, wrong.fingerprint: 3}
    assert await group.rebuild(app.store) == {}
    back = await group.find(app.store, lost.fingerprint)
    assert (back.dead_count, back.title, back.error_type) == (2, lost.title, lost.error_type)
    assert (back.target, back.type, back.error_class) == (lost.target, lost.type, lost.error_class)
    assert (back.sample_event_id, back.first_generation) == (lost.sample_event_id, lost.first_generation)
    assert (await group.find(app.store, wrong.fingerprint)).owner == "payments"


@pytest.mark.req("B2")
async def test_a_missing_group_never_counts_less_than_none(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(4)
    one, two, *_ = await app.events()
    async with app.store.transaction() as tx:
        await tx.execute(f"delete from {table(app)}")

    await app.discard(one.id, by="bob", reason="x")
    await app.replay(two.id, by="bob", reason="x")
    assert await app.groups(everything=True) == []

    assert list((await group.rebuild(app.store)).values()) == [2]
    assert await group.miscounts(app.store) == []


@pytest.mark.req("B1", "B2")
async def test_the_report_and_the_past_redrives_of_a_group_are_what_the_members_say(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(6)
    await shop.bury(2, always=True)
    shop.broken = "otherwise"
    await shop.bury(3)
    plan = await shop.plan()
    discarded = (await app.events(EventFilter(limit=50)))[-1]
    await app.discard(discarded.id, by="bob", reason="x")
    first, *_ = sorted(await app.groups(), key=lambda each: -each.dead_count)
    shop.broken = False
    async with working(app):
        done = await shop.over(await shop.start(plan), "done")

    told = await views.report(app, done)
    members = await items(app, done.id)
    assert {fingerprint: sum(states.values()) for fingerprint, _, states in told.groups} == {
        each: sum(member["fingerprint"] == each for member in members) for each in {m["fingerprint"] for m in members}
    }
    assert [dict(states) for fingerprint, _, states in told.groups if fingerprint == first.fingerprint] == [
        {"delivered": 5, "failed_same": 2, "skipped": 1}
    ]
    assert (told.skipped, told.ineligible) == ({"it was discarded": 1}, {})

    again = next(event for event in await app.events(EventFilter(limit=50)) if event.fingerprint == first.fingerprint)
    await app.replay(again.id, by="bob", reason="x")
    await shop.plan()  # never started: not a past redrive
    story = await views.group_story(app, await group.find(app.store, first.fingerprint))
    assert [(each.total, members) for each, members in story.redrives] == [(1, 1), (11, 8)]


@pytest.mark.req("B1", "B2")
async def test_a_group_of_an_older_fingerprint_is_not_resolved_when_its_failure_comes_back(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(1)
    await shop.bury(2, always=True)
    async with app.store.transaction() as tx:
        for name in ("outbox", "failure_group"):
            named = table(app).replace("failure_group", name)
            await tx.execute(f"update {named} set fingerprint = '1:' || substr(fingerprint, 3)")
    shop.broken = False

    async with working(app):
        done = await shop.over(await shop.start(await shop.plan()), "done")

    assert (done.delivered, done.failed_same, done.failed_other) == (1, 2, 0)
    told = {each.fingerprint[:2]: (each.state, each.dead_count) for each in await app.groups(everything=True)}
    assert told == {"1:": ("new", 0), "2:": ("new", 2)}
