"""An app on a fresh store whose time moves when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest

from redrive import Event, EventFilter, Redrive
from redrive.clock import VirtualClock

START = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
async def app(store_url: str, clock: VirtualClock) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, clock=clock, migrate=True) as app:
        yield app


@pytest.fixture
def beside(store_url: str, clock: VirtualClock) -> Callable[[], Redrive]:
    """Make another app on the same database, as another release or another service would."""
    return lambda: Redrive(store_url, clock=clock)


async def published(app: Redrive) -> list[Event]:
    """Return everything that was published, oldest first."""
    return sorted(await app.events(EventFilter(limit=10_000)), key=lambda event: event.id)


async def ticks(app: Redrive, name: str) -> list[str]:
    """Return the ticks that have an event, as texts, in order."""
    return sorted(e.headers["scheduled-at"] for e in await published(app) if e.headers.get("schedule") == name)


async def work(app: Redrive) -> None:
    await app.worker().drain()


Work = Callable[[Redrive], Awaitable[None]]
