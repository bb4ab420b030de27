"""Whatever the table looks like, the statements of a worker find their rows by index."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive import Redrive
from redrive.store.postgres import PostgresStore
from redrive.store.sql import load

ROWS = 100_000
FILLED = """
    insert into {outbox} (id, type, target, idempotency_key, retry_key, payload, headers, queue, priority, status,
                          due_at, created_at, ended_at, session_id, blocked_on)
    select {id}, 't', 't', cast(n as text), case when n % 10 = 0 then cast(n as text) end, '1', '{{}}', 'default',
           n % 4, case when n % 100 < 3 then 'pending' when n % 100 = 3 then 'in_flight' when n % 100 = 4 then 'failed'
                when n % 100 = 5 then 'blocked' else 'delivered' end,
           {now}, {now}, case when n % 100 >= 4 then {now} end, case when n % 100 = 3 then {session} end,
           case when n % 100 = 5 then 'api-' || n % 3 end
    from {series}
"""

# --- PostgreSQL -------------------------------------------------------------------------------------

HOT = {
    "turn": {"outbox_due", "outbox_pkey", "session_pkey"},
    "settle": {"outbox_pkey"},
    "put_back": {"outbox_pkey"},
    "forget": {"outbox_in_flight"},
    "next_due": {"outbox_due"},
}
WARM = {
    "deliver": {"outbox_pkey"},
    "publish": {"outbox_retry_key"},
    "sweep": {"outbox_in_flight", "outbox_pkey"},
    "purge_ended": {"outbox_ended", "outbox_pkey"},
    "waited_for": {"outbox_blocked"},
    "unblock": {"outbox_blocked", "outbox_pkey"},
    "probe": {"outbox_blocked", "outbox_pkey"},
    "dependency_waiting": {"outbox_blocked"},
    "dependency_lock": {"outbox_blocked"},
}


@pytest.fixture(params=["empty", "full"])
async def postgres(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with Redrive(postgres_url, migrate=True) as app:
        assert isinstance(app.store, PostgresStore)
        if request.param == "full":
            connection = await app.store.connect()
            await connection.execute(
                FILLED.format(
                    outbox="redrive.outbox", id="gen_random_uuid()", now="clock_timestamp() - n * interval '1 ms'",
                    session="gen_random_uuid()", series=f"generate_series(1, {ROWS}) n",
                )
            )  # fmt: skip
            await connection.execute(
                "insert into redrive.session select gen_random_uuid(), '', '', 1, '{}', '{}', 1, 0, now(), now(),"
                " now(), now() from generate_series(1, 50)"
            )
            await connection.execute("analyze")
            await connection.close()
        yield app.store


async def plan_of(connection: Any, verb: str) -> str:
    """Plan a statement as it is planned when it is used for the thousandth time: for any values."""
    query = load("postgres", verb)
    await connection.execute(f"prepare {verb} as {query.numbered}")
    values = ", ".join(["null"] * len(query.names))
    return "\n".join(row[0] for row in await connection.fetch(f"explain execute {verb}({values})"))


def used(plan: str) -> set[str]:
    return {line.split(" using ")[1].split()[0] for line in plan.splitlines() if " using " in line} | {
        line.split("Bitmap Index Scan on ")[1].split()[0] for line in plan.splitlines() if "Bitmap Index Scan" in line
    }


@pytest.mark.req("B5")
async def test_on_postgres_the_workers_statements_use_their_indexes(postgres: PostgresStore) -> None:
    hot, other = await postgres.connect(hot=True), await postgres.connect()
    try:
        await other.execute("set plan_cache_mode = force_generic_plan")
        plans = {verb: await plan_of(hot, verb) for verb in HOT}
        rows = await other.fetchval("select count(*) from redrive.outbox")
        warm = {verb: await plan_of(other, verb) for verb in WARM}
    finally:
        await hot.close()
        await other.close()

    for verb, plan in plans.items():
        assert used(plan) == HOT[verb], plan
        assert "Seq Scan on outbox" not in plan, plan
        assert "Seq Scan on session" not in plan, plan
        assert "Sort" not in plan, plan  # the index is in the order of the claims
    for verb, plan in warm.items() if rows else ():  # of an empty table anything may be planned; it is planned anew
        assert WARM[verb] <= used(plan), plan
        assert "Seq Scan on outbox" not in plan, plan


# --- SQLite -----------------------------------------------------------------------------------------

SQLITE = {
    "claim": ("redrive_outbox_due (queue=? AND priority=? AND due_at<?)", "INTEGER PRIMARY KEY"),
    "next_due": ("redrive_outbox_due (queue=? AND priority=? AND due_at>?)",),
    "deliver": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "settle": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "put_back": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "redrive_release": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "forget": ("redrive_outbox_in_flight (session_id=?)",),
    "sweep": ("redrive_outbox_in_flight (session_id=?)", "INTEGER PRIMARY KEY"),
    "purge_ended": ("redrive_outbox_ended (ended_at<?)", "INTEGER PRIMARY KEY"),
    "waited_for": ("redrive_outbox_blocked (blocked_on>?)",),
    "unblock": ("redrive_outbox_blocked (blocked_on=?)", "INTEGER PRIMARY KEY"),
    "probe": ("redrive_outbox_blocked (blocked_on=? AND id>?)", "INTEGER PRIMARY KEY"),
    "dependency_waiting": ("redrive_outbox_blocked (blocked_on=?)",),
    "dependency_lock": ("redrive_outbox_blocked (blocked_on=?)",),
    "trail_head": ("PRIMARY KEY (chain=?)",),
    "trail_of_event": ("redrive_trail_event (event_id=?)",),
    "heartbeat": ("sqlite_autoindex_redrive_session_1 (id=?)",),
    "handled": (),
}


@pytest.fixture(params=["empty", "full"])
async def plan_on_sqlite(request: pytest.FixtureRequest, sqlite_url: str) -> AsyncIterator[Callable[[str], str]]:
    async with Redrive(sqlite_url):
        pass
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    if request.param == "full":
        connection.execute(
            FILLED.format(
                outbox="redrive_outbox", id="n", now="n * 1000", session="cast(n as text)",
                series="(with recursive s(n) as (select 1 union all select n + 1 from s"
                f" where n < {ROWS}) select n from s)",
            )
        )  # fmt: skip
        connection.execute("analyze")

    def plan(verb: str) -> str:
        statement = load("sqlite", verb)
        rows = connection.execute(f"explain query plan {statement.text}", dict.fromkeys(statement.names, 1))
        return "\n".join(row[3] for row in rows)

    yield plan
    connection.close()


def test_on_sqlite_the_statements_use_their_indexes(plan_on_sqlite: Callable[[str], str]) -> None:
    for verb, indexes in SQLITE.items():
        plan = plan_on_sqlite(verb)
        assert all(index in plan for index in indexes), plan
        assert "SCAN redrive_outbox" not in plan, plan
        assert "SCAN o" not in plan, plan
        assert "B-TREE FOR ORDER" not in plan or verb not in ("claim", "next_due"), plan
