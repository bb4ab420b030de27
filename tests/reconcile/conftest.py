"""An app on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive import Redrive
from tests.reconcile.helpers import FAST


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    app = Redrive(store_url, retry=FAST, migrate=True)
    async with app:
        yield app
