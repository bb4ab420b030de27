"""A whole site on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.apps.controlplane.wiring import ControlPlane
from tests.apps.controlplane.helpers import site


@pytest.fixture
async def app(store_url: str, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with site(store_url, tmp_path / "world.db") as app:
        yield app
