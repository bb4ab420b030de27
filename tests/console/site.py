"""A console behind a port, on a thread of its own, so that a browser can be driven beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import FastAPI

from redrive import Redrive
from redrive.operate.auth import Role, Tokens
from redrive.operate.web import redrive_asgi
from redrive.operate.web.server import Server

T = TypeVar("T")


class Served:
    """A served app; ``call`` runs something on its loop."""

    def __init__(self, app: Redrive, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self.app = app
        self.url = url
        self._loop = loop

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Run a coroutine where the server lives, and wait for what comes of it."""

        async def run() -> T:
            return await function(*args, **options)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    @contextmanager
    def working(self, **options: Any) -> Iterator[None]:
        """Have a worker at work on the loop of the server."""
        box: dict[str, Any] = {}

        async def begin() -> None:
            box["worker"] = self.app.worker(**options)
            box["task"] = asyncio.create_task(box["worker"].run())

        async def end() -> None:
            box["worker"].stop()
            await box["task"]

        self.call(begin)
        try:
            yield
        finally:
            self.call(end)

    def token(self, name: str = "ada", role: Role = Role.OPERATOR) -> str:
        """Make a token."""
        return self.call(Tokens(self.app).create, name, role, by="test")[1]


@contextmanager
def served(
    make: Callable[[], Redrive], prepare: Callable[[Redrive, FastAPI], Awaitable[None]] | None = None, **options: Any
) -> Iterator[Served]:
    """Serve an app until the block ends."""
    ready = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> None:
        stop = box["stop"] = asyncio.Event()
        box["loop"] = asyncio.get_running_loop()
        async with make() as app:
            web = redrive_asgi(app, **options)
            if prepare is not None:
                await prepare(app, web)
            server = Server(web, "127.0.0.1", 0)
            box.update(app=app, url=server.bind())
            async with server:
                ready.set()
                await stop.wait()
                server.stop(at_once=True)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="console")
    thread.start()
    ready.wait(30)
    try:
        if "error" in box:
            raise box["error"]
        yield Served(box["app"], box["loop"], box["url"])
    finally:
        if "error" not in box:
            box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join(30)
    if "error" in box:
        raise box["error"]
