"""What is destroyed, made or lost behind the control plane's back is found and put right."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from redrive.apps.controlplane.streams import declare
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State
from redrive.apps.controlplane.world import FABRIC, HYPERVISOR, STORAGE, Thing
from redrive.operate.task import Progress, task
from tests.apps.controlplane.helpers import (
    ask,
    assert_sound,
    drained,
    events_of,
    found,
    quiet,
    reconciled,
    rows,
    site,
)
from tests.servers import NatsServer
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.req("W7")
async def test_what_was_destroyed_is_made_again_and_that_is_on_record(app: ControlPlane) -> None:
    request = await drained(app, await ask(app))
    assert request.machine is not None
    assert request.volume is not None
    assert request.address is not None
    await app.world.destroy(HYPERVISOR, request.machine)
    await app.world.destroy(STORAGE, request.volume)
    await app.world.destroy(FABRIC, request.address)

    await reconciled(app)

    findings = [each for name in ("addresses", "volumes", "machines") for each in await app.reconcilers.findings(name)]
    assert sorted((each.key, str(each.kind)) for each in findings) == sorted(
        (name, "missing") for name in (request.address, request.volume, request.machine)
    )
    seen = await task([app], request.id)
    assert {each.event.subject for each in seen.events} >= {request.address, request.volume, request.machine}
    assert seen.state is Progress.DONE
    await assert_sound(app)
    await reconciled(app)
    assert await app.reconcilers.findings() == []


@pytest.mark.req("W7")
async def test_what_was_changed_is_changed_back(app: ControlPlane) -> None:
    request = await drained(app, await ask(app))
    (machine,) = await app.world.seen(HYPERVISOR)
    halted = Thing(machine.name, machine.request, machine.token, {**machine.facts, "running": False})
    await app.world.conjure(HYPERVISOR, halted)

    await reconciled(app, "machines")

    assert await app.world.seen(HYPERVISOR) == [machine]
    assert (await found(app, request)).state is State.READY


@pytest.mark.req("W7")
async def test_what_belongs_to_nobody_is_cleared_away_and_its_order_comes_too_late(app: ControlPlane) -> None:
    await app.world.conjure(STORAGE, Thing("vol-stray", "019a8c1e-stray", 0, {"gb": 1, "copies": 2}))
    await app.world.conjure(FABRIC, Thing("10.20.0.9", "019a8c1e-stray", 1))

    await reconciled(app)
    assert await app.world.seen(STORAGE) == []
    late = {"request": "019a8c1e-stray", "owner": "ada", "size": "small", "volume_gb": 1, "image": "debian-13"}
    await app.publish("volume.wanted", late, correlation_id="019a8c1e-stray")
    await app.worker().drain()

    assert await app.world.seen(STORAGE) == []
    assert await app.world.seen(FABRIC) == []


@pytest.mark.req("W7")
async def test_what_is_being_made_is_nobodys_business_yet(app: ControlPlane) -> None:
    request = await ask(app)
    async with app.transaction() as tx:
        start = "insert into controlplane.resource (kind, request, state, owner, volume_gb, token, facts, reduced)"
        values = f"values ('volume', '{request.id}', 'MAKING', 'ada', 10, 0, '{{}}', false)"
        await tx.execute(
            f"{start} {values}".replace(
                "controlplane.", "controlplane_" if app.dialect == "sqlite" else "controlplane."
            )
        )
    await app.world.conjure(STORAGE, Thing(f"vol-{request.id}", request.id, 0, {"gb": 10, "copies": 1}))

    run = await app.reconcilers.run_here("volumes")

    assert (run.missing, run.extra, run.different) == (0, 0, 0)
    await app.worker().drain()
    await assert_sound(app)


@pytest.mark.req("W7")
async def test_an_order_that_was_lost_is_sent_again(store_url: str, tmp_path: Path) -> None:
    async with site(store_url, tmp_path / "world.db", stalled="200ms", deadline="1h") as app:
        request = await ask(app)
        (order,) = await events_of(app, request)
        await app.cancel(order.id, by="the broker", reason="it was never brought")  # as if it had not been sent
        await app.worker().drain()
        assert (await found(app, request)).state is State.PROVISIONING

        async with working(app):

            async def is_ready() -> bool:  # the worker may find it first, in a run of its own
                await app.reconcilers.run_here("requests")
                return (await found(app, request)).state is State.READY

            await until(is_ready)
        await assert_sound(app)


@pytest.mark.req("W7", "W10")
async def test_a_request_that_nobody_answers_is_asked_after_a_few_times_and_then_shown_to_a_person(
    store_url: str, tmp_path: Path, nats_server: NatsServer
) -> None:
    name = f"s{secrets.token_hex(4)}"
    await declare(name, nats_server.url)
    front = site(
        store_url, tmp_path / "w.db", ["requests"], site=name, nats=nats_server.url, stalled="0s", deadline="1h"
    )
    async with front as app:  # its orders go out, and there is no service for addresses at work
        request = await ask(app)

        async def given_up() -> bool:
            await app.worker().drain()
            await app.reconcilers.run_here("requests")
            return any(event.is_dead_letter for event in await app.events())

        await until(given_up)
        (letter,) = [event for event in await app.events() if event.is_dead_letter]

        assert letter.subject == request.id
        assert "asked 3 times" in (letter.last_error or "")
        assert len(await events_of(app, request, "address.wanted")) == 4
        assert "converge:requests" in str(await app.attention())


async def test_nothing_is_found_where_all_is_well(app: ControlPlane) -> None:
    for _ in range(3):
        await drained(app, await ask(app))

    for name in app.reconcilers:
        run = await app.reconcilers.run_here(name)
        assert (run.missing, run.extra, run.different) == (0, 0, 0)
    assert await quiet(app)
    assert len(await rows(app, "select 1 from controlplane.request")) == 3
