"""What happens together with a dead letter: the handler's hook, lifecycle events, the alarm."""

from __future__ import annotations

import asyncio
import http.server
import json
import logging
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.integrations.logging import LoggingIntegration

from redrive import Context, DeadLetter, EventFilter, Redrive, Rejected, RetryPolicy, Status, Work
from tests.waiting import until
from tests.worker.conftest import working


async def test_a_stopping_worker_lets_a_hook_finish(app: Redrive) -> None:
    """The handler has ended, its event has not: the stop waits for it, and nothing is lost."""
    begun = asyncio.Event()

    async def slow_hook(letter: DeadLetter, tx: Work) -> None:
        begun.set()
        await asyncio.sleep(0.3)

    @app.handler("settle", on_dead_letter=slow_hook)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    await app.publish("settle")
    async with working(app):
        await begun.wait()

    (event,) = await app.events()
    assert (event.status, event.attempts, event.lost_count) == (Status.FAILED, 1, 0)


@pytest.mark.req("W5")
async def test_the_hook_moves_domain_state_in_the_transaction_of_the_dead_letter(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table dispute (receipt text, state text)")

    async def escalate(letter: DeadLetter, tx: Work) -> None:
        await tx.execute(f"insert into dispute values ('{letter.payload['receipt']}', 'dispute-ready')")

    @app.handler("settle", on_dead_letter=escalate)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    await app.publish("settle", {"receipt": "r-1"})
    await app.worker().drain()

    async with app.store.transaction() as tx:
        assert [tuple(row) for row in await tx.fetch("select * from dispute")] == [("r-1", "dispute-ready")]
    (event,) = await app.events()
    assert event.status is Status.FAILED


@pytest.mark.req("A6")
async def test_a_hook_that_fails_is_an_error_in_log_and_trail_and_the_event_still_ends_visibly(app: Redrive) -> None:
    calls: list[str] = []

    async def broken_hook(letter: DeadLetter, tx: Work) -> None:
        calls.append(letter.type)
        raise OSError("evidence store is gone")

    @app.handler("settle", on_dead_letter=broken_hook)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    published = await app.publish("settle", {})
    with structlog.testing.capture_logs() as logs:
        await app.worker().drain()

    (event,) = await app.events()
    assert event.status is Status.FAILED
    assert len(calls) == 3
    levels = {entry["log_level"] for entry in logs if entry["event"] == "hook failed"}
    assert levels == {"error"}
    assert "evidence-failed" in [entry.kind for entry in await app.trail(published.id)]


async def test_a_hook_that_catches_an_error_of_the_database_does_not_undo_the_dead_letter(app: Redrive) -> None:
    """On PostgreSQL a failed statement undoes the whole transaction, and its commit is answered without an error."""
    async with app.store.transaction() as tx:
        await tx.execute("create table dispute (receipt text primary key)")

    async def careless_hook(letter: DeadLetter, tx: Work) -> None:
        for _ in range(2):
            with suppress(Exception):
                await tx.execute("insert into dispute values ('the same')")

    @app.handler("settle", on_dead_letter=careless_hook)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    await app.publish("settle", {})
    await app.worker().drain()

    (event,) = await app.events()
    assert event.status is Status.FAILED


async def test_a_hook_that_recovers_is_applied_once(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table dispute (receipt text)")
    calls: list[int] = []

    async def flaky_hook(letter: DeadLetter, tx: Work) -> None:
        calls.append(1)
        await tx.execute("insert into dispute values ('x')")
        if len(calls) == 1:
            raise OSError("once")

    @app.handler("settle", on_dead_letter=flaky_hook)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    await app.publish("settle", {})
    await app.worker().drain()

    async with app.store.transaction() as tx:
        assert len(await tx.fetch("select * from dispute")) == 1


async def test_a_dead_letter_publishes_a_lifecycle_event_for_those_who_handle_it(app: Redrive) -> None:
    told: list[dict[str, Any]] = []

    @app.handler("redrive.event.failed")
    async def tell(payload: dict[str, Any], ctx: Context) -> None:
        told.append(payload)

    @app.handler("settle")
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    published = await app.publish("settle", {})
    await app.worker().drain()

    assert [payload["event_id"] for payload in told] == [str(published.id)]
    assert told[0]["error_class"] == "rejected"


async def test_without_a_listener_no_lifecycle_event_is_left_lying_about(app: Redrive) -> None:
    @app.handler("settle")
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    await app.publish("settle", {})
    await app.worker().drain()

    assert [event.type for event in await app.events()] == ["settle"]


@pytest.mark.req("O7")
async def test_every_transition_to_failed_is_a_log_line_with_what_a_person_needs(app: Redrive) -> None:
    @app.handler("settle", retry=RetryPolicy(max_attempts=1))
    async def settle(payload: Any) -> None:
        raise ConnectionError("bank is away")

    published = await app.publish("settle", {}, source="shop")
    with structlog.testing.capture_logs() as logs:
        await app.worker().drain()

    (line,) = [entry for entry in logs if entry["event"] == "event dead-lettered"]
    assert line["log_level"] == "error"
    assert line["event_id"] == str(published.id)
    assert (line["event_type"], line["source"], line["target"]) == ("settle", "shop", "settle")
    assert line["handler_name"].endswith("settle")
    assert line["last_error"] == "ConnectionError: bank is away"
    assert line["attempts"] == 1


async def test_the_log_line_does_not_tell_what_is_secret_in_the_event(app: Redrive) -> None:
    @app.handler("settle", retry=RetryPolicy(max_attempts=1))
    async def settle(payload: Any) -> None:
        raise ConnectionError(f"bank says no to {payload['iban']} with password=hunter2")

    await app.publish("settle", {"iban": "DE02 1203 0000"})
    with structlog.testing.capture_logs() as logs:
        await app.worker().drain()

    (line,) = [entry for entry in logs if entry["event"] == "event dead-lettered"]
    assert line["last_error"] == "ConnectionError: bank says no to ••• with password=•••"


async def test_no_log_line_about_an_event_tells_what_is_secret_in_it(app: Redrive) -> None:
    async def hook(letter: Any, tx: Any) -> None:
        raise RuntimeError(f"no ledger for {letter.payload['iban']}")

    @app.handler("settle", retry=RetryPolicy(max_attempts=1), on_dead_letter=hook)
    async def settle(payload: Any) -> None:
        raise ConnectionError(f"bank says no to {payload['iban']}")

    @app.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        raise RuntimeError(f"too late for {payload['iban']}")

    await app.publish("settle", {"iban": "DE02 1203 0000"})
    await app.publish("pay", {"iban": "DE02 1203 0000"})
    with structlog.testing.capture_logs() as logs:
        await app.worker().drain()

    said = {entry["event"]: str(entry.get("error") or entry.get("last_error")) for entry in logs}
    assert said["hook failed"] == "RuntimeError('no ledger for •••')"
    assert said["handler raised after its transaction"] == "RuntimeError('too late for •••')"
    assert "1203" not in str(logs)


class Inbox(http.server.BaseHTTPRequestHandler):
    """Takes what a Sentry client sends."""

    received: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = zlib.decompress(body, 31)
        for line in body.splitlines():
            item = json.loads(line)
            if "contexts" in item:
                self.received.append(item)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def sentry() -> Iterator[list[dict[str, Any]]]:
    Inbox.received = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Inbox)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    sentry_sdk.init(
        dsn=f"http://key@127.0.0.1:{server.server_port}/1",
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[LoggingIntegration()],  # as by default: a line at level error is an event
    )
    try:
        yield Inbox.received
    finally:
        client = sentry_sdk.get_client()
        client.close(timeout=2.0)
        sentry_sdk.get_global_scope().set_client(None)
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.req("O7")
async def test_every_transition_to_failed_is_a_sentry_event(app: Redrive, sentry: list[dict[str, Any]]) -> None:
    @app.handler("settle")
    async def settle(payload: Any) -> None:
        raise Rejected(f"no funds on {payload['iban']}")

    published = await app.publish("settle", {"iban": "DE02 1203 0000"}, source="shop")
    await app.worker().drain()
    sentry_sdk.flush(timeout=5.0)
    await until(lambda: bool(sentry))

    (report,) = sentry
    facts = report["contexts"]["redrive"]
    assert facts["event_id"] == str(published.id)
    assert (facts["event_type"], facts["source"], facts["target"], facts["attempts"]) == ("settle", "shop", "settle", 1)
    assert facts["handler_name"].endswith("settle")
    assert facts["last_error"].startswith("redrive.errors.Rejected: no funds on •••\n")
    assert "1203" not in json.dumps(report)


@pytest.mark.req("O7")
async def test_a_dead_letter_is_one_sentry_event_though_its_log_line_is_an_error(
    app: Redrive, sentry: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.logs._structlog", lambda: None)  # as where the application uses logging

    @app.handler("settle")
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    await app.publish("settle")
    await app.worker().drain()
    logging.getLogger("shop").error("the last line")
    sentry_sdk.flush(timeout=5.0)
    await until(lambda: len(sentry) >= 2)

    said = [report.get("message") or report["logentry"]["message"] for report in sentry]
    assert sorted(each.partition(":")[0] for each in said) == ["settle dead-lettered", "the last line"]


@pytest.mark.req("O7")
async def test_a_dead_letter_of_lost_workers_is_reported_too(app: Redrive) -> None:
    @app.handler("settle")
    async def settle(payload: Any) -> None: ...

    await app.publish("settle", {})
    for _ in range(3):
        await lose_a_worker(app)

    with structlog.testing.capture_logs() as logs:
        async with working(app, max_lost=3, lease="1s"):
            await until(lambda: any(entry["event"] == "event dead-lettered" for entry in logs))

    (event,) = await app.events(EventFilter(status=Status.FAILED))
    assert event.error_class == "worker_lost"
    assert event.safe_to_retry is False


async def lose_a_worker(app: Redrive) -> None:
    """Claim what is there with a session that is ended at once, as if its process had been killed."""
    from redrive.store.base import Finished, Session

    session = Session(app.clock.new_id(), "lost", "h", 1, ("default",), (), 1)
    await app.store.begin_session(session, 60.0)
    claims = app.store.claims(session.id, [("default", 1, 0)], actor="lost")
    (row,) = (await claims.turn(Finished(), 10)).claimed
    await claims.close()
    await app.store.end_session(session.id)
    if row[4] < 2:
        await app.store.sweep(app.clock.new_id(), max_lost=3, limit=10, base_seconds=0.0, actor="t")
