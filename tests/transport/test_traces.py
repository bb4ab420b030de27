"""One trace leads from the publish in one service to the handler in another, whatever broker is between them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from redrive import Context, Redrive
from redrive.transport.base import Destination, Inlet
from redrive.transport.kafka import Kafka
from redrive.transport.nats import Nats
from tests.kafka_server import KafkaServer
from tests.servers import NatsServer
from tests.signals.spans import context_of, named, parent_of, said, spans
from tests.transport.conftest import FAST, Stream, Topic
from tests.waiting import until
from tests.worker.conftest import found, working

__all__ = ("spans",)  # a fixture

THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "vendor=opaque"


@pytest.fixture(scope="session", params=["nats_server", "kafka_mock"])
def server(request: pytest.FixtureRequest) -> NatsServer | KafkaServer:
    """Give the test one broker after the other."""
    found: NatsServer | KafkaServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def ends(server: NatsServer | KafkaServer, request: pytest.FixtureRequest) -> tuple[Destination, Inlet]:
    """Both ends of a broker, each with a connection of its own."""
    if isinstance(server, NatsServer):
        stream: Stream = request.getfixturevalue("stream")
        return Nats(stream.url).subject(f"{stream.subject}.paid"), Nats(stream.url).stream(stream.name, durable="b")
    topic = Topic(f"t{secrets.token_hex(4)}", server.bootstrap, is_mock=True)
    topic.make()
    return Kafka(topic.bootstrap).topic(topic.name), Kafka(topic.bootstrap).topic(topic.name, group=f"b-{topic.name}")


@pytest.mark.parametrize("mode", ["structured", "binary"])
async def test_a_trace_leads_over_the_broker_into_another_service(
    app: Redrive, ends: tuple[Destination, Inlet], mode: Any, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    to, inlet = ends
    came: list[int] = []

    @app.handler("order.placed")
    async def pay(order: dict[str, int], ctx: Context) -> None:
        await ctx.publish("order.paid", order)

    app.relay("order.paid", to=to, mode=mode)
    async with Redrive(f"sqlite:///{tmp_path}/carrier.db", retry=FAST, source="carrier") as carrier:
        carrier.intake(inlet)

        @carrier.handler("order.paid")
        async def ship(order: dict[str, int], ctx: Context) -> None:
            await ctx.publish("order.shipped", order)

        @carrier.handler("order.shipped")
        async def tell(order: dict[str, int]) -> None:
            came.append(order["id"])

        with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
            await app.publish("order.placed", {"id": 7})
        await app.worker().drain()
        async with working(carrier):
            await until(lambda: bool(came))

    assert came == [7]
    sent, taken = two(spans, "process order.paid")
    story = [*named(spans, "publish order.placed"), *named(spans, "process order.placed"),
             *named(spans, "publish order.paid"), sent, taken, *named(spans, "publish order.shipped"),
             *named(spans, "process order.shipped")]  # fmt: skip
    kinds = [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER,
             SpanKind.PRODUCER, SpanKind.CONSUMER]  # fmt: skip
    assert [span.kind for span in story] == kinds
    above = checkout.get_span_context()
    for span in story:
        assert context_of(span).trace_id == above.trace_id, span.name
        assert parent_of(span) == above.span_id, span.name
        above = context_of(span)


def two(spans: InMemorySpanExporter, name: str) -> tuple[ReadableSpan, ReadableSpan]:
    """Find the attempt of the relay and the one of the handler behind it."""
    first, second = named(spans, name)
    is_relay = [str(said(each)["messaging.consumer.group.name"]).startswith("relay:") for each in (first, second)]
    assert sorted(is_relay) == [False, True]
    return (first, second) if is_relay[0] else (second, first)


@pytest.mark.parametrize("how", ["types", "parse"])
async def test_a_plain_message_may_say_its_trace_in_a_header(
    app: Redrive, stream: Stream, how: str, spans: InMemorySpanExporter
) -> None:
    came: list[dict[str, str]] = []
    inlet = Nats(stream.url).stream(stream.name, durable="b")
    if how == "types":
        app.intake(inlet, types={f"{stream.subject}.in": "order.came"})
    else:
        app.intake(inlet, parse=lambda message: ("order.came", {"size": len(message.body or b"")}))

    @app.handler("order.came")
    async def take(order: dict[str, int], ctx: Context) -> None:
        came.append(dict((await found(app, ctx.id)).headers))

    await stream.put(b'{"id": 7}', {"traceparent": THEIRS, "tracestate": STATE})
    async with working(app):
        await until(lambda: bool(came))

    assert (came[0]["traceparent"], came[0]["tracestate"]) == (THEIRS, STATE)
    (span,) = named(spans, "process order.came")
    assert f"{context_of(span).trace_id:032x}" in THEIRS
    assert f"{parent_of(span):016x}" in THEIRS
