"""A worker whose lease ran out can settle nothing, and is told exactly what it could not settle (B4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from redrive import Event, Redrive
from redrive.clock import VirtualClock
from redrive.event import LIVE
from redrive.store.base import FENCE, ID, Finished, Row
from tests.stores.helpers import Hands, failed, found, kinds, refused, retried, uuid_of

pytestmark = pytest.mark.promise("fence")


async def deliver_in_transaction(hands: Hands, row: Row) -> list[UUID]:
    async with hands.app.store.transaction() as transaction:
        accepted = await transaction.deliver(row[ID], row[FENCE])
    return [] if accepted else [uuid_of(row)]


async def bury_in_transaction(hands: Hands, row: Row) -> list[UUID]:
    async with hands.app.store.transaction() as transaction:
        lost = await transaction.settle([failed(row)], chain=str(hands.id), actor="late")
    return [UUID(str(each)) for each in lost]


Late = Callable[[Hands, Row], Awaitable[list[UUID]]]
LATE: dict[str, Late] = {
    "deliver": lambda hands, row: hands.deliver(row),
    "retry": lambda hands, row: hands.settle(retried(row, 5.0, "late")),
    "dead-letter": lambda hands, row: hands.settle(failed(row, "late")),
    "put back": lambda hands, row: hands.put_back(row),
    "deliver in a transaction": deliver_in_transaction,
    "bury in a transaction": bury_in_transaction,
}


async def swept(app: Redrive, event_id: UUID, late: Hands, other: Hands, clock: VirtualClock) -> None:
    """The lease ran out, the sweep returned the event; nobody has claimed it since."""
    clock.advance(31)
    await app.store.heartbeat(other.id, 60)
    assert len(await other.sweep()) == 1


async def claimed_again(app: Redrive, event_id: UUID, late: Hands, other: Hands, clock: VirtualClock) -> None:
    """… and another worker has claimed it."""
    await swept(app, event_id, late, other, clock)
    assert len(await other.claim()) == 1


async def claimed_by_itself(app: Redrive, event_id: UUID, late: Hands, other: Hands, clock: VirtualClock) -> None:
    """The store put back what the worker did not know of, and the same worker claimed it again."""
    await late.claims.forget([], max_lost=5)
    assert len(await late.claim()) == 1


async def taken_at_the_cap(app: Redrive, event_id: UUID, late: Hands, other: Hands, clock: VirtualClock) -> None:
    """The sweeper holds the lease itself, about to settle it as a dead letter."""
    clock.advance(31)
    await app.store.heartbeat(other.id, 60)
    assert len(await other.sweep(max_lost=1)) == 1


async def delivered_by_another(app: Redrive, event_id: UUID, late: Hands, other: Hands, clock: VirtualClock) -> None:
    await swept(app, event_id, late, other, clock)
    await other.deliver(*await other.claim())


async def cancelled(app: Redrive, event_id: UUID, late: Hands, other: Hands, clock: VirtualClock) -> None:
    await app.cancel(event_id, by="ann", reason="called off")


@pytest.mark.req("B4")
@pytest.mark.parametrize(
    "meanwhile", [swept, claimed_again, claimed_by_itself, taken_at_the_cap, delivered_by_another, cancelled]
)
async def test_a_late_worker_cannot_settle_what_is_no_longer_its_own(
    meanwhile: Callable[..., Awaitable[None]], app: Redrive, clock: VirtualClock
) -> None:
    for verb, late in LATE.items():
        hands, other = await Hands.begin(app), await Hands.begin(app, lease=1_000)
        published = await app.publish("t", {"n": 1})
        row = await hands.claim_one()
        await meanwhile(app, published.id, hands, other, clock)
        before, told_before = await found(app, published.id), await kinds(app, published.id)

        lost = await late(hands, row)

        assert lost == [published.id], verb
        assert await found(app, published.id) == before, verb
        assert await kinds(app, published.id) == told_before, verb
        if before.status in LIVE:
            await app.cancel(published.id, by="ann", reason="out of the way of the next one")
        await hands.claims.close()
        await other.claims.close()


@pytest.mark.req("B4")
async def test_of_a_mixed_batch_exactly_the_lost_leases_are_refused(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    other = await Hands.begin(app, lease=1_000)
    await app.publish_many([("t", n) for n in range(12)])
    rows = await hands.claim()
    lost = {uuid_of(row) for row in rows[::2]}
    for event_id in lost:  # every second one is called off
        await app.cancel(event_id, by="ann", reason="called off")

    finished = Finished(
        delivered=list(rows[:4]),
        settlements=[*(retried(row, 9.0) for row in rows[4:6]), *(failed(row) for row in rows[6:8])],
        put_back=[(row, 3.0) for row in rows[8:]],
    )
    answered = refused(await hands.claims.turn(finished, 0))
    events: dict[UUID, Event] = {event.id: event for event in await app.events()}

    assert sorted(answered) == sorted(lost)
    kept = [events[uuid_of(row)].status.value for row in rows[1::2]]
    assert kept == ["delivered", "delivered", "pending", "failed", "pending", "pending"]
    assert {events[each].status.value for each in lost} == {"cancelled"}
    trailed = [entry.kind for event_id in events for entry in await app.trail(event_id)]
    assert sorted(trailed) == sorted(["cancelled"] * 6 + ["retry-scheduled", "dead-lettered"])
    await other.claims.close()


@pytest.mark.req("B4")
async def test_an_outcome_is_written_once_however_often_it_is_told(app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter()
    published = await app.publish("t")
    row = await hands.claim_one()
    await hands.deliver(row)
    before = await found(app, published.id)

    again = [await hands.settle(failed(row)), await hands.settle(retried(row, 1.0)), await hands.put_back(row)]

    assert again == [[published.id]] * 3
    assert await found(app, published.id) == before
    assert await kinds(app, dead) == ["dead-lettered"]


@pytest.mark.req("B4")
@pytest.mark.parametrize("end", ["deliver", "retry", "dead-letter"])
async def test_a_settle_that_is_repeated_because_its_answer_was_lost_is_no_refusal(
    end: str, app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    """The row stands as wanted under its fence: nothing happens twice, and nothing was lost."""
    published = await app.publish("t")
    row = await hands.claim_one()
    assert await LATE[end](hands, row) == []
    before, told = await found(app, published.id), await kinds(app, published.id)
    clock.advance(1)

    assert await LATE[end](hands, row) == []

    assert await found(app, published.id) == before
    assert await kinds(app, published.id) == told
