"""Duty: what every worker does beside its turns, now and then.

Sweeping, carrying redrives on, telling who was called off: each is one coroutine that answers whether something has
moved and how long it may rest. A database that blinks postpones a duty, and an error nobody foresaw is logged and
tried again: a duty never ends in silence. Every worker has all of them; the store keeps them out of each other's way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from redrive.clock import Clock
from redrive.errors import StoreUnavailable
from redrive.logs import log
from redrive.store.connections import Side, begin_task

_AFTER_ERROR: Final = 2.0


class Tick(NamedTuple):
    """Whether something has moved, and in how many seconds to look again."""

    moved: bool
    pause: float


@dataclass(frozen=True, slots=True)
class Duty:
    """One of them; ``act`` is told who does it, ``news`` ends a rest early, ``during`` lasts as long as the worker."""

    name: str
    act: Callable[[str], Awaitable[Tick]]
    news: asyncio.Event | None = None
    during: Callable[[str], AbstractAsyncContextManager[None]] | None = None


async def keep(duty: Duty, clock: Clock, by: str) -> None:
    """Do it over and over, until cancelled."""
    begin_task(Side.DUTY)
    while True:
        try:
            pause = (await duty.act(by)).pause
        except StoreUnavailable as error:
            log.debug("duty postponed", duty=duty.name, worker=by, error=str(error))
            await clock.sleep(clock.random())
            continue
        except Exception as error:  # noqa: BLE001 - whoever has stopped sweeping would do so in silence
            log.error("duty failed, trying again", duty=duty.name, worker=by, error=repr(error)[:500])
            await clock.sleep(_AFTER_ERROR)
            continue
        if duty.news is None:
            await clock.sleep(pause * (0.75 + 0.5 * clock.random()))  # workers that started together part in time
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await duty.news.wait()
