"""Tracing: one trace from the publish through every attempt, with OpenTelemetry.

A publish inside a span makes a ``PRODUCER`` span and puts its context into the headers of the event, as ``traceparent``
and ``tracestate``. Every attempt is a ``CONSUMER`` span that continues from there; what its handler publishes continues
in turn. A relay sends the context of its attempt along, and the service that takes the message in continues under it. A
replay may come days later: its attempts begin a trace of their own, linked to the former one.

Nothing is imported here. An application that traces has set OpenTelemetry up; in any other, a publish pays one look
into a dictionary and an attempt nothing.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from redrive.classify import describe
from redrive.errors import AlreadyHandled, AttemptStopped, KeyInUse, LeaseLost, PayloadInvalid
from redrive.event import NewEvent, Options
from redrive.mask import DEFAULT, Mask
from redrive.payload import decode_headers
from redrive.store.base import ATTEMPTS, CORRELATION_ID, CYCLE, HEADERS, ID, PAYLOAD, QUEUE, TARGET, TYPE, Row

_API: Final = "opentelemetry.trace"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_NO_HEADERS: Final = "{}"
_SCOPE: Final = "redrive"


def _api() -> Any:
    """Find OpenTelemetry, if the application has imported it."""
    return sys.modules.get(_API)


# --- going in ---


def is_on() -> bool:
    """Say whether anybody may be tracing."""
    return _API in sys.modules


@contextmanager
def publishing(type_: str, options: Options) -> Iterator[Callable[[list[NewEvent]], list[NewEvent]]]:
    """Make a span for a publish and put its context into the headers; gives what notes the id on the span.

    Nothing is done where no span is current, or where the publisher has said whose trace it continues.
    """
    api, headers = _api(), options.get("headers") or {}
    is_readable = isinstance(headers, Mapping)  # otherwise refused where headers are checked
    if not is_readable or TRACEPARENT in headers or not api.get_current_span().get_span_context().is_valid:
        yield _as_they_are
        return
    attributes = {
        "messaging.system": "redrive",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "create",
        "messaging.destination.name": type_,
    }
    tracer = api.get_tracer(_SCOPE)
    with tracer.start_as_current_span(f"publish {type_}", kind=api.SpanKind.PRODUCER, attributes=attributes) as span:

        def noted(rows: list[NewEvent]) -> list[NewEvent]:
            span.set_attribute("messaging.message.id", str(rows[0].id))
            return rows

        options["headers"] = carried(headers)
        yield noted


def _as_they_are(rows: list[NewEvent]) -> list[NewEvent]:
    return rows


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Put the context of the current span into headers, for something that leaves here.

    It takes the place of the one they had: that span is above the current one, or linked to it.
    """
    context: dict[str, str] = {}
    if is_on():
        _propagator().inject(context)
    if not context:
        return dict(headers)
    return {name: value for name, value in headers.items() if name not in (TRACEPARENT, TRACESTATE)} | context


# --- being handled ---


def traced(
    call: Callable[..., Awaitable[None]], row_of: Callable[..., Row], mask: Mask = DEFAULT
) -> Callable[..., Awaitable[None]]:
    """Wrap what runs a handler, if anybody traces; asked once, when a worker starts."""
    if not is_on():
        return call

    async def with_span(*arguments: Any) -> None:
        row = row_of(*arguments)
        if _nobody_looks(row):
            await call(*arguments)
            return
        with _attempt(row, mask):
            await call(*arguments)

    return with_span


def _nobody_looks(row: Row) -> bool:
    """Say whether a span would go nowhere: others import OpenTelemetry too, and a span costs more than a settle."""
    api = _api()
    return TRACEPARENT not in row[HEADERS] and isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


@contextmanager
def _attempt(row: Row, mask: Mask) -> Iterator[None]:
    api = _api()
    parent, links = _origin(api, row)
    span = api.get_tracer(_SCOPE).start_span(
        f"process {row[TYPE]}", context=parent, kind=api.SpanKind.CONSUMER, attributes=_said(row), links=links
    )
    with api.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            _note(api, span, error, lambda text: mask.about(text, row[PAYLOAD], row[HEADERS]))
            raise
        span.set_attribute("redrive.outcome", "delivered")


def _note(api: Any, span: Any, error: BaseException, hidden: Callable[[str], str]) -> None:
    """Tell a failure from what only looks like one; what is secret in the event is hidden."""
    if isinstance(error, AlreadyHandled):
        span.set_attribute("redrive.outcome", "delivered")
        return
    if isinstance(error, KeyInUse):
        span.set_attribute("redrive.outcome", "waits")
        return
    stopped = isinstance(error, AttemptStopped | asyncio.CancelledError)
    outcome = "stopped" if stopped else "lost" if isinstance(error, LeaseLost) else "failed"
    span.set_attribute("redrive.outcome", outcome)
    span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
    # Not `span.record_exception`: an exception may have no words, or a million, and a traceback without an end.
    text = hidden(describe(error))
    name, _, message = text.partition("\n")[0].partition(": ")
    noted = {"exception.type": name, "exception.message": message, "exception.stacktrace": text}
    span.add_event("exception", noted)
    span.set_status(api.Status(api.StatusCode.ERROR, message[:200]))


def _origin(api: Any, row: Row) -> tuple[Any, list[Any]]:
    """Say where an attempt continues: under its publish, or, for a replay, in a trace of its own linked to that."""
    empty = sys.modules["opentelemetry.context"].Context()
    headers = row[HEADERS]
    if headers == _NO_HEADERS or TRACEPARENT not in headers:
        return empty, []
    context = _propagator().extract(_text(headers), context=empty)
    if not row[CYCLE]:
        return context, []
    former = api.get_current_span(context).get_span_context()
    return empty, [api.Link(former)] if former.is_valid else []


def _text(headers: str) -> Mapping[str, str]:
    try:
        return decode_headers(headers)
    except PayloadInvalid:  # deliver says so
        return {}


def _said(row: Row) -> dict[str, Any]:
    return {
        "messaging.system": "redrive",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": row[TYPE],
        "messaging.consumer.group.name": row[TARGET],
        "messaging.message.id": str(row[ID]),
        "messaging.message.conversation_id": str(row[CORRELATION_ID] or row[ID]),
        "redrive.queue": row[QUEUE],
        "redrive.attempt": row[ATTEMPTS],
        "redrive.cycle": row[CYCLE],
    }


@contextmanager
def continuing(row: Row) -> Iterator[None]:
    """Go on under the publish of an event without a span of ours: in a child process, whose parent has made one."""
    if not is_on():
        yield
        return
    context, _ = _origin(_api(), row)
    module = sys.modules["opentelemetry.context"]
    token = module.attach(context)
    try:
        yield
    finally:
        module.detach(token)


def _propagator() -> Any:
    """Return the W3C propagator: headers of events say ``traceparent`` whatever the application does elsewhere."""
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - there, or nobody would be tracing
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator()
