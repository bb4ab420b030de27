"""Waiting for something that others do, without taking the machine from them.

Who looks every 10 ms at a thousand events keeps a core busy; a look is followed by a rest of twice its length.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

REST_SECONDS = 0.01
PATIENCE_SECONDS = 60.0  # a machine may be very busy; only a test that fails waits for so long


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds; fail loudly when it does not."""
    for rest in _rests(seconds, ""):
        held = condition()
        if isinstance(held, Awaitable):
            held = await held
        if held:
            return
        await asyncio.sleep(rest())


def wait_until(look: Callable[[], Any], seconds: float = PATIENCE_SECONDS, what: str = "") -> Any:
    """Wait, outside of any event loop, until a look shows something; return that."""
    for rest in _rests(seconds, what):
        if seen := look():
            return seen
        time.sleep(rest())
    return None


def _rests(seconds: float, what: str) -> Iterator[Callable[[], float]]:
    """Give out, look by look, what tells how long to rest after it."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        yield lambda: max(REST_SECONDS, 2 * (time.monotonic() - began))  # noqa: B023 - asked before the next round
        assert time.monotonic() < end, f"the condition did not come true in {seconds} s{': ' if what else ''}{what}"
