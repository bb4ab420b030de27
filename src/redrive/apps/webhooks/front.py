"""Front: one request, one message. Plain ASGI, since this is where the load is.

What costs an attacker nothing is checked before anything that costs us: the source, the size that was said, then the
body within its limits, then the signature. The answer comes when the message is durable: 202, or 200 if it was there.
"""

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from redrive import Redrive, StoreUnavailable
from redrive.apps.webhooks.keep import NOT_JSON, Keeper, arrived_as, read_json
from redrive.apps.webhooks.refusal import (
    Refusal,
    Refusals,
    bad_headers,
    log,
    not_local,
    too_large,
    too_slow,
    unknown_source,
    wrong_method,
)
from redrive.apps.webhooks.settings import Settings, Source
from redrive.apps.webhooks.signature import Headers, Verifier, verifier
from redrive.apps.webhooks.tables import statements

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PROBLEM: Final = b"application/problem+json"
_LONGEST_ID: Final = 255
_LONGEST_HEADER: Final = 1_000
_FORWARDED: Final = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via", b"origin")
_LOCAL_NAMES: Final = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_IDS: Final[Mapping[str, tuple[str, ...]]] = {
    "standard": ("header:webhook-id",),
    "github": ("header:x-github-delivery",),
    "stripe": ("body:id",),
    "none": ("header:webhook-id", "header:idempotency-key"),
}


class _Left(Exception):
    """The sender is gone."""


class _Answer(NamedTuple):
    """What is told to the sender."""

    status: int
    told: dict[str, Any]
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class _Door:
    """A source, ready to be asked."""

    source: Source
    verify: Verifier
    ids: tuple[tuple[str, str], ...]
    must_have_id: bool

    @classmethod
    def of(cls, source: Source) -> "_Door":
        said = (source.id,) if source.id else _IDS[source.verify]
        ids = tuple((kind, name.lower() if kind == "header" else name) for kind, _, name in map(_cut, said))
        check = verifier(source.verify, source.secrets, source.tolerance_seconds)
        return cls(source, check, ids, must_have_id=source.id is not None or source.verify != "none")


def _cut(said: str) -> tuple[str, str, str]:
    return said.partition(":")


class Front:
    """An ASGI app: POST to ``/<source>``."""

    def __init__(self, app: Redrive, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._doors = {f"/{source.name}": _Door.of(source) for source in settings.sources}
        self._say = statements(app.dialect)
        self.keeper = Keeper(app)
        self.refusals = Refusals(app, self._say.refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            answer = await self._answer(scope, receive)
        except _Left:
            return
        except Exception as error:  # noqa: BLE001 - the sender is told, the log has the rest, the server goes on
            answer = _trouble(error)
        body = json.dumps(answer.told).encode()
        kind = b"application/json" if answer.status < 400 else _PROBLEM  # noqa: PLR2004 - where HTTP's errors begin
        headers = [*answer.headers, (b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> _Answer:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers: Headers = dict(scope["headers"])
        if path in {"", "/"} and scope["method"] == "GET" and _is_local(scope, headers):
            return _Answer(200, await self._standing())
        door = self._doors.get(path)
        try:
            if door is None:
                raise unknown_source()
            return await self._take(door, scope, headers, receive)
        except Refusal as refusal:
            peer = (scope.get("client") or ("",))[0]
            self.refusals.count("" if door is None else door.source.name, refusal, peer)
            return _refused(refusal)

    async def _take(self, door: _Door, scope: Scope, headers: Headers, receive: Receive) -> _Answer:
        source = door.source
        if scope["method"] != "POST":
            raise wrong_method()
        if source.verify == "none" and not source.is_open and not _is_local(scope, headers):
            raise not_local()
        body = await self._body(headers, receive)
        door.verify(headers, body, self._app.clock.now().timestamp())
        value = read_json(body)
        message_id = _id_of(door, headers, value)
        kept = await self.keeper.keep(arrived_as(source, message_id, body, value, _kept_headers(source, headers)))
        if kept.is_new:
            return _Answer(202, {"stored": True, "duplicate": False, "event": str(kept.event_id)})
        return _Answer(200, {"stored": True, "duplicate": True})

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Read the body within its limits."""
        most, seconds = self._settings.max_bytes, self._settings.body_seconds
        said = headers.get(b"content-length", b"")
        if said.isdigit() and int(said[:20]) > most:
            raise too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Left
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large(most)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise too_slow(seconds) from None

    async def _standing(self) -> dict[str, Any]:
        """Tell somebody on this machine which sources there are, and what was refused."""
        async with self._app.transaction() as tx:
            rows = await tx.fetch(self._say.refused)
        names = ("source", "reason", "count", "first_at", "last_at", "last_detail", "last_peer")
        refused = [dict(zip(names, map(_plain, row), strict=True)) for row in rows]
        sources = [
            {"source": each.name, "verify": each.verify, "deliver": list(each.deliver)}
            for each in self._settings.sources
        ]
        return {"sources": sources, "refused": refused}


def _refused(refusal: Refusal) -> _Answer:
    headers: tuple[tuple[bytes, bytes], ...] = ((b"connection", b"close"),) if refusal.closes else ()
    if refusal.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers += ((b"allow", b"POST"),)
    return _problem(refusal.status, refusal.reason, refusal.detail, *headers)


def _trouble(error: Exception) -> _Answer:
    """Tell what is no fault of the sender."""
    if isinstance(error, StoreUnavailable):
        log.error("webhook not stored", error=str(error))
        detail = "the database does not answer: send it again"
        return _problem(503, "store-unavailable", detail, (b"retry-after", b"2"))
    log.error("webhook not taken", error=repr(error)[:500], exc_info=error)
    return _problem(500, "unexpected", f"unexpected {type(error).__name__}: the log of the server says more")


def _problem(status: int, name: str, detail: str, *headers: tuple[bytes, bytes]) -> _Answer:
    told = {"type": f"urn:redrive:webhooks:{name}", "status": status, "title": name, "detail": detail}
    return _Answer(status, told, headers)


def _id_of(door: _Door, headers: Headers, value: Any) -> str | None:
    """Find the id of a message, by which it is known when it comes again."""
    for kind, name in door.ids:
        found = headers.get(name.encode()) if kind == "header" else _field(value, name)
        if found:
            text = found.decode("latin-1") if isinstance(found, bytes) else str(found)
            if len(text) > _LONGEST_ID or not text.isprintable():
                raise bad_headers(f"the id of a message is at most {_LONGEST_ID} printable characters")
            return text
    if door.must_have_id:
        where = " or ".join(f"{kind} {name}" for kind, name in door.ids)
        raise bad_headers(f"the message has no id: it is looked for in {where}")
    return None


def _field(value: Any, path: str) -> str | int | None:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) and value is not NOT_JSON else None
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _kept_headers(source: Source, headers: Headers) -> dict[str, str]:
    found = ((name, headers.get(name.encode())) for name in source.headers)
    return {name: text for name, value in found if value and (text := _text(value))}


def _text(value: bytes) -> str:
    text = value.decode("latin-1")[:_LONGEST_HEADER]
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Say whether this comes from a program on this machine: not through a proxy, a page or a rebound name."""
    peer = scope.get("client")
    try:
        near = peer is not None and ipaddress.ip_address(peer[0]).is_loopback
    except ValueError:
        return False
    host = headers.get(b"host", b"").lower()
    name = host if host.endswith(b"]") else host.rpartition(b":")[0] or host
    return near and name in _LOCAL_NAMES and not any(each in headers for each in _FORWARDED)


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
