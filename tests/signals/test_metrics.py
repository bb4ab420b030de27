"""What Prometheus is told is what happened."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from redrive import (
    Context,
    DependencyUnavailable,
    Redrive,
    Release,
    RetryPolicy,
    TerminalHandlerError,
)
from redrive.counts import MOST_NAMES, OTHER, Counts, Histogram
from redrive.errors import ConfigurationError
from redrive.operate.endpoint import address_from, metrics_endpoint
from redrive.operate.metrics import COUNTED, KNOWN, Collector, metrics_text, written_anew
from tests import warm
from tests.operate.helpers import ended, environment, start
from tests.signals.conftest import get
from tests.waiting import until, wait_until
from tests.worker.conftest import working


async def told(app: Redrive) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Scrape afresh, and read it as Prometheus would."""
    return parsed((await written_anew(app)).decode())


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    names = {each.rstrip("_"): value for each, value in labels.items()}
    return name, tuple(sorted(names.items()))


@pytest.mark.req("W10")
async def test_attempts_are_counted_by_outcome_and_class(app: Redrive) -> None:
    @app.handler("order.paid", retry=RetryPolicy(max_attempts=2, base_delay=0, jitter="none"))
    async def ship(order: int, ctx: Context) -> None:
        if order == 1 and ctx.attempt == 1:
            raise KeyError("not yet")
        if order == 2:
            raise TerminalHandlerError("never")

    for order in range(5):
        await app.publish("order.paid", order)
    await app.worker().drain()
    found = await told(app)

    attempts = {key: value for key, value in found.items() if key[0] == "redrive_attempts_total"}
    assert attempts == {
        of("redrive_attempts_total", type="order.paid", outcome="delivered", class_=""): 4,
        of("redrive_attempts_total", type="order.paid", outcome="failed", class_="broken"): 1,
        of("redrive_attempts_total", type="order.paid", outcome="failed", class_="rejected"): 1,
    }
    assert found[of("redrive_first_attempt_delivered_total", type="order.paid")] == 3
    assert found[of("redrive_recovered_total", type="order.paid", by="retry")] == 1
    assert found[of("redrive_recovery_seconds_count", by="retry")] == 1
    assert 0 < found[of("redrive_recovery_seconds_sum", by="retry")] < 60
    assert found[of("redrive_dead_lettered_total", type="order.paid", class_="rejected")] == 1
    assert found[of("redrive_handler_seconds_count", target="order.paid")] == 6
    assert found[of("redrive_handler_seconds_bucket", target="order.paid", le="+Inf")] == 6
    assert found[of("redrive_claimed_total")] == 6


@pytest.mark.req("W10")
async def test_the_database_says_how_events_stand(app: Redrive) -> None:
    @app.handler("order.bad")
    async def refuse(order: dict[str, Any]) -> None:
        raise TerminalHandlerError("never")

    @app.handler("order.sent", needs=["carrier"])
    async def send(order: dict[str, Any]) -> None:
        raise DependencyUnavailable("carrier")

    await app.worker().drain()  # makes the dependency known
    await app.open_dependency("carrier", by="ada", reason="a test")
    for _ in range(3):
        await app.publish("order.bad", {})
    await app.publish("order.sent", {})
    await app.worker().drain()
    await app.publish("order.later", {}, delay="1h", queue="slow")
    await app.publish("order.now", {}, queue="slow")
    found = await told(app)

    assert found[of("redrive_database_up")] == 1
    assert found[of("redrive_events", status="pending")] == 2
    assert found[of("redrive_events", status="failed")] == 3
    assert found[of("redrive_events", status="blocked")] == 1
    assert found[of("redrive_queue_depth", queue="slow")] == 2
    assert found[of("redrive_due_events", queue="slow", type="order.now")] == 1
    assert of("redrive_due_events", queue="slow", type="order.later") not in found
    assert found[of("redrive_unserved_events", queue="slow")] == 2
    assert found[of("redrive_dead_letters", type="order.bad", class_="rejected")] == 3
    assert found[of("redrive_groups", state="new")] == 1
    state = {"dependency": "carrier", "kind": "dependency"}
    assert found[of("redrive_dependency_state", **state, state="open")] == 1
    assert found[of("redrive_dependency_state", **state, state="closed")] == 0
    assert found[of("redrive_dependency_waiting", **state)] == 1
    for status in ("failed", "blocked", "pending"):
        assert 0 < found[of("redrive_oldest_age_seconds", status=status)] < 60, status
    assert found[of("redrive_workers")] == 0


async def test_a_redrive_is_seen_while_it_goes_on_and_what_it_brought_through(app: Redrive) -> None:
    mended = False

    @app.handler("order.paid")
    async def ship(order: int) -> None:
        if not mended:
            raise TerminalHandlerError("not yet")

    for order in range(3):
        await app.publish("order.paid", order)
    await app.worker().drain()
    plan = await app.plan("type:order.paid", by="ada")
    await app.start(plan.redrive.token, by="ada", reason="mended", release=Release(ramp=(1,)))
    before = await told(app)
    mended = True
    await app.worker().drain()
    after = await told(app)

    assert before[of("redrive_redrives", state="running")] == 1
    assert before[of("redrive_redrive_events", outcome="ready")] == 3
    assert after[of("redrive_redrives", state="done")] == 1
    assert after[of("redrive_recovered_total", type="order.paid", by="replay")] == 3
    assert after[of("redrive_recovery_seconds_count", by="replay")] == 3


async def test_a_database_that_does_not_answer_is_said_and_the_counts_are_told_all_the_same() -> None:
    found = await told(Redrive("postgresql://nobody@127.0.0.1:9/none"))

    assert found[of("redrive_database_up")] == 0
    assert of("redrive_events", status="pending") not in found
    assert found[of("redrive_claimed_total")] == 0


async def test_the_database_is_asked_once_however_many_scrape_at_once(app: Redrive) -> None:
    first = await metrics_text(app)
    await app.publish("order.paid", {})

    again = await asyncio.gather(*(metrics_text(app) for _ in range(10)))

    assert set(again) == {first}


async def test_every_family_that_is_told_is_declared_and_documented(app: Redrive) -> None:
    declared = {each.name: each for each in (*COUNTED, *KNOWN)}
    text = (await metrics_text(app)).decode()

    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert declared[name].kind == family.type
        assert declared[name].help == family.documentation


def test_types_beyond_the_cap_count_together() -> None:
    counts = Counts()

    for number in range(MOST_NAMES + 50):
        row: list[Any] = [None] * 22
        row[3:7] = 1, 0, "{}", f"type.{number}"  # attempts, lost, payload, type
        row[19] = 0  # cycle
        counts.delivered([row], 0.0)
        counts.ran(f"target.{number}", 0.1)

    assert len({type_ for type_, _, _ in counts.attempts}) == MOST_NAMES + 1
    assert counts.at_once[OTHER] == 50
    assert len(counts.runs) == MOST_NAMES + 1
    assert counts.runs[OTHER].count == 50


def test_a_histogram_knows_below_which_bound_a_share_of_its_values_lies() -> None:
    times = Histogram((0.1, 1.0, 10.0))

    for value in (0.05, 0.1, 0.5, 20.0):
        times.add(value)

    assert times.buckets == [2, 1, 0, 1]
    assert times.quantile(0.5) == 0.1
    assert times.quantile(0.75) == 1.0
    assert math.isinf(times.quantile(0.99))


async def test_the_counts_of_all_workers_of_a_process_add_up(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(order: int) -> None: ...

    worker = app.worker()
    for _ in range(2):
        await app.publish("order.paid", 1)
        await worker.drain()  # the same worker twice, then another
    await app.publish("order.paid", 1)
    await app.worker().drain()

    assert app.counts.together.claimed == 3
    assert app.counts.together.delivered == 3


async def test_a_registry_of_ones_own_collects_what_the_process_has_counted(app: Redrive) -> None:
    registry = CollectorRegistry()
    registry.register(Collector(app))

    @app.handler("order.paid")
    async def ship(order: int) -> None: ...

    await app.publish("order.paid", 1)
    await app.worker().drain()

    labels = {"type": "order.paid", "outcome": "delivered", "class": ""}
    assert registry.get_sample_value("redrive_attempts_total", labels) == 1
    assert registry.get_sample_value("redrive_database_up") is None


# --- the endpoint ---


async def test_a_worker_answers_scrapes_beside_its_work(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(order: int) -> None: ...

    async with metrics_endpoint(app, "127.0.0.1", 0) as port, working(app):
        await app.publish("order.paid", 1)
        await until(lambda: app.counts.at_once["order.paid"] == 1)
        status, text = await get(port, "/metrics?format=text")
        health = await get(port, "/healthz")
        head = await get(port, "/metrics", "HEAD")

    assert status == 200
    assert parsed(text)[of("redrive_workers")] == 1
    assert parsed(text)[of("redrive_first_attempt_delivered_total", type="order.paid")] == 1
    assert health == (200, "ok\n")
    assert head == (200, "")


async def test_what_is_no_scrape_is_told_so(app: Redrive) -> None:
    async with metrics_endpoint(app, "127.0.0.1", 0) as port:
        assert (await get(port, "/"))[0] == 404
        assert (await get(port, "/metrics", "POST"))[0] == 405
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 40_000 + b"\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()


async def test_an_endpoint_ends_with_clients_that_say_nothing(app: Redrive) -> None:
    async with metrics_endpoint(app, "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0)

    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(app: Redrive) -> None:
    async with metrics_endpoint(app, "127.0.0.1", 0) as port:
        with pytest.raises(ConfigurationError, match="choose another port"):
            async with metrics_endpoint(app, "127.0.0.1", port):
                raise AssertionError("it listens twice")


@pytest.mark.parametrize("text", ["9464", ":9464", "here:", "here:port", "here:70000"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        address_from(text)


def test_an_address_may_be_of_any_kind() -> None:
    assert address_from("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert address_from("[::1]:80") == ("::1", 80)


def test_redrive_worker_serves_metrics_and_logs_json_when_told_to(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from redrive import Redrive\n"
        f"app = Redrive({sqlite_url!r})\n"
        "@app.handler('order.paid')\nasync def ship(order): ...\n"
    )
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = warm.python(
            ["-m", "redrive.operate.cli", "worker", "shop:app", "--metrics", "127.0.0.1:0"],
            cwd=tmp_path,
            env=environment(REDRIVE_LOG_FORMAT="json"),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
        try:

            def address() -> str | None:
                lines = [json.loads(line) for line in log.read_text().splitlines()]
                return next((line["address"] for line in lines if line["event"] == "metrics endpoint"), None)

            with urllib.request.urlopen(f"http://{wait_until(address)}/metrics", timeout=20) as answer:
                text = answer.read().decode()
        finally:
            process.terminate()
            process.wait(20)

    assert parsed(text)[of("redrive_database_up")] == 1
    assert process.returncode == 0


def test_redrive_worker_refuses_an_address_that_is_none(sqlite_url: str, tmp_path: Path) -> None:
    result = ended(start("worker", "shop:app", "--metrics", "9464", cwd=tmp_path))

    assert result.code == 2
    assert "127.0.0.1:9464" in result.err
