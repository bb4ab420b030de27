"""Processes are killed at any moment, answers are lost, things are destroyed: in the end all is as it should be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from redrive.apps.controlplane.request import Request
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State
from redrive.apps.controlplane.world import FABRIC, HYPERVISOR, STORAGE, Fault
from tests.apps.controlplane.helpers import ask, assert_sound, found, quiet, reconciled, rows, site
from tests.apps.controlplane.worker import LEASE, start
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = pytest.mark.lab_short


async def _killed_at_random(url: str, world: Path, *, requests: int, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    async with site(url, world, hold="3s", pool="10.0.0.0/27", quota_gb=100_000) as app:
        await app.world.tell(*(Fault(system, "lose", every=7) for system in (FABRIC, STORAGE, HYPERVISOR)))
        workers = [start(url, world) for _ in range(2)]
        asked: list[Request] = []
        try:
            for kill in range(kills):
                asked += [await ask(app, volume_gb=1) for _ in range(requests // kills)]
                await _call_off(app, dice.choice(asked))
                await until(_moved(app, dice.randint(3, 12)))
                victim = workers[kill % 2]
                victim.kill()
                await asyncio.to_thread(victim.wait)
                workers[kill % 2] = start(url, world)
        finally:
            for worker in workers:
                worker.kill()
                await asyncio.to_thread(worker.wait)
        await app.world.heal()
        async with working(app, lease=LEASE):
            await until(lambda: quiet(app))
        await _wreck(app, dice)
        await reconciled(app)
        await reconciled(app)

        seen = [await found(app, request) for request in asked]
        assert len(await rows(app, "select 1 from controlplane.request")) == len(asked) == requests // kills * kills
        assert all(request.has_ended or request.state is State.READY for request in seen)
        assert any(request.state is State.READY for request in seen)
        await assert_sound(app)


def _moved(app: ControlPlane, count: int) -> Callable[[], Awaitable[bool]]:
    """Wait for some moves from here on; so the kill comes in the middle of something, wherever that is."""
    start_at: list[int] = []

    async def moved() -> bool:
        (total,) = (await rows(app, "select coalesce(sum(version), 0) from controlplane.request"))[0]
        start_at.append(int(total))
        return int(total) - start_at[0] >= count or await quiet(app)

    return moved


async def _call_off(app: ControlPlane, request: Request) -> None:
    assert app.requests is not None
    if (await found(app, request)).state in (State.PROVISIONING, State.READY):
        await app.requests.cancel(request.id, by="chance", reason="it was chosen")


async def _wreck(app: ControlPlane, dice: random.Random) -> None:
    """Destroy something of each kind."""
    for system in (FABRIC, STORAGE, HYPERVISOR):
        things = await app.world.seen(system)
        if things:
            await app.world.destroy(system, dice.choice(things).name)


@pytest.mark.req("W7", "W8", "W9")
async def test_workers_killed_at_random_leak_nothing_and_lose_nothing(store_url: str, tmp_path: Path) -> None:
    await _killed_at_random(store_url, tmp_path / "world.db", requests=12, kills=2, seed=7)


@pytest.mark.lab
@pytest.mark.timeout(1_200)
@pytest.mark.req("W7", "W8", "W9")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_workers_killed_at_random_for_long(store_url: str, tmp_path: Path, seed: int) -> None:
    await _killed_at_random(store_url, tmp_path / "world.db", requests=160, kills=40, seed=seed)
