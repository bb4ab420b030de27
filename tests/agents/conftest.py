from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agents.shop import Shop


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    made = Shop(store_url)
    async with made.app:
        yield made


@pytest.fixture
async def sqlite_shop(sqlite_url: str) -> AsyncIterator[Shop]:
    made = Shop(sqlite_url)
    async with made.app:
        yield made
