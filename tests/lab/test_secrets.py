"""Secrets: a canary in every place that holds one, and nobody who looks, acts, errs or reads the log sees it.

What may show it: ``reveal``, which is on the trail, and the command line, which has the database itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from redrive import Redrive, RetryPolicy
from redrive.operate.auth import Role
from redrive.operate.metrics import metrics_text
from redrive.operate.web import redrive_asgi
from tests.agents.shop import agent
from tests.lab.inside import Inside, inside
from tests.lab.record import Record
from tests.lab.rich import CANARY, filled, with_handlers
from tests.signals.spans import spans  # noqa: F401 - a fixture
from tests.web.conftest import browser

pytestmark = pytest.mark.promise("closed")


@pytest.fixture
def logged() -> list[Any]:
    """Keep every line of the log, down to the last."""
    lines: list[Any] = []

    def keep(_logger: Any, level: str, line: Any) -> Any:
        lines.append((level, line))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, keep])
    return lines


@pytest.fixture
async def within(store_url: str, logged: list[Any]) -> AsyncIterator[Inside]:
    async with inside(store_url) as made:
        yield made


def seen(run: Record, fault: str, where: str, said: str) -> None:
    """Look for the canary in what somebody was told."""
    run.cases += 1
    run.faults[fault] += 1
    if CANARY in said:
        run.violations["secret shown"] += 1
        for at in re.finditer(CANARY, said):
            print(f"{where}: …{said[max(0, at.start() - 200) : at.end() + 60]!r}…")


def bodies(within: Inside, path: str) -> dict[str, Any]:
    """Say something that fits, for whatever can be done."""
    known, why = within.known, {"reason": "because"}
    fitting: dict[str, dict[str, Any]] = {
        "/shadow": {"force": True}, "/edit": {**why, "set": {"payload.note": "other"}},
        "/redrives": {"selection": "type:order.bad"},
        "/start": {**why, "token": known.plan}, "/approve": {}, "/resume": {}, "/keys/release": {**why,
        "key": known.key},
        "/keys/skip": {**why, "key": known.key}, "/reservations/release": {**why, "resource": known.resource},
        "/schedules/pause": {**why, "name": known.schedule}, "/schedules/resume": {**why, "name": known.schedule},
        "/reconcilers/run": {"name": known.reconciler}, "/purge": {"older_than": "30d"}, "/tokens": {"name": "eve"},
        "/policies": {**why, "pattern": "order.*", "values": {"max_attempts": 3}},
        "/policies/preview": {"name": "order.bad"},
        "/policies/clear": {**why, "pattern": "order.flaky"}, "/settings": {**why, "agents_above": 5}, "/revoke": {},
        "/api/v1/events": {"type": "order.paid", "payload": {"card": CANARY}}, "/api/v1/discard": {**why,
        "selection": "type:x", "count": 0},
        "/api/v1/restore": {**why, "selection": "type:x", "count": 0}, "/api/v1/cancel": {**why, "selection": "type:x",
        "count": 0},
    }  # fmt: skip
    for ending, body in fitting.items():
        if path.endswith(ending):
            return body
    return {"note": "looked at"} if "/groups/" in path else why


async def test_no_answer_shows_a_secret(within: Inside, record: Callable[..., Record]) -> None:
    run = record("security", within.app.store.name)
    form = {"reason": "because", "q": "type:order.bad", "verb": "discard", "name": within.known.schedule}
    async with within.client(Role.ADMIN) as client:
        etag = (await client.get(f"/api/v1/events/{within.known.events['dead']}")).headers["etag"]
        places = [each for each in within.places() if not each[2].endswith("/reveal")]
        for _, method, path in sorted(places, key=lambda each: each[1]):  # those that look before those that act
            is_api = path.startswith("/api/")
            accept = "application/json" if is_api else "text/html"
            headers = {"If-Match": etag, "Accept": accept, "Sec-Fetch-Site": "same-origin"}
            how: dict[str, Any] = {"json": bodies(within, path)} if is_api else {"data": form}
            answer = await client.request(method, path, headers=headers, **({} if method == "GET" else how))
            run.reached[f"answered {answer.status_code // 100}xx"] += 1
            seen(run, "looked" if method == "GET" else "acted", f"{method} {path} {answer.status_code}", answer.text)
            assert answer.status_code < 500, (method, path)

        for each in within.known.events.values():  # whatever became of it
            for more in ("", "/timeline", "/trail", "/steps"):
                answer = await client.get(f"/api/v1/events/{each}{more}")
                seen(run, "looked", f"{each}{more}", answer.text)
        for each in within.known.redrives:
            for more in ("", "/items", "/report"):
                answer = await client.get(f"/api/v1/redrives/{each}{more}")
                seen(run, "looked", f"redrive {each}{more}", answer.text)
    assert run.reached["answered 2xx"] > 60


async def test_no_error_repeats_a_secret(within: Inside, record: Callable[..., Record]) -> None:
    run = record("security", within.app.store.name)
    wrong = [
        ("json", {"reason": {"password": CANARY}, "token": CANARY, "payload": {"card": CANARY}}),
        ("json", [{"token": CANARY}]),
        ("content", b'{"token": "' + CANARY.encode() + b'", '),
    ]
    async with within.client(Role.ADMIN) as client:
        for _, method, path in within.places():
            if method == "GET":
                continue
            for name, body in wrong:
                how: dict[str, Any] = {name: body}
                answer = await client.request(method, path, headers={"Sec-Fetch-Site": "same-origin"}, **how)
                seen(run, "wrong body", f"{method} {path}", answer.text)
    async with within.client(
        None, headers={"Authorization": f"Bearer {CANARY}", "Cookie": f"redrive_session={CANARY}"}
    ) as client:
        for _, method, path in within.places():
            answer = await client.request(method, path)
            seen(run, "wrong token", f"{method} {path}", answer.text + str(answer.headers))


async def test_no_line_of_the_log_no_metric_and_no_span_holds_a_secret(
    store_url: str,
    logged: list[Any],
    record: Callable[..., Record],
    spans: InMemorySpanExporter,  # noqa: F811 - the fixture
) -> None:
    """Everything is done by a worker here, and looked at as before: what is logged on the way must not say it."""
    app = with_handlers(Redrive(store_url, migrate=True, retry=RetryPolicy(max_attempts=1)))
    run = record("security", app.store.name)
    async with app:
        known = await filled(app)
        await app.worker().drain()
        seen(run, "metrics", "metrics", (await metrics_text(app)).decode())
        async with browser(
            redrive_asgi(app), headers={"Authorization": f"Bearer {known.tokens[Role.ADMIN]}"}
        ) as client:
            await client.post("/api/v1/events", json={"type": "order.bad", "payload": {"card": CANARY}})
            await client.post("/login", data={"token": CANARY}, headers={"Sec-Fetch-Site": "same-origin"})
        await app.worker().drain()

    for level, line in logged:
        seen(run, "log", level, repr(line))
    for span in spans.get_finished_spans():
        seen(run, "spans", span.name, span.to_json())
    assert run.faults["log"] > 3
    assert run.faults["spans"] > 3


async def test_no_tool_tells_an_agent_a_secret(within: Inside, record: Callable[..., Record]) -> None:
    run, known = record("security", within.app.store.name), within.known
    async with agent(within.app) as client:
        tools = [each.name for each in (await client.list_tools()).tools]
        given: dict[str, Any] = {
            "event_id": known.events["dead"], "group": known.groups[0], "redrive_id": known.redrives[0], "cycle": 0,
            "reason": "because", "selection": "type:order.bad", "token": known.plan,
        }  # fmt: skip
        wanted = {each.name: each.input_schema["properties"] for each in (await client.list_tools()).tools}
        for name in tools:
            for more in ({}, {"password": CANARY}):
                arguments = {key: value for key, value in given.items() if key in wanted[name]}
                result = await client.call_tool(name, {**arguments, **more})
                run.reached["refused" if result.is_error else "answered"] += 1
                told = json.dumps([getattr(part, "text", "") for part in result.content])
                seen(run, "tools", name, told + json.dumps(result.structured_content))
    assert run.reached["answered"] > 5
