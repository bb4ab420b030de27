"""The broker is killed while events go out and come in: none is lost, each has its effect once, order is kept."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import nats
import pytest

from redrive import Redrive
from redrive.transport.nats import Nats
from tests.servers import NatsServer
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = [pytest.mark.lab_short, pytest.mark.promise("effect-once")]

EVENTS, KEYS, KILLS = 2_000, 20, 3


def _has_come(progress: Callable[[], int], mark: int) -> bool:
    return progress() >= mark


async def _killed_again_and_again(server: NatsServer, progress: Callable[[], int], total: int, kills: int) -> None:
    """Kill it at even steps of the way, and let it be away for a moment."""
    for kill in range(kills):
        await until(partial(_has_come, progress, total * (kill + 1) // (kills + 1)), 60 + total / 200)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.start)


@pytest.mark.req("W12")
async def test_a_broker_killed_on_the_way_loses_doubles_and_reorders_nothing(
    app: Redrive, own_nats: NatsServer
) -> None:
    await _carried(app, own_nats, EVENTS, KILLS)


@pytest.mark.lab
@pytest.mark.timeout(1_800)
async def test_a_hundred_thousand_messages_and_ten_kills(app: Redrive, own_nats: NatsServer) -> None:
    await _carried(app, own_nats, 100_000, 10)


async def _carried(app: Redrive, own_nats: NatsServer, events: int, kills: int) -> None:
    broker = Nats(own_nats.url, ack_timeout="2s")
    app.dependency("nats", probe_after=0.3, probe_cap=0.6, release_rate=5_000.0)
    app.relay("order.paid", to=broker.subject("orders.paid", declare="ORDERS"))
    app.intake(broker.stream("ORDERS", durable="back"), types={"order.paid": "order.came"})
    came: dict[str, list[int]] = defaultdict(list)

    @app.handler("order.came")
    async def take(order: dict[str, Any]) -> None:
        came[order["key"]].append(order["n"])

    drafts = [("order.paid", {"key": f"k{n % KEYS}", "n": n}, {"ordering_key": f"k{n % KEYS}"}) for n in range(events)]
    for first in range(0, events, 1_000):
        await app.publish_many(drafts[first : first + 1_000])  # type: ignore[arg-type]

    def arrived() -> int:
        return sum(len(each) for each in came.values())

    async with working(app):
        await _killed_again_and_again(own_nats, arrived, events, kills)
        await until(lambda: arrived() >= events, 60 + events / 200)

    assert {key: sorted(each) for key, each in came.items()} == dict(came)
    assert arrived() == events
    assert len({n for each in came.values() for n in each}) == events
    client = await nats.connect(own_nats.url)
    info = await client.jsm().stream_info("ORDERS")
    await client.close()
    assert info.state.messages == events  # what was sent twice, JetStream has recognised by its id
