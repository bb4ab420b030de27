"""A database of any earlier schema becomes one of the newest with all it holds; a migration that is killed goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest

from redrive import EventFilter, Redrive, Status
from redrive.clock import SystemClock
from redrive.errors import SchemaMissing
from redrive.store.base import Store
from redrive.store.postgres import PostgresStore
from redrive.store.sql import migrations
from redrive.store.sqlite import SqliteStore, _split
from redrive.store.writer import Connection
from tests.lab.record import Record
from tests.stores.helpers import is_postgres

pytestmark = pytest.mark.no_tables

VERSIONS = [version for version, _, _ in migrations("sqlite")]
NEWEST = VERSIONS[-1]
ALL_ENDED = {Status.DELIVERED: 5, Status.CANCELLED: 1}  # the dead letter was redriven, what was in flight swept
AROUND = 8  # more statements than there are before and behind those of a migration
STATUSES = ("pending", "in_flight", "delivered", "failed", "cancelled")


def store_at(url: str) -> Store:
    if is_postgres(url):
        return PostgresStore(url, SystemClock())
    return SqliteStore(url.removeprefix("sqlite:///"), SystemClock())


async def migrate(url: str, to: int | None = None) -> list[str]:
    store = store_at(url)
    await store.open()
    try:
        return await store.migrate(to=to)
    finally:
        await store.close()


async def version_of(url: str) -> int:
    store = store_at(url)
    await store.open()
    try:
        return await store.schema_version()
    finally:
        await store.close()


def fill(url: str, number: int) -> None:
    """Put in a worker that is gone and an event of each status, in the columns that the first version has."""
    if is_postgres(url):
        at, moment, before, queues = "now()", "interval '1 hour'", "redrive.", "'{default}', '{}'"
    else:
        at, moment, before, queues = "1700000000000000", "3600000000", "redrive_", """'["default"]', '[]'"""
    session = f"'0190{number:04d}-0000-7000-8000-00000000ffff'"
    rows = []
    for n, status in enumerate(STATUSES):
        ended = f"{at} - {moment}" if status in ("delivered", "failed", "cancelled") else "null"
        due = at if status != "pending" else f"{at} - {moment}"
        rows.append(
            f"('0190{number:04d}-0000-7000-8000-{n:012d}', 'lab.old', '', 'lab.old', '{{\"n\": {n}}}', '{{}}',"
            f" 'k{number}-{n}', 'default', 1, '{status}', {due}, {at}, {ended}, 1, 1,"
            f" {session if status == 'in_flight' else 'null'})"
        )
    gone = (
        f"insert into {before}session (id, name, host, pid, queues, targets, concurrency, generation, started_at,"
        f" seen_at, lease_until) values ({session}, 'w', 'h', 1, {queues}, 1, 0, {at} - {moment}, {at} - {moment},"
        f" {at} - {moment})"
    )
    text = (
        f"insert into {before}outbox (id, type, source, target, payload, headers, idempotency_key, queue, priority,"
        f" status, due_at, created_at, ended_at, attempts, fence, session_id) values {', '.join(rows)}"
    )
    if is_postgres(url):
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(gone.encode())
            server.execute(text.encode())
        return
    file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    file.execute(gone)
    file.execute(text)
    file.close()


async def use(url: str) -> dict[str, int]:
    """Work with what is there, as the newest code does; say how everything ended."""
    done: list[int] = []
    app = Redrive(url, migrate=False)

    @app.handler("lab.old")
    async def handle(payload: dict[str, int]) -> None:
        done.append(payload["n"])

    async with app:
        await app.publish("lab.old", {"n": 99})
        await app.worker().drain()
        plan = await app.plan("type:lab.old", by="ann", unsafe=True)
        await app.start(plan.redrive.token, by="ann", reason="upgraded")
        await app.worker().drain()
        await app.worker().drain()
        assert (await app.verify_trail()).sound
        events = await app.events(EventFilter(limit=1000))
    counts: dict[str, int] = {}
    for event in events:
        counts[event.status] = counts.get(event.status, 0) + 1
    return counts


async def upgrade_from(url: str, version: int) -> None:
    await migrate(url, to=version)
    fill(url, version)
    too_early = Redrive(url, migrate=False)
    if version < NEWEST:
        with pytest.raises(SchemaMissing, match=f"schema version {version} of {NEWEST}: run `redrive migrate`"):
            await too_early.open()
        await too_early.close()

    done = await migrate(url)

    assert len(done) == NEWEST - version
    counts = await use(url)
    assert counts == ALL_ENDED, version


@pytest.mark.promise("upgrade")
@pytest.mark.parametrize("version", [1, 2, 4, 5, 8, 12])
async def test_a_database_of_an_earlier_schema_is_upgraded_with_all_it_holds(
    version: int, store_url: str, record: Callable[..., Record]
) -> None:
    run = record("upgrade", "postgres" if is_postgres(store_url) else "sqlite")
    await upgrade_from(store_url, version)
    run.cases += 1


# --- killed on the way ---


def killed_at(url: str, to: int, statement: int) -> bool:
    """Migrate in a child that is killed when it has run so many statements; say whether it was."""
    child = os.fork()
    if child == 0:
        try:
            _die_after(statement)
            asyncio.run(migrate(url, to))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _die_after(statement: int) -> None:
    """Kill this process when it has run so many statements of a migration. Both drivers are led past this."""
    left = [statement]

    class Dying(Connection):
        def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
            if self.in_transaction:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
            return super().execute(text, *values)

    connect, execute = sqlite3.connect, asyncpg.Connection.execute

    async def dying(self: Any, text: str, *values: Any, **options: Any) -> str:
        parts = parts_of(text)
        if len(parts) > left[0] > 0 and len(parts) > 1:
            await execute(self, ";".join(parts[: left[0]]), **options)
        if len(parts) > left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= len(parts)
        return await execute(self, text, *values, **options)

    sqlite3.connect = lambda *args, **options: connect(*args, **{**options, "factory": Dying})
    asyncpg.Connection.execute = dying  # type: ignore[method-assign, assignment]


def parts_of(text: str) -> list[str]:
    """Cut what PostgreSQL is sent into statements; bodies of functions stay whole."""
    parts, body = [""], False
    for line in text.splitlines(keepends=True):
        code = line.partition("--")[0].rstrip() if not body else line.rstrip()
        body ^= code.count("$$") % 2 == 1
        parts[-1] += line
        if code.endswith(";") and not body:
            parts.append("")
    return [part for part in parts if any(line.partition("--")[0].strip() for line in part.splitlines())]


def statements_of(url: str, version: int) -> int:
    """Count the statements that a migration has."""
    store, cut = ("postgres", parts_of) if is_postgres(url) else ("sqlite", _split)
    return len(cut(next(text for number, _, text in migrations(store) if number == version)))


def kill_on_the_way(url: str, run: Record, stride: int) -> None:
    """Kill each migration here and there, and before each of its last statements, which write down that it is done."""
    for version in VERSIONS:
        total = statements_of(url, version)
        for statement in sorted({*range(version % stride, total, stride), *range(total, total + AROUND)}):
            if killed_at(url, version, statement):
                run.faults["killed"] += 1
                assert asyncio.run(version_of(url)) == version - 1, (
                    f"version {version} was killed at statement {statement}"
                )
            else:
                run.reached["done before the kill"] += 1
                break
            run.cases += 1
        if version == 2:
            fill(url, version)
        asyncio.run(migrate(url, to=version))
        assert asyncio.run(version_of(url)) == version
    assert asyncio.run(migrate(url)) == []


@pytest.mark.promise("upgrade")
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
def test_a_migration_that_is_killed_is_there_or_not_and_the_next_run_goes_on(
    form: str, store_url: str, record: Callable[..., Record]
) -> None:
    run = record("upgrade", "postgres" if is_postgres(store_url) else "sqlite")

    kill_on_the_way(store_url, run, stride=8 if form == "short" else 1)

    assert run.faults["killed"] > len(VERSIONS)
    assert asyncio.run(use(store_url)) == ALL_ENDED
