"""Where a benchmark runs: a fresh database for every single measurement, on a disk that is really synced.

SQLite gets a new file in a temporary folder. PostgreSQL gets a new database on the server of ``--url``; a source
checkout starts a private one with fsync on (`make bench`). Nothing that exists is touched.
"""

import asyncio
import secrets
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from redrive.app import Redrive
from redrive.errors import ConfigurationError, MissingDriver

ROOT: Final = Path(__file__).parents[5]
"""The source checkout, when this is one."""

TYPE: Final = "bench.event"
STEP: Final = 100_000

_POSTGRES_FILL: Final = """
    insert into redrive.outbox (id, type, target, idempotency_key, correlation_id, payload, status, due_at, created_at,
                                ended_at, attempts, fence, last_error, error_class, error_type, fingerprint,
                                first_failed_at, ordering_key, blocked_on, batch_id)
    select made.id, made.type, made.type, made.id::text, case when $7 > 1 then 'corr-' || made.n / 10 end,
           json_build_object('n', made.n, 'text', $4::text, 'currency', 'C' || made.n % 150),
           $5, clock_timestamp() + make_interval(secs => $6), clock_timestamp(),
           case when $5 in ('delivered', 'failed') then clock_timestamp() end,
           case $5 when 'pending' then 0 else 1 end, case $5 when 'pending' then 0 else 1 end,
           case $5 when 'failed' then 'ValueError: preloaded ' || made.n % $7 end,
           case $5 when 'failed' then case made.n % 3 when 0 then 'missing' else 'broken' end end,
           case $5 when 'failed' then 'builtins.ValueError' end,
           case $5 when 'failed' then '1:' || lpad(to_hex(made.n % $7), 16, '0') end,
           case $5 when 'failed' then clock_timestamp() end,
           case when $8 > 0 then (made.n % $8)::text end, case $5 when 'blocked' then 'bench' end, $9::uuid
    from (select redrive.uuid7() as id, n, case when $7 > 1 then $3 || '.' || n % 20 else $3 end as type
          from generate_series($1::int, $2::int) as n) made
"""
_SQLITE_FILL: Final = """
    with recursive numbered(n) as (select :first union all select n + 1 from numbered where n < :last),
    made as materialized (
        select n, printf('%08x-%04x-7%03x-a%03x-%s', (:ms + n / 1000) >> 16, (:ms + n / 1000) & 65535, n % 1000 * 4,
                         abs(random()) % 4096, lower(hex(randomblob(6)))) as id,
               iif(:groups > 1, :type || '.' || (n % 20), :type) as type from numbered)
    insert into redrive_outbox (id, type, target, idempotency_key, correlation_id, payload, status, due_at, created_at,
                                ended_at, attempts, fence, last_error, error_class, error_type, fingerprint,
                                first_failed_at, ordering_key, blocked_on, batch_id)
    select id, type, type, id, iif(:groups > 1, 'corr-' || (n / 10), null),
           json_object('n', n, 'text', :text, 'currency', 'C' || (n % 150)),
           :status, :due + n, :now, case when :status in ('delivered', 'failed') then :now + n end,
           iif(:status = 'pending', 0, 1), iif(:status = 'pending', 0, 1),
           iif(:status = 'failed', 'ValueError: preloaded ' || (n % :groups), null),
           iif(:status = 'failed', iif(n % 3 = 0, 'missing', 'broken'), null),
           iif(:status = 'failed', 'builtins.ValueError', null),
           iif(:status = 'failed', printf('1:%016x', n % :groups), null),
           iif(:status = 'failed', :now, null), iif(:keys > 0, cast(n % :keys as text), null),
           iif(:status = 'blocked', 'bench', null), :batch
    from made
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to lie in the table before a measurement begins."""

    number: int
    status: str = "pending"
    delay: float = 0.0
    payload_bytes: int = 100
    groups: int = 1  # above 1: so many causes of failure, twenty types, and correlation ids
    keys: int = 0  # ordering keys that they share, or none
    batch: str | None = None  # the id of the batch that they are members of


class Place(Protocol):
    """A kind of store that can be had anew any number of times."""

    @property
    def store(self) -> str: ...

    @property
    def version(self) -> str: ...

    def fresh(self, *rows: Rows) -> Any:
        """Give the URL of a new, migrated database with these rows in it; it is gone afterwards."""
        ...

    async def fill(self, url: str, *rows: Rows) -> None:
        """Put more rows into such a database."""
        ...

    async def count(self, url: str) -> dict[str, int]:
        """Count the rows by status."""
        ...


class SqlitePlace:
    """New files in one folder."""

    store = "sqlite"
    version = f"SQLite {sqlite3.sqlite_version}"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def fresh(self, *rows: Rows) -> AsyncIterator[str]:
        path = self._folder / f"{secrets.token_hex(6)}.db"
        url = f"sqlite:///{path}"
        async with Redrive(url):
            pass
        await self.fill(url, *rows)
        try:
            yield url
        finally:
            for file in self._folder.glob(f"{path.name}*"):
                file.unlink()

    async def fill(self, url: str, *rows: Rows) -> None:
        await asyncio.to_thread(self._fill, url, rows)

    @staticmethod
    def _fill(url: str, rows: tuple[Rows, ...]) -> None:
        connection = sqlite3.connect(path_of(url), isolation_level=None)
        connection.execute("pragma synchronous=off")
        now = time.time_ns() // 1_000
        for kind in rows:
            values: dict[str, Any] = {
                "type": TYPE, "text": filler(kind.payload_bytes), "status": kind.status, "now": now, "ms": now // 1_000,
                "due": now - kind.number + int(kind.delay * 1e6), "groups": kind.groups,
                "keys": kind.keys, "batch": kind.batch,
            }  # fmt: skip
            for first in range(1, kind.number + 1, STEP):
                last = min(first + STEP - 1, kind.number)
                connection.execute(_SQLITE_FILL, {**values, "first": first, "last": last})
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()

    async def count(self, url: str) -> dict[str, int]:
        connection = sqlite3.connect(path_of(url))
        try:
            return dict(connection.execute("select status, count(*) from redrive_outbox group by status"))
        finally:
            connection.close()


class PostgresPlace:
    """New databases on one server."""

    store = "postgres"

    def __init__(self, url: str, version: str) -> None:
        self._url = url
        self.version = version

    @asynccontextmanager
    async def fresh(self, *rows: Rows) -> AsyncIterator[str]:
        name = f"redrive_bench_{secrets.token_hex(6)}"
        await self._admin(f"create database {name} template template0")
        try:
            url = urlunsplit(urlsplit(self._url)._replace(path=f"/{name}"))
            async with Redrive(url, migrate=True):
                pass
            await self.fill(url, *rows)
            yield url
        finally:
            await self._admin(f"drop database if exists {name} with (force)")

    async def _admin(self, statement: str) -> None:
        connection = await _asyncpg().connect(self._url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def fill(self, url: str, *rows: Rows) -> None:
        asyncpg = _asyncpg()
        connection = await asyncpg.connect(url, command_timeout=3_600)
        try:
            for kind in rows:
                for first in range(1, kind.number + 1, STEP):
                    last = min(first + STEP - 1, kind.number)
                    await connection.execute(
                        _POSTGRES_FILL, first, last, TYPE, filler(kind.payload_bytes), kind.status, kind.delay,
                        kind.groups, kind.keys, kind.batch,
                    )  # fmt: skip
            await connection.execute("vacuum analyze redrive.outbox")
            with suppress(asyncpg.InsufficientPrivilegeError):
                await connection.execute("checkpoint")
        finally:
            await connection.close()

    async def count(self, url: str) -> dict[str, int]:
        connection = await _asyncpg().connect(url)
        try:
            rows = await connection.fetch("select status, count(*) from redrive.outbox group by status")
        finally:
            await connection.close()
        return {row[0]: row[1] for row in rows}


@asynccontextmanager
async def hold_snapshot(url: str, after: float) -> AsyncIterator[None]:
    """Take a snapshot after so many seconds and keep it open, as a long report or a backup does."""

    async def hold() -> None:
        await asyncio.sleep(after)
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(path_of(url), isolation_level=None)) as reader:
                reader.execute("begin")
                reader.execute("select count(*) from redrive_session").fetchone()
                await asyncio.Event().wait()
        connection = await _asyncpg().connect(url)
        try:
            await connection.execute("begin isolation level repeatable read")
            await connection.execute("select count(*) from redrive.session")
            await asyncio.Event().wait()
        finally:
            await connection.close()

    holding = asyncio.create_task(hold())
    try:
        yield
    finally:
        holding.cancel()
        with suppress(asyncio.CancelledError):
            await holding


@contextmanager
def place_for(store: str, url: str | None, folder: Path | None) -> Iterator[Place]:
    """Open the place for a store; what was made for it is gone at the end."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="redrive-bench-", dir=folder) as made:
            yield SqlitePlace(Path(made))
    elif store == "postgres":
        if url is None:
            message = (
                "say which server to use: --url postgresql://user@host/database (new databases are made there and "
                "dropped again). In a source checkout `make bench` starts a private one"
            )
            raise ConfigurationError(message)
        yield PostgresPlace(url, asyncio.run(_server_version(url)))
    else:
        raise ConfigurationError(f"there is no store {store!r}: use --store sqlite or --store postgres")


async def _server_version(url: str) -> str:
    connection = await _asyncpg().connect(url)
    try:
        return f"PostgreSQL {await connection.fetchval('show server_version')}"
    finally:
        await connection.close()


def path_of(url: str) -> str:
    """Tell the file of a SQLite URL."""
    return url.removeprefix("sqlite:///")


def filler(payload_bytes: int) -> str:
    """Make text for a payload of this size; random, because databases compress what repeats."""
    return secrets.token_hex(max(0, payload_bytes - len('{"n": 123456, "text": ""}')) // 2)


def _asyncpg() -> Any:
    try:
        import asyncpg  # noqa: PLC0415 - an optional driver
    except ModuleNotFoundError as error:
        raise MissingDriver("PostgreSQL needs the driver asyncpg: pip install 'redrive[postgres]'") from error
    return asyncpg
