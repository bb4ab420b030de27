"""A fresh, open app on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive import Redrive


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, migrate=True, source="shop") as app:
        yield app
