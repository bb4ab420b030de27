"""Kafka for the scenarios of brokers: with us, and with the bare driver that is told the same."""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redrive.errors import ConfigurationError
from redrive.transport.base import Destination, Inlet, Message


class KafkaRig:
    """Kafka, with confluent-kafka. Topics have three partitions."""

    name = "kafka"

    def __init__(self, servers: str) -> None:
        from redrive.transport.kafka import Kafka  # noqa: PLC0415 - an optional driver

        self._servers = servers
        self._broker = Kafka(servers)
        self._made: dict[str, str] = {}

    def out(self, name: str) -> Destination:
        return self._broker.topic(self._topic(name))

    def inlet(self, name: str) -> Inlet:
        return self._broker.topic(self._topic(name), group=f"ours-{self._topic(name)}")

    def _topic(self, name: str) -> str:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - as above
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - as above

        if name not in self._made:
            topic = f"bench-{secrets.token_hex(4)}-{name}"
            admin = AdminClient({"bootstrap.servers": self._servers})
            admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
            while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) < 3:  # noqa: PLR2004 - as above
                time.sleep(0.05)
            self._made[name] = topic
        return self._made[name]

    async def bare_publish(self, name: str, messages: list[Message], under_way: int) -> float:
        return await asyncio.to_thread(self._publish, self._topic(name), messages, under_way)

    def _publish(self, topic: str, messages: list[Message], under_way: int) -> float:
        from confluent_kafka import Producer  # noqa: PLC0415 - as above

        producer = Producer(self._broker.producer_settings())
        producer.list_topics(topic, timeout=30)
        failed: list[Any] = []
        written: list[tuple[bytes | None, list[Any]]] = [(each.body, list(each.headers)) for each in messages]

        def reported(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        began = time.perf_counter()
        for body, headers in written:
            while len(producer) >= under_way:
                producer.poll(0.1)
            producer.produce(topic, body, on_delivery=reported, headers=headers)
        producer.flush()
        seconds = time.perf_counter() - began
        producer.close()
        if failed:
            raise ConfigurationError(f"the bare producer was refused: {failed[0]}")
        return seconds

    async def bare_take(
        self, name: str, number: int, commit: Callable[[list[bytes]], Awaitable[None]], batch: int
    ) -> None:
        from confluent_kafka import Consumer  # noqa: PLC0415 - as above

        consumer = Consumer(self._broker.consumer_settings(f"bare-{self._topic(name)}"))
        consumer.subscribe([self._topic(name)])
        taken = 0
        while taken < number:
            records = [each for each in await asyncio.to_thread(_fetched, consumer, batch) if each.error() is None]
            if records:
                await commit([each.value() or b"" for each in records])
                consumer.commit(offsets=_reached(records), asynchronous=True)
                taken += len(records)
        await asyncio.to_thread(consumer.close)


def _fetched(consumer: Any, batch: int) -> list[Any]:
    first = consumer.poll(1.0)
    return [] if first is None else [first, *consumer.consume(batch - 1, 0)]


def _reached(records: list[Any]) -> list[Any]:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - as above

    reached = {(each.topic(), each.partition()): each.offset() + 1 for each in records}
    return [TopicPartition(*place, offset) for place, offset in reached.items()]


@contextmanager
def kafka_rig() -> Iterator[KafkaRig]:
    """Find the cluster: the one that REDRIVE_TEST_KAFKA points at."""
    if not (servers := os.environ.get("REDRIVE_TEST_KAFKA")):
        raise ConfigurationError(
            "say which Kafka to use: REDRIVE_TEST_KAFKA=host:9092. In a source checkout with Java and Maven "
            "`make bench` starts a private one"
        )
    yield KafkaRig(servers)
