"""HTTP: every operation with what fits its description and what does not, every route with what no description makes.

A round is a database with one of everything, a server of its own, and requests made from one seed, so that a seed
repeats what it has found. No answer is a 5xx, each is one that is documented, the log holds no traceback, and the
server answers the next request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from redrive.operate.auth import Role
from tests.lab.conftest import Fresh
from tests.lab.dirt import Dirt, Request
from tests.lab.door import Door, door_to
from tests.lab.record import Record
from tests.lab.rich import fill

pytestmark = pytest.mark.promise("closed")

_CHECKS: dict[str, list[Any]] = {
    "5xx": [not_a_server_error],
    "undocumented answer": [status_code_conformance, content_type_conformance, response_schema_conformance],
}
_KINDS = {GenerationMode.POSITIVE: "fits", GenerationMode.NEGATIVE: "does not fit"}
_LOOK_EVERY = 50  # requests, at the log and whether it lives


def operations(door: Door) -> Iterator[Any]:
    """Go through what the server says of itself; a stream has no end."""
    shown = {"Authorization": f"Bearer {door.known.tokens[Role.ADMIN]}"}
    schema = schemathesis.openapi.from_url(f"{door.address}/api/v1/openapi.json", headers=shown)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        if not found.ok().path.endswith("/changes"):
            yield found.ok()


def described(door: Door, run: Record, seed: int, examples: int) -> None:
    """Call every operation with what fits its description, and with what does not."""
    tried = 0
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {door.known.tokens[Role.ADMIN]}"
        for operation in operations(door):
            tried += 1
            for mode in _KINDS:
                called(operation, mode, session, run, seed, examples)
            look(door, run, seed, f"{operation.method} {operation.path}")
    assert tried > 50


def called(
    operation: Any, mode: GenerationMode, session: requests.Session, run: Record, seed: int, examples: int
) -> None:
    """Call one operation some times."""

    @hypothesis.seed(seed)
    @given(case=operation.as_strategy(mode))
    @settings(
        max_examples=examples, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def call(case: Case[Any]) -> None:
        run.cases += 1
        run.faults[_KINDS[mode]] += 1
        response = case.call(session=session)
        run.reached[f"answered {response.status_code}"] += 1
        for what, checks in _CHECKS.items():
            try:
                case.validate_response(response, checks=checks)
            except (AssertionError, FailureGroup) as error:
                note(run, seed, what, "\n".join(map(str, getattr(error, "exceptions", [error]))))

    with suppress(Unsatisfiable):  # an operation that takes nothing cannot be called wrongly
        call()


def dirty(door: Door, run: Record, seed: int, count: int) -> None:
    """Send what no description makes."""
    recent: list[Request] = []
    for number, request in enumerate(Dirt(door.known, random.Random(seed)).requests(count), 1):
        run.cases += 1
        run.faults[request.kind] += 1
        recent.append(request)
        if what := door.wrong_with(request):
            note(run, seed, what, repr(request.to_bytes("…"))[:2_000])
        if number % _LOOK_EVERY == 0 or number == count:
            look(door, run, seed, "\n".join(repr(each.to_bytes("…"))[:500] for each in recent))
            recent.clear()


def look(door: Door, run: Record, seed: int, after: str) -> None:
    """Read the log, and see whether the server answers."""
    if complaints := door.complaints():
        note(run, seed, "traceback in the log", f"{complaints[0][:4_000]}\nafter {after}")
    if not door.lives():
        note(run, seed, "not alive", after)


def note(run: Record, seed: int, what: str, how: str) -> None:
    run.seed = seed
    run.violations[what] += 1
    print(f"{what}: {how}\n")


@pytest.mark.timeout(300)
def test_no_request_is_an_error_of_ours(
    fresh_tables: Fresh, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    run = record("http", fresh_tables.store)
    with fresh_tables.database() as url, door_to(fill(url), tmp_path) as door:
        described(door, run, seed, examples=2)
        dirty(door, run, seed, count=450)
    assert run.faults["fits"]
    assert run.faults["does not fit"]


@pytest.mark.lab
@pytest.mark.timeout(0)
def test_thousands_of_requests(
    fresh_tables: Fresh, tmp_path: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    """Go round with new seeds until the time is over, or something was found: then that seed repeats it."""
    run, end = record("http", fresh_tables.store), time.monotonic() + budget
    rounds = 0
    while not run.violations and (not rounds or time.monotonic() < end):
        with fresh_tables.database() as url, door_to(fill(url), tmp_path) as door:
            described(door, run, seed + rounds, examples=8)
            dirty(door, run, seed + rounds, count=2_000)
        rounds += 1
    run.figures["rounds"] = float(rounds)
