"""What the tests of signals share: an app on each store, and a server that keeps what it is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from redrive import Redrive
from tests.worker.conftest import FAST


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, source="shop", retry=FAST, migrate=True) as app:
        yield app


@dataclass(slots=True)
class Inbox:
    """A real HTTP server on this machine: what it was sent, and how it answers."""

    port: int = 0
    status: int = 200
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, path: str, headers: dict[str, str], body: bytes) -> int:
        with self.lock:
            self.requests.append((path, headers, body))
            return self.status


@pytest.fixture
def inbox(leaves_nothing_open: None) -> Iterator[Inbox]:
    kept = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(kept.keep(self.path, dict(self.headers), body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, name="inbox")
        thread.start()
        yield kept
        server.shutdown()
        thread.join()


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Ask a server on this machine as plainly as can be."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 30)).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body
