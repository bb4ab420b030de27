"""Whatever the table looks like, the statements of a worker and selections of dead letters find their rows by index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from redrive import Redrive
from redrive.selection import Dialect, dead_letters, parse
from redrive.store.postgres import PostgresStore
from redrive.store.sql import Statement, load, statement, with_clauses

ROWS = 100_000
FILLED = """
    insert into {outbox} (id, type, target, idempotency_key, retry_key, payload, headers, queue, priority, status,
                          due_at, created_at, ended_at, session_id, fingerprint, ordering_key, correlation_id,
                          blocked_on)
    select {id}, 't', 't', cast(n as text), case when n % 10 = 0 then cast(n as text) end, '1', '{{}}', 'default',
           n % 4, case when n % 100 < 3 then 'pending' when n % 100 = 3 then 'in_flight' when n % 100 = 4 then 'failed'
                when n % 100 = 5 then 'blocked' else 'delivered' end,
           {now}, {now}, case when n % 100 = 4 or n % 100 > 5 then {now} end, case when n % 100 = 3 then {session} end,
           case when n % 100 = 4 then '1:00000000000' || (10000 + n / 100 % 40) end,
           case when n % 100 <> 3 then 'order-' || n % 1000 end, 'c-' || n / 3,
           case when n % 100 = 5 then 'api-' || n % 3 end
    from {series}
"""

EVENT = "019a0000-0000-7000-8000-000000000000"
# An index leads straight to what these select; named without `outbox_`.
STRAIGHT = {
    "group:1:0000000000010007": {"group"},
    "group:1:0000000000010007 type:t -key:order-4": {"group"},
    f"id:{EVENT}": {"failed", "pkey"},
    "id:019a": {"failed", "pkey"},
    "corr:c-1": {"correlation"},
}
# For these every dead letter may be looked at, but no other row.
SIFTED = ("", "type:t", "type:order.*", "key:order-4", "key:order-*", "group:00000000000100", f"corr:{EVENT}")
ASIDE = {"retry_key", "key"}  # where a plan looks for others with the same key
QUARANTINE = {"failed", "group"}  # these indexes hold nothing but dead letters


def selected(dialect: Dialect, text: str) -> list[tuple[Statement, dict[str, Any]]]:
    """Return the statements that read dead letters of a selection, with their values: alone, and to plan a redrive."""
    clauses, values = dead_letters(parse(text)).where(dialect, datetime(2026, 11, 1, tzinfo=UTC))
    alone = f"select * from {'redrive.' if dialect == 'postgres' else 'redrive_'}outbox where true {' '.join(clauses)}"
    members = with_clauses(load(dialect, "redrive_members"), clauses)
    return [
        (statement("selected", alone), values),
        (members, {**_chunk(dialect), **values}),
    ]


def _chunk(dialect: Dialect) -> dict[str, Any]:
    postgres = dialect == "postgres"
    return {
        "id": UUID(EVENT) if postgres else EVENT, "after": UUID(int=0) if postgres else "", "position": 0,
        "until": datetime(2030, 1, 1, tzinfo=UTC) if postgres else 2**60, "limit": 10_000,
        "targets": [] if postgres else "[]", "unsafe": False, "budget": 3,
    }  # fmt: skip


def judge(text: str, found: set[tuple[str, bool]], plan: str) -> None:
    """Judge by which indexes of the outbox the rows are found, and whether only a part of each is read."""
    assert found, plan
    assert all(in_part or index in QUARANTINE for index, in_part in found), plan
    if text in STRAIGHT:
        # SQLite takes the members of a plan in the order of their ids, by the index that has this order
        ordered = {"failed"} if "CO-ROUTINE chosen" in plan else set()
        probed = {"key"} if "chosen" in plan else set()  # of each member: does another hold up its ordering key?
        assert found <= {(index, True) for index in STRAIGHT[text] | ordered | probed}, plan


# --- PostgreSQL -------------------------------------------------------------------------------------

HOT = {
    "turn": {"outbox_due", "outbox_pkey", "session_pkey"},
    "settle": {"outbox_pkey"},
    "put_back": {"outbox_pkey"},
    "forget": {"outbox_in_flight", "outbox_pkey"},
    "next_due": {"outbox_due"},
}
WARM = {
    "deliver": {"outbox_pkey"},
    "publish": {"outbox_retry_key"},
    "sweep": {"outbox_in_flight", "outbox_expired", "outbox_pkey"},
    "cancelled": {"outbox_cancelled"},
    "expire": {"outbox_pkey"},
    "purge_ended": {"outbox_ended", "outbox_pkey"},
    "waited_for": {"outbox_blocked"},
    "unblock": {"outbox_blocked", "outbox_pkey"},
    "probe": {"outbox_blocked", "outbox_key", "outbox_key_in_flight", "outbox_pkey"},
    "dependency_waiting": {"outbox_blocked"},
    "dependency_lock": {"outbox_blocked"},
    "attention_work": {"outbox_due", "outbox_in_flight", "outbox_blocked"},
    "attention_lanes": {"outbox_due"},
    "attention_targets": {"outbox_due"},
    "attention_queue": {"outbox_due"},
    "attention_keys": {"outbox_key_head", "outbox_key"},
    "attention_groups": {"outbox_group"},
    "attention_ungrouped": {"outbox_ungrouped"},
    "attention_compensations": {"outbox_compensation_failed"},
    "ended_by_time": {"outbox_ended"},
    "failed_by_time": {"outbox_group", "outbox_failed"},
    "due_by_time": {"outbox_due"},
    "relay_lag": {"outbox_due", "outbox_blocked", "outbox_in_flight"},
    "payloads": {"outbox_pkey"},
}
SIDE = {  # of tables that are empty here: which index there is for them
    "attention_hooks": {"trail_evidence", "trail_event"},
    "attention_redrives": {"redrive_standing"},
    "batches_watched": {"batch_pkey", "batch_unfinished"},
    "batch_overdue": {"batch_deadline"},
    "findings_standing": {"finding_standing"},
    "reconcilers_last": {"reconcile_run_name"},
    "schedules_late": {"schedule_next"},
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


async def plan_of(connection: Any, query: Statement) -> str:
    """Plan a statement as it is planned when it is used for the thousandth time: for any values."""
    await connection.execute(f"prepare {query.verb} as {query.numbered}")
    values = f"({', '.join(['null'] * len(query.names))})" if query.names else ""
    rows = await connection.fetch(f"explain execute {query.verb}{values}")
    await connection.execute(f"deallocate {query.verb}")
    return "\n".join(row[0] for row in rows)


def used(plan: str) -> set[str]:
    return {line.split(" using ")[1].split()[0] for line in plan.splitlines() if " using " in line} | {
        line.split("Bitmap Index Scan on ")[1].split()[0] for line in plan.splitlines() if "Bitmap Index Scan" in line
    }


@pytest.mark.req("B5")
async def test_on_postgres_the_workers_statements_use_their_indexes(postgres: PostgresStore) -> None:
    hot, other = await postgres.connect(hot=True), await postgres.connect()
    try:
        await other.execute("set plan_cache_mode = force_generic_plan")
        plans = {verb: await plan_of(hot, load("postgres", verb)) for verb in HOT}
        rows = await other.fetchval("select count(*) from redrive.outbox")
        warm = {verb: await plan_of(other, load("postgres", verb)) for verb in WARM}
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


@pytest.mark.req("W10")
@pytest.mark.parametrize("postgres", ["full"], indirect=True)
async def test_on_postgres_there_is_an_index_for_all_that_waits_for_a_person(postgres: PostgresStore) -> None:
    connection = await postgres.connect()
    try:
        await connection.execute("set enable_seqscan = off")
        plans = {verb: await plan_of(connection, load("postgres", verb)) for verb in SIDE}
    finally:
        await connection.close()

    for verb, plan in plans.items():
        assert SIDE[verb] <= used(plan), plan
        assert "Seq Scan" not in plan, plan


@pytest.mark.req("B1")
@pytest.mark.parametrize("postgres", ["full"], indirect=True)
async def test_on_postgres_dead_letters_are_selected_by_index(postgres: PostgresStore) -> None:
    plans = []
    connection = await postgres.connect()
    try:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        for text in (*STRAIGHT, *SIFTED):
            for query, values in selected("postgres", text):
                once = await connection.fetch(f"explain {query.numbered}", *query.values(values))
                plans.append((text, "\n".join(row[0] for row in once)))
                plans.append((text, await plan_of(connection, query)))
    finally:
        await connection.close()

    for text, plan in plans:
        assert "Seq Scan on outbox" not in plan, plan
        found = set(re.findall(r"(?: using | Scan on )outbox_(\w+) .*(\n *Index Cond)?", plan))
        judge(text, {(index, bool(part)) for index, part in found if index not in ASIDE}, plan)


@pytest.mark.req("B6")
async def test_on_postgres_ordering_keys_are_found_by_index_from_any_connection(postgres: PostgresStore) -> None:
    """A handler's transaction promotes the next of a key on a connection without a worker's settings."""
    connection = await postgres.connect()
    read = "select seq_scan from pg_stat_user_tables where relname = 'outbox'"
    try:
        ids = await connection.fetch("select id from redrive.outbox where status = 'pending' limit 20")
        await connection.execute("update redrive.outbox set ordering_key = 'k' where id = any($1)", [r[0] for r in ids])
        await connection.fetchval("select pg_stat_force_next_flush()")
        before = await connection.fetchval(read)
        for _ in range(8):  # from the sixth time on, with the plan for any values
            await connection.execute("select redrive.promote(array['t'], array['k'], null)")
            await connection.execute(
                "select redrive.take_turns($1::uuid[], null)", [r[0] for r in ids] or [UUID(int=1)]
            )
        await connection.fetchval("select pg_stat_force_next_flush()")
        assert await connection.fetchval(read) == before
    finally:
        await connection.close()


# --- SQLite -----------------------------------------------------------------------------------------

SQLITE = {
    "claim": (
        "redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)",
        "redrive_outbox_key (target=? AND ordering_key=? AND rowid<?)",
        "redrive_outbox_key_in_flight (target=? AND ordering_key=?)",
        "INTEGER PRIMARY KEY",
    ),
    "promote": ("redrive_outbox_key (target=? AND ordering_key=?)", "INTEGER PRIMARY KEY"),
    "is_due": ("redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)",),
    "next_due": ("redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at>?)",),
    "deliver": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "settle": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "put_back": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "redrive_release": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "forget": ("redrive_outbox_in_flight (session_id=?)",),
    "sweep": (
        "redrive_outbox_in_flight (session_id=?)",
        "redrive_outbox_expired (lease_until<?)",
        "INTEGER PRIMARY KEY",
    ),
    "cancelled": ("redrive_outbox_cancelled (session_id=?)",),
    "expire": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "purge_ended": ("redrive_outbox_ended (ended_at<?)", "INTEGER PRIMARY KEY"),
    "waited_for": ("redrive_outbox_blocked (blocked_on>?)",),
    "unblock": ("redrive_outbox_blocked (blocked_on=?)", "INTEGER PRIMARY KEY"),
    "probe": ("redrive_outbox_blocked (blocked_on=? AND id>?)", "INTEGER PRIMARY KEY"),
    "dependency_waiting": ("redrive_outbox_blocked (blocked_on=?)",),
    "dependency_lock": ("redrive_outbox_blocked (blocked_on=?)",),
    "ended_by_time": ("redrive_outbox_ended (ended_at>? AND ended_at<?)",),
    "failed_by_time": (
        "redrive_outbox_group (fingerprint=? AND id>? AND id<?)",
        "redrive_outbox_failed (id>? AND id<?)",
    ),
    "due_by_time": ("redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at>? AND due_at<?)",),
    "redrive_stages": ("redrive_redrive_item_stage (redrive_id=? AND stage>? AND stage<?)",),
    "trail_head": ("PRIMARY KEY (chain=?)",),
    "trail_of_event": ("redrive_trail_event (event_id=?)",),
    "heartbeat": ("sqlite_autoindex_redrive_session_1 (id=?)",),
    "handled": (),
}

# What asks for members that wait or are under way reads these, and not the million that have ended.
MEMBERS = {
    "redrives": {"released"},
    "redrive_get": {"released"},
    "group_redrives": {"released"},
    "redrive_outcomes": {"released"},
    "redrive_running": {"ready", "released"},
    "redrive_stage": {"stage"},
    "redrive_unnoted": {"free", "event"},
    "redrive_pick": {"free"},
    "redrive_lines": {"line"},
    "redrive_behind": {"line", "waiting"},
    "redrive_line": {"line"},
    "redrive_payloads": {"ready"},
}

# These read whole indexes, of which each holds little, or stop at a limit.
ATTENTION = {
    "attention_work": (
        "redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)",
        "redrive_outbox_in_flight",
        "redrive_outbox_blocked",
    ),
    "attention_lanes": ("redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)",),
    "attention_targets": (
        "redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)",
        "INTEGER PRIMARY KEY",
    ),
    "attention_queue": ("redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)",),
    "attention_keys": ("redrive_outbox_key_head", "redrive_outbox_key (target=? AND ordering_key=?"),
    "attention_groups": ("redrive_outbox_group (fingerprint=?)", "redrive_failure_group_seen"),
    "attention_ungrouped": ("redrive_outbox_ungrouped",),
    "attention_compensations": (
        "redrive_outbox_compensation_failed",
        "PRIMARY KEY (event_id=?)",
        "sqlite_autoindex_redrive_outbox_1 (id=?)",
    ),
    "attention_hooks": (
        "redrive_trail_evidence",
        "redrive_trail_event (event_id=?)",
        "sqlite_autoindex_redrive_outbox_1 (id=?)",
    ),
    "attention_redrives": ("redrive_redrive_standing",),
    "relay_lag": (
        "redrive_outbox_due (queue=? AND priority=? AND generation=?)",
        "redrive_outbox_blocked (blocked_on=?)",
        "redrive_outbox_in_flight",
    ),
    "payloads": ("sqlite_autoindex_redrive_outbox_1 (id=?)",),
    "batches_watched": (
        "SCAN redrive_batch USING INDEX sqlite_autoindex_redrive_batch_1",
        "redrive_batch_unfinished",
        "sqlite_autoindex_redrive_batch_1 (id=?)",
    ),
    "batch_overdue": ("redrive_batch_deadline",),
    "schedules_late": ("redrive_schedule_next (next_at<?)",),
}


PlanOnSqlite = Callable[[Statement, Mapping[str, Any]], str]


@pytest.fixture(params=["empty", "full"])
async def plan_on_sqlite(request: pytest.FixtureRequest, sqlite_url: str) -> AsyncIterator[PlanOnSqlite]:
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

    def plan(query: Statement, values: Mapping[str, Any]) -> str:
        rows = connection.execute(f"explain query plan {query.text}", values)
        return "\n".join(row[3] for row in rows)

    yield plan
    connection.close()


def test_on_sqlite_the_statements_use_their_indexes(plan_on_sqlite: PlanOnSqlite) -> None:
    for verb, indexes in SQLITE.items():
        query = with_clauses(load("sqlite", verb), {"lanes": "(0, 'default', 1, 0), (1, 'default', 2, 0)"})
        plan = plan_on_sqlite(query, dict.fromkeys(query.names, 1))
        assert all(index in plan for index in indexes), plan
        assert "SCAN redrive_outbox" not in plan, plan
        assert "SCAN o" not in plan, plan
        assert "B-TREE FOR ORDER" not in plan or verb not in ("claim", "next_due"), plan


@pytest.mark.req("B1")
def test_on_sqlite_members_of_a_redrive_are_found_by_their_state(plan_on_sqlite: PlanOnSqlite) -> None:
    for verb, indexes in MEMBERS.items():
        query = load("sqlite", verb)
        plan = plan_on_sqlite(query, dict.fromkeys(query.names, 1))
        assert [each for each in indexes if f"redrive_redrive_item_{each}" not in plan] == [], plan
        assert not re.search(r"SEARCH \w+ USING PRIMARY KEY \(redrive_id=\?\)", plan), plan


@pytest.mark.req("W10")
def test_on_sqlite_what_waits_for_a_person_is_found_by_index(plan_on_sqlite: PlanOnSqlite) -> None:
    unaided = re.compile(r"^SCAN (?:redrive_outbox|redrive_trail|[cfhopt])$", re.MULTILINE)

    for verb, indexes in ATTENTION.items():
        query = load("sqlite", verb)
        plan = plan_on_sqlite(query, dict.fromkeys(query.names, 1))
        assert [index for index in indexes if index not in plan] == [], plan
        assert unaided.findall(plan.replace("SCAN t\n", "")) == [], plan  # t: the bounded list of hooks


@pytest.mark.req("B1")
def test_on_sqlite_dead_letters_are_selected_by_index(plan_on_sqlite: PlanOnSqlite) -> None:
    read = re.compile(
        r"^(SCAN|SEARCH) redrive_outbox(?: USING (?:COVERING )?INDEX redrive_outbox_(\w+))?", re.MULTILINE
    )

    for text in (*STRAIGHT, *SIFTED):
        for query, values in selected("sqlite", text):
            plan = plan_on_sqlite(query, {**values, "targets": "[]"})
            found = read.findall(plan.replace("sqlite_autoindex_redrive_outbox_1", "redrive_outbox_pkey"))
            judge(text, {(index, how == "SEARCH") for how, index in found if index not in ASIDE}, plan)
