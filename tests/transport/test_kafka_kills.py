"""Kafka is killed, and members of a group come and go, while messages flow: none is lost, each has its effect once."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from redrive import Redrive
from redrive.errors import DependencyUnavailable, MessageTooLarge
from redrive.transport.base import Message
from redrive.transport.kafka import Kafka
from tests.kafka_server import OwnKafka
from tests.transport.conftest import FAST, Topic
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = [pytest.mark.lab_short, pytest.mark.promise("effect-once")]

EVENTS, KEYS, KILLS = 2_000, 50, 1  # starting a Kafka takes as much as a hundred other tests; the long form kills ten

Came = dict[str, list[int]]


def handling(app: Redrive, came: Came) -> None:
    @app.handler("order.came")
    async def take(order: dict[str, Any]) -> None:
        came[order["key"]].append(order["n"])


def arrived(came: Came) -> int:
    return sum(map(len, came.values()))


def has_come(came: Came, number: int) -> bool:
    return arrived(came) >= number


def document(key: str, n: int) -> bytes:
    event = {"specversion": "1.0", "id": f"e-{n}", "type": "order.came", "source": "/shop", "partitionkey": key}
    return json.dumps({**event, "data": {"key": key, "n": n}}).encode()


def check(came: Came, events: int) -> None:
    """None lost, none twice, in order by key."""
    assert arrived(came) == events
    assert dict(came) == {key: sorted(set(each)) for key, each in came.items()}


@pytest.mark.req("W12", "E3")
@pytest.mark.timeout(300)
async def test_a_broker_killed_on_the_way_loses_doubles_and_reorders_nothing(
    app: Redrive, own_kafka: OwnKafka, real_topic: Topic
) -> None:
    await _carried(app, own_kafka, real_topic, EVENTS, KEYS, KILLS)


@pytest.mark.lab
@pytest.mark.timeout(3_600)
async def test_a_hundred_thousand_messages_and_ten_kills(app: Redrive, own_kafka: OwnKafka, real_topic: Topic) -> None:
    await _carried(app, own_kafka, real_topic, 100_000, 1_000, 10)


async def _carried(app: Redrive, server: OwnKafka, topic: Topic, events: int, keys: int, kills: int) -> None:
    kafka = Kafka(server.bootstrap, ack_timeout="3s")
    app.dependency("kafka", probe_after=0.3, probe_cap=0.6, release_rate=5_000.0)
    app.relay("order.paid", to=kafka.topic(topic.name))
    app.intake(kafka.topic(topic.name, group=f"back-{topic.name}"), types={"order.paid": "order.came"})
    came: Came = defaultdict(list)
    handling(app, came)
    drafts = [("order.paid", {"key": f"k{n % keys}", "n": n}, {"ordering_key": f"k{n % keys}"}) for n in range(events)]
    for first in range(0, events, 1_000):
        await app.publish_many(drafts[first : first + 1_000])  # type: ignore[arg-type]

    async with working(app):
        for kill in range(kills):
            await until(partial(has_come, came, events * (kill + 1) // (kills + 2)), 90 + events / 100)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await until(lambda: has_come(came, events), 90 + events / 100)

    check(came, events)
    ids = [json.loads(each.value() or b"")["id"] for each in await asyncio.to_thread(topic.messages)]
    assert len(set(ids)) == events
    print(f"{events:,} messages, {kills} kills: {len(ids) - events} stood at the broker twice")


@pytest.mark.req("W12")
@pytest.mark.timeout(300)
async def test_members_that_come_and_go_store_every_message_once_and_in_order(
    store_url: str, real_topic: Topic
) -> None:
    came: Came = defaultdict(list)
    documents = [(b"k%d" % (n % KEYS), document(f"k{n % KEYS}", n)) for n in range(EVENTS)]

    async def member() -> Redrive:
        app = Redrive(store_url, retry=FAST, migrate=True)
        kafka = Kafka(real_topic.bootstrap, settings={"session.timeout.ms": 6_000})
        app.intake(kafka.topic(real_topic.name, group=f"shop-{real_topic.name}"), batch=20)
        handling(app, came)
        return await app.open()

    async def put_slowly() -> None:
        for first in range(0, EVENTS, 40):
            await asyncio.to_thread(real_topic.put_all, documents[first : first + 40])
            await asyncio.sleep(0.05)

    putting = asyncio.create_task(put_slowly())
    async with AsyncExitStack() as stack:
        first, second = await member(), await member()
        stack.push_async_callback(first.close)
        stack.push_async_callback(second.close)
        async with working(first):
            await until(lambda: has_come(came, 50))
            for _ in range(3):
                before = arrived(came)
                async with working(second):
                    (intake,) = second.traffic.intakes.values()
                    await until(lambda: intake.link.moved > 0 or putting.done())  # noqa: B023
                    intake.link.moved = 0
                    await until(lambda: arrived(came) > before + 100 or putting.done())  # noqa: B023
        async with working(second):
            await putting
            await until(lambda: has_come(came, EVENTS), 90)

    check(came, EVENTS)


async def test_a_topic_that_is_made_anew_is_taken_anew(app: Redrive, real_topic: Topic) -> None:
    app.intake(
        Kafka(real_topic.bootstrap).topic(real_topic.name, group=f"shop-{real_topic.name}"),
        types={real_topic.name: "order.came"},
    )
    came: Came = defaultdict(list)
    handling(app, came)
    real_topic.put(b'{"key": "k", "n": 1}', key=b"k")
    async with working(app):
        await until(lambda: has_come(came, 1))

    await asyncio.to_thread(real_topic.remove)
    await asyncio.to_thread(real_topic.make)
    real_topic.put(b'{"key": "k", "n": 2}', key=b"k")  # at the place of the first one
    async with working(app):
        await until(lambda: has_come(came, 2))

    assert came == {"k": [1, 2]}


async def test_a_producer_that_is_beyond_repair_is_given_up_and_another_goes_on(real_topic: Topic) -> None:
    narrow = Topic(f"{real_topic.name}.narrow", real_topic.bootstrap)
    narrow.make(1, max_message_bytes="1000")
    # With this setting the driver ends for good when a message is refused.
    kafka = Kafka(real_topic.bootstrap, settings={"enable.gapless.guarantee": True})
    await kafka.send(Message(real_topic.name, b"1"))
    line = kafka._lines[False]

    with pytest.raises((DependencyUnavailable, MessageTooLarge)):
        await kafka.send(Message(narrow.name, b"x" * 2_000))
    await until(lambda: kafka._lines.get(False) is not line)
    await kafka.send(Message(real_topic.name, b"2"))
    await kafka.close()

    assert line._heard.fatal is not None
    assert sorted(each.value() or b"" for each in real_topic.messages()) == [b"1", b"2"]
