"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operate.helpers import Seeds, seed


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every command in a folder of its own, with nothing in the environment."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    return folder


@pytest.fixture
def seeds(store_url: str) -> Seeds:
    return seed(store_url)


@pytest.fixture
def sqlite_seeds(sqlite_url: str) -> Seeds:
    return seed(sqlite_url)
