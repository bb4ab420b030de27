"""Changes: tell everybody who watches what kind of thing has changed, never what it is now.

The database is asked once a second for all listeners together, more seldom when they are many, and not at all while
nobody listens. A topic is the name of a table: ``outbox``, ``failure_group``, ``redrive``. Who hears of one asks anew
for what it shows.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from redrive.app import Redrive
from redrive.errors import StoreUnavailable
from redrive.operate.web.problems import Problem, Rule

EVERY_SECONDS: Final = 1.0
EACH_SECONDS: Final = 0.025
"""Many who listen are told less often: 200 every five seconds, so that their pages do not take the core of a worker."""
QUIET_SECONDS: Final = 15.0
LONGEST_SECONDS: Final = 600.0
"""How long one stream lasts: a token that was revoked meanwhile opens no other."""

STORE: Final = "store"
"""The topic of the database itself: it does not answer, or does again."""

_MOST: Final = 1_000
_TOO_MANY: Final = Rule("too-many-listeners", 503, "Too many listen already", "Close a page, or ask again later.", 30)


class Changes:
    """Those who listen, and the one task that looks for all of them."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._listeners: set[_Listener] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_over = False
        self.told = 0
        """How often something was told; what was looked at before may not show it."""

    def stop(self) -> None:
        """Let everybody go: the server stops."""
        self._is_over = True
        for each in self._listeners:
            each.wake.set()

    def check_room(self) -> None:
        """Refuse one listener too many."""
        if len(self._listeners) >= _MOST:
            raise Problem(_TOO_MANY, f"{_MOST:,} listen already")

    async def stream(self) -> AsyncIterator[str]:
        """Tell one listener what changes, as server-sent events; after a while they have to come in anew."""
        until = self._app.clock.monotonic() + LONGEST_SECONDS
        listener = _Listener()
        self._listeners.add(listener)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield "retry: 2000\nevent: hello\ndata: {}\n\n"
            while not self._is_over and self._app.clock.monotonic() < until:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_SECONDS):
                        await listener.wake.wait()
                topics = listener.take()
                yield f"event: changed\ndata: {json.dumps({'topics': topics})}\n\n" if topics else ": quiet\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        marks: dict[str, str] | None = None
        is_down = False
        while True:
            try:
                await self._app.open()
                found = {row["name"]: row["mark"] for row in await self._app.store.ask("pulse")}
            except StoreUnavailable:
                if not is_down:
                    self._tell({STORE})
                is_down = True
            else:
                changed = set() if marks is None else {name for name, mark in found.items() if marks.get(name) != mark}
                self._tell(changed | ({STORE} if is_down else set()))
                marks, is_down = found, False
            await self._app.clock.sleep(max(EVERY_SECONDS, EACH_SECONDS * len(self._listeners)))

    def _tell(self, topics: set[str]) -> None:
        self.told += bool(topics)
        for each in self._listeners:
            each.hear(topics)


class _Listener:
    """What one listener has not been told yet."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._topics: set[str] = set()

    def hear(self, topics: set[str]) -> None:
        if topics:
            self._topics |= topics
            self.wake.set()

    def take(self) -> list[str]:
        topics, self._topics = sorted(self._topics), set()
        self.wake.clear()
        return topics
