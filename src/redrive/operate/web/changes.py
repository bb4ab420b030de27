"""Changes: tell everybody who watches what kind of thing has changed, never what it is now.

The database is asked once a second for all listeners together, more seldom when they are many, and not at all while
nobody listens. A topic is the name of a table: ``outbox``, ``failure_group``, ``redrive``. Who hears of one asks anew
for what it shows. A page says which marks its topics had before it was drawn, and so hears of what has changed since,
also of what changed before it listened.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Final
from zlib import crc32

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

Marks = Mapping[str, str]
"""A mark for each topic, which differs when something of it has changed."""

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

    async def marks(self) -> Marks:
        """Ask how everything stands."""
        try:
            await self._app.open()
            found = await self._app.store.ask("pulse")
        except StoreUnavailable:
            return {STORE: "down"}
        return {STORE: "up", **{row["name"]: f"{crc32(row['mark'].encode()):x}" for row in found}}

    async def stream(self, since: Marks) -> AsyncIterator[str]:
        """Tell one listener what has changed since then, as server-sent events: after ``hello`` nothing is missed.

        Without marks of its own it hears of what changes from now on. After a while it has to come in anew.
        """
        until = self._app.clock.monotonic() + LONGEST_SECONDS
        listener = _Listener(since or await self.marks())
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
        while True:
            marks = await self.marks()
            self.told += sum(each.hear(marks) for each in self._listeners)
            await self._app.clock.sleep(max(EVERY_SECONDS, EACH_SECONDS * len(self._listeners)))


class _Listener:
    """What one listener knows, and what it has not been told yet."""

    def __init__(self, since: Marks) -> None:
        self.wake = asyncio.Event()
        self._known = {STORE: "up", **since}
        self._topics: set[str] = set()

    def hear(self, marks: Marks) -> bool:
        """Compare; what was never heard of is known from now on."""
        changed = {name for name, mark in marks.items() if self._known.get(name, mark) != mark}
        self._known.update(marks)
        self._topics |= changed
        if changed:
            self.wake.set()
        return bool(changed)

    def take(self) -> list[str]:
        topics, self._topics = sorted(self._topics), set()
        self.wake.clear()
        return topics


def written(marks: Marks, topics: Iterable[str]) -> str:
    """Write marks of some topics, for a page to carry: ``outbox:1f3a,redrive:77b0``."""
    return ",".join(f"{name}:{marks[name]}" for name in topics if name in marks)


def read(text: str) -> Marks:
    """Read what was written; what makes no sense is left out."""
    pairs = (each.partition(":") for each in text.split(","))
    return {name: mark for name, _, mark in pairs if name and mark}
