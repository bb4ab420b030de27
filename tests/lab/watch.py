"""Watch: whether a database is what it was."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql


class Watch:
    """Tells whether a database has changed: by a mark that every commit moves, and if that has moved by its content."""

    def __init__(self, connection: sqlite3.Connection | psycopg.Connection) -> None:
        self._connection = connection
        self._mark, self._content = self._marked(), self._read()

    def has_changed(self) -> bool:
        """Say whether something is other than at the last look."""
        mark = self._marked()
        if mark == self._mark:
            return False
        before, self._mark, self._content = self._content, mark, self._read()
        return self._content != before

    def _marked(self) -> Any:
        if isinstance(self._connection, sqlite3.Connection):
            return self._connection.execute("pragma data_version").fetchone()
        return self._connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()

    def _read(self) -> str:
        if isinstance(self._connection, sqlite3.Connection):
            return hashlib.sha256("".join(self._connection.iterdump()).encode()).hexdigest()
        tables = self._connection.execute(
            "select tablename from pg_tables where schemaname = 'redrive' order by 1"
        ).fetchall()
        query = "select md5(string_agg(t::text, '|' order by t::text)) from redrive.{} t"
        parts = [self._connection.execute(sql.SQL(query).format(sql.Identifier(name))).fetchone() for (name,) in tables]
        return repr(list(zip(tables, parts, strict=True)))


@contextmanager
def watching(url: str) -> Iterator[Watch]:
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    else:
        connection = psycopg.connect(url, autocommit=True)
    try:
        yield Watch(connection)
    finally:
        connection.close()
