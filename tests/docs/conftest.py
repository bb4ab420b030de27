"""An interpreter that is ready for the commands of all pages."""

from __future__ import annotations

import sys

import pytest

from tests import warm


@pytest.fixture(scope="session", autouse=True)
def ready() -> None:
    if sys.platform == "linux":
        warm.door()
