"""Dirt: requests over HTTP that nobody should send, and that somebody will.

Every choice is made by the dice it is given, so a seed sends the same again.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redrive.operate import console
from redrive.operate.cursor import after
from redrive.operate.web.guard import Guarded
from redrive.operate.web.site import ROUTERS
from tests.lab.hostile import SELECTIONS, TEXTS
from tests.lab.rich import Known

_BODIES = (
    b"", b" ", b"null", b"[]", b"{}", b"0", b'"x"', b"{", b'{"a":', b'{"a":1,}', b"{'a':1}", b"[1,2", b"NaN",
    b"-Infinity",
    b'{"reason": NaN}', b'{"reason":"\xff\xfe"}', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b'{"reason":"\\ud800"}',
    b'{"reason":"a\\u0000b"}', b'{"\\ud800":1}', b'{"reason":"x","reason":"y"}', b'{"reason":1e400}', b"\x00" * 50,
    b'{"reason":' + b"9" * 5_000 + b"}", b'{"count":1e3,"reason":"x","selection":""}', b"[" * 100_000,
    b'{"payload":' + b"[" * 900 + b"]" * 900 + b',"type":"a","reason":"x"}', b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"type":"a","payload":"\\udfff"}', b'{"type":"a","payload":{"\\ud800":1}}', b'{"type":"a","payload":-0.0}',
    b'{"type":"a","payload":9223372036854775808}', b'{"type":"a","payload":1e999}', b'[{"type":"a"},7]',
    b'{"type":"a","due_at":"0001-01-01T00:00:00+14:00"}', b'{"type":"a","due_at":"9999-12-31T23:59:59-14:00"}',
    b'{"type":"a","delay":1e300}', b'{"type":"a","delay":-1}', b'{"type":"a","deadline":"99999999999d"}',
    b'{"type":"a","generation":9223372036854775807}', b'{"type":"a","headers":{"":""}}',
    b'{"type":"a","headers":{"a\\u0000":"b"}}', b'{"specversion":"1.0","id":"","type":"a","source":"b"}',
    b'{"specversion":"1.0","id":"1","type":"a","source":"b","data_base64":"!"}', b"a=b&a=c&=&&%00=%ff", b"%",
    b"x" * 200_000,
)  # fmt: skip
_TYPES = (
    "application/json", "application/json; charset=utf-16", "application/cloudevents+json", "text/plain", "", "/",
    "application/cloudevents-batch+json", "application/x-www-form-urlencoded", "multipart/form-data", "a" * 5_000,
    "multipart/form-data; boundary=x", "application/json\x01", "application/problem+json", "text/html; charset=\xff",
)  # fmt: skip
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "BREW", "get")
_HEADERS = (
    ("Host", "["), ("Host", ""), ("Host", "[::1"), ("Host", "a b"), ("Host", "x" * 3_000), ("Host", "é\xff"),
    ("Host", "redrive.test:99999"), ("Origin", "http://["), ("Origin", "null"), ("Cookie",
    "redrive_session=\xff; ;=;a"),
    ("Cookie", "redrive_theme=" + "x" * 4_000), ("Cookie", "=" * 1_000), ("Accept", "text/html"), ("Accept", "\xff"),
    ("Accept-Encoding", "gzip;q=\xff"), ("If-Match", "*"), ("If-Match", '"\xff"'), ("Idempotency-Key", "k" * 300),
    ("Idempotency-Key", ""), ("Idempotency-Key", "\xff"), ("Idempotency-Key", "same"), ("X-Live", "1"),
    ("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "\xff"), ("X-Forwarded-User", "agent:x"),
    ("Content-Type", "\xff/\xff"), ("Expect", "100-continue"), ("Upgrade", "websocket"), ("Range", "bytes=0-"),
    ("Traceparent", "00-zz"), ("Ce-Specversion", "1.0"), ("Ce-Specversion", "9"), ("Ce-Id", "%ff"), ("Ce-Type", ""),
    ("Ce-Source", "\xff"), ("Ce-Time", "yesterday"), ("X-Odd", "x" * 60_000), ("Authorization", "Bearer \xff"),
    ("Authorization", "Bearer " + "x" * 10_000), ("Authorization", "Basic"), ("Sec-Fetch-Site", "same-origin"),
    ("Last-Event-ID", "\xff"), ("Mcp-Protocol-Version", "1"), ("Content-Length", "-1"), ("Content-Length", "9" * 30),
    ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "gzip"), ("Te", "trailers"), ("Connection", "upgrade"),
)  # fmt: skip
_NOT_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 200,
    b"\r\n" * 50,
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /api/v1/events HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf", b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", b"G" * 100_000, b"GET /?" + b"a" * 100_000,
)  # fmt: skip


_TOOLS = (
    "list_dlq_events", "get_dlq_event_detail", "replay_dlq_event", "list_failure_groups", "explain_failure_group",
    "plan_redrive", "start_redrive", "get_redrive", "pause_redrive", "abort_redrive", "no_such_tool", "",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """A request as its bytes are made; ``kind`` is what is wrong with it."""

    kind: str
    method: str = "GET"
    target: str = "/"
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    raw: bytes = b""  # instead of all of that: something that is no request

    def to_bytes(self, secret: str) -> bytes:
        if self.raw:
            return self.raw
        named = {name.lower() for name, _ in self.headers}
        own = [("Host", "redrive.test"), ("Authorization", f"Bearer {secret}"), ("Sec-Fetch-Site", "same-origin")]
        own += [("Content-Length", str(len(self.body)))] if "transfer-encoding" not in named else []
        lines = [*((name, value) for name, value in own if name.lower() not in named), *self.headers]
        head = "".join(f"{name}: {value}\r\n" for name, value in (*lines, ("Connection", "close")))
        return f"{self.method} {self.target} HTTP/1.1\r\n{head}\r\n".encode("latin-1", "replace") + self.body


def routes() -> list[Guarded]:
    """Every route that there is, but for the stream, which has no end."""
    found = [each for router in ROUTERS for each in router.routes if isinstance(each, Guarded)]
    return [each for each in found if not each.path.endswith("/changes")]


def form_fields() -> list[str]:
    """Every field that a form of the console has."""
    folder = Path(str(console.__file__)).parent / "templates"
    found = {name for each in folder.glob("*.html") for name in re.findall(r'name="(\w+)"', each.read_text("utf-8"))}
    return sorted(found)


@dataclass(slots=True)
class Dirt:
    """Makes requests out of what is known and what is hostile."""

    known: Known
    dice: random.Random
    routes: list[Guarded] = field(default_factory=routes)
    fields: list[str] = field(default_factory=form_fields)

    def requests(self, count: int) -> Iterator[Request]:
        """Make some of each kind, in turn."""
        kinds: list[Callable[[], Request]] = [
            self.page, self.body, self.form, self.header, self.method, self.twice, self.path, self.cursor,
            self.media_type, self.tool, self.page, self.form, self.not_http,
        ]  # fmt: skip
        for number in range(count):
            yield kinds[number % len(kinds)]()

    # Kinds of requests

    def page(self) -> Request:
        route = self._route("GET")
        return Request("odd query", "GET", f"{self._path(route)}?{self._query(route)}", self._as_browser())

    def form(self) -> Request:
        route = self._route("POST", is_page=True)
        chosen = self.dice.sample(self.fields, self.dice.randrange(1, len(self.fields)))
        body = "&".join(f"{name}={self._quoted(self.value(name))}" for name in chosen)
        kind = ("Content-Type", "application/x-www-form-urlencoded")
        return Request("odd form", "POST", self._path(route), [kind, *self._as_browser()], body.encode())

    def body(self) -> Request:
        route = self._unsafe()
        body = self.dice.choice(_BODIES) if self.dice.random() < 0.6 else json.dumps(self.document()).encode()
        headers = [("Content-Type", "application/json"), *self._sometimes("If-Match", '"0.0.failed.0"')]
        return Request("broken body", self._method(route), self._path(route), headers, body)

    def media_type(self) -> Request:
        route = self._unsafe()
        headers = [("Content-Type", self.dice.choice(_TYPES)), *self._sometimes("Ce-Specversion", "1.0")]
        return Request("media type", self._method(route), self._path(route), headers, self.dice.choice(_BODIES))

    def header(self) -> Request:
        route = self.dice.choice(self.routes)
        odd = self.dice.sample(_HEADERS, self.dice.randrange(1, 4))
        method = self._method(route)
        body = b"" if method == "GET" else self.dice.choice(_BODIES)
        return Request("odd header", method, self._path(route), odd, body)

    def method(self) -> Request:
        route = self.dice.choice(self.routes)
        return Request("wrong method", self.dice.choice(_METHODS), self._path(route), self._as_browser())

    def twice(self) -> Request:
        route = self._route("GET")
        query = self._query(route)
        return Request("parameter twice", "GET", f"{self._path(route)}?{query}&{query}&{self._query(route)}")

    def path(self) -> Request:
        route = self.dice.choice(self.routes)
        place = self._path(route, hostile=1.0) + self.dice.choice(
            ("", "", "/", "//", "/..", "/%00", "%ff", ";a=b", "%2f")
        )
        return Request("odd path", self._method(route), place, self._as_browser())

    def cursor(self) -> Request:
        path, query = self.dice.choice(lists(self.known))
        place = self.value("cursor") if self.dice.random() < 0.7 else self.dice.choice(TEXTS)
        forged = after(query, place) or ""
        cut = forged if self.dice.random() < 0.8 else forged[: self.dice.randrange(len(forged) + 1)]
        return Request("forged cursor", "GET", f"{path}?cursor={self._quoted(cut)}", self._as_browser())

    def tool(self) -> Request:
        names = ("cursor", "selection", "event_id", "group", "redrive_id", "token", "reason", "limit", "cycle", "ramp")
        arguments = {name: self.value(name) for name in self.dice.sample(names, self.dice.randrange(1, 5))}
        method = self.dice.choice(("tools/call", "tools/call", "tools/call", "tools/list", "initialize", "ping"))
        given: Any = self.dice.choice((arguments, arguments, [], None))
        params = {"name": self.dice.choice(_TOOLS), "arguments": given}
        call = {"jsonrpc": "2.0", "id": self.dice.choice((1, "a", None, -1)), "method": method, "params": params}
        headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]
        return Request("tool call", "POST", "/mcp", headers, json.dumps(call).encode())

    def not_http(self) -> Request:
        return Request("not HTTP", raw=self.dice.choice(_NOT_HTTP))

    # Values

    def value(self, name: str) -> str:
        """Make a value for something of this name: what fits, what fits elsewhere, or what fits nowhere."""
        if name in ("q", "selection") and self.dice.random() < 0.7:
            return self.dice.choice(SELECTIONS)
        known = self.dice.choice(self._known(name))
        return known if self.dice.random() < 0.5 else self.dice.choice(TEXTS)

    def document(self, depth: int = 0) -> Any:
        """Make JSON out of the names that bodies have."""
        names = ("reason", "selection", "count", "token", "name", "values", "payload", "set", "unset", "generation",
        "rate",
                 "pattern", "key", "target", "resource", "older_than", "type", "delay", "owner", "muted_seconds",
                 "ramp")  # fmt: skip
        kind = self.dice.randrange(8 if depth < 3 else 6)
        if kind == 6 or depth == 0:
            return {name: self.document(depth + 1) for name in self.dice.sample(names, self.dice.randrange(1, 8))}
        if kind == 7:
            return [self.document(depth + 1) for _ in range(self.dice.randrange(4))]
        numbers = (0, -1, 1.5, True, None, 2**63, 2**64, -(2**63), 1e300, 10**30)
        return self.dice.choice(numbers) if kind == 0 else self.value(self.dice.choice(names))

    def _known(self, name: str) -> list[str]:
        known = self.known
        everything = {
            "event_id": [*known.events.values()], "id": [*known.events.values()], "redrive_id": [*known.redrives],
            "fingerprint": [*known.groups], "batch_id": [known.batch, "import"], "run_id": [known.run],
            "finding_id": [known.finding], "finding": [known.finding], "correlation_id": [known.correlation],
            "token": [known.plan], "token_id": ["nobody"], "key": [known.key], "target": [known.target],
            "resource": [known.resource], "state": ['"0.0.failed.0"', "resolved", "new"], "reason": ["a reason"],
            "name": [known.schedule, known.reconciler, known.dependency, "order.bad", "*"], "by": ["ada"],
            "verb": ["discard", "restore", "cancel", "pause", "resume", "open", "close", "run", "release", "skip"],
            "payload": ['{"mended": true}', "[1,", "NaN", '"\\ud800"', "[" * 2_000], "count": ["1", "0"],
            "limit": ["1", "200"], "n": ["3"], "did": ["many-discard"], "next": ["/events"], "cursor": ["5",
            known.batch],
        }  # fmt: skip
        return everything.get(name, ["1", "true", "1h", "order.bad", known.schedule])

    # Parts of requests

    def _route(self, method: str, *, is_page: bool = False) -> Guarded:
        found = [each for each in self.routes if method in (each.methods or ())]
        return self.dice.choice([each for each in found if not (is_page and each.path.startswith("/api/"))])

    def _unsafe(self) -> Guarded:
        return self.dice.choice([each for each in self.routes if "GET" not in (each.methods or ())])

    def _method(self, route: Guarded) -> str:
        return self.dice.choice(sorted(route.methods or ("GET",)))

    def _path(self, route: Guarded, hostile: float = 0.15) -> str:
        def filled(found: re.Match[str]) -> str:
            value = self.dice.choice(TEXTS if self.dice.random() < hostile else self._known(found[1]))
            return self._quoted(value)

        return re.sub(r"{(\w+)(?::path)?}", filled, route.path)

    def _query(self, route: Guarded) -> str:
        own = [each.alias for each in route.dependant.query_params]
        names = [*own, *self.dice.sample(("did", "n", "id", "sort", "order", "a[b]", ""), 2)]
        return "&".join(f"{name}={self._quoted(self.value(name))}" for name in names if self.dice.random() < 0.7)

    def _as_browser(self) -> list[tuple[str, str]]:
        return self.dice.choice(([("Accept", "text/html")], [("Accept", "text/html"), ("Accept-Encoding", "gzip")], []))

    def _sometimes(self, name: str, value: str) -> list[tuple[str, str]]:
        return [(name, value)] if self.dice.random() < 0.3 else []

    def _quoted(self, value: str) -> str:
        """Write a value into an address; sometimes as bytes that are no text."""
        written = quote(value[:6_000], safe="", errors="surrogatepass")
        return written + self.dice.choice(("", "", "", "", "", "%ff", "%00", "%ed%a0%80", "%", "%zz", "\xff"))


def lists(known: Known) -> list[tuple[str, str]]:
    """Every list that has cursors, with what a cursor of it is made for: whoever reads the source can make one."""
    redrive, base = known.redrives[0], "/api/v1"
    found = [
        ("events", "events None "), ("audit", "audit operator"), ("redrives", "redrives"), ("keys", "keys None"),
        ("reservations", "reservations False"), (f"batches/{known.batch}", f"batch groups {known.batch}"),
    ]  # fmt: skip
    pages = [*found, ("batches", "batches  False"), ("failures", "groups None False"),
             (f"redrives/{redrive}/members", f"items {redrive}")]  # fmt: skip
    api = [*found[:-1], ("dead-letters", "events failed "), ("batches", "batches None False"),
           ("groups", "groups None False"), (f"redrives/{redrive}/items", f"items {redrive}"),
           (f"batches/{known.batch}/groups", f"batch groups {known.batch}")]  # fmt: skip
    return [*((f"/{path}", query) for path, query in pages), *((f"{base}/{path}", query) for path, query in api)]
