"""Kafka, on librdkafka's mock cluster and on a real one: out when acknowledged, in when stored."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from redrive import ConfigurationError, Event, EventFilter, Redrive, Rejected, Status
from redrive.clock import SystemClock
from redrive.transport.base import Message, Received
from redrive.transport.kafka import Kafka
from tests.kafka_server import mock_kafka
from tests.transport.conftest import FAST, Topic
from tests.waiting import until
from tests.worker.conftest import working

STRUCTURED = (("content-type", b"application/cloudevents+json"),)


def document(id_: str, n: int = 0, **more: Any) -> bytes:
    event = {"specversion": "1.0", "id": id_, "type": "order.came", "source": "/shop", "data": {"n": n}}
    return json.dumps({**event, **more}).encode()


def taking(app: Redrive, topic: Topic, *, group: str = "shop", patience: str = "5s", **options: Any) -> list[int]:
    """Take from the topic; answer the numbers that arrive at a handler."""
    came: list[int] = []
    app.intake(
        Kafka(topic.bootstrap, connect_timeout=patience).topic(topic.name, group=f"{group}-{topic.name}"), **options
    )

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        came.append(order["n"])

    return came


async def _events(app: Redrive, **wanted: Any) -> list[Event]:
    return await app.events(EventFilter(**wanted))


# --- out ---


@pytest.mark.req("E3")
async def test_an_event_is_delivered_when_kafka_has_acknowledged_it(app: Redrive, topic: Topic) -> None:
    app.relay("order.paid", to=Kafka(topic.bootstrap).topic(topic.name))

    event = await app.publish("order.paid", {"order": 7}, ordering_key="7")
    tally = await app.worker().drain()

    assert tally.delivered == 1
    (message,) = topic.messages()
    assert message.key() == b"7"
    body = json.loads(message.value() or b"")
    assert (body["id"], body["data"], body["source"]) == (str(event.id), {"order": 7}, "shop")
    assert body["partitionkey"] == "7"
    assert dict(message.headers() or [])["content-type"] == b"application/cloudevents+json"


async def test_in_binary_mode_the_attributes_are_headers(app: Redrive, topic: Topic) -> None:
    app.relay("order.paid", to=Kafka(topic.bootstrap).topic(topic.name), mode="binary")

    event = await app.publish("order.paid", {"order": "ä"}, subject="order/ä")
    await app.worker().drain()

    (message,) = topic.messages()
    headers = dict(message.headers() or [])
    assert message.key() is None
    assert json.loads(message.value() or b"") == {"order": "ä"}
    assert headers["ce_id"] == str(event.id).encode()
    assert headers["ce_subject"] == "order/ä".encode()


async def test_many_are_under_way_at_once(topic: Topic) -> None:
    kafka = Kafka(topic.bootstrap, settings={"queue.buffering.max.messages": 100})

    await asyncio.gather(*(kafka.send(Message(topic.name, b"%d" % n)) for n in range(1_000)))
    await kafka.close()

    assert sorted(int(each.value() or b"") for each in topic.messages()) == list(range(1_000))


async def test_a_producer_that_was_closed_is_made_again(topic: Topic) -> None:
    kafka = Kafka(topic.bootstrap)
    await kafka.send(Message(topic.name, b"1"))
    await kafka.close()

    await kafka.send(Message(topic.name, b"2"))
    await kafka.close()

    assert len(topic.messages()) == 2


# --- in ---


@pytest.mark.req("E3", "W12")
async def test_what_goes_out_comes_in_once_and_in_order(app: Redrive, topic: Topic) -> None:
    kafka = Kafka(topic.bootstrap)
    app.relay("order.paid", to=kafka.topic(topic.name))
    app.intake(kafka.topic(topic.name, group=f"back-{topic.name}"), types={"order.paid": "order.came"})
    came: dict[str, list[int]] = defaultdict(list)

    @app.handler("order.came")
    async def take(order: dict[str, Any]) -> None:
        came[order["key"]].append(order["n"])

    drafts = [("order.paid", {"key": f"k{n % 7}", "n": n}, {"ordering_key": f"k{n % 7}"}) for n in range(100)]
    await app.publish_many(drafts)  # type: ignore[arg-type]
    async with working(app):
        await until(lambda: sum(map(len, came.values())) >= 100)
        await until(lambda: asyncio.to_thread(_has_committed, topic, f"back-{topic.name}", 100))

    assert came == {f"k{key}": list(range(key, 100, 7)) for key in range(7)}


def _has_committed(topic: Topic, group: str, number: int) -> bool:
    return topic.committed(group) == number


async def test_a_message_keeps_what_was_said_of_it_and_where_it_stood(app: Redrive, topic: Topic) -> None:
    taking(app, topic)
    said: dict[str, Any] = {"subject": "order/7", "correlationid": "c-1", "partitionkey": "7"}
    topic.put(document("e-1", **said), (*STRUCTURED, ("region", b"eu"), ("null", None)), key=b"7")
    (message,) = topic.messages()

    async with working(app):
        await until(lambda: _delivered(app, 1))

    (event,) = await _events(app, type="order.came")
    assert (event.source, event.subject, event.ordering_key, event.correlation_id) == ("/shop", "order/7", "7", "c-1")
    assert event.headers["redrive.position"] == f"{topic.name}/{message.partition()}/0"
    assert (event.headers["redrive.topic"], event.headers["region"]) == (topic.name, "eu")


async def _delivered(app: Redrive, number: int) -> bool:
    return len(await _events(app, type="order.came", status=Status.DELIVERED)) == number


async def test_one_that_comes_twice_is_stored_once(app: Redrive, topic: Topic) -> None:
    came = taking(app, topic)
    topic.put(document("e-1", 1), STRUCTURED, number=2)
    topic.put(document("e-2", 2), STRUCTURED)

    async with working(app):
        await until(lambda: len(came) >= 2)
        await until(lambda: asyncio.to_thread(_has_committed, topic, f"shop-{topic.name}", 3))

    assert sorted(came) == [1, 2]
    assert sum(each.taken["duplicate"] for each in app.traffic.intakes.values()) == 1


async def test_plain_json_gets_the_type_of_its_topic_and_is_recognised_by_its_place(
    store_url: str, topic: Topic
) -> None:
    topic.put(b'{"n": 1}')
    topic.put(b'{"n": 2}')
    came: list[int] = []

    for group in ("first", "second"):  # the second group begins at the beginning, as one does whose offsets are lost
        async with Redrive(store_url, retry=FAST, migrate=True) as app:
            came = taking(app, topic, group=group, types={topic.name: "order.came"})
            async with working(app):
                await until(partial(asyncio.to_thread, _has_committed, topic, f"{group}-{topic.name}", 2))
                await until(partial(_delivered, app, 2))

    assert came == []  # of the second


HOSTILE = {
    "tombstone": (None, STRUCTURED, "tombstone"),
    "empty": (b"", STRUCTURED, "the body is empty"),
    "no JSON": (b"{", STRUCTURED, "not JSON"),
    "schema": (b"\x00\x00\x00\x00\x2a\x02", STRUCTURED, "schema id 42 is unknown here"),
    "header": (b"{}", (("ce_specversion", b"1.0"), ("ce_id", b"\xff\xfe")), "not UTF-8"),
    "nothing said": (b"\xff", (), "no CloudEvent"),
}


@pytest.mark.req("W5")
async def test_what_cannot_be_read_is_kept_raw_with_its_place_and_read_again_after_the_fix(
    app: Redrive, topic: Topic
) -> None:
    came = taking(app, topic)
    for number, (body, headers, _) in enumerate(HOSTILE.values()):
        topic.put(body, (*headers, ("n", b"%d" % number)), key=b"\xff")
    places = {int(dict(m.headers() or [])["n"] or b""): (m.partition(), m.offset()) for m in topic.messages()}

    async with working(app):
        await until(lambda: _failed(app, len(HOSTILE)))
        letters = await _events(app, status=Status.FAILED)
        (intake,) = app.traffic.intakes.values()
        intake.parse = lambda message: ("order.came", {"n": int(message.header("n") or b"")})
        for letter in letters:
            await app.replay(letter.id, by="ada", reason="fixed")
        await until(lambda: len(came) == len(HOSTILE))

    assert sorted(came) == list(range(len(HOSTILE)))
    assert all(letter.error_type == "redrive.errors.Unparsable" for letter in letters)
    reasons = [str(letter.last_error) for letter in letters]
    assert all(any(reason in said for said in reasons) for _, _, reason in HOSTILE.values())
    kept = {letter.payload["position"] for letter in letters}
    assert kept == {f"{topic.name}/{partition}/{offset}" for partition, offset in places.values()}


async def _failed(app: Redrive, number: int) -> bool:
    return len(await _events(app, status=Status.FAILED)) == number


async def test_a_full_store_pauses_the_intake_and_it_goes_on_by_itself(app: Redrive, topic: Topic) -> None:
    may_end = asyncio.Event()
    came = []
    app.intake(Kafka(topic.bootstrap).topic(topic.name, group=f"shop-{topic.name}"), batch=10, max_backlog=20)

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        await may_end.wait()
        came.append(order["n"])

    topic.put_all([(b"k", document(f"e-{n}", n)) for n in range(200)])
    (intake,) = app.traffic.intakes.values()
    async with working(app):
        await until(lambda: intake.link.state.value == "paused")
        member = intake._subscription
        stored = len(await _events(app, type="order.came"))
        may_end.set()
        await until(lambda: len(came) >= 200)
        assert intake._subscription is member  # it stayed in the group

    assert 20 <= stored <= 30
    assert sorted(came) == list(range(200))


@pytest.mark.lab_short
@pytest.mark.req("E3")
async def test_a_drain_waits_for_its_group_and_for_answers_from_far_away(sqlite_url: str) -> None:
    """No intake opened where answers took 0.1 s, and a drain took a topic for empty that was not its own in 5 s."""
    with mock_kafka(slow_ms=400) as slow:  # which waits 3 s for more members of a group, as a real one does
        topic = Topic("orders", slow.bootstrap)
        topic.put(document("1", 7), STRUCTURED)
        async with Redrive(sqlite_url) as app:
            came = taking(app, topic, patience="30s")

            await app.worker().drain()

    assert came == [7]


async def test_who_is_called_off_while_he_waits_for_his_group_leaves_at_once() -> None:
    with mock_kafka(slow_ms=200) as mock:
        topic = Topic("orders", mock.bootstrap)
        topic.put(document("1", 7), STRUCTURED)
        member = await Kafka(mock.bootstrap, connect_timeout="30s").topic("orders", group="shop").subscribe()
        fetching = asyncio.create_task(member.fetch(1, 0.0))
        await asyncio.sleep(0.2)

        fetching.cancel()
        await member.close()

    assert member._stay == 0, "it waited until the group had let it in"


async def test_a_worker_that_is_called_off_while_it_fetches_loses_nothing(app: Redrive, topic: Topic) -> None:
    came = taking(app, topic, batch=7)
    async with working(app) as first:
        (intake,) = app.traffic.intakes.values()
        await until(lambda: intake.link.state.value == "ok")
        async with working(app):
            for part in range(5):
                topic.put_all([(b"k", document(f"e-{part}-{n}", part * 20 + n)) for n in range(20)])
                if part == 2:
                    first.stop()
            await until(lambda: len(came) >= 100)

    assert sorted(came) == list(range(100))


@pytest.mark.promise("durable")
async def test_whoever_fetches_while_an_earlier_fetch_that_was_called_off_goes_on_gets_everything(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(topic.put, b"1", key=b"same", number=3)
    member = await Kafka(topic.bootstrap).topic(topic.name, group=f"shop-{topic.name}").subscribe()
    received, is_reading, may_go_on = member._received, threading.Event(), threading.Event()

    def slowly(record: Any, place: Any) -> Received:
        if record.offset() == 1:
            is_reading.set()
            assert may_go_on.wait(10)
        return received(record, place)

    monkeypatch.setattr(member, "_received", slowly)
    first = asyncio.create_task(member.fetch(10, 10.0))
    await asyncio.to_thread(is_reading.wait, 10)
    first.cancel()
    second = asyncio.create_task(member.fetch(10, 10.0))
    await asyncio.sleep(0)
    may_go_on.set()

    found = await second
    while len(found) < 3 and (more := await member.fetch(10, 1.0)):
        found += more
    await member.close()
    assert [each.handle[1] for each in found] == [0, 1, 2]


async def test_the_lag_is_known_for_each_partition(topic: Topic) -> None:
    topic.put_all([(b"%d" % n, document(f"e-{n}")) for n in range(30)])
    kafka = Kafka(topic.bootstrap)
    kafka.use(SystemClock())
    member = await kafka.topic(topic.name, group=f"lag-{topic.name}").subscribe()

    got = await member.fetch(30, 0)
    while len(got) < 30:
        got += await member.fetch(30, 0)
    before = await member.lags()
    await member.acknowledge(got)
    after = await member.lags()
    await member.close()

    assert sum(before.values()) == 30
    assert set(before) == {(topic.name, partition) for partition in range(4 if topic.is_mock else 3)}
    assert set(after.values()) == {0}


# --- dead letters ---


@pytest.mark.req("W5")
async def test_a_dead_letter_goes_to_a_topic_with_headers_that_other_tools_read(app: Redrive, topic: Topic) -> None:
    kafka, dead = Kafka(topic.bootstrap), Topic(f"{topic.name}.dlt", topic.bootstrap, topic.is_mock)
    dead.make()
    app.intake(kafka.topic(topic.name, group=f"shop-{topic.name}"))
    app.relay(to=kafka.topic(dead.name), dead_letters=True)

    @app.handler("order.came")
    async def refuse(order: dict[str, int]) -> None:
        raise Rejected("no such café")

    topic.put(document("e-1", 1), STRUCTURED, key=b"k")
    topic.put(b"\xff what", [("kind", b"odd")], key=b"k")
    (first, second) = topic.messages()
    async with working(app):
        await until(partial(_relayed, app, 2))

    letters = {dict(each.headers() or [])["__connect.errors.offset"]: each for each in dead.messages()}
    refused, raw = letters[b"%d" % (first.offset() or 0)], letters[b"%d" % (second.offset() or 0)]
    headers = dict(refused.headers() or [])
    assert json.loads(refused.value() or b"")["data"] == {"n": 1}
    assert headers["kafka_dlt-original-topic"] == headers["__connect.errors.topic"] == topic.name.encode()
    assert headers["kafka_dlt-original-partition"] == (first.partition() or 0).to_bytes(4, "big")
    assert headers["kafka_dlt-original-offset"] == (first.offset() or 0).to_bytes(8, "big")
    assert headers["kafka_dlt-exception-fqcn"] == b"redrive.errors.Rejected"
    assert str(refused.headers()).count("no such caf") == 2
    assert headers["redrive-attempts"] == b"1"
    assert (raw.value(), raw.key()) == (b"\xff what", b"k")
    assert dict(raw.headers() or [])["kind"] == b"odd"
    assert dict(raw.headers() or [])["kafka_dlt-exception-fqcn"] == b"redrive.errors.Unparsable"


async def _relayed(app: Redrive, number: int) -> bool:
    return len(await _events(app, type="redrive.event.failed", status=Status.DELIVERED)) == number


# --- what is said wrongly ---


@pytest.mark.parametrize("name", ["", "orders paid", "a/b", "..", "ä", "x" * 250])
def test_a_topic_that_cannot_be_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no topic"):
        Kafka().topic(name)


@pytest.mark.parametrize(
    ("said", "waits"),
    [({}, 60_000), ({"session.timeout.ms": 90_000}, 90_000), ({"max.poll.interval.ms": 20_000}, 20_000)],
)
def test_an_answer_to_a_join_that_was_lost_is_waited_for_a_minute(said: dict[str, Any], waits: int) -> None:
    """The driver waits for it as long as a member may take between two polls, and at least for a session."""
    assert Kafka(settings=said).consumer_settings("shop")["max.poll.interval.ms"] == waits


@pytest.mark.parametrize("setting", ["acks", "enable.idempotence", "enable.auto.commit", "group.id"])
def test_settings_that_a_promise_rests_on_cannot_be_set(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{setting} cannot be set: "):
        Kafka(settings={setting: "x"})


def test_a_group_and_a_broker_need_names() -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        Kafka().topic("orders", group="")
    with pytest.raises(ConfigurationError, match="start is 'earliest' or 'latest'"):
        Kafka().topic("orders", group="x", start="now")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="a broker is named with letters"):
        Kafka(name="my kafka")
