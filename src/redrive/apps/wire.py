"""Wire: calls to one HTTP/1.1 server over connections that are kept and used again.

As little as an API with small answers needs: a call takes a quarter of the time that aiohttp takes for it, and calls
were half of what the evidence app did. The parser is llhttp; what an answer says beyond its first few hundred bytes is
dropped. Nothing is sent twice: whoever calls knows whether that is safe. Redirects are not followed, so that no body
and no token ends up at an address that nobody configured.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import httptools

KEPT: Final = 500
"""So many bytes of an answer are kept."""

_MOST: Final = 65_536  # of an answer that we read to its end, to use its connection again
_IDLE_SECONDS: Final = 15.0  # servers close what is idle for longer, perhaps in the moment in which it is used
_FINAL: Final = 200  # below are notes on the way to the answer

Body = bytes | Callable[[], AsyncIterator[bytes]]
"""All of it, or a function that gives it piece by piece."""


class Unreachable(ConnectionError):
    """Nobody has taken the connection; nothing was sent."""


class Broken(ConnectionError):
    """The connection ended, or made no sense, before there was an answer: what was sent may have had its effect."""


class Wire:
    """``await wire(method, path, headers, body)`` answers the status and the beginning of what was said."""

    def __init__(self, url: str, headers: Mapping[str, str], *, connections: int, seconds: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._path = quote(parts.path + ("?" + parts.query if parts.query else ""), safe="/%:@!$&'()*+,;=~?")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        host = parts.netloc.rpartition("@")[2]
        always = {"Host": host if host.isascii() else host.encode("idna").decode(), "User-Agent": "redrive"}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            always["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
        self._always = _lines({**always, **headers})
        self._seconds = seconds
        self._connections = connections
        self._free = asyncio.Semaphore(connections)
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []

    async def __call__(self, method: str, path: str, headers: Mapping[str, str], body: Body = b"") -> tuple[int, bytes]:
        """Call once. ``TimeoutError``: there is no answer within the limit; ``Unreachable``, ``Broken``: see there.

        The limit begins when it is this call's turn: to wait for a connection is no silence of the other side.
        """
        if isinstance(body, bytes):
            length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
        else:
            length = "Transfer-Encoding: chunked\r\n"
        head = f"{method} {self._path + path or '/'} HTTP/1.1\r\n{self._always}{_lines(headers)}{length}\r\n".encode()
        async with self._free, asyncio.timeout(self._seconds):
            connection = self._taken() or await self._connected()
            try:
                answer = await connection.call(head, body)
            except BaseException:
                connection.drop()
                raise
            if connection.is_open:
                self._idle.append(connection)
            return answer

    def _taken(self) -> "_Connection | None":
        """Take the connection that was used last; when that is long ago, none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_seconds < _IDLE_SECONDS:
                return connection
            connection.drop()
        return None

    async def _connected(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._open), self._host, self._port, ssl=self._ssl
            )
        except OSError as error:
            raise Unreachable(str(error)) from error
        return connection

    async def close(self) -> None:
        """Close every connection; a call that still waits for its answer is ``Broken``."""
        self._idle.clear()
        open_ = [*self._open]
        for connection in open_:
            connection.drop()
        for connection in open_:
            await connection.lost
        self._free = asyncio.Semaphore(self._connections)  # the next call may come from another event loop


def _lines(headers: Mapping[str, str]) -> str:
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if text.count("\r") != len(headers) or text.count("\n") != len(headers):
        raise ValueError(f"a header has a line break in it: {', '.join(headers)}")
    return text


class _Connection(asyncio.Protocol):
    """One connection; one call at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, all_: "set[_Connection]") -> None:
        self.is_open = False
        self.lost: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._all = all_
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._room: asyncio.Future[None] | None = None
        self._since = 0.0
        self._begin()

    @property
    def idle_seconds(self) -> float:
        return self._loop.time() - self._since

    async def call(self, head: bytes, body: Body) -> tuple[int, bytes]:
        """Send a request and wait for the answer."""
        assert self._transport is not None
        answer: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        self._answer = answer
        if isinstance(body, bytes):
            self._transport.write(head + body)
            return await answer
        self._transport.write(head)
        async for piece in body():
            if piece:
                self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if self._room is not None:
                await asyncio.wait((self._room, answer), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():  # it does not want the rest, and would take it for another request
                self.drop()
                return answer.result()
        self._transport.write(b"0\r\n\r\n")
        return await answer

    def drop(self) -> None:
        """Use it no more."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():  # nobody has asked
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Broken(f"the answer is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        self.lost.set_result(None)
        if self._has_head and not self._has_length and exc is None:
            self._end(keep=False)  # its end is the end of the answer
        self._fail(Broken("it was closed" if exc is None else type(exc).__name__))
        self.resume_writing()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # What the parser calls

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= _FINAL

    def on_body(self, body: bytes) -> None:
        if len(self._said) < KEPT:
            self._said += body[:KEPT]
        self._size += len(body)
        if self._size > _MOST:
            self._end(keep=False)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._end(keep=self._parser.should_keep_alive())
        else:
            self._begin()

    def _begin(self) -> None:
        self._said = b""
        self._size = 0
        self._has_head = self._has_length = False

    def _end(self, *, keep: bool) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), self._said[:KEPT]))
        self._begin()
        self._since = self._loop.time()
        if not keep:
            self.drop()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.drop()
