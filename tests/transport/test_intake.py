"""What comes in: once, in order, or raw into quarantine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from redrive import Event, EventFilter, Redrive, Status
from redrive.errors import Unparsable
from redrive.transport.base import Message
from redrive.transport.intake import Intake
from redrive.transport.nats import Nats
from tests.servers import NatsServer
from tests.transport.conftest import Stream
from tests.waiting import until
from tests.worker.conftest import found, working

STRUCTURED = {"content-type": "application/cloudevents+json"}


def document(id_: str, n: object = 0, **more: Any) -> bytes:
    event = {"specversion": "1.0", "id": id_, "type": "order.came", "source": "/shop", "data": {"n": n}}
    return json.dumps({**event, **more}).encode()


def taking(app: Redrive, stream: Stream, **options: Any) -> list[int]:
    """Take from the stream; answer the numbers that arrive at a handler."""
    came: list[int] = []
    app.intake(Nats(stream.url).stream(stream.name, durable="shop"), **options)

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        came.append(order["n"])

    return came


async def _events(app: Redrive, **wanted: Any) -> list[Event]:
    return await app.events(EventFilter(**wanted))


async def test_an_event_keeps_what_was_said_of_it(app: Redrive, stream: Stream) -> None:
    taking(app, stream)
    said = {"subject": "order/7", "correlationid": "c-1", "causationid": "e-0", "partitionkey": "7"}
    await stream.put(document("e-1", **said, traceparent="00-a", region="eu"), STRUCTURED)

    await app.worker().drain()

    (event,) = await _events(app, type="order.came")
    assert event.status is Status.DELIVERED
    assert (event.source, event.subject, event.ordering_key) == ("/shop", "order/7", "7")
    assert (event.correlation_id, event.causation_id) == ("c-1", "e-0")
    assert event.idempotency_key == "/shop#e-1"
    assert event.headers == {
        "traceparent": "00-a",
        "region": "eu",
        "redrive.id": "e-1",
        "redrive.topic": f"{stream.subject}.in",
        "redrive.position": f"{stream.name}:1",
    }


@pytest.mark.req("W12")
async def test_a_message_that_comes_again_makes_no_second_event(app: Redrive, stream: Stream) -> None:
    came = taking(app, stream)
    for n in (1, 2, 1, 1, 3):
        await stream.put(document(f"e-{n}", n), STRUCTURED)

    await app.worker().drain()
    await stream.put(document("e-2", 2), STRUCTURED)
    await app.worker().drain()

    assert came == [1, 2, 3]
    (intake,) = app.traffic.intakes.values()
    assert intake.taken["duplicate"] == 3


async def test_what_was_stored_but_not_acknowledged_comes_again_in_vain(app: Redrive, stream: Stream) -> None:
    came = taking(app, stream)
    (intake,) = app.traffic.intakes.values()
    for n in range(20):
        await stream.put(document(f"e-{n}", n), STRUCTURED)
    store = await app._ready()
    crashed = await intake.inlet.subscribe()
    batch = await crashed.fetch(10, 1.0)
    await intake._store(store, batch)
    await crashed.close()  # killed here, before a word to the broker
    await intake.close()
    await intake.inlet.broker.close()

    await app.worker().drain()

    assert came == list(range(20))


async def test_what_was_fetched_and_not_stored_comes_again_in_its_order(app: Redrive, stream: Stream) -> None:
    came = taking(app, stream)
    (intake,) = app.traffic.intakes.values()
    for n in range(20):
        await stream.put(document(f"e-{n}", n, partitionkey="k"), STRUCTURED)
    crashed = await intake.inlet.subscribe()
    assert len(await crashed.fetch(10, 1.0)) == 10
    await crashed.close()
    await intake.inlet.broker.close()

    async with working(app):
        await until(lambda: len(came) >= 20)

    assert came == list(range(20))


@pytest.mark.req("W5")
async def test_what_cannot_be_read_stands_raw_in_quarantine_and_is_read_again_after_the_fix(
    store_url: str, stream: Stream
) -> None:
    async with Redrive(store_url, migrate=True) as app:
        came = taking(app, stream)
        await stream.put(document("e-1", 1), STRUCTURED)
        await stream.put(b'{"n": 2}', {"Nats-Msg-Id": "plain-2"})
        await stream.put(document("e-3", 3), STRUCTURED)
        await app.worker().drain()

        (letter,) = await _events(app, status=Status.FAILED)
        assert came == [1, 3]
        assert letter.target == f"intake:{stream.name}/shop"
        assert letter.attempts == 1
        assert letter.error_class == "invalid"
        assert letter.payload["position"] == f"{stream.name}:2"
        assert "no CloudEvent" in str(letter.last_error)

    async with Redrive(store_url) as fixed:
        came = taking(fixed, stream, types={f"{stream.subject}.in": "order.came"})
        await fixed.replay(letter.id, by="ana", reason="the type of plain messages is known now")
        await fixed.worker().drain()

        assert came == [2]
        assert (await found(fixed, letter.id)).status is Status.DELIVERED
        await stream.put(b'{"n": 2}', {"Nats-Msg-Id": "plain-2x"})
        await fixed.worker().drain()
        assert came == [2, 2]


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (b"", {}, "no CloudEvent"),
        (b"", STRUCTURED, "empty"),
        (b"\0\0\0\0\x2a{}", STRUCTURED, "schema id 42 is unknown here"),
        (b"\xff\xfe", STRUCTURED, "not UTF-8"),
        (document("x" * 600), STRUCTURED, "id has 600 characters"),
        (document("a\0b"), STRUCTURED, "NUL"),
        (document("1", type="t" * 300), STRUCTURED, "type has 300 characters"),
        (document("1", data="\ud800"), STRUCTURED, "lone surrogate"),
        (document("1").replace(b"{", b'{"id": "2",', 1), STRUCTURED, "has the key 'id' twice"),
        (document("1", data=7).replace(b"7", b"0.12345678901234567890123456789"), STRUCTURED, "a double does not hold"),
        (document("1", data=7).replace(b"7", b"9" * 5_000), STRUCTURED, "4,300 digits"),
        (document("1", data="x" * 2_000), STRUCTURED, "at most 1,000 are allowed"),
    ],
)
async def test_poison_never_stops_an_intake(
    sqlite_url: str, stream: Stream, body: bytes, headers: dict[str, str], reason: str
) -> None:
    from redrive import Limits

    async with Redrive(sqlite_url, limits=Limits(max_bytes=1_000)) as app:
        came = taking(app, stream)
        await stream.put(body, headers)
        await stream.put(document("good", 7), STRUCTURED)
        await app.worker().drain()

        (letter,) = await _events(app, status=Status.FAILED)
        assert came == [7]
        assert reason in str(letter.last_error)
        assert reason in letter.payload["reason"]


async def test_a_header_that_is_not_utf8_is_poison_only_where_it_matters(app: Redrive, stream: Stream) -> None:
    came = taking(app, stream)
    binary = b"ce-specversion: 1.0\r\nce-id: %b\r\nce-type: order.came\r\nce-source: s\r\n%b\r\n\r\n"
    for head in (binary % (b"1", b"note: \xff"), binary % (b"2", b"ce-subject: \xff")):
        raw = b"NATS/1.0\r\n" + head
        body = b'{"n": 1}'
        await stream.client._send_command(
            b"HPUB %b %d %d\r\n%b%b\r\n" % (f"{stream.subject}.in".encode(), len(raw), len(raw + body), raw, body)
        )
    await stream.client.flush()

    await app.worker().drain()

    (letter,) = await _events(app, status=Status.FAILED)
    assert came == [1]
    assert "'ce-subject' is not UTF-8" in str(letter.last_error)


async def test_a_parser_of_your_own_reads_anything_and_may_fail(app: Redrive, stream: Stream) -> None:
    def parse(message: Message) -> tuple[str, Any]:
        assert message.body is not None
        if message.body == b"what":
            raise Unparsable("no such word")
        return "order.came", {"n": int(message.body)}

    came = taking(app, stream, parse=parse)
    for body in (b"1", b"two", b"what", b"3"):
        await stream.put(body)

    await app.worker().drain()

    letters = await _events(app, status=Status.FAILED)
    assert came == [1, 3]
    assert sorted(letter.payload["reason"].split("(")[0] for letter in letters) == [
        "no such word",
        "parse raised ValueError",
    ]


BAD_OPTIONS: tuple[Any, ...] = (
    7, "subject", {"subjekt": "order/7"}, {"delay": object()}, {"headers": ["x"]}, {"headers": {"a": 1}}, {1: 2},
    {"generation": "x"}, {"batch": "none"},
)  # fmt: skip


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=range(len(BAD_OPTIONS)))
async def test_a_parser_that_returns_bad_options_makes_a_dead_letter_and_the_intake_goes_on(
    sqlite_url: str, stream: Stream, options: Any
) -> None:
    async with Redrive(sqlite_url) as app:
        came = taking(app, stream, parse=lambda message: ("order.came", {"n": 1}, options))
        (intake,) = app.traffic.intakes.values()
        await stream.put(b"first")
        await app.worker().drain()
        intake.parse = None
        await stream.put(document("e-2", 2), STRUCTURED)
        await app.worker().drain()

        (letter,) = await _events(app, status=Status.FAILED)
        assert letter.error_type == "redrive.errors.Unparsable"
        assert came == [2]


async def test_what_a_parser_returns_is_left_as_it_is(app: Redrive, stream: Stream) -> None:
    """A constant carried the trace and the position of the first message into all later events."""
    same: Any = {"subject": "order/7", "headers": {"region": "eu"}}
    before = json.dumps(same)
    taking(app, stream, parse=lambda message: ("order.came", {"n": int(message.body or b"")}, same))
    for n in range(3):
        await stream.put(str(n).encode(), {"traceparent": f"00-{n:032x}-{n:016x}-01"})

    await app.worker().drain()

    events = await _events(app, type="order.came")
    assert json.dumps(same) == before
    assert {event.headers["redrive.position"] for event in events} == {f"{stream.name}:{n + 1}" for n in range(3)}
    assert {event.headers["traceparent"] for event in events} == {f"00-{n:032x}-{n:016x}-01" for n in range(3)}
    assert {event.headers["region"] for event in events} == {"eu"}


async def test_an_intake_that_fails_in_an_unforeseen_way_says_so(
    app: Redrive, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(app, stream)
    (intake,) = app.traffic.intakes.values()

    def broken(_intake: Intake, _received: object) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(Intake, "_read", broken)
    await stream.put(document("e-1", 1), STRUCTURED)
    async with working(app):
        await until(lambda: "internal error, trying again: RuntimeError('nobody fores" in intake.link.error)
        assert intake.link.state.value == "paused"


@pytest.mark.parametrize("body", [b'{"n": 1, "n": 2}', b'{"n": 0.1234567890123456789}', b'{"n": 1e400}'])
async def test_a_message_whose_value_would_change_is_kept_raw(app: Redrive, stream: Stream, body: bytes) -> None:
    came = taking(app, stream, types={f"{stream.subject}.in": "order.came"})
    await stream.put(body)

    await app.worker().drain()

    (letter,) = await _events(app, status=Status.FAILED)
    assert letter.error_type == "redrive.errors.Unparsable"
    assert came == []


async def _put_again_after_the_window(stream: Stream) -> None:
    """Send two messages under one id, of which JetStream has forgotten the first."""
    manager = stream.client.jsm()
    info = await manager.stream_info(stream.name)
    await manager.update_stream(info.config.evolve(duplicate_window=0.1))
    await stream.put(b'{"n": 1}', {"Nats-Msg-Id": "same"})
    while (await manager.stream_info(stream.name)).state.messages < 2:
        await stream.put(b'{"n": 2}', {"Nats-Msg-Id": "same"})


@pytest.mark.parametrize("at_once", [True, False])
async def test_an_id_that_is_used_again_is_counted_and_shown(app: Redrive, stream: Stream, at_once: bool) -> None:
    came = taking(app, stream, types={f"{stream.subject}.in": "order.came"}, batch=500 if at_once else 1)
    (intake,) = app.traffic.intakes.values()
    await _put_again_after_the_window(stream)

    async with working(app):
        await until(lambda: intake.taken["reused"] == 1)
        await until(lambda: _shown(app, "1 dropped: ids that were used before"))

    assert came == [1]
    assert intake.taken["duplicate"] == 0


async def _shown(app: Redrive, text: str) -> bool:
    return any(text in each.error and each.state == "ok" for each in await app.traffic.standing())


async def test_by_position_every_message_that_the_stream_has_is_taken(app: Redrive, stream: Stream) -> None:
    came = taking(app, stream, types={f"{stream.subject}.in": "order.came"}, identify_by="position")
    await _put_again_after_the_window(stream)

    await app.worker().drain()

    assert came == [1, 2]


async def test_a_message_that_is_brought_again_is_a_duplicate_and_not_a_second_use_of_its_id(
    app: Redrive, stream: Stream
) -> None:
    taking(app, stream, types={f"{stream.subject}.in": "order.came"})
    (intake,) = app.traffic.intakes.values()
    await stream.put(b'{"n": 1}', {"Nats-Msg-Id": "once"})
    store, subscription = await app._ready(), await intake.inlet.subscribe()
    batch = await subscription.fetch(10, 5.0)
    await intake._store(store, batch)

    await intake._store(store, batch)
    await subscription.close()
    await intake.inlet.broker.close()

    assert (intake.taken["stored"], intake.taken["duplicate"], intake.taken["reused"]) == (1, 1, 0)


async def test_too_much_waiting_pauses_an_intake_and_it_goes_on_by_itself(app: Redrive, stream: Stream) -> None:
    came: list[int] = []
    open_gate = asyncio.Event()
    app.intake(Nats(stream.url).stream(stream.name, durable="shop"), batch=10, max_backlog=25)

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        await open_gate.wait()
        came.append(order["n"])

    for n in range(100):
        await stream.put(document(f"e-{n}", n), STRUCTURED)
    (intake,) = app.traffic.intakes.values()

    async with working(app):
        await until(lambda: intake.link.state.value == "paused")
        waiting, why = len(await _events(app, limit=1_000)), intake.link.error
        open_gate.set()
        await until(lambda: len(came) == 100)

    assert sorted(came) == list(range(100))
    assert 25 <= waiting < 25 + 10
    assert "25 events or more are waiting" in why


async def test_a_full_store_pauses_an_intake_and_loses_nothing(sqlite_url: str, stream: Stream) -> None:
    async with Redrive(sqlite_url) as app:
        came = taking(app, stream)
        (intake,) = app.traffic.intakes.values()
        connection = app.store.writer.connection  # type: ignore[attr-defined]
        async with working(app):
            pages = connection.execute("pragma page_count").fetchone()[0]
            connection.execute(f"pragma max_page_count = {pages + 20}")
            for n in range(40):
                await stream.put(document(f"e-{n}", n, region="x" * 8_000), STRUCTURED)
            await until(lambda: intake.link.state.value == "paused")
            assert "room" in intake.link.error or "full" in intake.link.error
            connection.execute("pragma max_page_count = 1000000")
            await until(lambda: len(came) == 40)

        assert came == list(range(40))
        assert intake.link.moved == 40


async def test_a_stream_that_is_not_there_is_said_and_taken_when_it_comes(app: Redrive, own_nats: NatsServer) -> None:
    broker = Nats(own_nats.url)
    app.intake(broker.stream("LATER", durable="shop"))
    came = []

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        came.append(order["n"])

    (intake,) = app.traffic.intakes.values()
    async with working(app):
        await until(lambda: intake.link.state.value == "refused")
        assert "no stream 'LATER': create it, or say declare=True" in intake.link.error
        line = await broker.line()
        await line.client.jsm().add_stream(name="LATER", subjects=["later.>"])
        await line.client.jetstream().publish("later.in", document("1", 1), headers=STRUCTURED)
        await until(lambda: came == [1])


async def test_only_one_process_takes_from_an_ordered_inlet_and_another_takes_over(
    store_url: str, stream: Stream
) -> None:
    came: list[int] = []

    def made() -> tuple[Redrive, Intake]:
        app = Redrive(store_url, migrate=True)
        app.intake(Nats(stream.url).stream(stream.name, durable="shop"))

        @app.handler("order.came")
        async def take(order: dict[str, int]) -> None:
            came.append(order["n"])

        return app, next(iter(app.traffic.intakes.values()))

    (first, here), (second, there) = made(), made()
    async with first, second:
        async with working(first, name="a"):
            await stream.put(document("0", 0), STRUCTURED)
            await until(lambda: came == [0])
            async with working(second, name="b"):
                await stream.put(document("1", 1), STRUCTURED)
                await until(lambda: came == [0, 1])
        assert (here.link.moved, there.link.moved) == (2, 0)
        async with working(second, name="b"):
            await stream.put(document("2", 2), STRUCTURED)
            await until(lambda: came == [0, 1, 2])

    assert (here.link.moved, there.link.moved) == (2, 1)


async def test_messages_are_forgotten_after_a_while(app: Redrive, stream: Stream) -> None:
    taking(app, stream, remember=0.01)
    await stream.put(document("1", 1), STRUCTURED)
    await app.worker().drain()
    store = await app._ready()
    (row,) = await store.ask("intake_backlog", limit=10)
    assert row["n"] == 0

    await asyncio.sleep(0.05)
    app.traffic._forget_at = 0.0
    await app.traffic._forget("w")

    async with store.transaction() as tx:
        assert len(await tx.run("intake_take", rows=json.dumps([["/shop", "1", str(app.clock.new_id())]]))) == 1
