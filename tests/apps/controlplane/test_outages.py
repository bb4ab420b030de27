"""While something is down, work waits and spends nothing; what can do with less goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import EventFilter
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State
from redrive.apps.controlplane.world import FABRIC, HYPERVISOR, STORAGE, Fault
from tests.apps.controlplane.helpers import QUICK, ask, assert_sound, comes_to, events_of, reconciled, rows, site
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.req("W4")
async def test_an_outage_blocks_requests_spends_no_attempt_and_lets_them_back_at_a_bounded_rate(
    store_url: str, tmp_path: Path
) -> None:
    slowly = {**QUICK.circuit, "release_rate": 10.0}
    async with site(store_url, tmp_path / "world.db", circuit=slowly) as app:
        await app.world.tell(Fault(HYPERVISOR, "down"))
        async with working(app):
            requests = [await ask(app, volume_gb=1) for _ in range(25)]
            await until(lambda: _all_blocked(app, 25))
            (dependency,) = [each for each in await app.dependencies() if each.name == "hypervisor"]
            await app.world.heal()
            for request in requests:
                await comes_to(app, request, State.READY)

        orders = [event for each in requests for event in await events_of(app, each, "machine.wanted")]
        ended = sorted(event.ended_at for event in orders if event.ended_at is not None)
        assert str(dependency.state) in ("open", "half_open")
        assert [event.attempts for event in orders] == [1] * 25
        # The probe and the first ten come at once, and no more than ten in each second after that.
        (dependency,) = [each for each in await app.dependencies() if each.name == "hypervisor"]
        assert dependency.closed_at is not None
        late = [(at - dependency.closed_at).total_seconds() for at in ended[11:]]
        assert all(seconds >= nth / 10 for nth, seconds in enumerate(late, 1)), late
        await assert_sound(app)


async def _all_blocked(app: ControlPlane, count: int) -> bool:
    return (await app.store.counts()).get(("machine.wanted", "blocked"), 0) == count


@pytest.mark.req("W4", "W7")
async def test_volumes_are_made_with_one_copy_while_storage_is_degraded_and_get_the_second_when_it_is_back(
    app: ControlPlane,
) -> None:
    await app.world.tell(Fault(STORAGE, "degraded"))
    async with working(app):
        request = await comes_to(app, await ask(app), State.READY)
    (order,) = await events_of(app, request, "volume.wanted")
    (volume,) = await app.world.seen(STORAGE)
    assert (request.reduced, order.degraded, volume.facts["copies"]) == (True, True, 1)

    await app.reconcilers.run("volumes")  # the second copy is known to be missing, and cannot be made yet
    async with working(app):
        await until(lambda: _converging_is(app, "volumes", "blocked"))
        await app.world.heal()
        await until(lambda: _converging_is(app, "volumes", "delivered"))
        await until(lambda: _is_whole(app, request.id))

    (volume,) = await app.world.seen(STORAGE)
    assert volume.facts["copies"] == 2
    await reconciled(app)
    await assert_sound(app)


async def _converging_is(app: ControlPlane, name: str, status: str) -> bool:
    events = await app.events(EventFilter(target=f"converge:{name}"))
    return bool(events) and events[0].status == status


async def _is_whole(app: ControlPlane, request_id: str) -> bool:
    seen = await rows(app, "select reduced from controlplane.request where id = $1", request_id)
    return [bool(row[0]) for row in seen] == [False]


@pytest.mark.req("W4")
async def test_machines_have_no_reduced_mode_and_wait(app: ControlPlane) -> None:
    await app.world.tell(Fault(HYPERVISOR, "degraded"))
    async with working(app):
        request = await ask(app)
        await until(lambda: _all_blocked(app, 1))
        (order,) = await events_of(app, request, "machine.wanted")
        await app.world.heal()
        await comes_to(app, request, State.READY)

    assert (order.blocked_on, order.attempts, order.degraded) == ("hypervisor", 0, False)


@pytest.mark.req("W4", "W9")
async def test_undoing_waits_for_what_is_down_too_and_then_ends(app: ControlPlane) -> None:
    assert app.requests is not None
    async with working(app):
        request = await comes_to(app, await ask(app), State.READY)
        await app.world.tell(Fault(FABRIC, "down"))
        await app.requests.cancel(request.id, by="ada", reason="over")

        async def waits() -> bool:
            return [event.blocked_on for event in await events_of(app, request, "address.unwanted")] == ["fabric"]

        await until(waits)
        await app.world.heal()
        await comes_to(app, request, State.RELEASED)

    await assert_sound(app)
