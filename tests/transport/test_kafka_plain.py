"""Kafka with neighbours that know nothing of Redrive: plain bodies with keys, and topics that are made when needed."""

from __future__ import annotations

import json
import secrets
from typing import Any
from uuid import UUID

import pytest

from redrive import ConfigurationError, Redrive, Status
from redrive.transport.kafka import Kafka
from tests.kafka_server import KafkaServer
from tests.transport.conftest import Topic
from tests.waiting import until
from tests.worker.conftest import working


async def test_in_binary_mode_the_body_is_the_payload_and_its_key_is_made_from_it(app: Redrive, topic: Topic) -> None:
    def customer(payload: Any) -> str:
        return str(payload["customer"])

    app.relay("order.paid", to=Kafka(topic.bootstrap).topic(topic.name), mode="binary", key=customer)

    event = await app.publish("order.paid", {"order": 7, "customer": "ada"})
    await app.worker().drain()

    (message,) = topic.messages()
    assert (message.key(), json.loads(message.value() or b"")) == (b"ada", {"order": 7, "customer": "ada"})
    assert dict(message.headers() or [])["ce_id"] == str(event.id).encode()


def test_a_route_of_dead_letters_takes_no_key() -> None:
    with pytest.raises(ConfigurationError, match="leave key out"):
        Redrive("sqlite:///:memory:").relay(dead_letters=True, to=Kafka().topic("dead"), key=json.dumps)


async def test_a_missing_topic_is_created_before_its_first_use(store_url: str, kafka_server: KafkaServer) -> None:
    topic = Topic(f"t{secrets.token_hex(4)}", kafka_server.bootstrap)
    other = Topic(f"t{secrets.token_hex(4)}", kafka_server.bootstrap)
    kafka = Kafka(kafka_server.bootstrap, create_topics=2)
    async with Redrive(store_url, migrate=True) as app:
        app.relay("order.paid", to=kafka.topic(topic.name))
        app.intake(kafka.topic(other.name, group=other.name), types={other.name: "order.came"})
        came: list[int] = []

        @app.handler("order.came")
        async def take(order: dict[str, int]) -> None:
            came.append(order["n"])

        events = [(await app.publish("order.paid", {"n": n})).id for n in range(20)]
        async with working(app):

            async def sent() -> bool:
                return all([(await status(app, each)) is Status.DELIVERED for each in events])

            await until(sent)
            await until(lambda: app.traffic.intakes[f"intake:{other.name}/{other.name}"].link.state == "ok")
            other.put(b'{"n": 1}')
            await until(lambda: came == [1])
    assert len(topic.messages()) == 20


async def status(app: Redrive, event_id: UUID) -> Status:
    event = await app.event(event_id)
    assert event is not None
    return event.status


async def test_without_leave_to_create_it_a_missing_topic_is_a_dead_letter(
    sqlite_url: str, kafka_server: KafkaServer
) -> None:
    async with Redrive(sqlite_url, migrate=True) as app:
        app.relay("order.paid", to=Kafka(kafka_server.bootstrap).topic(f"t{secrets.token_hex(4)}"))
        event = await app.publish("order.paid", {"n": 1})

        await app.worker().drain()

        assert await status(app, event.id) is Status.FAILED


def test_a_topic_has_at_least_one_partition() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        Kafka(create_topics=0)
