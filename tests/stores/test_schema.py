"""Migrations: once, by whoever comes first, readable before they run; and a schema that does not fit is refused."""

from __future__ import annotations

import ast
import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from redrive import Redrive, Status
from redrive.clock import SystemClock
from redrive.errors import SchemaMissing, SchemaTooNew
from redrive.store.sql import migrations
from tests.stores.helpers import is_postgres, output_of, raw, start_python

pytestmark = [pytest.mark.promise("upgrade"), pytest.mark.no_tables]

MIGRATE = """
import asyncio, sys
from redrive import Redrive

async def main():
    app = Redrive(sys.argv[1], migrate=False)
    sys.stdin.readline()
    await app.store.open()
    print(await app.store.migrate())
    await app.store.check_schema()
    await app.store.close()

print("ready", flush=True)
asyncio.run(main())
"""


async def test_a_migration_runs_once(store_url: str) -> None:
    app = Redrive(store_url, migrate=False)
    await app.store.open()

    before, first = await app.store.schema_version(), await app.store.migrate()
    after, second = await app.store.schema_version(), await app.store.migrate()
    await app.store.check_schema()
    await app.store.close()

    newest = migrations(app.store.name)[-1][0]
    assert (before, after) == (0, newest)
    assert first == [f"{version:04d}_{name}" for version, name, _ in migrations(app.store.name)]
    assert second == []


async def test_a_migration_leaves_what_is_there(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        published = await app.publish("t", {"n": 1})

    async with Redrive(store_url, migrate=True) as app:
        assert (await app.events())[0].id == published.id


@pytest.mark.parametrize("round_", range(3))
def test_several_processes_may_migrate_at_once(round_: int, store_url: str) -> None:
    processes = [start_python(MIGRATE, store_url) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    applied = [name for process in processes for name in ast.literal_eval(output_of(process))]

    # Each migration is a transaction of its own, so one process may apply the first and another the second.
    assert sorted(applied) == [f"{version:04d}_{name}" for version, name, _ in migrations("sqlite")]


def test_a_migration_waits_for_one_that_is_under_way(store_url: str) -> None:
    async def migrate() -> list[str]:
        app = Redrive(store_url, migrate=False)
        await app.store.open()
        done = await app.store.migrate()
        await app.store.close()
        return done

    with ThreadPoolExecutor(1) as pool, ExitStack() as under_way:
        if is_postgres(store_url):
            other = under_way.enter_context(psycopg.connect(store_url))
            other.execute("select pg_advisory_xact_lock(%s)", (int.from_bytes(b"redrive"),))
        else:
            asyncio.run(migrate_to_nothing(store_url))
            file = sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)
            under_way.callback(file.close)
            file.execute("begin immediate")
        migrating = pool.submit(asyncio.run, migrate())
        time.sleep(0.3)
        waited = not migrating.done()
        under_way.close()

        assert waited
        assert len(migrating.result()) == len(migrations("sqlite"))


async def migrate_to_nothing(url: str) -> None:
    """Make the file and its journal, without our tables."""
    app = Redrive(url, migrate=False)
    await app.store.open()
    await app.store.close()


async def test_a_schema_that_is_missing_is_refused_with_what_to_do(store_url: str) -> None:
    app = Redrive(store_url, migrate=False)

    with pytest.raises(SchemaMissing, match="run `redrive migrate`"):
        await app.open()

    await app.close()


def from_the_future(url: str, *, needs: int) -> None:
    """Note a migration that this code does not know."""
    with raw(url) as run:
        at = "clock_timestamp()" if is_postgres(url) else "0"
        run(f"insert into {{schema_version}} (version, name, applied_at, needs) values (999, 'x', {at}, {needs})")


async def test_a_schema_that_needs_newer_code_is_refused_with_what_to_do(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        await app.publish("t")
    from_the_future(store_url, needs=998)

    for migrate in (True, False):
        newer = Redrive(store_url, migrate=migrate)
        with pytest.raises(SchemaTooNew, match=r"version 999, .* knows 998; this one knows up to .*: upgrade redrive"):
            await newer.open()
        await newer.close()


async def test_code_goes_on_with_a_newer_schema_that_only_added_something(store_url: str) -> None:
    """So that the old half of a rolling deployment can be started again."""
    async with Redrive(store_url, migrate=True):
        pass
    from_the_future(store_url, needs=migrations("sqlite")[-1][0])

    for migrate in (True, False):
        async with Redrive(store_url, migrate=migrate) as app:
            assert (await app.publish("t")).created


async def test_a_worker_stops_when_its_schema_begins_to_need_newer_code(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)
    done = asyncio.Event()

    @app.handler("t")
    async def handle(_payload: None) -> None:
        done.set()

    async with app:
        await app.publish("t")
        running = asyncio.create_task(app.worker(lease="1s").run())
        await asyncio.wait_for(done.wait(), 30)
        from_the_future(store_url, needs=999)

        with pytest.raises(SchemaTooNew, match="upgrade redrive"):
            await asyncio.wait_for(running, 30)

        assert (await app.events())[0].status is Status.DELIVERED


async def test_a_migration_that_fails_leaves_nothing_behind(store_url: str) -> None:
    taken = "create schema redrive; create table redrive.trail ()"
    with raw(store_url) as run:
        if is_postgres(store_url):
            run(taken)
        else:
            run("create table redrive_trail (x)")
    app = Redrive(store_url, migrate=True)

    with pytest.raises((psycopg.Error, sqlite3.Error, Exception), match="trail"):
        await app.open()
    await app.close()

    with raw(store_url) as run:
        listed = "select tablename from pg_tables where schemaname = 'redrive'"
        if not is_postgres(store_url):
            listed = "select name from sqlite_master where name like 'redrive%'"
        assert len(run(listed)) == 1


def test_migrations_can_be_printed_and_run_by_hand(store_url: str, tmp_path: Path) -> None:
    name = "postgres" if is_postgres(store_url) else "sqlite"
    printed = "\n".join(text for _, _, text in migrations(name))
    if is_postgres(store_url):
        with psycopg.connect(store_url, autocommit=True) as connection:
            connection.execute(printed.encode())
    else:
        file = sqlite3.connect(store_url.removeprefix("sqlite:///"))
        file.executescript(printed)
        file.close()
    with raw(store_url) as run:
        for version, title, _ in migrations(name):
            at = "clock_timestamp()" if is_postgres(store_url) else "0"
            run(f"insert into {{schema_version}} (version, name, applied_at) values ({version}, '{title}', {at})")

    async def use() -> bool:
        async with Redrive(store_url, migrate=False, clock=SystemClock()) as app:
            return (await app.publish("t")).created

    assert asyncio.run(use())


async def test_both_stores_have_the_same_columns(postgres_url: str, sqlite_url: str) -> None:
    for url in (postgres_url, sqlite_url):
        async with Redrive(url, migrate=True):
            pass
    columns: list[dict[str, set[str]]] = []
    tables = ("outbox", "event_handled", "session", "trail", "schema_version", "dead_letters")

    for url in (postgres_url, sqlite_url):
        with raw(url) as run:
            columns.append({})
            for table in tables:
                query = f"select column_name from information_schema.columns where table_name = '{table}'"
                if url == sqlite_url:
                    query = f"select name from pragma_table_info('redrive_{table}')"
                columns[-1][table] = {name for (name,) in run(query)} - {"seq" if table == "outbox" else ""}

    assert columns[0] == columns[1]
    assert all(columns[0].values())
