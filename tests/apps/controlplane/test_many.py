"""Many requests, with one call in twenty going wrong, end with no leaked address and no drift."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from redrive.apps.controlplane.world import SYSTEMS, Fault
from tests.apps.controlplane.helpers import ask, assert_sound, quiet, reconciled, rows, site
from tests.worker.conftest import working

pytestmark = pytest.mark.lab_short


async def _many(url: str, world: Path, count: int, pool: str, seconds: float) -> Counter[str]:
    circuit = {"probe_after": 0.1, "probe_cap": 1.0, "release_rate": 1_000.0}
    async with site(url, world, pool=pool, quota_gb=1_000_000, circuit=circuit) as app:
        assert app.requests is not None
        faults = [Fault(system, mode, every=40) for system in SYSTEMS for mode in ("lose", "down")]
        await app.world.tell(*faults)
        began = time.monotonic()
        async with working(app):
            requests = [
                await ask(app, volume_gb=1, image="windows-95" if n % 50 == 49 else "debian-13") for n in range(count)
            ]
            for request in requests[::20]:
                await app.requests.cancel(request.id, by="ada", reason="asked for too many")
            while not await quiet(app):  # counting them is work, too
                assert time.monotonic() < began + seconds, "it did not come to an end in time"
                await asyncio.sleep(min(1.0, count / 1_000))
        took = time.monotonic() - began
        await app.world.heal()
        await reconciled(app)

        await assert_sound(app)
        states = Counter(row[0] for row in await rows(app, "select state from controlplane.request"))
        print(f"\n{count:,} requests on {app.dialect} in {took:.1f} s ({count / took:.0f}/s): {dict(states)}")
        return states


@pytest.mark.req("W7", "W8")
async def test_two_hundred_requests_with_faults_end_sound(sqlite_url: str, tmp_path: Path) -> None:
    states = await _many(sqlite_url, tmp_path / "world.db", 200, "10.0.0.0/24", 60)

    assert sum(states.values()) == 200
    assert states["READY"] > 150


@pytest.mark.lab
@pytest.mark.timeout(1_800)
@pytest.mark.req("W7", "W8")
async def test_ten_thousand_requests_with_faults_end_sound(store_url: str, tmp_path: Path) -> None:
    states = await _many(store_url, tmp_path / "world.db", 10_000, "10.0.0.0/18", 1_700)

    assert sum(states.values()) == 10_000
    assert states["READY"] > 9_000
