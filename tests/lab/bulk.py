"""Bulk: events by the million, written by the database itself, and the workers that take them.

Every tenth has an effect in its transaction (``lab.mass``), the others do nothing (``mass.plain``): so a million of
them take minutes, and what is delivered twice or never still shows.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from redrive import Context, Redrive, Retention, Work
from tests.lab.checker import EFFECTS
from tests.lab.hand import serve
from tests.lab.ledger import Ledger

EFFECT_EVERY = 10
GROUPS = 7
_STEP = 100_000
_ROWS = """
    insert into {outbox} (id, type, target, idempotency_key, payload, queue, status, due_at, created_at, ended_at,
                          attempts, fence, last_error, error_class, error_type, safe_to_retry, fingerprint,
                          first_failed_at)
    select id, type, type, '{label}-' || n, {payload}, '{queue}', '{status}', {due}, {now},
           case when '{status}' in ('failed', 'delivered') then {due} end, {tries}, {tries},
           case when '{status}' = 'failed' then 'ValueError: of old' end,
           case when '{status}' = 'failed' then 'broken' end,
           case when '{status}' = 'failed' then 'builtins.ValueError' end,
           case when '{status}' = 'failed' then true end,
           case when '{status}' = 'failed' then '1:000000000000000' || (n % {groups}) end,
           case when '{status}' = 'failed' then {now} end
    from (select n, {id} as id, case when n % {every} = 0 then 'lab.mass' else 'mass.plain' end as type from {series}) m
"""
_PAYLOAD = """'{"n": ' || n || '}'"""
_SQLITE_ID = (
    "printf('%08x-%04x-7%03x-a%03x-%s', ({ms} + n / 1000) >> 16, ({ms} + n / 1000) & 65535, n % 1000 * 4,"
    " abs(random()) % 4096, lower(hex(randomblob(6))))"
)


@dataclass(frozen=True, slots=True)
class Mass:
    """Many events of one kind; ``label`` begins their keys."""

    label: str
    number: int
    status: str = "pending"
    delay: int = 0  # seconds
    queue: str = "default"


def fill(url: str, *kinds: Mass) -> None:
    """Write them, and let PostgreSQL look at what it has now."""
    if url.startswith("sqlite:///"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        file.execute("pragma synchronous=off")
        for kind in kinds:
            for first in range(0, kind.number, _STEP):
                file.execute(_on_sqlite(kind, first, min(first + _STEP, kind.number)))
        file.execute("pragma wal_checkpoint(truncate)")
        file.close()
        return
    with psycopg.connect(url, autocommit=True) as server:
        for kind in kinds:
            for first in range(0, kind.number, _STEP):
                server.execute(_on_postgres(kind, first, min(first + _STEP, kind.number)).encode())
        server.execute("vacuum analyze")


def _on_sqlite(kind: Mass, first: int, end: int) -> str:
    now = time.time_ns() // 1_000
    series = (
        f"(with recursive s(n) as (select {first} union all select n + 1 from s where n < {end - 1}) select n from s)"
    )
    return _ROWS.format(
        outbox="redrive_outbox", id=_SQLITE_ID.format(ms=now // 1_000), series=series, now=now,
        due=f"{now} + {kind.delay} * 1000000 + n", **_common(kind, _PAYLOAD),
    )  # fmt: skip


def _on_postgres(kind: Mass, first: int, end: int) -> str:
    return _ROWS.format(
        outbox="redrive.outbox", id="redrive.uuid7()", series=f"generate_series({first}, {end - 1}) as n", now="now()",
        due=f"now() + make_interval(secs => {kind.delay} + n / 1e6)", **_common(kind, f"({_PAYLOAD})::json"),
    )  # fmt: skip


def _common(kind: Mass, payload: str) -> dict[str, Any]:
    return {
        "label": kind.label, "queue": kind.queue, "status": kind.status, "tries": int(kind.status != "pending"),
        "groups": GROUPS, "every": EFFECT_EVERY, "payload": payload,
    }  # fmt: skip


def bulk_app(url: str, *, retention: str = "30d") -> Redrive:
    """Make the app whose handlers take them."""
    app = Redrive(url, source="lab", migrate=False, retention=Retention.of(delivered=retention))
    mark = "?" if app.dialect == "sqlite" else "$"
    text = f"insert into lab_effect (key, event_id, fence) values ({mark}1, {mark}2, {mark}3)"

    @app.when_open
    async def tables(tx: Work) -> None:
        await tx.execute(EFFECTS)

    @app.handler("lab.mass")
    async def effect(_payload: dict[str, Any], ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(text, ctx.idempotency_key, str(ctx.id), ctx.fence)

    @app.handler("mass.plain")
    async def nothing(_payload: dict[str, Any]) -> None: ...

    return app


async def work(url: str, _ledger: Ledger, options: dict[str, Any]) -> None:
    """Take them until SIGTERM."""
    app = bulk_app(url, retention=options.pop("retention", "30d"))
    await serve(app, {"concurrency": 200, "lease": "4s", "drain": "10s", **options})
