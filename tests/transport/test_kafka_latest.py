"""A Kafka group that begins with the latest message: where that is, is fixed once, and nothing is lost from then on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.transport.base import Beginning
from redrive.transport.intake import _Beginnings
from redrive.transport.kafka import Kafka
from tests.transport.conftest import Topic
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = [pytest.mark.req("W12"), pytest.mark.promise("durable")]


def put(topic: Topic, *numbers: int, partition: int) -> None:
    producer = Producer({"bootstrap.servers": topic.bootstrap})
    for n in numbers:
        event = {"specversion": "1.0", "id": f"e-{n}", "type": "order.came", "source": "/shop", "data": {"n": n}}
        headers: list[tuple[str, str | bytes | None]] = [("content-type", b"application/cloudevents+json")]
        producer.produce(topic.name, json.dumps(event).encode(), partition=partition, headers=headers)
    assert producer.flush(20) == 0


class Taker:
    """An app with an intake that begins with the latest message; each run is a new member of its group."""

    def __init__(self, url: str, topic: Topic) -> None:
        self._url = url
        self._topic = topic
        self.group = f"late-{topic.name}"
        self.came: list[int] = []

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Redrive]:
        async with Redrive(self._url, migrate=True) as app:
            kafka = Kafka(self._topic.bootstrap, settings={"topic.metadata.refresh.interval.ms": 200})
            app.intake(kafka.topic(self._topic.name, group=self.group, start="latest"))

            @app.handler("order.came")
            async def take(order: dict[str, int]) -> None:
                self.came.append(order["n"])

            (intake,) = app.traffic.intakes.values()
            async with working(app):
                await until(lambda: intake.link.state.value == "ok")
                yield app

    async def take(self, *numbers: int) -> None:
        """Run until these have come, and nothing else."""
        async with self.run():
            await until(lambda: set(self.came) >= set(numbers))
        assert sorted(self.came) == sorted(numbers)

    async def start_and_stop(self) -> None:
        async with self.run():
            pass


@pytest.fixture
def real_taker(store_url: str, real_topic: Topic) -> Taker:
    return Taker(store_url, real_topic)


async def test_a_partition_without_a_commit_goes_on_where_the_group_began(real_taker: Taker, real_topic: Topic) -> None:
    topic, taker = real_topic, real_taker
    put(topic, 1, 2, partition=0)
    put(topic, 3, partition=1)
    await taker.start_and_stop()
    put(topic, 4, 5, partition=0)
    put(topic, 6, partition=2)

    await taker.take(4, 5, 6)


async def test_offsets_that_kafka_has_forgotten_lose_nothing(real_taker: Taker, real_topic: Topic) -> None:
    topic, taker = real_topic, real_taker
    put(topic, 1, partition=0)
    async with taker.run():
        put(topic, 2, 3, partition=0)
        await until(lambda: len(taker.came) == 2)
    forget(topic, taker.group)
    put(topic, 4, 5, partition=0)
    put(topic, 6, 7, 8, partition=1)

    await taker.take(2, 3, 4, 5, 6, 7, 8)


async def test_a_group_that_was_idle_and_forgotten_loses_nothing(real_taker: Taker, real_topic: Topic) -> None:
    put(real_topic, 1, 2, partition=0)
    await real_taker.start_and_stop()
    forget(real_topic, real_taker.group)
    put(real_topic, 3, 4, 5, partition=0)

    await real_taker.take(3, 4, 5)


def forget(topic: Topic, group: str) -> None:
    """Do what Kafka does with a group that has been away for a week."""
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_consumer_groups([group])[group].result(20)


async def test_an_offset_that_is_out_of_range_begins_at_the_beginning(real_taker: Taker, real_topic: Topic) -> None:
    topic, taker = real_topic, real_taker
    await taker.start_and_stop()
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    beyond = ConsumerGroupTopicPartitions(taker.group, [TopicPartition(topic.name, 0, 1_000)])
    admin.alter_consumer_group_offsets([beyond])[taker.group].result(20)
    put(topic, 1, 2, 3, partition=0)

    await taker.take(1, 2, 3)


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_partition_that_is_added_later_begins_with_its_first_message(
    real_taker: Taker, real_topic: Topic, is_running: bool
) -> None:
    put(real_topic, 1, partition=0)
    async with real_taker.run():
        if is_running:
            add_partition(real_topic)
            await until(lambda: len(real_taker.came) == 3)
    if not is_running:
        add_partition(real_topic)

    await real_taker.take(2, 3, 4)


def add_partition(topic: Topic) -> None:
    """Add one, with messages in it before anybody takes from it."""
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.create_partitions([NewPartitions(topic.name, 4)])[topic.name].result(20)
    put(topic, 2, 3, 4, partition=3)


async def test_a_topic_that_is_made_anew_is_taken_whole(real_taker: Taker, real_topic: Topic) -> None:
    put(real_topic, 1, 2, 3, 4, 5, partition=0)
    await real_taker.start_and_stop()
    real_topic.remove()
    await until(lambda: asyncio.to_thread(_is_made, real_topic))
    put(real_topic, *range(6, 14), partition=0)

    await real_taker.take(*range(6, 14))


def _is_made(topic: Topic) -> bool:
    from confluent_kafka import KafkaException

    try:
        topic.make()
    except KafkaException:  # the old one is still being removed
        return False
    return True


@pytest.mark.lab_short
async def test_many_partitions_with_little_traffic_lose_nothing_over_restarts(
    sqlite_url: str, real_topic: Topic
) -> None:
    topic = Topic(f"{real_topic.name}.wide", real_topic.bootstrap)
    topic.make(24)
    taker = Taker(sqlite_url, topic)
    for partition in range(24):
        put(topic, -partition - 1, partition=partition)
    await taker.start_and_stop()
    sent = 0
    for _ in range(3):
        async with taker.run():
            for _ in range(6):
                put(topic, sent, partition=sent * 7 % 24)
                sent += 1
                await asyncio.sleep(0.05)
        put(topic, sent, sent + 1, partition=sent * 7 % 24)  # while nobody takes
        sent += 2

    await taker.take(*range(sent))


async def test_who_begins_at_the_same_time_begins_at_the_same_place(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        store = await app._ready()
        first, second = _Beginnings(store), _Beginnings(store)
        assert await first.begun("kafka:orders/late") is None

        begun = await asyncio.gather(
            first.begin("kafka:orders/late", Beginning("id-1", {0: 5, 1: 7})),
            second.begin("kafka:orders/late", Beginning("id-1", {0: 6, 1: 7})),
        )
        anew = await second.begin("kafka:orders/late", Beginning("id-2", {}))

    assert begun[0] == begun[1]
    assert begun[0].positions[0] in {5, 6}
    assert anew == Beginning("id-2", {})


# --- how much waits ---


async def test_a_topic_with_transactions_has_no_lag_when_all_is_stored(real_topic: Topic) -> None:
    """The record that ends a transaction has an offset, and an open transaction's messages cannot be read yet."""
    producer = Producer({"bootstrap.servers": real_topic.bootstrap, "transactional.id": real_topic.name})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(real_topic.name, b"1", partition=0)
        end(20)
    producer.begin_transaction()
    producer.produce(real_topic.name, b"2", partition=0)
    producer.flush(20)
    kafka = Kafka(real_topic.bootstrap)
    kafka.use(SystemClock())

    member = await kafka.topic(real_topic.name, group=f"lag-{real_topic.name}").subscribe()
    got = await member.fetch(10, 0)
    while len(got) < 2:
        got += await member.fetch(10, 0)
    await member.acknowledge(got)
    await member.fetch(10, 0)
    while_open = await member.lag()
    producer.commit_transaction(20)
    (last,) = await member.fetch(10, 10.0)
    await until(lambda: _waits(member, 1))
    await member.acknowledge([last])
    await member.fetch(10, 0)
    after = await member.lag()
    await member.close()

    assert (while_open, after) == (0, 0)


async def _waits(member: object, number: int) -> bool:
    return bool(await member.lag() >= number)  # type: ignore[attr-defined]
