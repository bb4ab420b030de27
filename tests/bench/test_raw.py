"""What redrive is measured against: the raw loops find what is due by the index, as redrive itself does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from redrive.operate.cli.bench import raw
from redrive.operate.cli.bench.place import PostgresPlace, Rows, SqlitePlace, path_of
from tests.servers import Postgres

ROWS = 5_000


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_the_raw_claim_on_postgres_reads_no_more_than_it_takes(postgres_server: Postgres, mode: str) -> None:
    async with PostgresPlace(postgres_server.url, "").fresh(Rows(ROWS)) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"set plan_cache_mode = {mode}")
            connection.execute(f"prepare turn as {raw._POSTGRES_TURN}")
            plan = "\n".join(row[0] for row in connection.execute("explain execute turn('{}', 500)"))

    assert "Index Scan using outbox_due on outbox" in plan
    assert "Sort" not in plan
    assert "Seq Scan" not in plan


async def test_the_raw_claim_on_sqlite_reads_no_more_than_it_takes(tmp_path: Path) -> None:
    async with SqlitePlace(tmp_path).fresh(Rows(ROWS)) as url:
        with closing(sqlite3.connect(path_of(url))) as connection:
            rows = connection.execute(f"explain query plan {raw._SQLITE_CLAIM}", (0, 500))
            plan = "\n".join(row[3] for row in rows)

    due = "USING INDEX redrive_outbox_due (queue=? AND priority=? AND generation=? AND due_at<?)"
    assert due in plan.replace("COVERING ", "")
    assert "TEMP B-TREE" not in plan
    assert "SCAN" not in plan
