"""Retention: what is removed, in bounded steps, and what never is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from redrive import ConfigurationError, EventFilter, Redrive, Retention, Status, redrive
from redrive.clock import VirtualClock
from redrive.store.base import Purge
from tests.stores.helpers import Hands, found, raw

pytestmark = pytest.mark.promise("flat")


async def purge(app: Redrive, **options: Any) -> Purge:
    chosen: dict[str, Any] = {
        "ended_before": None, "failed_before": None, "handled_before": None, "by": "ann", "dry_run": False,
        "limit": 100,
    }  # fmt: skip
    return await app.store.purge(**{**chosen, **options})


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

    purged = await purge(app, ended_before=clock.now(), handled_before=clock.now())

    assert (purged.events, purged.dead_letters, purged.handled) == (2, 0, 1)
    assert await types(app) == {"failed", "discarded", "in_flight", "pending"}


@pytest.mark.req("H5")
async def test_dead_letters_are_removed_only_when_somebody_says_so_and_that_is_recorded(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await one_of_each(app, hands)
    clock.advance("1d")

    purged = await purge(app, failed_before=clock.now())
    last = [entry async for entry in app.store.trail() if entry.chain == "operator"][-1]

    assert (purged.events, purged.dead_letters, purged.handled) == (0, 2, 0)
    assert await types(app) == {"delivered", "cancelled", "in_flight", "pending"}
    assert (last.kind, last.actor, last.event_id) == ("purged", "ann", None)
    assert last.facts == {"dead_letters": 2, "failed_before": "2030-01-02T00:00:00.000000Z"}
    assert (await app.verify_trail()).sound


async def test_nothing_younger_than_the_limit_is_removed(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    await one_of_each(app, hands)
    young = clock.now()

    purged = await purge(app, ended_before=young, failed_before=young, handled_before=young)

    assert purged == Purge()


async def test_a_dry_run_counts_and_changes_nothing(
    store_url: str, app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await one_of_each(app, hands)
    await app.store.end_session((await Hands.begin(app)).id)
    clock.advance("1d")
    everything = {"ended_before": clock.now(), "failed_before": clock.now(), "handled_before": clock.now()}
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
    now = clock.now()

    steps = [await purge(app, ended_before=now, failed_before=now, handled_before=now, limit=3) for _ in range(4)]

    assert [(step.events, step.dead_letters, step.handled) for step in steps] == [
        (3, 3, 3), (3, 2, 3), (1, 0, 0), (0, 0, 0),
    ]  # fmt: skip


async def test_the_oldest_go_first(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    for n in range(4):
        await app.publish(f"t{n}")
        await hands.deliver(await hands.claim_one())
        clock.advance(1)

    await purge(app, ended_before=clock.now(), limit=2)

    assert await types(app) == {"t2", "t3"}


async def test_an_event_whose_row_is_gone_keeps_its_trail(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    dead = await hands.dead_letter()
    clock.advance("1d")
    await purge(app, failed_before=clock.now())

    trail = await app.trail(dead)

    assert await app.event(dead) is None
    assert [entry.kind for entry in trail] == ["dead-lettered"]


@pytest.mark.req("O8")
@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (Retention(handled=86_400.0), "dead letters are kept for ever"),
        (Retention(handled=86_400.0, failed=2 * 86_400.0), "shorter than retention.failed"),
    ],
)
def test_keys_that_would_be_forgotten_before_their_dead_letters_are_refused_at_start(
    kept: Retention, problem: str, store_url: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Redrive(store_url, retention=kept)


def test_keys_that_outlive_their_dead_letters_are_fine(store_url: str) -> None:
    for kept in (Retention(), Retention.of(failed="7d"), Retention.of(failed="7d", handled="7d")):
        Redrive(store_url, retention=kept)


@pytest.mark.req("H5")
async def test_by_default_a_worker_removes_no_dead_letter(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    dead = await hands.dead_letter()
    clock.advance("3650d")

    ended, failed, handled = app.retention.cutoffs(clock.now())

    assert (failed, handled) == (None, None)
    assert isinstance(ended, datetime)
    assert ended == clock.now() - timedelta(days=30)
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

    dry = await purge(app, ended_before=clock.now(), dry_run=True)
    assert (dry.members, len(await app.redrivings())) == (2, 3)
    await purge(app, ended_before=clock.now())

    (kept,) = await app.redrivings()
    assert kept.id != left.redrive.id
    assert (await app.group(left.parts[0]["fingerprint"])).dead_count == 1
