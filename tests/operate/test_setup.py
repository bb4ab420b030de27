"""Setting up: init, migrate, publish, doctor, and help that reads well."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import Redrive, Retention, RetryPolicy, __version__
from redrive.clock import VirtualClock
from redrive.operate.doctor import Check, Health, judge_sqlite, look, problems
from redrive.store.base import Session
from tests.operate.helpers import Seeds, in_app, read, redrive

pytestmark = pytest.mark.no_tables


def test_the_version_is_told() -> None:
    assert redrive("--version").out == f"redrive {__version__}\n"


def test_help_names_every_command_in_the_order_of_use() -> None:
    result = redrive("--help")

    places = [result.out.index(f"│ {name} ") for name in ("demo", "init", "up", "events", "dlq", "audit", "bench")]
    assert places == sorted(places)
    assert all(len(line) <= 80 for line in result.out.splitlines())


@pytest.mark.parametrize("group", [[], ["events"], ["dlq"], ["audit"]])
def test_without_a_command_there_is_help(group: list[str]) -> None:
    result = redrive(*group)

    assert result.code == 2
    assert "Usage:" in result.out + result.err


# --- init ---


def test_init_writes_an_app_that_works(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "first_app", raising=False)

    written = redrive("init", "first_app.py")
    published = redrive("publish", "order.paid", '{"id": 7}', "--app", "first_app:app", "-o", "json")
    worked = redrive("worker", "first_app:app", "--drain")

    assert (written.code, published.code, worked.code) == (0, 0, 0)
    assert "redrive up first_app:app" in written.out
    assert "order 7 shipped at attempt 1" in worked.out
    assert "order 7: the customer knows" in worked.out
    assert read("sqlite:///redrive.db", published.json["id"]).status == "delivered"
    sys.modules.pop("first_app", None)


def test_init_overwrites_nothing(empty_folder: Path) -> None:
    (empty_folder / "app.py").write_text("mine")

    result = redrive("init")

    assert result.code == 4
    assert (empty_folder / "app.py").read_text() == "mine"
    assert redrive("init", "notes.txt").code == 4
    assert redrive("init", "nowhere/app.py").code == 1


# --- migrate ---


def test_migrate_creates_the_tables_and_says_so_once(store_url: str) -> None:
    first = redrive("migrate", "-o", "json", "-u", store_url)
    second = redrive("migrate", "-o", "json", "-u", store_url)

    assert first.json["applied"][0] == "0001_engine"
    assert second.json == {"applied": []}
    assert redrive("events", "ls", "-u", store_url).code == 0


def test_the_printed_sql_does_the_same_without_touching_a_database(sqlite_url: str, empty_folder: Path) -> None:
    script = redrive("migrate", "--sql", "-u", sqlite_url).out
    path = Path(sqlite_url.removeprefix("sqlite:///"))

    assert not path.exists()
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    assert redrive("migrate", "-o", "json", "-u", sqlite_url).json == {"applied": []}
    assert redrive("publish", "order.paid", "{}", "-u", sqlite_url).code == 0


def test_sql_is_not_printed_to_who_asks_for_json(sqlite_url: str) -> None:
    result = redrive("migrate", "--sql", "-o", "json", "-u", sqlite_url)

    assert (result.code, result.out) == (2, "")


def test_the_printed_sql_works_on_postgresql_too(postgres_url: str) -> None:
    script = redrive("migrate", "--sql", "-u", postgres_url).out

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(script.encode())

    assert redrive("migrate", "-o", "json", "-u", postgres_url).json == {"applied": []}
    assert redrive("publish", "order.paid", "{}", "-u", postgres_url).code == 0


def test_only_newer_migrations_are_printed_on_request() -> None:
    assert redrive("migrate", "--sql", "--since", "999").out == "-- nothing comes after version 999\n"


# --- publish ---


def test_publish_stores_what_was_said(store_url: str) -> None:
    redrive("migrate", "-u", store_url)

    result = redrive(
        "publish", "order.paid", '{"id": 7, "who": "Zoë"}', "--subject", "order 7", "--retry-key", "k", "-H", "a=b=c",
        "--idempotency-key", "i", "--correlation", "talk", "--queue", "slow", "--priority", "high", "--delay", "1h",
        "-o", "json", "-u", store_url,
    )  # fmt: skip

    event = read(store_url, result.json["id"])
    assert event.payload == {"id": 7, "who": "Zoë"}
    assert (event.subject, event.retry_key, event.idempotency_key) == ("order 7", "k", "i")
    assert (event.correlation_id, event.queue, event.priority, event.headers) == ("talk", "slow", 0, {"a": "b=c"})
    assert 3_590 < (event.due_at - event.created_at).total_seconds() < 3_610
    again = redrive("publish", "order.paid", "{}", "--retry-key", "k", "-o", "json", "-u", store_url)
    assert again.json == {"id": result.json["id"], "target": "order.paid", "created": False}


def test_a_payload_comes_from_a_file_or_from_standard_input(sqlite_url: str, empty_folder: Path) -> None:
    (empty_folder / "order.json").write_text('{"id": 8}')

    from_file = redrive("publish", "order.paid", "@order.json", "-u", sqlite_url)
    from_input = redrive("publish", "order.paid", "-", "-u", sqlite_url, stdin='{"id": 9}')

    assert "is new" in from_file.err
    assert read(sqlite_url, from_file.out.strip()).payload == {"id": 8}
    assert read(sqlite_url, from_input.out.strip()).payload == {"id": 9}


@pytest.mark.parametrize(
    ("payload", "code", "said"),
    [
        ("{bad", 2, "not JSON"),
        ("", 2, "not JSON"),
        ('{"a": NaN}', 2, "NaN"),
        ("[" * 100_000, 2, "nested too deeply"),
        ('{"a": "\\ud800"}', 4, "payload.a contains a lone surrogate"),
        ('{"a": "\\u0000"}', 4, "payload.a contains a NUL"),
        ("[" * 70 + "]" * 70, 4, "nested deeper than 64"),
        (json.dumps("x" * 1_100_000), 4, "1,048,576"),
        ("@missing.json", 1, "missing.json cannot be read"),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_in_one_line(
    store_url: str, payload: str, code: int, said: str
) -> None:
    redrive("migrate", "-u", store_url)

    result = redrive("publish", "order.paid", payload, "-u", store_url)

    assert result.code == code
    assert said in result.err
    assert len(result.err.splitlines()) == 1
    assert redrive("events", "ls", "-o", "json", "-u", store_url).json == []


# --- doctor ---


def test_a_healthy_database_passes(store_url: str) -> None:
    redrive("migrate", "-u", store_url)

    result = redrive("doctor", "-o", "json", "-u", store_url)

    assert result.code == 0
    assert {check["health"] for check in result.json if check["name"] != "sqlite"} == {"ok"}


def test_the_doctor_sees_dead_letters_and_work_without_workers(seeds: Seeds) -> None:
    result = redrive("doctor", "-o", "json", "-u", seeds.url)
    shown = redrive("doctor", "-u", seeds.url)

    found = {check["name"]: check for check in result.json}
    assert found["dead letters"]["health"] == "warning"
    assert found["workers"]["what"] == "none is running, events wait: 2"
    assert all(check["what_to_do"] for check in result.json if check["health"] != "ok")
    assert all(len(line) <= 80 for line in shown.out.splitlines()[:-1])


async def _leave_a_session(app: Redrive) -> None:
    session = Session(app.clock.new_id(), "gone", "host", 1, ("default",), ("order.other",), 1)
    await app.store.begin_session(session, 3600.0)
    claims = app.store.claims(session.id, [("default", 1, 0)], actor="gone")
    await app.publish("order.paid", {})
    from redrive.store.base import Finished

    await claims.turn(Finished(), 1)
    await claims.close()
    await app.publish("order.paid", {})


def test_the_doctor_sees_targets_that_nobody_serves(store_url: str) -> None:
    in_app(store_url, _leave_a_session)

    found = {check["name"]: check for check in redrive("doctor", "-o", "json", "-u", store_url).json}

    assert found["targets"]["what"] == "no live worker serves order.paid (1)"
    assert found["leases"]["what"] == "in flight: 1, all with live workers"


async def _lose_a_session(app: Redrive) -> None:
    await _leave_a_session(app)
    (session,) = await app.store.sessions()
    await app.store.heartbeat(session.id, -10.0)


def test_the_doctor_sees_handlers_that_ran_out_of_time(store_url: str) -> None:
    async def job(app: Redrive) -> None:
        @app.handler("order.slow", timeout=0.05, retry=RetryPolicy(max_attempts=1), brake=False)
        async def ship(order: dict[str, Any]) -> None:
            await asyncio.sleep(30)

        await app.publish("order.slow", {})
        await app.worker().drain()

    in_app(store_url, job)
    found = {check["id"]: check for check in redrive("doctor", "-o", "json", "-u", store_url).json}

    assert found["time-limits"]["health"] == "warning"
    assert "order.slow (timed out): 1" in found["time-limits"]["what"]


def test_the_doctor_of_a_running_app_sees_handlers_that_nearly_ran_out_of_time(sqlite_url: str) -> None:
    async def job(app: Redrive) -> list[Check]:
        @app.handler("order.slow", timeout=1)
        async def ship(order: int) -> None: ...

        for _ in range(200):
            app.counts.ran("order.slow", 0.9)
        found = await problems(app)
        await app.publish("order.slow", 1)  # it is still open
        return found

    found = {check.id: check for check in in_app(sqlite_url, job)}

    assert "99 % within 1s, timeout 1s" in found["time-limits"].what
    assert all(check.what_to_do for check in found.values())


def test_the_doctor_tells_how_long_a_duplicate_is_recognised(store_url: str) -> None:
    async def job(app: Redrive) -> list[str]:
        told = []
        for kept in (Retention(), Retention.of(handled="7d")):
            app.retention = kept
            told += [check.what async for check in look(app) if check.id == "dedupe"]
        return told

    assert in_app(store_url, job) == [
        "handled keys are kept for ever", "handled keys are kept for 7d, and while an event with the key can still run",
    ]  # fmt: skip


def test_the_doctor_sees_a_leap_of_the_clock_that_retention_does_not_count(sqlite_url: str) -> None:
    async def job(app: Redrive) -> Check:
        await app.publish("t")
        async with Redrive(sqlite_url, clock=VirtualClock(app.clock.now() + timedelta(days=200))) as ahead:
            await ahead.publish("t")
        return next(check for check in await problems(app) if check.id == "clock")

    assert "the clock went forward by 200d while nobody saw time pass" in in_app(sqlite_url, job).what


def test_the_doctor_sees_events_held_by_workers_that_are_gone(store_url: str) -> None:
    in_app(store_url, _lose_a_session)

    found = {check["name"]: check for check in redrive("doctor", "-o", "json", "-u", store_url).json}

    assert found["leases"]["what"] == "held by workers that are gone: 1"


def test_the_doctor_ends_with_1_when_there_is_a_problem(sqlite_url: str) -> None:
    sqlite3.connect(Path(sqlite_url.removeprefix("sqlite:///"))).close()
    Path(sqlite_url.removeprefix("sqlite:///")).touch()

    result = redrive("doctor", "-o", "json", "-u", sqlite_url)

    assert result.code == 1
    assert result.json[-1]["what_to_do"] == "run `redrive migrate`"


@pytest.mark.parametrize(
    ("version", "health"),
    [
        ("SQLite 3.40.1", Health.WARNING),
        ("SQLite 3.44.5", Health.WARNING),
        ("SQLite 3.44.6", Health.OK),
        ("SQLite 3.45.0", Health.WARNING),
        ("SQLite 3.50.6", Health.WARNING),
        ("SQLite 3.50.7", Health.OK),
        ("SQLite 3.51.2", Health.WARNING),
        ("SQLite 3.51.3", Health.OK),
        ("SQLite 3.52.0", Health.OK),
        ("SQLite 3.53.1", Health.OK),
    ],
)
def test_the_doctor_knows_which_sqlite_has_the_wal_reset_bug(version: str, health: Health) -> None:
    assert judge_sqlite(version).health is health


def test_a_written_starter_is_no_executable(empty_folder: Path) -> None:
    redrive("init")

    assert not (empty_folder / "app.py").stat().st_mode & stat.S_IXUSR
