from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from tests.agents.shop import Shop


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


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
