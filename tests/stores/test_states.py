"""Which states there are, and who may leave each (O1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from redrive import EventFilter, EventNotFound, Redrive, Refused, Status
from redrive.clock import VirtualClock
from redrive.store.base import Finished
from tests.stores.helpers import Hands, failed, found, kinds, raw, retried

pytestmark = pytest.mark.promise("one-semantics")

STATES = ("in_flight", "delivered", "failed", "cancelled", "pending")


async def event_in(status: str, app: Redrive, hands: Hands) -> UUID:
    published = await app.publish("t", {"n": 1}, retry_key=str(app.clock.new_id()), priority=0)
    if status == "pending":
        return published.id
    if status == "cancelled":
        await app.cancel(published.id, by="ann", reason="wrong")
        return published.id
    row = await hands.claim_one()
    if status == "delivered":
        await hands.deliver(row)
    elif status == "failed":
        await hands.settle(failed(row))
    return published.id


@pytest.mark.req("O1")
async def test_an_event_walks_from_pending_over_in_flight_to_delivered(app: Redrive, hands: Hands) -> None:
    published = await app.publish("t", {"n": 1})
    seen = [(await found(app, published.id)).status]

    row = await hands.claim_one()
    seen.append((await found(app, published.id)).status)
    await hands.deliver(row)
    event = await found(app, published.id)

    assert [*seen, event.status] == [Status.PENDING, Status.IN_FLIGHT, Status.DELIVERED]
    assert event.ended_at is not None
    assert event.session_id == hands.id


@pytest.mark.req("O1")
async def test_an_event_that_fails_goes_round_and_ends_as_a_dead_letter(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t", {"n": 1})
    await hands.settle(retried(await hands.claim_one(), 10.0, "first"))
    retry = await found(app, published.id)
    clock.advance(10)
    await hands.settle(failed(await hands.claim_one(), "second"))

    dead = await found(app, published.id)

    assert (retry.status, retry.attempts, retry.last_error) == (Status.PENDING, 1, "first")
    assert retry.next_retry_at == retry.due_at
    assert (dead.status, dead.attempts, dead.last_error) == (Status.FAILED, 2, "second")
    assert dead.first_failed_at == retry.first_failed_at
    assert dead.ended_at == clock.now()


@pytest.mark.req("O1", "H5")
async def test_a_dead_letter_is_a_row_of_the_same_table_and_the_queue_is_a_filter(
    store_url: str, app: Redrive, hands: Hands
) -> None:
    dead = await hands.dead_letter(payload={"n": 1}, subject="order/1")
    await app.publish("t", {"n": 2})

    letters = await app.events(EventFilter(status=Status.FAILED))
    with raw(store_url) as run:
        rows = run("select id, status, deleted_at from {outbox} where status = 'failed' and deleted_at is null")
        view = run("select id, subject, error_class, attempts from {dead_letters}")

    assert [letter.id for letter in letters] == [dead]
    assert [(UUID(str(row[0])), *row[1:]) for row in rows] == [(dead, "failed", None)]
    assert [(UUID(str(row[0])), *row[1:]) for row in view] == [(dead, "order/1", "broken", 1)]


@pytest.mark.req("O1")
async def test_only_a_pending_event_can_be_claimed(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    for status in STATES[:-1]:
        await event_in(status, app, hands)
    clock.advance("1h")

    claimed = await hands.claim()

    assert claimed == []


Act = Callable[[Redrive, UUID], Awaitable[None]]
ACTS: dict[str, tuple[Act, str]] = {
    "replay": (lambda app, event: app.replay(event, by="ann", reason="mended"), "failed"),
    "cancel": (lambda app, event: app.cancel(event, by="ann", reason="wrong"), "pending in_flight"),
    "discard": (lambda app, event: app.discard(event, by="ann", reason="noise"), "failed"),
    "restore": (lambda app, event: app.restore(event, by="ann", reason="after all"), ""),
}


@pytest.mark.req("O1", "W6")
@pytest.mark.parametrize("verb", ACTS)
async def test_what_an_operator_may_do_depends_on_the_state_alone(verb: str, app: Redrive, hands: Hands) -> None:
    act, allowed = ACTS[verb]
    for status in STATES:
        event_id = await event_in(status, app, hands)
        before, told_before = await found(app, event_id), await kinds(app, event_id)

        if status in allowed.split():
            await act(app, event_id)
            assert len(await kinds(app, event_id)) == len(told_before) + 1
        else:
            with pytest.raises(Refused, match=str(event_id)) as refusal:
                await act(app, event_id)
            assert await found(app, event_id) == before
            assert await kinds(app, event_id) == told_before
            assert status in str(refusal.value) or "discard" in str(refusal.value)


@pytest.mark.parametrize("verb", ACTS)
async def test_an_unknown_event_is_said_to_be_unknown(verb: str, app: Redrive) -> None:
    nobody = app.clock.new_id()

    with pytest.raises(EventNotFound, match=f"there is no event {nobody}"):
        await ACTS[verb][0](app, nobody)


@pytest.mark.parametrize("verb", ACTS)
async def test_nothing_is_done_without_a_name_and_a_reason(verb: str, app: Redrive, hands: Hands) -> None:
    event_id = await hands.dead_letter()
    before = await found(app, event_id)

    for by, reason in (("", "why"), ("  ", "why"), ("ann", ""), ("ann", " \n")):
        with pytest.raises(Refused):
            await getattr(app, verb)(event_id, by=by, reason=reason)

    assert await found(app, event_id) == before


async def test_a_worker_finds_its_lease_gone_after_a_cancel(app: Redrive, hands: Hands) -> None:
    published = await app.publish("t")
    row = await hands.claim_one()
    await app.cancel(published.id, by="ann", reason="called off")

    late = [await hands.deliver(row), await hands.settle(failed(row)), await hands.put_back(row)]

    assert late == [[published.id]] * 3
    event = await found(app, published.id)
    assert (event.status, event.cancelled_by, event.cancel_reason) == (Status.CANCELLED, "ann", "called off")


async def test_a_discarded_dead_letter_is_hidden_refuses_a_replay_and_can_be_restored(
    app: Redrive, hands: Hands
) -> None:
    dead = await hands.dead_letter()
    before = await found(app, dead)

    await app.discard(dead, by="ann", reason="noise")
    hidden, shown = await app.events(EventFilter(discarded=True)), await app.events()
    with pytest.raises(Refused, match="restore it first"):
        await app.replay(dead, by="ann", reason="mended")
    with pytest.raises(Refused, match="discarded already"):
        await app.discard(dead, by="ann", reason="again")
    await app.restore(dead, by="ann", reason="after all")

    assert [event.id for event in hidden] == [dead]
    assert shown == []
    assert await found(app, dead) == before
    assert await kinds(app, dead) == ["dead-lettered", "discarded", "restored"]


@pytest.mark.req("A2", "W2", "W5")
async def test_what_an_operator_needs_to_know_is_on_the_row(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    published = await app.publish(
        "order.placed", {"n": 1}, subject="order/1", retry_key="receipt-1:approved", correlation_id="c1",
        causation_id="e0", headers={"a": "b"}, source="shop", generation=3,
    )  # fmt: skip
    await hands.settle(retried(await hands.claim_one(), 30.0, "no answer"))

    event = await found(app, published.id)

    assert (event.retry_key, event.attempt_count) == ("receipt-1:approved", 1)
    assert event.next_retry_at is not None
    assert (event.next_retry_at - clock.now()).total_seconds() == 30
    assert (event.operation, event.resource) == ("order.placed", "order/1")
    assert (event.error_class, event.safe_to_retry) == ("dependency_unavailable", True)
    assert (event.correlation_id, event.causation_id, event.idempotency_key) == ("c1", "e0", str(published.id))
    assert (event.headers, event.source, event.generation, event.max_attempts) == ({"a": "b"}, "shop", 3, 5)
    assert (event.error_type, event.fingerprint) == ("builtins.ConnectionError", "f2")


async def test_events_can_be_filtered_and_paged(app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter("shop.order", correlation_id="c1", retry_key="k1")
    ids = [(await app.publish(f"shop.{n}", target_free)).id for n, target_free in enumerate("abc")]
    other = (await app.publish("mail", correlation_id=str(dead))).id

    async def listed(**wanted: Any) -> list[UUID]:
        return [event.id for event in await app.events(EventFilter(**wanted))]

    assert await listed() == [other, *reversed(ids), dead]
    assert await listed(type="shop.*") == [*reversed(ids), dead]
    assert await listed(type="shop.1") == [ids[1]]
    assert await listed(status=Status.FAILED, error_class="broken") == [dead]
    assert await listed(retry_key="k1") == [dead]
    assert await listed(correlation_id="c1") == [dead]
    assert await listed(correlation_id=str(dead)) == [other, dead]
    assert await listed(id_prefix=str(dead)) == [dead]
    assert await listed(limit=2) == [other, ids[2]]
    assert await listed(limit=2, before=ids[2]) == [ids[1], ids[0]]
    assert await listed(type="shop.%") == []


async def test_counts_and_overview_tell_how_many_stand_where(app: Redrive, hands: Hands) -> None:
    await hands.dead_letter("a")
    await app.publish_many([("a", None), ("b", None), ("b", None)])
    claimed = await hands.claim(1)

    counts, overview = await app.store.counts(), await app.store.overview()

    assert counts == {("a", "failed"): 1, ("a", "in_flight"): 1, ("b", "pending"): 2}
    assert {name: overview[name] for name in ("pending", "in_flight", "failed", "delivered", "workers")} == {
        "pending": 2, "in_flight": 1, "failed": 1, "delivered": 0, "workers": 1,
    }  # fmt: skip
    assert len(claimed) == 1


async def test_a_turn_without_anything_to_do_changes_nothing(app: Redrive, hands: Hands) -> None:
    turn = await hands.claims.turn(Finished(), 0)

    assert (list(turn.claimed), list(turn.refused)) == ([], [])
