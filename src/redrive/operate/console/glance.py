"""Glance: how many things need a person, for the menu of every page. Looked at now and then, not for each page."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from fastapi import Request

from redrive.app import Redrive
from redrive.attention import Matter, Urgency
from redrive.errors import RedriveError

_FRESH_SECONDS: Final = 5.0


class Glance:
    """What was seen when somebody looked last."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._due = 0.0
        self.count = 0
        self.tone = "quiet"

    async def look(self, app: Redrive) -> list[Matter]:
        """Look at everything, now."""
        found = await app.attention()
        self._due = app.clock.monotonic() + _FRESH_SECONDS
        self._note(found)
        return found

    def _note(self, found: Sequence[Matter]) -> None:
        urgencies = [each.urgency for each in found]
        self.count = len(urgencies) - urgencies.count(Urgency.KNOW)
        self.tone = "bad" if Urgency.NOW in urgencies else "wait"

    async def refresh(self, app: Redrive) -> None:
        """Look again if that is long ago and nobody else is at it; a page does not fail for its menu."""
        if self._looking.locked() or app.clock.monotonic() < self._due:
            return
        async with self._looking:
            with suppress(RedriveError):
                await self.look(app)


def of(request: Request) -> Glance:
    """Return the one of this server."""
    state = request.app.state
    if not hasattr(state, "glance"):
        state.glance = Glance()
    found: Glance = state.glance
    return found


async def refreshed(request: Request) -> None:
    """Have the menu say how many things need a person."""
    if request.method == "GET":
        await of(request).refresh(request.app.state.redrive)
