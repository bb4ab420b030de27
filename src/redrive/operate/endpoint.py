"""Endpoint: `/metrics` and `/healthz` beside a worker, without a web framework.

It answers one request a connection, in the worker's own event loop: whoever scrapes learns at the same time that the
loop turns. Requests are read with limits of size and time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from redrive.app import Redrive
from redrive.errors import ConfigurationError
from redrive.logs import log
from redrive.operate.metrics import CONTENT_TYPE, check_installed, metrics_text

_MOST_BYTES: Final = 16_384
_REQUEST_SECONDS: Final = 10.0
_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Server Error"}


def address_from(text: str) -> tuple[str, int]:
    """Read ``host:port``; a host of IPv6 stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - the last port there is
        raise ConfigurationError(f"{text!r} is no address: write host:port, like 127.0.0.1:9464")
    return host.strip("[]"), int(port)


@asynccontextmanager
async def metrics_endpoint(app: Redrive, host: str, port: int) -> AsyncIterator[int]:
    """Answer scrapes for the length of a block; gives the port, which the system chooses for 0."""
    check_installed()
    clients: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            await _answer(app, reader, writer)
        finally:
            clients.discard(task)

    try:
        server = await asyncio.start_server(answer, host, port, limit=_MOST_BYTES)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot listen on {host}:{port}: {error.strerror or error}; choose another port"
        ) from error
    bound = int(server.sockets[0].getsockname()[1])
    log.info("metrics endpoint", address=f"{host}:{bound}")
    try:
        yield bound
    finally:
        server.close()
        for task in [*clients]:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await server.wait_closed()


async def _answer(app: Redrive, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                code, kind, body, wants_body = await _reply(app, reader)
                head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\n"
                head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + (body if wants_body else b""))
                await writer.drain()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _reply(app: Redrive, reader: asyncio.StreamReader) -> tuple[int, str, bytes, bool]:
    try:
        request = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    except (asyncio.LimitOverrunError, ValueError):
        return 400, _TEXT, b"this is no HTTP request\n", True
    wants_body = method != "HEAD"
    if method not in ("GET", "HEAD"):
        return 405, _TEXT, b"only GET and HEAD\n", True
    path = target.partition("?")[0]
    if path == "/healthz":
        return 200, _TEXT, b"ok\n", wants_body
    if path != "/metrics":
        return 404, _TEXT, b"/metrics and /healthz are here\n", wants_body
    try:
        return 200, CONTENT_TYPE, await metrics_text(app), wants_body
    except Exception as error:  # noqa: BLE001 - a scrape that fails must say so, and leave the worker alone
        log.error("scrape failed", error=repr(error)[:500])
        return 500, _TEXT, b"the scrape failed; the log of the worker says why\n", wants_body
