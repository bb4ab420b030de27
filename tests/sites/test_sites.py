"""Two sites exchange events over real NATS servers: what is published at one has its effect once at the other."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redrive import Context, EventFilter, Redrive
from redrive.operate.task import Progress, task
from redrive.operate.views import selected
from redrive.transport.envelope import SITE_HEADER
from tests.sites.conftest import Site, Sites
from tests.worker.conftest import until, working

Came = dict[str, list[int]]


def _joined(site: Site, came: Came) -> Redrive:
    """An app that sends ``<site>.sent``, and notes what comes from the other one."""
    app = site.app(f"{site.name}.sent")

    @app.handler(f"{site.other}.sent")
    async def note(order: dict[str, Any]) -> None:
        came[order["key"]].append(order["n"])

    return app


@asynccontextmanager
async def _both(sites: Sites, berlin_got: Came, paris_got: Came) -> AsyncIterator[tuple[Redrive, Redrive]]:
    berlin, paris = _joined(sites.berlin, berlin_got), _joined(sites.paris, paris_got)
    async with berlin, paris, working(berlin), working(paris):
        yield berlin, paris


async def _publish(app: Redrive, first: int, count: int) -> None:
    await app.publish_many(
        [
            (f"{app.site}.sent", {"key": f"k{n % 5}", "n": n}, {"ordering_key": f"k{n % 5}"})
            for n in range(first, first + count)
        ]
    )


def _has(came: Came, count: int) -> Callable[[], bool]:
    return lambda: sum(len(each) for each in came.values()) >= count


def _once_and_in_order(came: Came, count: int) -> bool:
    return {key: sorted(set(each)) for key, each in came.items()} == came and _has(came, count)()


@pytest.mark.req("W12")
async def test_a_partition_delays_and_neither_loses_doubles_nor_reorders(sites: Sites) -> None:
    berlin_got: Came = defaultdict(list)
    paris_got: Came = defaultdict(list)
    async with _both(sites, berlin_got, paris_got) as (berlin, paris):
        await _publish(berlin, 0, 20)
        await _publish(paris, 0, 20)
        await until(_has(paris_got, 20), 40)
        await until(_has(berlin_got, 20), 40)

        sites.line.cut()
        await _publish(berlin, 20, 30)
        await _publish(paris, 20, 30)
        await until(lambda: _sent(berlin, 50), 20)  # both work on: each has its own broker
        await until(lambda: _sent(paris, 50), 20)
        assert not _has(paris_got, 21)()

        sites.line.heal()
        await until(_has(paris_got, 50), 60)
        await until(_has(berlin_got, 50), 60)

    assert _once_and_in_order(berlin_got, 50)
    assert _once_and_in_order(paris_got, 50)
    assert await sites.berlin.held("BERLIN") == 50  # nothing came back to where it began
    assert await sites.paris.held("PARIS") == 50


async def _sent(app: Redrive, count: int) -> bool:
    rows = await app.events(EventFilter(target=f"relay:nats:{app.site}.events", limit=500))
    return sum(row.status.value == "delivered" for row in rows) == count
