"""What every experiment gets: a record of what it did, and how long it may take."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from tests.lab.record import Record


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
        again = f"LAB_SEED={seed} make lab ARGS='{request.node.nodeid}'"
        pytest.fail(f"violations: {dict(found)}; again with: {again}", pytrace=False)
