"""Every operation of the API, called with what fits its description and with what does not: no answer is a 5xx."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from redrive import Redrive
from redrive.operate.auth import Role
from tests.operate.helpers import ended, start
from tests.web.conftest import Site, made
from tests.web.test_cli import address_of

pytestmark = pytest.mark.promise("closed")

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 12


async def seeded(url: str) -> Site:
    async with Redrive(url, migrate=True) as app:
        return await made(app)


@pytest.fixture
def served(store_url: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    import asyncio

    site = asyncio.run(seeded(store_url))
    process = start("serve", store_url, "--port", "0", cwd=tmp_path)
    try:
        yield address_of(process), site.tokens[Role.ADMIN]
    finally:
        process.send_signal(signal.SIGTERM)
        ended(process)


@pytest.mark.timeout(300)
def test_no_answer_is_an_error_of_ours(served: tuple[str, str]) -> None:
    address, secret = served
    shown = {"Authorization": f"Bearer {secret}"}
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json", headers=shown)
    tried = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        if operation.path.endswith("/changes"):  # a stream has no end
            continue
        tried += 1

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def call(case: Case[Any]) -> None:
            response = case.call(headers=shown)
            case.validate_response(response, checks=CHECKS)

        call()

    assert tried > 50
