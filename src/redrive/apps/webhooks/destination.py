"""Destination: where the messages of a source go, by one word of configuration each.

``module:function`` is called like any handler; ``https://…`` gets the message by POST; ``nats://host:4222/subject`` and
``kafka://host:9092/topic`` get it as a CloudEvent; ``log`` writes a line. Each destination of a source has retries and
dead letters of its own. The first has the type of the source as its target, so that another may take its place.
"""

import importlib
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from redrive import (
    ConfigurationError,
    Context,
    DependencyUnavailable,
    HandlerError,
    Redrive,
    Rejected,
    RetryPolicy,
)
from redrive.apps.webhooks.keep import body_of
from redrive.apps.webhooks.refusal import log
from redrive.apps.webhooks.settings import Source
from redrive.apps.webhooks.signature import sign

_FUNCTION: Final = re.compile(r"[\w.]+:[\w.]+")
_LONGEST_ANSWER: Final = 300
_FORWARD_SECONDS: Final = 30.0
_CONNECTIONS: Final = 100  # to one URL
_AWAY: Final = frozenset({429, 502, 503, 504})
_LATER: Final = frozenset({408, 409, 425})


class Destinations:
    """Registers what the sources name."""

    def __init__(self, app: Redrive, retry: RetryPolicy, *, retry_every: bool) -> None:
        """Retry every failure up to the limit of attempts, or only those that are not permanent."""
        self._app = app
        self._retry = retry
        self._rules = tuple(replace(each, terminal=False) for each in app.rules if each.terminal) if retry_every else ()
        self._brokers: dict[str, Any] = {}
        self._forwarder: Forwarder | None = None

    def connect(self, source: Source) -> None:
        """Register every destination of a source."""
        for place, said in enumerate(source.deliver):
            if urlsplit(said).scheme in {"nats", "kafka"}:
                self._relay(source, said)
            else:
                self._handle(source, said, None if place == 0 else f"{source.type}:{_label(said)}")

    def _handle(self, source: Source, said: str, name: str | None) -> None:
        # The limit of attempts holds whatever happens: no brake that lets a bug of yours pass for an outage.
        options: dict[str, Any] = {
            "retry": self._retry, "rules": self._rules, "timeout": source.timeout_seconds, "brake": False,
        }  # fmt: skip
        if urlsplit(said).scheme in {"http", "https"}:
            self._forwarder = self._forwarder or Forwarder(self._app)
            function = self._forwarder.to(source, said)
            options |= {"needs": [_host(said)], "effects": "outside"}
        elif said == "log":
            function = _log
        elif _FUNCTION.fullmatch(said):
            function = _function(source, said)
        else:
            message = f"sources.{source.name}: deliver = {said!r} is neither module:function, a URL, nor log"
            raise ConfigurationError(message)
        self._app.handler(source.type, name=name, **options)(function)

    def _relay(self, source: Source, said: str) -> None:
        parts = urlsplit(said)
        place = parts.path.strip("/")
        if not parts.netloc or not place:
            message = f"sources.{source.name}: write {parts.scheme}://host:port/name, not {said!r}"
            raise ConfigurationError(message)
        address = f"{parts.scheme}://{parts.netloc}"
        broker = self._brokers[address] = self._brokers.get(address) or _broker(parts.scheme, parts.netloc)
        to = broker.subject(place) if parts.scheme == "nats" else broker.topic(place)
        name = f"{source.type}:{parts.scheme}:{place}"
        self._app.relay(source.type, to=to, name=name, retry=self._retry, rules=self._rules)


def _broker(scheme: str, netloc: str) -> Any:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{scheme}-{netloc.rpartition('@')[2]}")
    if scheme == "nats":
        from redrive.transport.nats import Nats  # noqa: PLC0415 - a driver is imported when it is asked for

        return Nats(f"nats://{netloc}", name=name)
    from redrive.transport.kafka import Kafka  # noqa: PLC0415 - as above

    return Kafka(netloc, name=name)


def _label(said: str) -> str:
    """Name a destination without what may be secret in a URL."""
    parts = urlsplit(said)
    return f"{parts.hostname or ''}{parts.path}" if parts.scheme in {"http", "https"} and "//" in said else said


def _host(said: str) -> str:
    parts = urlsplit(said)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        raise ConfigurationError(f"{said!r} is not a URL to forward to: it names no host")
    return host if port is None else f"{host}-{port}"


async def _log(payload: Any, ctx: Context) -> None:
    log.info("webhook", source=ctx.source, id=ctx.subject, payload=payload)


def _function(source: Source, said: str) -> Callable[..., Any]:
    module, _, attribute = said.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        message = f"sources.{source.name}: deliver = {said!r} cannot be imported: {error}"
        raise ConfigurationError(message) from error
    if not callable(found):
        raise ConfigurationError(f"sources.{source.name}: deliver = {said!r} is not a function")
    return found  # type: ignore[no-any-return]


# --- to a URL ---


class Forwarder:
    """Sends messages to URLs; the connections are kept and used again."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._wires: list[Any] = []
        app.when_closed(self.close)

    def to(self, source: Source, url: str) -> Callable[[Any, Context], Awaitable[None]]:
        """Make the handler that sends the messages of a source on, signed anew if it has a secret for that."""
        host = _host(url)
        wire = _wire(url, source.timeout_seconds or _FORWARD_SECONDS)
        self._wires.append(wire)

        async def send(payload: Any, ctx: Context) -> None:
            body, message_id = body_of(payload, ctx.headers), ctx.subject or ctx.idempotency_key
            at = int(self._app.clock.now().timestamp())
            headers = {
                "content-type": ctx.headers.get("content-type", "application/json"),
                "webhook-id": message_id,
                "webhook-timestamp": str(at),
            }
            if source.sign is not None:
                headers["webhook-signature"] = sign(source.sign, message_id, at, body)
            try:
                status, said = await wire("POST", "", headers, body)
            except (ConnectionError, TimeoutError) as error:
                raise DependencyUnavailable(host, f"{type(error).__name__}: {error}") from error
            _judge(host, status, said[:_LONGEST_ANSWER].decode("utf-8", "replace"))

        return send

    async def close(self) -> None:
        for wire in self._wires:
            await wire.close()


def _judge(host: str, status: int, text: str) -> None:
    """Say what an answer means: done, away, no for good, or another time."""
    if 200 <= status < 300:  # noqa: PLR2004 - what HTTP calls success
        return
    told = f"{host} answered {status}: {text}"
    if status in _AWAY:
        raise DependencyUnavailable(host, told)
    if 300 <= status < 500 and status not in _LATER:  # noqa: PLR2004 - elsewhere, or the fault of what we sent
        raise Rejected(told)
    raise HandlerError(told)


def _wire(url: str, seconds: float) -> Any:
    try:
        from redrive.apps.wire import Wire  # noqa: PLC0415 - only who forwards needs it
    except ModuleNotFoundError as error:
        raise ConfigurationError("forwarding to a URL needs httptools: pip install 'redrive[apps]'") from error
    return Wire(url, {}, connections=_CONNECTIONS, seconds=seconds)
