"""PostgreSQL: what a new connection costs before it can do anything."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.clock import VirtualClock
from redrive.store.postgres import PostgresStore, _Connection

ARRAYS = "select $1::bigint[], $2::uuid[], $3::timestamptz[]"


@pytest.mark.parametrize("pooler", ["", "?pooler=transaction"])
async def test_only_the_first_connection_of_a_process_asks_what_types_the_server_has(
    postgres_url: str, pooler: str
) -> None:
    store = PostgresStore(postgres_url + pooler, VirtualClock())
    first, second = [await store.connect() for _ in range(2)]
    asked: list[str] = []
    try:
        await first.fetchrow(ARRAYS, [1], [], [])
        second.add_query_logger(lambda made: asked.append(made.query))

        found = await second.fetchrow(ARRAYS, [1, 2], [], [])
    finally:
        await first.close()
        await second.close()

    assert asked == [ARRAYS]
    assert found is not None
    assert list(found) == [[1, 2], [], []]


async def test_types_of_ones_own_are_not_remembered(postgres_url: str) -> None:
    """Their ids are something else in another database."""
    connection: Any = await PostgresStore(postgres_url, VirtualClock()).connect()
    try:
        await connection.execute("create type mood as enum ('glad', 'sad')")

        assert await connection.fetchval("select array['sad'::mood]") == ["sad"]
        assert await connection.fetchval("select array[7]") == [7]
    finally:
        await connection.close()

    remembered = {each for ids in _Connection._types for each in ids}
    assert remembered
    assert max(remembered) < 10_000


@pytest.mark.req("O9")
@pytest.mark.promise("not-stuck")
async def test_the_server_is_told_to_find_out_within_the_lease_that_a_machine_is_gone(postgres_url: str) -> None:
    """What it had locked would be locked for two hours otherwise. The values are those of the socket."""
    store = PostgresStore(postgres_url, VirtualClock(), transactions=1)
    await store.open()

    async def seconds() -> tuple[float, float]:
        async with store.transaction() as tx:
            names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "user_timeout")
            shown = {name: (await tx.fetch(f"show tcp_{name}"))[0][0] for name in names}
            idle, interval, count = (int(shown[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
            return idle + interval * count, int(shown["user_timeout"]) / 1000

    try:
        assert await seconds() == (30, 30)
        assert await seconds() == (30, 30), "made clean for the next"
    finally:
        await store.close()
