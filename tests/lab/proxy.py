"""A small TCP proxy on this machine that stands between a worker and its database, and misbehaves when told to.

It runs in a thread of its own. Faults: latency, cutting every connection, cutting after byte n of what goes one way,
swallowing everything from then on (half open: both ends believe in the other), ending it for the client while the
server believes in it, losing the answer to a COMMIT.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

Way = Literal["up", "down"]  # to the server, from the server
How = Literal["reset", "swallow"]

_CHUNK = 65_536
_COMMIT = b"COMMIT;"  # and not the level READ COMMITTED


class Proxy:
    """Forwards bytes; what it is told to do wrong it does once, and is honest again."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.latency = 0.0
        self.port = 0
        self.passed: dict[Way, int] = {"up": 0, "down": 0}
        """How many bytes have gone each way since the last ``arm`` or ``count``."""
        self.fired = 0
        self._at: tuple[Way, int, How] | None = None
        self._lose_commits = 0
        self._links: set[_Link] = set()
        self._is_refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab-proxy")

    def open(self) -> None:
        self._thread.start()
        self._call(self._open)

    def close(self) -> None:
        self._call(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Faults

    def arm(self, way: Way, after: int, how: How = "reset") -> None:
        """Cut the connection on which byte ``after`` of one way, counted from now over all connections, passes."""
        self.count()
        self.fired = 0
        self._at = (way, after, how)

    def disarm(self) -> None:
        self._at = None

    def count(self) -> None:
        """Count from now on."""
        self.passed = {"up": 0, "down": 0}

    def lose_answers_to_commit(self, times: int = 1) -> None:
        """Let the next COMMITs through, wait for what the server says, and reset instead of passing it on."""
        self.fired = 0
        self._lose_commits = times

    def cut_all(self) -> None:
        """Reset every connection there is."""
        self._call(self._cut_all)

    def swallow_all(self) -> None:
        """Keep every connection open, and pass nothing on."""
        self._call(self._swallow_all)

    def abandon_all(self) -> None:
        """Reset every connection towards the client, and let the server believe in it."""
        self._call(self._abandon_all)

    def refuse(self, *, is_refusing: bool = True) -> None:
        """Accept nobody, and end those who were accepted."""
        self._is_refusing = is_refusing
        if is_refusing:
            self.cut_all()

    @property
    def living(self) -> int:
        """How many connections there are that both ends believe in."""
        return sum(not link.is_abandoned for link in tuple(self._links))

    # What the links ask

    def allowed(self, way: Way, data: bytes) -> tuple[int, How | None]:
        """Say how many bytes may pass, and what happens then."""
        if self._at is None or self._at[0] != way:
            self.passed[way] += len(data)
            return len(data), None
        left = self._at[1] - self.passed[way]
        if left >= len(data):
            self.passed[way] += len(data)
            return len(data), None
        how, self._at = self._at[2], None
        self.passed[way] += max(0, left)
        self.fired += 1
        return max(0, left), how

    def loses(self, link: _Link) -> bool:
        """Say whether the answer that has come shall be lost: the one to a COMMIT of this link."""
        if not link.has_committed or not self._lose_commits:
            return False
        self._lose_commits -= 1
        self.fired += 1
        return True

    # In the thread

    def _call(self, job: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await job()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        await self._cut_all()
        await asyncio.gather(*(link.task for link in self._links if link.task), return_exceptions=True)

    async def _cut_all(self) -> None:
        for link in tuple(self._links):
            link.reset()

    async def _swallow_all(self) -> None:
        for link in self._links:
            link.is_swallowing = True

    async def _abandon_all(self) -> None:
        for link in tuple(self._links):
            link.abandon()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, writer)
        link.task = asyncio.current_task()
        self._links.add(link)
        try:
            if not self._is_refusing:
                with suppress(OSError):
                    await link.run(reader)
        finally:
            link.reset()
            self._links.discard(link)


class _Link:
    """One connection: two streams, four ends."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self.is_swallowing = False
        self.is_abandoned = False
        self.has_committed = False
        self.task: asyncio.Task[Any] | None = None
        self._proxy = proxy
        self._client = client
        self._server: asyncio.StreamWriter | None = None

    async def run(self, from_client: asyncio.StreamReader) -> None:
        from_server, self._server = await asyncio.open_connection(*self._proxy.target)
        ways = [
            asyncio.create_task(self._forward("up", from_client, self._server)),
            asyncio.create_task(self._forward("down", from_server, self._client)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if self.is_abandoned:  # what the server says goes nowhere, until it ends by itself or we do
            await asyncio.wait([ways[1]])
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self._proxy.latency:
                await asyncio.sleep(self._proxy.latency)
            if self.is_swallowing:
                continue
            if way == "up":
                self.has_committed = _COMMIT in data
            elif self._proxy.loses(self):
                return
            number, how = self._proxy.allowed(way, data)
            writer.write(data[:number])
            await writer.drain()
            if how == "reset":
                return
            if how == "swallow":
                self.is_swallowing = True

    def reset(self) -> None:
        """End it as a broken router does: RST both ways, whatever was on its way is gone."""
        for end in (self._client, self._server):
            _reset(end)

    def abandon(self) -> None:
        """End it for the client alone."""
        self.is_swallowing = self.is_abandoned = True
        _reset(self._client)


def _reset(end: asyncio.StreamWriter | None) -> None:
    if end is None or end.transport.is_closing():
        return
    own: socket.socket | None = end.get_extra_info("socket")
    if own is not None:
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()


@contextmanager
def proxy_to(host: str, port: int) -> Iterator[Proxy]:
    """Stand before a server for the length of a block."""
    made = Proxy(host, port)
    made.open()
    try:
        yield made
    finally:
        made.close()
