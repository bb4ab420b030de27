"""One winner for each address, decided when it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redrive import Reservation
from redrive.apps.controlplane.addresses import Addresses
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State
from redrive.apps.controlplane.world import FABRIC, Thing
from tests.apps.controlplane.helpers import ask, assert_sound, drained, found, quiet, rows, site
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.req("W8")
async def test_many_requests_for_few_addresses_have_one_winner_for_each(store_url: str, tmp_path: Path) -> None:
    apps = [site(store_url, tmp_path / "world.db", pool="10.0.0.0/29") for _ in range(2)]
    async with apps[0], apps[1], working(apps[0]), working(apps[1]):
        requests = await asyncio.gather(*(ask(apps[n % 2], volume_gb=1) for n in range(20)))
        await until(lambda: quiet(apps[0]))
        ended = [await found(apps[0], request) for request in requests]

        ready = [request.address for request in ended if request.state is State.READY]
        assert len(ready) == len(set(ready)) == 6
        assert [request.state for request in ended].count(State.REJECTED) == 14
        await assert_sound(apps[0])


@pytest.mark.req("W8")
async def test_a_process_that_slept_through_its_reservation_gets_nothing_and_takes_another(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Addresses._reserve
    stolen: list[Reservation] = []

    async def asleep(self: Addresses, request: str, before: str | None) -> Reservation:
        """Take an address, and sleep until somebody else has it."""
        held = await reserve(self, request, before)
        if not stolen:
            await self.app.reservations.release(held.resource, by="the clock", reason="it has run out")
            stolen.append(await self.app.reservations.take(held.resource, owner="another", ttl="1h"))
            address = held.resource.removeprefix("address/")
            await self.world.conjure(FABRIC, Thing(address, "another", stolen[0].token))
        return held

    monkeypatch.setattr(Addresses, "_reserve", asleep)
    async with site(store_url, tmp_path / "world.db") as app:
        async with working(app):
            request = await ask(app)
            await until(lambda: quiet(app))
        after = await found(app, request)
        address = stolen[0].resource.removeprefix("address/")
        winners = {thing.name: thing.request for thing in await app.world.seen(FABRIC)}

        assert after.state is State.READY
        assert after.address != address
        assert winners == {address: "another", after.address: request.id}
        assert await rows(app, "select request from controlplane.address where address = $1", address) == [(None,)]


@pytest.mark.req("W8")
async def test_the_write_itself_is_guarded_when_the_world_did_not_notice(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = Addresses._announced
    lost: list[str] = []

    async def slowly(self: Addresses, thing: Thing) -> str:
        """Announce it; then the reservation runs out, and another has it before the commit."""
        name = await announced(self, thing)
        if not lost:
            lost.append(name)
            await self.app.reservations.release(f"address/{name}", by="the clock", reason="it has run out")
            await self.app.reservations.take(f"address/{name}", owner="another", ttl="1h")
        return name

    monkeypatch.setattr(Addresses, "_announced", slowly)
    async with site(store_url, tmp_path / "world.db") as app:
        async with working(app):
            request = await ask(app)
            await until(lambda: quiet(app))
        after = await found(app, request)

        assert after.state is State.READY
        assert after.address != lost[0]
        assert await rows(app, "select request from controlplane.address where address = $1", lost[0]) == [(None,)]


@pytest.mark.req("W8")
async def test_an_address_that_was_given_back_can_be_given_away_again(store_url: str, tmp_path: Path) -> None:
    async with site(store_url, tmp_path / "world.db", pool="10.0.0.5/32") as app:
        assert app.requests is not None
        tokens: list[int] = []
        for _ in range(3):
            request = await drained(app, await ask(app))
            assert (request.state, request.address) == (State.READY, "10.0.0.5")
            (thing,) = await app.world.seen(FABRIC)
            tokens.append(thing.token)
            await app.requests.cancel(request.id, by="ada", reason="next, please")
            await drained(app, request)
        assert tokens == [1, 2, 3]
        await assert_sound(app)


async def test_the_pool_grows_when_the_site_is_opened_with_a_larger_one(store_url: str, tmp_path: Path) -> None:
    async def size(app: ControlPlane) -> int:
        async with app:
            return len(await rows(app, "select 1 from controlplane.address"))

    assert await size(site(store_url, tmp_path / "world.db", pool="10.0.0.0/30")) == 2
    assert await size(site(store_url, tmp_path / "world.db", pool="10.0.0.0/29")) == 6
