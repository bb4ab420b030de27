"""Sessions, and the sweep of what lost ones held."""

from __future__ import annotations

import pytest

from redrive import Redrive, Status
from redrive.clock import VirtualClock
from redrive.settle import settlement_for_lost
from redrive.store.base import ATTEMPTS, FENCE, LOST_COUNT, SWEPT_STATUS, Ages, Finished
from tests.stores.helpers import Hands, found, kinds, uuid_of


async def test_a_session_is_seen_as_it_began(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    (session,) = await app.store.sessions()

    assert (session.id, session.name, session.queues, session.targets) == (hands.id, "hands", ("default",), ("t",))
    assert (session.started_at, session.ended_at) == (clock.now(), None)
    assert session.lease_until is not None
    assert (session.lease_until - clock.now()).total_seconds() == 30


async def test_a_heartbeat_renews_the_lease(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    await app.publish("t")
    row = await hands.claim_one()
    beats = []
    for _ in range(5):
        clock.advance(20)
        beats.append(await app.store.heartbeat(hands.id, 30))

    taken = await (await Hands.begin(app)).sweep()

    assert beats == [True] * 5
    assert taken == []
    assert await hands.deliver(row) == []


async def test_the_heartbeat_thread_has_a_line_of_its_own(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    async with app.store.pulse() as renew:
        alive = await renew(hands.id, 30)
        await app.store.end_session(hands.id)
        ended = await renew(hands.id, 30)

    assert (alive, ended) == (True, False)


@pytest.mark.req("B4")
async def test_an_ended_session_cannot_be_revived_and_claims_nothing(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await app.publish("t")
    await app.store.end_session(hands.id)

    alive = await app.store.heartbeat(hands.id, 30)
    claimed = await hands.claim()

    assert (alive, claimed) == (False, [])
    assert (await app.store.sessions())[0].ended_at == clock.now()


@pytest.mark.req("B4")
async def test_a_swept_session_cannot_be_revived_and_claims_nothing(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    clock.advance(31)
    sweeper = await Hands.begin(app)
    await sweeper.sweep()
    await app.publish("t")

    alive = await app.store.heartbeat(hands.id, 30)
    claimed = await hands.claim()

    assert (alive, claimed) == (False, [])
    assert len(await sweeper.claim()) == 1
    await sweeper.claims.close()


async def test_an_unknown_session_claims_nothing(app: Redrive, clock: VirtualClock) -> None:
    await app.publish("t")
    claims = app.store.claims(clock.new_id(), [("default", 1, 0)], actor="nobody")

    turn = await claims.turn(Finished(), 10)

    assert list(turn.claimed) == []
    await claims.close()


async def test_a_session_within_its_lease_is_not_swept(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    await app.publish("t")
    await hands.claim_one()
    clock.advance(30)

    taken = await (await Hands.begin(app)).sweep()

    assert taken == []


@pytest.mark.req("A7")
async def test_what_a_lost_session_held_goes_back_with_the_loss_counted_apart(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t")
    await hands.claim_one()
    clock.advance(31)
    sweeper = await Hands.begin(app)

    (row,) = await sweeper.sweep()
    event = await found(app, published.id)

    assert (uuid_of(row), row[SWEPT_STATUS], row[LOST_COUNT]) == (published.id, "pending", 1)
    assert (event.status, event.attempts, event.lost_count) == (Status.PENDING, 0, 1)
    assert event.due_at == clock.now()
    assert await kinds(app, published.id) == ["lost"]
    assert (await app.trail(published.id))[0].facts["lost_count"] == 1
    assert (await sweeper.claim_one())[ATTEMPTS] == 1
    await sweeper.claims.close()


@pytest.mark.req("A7")
async def test_a_worker_that_left_without_handing_back_is_swept_too(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t")
    await hands.claim_one()
    await app.store.end_session(hands.id)

    taken = await (await Hands.begin(app)).sweep()

    assert [uuid_of(row) for row in taken] == [published.id]


async def test_the_distance_grows_with_each_loss_up_to_a_minute(app: Redrive, clock: VirtualClock) -> None:
    await app.publish("t")
    distances = []
    for _ in range(7):
        hands = await Hands.begin(app)
        await hands.claim_one()
        await app.store.end_session(hands.id)
        await hands.claims.close()
        ((*_, due_at),) = [(row, (await found(app, row[0])).due_at) for row in await hands.sweep(max_lost=99)]
        distances.append((due_at - clock.now()).total_seconds())
        clock.advance(60)

    assert distances == [0, 5, 10, 20, 40, 60, 60]


async def test_a_sweep_takes_no_more_than_its_limit(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    await app.publish_many([("t", n) for n in range(25)])
    await hands.claim(25)
    clock.advance(31)
    sweeper = await Hands.begin(app)

    taken = [len(await sweeper.sweep(limit=10)) for _ in range(4)]

    assert taken == [10, 10, 5, 0]


@pytest.mark.req("A7")
async def test_at_the_cap_the_sweeper_takes_the_lease_and_settles_it_as_a_dead_letter(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t")
    fence = (await hands.claim_one())[FENCE]
    clock.advance(31)
    sweeper = await Hands.begin(app)

    (row,) = await sweeper.sweep(max_lost=1)
    taken = await found(app, published.id)
    refused = await sweeper.settle(settlement_for_lost(row, 5))
    dead = await found(app, published.id)

    assert (row[SWEPT_STATUS], row[FENCE], row[LOST_COUNT]) == ("in_flight", fence + 1, 1)
    assert (taken.status, taken.session_id) == (Status.IN_FLIGHT, sweeper.id)
    assert refused == []
    assert (dead.status, dead.error_class, dead.lost_count, dead.attempts) == (Status.FAILED, "worker_lost", 1, 1)
    assert await kinds(app, published.id) == ["lost", "dead-lettered"]
    assert (await app.trail(published.id))[1].facts["outcome"] == "lost"
    await sweeper.claims.close()


@pytest.mark.req("A7")
async def test_when_the_sweeper_dies_too_the_next_sweep_finds_it(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t")
    await hands.claim_one()
    clock.advance(31)
    first = await Hands.begin(app)
    await first.sweep(max_lost=1)
    clock.advance(31)
    second = await Hands.begin(app)

    (row,) = await second.sweep(max_lost=1)

    assert (uuid_of(row), row[SWEPT_STATUS], row[LOST_COUNT]) == (published.id, "in_flight", 2)
    assert (await found(app, published.id)).session_id == second.id


async def test_old_sessions_are_forgotten_but_not_while_they_hold_something(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    idle = await Hands.begin(app)
    await app.publish("t")
    await hands.claim_one()
    await app.store.end_session(idle.id)
    await app.store.end_session(hands.id)
    clock.advance("1d")

    purged = await app.store.purge(Ages(ended=0.0), by="t", limit=10)

    assert purged.sessions == 1
    assert [session.id for session in await app.store.sessions()] == [hands.id]
