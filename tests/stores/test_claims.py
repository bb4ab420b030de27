"""How events are claimed: in which order, from which lanes, never early, and counted."""

from __future__ import annotations

from datetime import timedelta

from redrive import Priority, Redrive
from redrive.clock import VirtualClock
from redrive.store.base import ATTEMPTS, FENCE, LOST_COUNT, PAYLOAD, PRIORITY, QUEUE, SWEPT_STATUS, TYPE, Finished
from tests.stores.helpers import Hands, failed, found, retried, uuid_of


async def test_events_are_claimed_in_the_order_of_their_due_time(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    delays = [7, 3, 9, 1, 5]
    ids = {delay: (await app.publish("t", delay=delay)).id for delay in delays}
    clock.advance(10)

    claimed = [uuid_of(await hands.claim_one()) for _ in delays]

    assert claimed == [ids[delay] for delay in sorted(delays)]


async def test_a_limited_claim_takes_the_earliest(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    ids = {delay: (await app.publish("t", delay=delay)).id for delay in (5, 1, 4, 2, 3)}
    clock.advance(10)

    first, rest = await hands.claim(2), await hands.claim(100)

    assert {uuid_of(row) for row in first} == {ids[1], ids[2]}
    assert {uuid_of(row) for row in rest} == {ids[3], ids[4], ids[5]}


async def test_a_higher_priority_goes_first_however_late_it_came(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    for priority in (Priority.REDRIVEN, Priority.LOW, Priority.NORMAL, Priority.HIGH):
        await app.publish("t", priority=priority)
        clock.advance(1)

    claimed = [(await hands.claim_one())[PRIORITY] for _ in range(4)]

    assert claimed == [0, 1, 2, 3]


async def test_one_claim_fills_the_hands_from_several_lanes_in_their_order(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    for priority in (2, 1, 0):
        await app.publish_many([("t", None, {"priority": priority})] * 2)
        clock.advance(1)

    first, rest = await hands.claim(3), await hands.claim(100)

    assert sorted(row[PRIORITY] for row in first) == [0, 0, 1]
    assert sorted(row[PRIORITY] for row in rest) == [1, 2, 2]


async def test_a_worker_claims_from_its_own_queues_only(app: Redrive) -> None:
    hands = await Hands.begin(app, lanes=[("mail", 1, 0), ("sms", 1, 0)])
    for queue in ("default", "mail", "sms", "mailer"):
        await app.publish("t", queue=queue)

    claimed = await hands.claim()

    assert sorted(row[QUEUE] for row in claimed) == ["mail", "sms"]
    await hands.claims.close()


async def test_nothing_is_claimed_before_its_time(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    await app.publish("by.delay", delay="5s")
    await app.publish("by.time", due_at=clock.now() + timedelta(seconds=5))

    clock.advance(4.999999)
    early = await hands.claim()
    clock.advance(0.000001)
    claimed = await hands.claim()

    assert early == []
    assert sorted(row[TYPE] for row in claimed) == ["by.delay", "by.time"]


async def test_a_due_time_in_the_past_means_now(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    published = await app.publish("t", due_at=clock.now() - timedelta(days=400))

    claimed = await hands.claim()

    assert [uuid_of(row) for row in claimed] == [published.id]
    assert (await found(app, published.id)).due_at == clock.now()


async def test_next_due_tells_when_something_comes_due_after_now(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    nothing = await hands.claims.next_due()
    await app.publish("t")
    await app.publish("t", queue="other", delay=1)
    only_what_is_due = await hands.claims.next_due()
    await app.publish("t", delay=60, priority=0)
    await app.publish("t", delay=20, priority=2)

    later = await hands.claims.next_due()
    clock.advance(15)
    sooner = await hands.claims.next_due()

    assert (nothing, only_what_is_due, later, sooner) == (None, None, 20.0, 5.0)


async def test_an_attempt_is_counted_when_it_is_claimed(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    published = await app.publish("t")

    rows = [await hands.claim_one()]
    counted = [(await found(app, published.id)).attempts]
    for _ in range(2):
        await hands.settle(retried(rows[-1], 1.0))
        clock.advance(1)
        rows.append(await hands.claim_one())
        counted.append((await found(app, published.id)).attempts)

    assert [row[ATTEMPTS] for row in rows] == [1, 2, 3]
    assert counted == [1, 2, 3]


async def test_each_claim_raises_the_fence_by_one_and_a_replay_never_resets_it(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t")
    fences = []
    for cycle in range(3):
        row = await hands.claim_one()
        fences.append(row[FENCE])
        await hands.settle(retried(row, 0.0))
        row = await hands.claim_one()
        fences.append(row[FENCE])
        await hands.put_back(row)
        row = await hands.claim_one()
        fences.append(row[FENCE])
        await hands.settle(failed(row))
        await app.replay(published.id, by="ann", reason=f"cycle {cycle}")

    assert fences == list(range(1, 10))
    assert (await found(app, published.id)).fence == 9


async def test_putting_back_spends_no_attempt_and_waits_as_told(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t")
    row = await hands.claim_one()

    refused = await hands.put_back(row, delay=30.0)
    event = await found(app, published.id)
    early = await hands.claim()
    clock.advance(30)
    again = await hands.claim_one()

    assert (refused, early) == ([], [])
    assert (event.attempts, event.lost_count, event.last_error) == (0, 0, None)
    assert (event.due_at - event.created_at).total_seconds() == 30
    assert (again[ATTEMPTS], again[LOST_COUNT]) == (1, 0)


async def test_one_turn_settles_and_claims(app: Redrive, hands: Hands) -> None:
    await app.publish_many([("t", n) for n in range(4)])
    first, second, third = await hands.claim(3)

    turn = await hands.claims.turn(
        Finished(delivered=[first], settlements=[retried(second, 60.0)], put_back=[(third, 60.0)]), 10
    )

    assert list(turn.refused) == []
    assert len(turn.claimed) == 1
    assert await app.store.counts() == {("t", "delivered"): 1, ("t", "pending"): 2, ("t", "in_flight"): 1}


async def test_the_payload_of_a_claimed_row_is_the_text_that_was_published(app: Redrive, hands: Hands) -> None:
    await app.publish("t", {"ü": [1.5, None, "\u2028"]})

    row = await hands.claim_one()

    assert row[PAYLOAD] == '{"ü":[1.5,null,"\u2028"]}'


async def test_forget_puts_back_what_is_not_held_and_nothing_else(app: Redrive, hands: Hands) -> None:
    other = await Hands.begin(app)
    await app.publish_many([("t", n) for n in range(6)])
    lost_on_the_way, held, others = await hands.claim(2), await hands.claim(2), await other.claim(2)

    forgotten = await hands.claims.forget([row[0] for row in held], max_lost=5)
    events = {event.id: event for event in await app.events()}

    assert forgotten == 2
    assert {(events[uuid_of(row)].status.value, events[uuid_of(row)].attempts) for row in lost_on_the_way} == {
        ("pending", 0)
    }
    assert {(events[uuid_of(row)].status.value, events[uuid_of(row)].attempts) for row in [*held, *others]} == {
        ("in_flight", 1)
    }
    assert {uuid_of(row) for row in await other.claim()} == {uuid_of(row) for row in lost_on_the_way}
    await other.claims.close()


async def test_forget_with_empty_hands_puts_back_everything(app: Redrive, hands: Hands) -> None:
    await app.publish_many([("t", n) for n in range(3)])
    await hands.claim()

    assert await hands.claims.forget([], max_lost=5) == 3
    assert len(await hands.claim()) == 3


async def test_what_a_sweep_took_over_and_forgot_is_not_run_again_but_swept_again(app: Redrive, hands: Hands) -> None:
    other = await Hands.begin(app)
    await app.publish_many([("t", "overtime"), ("t", "killer")])
    overtime, killer = await hands.claim_one(), await other.claim_one()
    async with app.store.pulse() as renew:
        await renew(hands.id, 30.0, [overtime])
    await app.store.end_session(other.id)
    taken = await hands.sweep(max_lost=1)

    assert len(taken) == await hands.claims.forget([], max_lost=1) == 2  # the answer to the sweep was lost
    assert await hands.claim() == []
    again = {uuid_of(row): (row[SWEPT_STATUS], row[ATTEMPTS], row[LOST_COUNT]) for row in await hands.sweep(max_lost=1)}

    assert again == {uuid_of(overtime): ("in_flight", 1, 0), uuid_of(killer): ("in_flight", 1, 1)}
    await other.claims.close()
