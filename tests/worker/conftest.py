"""A worker at work on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from redrive import Event, Redrive, RetryPolicy, Worker
from tests.waiting import PATIENCE_SECONDS

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    """An app on a fresh store, with retries that a test can wait for."""
    app = Redrive(store_url, retry=FAST, migrate=True)
    async with app:
        yield app


@asynccontextmanager
async def working(app: Redrive, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker for the length of a block, then stop it gracefully."""
    worker = app.worker(**options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)


async def found(app: Redrive, event_id: UUID) -> Event:
    """Read an event that must be there."""
    event = await app.event(event_id)
    assert event is not None
    return event
