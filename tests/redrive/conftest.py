"""An app on each store whose events have one attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive import Redrive, RetryPolicy


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, retry=RetryPolicy(max_attempts=1), migrate=True) as app:
        yield app
