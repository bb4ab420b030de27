"""A depot on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.batch.helpers import Depot, depot_on


@pytest.fixture
async def depot(store_url: str) -> AsyncIterator[Depot]:
    async with depot_on(store_url) as made:
        yield made
