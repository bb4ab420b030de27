"""One trace leads from the publish through every attempt to what handlers publish in turn."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from redrive import AlreadyHandled, Context, EventFilter, Redrive, RetryPolicy, TerminalHandlerError, tracing
from tests.signals.spans import context_of, named, parent_of, said, spans
from tests.worker.conftest import found

__all__ = ("spans",)  # a fixture

ONCE_MORE = RetryPolicy(max_attempts=2, base_delay=0, jitter="none")


async def test_a_trace_leads_from_the_publish_to_what_the_handler_publishes(
    app: Redrive, spans: InMemorySpanExporter
) -> None:
    @app.handler("order.paid")
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.publish("order.shipped", order)

    @app.handler("order.shipped")
    def tell(order: dict[str, Any], ctx: Context) -> None:
        ctx.publish_sync("customer.told", order)

    @app.handler("customer.told")
    async def end(order: dict[str, Any]) -> None: ...

    with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
        published = await app.publish("order.paid", {"id": 7})
    await app.worker().drain()

    story = ["publish order.paid", "process order.paid", "publish order.shipped", "process order.shipped",
             "publish customer.told", "process customer.told"]  # fmt: skip
    above = checkout.get_span_context()
    for name in story:
        (span,) = named(spans, name)
        assert context_of(span).trace_id == above.trace_id, name
        assert parent_of(span) == above.span_id, name
        assert span.kind is (SpanKind.PRODUCER if name.startswith("publish") else SpanKind.CONSUMER)
        above = context_of(span)
    (attempt,) = named(spans, "process order.paid")
    assert said(attempt) == {
        "messaging.system": "redrive",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "order.paid",
        "messaging.consumer.group.name": "order.paid",
        "messaging.message.id": str(published.id),
        "messaging.message.conversation_id": str(published.id),
        "redrive.queue": "default",
        "redrive.attempt": 1,
        "redrive.cycle": 0,
        "redrive.outcome": "delivered",
    }
    (producer,) = named(spans, "publish order.paid")
    assert said(producer)["messaging.message.id"] == str(published.id)


async def test_every_attempt_is_a_span_of_its_own_and_a_failure_is_an_error(
    app: Redrive, spans: InMemorySpanExporter
) -> None:
    @app.handler("order.paid", retry=ONCE_MORE)
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionResetError("the carrier hung up")

    with trace.get_tracer("shop").start_as_current_span("checkout"):
        await app.publish("order.paid", {})
    await app.worker().drain()

    first, second = named(spans, "process order.paid")
    (producer,) = named(spans, "publish order.paid")
    assert parent_of(first) == parent_of(second) == context_of(producer).span_id
    assert [said(span)["redrive.attempt"] for span in (first, second)] == [1, 2]
    assert first.status.status_code is StatusCode.ERROR
    assert said(first)["error.type"] == "builtins.ConnectionResetError"
    assert [event.name for event in first.events] == ["exception"]
    assert second.status.status_code is StatusCode.UNSET


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Mute(), KeyError("always the same object"), ValueError("x" * 1_000_000)])
async def test_an_exception_is_noted_in_few_words_whatever_it_is(
    app: Redrive, spans: InMemorySpanExporter, error: Exception
) -> None:
    @app.handler("order.paid")
    async def ship(order: dict[str, Any]) -> None:
        raise error  # each time its traceback grows

    await app.publish_many([("order.paid", {})] * 100)
    await app.worker().drain()

    spanned = spans.get_finished_spans()
    assert {said(span)["error.type"] for span in spanned} == {f"{type(error).__module__}.{type(error).__qualname__}"}
    (noted,) = spanned[-1].events
    assert noted.attributes is not None
    assert str(noted.attributes["exception.type"]).endswith(type(error).__name__)
    assert type(error).__name__ not in str(noted.attributes["exception.message"])
    assert 100 < len(str(noted.attributes["exception.stacktrace"])) < 10_000


async def test_a_replay_begins_a_trace_that_is_linked_to_the_former_one(
    app: Redrive, spans: InMemorySpanExporter
) -> None:
    @app.handler("order.paid")
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        if ctx.cycle == 0:
            raise TerminalHandlerError("not yet")

    with trace.get_tracer("shop").start_as_current_span("checkout"):
        published = await app.publish("order.paid", {})
    await app.worker().drain()
    await app.replay(published.id, by="ada", reason="mended")
    await app.worker().drain()

    former, replayed = named(spans, "process order.paid")
    (producer,) = named(spans, "publish order.paid")
    assert replayed.parent is None
    assert context_of(replayed).trace_id != context_of(former).trace_id
    assert [link.context.span_id for link in replayed.links] == [context_of(producer).span_id]
    assert said(replayed)["redrive.cycle"] == 1


async def test_an_event_that_nobody_traced_begins_a_trace_and_keeps_its_headers(
    app: Redrive, spans: InMemorySpanExporter
) -> None:
    @app.handler("order.paid")
    async def ship(order: dict[str, Any]) -> None: ...

    published = await app.publish("order.paid", {}, headers={"tenant": "north"})
    await app.worker().drain()

    (span,) = spans.get_finished_spans()
    assert span.parent is None
    assert (await found(app, published.id)).headers == {"tenant": "north"}


async def test_a_publisher_may_say_whose_trace_it_continues(app: Redrive, spans: InMemorySpanExporter) -> None:
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @app.handler("order.paid")
    async def ship(order: dict[str, Any]) -> None: ...

    with trace.get_tracer("shop").start_as_current_span("intake"):
        await app.publish("order.paid", {}, headers={"traceparent": theirs})
    await app.worker().drain()

    (span,) = named(spans, "process order.paid")
    assert f"{context_of(span).trace_id:032x}" in theirs
    assert not named(spans, "publish order.paid")


async def test_an_effect_that_was_there_before_is_no_error(app: Redrive, spans: InMemorySpanExporter) -> None:
    @app.handler("order.paid")
    async def ship(order: dict[str, Any]) -> None:
        raise AlreadyHandled("order.paid", "7")

    await app.publish("order.paid", {})
    await app.worker().drain()

    (span,) = named(spans, "process order.paid")
    assert span.status.status_code is StatusCode.UNSET
    assert said(span)["redrive.outcome"] == "delivered"


async def test_what_leaves_for_elsewhere_carries_the_span_that_is_current(spans: InMemorySpanExporter) -> None:
    former = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}

    with trace.get_tracer("shop").start_as_current_span("relay") as span:
        headers = tracing.carried({"tenant": "north", **former})

    assert f"{span.get_span_context().span_id:016x}" in headers.pop("traceparent")
    assert headers == {"tenant": "north"}  # the state belongs to the former context
    assert tracing.carried(former) == former  # outside any span


SHOP = """
from opentelemetry import trace
from redrive import Context, Redrive

app = Redrive({url!r}, migrate=True)


@app.handler("order.paid", isolation="process")
async def ship(order: dict, ctx: Context) -> None:
    await ctx.publish("order.shipped", order)
"""


async def test_a_trace_goes_on_in_a_child_process(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter
) -> None:
    name = f"traced_{os.getpid()}_{store_url.partition(':')[0]}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(url=store_url))
    monkeypatch.syspath_prepend(str(tmp_path))
    app: Redrive = importlib.import_module(name).app

    async with app:
        with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
            await app.publish("order.paid", {})
        await app.worker(children=1).drain()
        (shipped,) = await app.events(EventFilter(type="order.shipped"))
    sys.modules.pop(name)

    assert f"{checkout.get_span_context().trace_id:032x}" in shipped.headers["traceparent"]
    assert said(named(spans, "process order.paid")[0])["redrive.outcome"] == "delivered"


def test_nothing_of_opentelemetry_is_imported_by_redrive_itself() -> None:
    look = "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    code = f"import sys, redrive, redrive.operate.cli.root; {look}"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
