"""The raw loops: the least that must be done with the bare driver, on redrive's own table with all its indexes.

A claim here has no fence, no session, no trail and no watermark; the batch size is fixed and nothing else runs beside
it. That is the limit which a figure is a percentage of, so it reads what it claims and no more: all columns of the
index of what is due are named (``tests/bench/test_raw.py`` looks at the plans).
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redrive.clock import SystemClock
from redrive.operate.cli.bench.place import TYPE, path_of

BATCH: Final = 500
BULK: Final = 1_000

_POSTGRES_TURN: Final = """
    with settled as (
        update redrive.outbox set status = 'delivered', ended_at = clock_timestamp() where id = any($1::uuid[])
    )
    update redrive.outbox set status = 'in_flight', attempts = attempts + 1
    where id = any(array(
        select id from redrive.outbox
        where status = 'pending' and queue = 'default' and priority = 1 and generation = 0
          and due_at <= clock_timestamp()
        order by due_at limit $2 for update skip locked))
    returning id, payload
"""
_POSTGRES_BULK: Final = """
    insert into redrive.outbox (id, type, target, idempotency_key, payload)
    select id, $2, $2, id::text, payload::json from unnest($1::uuid[], $3::text[]) as made(id, payload)
"""
_POSTGRES_SINGLE: Final = """
    insert into redrive.outbox (id, type, target, idempotency_key, payload) values ($1, $2, $2, $3, $4)
"""
_SQLITE_CLAIM: Final = """
    update redrive_outbox set status = 'in_flight', attempts = attempts + 1
    where seq in (
        select seq from redrive_outbox
        where status = 'pending' and queue = 'default' and priority = 1 and generation = 0 and due_at <= ?
        order by due_at limit ?)
    returning seq, payload
"""
_SQLITE_SETTLE: Final = "update redrive_outbox set status = 'delivered', ended_at = ? where seq = ?"
_SQLITE_INSERT: Final = """
    insert into redrive_outbox (id, type, target, idempotency_key, payload, due_at, created_at)
    values (?, ?, ?, ?, ?, ?, ?)
"""


async def noop(payload: Any) -> None:
    """Do what a no-op handler does."""


async def drain_postgres(url: str, batch: int = BATCH) -> int:
    """Claim and settle until nothing is due; return how many."""
    import asyncpg  # noqa: PLC0415 - an optional driver

    connection = await asyncpg.connect(url)
    turn = await connection.prepare(_POSTGRES_TURN)
    done: list[Any] = []
    total = 0
    while True:
        rows = await turn.fetch(done, batch)
        if not rows and not done:
            break
        for row in rows:
            await noop(json.loads(row[1]))
        done = [row[0] for row in rows]
        total += len(done)
    await connection.close()
    return total


async def flow_postgres(
    url: str, handler: Callable[[Any], Awaitable[None]], over: Callable[[], bool], batch: int = BATCH
) -> None:
    """Claim and settle what flows in until told that it is over: plain ``SKIP LOCKED``, from the left each time."""
    import asyncpg  # noqa: PLC0415 - an optional driver

    connection = await asyncpg.connect(url)
    turn = await connection.prepare(_POSTGRES_TURN)
    done: list[Any] = []
    while not over():
        rows = await turn.fetch(done, batch)
        for row in rows:
            await handler(json.loads(row[1]))
        done = [row[0] for row in rows]
        if not done:
            await asyncio.sleep(0.002)
    await connection.close()


async def drain_sqlite(url: str, batch: int = BATCH) -> int:
    """Claim and settle until nothing is due; return how many."""
    connection = _sqlite(url)
    done: list[tuple[int, int]] = []
    total = 0
    while True:
        now = time.time_ns() // 1_000
        connection.execute("begin immediate")
        connection.executemany(_SQLITE_SETTLE, done)
        rows = connection.execute(_SQLITE_CLAIM, (now, batch)).fetchall()
        connection.execute("commit")
        if not rows and not done:
            break
        for row in rows:
            await noop(json.loads(row[1]))
        done = [(now, row[0]) for row in rows]
        total += len(done)
    connection.close()
    return total


async def flow_sqlite(
    url: str, handler: Callable[[Any], Awaitable[None]], over: Callable[[], bool], batch: int = BATCH
) -> None:
    """Claim and settle what flows in until told that it is over."""
    connection = _sqlite(url)
    done: list[tuple[int, int]] = []
    while not over():
        now = time.time_ns() // 1_000
        connection.execute("begin immediate")
        connection.executemany(_SQLITE_SETTLE, done)
        rows = connection.execute(_SQLITE_CLAIM, (now, batch)).fetchall()
        connection.execute("commit")
        for row in rows:
            await handler(json.loads(row[1]))
        done = [(now, row[0]) for row in rows]
        await asyncio.sleep(0 if done else 0.002)  # the one who watches needs a turn
    connection.close()


async def publish_postgres(url: str, number: int, text: str, batch: int) -> int:
    """Insert in batches, a transaction each; a batch of 1 is a plain single-row insert."""
    import asyncpg  # noqa: PLC0415 - an optional driver

    connection = await asyncpg.connect(url)
    new_id = SystemClock().new_id
    statement = await connection.prepare(_POSTGRES_SINGLE if batch == 1 else _POSTGRES_BULK)
    for first in range(0, number, batch):
        several = range(first, min(first + batch, number))
        ids = [new_id() for _ in several]
        payloads = [json.dumps({"n": n, "text": text}) for n in several]
        if batch == 1:
            await statement.fetch(ids[0], TYPE, str(ids[0]), payloads[0])
        else:
            await statement.fetch(ids, TYPE, payloads)
    await connection.close()
    return number


async def copy_postgres(url: str, number: int, text: str, batch: int) -> int:
    """Insert by COPY, the fastest way in there is; it can answer no conflict and no id."""
    import asyncpg  # noqa: PLC0415 - an optional driver

    connection = await asyncpg.connect(url)
    new_id = SystemClock().new_id
    columns = ["id", "type", "target", "idempotency_key", "payload"]
    for first in range(0, number, batch):
        ids = [new_id() for _ in range(first, min(first + batch, number))]
        records = [
            (made, TYPE, TYPE, str(made), json.dumps({"n": n, "text": text})) for n, made in enumerate(ids, first)
        ]
        await connection.copy_records_to_table("outbox", schema_name="redrive", columns=columns, records=records)
    await connection.close()
    return number


async def publish_sqlite(url: str, number: int, text: str, batch: int) -> int:
    """Insert in batches, a transaction each."""
    connection = _sqlite(url)
    new_id = SystemClock().new_id
    for first in range(0, number, batch):
        now = time.time_ns() // 1_000
        rows = []
        for n in range(first, min(first + batch, number)):
            made = str(new_id())
            rows.append((made, TYPE, TYPE, made, json.dumps({"n": n, "text": text}), now, now))
        connection.execute("begin immediate")
        if batch == 1:
            connection.execute(_SQLITE_INSERT, rows[0])
        else:
            connection.executemany(_SQLITE_INSERT, rows)
        connection.execute("commit")
    connection.close()
    return number


def _sqlite(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path_of(url), isolation_level=None, timeout=30.0)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("pragma wal_autocheckpoint=4000")
    return connection
