"""Edited payloads where redrives need approval: they wait for a second person, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from redrive import Event, NeedsApproval, Redrive, Refused, Rejected, RetryPolicy, Status
from redrive.clock import VirtualClock
from redrive.operate import actions, masked, views
from redrive.redrive import Redriving, Release


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    app = Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True)

    @app.handler("order.paid")
    async def ship(order: dict[str, Any]) -> None:
        if order["number"] < 0:
            raise Rejected("no such order")

    async with app:
        await actions.set_approval(app, 10, by="root", reason="be careful")
        yield app


async def dead(app: Redrive, **payload: Any) -> Event:
    published = await app.publish("order.paid", {"number": -7, "card": "4111111111111111", **payload})
    await app.worker().drain()
    return await now(app, published.id)


async def now(app: Redrive, event_id: UUID) -> Event:
    event = await app.event(event_id)
    assert event is not None
    return event


async def edited(app: Redrive, event: Event, number: int = 7, by: str = "ada") -> Redriving:
    (done,) = await actions.replay(
        app, [event], by=by, reason="typo", payloads={event.id: {**event.payload, "number": number}}
    )
    assert not done.refused
    assert done.waits is not None
    return done.waits


@pytest.mark.req("B1", "W6")
async def test_an_edit_waits_for_a_second_person_and_goes_when_they_approve(app: Redrive) -> None:
    event = await dead(app)
    waiting = await edited(app, event)

    assert (waiting.state, waiting.edited, waiting.reason) == ("planned", True, "typo")
    assert (await now(app, event.id)).payload == event.payload
    with pytest.raises(Refused, match="somebody else"):
        await actions.approve(app, waiting, by="ada")
    with pytest.raises(NeedsApproval, match="redrives approve"):
        await app.start(waiting.token, by="ada", reason="now", release=Release())
    with pytest.raises(Refused, match="agent"):
        await actions.approve(app, waiting, by="agent:bot")
    (matter,) = await app.attention(kinds=["redrive"])
    assert (matter.act, "edited" in matter.sentence) == (f"redrive redrives approve {waiting.id}", True)

    approved = await actions.approve(app, waiting, by="bob")
    await app.worker().drain()

    after = await now(app, event.id)
    assert (approved.approved_by, approved.started_by) == ("bob", "ada")
    assert (after.status, after.payload["number"]) == (Status.DELIVERED, 7)
    assert after.failure_history[-1].replayed_by == "ada"
    assert (await app.redriving(waiting.id)).state == "done"
    assert await views.proposed(app, approved) is None
    (kept,) = await app.store.ask("payload_revisions", id=event.id)
    assert (kept["replaced_by"], "-7" in kept["payload"]) == ("ada", True)
    kinds = [each.kind async for each in app.store.trail()]
    assert kinds.count("edit-proposed") == kinds.count("redrive-approved") == kinds.count("edited") == 1
    assert (await app.verify_trail()).sound


async def test_what_waits_is_shown_without_secrets(app: Redrive) -> None:
    event = await dead(app)
    (done,) = await actions.replay(
        app, [event], by="ada", reason="typo", payloads={event.id: {"number": 7, "card": "4222222222222222"}}
    )
    assert done.waits is not None

    assert await masked.proposed(app, done.waits) == [
        {"field": "payload.number", "before": -7, "after": 7},
        {"field": "payload.card", "before": "•••", "after": "•••"},
    ]


async def test_an_edit_of_an_event_that_has_moved_is_refused_and_nothing_changes(app: Redrive) -> None:
    event = await dead(app)
    waiting = await edited(app, event)
    await app.replay(event.id, by="cleo", reason="try")
    await app.worker().drain()
    before = await now(app, event.id)

    with pytest.raises(Refused, match="edit it anew"):
        await actions.approve(app, waiting, by="bob")

    assert await now(app, event.id) == before
    assert (await app.redriving(waiting.id)).approved_by is None
    aborted = await app.abort(waiting.id, by="ada", reason="too late")
    assert aborted.state == "aborted"
    assert await app.store.ask("revision_get", id=waiting.id) == []


async def test_of_many_approvals_at_once_one_lets_it_go(app: Redrive) -> None:
    event = await dead(app)
    waiting = await edited(app, event, number=-8)

    answers = await asyncio.gather(
        *(app.approve(waiting.id, by=f"person-{n}") for n in range(6)), return_exceptions=True
    )
    await app.worker().drain()

    assert [type(each) for each in answers if isinstance(each, BaseException)] == [Refused] * 5
    after = await now(app, event.id)
    assert (after.cycle, after.payload["number"], after.status) == (1, -8, Status.FAILED)
    assert (await app.redriving(waiting.id)).failed_same == 1


async def test_an_edit_cannot_be_made_past_the_rule(app: Redrive) -> None:
    event = await dead(app)

    with pytest.raises(NeedsApproval, match="second person"):
        await app.replay(event.id, by="ada", reason="typo", payload={"number": 7})

    await actions.set_approval(app, None, by="root", reason="alone again")
    await app.replay(event.id, by="ada", reason="typo", payload={"number": 7})


async def test_an_edit_that_waited_for_too_long_is_void(store_url: str) -> None:
    clock = VirtualClock()
    async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True, clock=clock) as app:

        @app.handler("order.paid")
        async def ship(order: dict[str, Any]) -> None:
            raise Rejected("no such order")

        await actions.set_approval(app, 10, by="root", reason="be careful")
        event = await dead(app)
        waiting = await edited(app, event)
        clock.advance(86_401)

        with pytest.raises(Refused, match="edit anew"):
            await app.approve(waiting.id, by="bob")
        assert await app.attention(kinds=["redrive"]) == []


async def test_a_replay_meant_for_an_earlier_cycle_is_refused(app: Redrive) -> None:
    event = await dead(app)
    await app.replay(event.id, by="ada", reason="try", cycle=0)
    await app.worker().drain()

    with pytest.raises(Refused, match="meanwhile"):
        await app.replay(event.id, by="ada", reason="try", cycle=0)
    await app.replay(event.id, by="ada", reason="try", cycle=1)

    assert (await now(app, event.id)).cycle == 2
