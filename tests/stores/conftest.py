"""A fresh, open app on each store, in a time that only the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive import Redrive
from redrive.clock import VirtualClock
from redrive.store.base import Store
from tests.stores.helpers import Hands


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def app(store_url: str, clock: VirtualClock) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, clock=clock, migrate=True) as app:
        yield app


@pytest.fixture
def store(app: Redrive) -> Store:
    return app.store


@pytest.fixture
async def hands(app: Redrive) -> AsyncIterator[Hands]:
    """A worker's hands without the worker: a session, and its line to the store."""
    hands = await Hands.begin(app)
    yield hands
    await hands.claims.close()
