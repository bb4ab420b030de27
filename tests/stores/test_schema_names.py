"""Tables in a schema of one's own: `Redrive(url, schema="core")`."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib import resources
from typing import Any

import psycopg
import pytest

from redrive import ConfigurationError, Context, Redrive, RetryPolicy, Status, TerminalHandlerError
from redrive.store.sql import in_schema, load, migrations
from tests.operate.helpers import redrive

pytestmark = pytest.mark.no_tables


async def walked(app: Redrive, name: str) -> list[str]:
    """Lead an app through every table: deliveries, a dead letter, steps, a batch, a schedule, a redrive."""
    seen: list[str] = []
    is_broken = True

    @app.handler("paid", retry=RetryPolicy(max_attempts=1))
    async def paid(order: dict[str, Any], ctx: Context) -> None:
        await ctx.step("label", lambda: name)
        if is_broken:
            raise TerminalHandlerError("no such customer")
        async with ctx.transaction() as tx:
            await tx.publish("told", {"order": order["id"]})
        seen.append(f"paid {name}")

    @app.handler("told")
    async def told(order: dict[str, Any], ctx: Context) -> None:
        seen.append(f"told {name}")

    async with app:
        await app.schedules.set("nightly", "told", {"order": 0}, cron="0 3 * * *", by="ada", reason="a report")
        batch = await app.batches.open("import")
        await app.publish("told", {"order": 1}, batch=batch)
        await batch.close()
        await app.publish("paid", {"id": 7}, ordering_key="customer-1", retry_key="order-7")
        await app.worker().drain()
        is_broken = False
        plan = await app.plan("status:failed", by="ada")
        await app.start(plan.redrive.token, by="ada", reason="fixed")
        await app.worker().drain()
        assert (await app.verify_trail()).sound
        assert not [event for event in await app.events() if event.status is not Status.DELIVERED]
    return seen


@pytest.mark.req("O1")
async def test_two_schemas_in_one_database_do_not_meet(store_url: str) -> None:
    apps = {name: Redrive(store_url, schema=name, migrate=True) for name in ("core", "order")}

    seen = [await walked(app, name) for name, app in apps.items()]

    assert seen[0] == ["told core", "paid core", "told core"]
    assert seen[1] == ["told order", "paid order", "told order"]
    assert tables(store_url, "redrive") == set()
    assert tables(store_url, "core") == tables(store_url, "order") >= {"outbox", "event_handled", "trail"}


def tables(url: str, schema: str) -> set[str]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            names = [row[0] for row in file.execute("select name from sqlite_master where type = 'table'")]
        return {name.removeprefix(f"{schema}_") for name in names if name.startswith(f"{schema}_")}
    with psycopg.connect(url) as connection:
        found = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,))
        return {row[0] for row in found.fetchall()}


@pytest.mark.req("O6")
async def test_the_functions_of_a_schema_work_from_psql(postgres_url: str) -> None:
    async with Redrive(postgres_url, schema="core", migrate=True) as app:

        @app.handler("paid")
        async def paid(order: dict[str, Any]) -> None:
            raise TerminalHandlerError("no such customer")

        with psycopg.connect(postgres_url, autocommit=True) as psql:
            psql.execute("select core.publish('paid', '{}')")
            await app.worker().drain()
            rows = psql.execute("select id from core.outbox where status = 'failed'").fetchall()
            psql.execute("select core.outbox_replay(%s, 0, 'sql-direct')", rows[0])
            assert psql.execute("select status from core.outbox").fetchall() == [("pending",)]


async def test_a_publish_and_a_handled_key_in_a_transaction_of_ones_own_go_to_the_apps_schema(store_url: str) -> None:
    done: list[bool] = []
    app = Redrive(store_url, schema="core", migrate=True)

    @app.handler("paid")
    async def paid(order: dict[str, Any], ctx: Context) -> None:
        with connected(store_url) as connection:
            done.append(ctx.once_in_sync(connection))
            connection.commit()

    async with app:
        with connected(store_url) as connection:
            app.publish_in_sync(connection, "paid", {})
            connection.commit()
        await app.worker().drain()

    assert done == [True]


def connected(url: str) -> Any:
    return closing(
        sqlite3.connect(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else psycopg.connect(url)
    )


def test_the_url_names_the_schema_for_every_command(store_url: str) -> None:
    url = f"{store_url}?schema=core"

    assert redrive("migrate", "--url", url).code == 0
    assert redrive("publish", "paid", "{}", "--url", url).code == 0
    assert [row["type"] for row in redrive("events", "ls", "-o", "jsonl", "--url", url).lines] == ["paid"]
    assert tables(store_url, "redrive") == set()


def test_the_printed_migrations_are_for_the_schema(store_url: str) -> None:
    script = redrive("migrate", "--sql", "--url", f"{store_url}?schema=core").out

    assert "schema_version (version, name" in script
    assert default_names(script) == set()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_no_statement_names_the_default_schema_in_another(store: str) -> None:
    folder = resources.files("redrive.store") / store
    verbs = [entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql")]

    texts = [load(store, verb, "core").text for verb in verbs] + [text for *_, text in migrations(store, "core")]

    assert default_names("\n".join(texts)) == set()


def default_names(text: str) -> set[str]:
    """Find what still names the default schema: names, and texts that are neither event types nor words of ours."""
    bare = re.sub(r"--[^\n]*", "", text)
    names = set(
        re.findall(r"(?<![\w.'])redrive\.[a-z_]+|(?<![\w.'])redrive_(?!id\b|item|group|running|standing)[a-z_]+", bare)
    )
    texts = set(re.findall(r"'redrive[.:'][^']*", bare))
    return names | {each for each in texts if not each.startswith(("'redrive.compensate", "'redrive'", "'redrive: "))}


def test_only_names_change_with_the_schema() -> None:
    text = "select 'redrive.compensate', pg_notify('redrive', x) from redrive.redrive -- redrive's"

    assert in_schema("postgres", text, "core") == (
        """select 'redrive.compensate', pg_notify('core', x) from "core".redrive -- redrive's"""
    )


@pytest.mark.parametrize(
    "schema", ["", "Core", "a b", "core;drop", "1st", "pg_temp", "sqlite_x", "a\nb", "x" * 41, 3, b"x"]
)
def test_a_schema_that_cannot_be_one_is_refused_in_one_sentence(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^schema [^\n]*not "):
        Redrive("sqlite:///x.db", schema=schema)


def test_the_url_and_the_parameter_may_not_differ() -> None:
    assert Redrive("sqlite:///x.db?schema=core", schema="core").store.schema == "core"
    with pytest.raises(ConfigurationError, match="name different schemas"):
        Redrive("sqlite:///x.db?schema=core", schema="other")
