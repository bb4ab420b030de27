"""A Kafka that is away, refuses us, or refuses a message."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from redrive import Redrive, Status
from redrive.errors import DependencyUnavailable
from redrive.transport.base import Message
from redrive.transport.kafka import Kafka
from tests.kafka_server import USERS, OwnKafka
from tests.servers import free_port
from tests.transport.conftest import Topic
from tests.waiting import until
from tests.worker.conftest import found, working

ADA = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ada"}


def sasl(server: OwnKafka, password: str) -> Kafka:
    return Kafka(server.sasl_bootstrap, settings={**ADA, "sasl.password": password})


async def _is(app: Redrive, event_id: UUID, status: Status) -> bool:
    return (await found(app, event_id)).status is status


async def _waits(app: Redrive, event_ids: list[UUID]) -> bool:
    return all([(await found(app, each)).blocked_on == "kafka" for each in event_ids])


async def test_with_a_kafka_that_is_away_publishing_goes_on_and_events_wait_without_spending_attempts(
    app: Redrive,
) -> None:
    kafka = Kafka(f"127.0.0.1:{free_port()}")
    app.relay("order.paid", to=kafka.topic("orders"))
    app.intake(kafka.topic("orders", group="shop"))

    async with working(app):
        published = [(await app.publish("order.paid", n)).id for n in range(6)]
        await until(partial(_waits, app, published))
        (relay,), (intake,) = app.traffic.relays.values(), app.traffic.intakes.values()
        await until(lambda: intake.link.state.value == "unreachable")

    assert {(await found(app, each)).attempts for each in published} == {0}
    assert relay.link.state.value == "unreachable"
    assert "cannot be reached" in relay.link.error
    assert "Connection refused" in relay.link.error


@pytest.mark.lab_short
async def test_a_kafka_that_comes_later_gets_everything(app: Redrive, own_kafka: OwnKafka, real_topic: Topic) -> None:
    app.dependency("kafka", probe_after=0.2, probe_cap=0.2)
    await asyncio.to_thread(own_kafka.kill)
    app.relay("order.paid", to=Kafka(own_kafka.bootstrap).topic(real_topic.name))
    published = [(await app.publish("order.paid", n)).id for n in range(10)]

    async with working(app):
        await until(partial(_waits, app, published))
        await asyncio.to_thread(own_kafka.start)
        for each in published:
            await until(partial(_is, app, each, Status.DELIVERED))


async def test_the_right_password_is_let_in(own_kafka: OwnKafka, real_topic: Topic) -> None:
    kafka = sasl(own_kafka, USERS["ada"])

    await kafka.send(Message(real_topic.name, b"x"))
    await kafka.close()

    assert len(real_topic.messages()) == 1


async def test_a_wrong_password_blocks_events_and_says_so(app: Redrive, own_kafka: OwnKafka, real_topic: Topic) -> None:
    kafka = sasl(own_kafka, "wrong")
    app.relay("order.paid", to=kafka.topic(real_topic.name))
    app.intake(kafka.topic(real_topic.name, group="shop"))

    async with working(app):
        published = [(await app.publish("order.paid", n)).id for n in range(6)]
        await until(partial(_waits, app, published))
        (intake,) = app.traffic.intakes.values()
        await until(lambda: intake.link.state.value == "refused")

    event = await found(app, published[0])
    assert event.attempts == 0
    assert "refuses us" in str(event.last_error)
    assert "uthentication" in str(event.last_error)
    assert "wrong" not in str(event.last_error)


async def test_a_message_too_large_is_a_dead_letter_with_that_reason_and_the_others_of_its_batch_are_not(
    app: Redrive, real_topic: Topic
) -> None:
    narrow = Topic(f"{real_topic.name}.narrow", real_topic.bootstrap)
    narrow.make(1, max_message_bytes="2000")
    app.relay("order.paid", to=Kafka(real_topic.bootstrap, settings={"linger.ms": 50}).topic(narrow.name))

    large = await app.publish("order.paid", "x" * 5_000)
    small = [(await app.publish("order.paid", n)).id for n in range(20)]
    await app.worker().drain()

    event = await found(app, large.id)
    assert (event.status, event.attempts) == (Status.FAILED, 1)
    assert event.error_type == "redrive.errors.MessageTooLarge"
    assert "larger than kafka takes" in str(event.last_error)
    assert {(await found(app, each)).status for each in small} == {Status.DELIVERED}
    assert len(narrow.messages()) == 20


async def test_a_topic_that_is_not_there_is_a_dead_letter_which_is_replayed_once_it_is(
    app: Redrive, real_topic: Topic
) -> None:
    missing = Topic(f"{real_topic.name}.missing", real_topic.bootstrap)
    app.relay("order.paid", to=Kafka(real_topic.bootstrap).topic(missing.name))
    event_id = (await app.publish("order.paid", 1)).id

    async with working(app):
        await until(partial(_is, app, event_id, Status.FAILED))
        event = await found(app, event_id)
        await asyncio.to_thread(missing.make)
        for _ in range(20):  # the driver hears of it within a second
            await app.replay(event_id, by="ada", reason="the topic is there")
            await until(partial(_is_not, app, event_id, Status.PENDING, Status.IN_FLIGHT))
            if await _is(app, event_id, Status.DELIVERED):
                break
            await asyncio.sleep(0.2)

    assert event.error_type == "redrive.errors.TopicMissing"
    assert f"kafka has no topic '{missing.name}'" in str(event.last_error)
    assert await _is(app, event_id, Status.DELIVERED)


async def _is_not(app: Redrive, event_id: UUID, *statuses: Status) -> bool:
    return (await found(app, event_id)).status not in statuses


async def test_an_intake_from_a_topic_that_is_not_there_says_so_and_begins_once_it_is(
    app: Redrive, real_topic: Topic
) -> None:
    missing = Topic(f"{real_topic.name}.missing", real_topic.bootstrap)
    app.intake(Kafka(real_topic.bootstrap).topic(missing.name, group="shop"), types={missing.name: "order.came"})

    async with working(app):
        (intake,) = app.traffic.intakes.values()
        await until(lambda: intake.link.state.value == "refused")
        said = intake.link.error
        await asyncio.to_thread(missing.make)
        missing.put(b"1")
        await until(lambda: intake.link.moved == 1)

    assert f"kafka has no topic '{missing.name}'" in said


async def test_a_topic_we_may_not_use_is_a_dead_letter_with_that_reason(
    app: Redrive, own_kafka: OwnKafka, real_topic: Topic
) -> None:
    await asyncio.to_thread(_deny, own_kafka, real_topic.name)
    app.relay("order.paid", to=sasl(own_kafka, USERS["ada"]).topic(real_topic.name))

    event_id = (await app.publish("order.paid", 1)).id
    await app.worker().drain()

    event = await found(app, event_id)
    assert event.status is Status.FAILED
    assert event.error_type == "redrive.errors.BrokerRefused"
    assert f"does not allow us to use '{real_topic.name}'" in str(event.last_error)


def _deny(server: OwnKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    what = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ada", "*")
    for each in admin.create_acls([AclBinding(*what, AclOperation.WRITE, AclPermissionType.DENY)]).values():
        each.result(20)


async def test_settings_the_driver_does_not_know_are_said_when_it_is_used(app: Redrive) -> None:
    kafka = Kafka(settings={"no.such.thing": 1})
    app.relay("order.paid", to=kafka.topic("orders"))

    with pytest.raises(DependencyUnavailable, match=r'its settings are wrong: .*"no.such.thing"'):
        await kafka.send(Message("orders", b"x"))

    assert kafka.link.state.value == "refused"
