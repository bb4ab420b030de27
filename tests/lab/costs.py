"""Costs: how much work a database does for a call, in units that no load on the machine changes.

SQLite counts the steps of its virtual machine, PostgreSQL the pages it has touched. Both are of the real calls, through
the real drivers, with all that they do beside.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from redrive import Redrive
from redrive.store.writer import Connection
from tests.lab.bulk import bulk_app
from tests.waiting import wait_until

_EVERY = 50  # steps between two calls of the handler
_STEPS = [0]


class _Counting(Connection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.set_progress_handler(_count, _EVERY)


def _count() -> int:
    _STEPS[0] += _EVERY
    return 0


@contextmanager
def counted(url: str) -> Iterator[Callable[[], int]]:
    """Give a function that says how much was done so far; those who did it must have closed their connections."""
    if not url.startswith("sqlite:///"):
        yield lambda: _pages(url)
        return
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **{**options, "factory": _Counting})
    try:
        yield lambda: _STEPS[0]
    finally:
        sqlite3.connect = connect


def _pages(url: str) -> int:
    """Ask from another database: who asks touches pages, too. Backends tell when they end."""
    parts = urlsplit(url)
    name = parts.path.lstrip("/")
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as server:
        at_work = "select from pg_stat_activity where datname = %s and backend_type = 'client backend'"
        wait_until(lambda: not server.execute(at_work, (name,)).fetchall())
        row = server.execute("select blks_hit + blks_read from pg_stat_database where datname = %s", (name,)).fetchone()
    assert row is not None
    return int(row[0])


async def cost(url: str, act: Callable[[Redrive], Awaitable[object]]) -> int:
    """Say how much one call costs the database, with what it takes to open it and close it again."""
    with counted(url) as done:
        before = done()
        async with bulk_app(url) as app:
            await act(app)
        return done() - before
