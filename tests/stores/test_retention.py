"""Retention: what is removed, in bounded steps, and what never is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import EventFilter, Redrive, Retention, Status, redrive
from redrive.clock import SystemClock, VirtualClock
from redrive.operate import actions
from redrive.store.base import Ages, Purge
from tests.stores.helpers import Hands, found, is_postgres, raw

pytestmark = pytest.mark.promise("flat")


async def purge(app: Redrive, **options: Any) -> Purge:
    ages = Ages(**{name: options.pop(name) for name in list(options) if name in ("ended", "failed", "handled")})
    return await app.store.purge(ages, **{"by": "ann", "limit": 100, **options})


async def one_of_each(app: Redrive, hands: Hands) -> None:
    await hands.dead_letter("failed")
    discarded = await hands.dead_letter("discarded")
    await app.discard(discarded, by="ann", reason="noise")
    delivered = await app.publish("delivered")
    await hands.deliver(await hands.claim_one())
    await app.cancel((await app.publish("cancelled")).id, by="ann", reason="wrong")
    await app.publish("in_flight")
    await hands.claim_one()
    await app.publish("pending", delay="400d")
    async with app.store.transaction() as transaction:
        await transaction.mark_handled("t", "k", delivered.id)


async def types(app: Redrive) -> set[str]:
    return {event.type for event in [*await app.events(), *await app.events(EventFilter(discarded=True))]}


@pytest.mark.req("H5")
async def test_a_purge_removes_what_was_delivered_or_cancelled_and_no_dead_letter(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await one_of_each(app, hands)
    clock.advance("1d")

    purged = await purge(app, ended=0.0, handled=0.0)

    assert (purged.events, purged.dead_letters, purged.handled) == (2, 0, 1)
    assert await types(app) == {"failed", "discarded", "in_flight", "pending"}


@pytest.mark.req("H5")
async def test_dead_letters_are_removed_only_when_somebody_says_so_and_that_is_recorded(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await one_of_each(app, hands)
    clock.advance("1d")

    purged = await purge(app, failed=0.0)
    last = [entry async for entry in app.store.trail() if entry.chain == "operator"][-1]

    assert (purged.events, purged.dead_letters, purged.handled) == (0, 2, 0)
    assert await types(app) == {"delivered", "cancelled", "in_flight", "pending"}
    assert (last.kind, last.actor, last.event_id) == ("purged", "ann", None)
    assert last.facts == {"dead_letters": 2, "failed_before": "2030-01-02T00:00:00.000000Z"}
    assert (await app.verify_trail()).sound


async def test_nothing_younger_than_the_limit_is_removed(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    await one_of_each(app, hands)
    purged = await purge(app, ended=0.0, failed=0.0, handled=0.0)

    assert purged == Purge()


async def test_a_dry_run_counts_and_changes_nothing(
    store_url: str, app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await one_of_each(app, hands)
    await app.store.end_session((await Hands.begin(app)).id)
    clock.advance("1d")
    everything = {"ended": 0.0, "failed": 0.0, "handled": 0.0}
    with raw(store_url) as run:

        def rows() -> list[Any]:
            return [run(f"select * from {{{name}}} order by 1, 2") for name in ("outbox", "trail", "event_handled")]

        before = rows()
        dry = await purge(app, **everything, dry_run=True)
        after = rows()
    wet = await purge(app, **everything)

    assert after == before
    assert dry == wet == Purge(events=2, dead_letters=2, handled=1, sessions=1)


async def test_a_purge_takes_no_more_than_its_limit_of_each_kind(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    for _ in range(5):
        await hands.dead_letter()
    await app.publish_many([("t", n) for n in range(7)])
    await hands.deliver(*await hands.claim())
    async with app.store.transaction() as transaction:
        for n in range(6):
            await transaction.mark_handled("t", f"k{n}", clock.new_id())
    clock.advance("1d")

    steps = [await purge(app, ended=0.0, failed=0.0, handled=0.0, limit=3) for _ in range(4)]

    assert [(step.events, step.dead_letters, step.handled) for step in steps] == [
        (3, 3, 3), (3, 2, 3), (1, 0, 0), (0, 0, 0),
    ]  # fmt: skip


async def test_the_oldest_go_first(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    for n in range(4):
        await app.publish(f"t{n}")
        await hands.deliver(await hands.claim_one())
        clock.advance(1)

    await purge(app, ended=0.0, limit=2)

    assert await types(app) == {"t2", "t3"}


async def test_an_event_whose_row_is_gone_keeps_its_trail(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    dead = await hands.dead_letter()
    clock.advance("1d")
    await purge(app, failed=0.0)

    trail = await app.trail(dead)

    assert await app.event(dead) is None
    assert [entry.kind for entry in trail] == ["dead-lettered"]


@pytest.mark.req("H5")
async def test_by_default_a_worker_removes_no_dead_letter(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    dead = await hands.dead_letter()
    clock.advance("3650d")

    await app.store.purge(app.retention.ages, by="w", limit=100)

    assert app.retention.ages == Ages(ended=30 * 86_400.0)
    assert (await found(app, dead)).status is Status.FAILED


@pytest.mark.req("B1")
async def test_redrives_that_ended_and_plans_that_nobody_started_are_forgotten(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    dead = await hands.dead_letter("failed")
    await app.replay(dead, by="ann", reason="mended")
    await hands.deliver(await hands.claim_one())
    await redrive.tick(app.store, chain="c")
    await hands.dead_letter("failed")
    left = await app.plan("type:failed", by="ann")
    clock.advance("1d")
    await app.plan("type:failed", by="ann")  # this one can still be started
    clock.advance("1h")

    dry = await purge(app, ended=0.0, dry_run=True)
    assert (dry.members, len(await app.redrivings())) == (2, 3)
    await purge(app, ended=0.0)

    (kept,) = await app.redrivings()
    assert kept.id != left.redrive.id
    assert (await app.group(left.parts[0]["fingerprint"])).dead_count == 1


# --- rows that are still needed ---


async def forget(app: Redrive) -> Purge:
    """Remove whatever may be removed, however young it is."""
    return await purge(app, ended=0.0, failed=0.0, handled=0.0)


@pytest.mark.req("O8", "H5")
@pytest.mark.parametrize("key", ["order-7", None])
async def test_a_handled_key_outlives_every_event_that_could_still_be_replayed_with_it(
    app: Redrive, hands: Hands, clock: VirtualClock, key: str | None
) -> None:
    first = await app.publish("t", idempotency_key=key)
    await hands.deliver(await hands.claim_one())
    key = key or str(first.id)
    async with app.store.transaction() as transaction:
        await transaction.mark_handled("t", key, first.id)
    clock.advance("10d")
    twin = await hands.dead_letter("t", idempotency_key=key)
    kept = Retention.of(failed="180d", handled="180d")
    clock.advance("173d")

    await app.store.purge(kept.ages, by="w", limit=100)

    assert (await app.plan("type:t", by="ann", unsafe=True)).ineligible == {"already handled": 1}
    clock.advance("10d")
    await app.store.purge(kept.ages, by="w", limit=100)
    gone = await app.store.purge(kept.ages, by="w", limit=100)
    assert (await app.event(twin), gone.handled) == (None, 0)  # the key went with the last event that had it


@pytest.mark.req("O8")
@pytest.mark.parametrize("status", ["pending", "in_flight", "blocked", "failed"])
async def test_a_handled_key_is_kept_while_an_event_of_its_own_id_can_run(
    store_url: str, app: Redrive, clock: VirtualClock, status: str
) -> None:
    own = await app.publish("t", delay="400d")
    async with app.store.transaction() as transaction:
        await transaction.mark_handled("t", str(own.id), clock.new_id())  # another event was published with that key
        await transaction.mark_handled("t", "no uuid", clock.new_id())
        await transaction.mark_handled("u", str(own.id), own.id)  # of another target
    with raw(store_url) as run:
        run(f"update {{outbox}} set status = '{status}'")
    clock.advance("1d")

    assert (await forget(app)).handled == 2
    assert (await forget(app)).handled == 0


@pytest.mark.req("B1", "H5")
async def test_a_dead_letter_that_an_open_redrive_may_release_is_kept(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await hands.dead_letter("failed")
    plan = await app.plan("type:failed", by="ann", unsafe=True)
    clock.advance("1h")
    assert (await forget(app)).dead_letters == 0  # somebody is looking at the plan
    started = await app.start(plan.redrive.token, by="ann", reason="fixed")
    await app.pause(started.id, by="ann", reason="wait")
    clock.advance("90d")
    assert (await forget(app)).dead_letters == 0

    await app.abort(started.id, by="ann", reason="not today")

    assert (await forget(app)).dead_letters == 1


@pytest.mark.req("B1")
async def test_an_event_stays_until_the_redrive_that_released_it_has_counted_its_outcome(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    dead = await hands.dead_letter("failed")
    await app.replay(dead, by="ann", reason="fixed")
    await hands.deliver(await hands.claim_one())
    clock.advance("1h")
    assert (await forget(app)).events == 0

    await redrive.tick(app.store, chain="c")
    (counted,) = await app.redrivings()

    assert counted.delivered == 1
    clock.advance(1)
    assert (await forget(app)).events == 1


@pytest.mark.req("B3")
async def test_the_payloads_before_an_edit_go_with_their_event(
    store_url: str, app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    dead = await hands.dead_letter("t", {"card": "4111"})
    await app.replay(dead, payload={"card": "none"}, by="ann", reason="wrong card")
    await hands.deliver(await hands.claim_one())
    await redrive.tick(app.store, chain="c")
    clock.advance("1h")
    with raw(store_url) as run:
        revisions = f"select count(*) from {'redrive.' if is_postgres(store_url) else 'redrive_'}payload_revision"
        assert run(revisions)[0][0] == 1

        await forget(app)

        assert run(revisions)[0][0] == 0


# --- whose clock ---


class Ahead(SystemClock):
    """The clock of a machine that is 200 days ahead of the world."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=200)


@pytest.mark.req("H5")
async def test_a_machine_whose_clock_is_ahead_removes_nothing(store_url: str) -> None:
    kept = Retention.of(delivered="30d", failed="180d", handled="180d")
    async with Redrive(store_url, migrate=True) as app:
        hands = await Hands.begin(app)
        await hands.dead_letter("failed")
        delivered = await app.publish("delivered")
        await hands.deliver(await hands.claim_one())
        async with app.store.transaction() as transaction:
            await transaction.mark_handled("delivered", str(delivered.id), delivered.id)
        await hands.claims.close()

        async with Redrive(store_url, clock=Ahead(), retention=kept) as ahead:
            removed = [await ahead.store.purge(kept.ages, by="w", limit=100)]
            removed += [gone async for gone in actions.purge(ahead, older_than=3_600.0, dead_letters=True, by="ann")]
        removed += [await app.store.purge(kept.ages, by="w", limit=100)]  # and drags nobody else along

    assert {(gone.events, gone.dead_letters, gone.handled) for gone in removed} == {(0, 0, 0)}


async def delivered_on(url: str, start: datetime, type_: str) -> None:
    async with Redrive(url, clock=VirtualClock(start), migrate=True) as app:
        hands = await Hands.begin(app)
        await app.publish(type_)
        await hands.deliver(await hands.claim_one())
        await hands.claims.close()
        await app.store.end_session(hands.id)


async def removed_on(url: str, now: datetime) -> int:
    async with Redrive(url, clock=VirtualClock(now)) as app:
        return (await purge(app, ended=30 * 86_400.0)).events


@pytest.mark.req("H5")
async def test_after_a_pause_of_months_old_events_go_when_the_clock_has_stayed_there_for_days(sqlite_url: str) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    await delivered_on(sqlite_url, start, "old")
    later = start + timedelta(days=200)

    removed = [await removed_on(sqlite_url, later + timedelta(hours=hours)) for hours in (0, 12, 24, 36, 48, 60, 71)]

    assert removed == [0] * 7
    assert await removed_on(sqlite_url, later + timedelta(hours=73)) == 1


@pytest.mark.req("H5")
async def test_a_leap_that_was_taken_back_makes_older_events_no_older_and_later_ones_no_younger(
    sqlite_url: str,
) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    await delivered_on(sqlite_url, start, "before")
    await delivered_on(sqlite_url, start + timedelta(days=200), "while it was wrong")  # the file stays ahead from here

    clock = VirtualClock(start)
    async with Redrive(sqlite_url, clock=clock) as app:
        ended = []
        for _ in range(40):
            clock.advance("1d")
            ended.append((await purge(app, ended=30 * 86_400.0)).events)

    assert sum(ended) == 2
    assert {day for day, n in enumerate(ended, 1) if n} <= {31, 32}


@pytest.mark.req("H5")
async def test_a_step_of_less_than_a_day_counts_as_time_that_passed(sqlite_url: str) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    await delivered_on(sqlite_url, start, "old")
    for day in range(1, 31):
        assert await removed_on(sqlite_url, start + timedelta(days=day)) == 0

    assert await removed_on(sqlite_url, start + timedelta(days=30, hours=1)) == 1
