"""What goes out."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from redrive import EventFilter, Redrive, Refused, Status
from redrive.transport.nats import Nats
from tests.transport.conftest import Stream
from tests.waiting import until
from tests.worker.conftest import found, working


async def test_an_event_is_delivered_when_the_broker_has_acknowledged_it(app: Redrive, stream: Stream) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", to=nats.subject(f"{stream.subject}.paid"))

    event = await app.publish("order.paid", {"order": 7}, ordering_key="7")
    tally = await app.worker().drain()

    assert tally.delivered == 1
    (message,) = await stream.messages()
    body = json.loads(message.data)
    assert body["id"] == str(event.id)
    assert body["data"] == {"order": 7}
    assert body["source"] == "shop"
    assert body["partitionkey"] == "7"


async def test_what_goes_out_comes_in_once(app: Redrive, stream: Stream) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", to=nats.subject(f"{stream.subject}.paid"))
    app.intake(nats.stream(stream.name, durable="back"), types={"order.paid": "order.came"})
    came = []

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        came.append(order["n"])

    await app.publish_many([("order.paid", {"n": n}, {"ordering_key": "k"}) for n in range(50)])
    async with working(app):
        await until(lambda: len(came) >= 50)

    assert came == list(range(50))


@pytest.mark.parametrize("mode", ["structured", "binary"])
async def test_both_modes_carry_everything_there_and_back(app: Redrive, stream: Stream, mode: Any) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", to=nats.subject(f"{stream.subject}.paid"), mode=mode)
    app.intake(nats.stream(stream.name, durable="back"), types={"order.paid": "order.came"})
    said: dict[str, Any] = {
        "subject": "Größe 7", "ordering_key": "käse", "correlation_id": "c", "causation_id": "b",
        "headers": {"Tenant": "acme", "odd näme": "a\nb"}, "idempotency_key": "once",
    }  # fmt: skip

    @app.handler("order.came")
    async def take(order: dict[str, Any]) -> None: ...

    sent = await app.publish("order.paid", {"text": "ä\n☃"}, **said)
    async with working(app):
        await until(lambda: _delivered(app, "order.came", 1))

    (event,) = await app.events(EventFilter(type="order.came"))
    assert event.payload == {"text": "ä\n☃"}
    assert (event.subject, event.ordering_key, event.idempotency_key) == ("Größe 7", "käse", "once")
    assert (event.correlation_id, event.causation_id) == ("c", "b")
    assert event.headers["redrive.id"] == str(sent.id)
    assert {name: event.headers[name] for name in said["headers"]} == said["headers"]


async def _delivered(app: Redrive, type_: str, count: int) -> bool:
    found = await app.events(EventFilter(type=type_, status=Status.DELIVERED, limit=1_000))
    return len(found) >= count


async def test_events_of_one_key_go_out_in_their_order_whatever_their_types(app: Redrive, stream: Stream) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", "order.sent", to=nats.subject(f"{stream.subject}.all"))
    types = ["order.paid", "order.sent"]

    await app.publish_many([(types[n % 2], n, {"ordering_key": "one"}) for n in range(30)])
    async with working(app, concurrency=20):
        await until(lambda: _sent(app, 30))

    assert [json.loads(message.data)["data"] for message in await stream.messages()] == list(range(30))


def _sent(app: Redrive, count: int) -> bool:
    (relay,) = app.traffic.relays.values()
    return relay.link.moved >= count


async def test_a_type_with_a_handler_and_a_route_has_both(app: Redrive, stream: Stream) -> None:
    seen = []
    app.relay("order.paid", to=Nats(stream.url).subject(f"{stream.subject}.paid"))

    @app.handler("order.paid")
    async def ship(order: int) -> None:
        seen.append(order)

    await app.publish("order.paid", 7, queue="default")
    await app.worker().drain()

    assert seen == [7]
    assert len(await stream.messages()) == 1
    rows = {event.target: event.queue for event in await app.events()}
    assert rows == {"order.paid": "default", f"relay:nats:{stream.subject}.paid": "relay"}


async def test_a_process_that_only_publishes_needs_no_broker(store_url: str, stream: Stream) -> None:
    target = f"relay:nats:{stream.subject}.paid"
    async with Redrive(store_url, migrate=True) as publisher:
        publisher.route("order.paid", target, queue="relay")
        await publisher.publish("order.paid", 1)

    async with Redrive(store_url) as relaying:
        relaying.relay("order.paid", to=Nats(stream.url).subject(f"{stream.subject}.paid"))
        tally = await relaying.worker(queues=relaying.traffic.queues).drain()

    assert tally.delivered == 1
    assert len(await stream.messages()) == 1


async def test_a_replay_carries_the_message_id_of_the_first_try(app: Redrive, stream: Stream) -> None:
    subject = f"{stream.name}-later.paid"
    app.relay("order.paid", to=Nats(stream.url).subject(subject))
    event_id = (await app.publish("order.paid", 1)).id
    await app.worker().drain()
    assert (await found(app, event_id)).status is Status.FAILED
    await stream.client.jsm().update_stream(name=stream.name, subjects=[f"{stream.name}.>", subject])

    await app.replay(event_id, by="ana", reason="a stream takes it now")
    await app.worker().drain()

    assert (await found(app, event_id)).status is Status.DELIVERED
    (message,) = await stream.messages()
    assert message.headers["Nats-Msg-Id"] == str(event_id)


@pytest.mark.req("W12")
async def test_a_window_is_sent_again_past_the_broker_s_memory_and_recognised_by_its_ids(
    app: Redrive, stream: Stream
) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", to=nats.subject(f"{stream.subject}.paid"))
    app.intake(nats.stream(stream.name, durable="back"), types={"order.paid": "order.came"})
    came = []

    @app.handler("order.came")
    async def take(order: int) -> None:
        came.append(order)

    first = app.clock.now()
    sent = [(await app.publish("order.paid", n, ordering_key="k", headers={"a": "b"})).id for n in range(5)]
    async with working(app):
        await until(lambda: len(came) == 5)
    await stream.client.jsm().delete_msg(stream.name, 2)  # the broker has lost what it had acknowledged
    (relay,) = app.traffic.relays.values()

    window: dict[str, Any] = {"since": first, "until": app.clock.now() + timedelta(minutes=1)}
    done = await app.traffic.republish(relay.target, **window, by="ana", reason="a disk was lost")
    again = await app.traffic.republish(relay.name, **window, by="ana", reason="asked twice")
    async with working(app):
        await until(lambda: _sent(app, 10))

    assert (done.copies, done.more, again.copies) == (5, False, 0)
    info = await stream.client.jsm().stream_info(stream.name)
    assert info.state.messages == 4 + 5
    copies = [json.loads((await stream.client.jsm().get_msg(stream.name, seq)).data or b"") for seq in range(6, 11)]
    assert [copy["id"] for copy in copies] == [str(each) for each in sent]
    assert [copy["data"] for copy in copies] == list(range(5))
    assert came == list(range(5))  # who had it has recognised it
    entries = [entry async for entry in app.store.trail() if entry.kind == "republished"]
    assert [entry.facts["reason"] for entry in entries] == ["a disk was lost", "asked twice"]
    later = await app.traffic.republish(relay.target, **window, by="ana", reason="copies are not copied", limit=3)
    assert (later.copies, later.more) == (3, True)


async def test_a_window_that_cannot_be_is_refused(app: Redrive) -> None:
    now = app.clock.now()

    with pytest.raises(Refused, match="before it begins"):
        await app.traffic.republish("nats:orders", since=now, until=now, by="ana", reason="r")
    with pytest.raises(Refused, match="limit"):
        await app.traffic.republish("nats:orders", since=now, until=now + timedelta(1), by="a", reason="r", limit=0)
