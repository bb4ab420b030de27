"""An app on each store, by the real clock: what runs out does so by the database's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive import Redrive, Reservation
from tests.waiting import until


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, migrate=True) as app:
        yield app


async def run_out(app: Redrive, resource: str) -> None:
    """Wait until a reservation has run out."""

    async def is_over() -> bool:
        held = await app.reservations.get(resource)
        return held is not None and not held.is_held

    await until(is_over)


async def expired(app: Redrive, resource: str = "seat/1", owner: str = "late") -> Reservation:
    """Take a resource and let its time run out."""
    late = await app.reservations.take(resource, owner=owner, ttl="0.1s")
    await run_out(app, resource)
    return late
