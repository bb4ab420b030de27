"""What every experiment gets: a record of what it did, and how long it may take."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Run, fresh_database
from tests.lab.record import Record
from tests.servers import Postgres

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before those that nobody asked for are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("lab"):
            item.add_marker("lab_short")


@dataclass(frozen=True, slots=True)
class Fresh:
    """Which store it is, and how to have another database of it, with our tables and nothing in them."""

    store: str
    database: Callable[[], AbstractContextManager[str]]


@pytest.fixture(params=["sqlite", "postgres"])
def fresh_tables(request: pytest.FixtureRequest, tmp_path: Path, migrated_file: Path, run: Run) -> Fresh:
    """Give an experiment one store after the other, and as many databases of it as it has rounds."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres_server")
        return Fresh("postgres", lambda: fresh_database(server, has_tables=True))

    run.backends["SQLite"] = sqlite3.sqlite_version

    @contextmanager
    def file() -> Iterator[str]:
        folder = tmp_path / "round"
        folder.mkdir()
        shutil.copy(migrated_file, folder / "redrive.db")
        yield f"sqlite:///{folder / 'redrive.db'}"
        shutil.rmtree(folder)

    return Fresh("sqlite", file)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Give short runs the same seed every time, and long ones a new one; LAB_SEED says which to take again."""
    if said := os.environ.get("LAB_SEED"):
        return int(said)
    return random.SystemRandom().randrange(1 << 32) if request.node.get_closest_marker("lab") else 0


@pytest.fixture
def budget(request: pytest.FixtureRequest) -> float:
    """Seconds that a long run may take: its share of LAB_MINUTES."""
    long = [item for item in request.session.items if "budget" in getattr(item, "fixturenames", ())]
    return float(os.environ.get("LAB_MINUTES", "60")) * 60 / max(1, len(long))


@pytest.fixture
def record(request: pytest.FixtureRequest, seed: int) -> Iterator[Callable[..., Record]]:
    """Make the record of this test's run; it is written when the test ends. Violations fail the test."""
    made: list[Record] = []

    def begin(kind: str, store: str = "sqlite") -> Record:
        promises = tuple(name for mark in request.node.iter_markers("promise") for name in mark.args)
        is_long = request.node.get_closest_marker("lab") is not None
        made.append(Record(kind, store, seed, promises=promises, test=request.node.nodeid, is_long=is_long))
        return made[-1]

    yield begin
    for each in made:
        each.write()
    found = sum((each.violations for each in made), start=type(made[0].violations)()) if made else {}
    if found:
        # Whoever goes round with a new seed each time says which of them it was.
        of = next(each.seed for each in made if each.violations)
        form = "lab" if request.node.get_closest_marker("lab") else "lab-short"
        again = f"LAB_SEED={of} make {form} ARGS='{request.node.nodeid}'"
        pytest.fail(f"violations: {dict(found)}; again with: {again}", pytrace=False)
