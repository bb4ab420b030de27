"""A request becomes an address, a volume and a machine, or nothing at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import Refused, RetryPolicy
from redrive.apps.controlplane.request import instant
from redrive.apps.controlplane.resource import Provider
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State, Unwanted
from redrive.apps.controlplane.world import FABRIC, HYPERVISOR, STORAGE, Fault
from tests.apps.controlplane.helpers import (
    ask,
    assert_sound,
    comes_to,
    drained,
    events_of,
    found,
    quiet,
    reconciled,
    rows,
    site,
    state_of,
)
from tests.waiting import until
from tests.worker.conftest import working


async def test_a_request_gets_an_address_a_volume_and_a_machine(app: ControlPlane) -> None:
    request = await drained(app, await ask(app, volume_gb=20, size="large"))

    assert request.state is State.READY
    (machine,) = await app.world.seen(HYPERVISOR)
    assert machine.name == request.machine
    wanted = {"address": request.address, "volume": request.volume, "size": "large", "running": True}
    assert machine.facts == {**wanted, "image": "debian-13"}
    (volume,) = await app.world.seen(STORAGE)
    assert volume.facts == {"gb": 20, "copies": 2}
    await assert_sound(app)


@pytest.mark.req("W9")
async def test_what_is_given_back_is_destroyed_in_reverse_order(app: ControlPlane) -> None:
    assert app.requests is not None
    request = await drained(app, await ask(app))

    await app.requests.cancel(request.id, by="ada", reason="no longer needed")
    after = await drained(app, request)

    assert (after.state, after.cancelled_by, after.reason) == (State.RELEASED, "ada", "no longer needed")
    destroyed = [name for act, name, _ in await app.world.deeds() if act == "destroyed"]
    assert destroyed == [request.machine, request.volume, request.address]
    await assert_sound(app)


@pytest.mark.req("W1")
async def test_a_failure_of_its_own_is_tried_a_few_times_visibly_and_then_given_up(
    store_url: str, tmp_path: Path
) -> None:
    slower = RetryPolicy(max_attempts=3, base_delay=0.4, multiplier=1.5, jitter="none")
    async with site(store_url, tmp_path / "world.db", retry=slower) as app:
        await app.world.tell(Fault(HYPERVISOR, "broken"))
        async with working(app):
            request = await ask(app)

            async def waits_for_its_second_attempt() -> bool:
                seen = await events_of(app, request, "machine.wanted")
                return bool(seen) and seen[0].attempts == 1 and seen[0].next_retry_at is not None

            await until(waits_for_its_second_attempt)
            (during,) = await events_of(app, request, "machine.wanted")
            await until(lambda: _has_dead_letter(app, request, "machine.wanted"))
            await app.world.heal()
            after = await comes_to(app, request, State.FAILED)

        (order,) = await events_of(app, request, "machine.wanted")
        trail = [(entry.kind, entry.facts) for entry in await app.trail(order.id)]
        assert "hypervisor: internal error" in (during.last_error or "")
        assert order.attempts == 3
        assert [facts["attempt"] for kind, facts in trail if kind == "retry-scheduled"] == [1, 2]
        assert (after.error_class, after.operation) == ("broken", "machine.wanted")
        await assert_sound(app)


async def _has_dead_letter(app: ControlPlane, request: Any, type_: str) -> bool:
    return any(event.is_dead_letter for event in await events_of(app, request, type_))


@pytest.mark.req("W1", "W2", "W3")
@pytest.mark.parametrize(
    ("asked", "state", "error_class", "operation", "safe", "attempts"),
    [
        ({"image": "windows-95"}, State.REJECTED, "rejected", "machine.wanted", False, 1),
        ({"volume_gb": 400}, State.REJECTED, "invalid", "volume.wanted", True, 1),
        ({"owner": "the second"}, State.REJECTED, "missing", "address.wanted", True, 3),
    ],
    ids=["the domain says no", "policy says no", "none is left"],
)
async def test_a_refusal_says_what_failed_on_what_why_and_whether_to_try_again(
    store_url: str, tmp_path: Path, asked: dict[str, Any], state: State, error_class: str, operation: str, safe: bool,
    attempts: int,
) -> None:  # fmt: skip
    async with site(store_url, tmp_path / "world.db", pool="10.0.0.0/31", quota_gb=300) as app:
        for _ in range(2 if error_class == "missing" else 0):
            assert (await drained(app, await ask(app))).state is State.READY
        async with working(app):
            request = await comes_to(app, await ask(app, **asked), state)
        (order,) = [event for event in await events_of(app, request) if event.is_dead_letter]

        resource = operation.replace("wanted", "").rstrip(".") + f"/{request.id}"
        assert (request.operation, request.resource) == (operation, resource)
        assert (request.error_class, request.safe_to_retry) == (error_class, safe)
        assert (order.operation, order.resource, order.error_class) == (operation, resource, error_class)
        assert (order.safe_to_retry, order.attempts) == (safe, attempts)
        await assert_sound(app)


@pytest.mark.req("W3")
async def test_a_failure_here_is_told_apart_from_one_of_a_dependency(app: ControlPlane) -> None:
    await app.world.tell(Fault(STORAGE, "broken"))
    await app.set_policy("volume.unwanted", by="ann", reason="it ends when storage works again", max_attempts=1_000)
    async with working(app):
        ours = await ask(app)
        await until(lambda: _has_dead_letter(app, ours, "volume.wanted"))
        await app.world.heal()
        ours = await comes_to(app, ours, State.FAILED)
        await app.world.tell(Fault(STORAGE, "down"))
        theirs = await ask(app)
        await until(lambda: _waits_for(app, theirs, "volume.wanted", "storage"))
        await app.world.heal()
        await comes_to(app, theirs, State.READY)

    assert ours.error_class == "broken"


async def _waits_for(app: ControlPlane, request: Any, type_: str, dependency: str) -> bool:
    events = await events_of(app, request, type_)
    return bool(events) and (events[0].status, events[0].blocked_on) == ("blocked", dependency)


@pytest.mark.req("W9")
async def test_an_answer_that_is_lost_makes_nothing_twice(app: ControlPlane) -> None:
    await app.world.tell(*(Fault(system, "lose", every=2) for system in (FABRIC, STORAGE, HYPERVISOR)))
    async with working(app):
        requests = [await ask(app, volume_gb=1) for _ in range(5)]
        for request in requests:
            await comes_to(app, request, State.READY)
    await app.world.heal()
    await reconciled(app)

    assert len(await app.world.seen(HYPERVISOR)) == 5
    await assert_sound(app)


@pytest.mark.req("W9")
async def test_who_cancels_and_why_is_on_the_request_and_on_what_was_under_way(app: ControlPlane) -> None:
    assert app.requests is not None
    await app.world.tell(Fault(HYPERVISOR, "down"))
    async with working(app):
        request = await ask(app)
        await until(lambda: _waits_for(app, request, "machine.wanted", "hypervisor"))
        await app.requests.cancel(request.id, by="ada", reason="the project is over")
        with pytest.raises(Refused, match="UNDOING"):
            await app.requests.cancel(request.id, by="bob", reason="me too")

        async def called_off() -> bool:
            return [event.status for event in await events_of(app, request, "machine.wanted")] == ["cancelled"]

        await until(called_off)  # although the hypervisor is still down
        assert await state_of(app, request) is State.UNDOING
        await app.world.heal()
        after = await comes_to(app, request, State.CANCELLED)
    (order,) = await events_of(app, request, "machine.wanted")

    assert (after.cancelled_by, after.reason) == ("ada", "the project is over")
    assert (order.status, order.cancelled_by, order.cancel_reason) == ("cancelled", "ada", "the project is over")
    undone = [name for act, name, _ in await app.world.deeds() if act == "destroyed"]
    assert undone == [f"vol-{request.id}", undone[-1]]
    with pytest.raises(Refused, match="CANCELLED"):
        await app.requests.cancel(request.id, by="ada", reason="again")
    await assert_sound(app)


@pytest.mark.req("W4", "W9")
async def test_an_order_that_probes_what_is_down_while_it_is_called_off_is_cancelled_all_the_same(
    app: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.requests is not None
    call_off = Provider._call_off

    async def after_a_probe(service: Provider, unwanted: Unwanted) -> None:
        (order,) = await events_of(app, request, "machine.wanted")

        async def probed() -> bool:
            return [event.fence > order.fence for event in await events_of(app, request, "machine.wanted")] == [True]

        await until(probed)
        await call_off(service, unwanted)

    monkeypatch.setattr(Provider, "_call_off", after_a_probe)
    await app.world.tell(Fault(HYPERVISOR, "down"))
    async with working(app):
        request = await ask(app)
        await until(lambda: _waits_for(app, request, "machine.wanted", "hypervisor"))
        await app.requests.cancel(request.id, by="ada", reason="the project is over")
        await until(lambda: _waits_for(app, request, "machine.unwanted", "hypervisor"))
    (order,) = await events_of(app, request, "machine.wanted")

    assert (order.status, order.cancelled_by) == ("cancelled", "ada")


@pytest.mark.req("W9")
async def test_what_is_still_being_made_when_it_is_called_off_is_undone_when_it_is_there(app: ControlPlane) -> None:
    assert app.requests is not None
    await app.world.tell(Fault(STORAGE, "slow", seconds=0.6))
    async with working(app):
        request = await ask(app)

        async def under_way() -> bool:
            return [event.status for event in await events_of(app, request, "volume.wanted")] == ["in_flight"]

        await until(under_way)
        await app.requests.cancel(request.id, by="ada", reason="changed my mind")
        await comes_to(app, request, State.CANCELLED)

        async def nothing_left() -> bool:
            live = {"pending", "in_flight", "blocked"}
            return not any(event.status in live for event in await events_of(app, request))

        await until(nothing_left)

    await reconciled(app)
    await assert_sound(app)


@pytest.mark.req("W9")
async def test_an_attempt_has_a_limit_and_one_that_hangs_costs_time_and_not_the_request(
    store_url: str, tmp_path: Path
) -> None:
    async with site(store_url, tmp_path / "world.db", timeout="100ms") as app:
        await app.world.tell(Fault(HYPERVISOR, "slow", seconds=60))
        async with working(app):
            request = await ask(app)

            async def timed_out() -> bool:
                return [event.error_class for event in await events_of(app, request, "machine.wanted")] == ["timed_out"]

            await until(timed_out)
            await app.world.heal()
            await comes_to(app, request, State.READY)

        await reconciled(app)
        await assert_sound(app)


@pytest.mark.req("W7", "W9")
async def test_a_request_that_is_not_ready_by_its_deadline_is_undone_even_while_it_is_blocked(
    app: ControlPlane,
) -> None:
    await app.world.tell(Fault(HYPERVISOR, "down"))
    async with working(app):
        request = await ask(app)
        await until(lambda: _waits_for(app, request, "machine.wanted", "hypervisor"))
        await rows(app, "update controlplane.request set deadline_at = $1 returning id", "2026-01-01T00:00:00")
        run = await app.reconcilers.run_here("requests")
        await comes_to(app, request, State.UNDOING)
        await app.world.heal()
        after = await comes_to(app, request, State.FAILED)
    (order,) = await events_of(app, request, "machine.wanted")

    assert run.different == 1
    assert (after.error_class, after.reason) == ("timed_out", "it was not ready by its deadline")
    assert (order.status, order.cancelled_by) == ("cancelled", "controlplane")
    await assert_sound(app)


@pytest.mark.req("W9")
async def test_the_deadline_of_a_request_is_that_of_its_orders(store_url: str, tmp_path: Path) -> None:
    async with site(store_url, tmp_path / "world.db", deadline="200ms") as app:
        request = await ask(app)
        await until(lambda: instant(app.clock.now()) > request.deadline_at)  # nobody is at work
        after = await drained(app, request)

        assert (after.state, after.error_class, after.operation) == (State.FAILED, "timed_out", "address.wanted")
        await assert_sound(app)


async def test_an_order_that_comes_twice_at_once_makes_one_machine(app: ControlPlane) -> None:
    await app.world.tell(Fault(HYPERVISOR, "slow", seconds=0.3))
    async with working(app):
        request = await ask(app)

        async def under_way() -> bool:
            return [event.status for event in await events_of(app, request, "machine.wanted")] == ["in_flight"]

        await until(under_way)
        (order,) = await events_of(app, request, "machine.wanted")
        await app.publish("machine.wanted", order.payload, correlation_id=request.id)
        await comes_to(app, request, State.READY)
        await until(lambda: quiet(app))

    answers = await events_of(app, request, "machine.made")
    assert [event.status for event in answers] == ["delivered", "delivered"]
    await assert_sound(app)


async def test_the_same_key_is_the_same_request_under_any_race(app: ControlPlane) -> None:
    asked = await asyncio.gather(*(ask(app, key="order-7") for _ in range(5)))

    assert len({request.id for request in asked}) == 1
    assert await state_of(app, await drained(app, asked[0])) is State.READY
    await assert_sound(app)


async def test_a_site_that_does_not_exist_is_refused(app: ControlPlane) -> None:
    with pytest.raises(Refused, match="no site 'atlantis'"):
        await ask(app, site="atlantis")


@pytest.mark.req("W8")
async def test_two_requests_cannot_both_be_the_last_within_a_quota(store_url: str, tmp_path: Path) -> None:
    async with site(store_url, tmp_path / "world.db", quota_gb=100) as app:
        async with working(app):
            requests = await asyncio.gather(*(ask(app, volume_gb=30) for _ in range(8)))
            for request in requests:
                await until(lambda request=request: _has_ended(app, request))  # type: ignore[misc]
        states = [await state_of(app, request) for request in requests]

        assert states.count(State.READY) == 3
        assert states.count(State.REJECTED) == 5
        await assert_sound(app)


async def _has_ended(app: ControlPlane, request: Any) -> bool:
    now = await found(app, request)
    return now.has_ended or now.state is State.READY
