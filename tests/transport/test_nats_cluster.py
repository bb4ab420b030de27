"""A NATS cluster of three: its leaders change, and a stream without one is a broker that is away.

Events wait; no attempt is spent, no key is held up, nothing comes twice or out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from redrive import DependencyUnavailable, Event, EventFilter, Redrive, Status
from redrive.transport.base import Message
from redrive.transport.nats import Nats
from tests.transport.conftest import Cluster
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = [pytest.mark.req("W12", "E3"), pytest.mark.promise("durable", "order", "effect-once")]

KEYS = 5


class Traffic:
    """A relay of five ordering keys to the cluster's stream, and an intake that takes everything back from it."""

    def __init__(self, app: Redrive, cluster: Cluster, **relayed: Any) -> None:
        self._app = app
        self.came: dict[str, list[int]] = {f"k{key}": [] for key in range(KEYS)}
        self.published = 0
        broker = Nats(cluster.servers.urls, ack_timeout="2s", connect_timeout="1s")
        app.dependency("nats", probe_after=0.2, probe_cap=0.4, release_rate=5_000.0)
        app.relay("order.paid", to=broker.subject(cluster.subject, **relayed))
        app.intake(broker.stream(cluster.stream, durable="back"), types={"order.paid": "order.came"})

        @app.handler("order.came")
        async def take(order: dict[str, Any]) -> None:
            self.came[order["key"]].append(order["n"])

    @property
    def arrived(self) -> int:
        return sum(map(len, self.came.values()))

    async def publish(self, number: int) -> None:
        first, self.published = self.published, self.published + number
        drafts = [
            ("order.paid", {"key": f"k{n % KEYS}", "n": n}, {"ordering_key": f"k{n % KEYS}"})
            for n in range(first, self.published)
        ]
        await self._app.publish_many(drafts)  # type: ignore[arg-type]

    async def flow(self, disturb: Callable[[], Awaitable[None]], *, number: int = 25) -> None:
        """Publish all the while something is done to the cluster."""
        disturbing = asyncio.ensure_future(disturb())
        while not disturbing.done():
            await self.publish(number)
            await asyncio.sleep(0.05)
        await disturbing
        await self.publish(number)

    async def finish(self) -> None:
        await until(lambda: self.arrived >= self.published)

    async def check(self, cluster: Cluster) -> None:
        assert await self._app.events(EventFilter(status=Status.FAILED)) == []
        assert self.came == {f"k{key}": list(range(key, self.published, KEYS)) for key in range(KEYS)}
        assert await cluster.messages() == self.published
        relayed = await self._app.events(EventFilter(type="order.paid", limit=1_000))
        assert {event.attempts for event in relayed} == {1}


@pytest.mark.parametrize("declare", [False, True])
async def test_a_stream_whose_server_is_away_is_waited_for(app: Redrive, nats_cluster: Cluster, declare: bool) -> None:
    """The rest of the cluster answers that it knows the stream, and nobody takes its messages."""
    node = await nats_cluster.make_at_one()
    traffic = Traffic(app, nats_cluster, **({"declare": nats_cluster.stream} if declare else {}))
    async with working(app):
        await traffic.publish(10)
        await until(lambda: _is_relayed(app, 10))
        node.kill()
        await traffic.publish(10)
        await until(lambda: _are_waiting(app, KEYS))
        said = [str(event.last_error) for event in await _relayed(app, Status.BLOCKED) if event.last_error]
        node.start()
        await until(lambda: _is_relayed(app, 20))

    why = f"the stream {nats_cluster.stream} of '{nats_cluster.subject}' has no leader now"
    assert any(why in each for each in said)
    assert await _relayed(app, Status.FAILED) == []


async def _relayed(app: Redrive, status: Status) -> list[Event]:
    return await app.events(EventFilter(type="order.paid", status=status, limit=1_000))


async def _is_relayed(app: Redrive, number: int) -> bool:
    return len(await _relayed(app, Status.DELIVERED)) == number


async def _are_waiting(app: Redrive, number: int) -> bool:
    assert await _relayed(app, Status.FAILED) == []
    return len([event for event in await _relayed(app, Status.BLOCKED) if event.blocked_on == "nats"]) >= number


@pytest.mark.parametrize("declare", [False, True])
async def test_a_leader_that_steps_down_makes_no_dead_letter(
    app: Redrive, nats_cluster: Cluster, declare: bool
) -> None:
    await nats_cluster.make(num_replicas=3)
    traffic = Traffic(app, nats_cluster, **({"declare": nats_cluster.stream} if declare else {}))

    async def step_down() -> None:
        await until(lambda: traffic.arrived > 0)
        for consumer in (None, "back"):
            await nats_cluster.leader(consumer)
            await nats_cluster.step_down(consumer)

    async with working(app):
        await traffic.flow(step_down)
        await traffic.finish()

    await traffic.check(nats_cluster)


@pytest.mark.lab_short
async def test_a_leader_that_is_killed_makes_no_dead_letter(app: Redrive, nats_cluster: Cluster) -> None:
    """An election takes four to nine seconds; meanwhile nobody takes messages, and nobody gives any."""
    await nats_cluster.make(num_replicas=3)
    traffic = Traffic(app, nats_cluster)

    async def kill() -> None:
        await until(lambda: traffic.arrived > 0)
        node = nats_cluster.servers.nodes[await nats_cluster.leader()]
        node.kill()
        await nats_cluster.leader()
        node.start()

    async with working(app):
        await traffic.flow(kill, number=5)
        await traffic.finish()

    await traffic.check(nats_cluster)


@pytest.mark.lab_short
async def test_a_cluster_without_a_majority_makes_no_dead_letter(app: Redrive, nats_cluster: Cluster) -> None:
    await nats_cluster.make(num_replicas=3)
    traffic = Traffic(app, nats_cluster)

    async def stop_two() -> None:
        await until(lambda: traffic.arrived > 0)
        nodes, leader = nats_cluster.servers.nodes, await nats_cluster.leader()
        stopped = [nodes[leader], next(node for name, node in nodes.items() if name != leader)]
        for node in stopped:
            node.pause()
        await asyncio.sleep(3)
        for node in stopped:
            node.resume()

    async with working(app):
        await traffic.flow(stop_two, number=5)
        await traffic.finish()

    await traffic.check(nats_cluster)


@pytest.mark.lab_short
async def test_an_intake_whose_consumer_vanished_with_its_leader_asks_again(
    app: Redrive, nats_cluster: Cluster
) -> None:
    """The request for messages was lost with the leader, on a connection to another server that goes on."""
    node = await nats_cluster.make_at_one()
    traffic = Traffic(app, nats_cluster)
    async with working(app):
        await traffic.publish(10)
        await traffic.finish()
        node.kill()
        node.start()
        await nats_cluster.leader()
        await traffic.publish(10)
        await traffic.finish()

    await traffic.check(nats_cluster)


@pytest.mark.lab_short
async def test_a_server_that_is_cut_off_from_its_cluster_is_left_for_another(
    nats_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its clients, and can do nothing for them."""
    monkeypatch.setattr("redrive.transport.nats._DEAF_SECONDS", 1.0)
    await nats_cluster.make(num_replicas=3)
    broker = Nats(nats_cluster.servers.urls, connect_timeout="1s", ack_timeout="1s")
    line = await broker.line()
    at = line.client.connected_url
    assert at is not None
    for node in nats_cluster.servers.nodes.values():
        if not node.url.endswith(f":{at.port}"):
            node.kill()

    await until(lambda: _is_left(broker, line, nats_cluster.subject))
    await broker.close()


async def _is_left(broker: Nats, line: object, subject: str) -> bool:
    """Send; a stream without a majority is away, and not missing."""
    with suppress(DependencyUnavailable):
        await broker.send(Message(subject, b"1"))
    return broker._line is not line
