"""Shared: pages that are fetched anew because something has changed are made once for all who show the same.

Everybody is told of a change at the same moment, so two hundred open consoles ask for a page at the same moment. Who
asks with ``X-Live`` and with the same credentials gets the same answer, for a second at most, and never one that was
begun before the change that they were told of. Everything else is answered as ever.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.clock import Clock

LIVE: Final = b"x-live"
KEPT_SECONDS: Final = 1.0
_MOST: Final = 200
_ASIDE: Final = frozenset({
    b"user-agent", b"referer", b"accept-language", b"connection", b"priority", b"dnt", b"sec-gpc", b"pragma",
    b"cache-control", b"sec-ch-ua", b"sec-ch-ua-mobile", b"sec-ch-ua-platform",
})  # fmt: skip
"""Headers that make no difference to an answer; every other one does, whoever reads it."""

_Key = tuple[object, ...]


class Shared:
    """An ASGI app in front of another, with the answers of this second."""

    def __init__(self, app: ASGIApp, clock: Clock, told: Callable[[], int]) -> None:
        self._app = app
        self._clock = clock
        self._told = told
        self._answers: dict[_Key, tuple[float, int, asyncio.Task[list[Message]]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_live_page(scope):
            await self._app(scope, receive, send)
            return
        for message in await self._answer(scope):
            await send(dict(message))

    async def _answer(self, scope: Scope) -> list[Message]:
        key, now, told = _key(scope), self._clock.monotonic(), self._told()
        begun = self._answers.get(key)
        if begun is None or begun[1] != told or now - begun[0] > KEPT_SECONDS:
            self._drop(now)
            begun = self._answers[key] = (now, told, asyncio.create_task(self._made(dict(scope))))
        return await asyncio.shield(begun[2])  # one who leaves does not take the page from the others

    def _drop(self, now: float) -> None:
        """Let go of what nobody will be given any more, and of everything when there is too much."""
        if len(self._answers) >= _MOST:
            self._answers.clear()
        self._answers = {key: each for key, each in self._answers.items() if now - each[0] <= KEPT_SECONDS}

    async def _made(self, scope: Scope) -> list[Message]:
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        return messages


def _is_live_page(scope: Scope) -> bool:
    """Only pages: an answer of the API may be a stream without an end."""
    if scope["type"] != "http" or scope["method"] != "GET" or "/api/" in scope["path"]:
        return False
    return any(name == LIVE for name, _ in scope["headers"])


def _key(scope: Scope) -> _Key:
    headers = frozenset((name, value) for name, value in scope["headers"] if name not in _ASIDE)
    client = (scope.get("client") or ("",))[0]
    return scope["path"], scope.get("root_path", ""), scope["query_string"], scope.get("scheme"), client, headers
