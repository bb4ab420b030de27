"""The caller's own connection: run one of our statements inside a transaction that belongs to somebody else.

Publishing in the caller's transaction is what makes an outbox an outbox: committed with the caller's work, rolled back
with it. Known are sqlite3, aiosqlite, psycopg 3 (both kinds), asyncpg, SQLAlchemy 2 (Connection, Session and their
async kin) and Django. They are recognised by name, so none of them has to be installed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, cast

from redrive.errors import ConfigurationError, Refused
from redrive.store.base import Store
from redrive.store.refusal import refusals
from redrive.store.sql import Statement

Values = Mapping[str, Any]
_KNOWN = "sqlite3, aiosqlite, psycopg, asyncpg, SQLAlchemy (Connection, Session, async kin), Django"


# --- trying a handler without consequences ---

_READING: Final = frozenset({
    "name", "schema", "clock", "version", "schema_version", "schema_needs", "check_schema", "open", "sql",
    "check_connection", "ask", "event", "counts", "overview", "trail", "sessions",
})  # fmt: skip


@dataclass(slots=True)
class Trial:
    """A run of a handler of which nothing may be committed; ``own`` are the connections that are rolled back."""

    refused: list[str] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)


_trial: Final[ContextVar[Trial | None]] = ContextVar("redrive_trial", default=None)


@contextmanager
def trying() -> Iterator[Trial]:
    """Refuse, in this task and in all that it starts, everything that would be committed for good."""
    trial = Trial()
    token = _trial.set(trial)
    try:
        yield trial
    finally:
        _trial.reset(token)


def check_outside(what: str) -> None:
    """Refuse what is committed at once, or by somebody else, while a handler is only tried."""
    trial = _trial.get()
    if trial is not None:
        message = (
            f"{what} is committed outside the handler's own transaction, and a shadow could not roll it back: "
            "use ctx.transaction() and ctx.publish, or declare effects='outside'"
        )
        trial.refused.append(message)
        raise Refused(message)


def admit(store: Store, connection: Any, what: str) -> None:
    """Refuse to write through a connection that leads elsewhere, or whose transaction somebody else commits."""
    trial = _trial.get()
    if trial is None or not any(connection is each for each in trial.own):
        check_outside(what)
    store.check_connection(connection, what)


def writable(store: Store) -> Store:
    """Give a store; one that can only be read while a handler is tried."""
    return store if _trial.get() is None else cast("Store", _ReadOnly(store))


class _ReadOnly:
    """A store that refuses everything but reading."""

    def __init__(self, store: Store) -> None:
        self._inner = store

    def __getattr__(self, name: str) -> Any:
        if name not in _READING:
            check_outside(f"app.{name}" if name in ("publish", "transaction") else "a change of the database")
        return getattr(self._inner, name)


# --- connections ---


def family(connection: Any) -> str:
    """Name the library a connection comes from."""
    roots = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    for name in ("asyncpg", "psycopg", "aiosqlite", "sqlalchemy", "django", "sqlite3"):
        if name in roots:
            return name
    message = (
        f"cannot write through a {type(connection).__module__}.{type(connection).__qualname__}: known are {_KNOWN}"
    )
    raise ConfigurationError(message)


def dialect(connection: Any) -> str:
    """Say which store's SQL a connection speaks: ``sqlite`` or ``postgres``."""
    name = family(connection)
    if name == "sqlalchemy":
        name = _sqlalchemy_engine(connection).dialect.name
    elif name == "django":
        name = connection.vendor
    spoken = {
        "asyncpg": "postgres", "psycopg": "postgres", "postgresql": "postgres",
        "sqlite3": "sqlite", "aiosqlite": "sqlite", "sqlite": "sqlite",
    }.get(name)  # fmt: skip
    if spoken is None:
        message = f"redrive's tables cannot live in a {name} database: use SQLite or PostgreSQL"
        raise ConfigurationError(message)
    return spoken


def run_sync(connection: Any, statement: Statement, values: Values) -> list[Any]:
    """Run a statement on a connection of a synchronous library."""
    name = family(connection)
    if _is_async(connection, name):
        message = f"{type(connection).__qualname__} is asynchronous: use `await app.publish_in(…)`"
        raise ConfigurationError(message)
    with refusals():
        return _SYNC[name](connection, statement, values)  # type: ignore[no-any-return]


async def run(connection: Any, statement: Statement, values: Values) -> list[Any]:
    """Run a statement on any known connection."""
    name = family(connection)
    if not _is_async(connection, name):
        return run_sync(connection, statement, values)
    with refusals():
        return await _ASYNC[name](connection, statement, values)  # type: ignore[no-any-return]


def _is_async(connection: Any, name: str) -> bool:
    if name in ("psycopg", "sqlalchemy"):  # AsyncConnection, AsyncSession, async_scoped_session
        return any(kind.__qualname__.lower().startswith("async") for kind in type(connection).__mro__)
    return name in ("asyncpg", "aiosqlite")


def _by_place(statement: Statement, values: Values) -> list[Any]:
    return [values[name] for name in statement.occurrences]


def _sqlite3(connection: Any, statement: Statement, values: Values) -> list[Any]:
    cursor = connection.cursor()
    cursor.row_factory = None  # whatever the caller set: we read by place
    try:
        return list(cursor.execute(statement.text, dict(values)).fetchall())
    finally:
        cursor.close()


async def _aiosqlite(connection: Any, statement: Statement, values: Values) -> list[Any]:
    async with connection.cursor() as cursor:
        cursor.row_factory = None
        await cursor.execute(statement.text, dict(values))
        return list(await cursor.fetchall())


def _psycopg(connection: Any, statement: Statement, values: Values) -> list[Any]:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - the caller's library

    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement.positional, _by_place(statement, values))
        return list(cursor.fetchall())


async def _psycopg_async(connection: Any, statement: Statement, values: Values) -> list[Any]:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - the caller's library

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.positional, _by_place(statement, values))
        return list(await cursor.fetchall())


async def _asyncpg(connection: Any, statement: Statement, values: Values) -> list[Any]:
    return list(await connection.fetch(statement.numbered, *statement.values(values)))


def _django(connection: Any, statement: Statement, values: Values) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement.positional, _by_place(statement, values))
        return list(cursor.fetchall())


def _sqlalchemy(connection: Any, statement: Statement, values: Values) -> list[Any]:
    inner = connection if hasattr(connection, "exec_driver_sql") else connection.connection()  # a Session has one
    return [tuple(row) for row in inner.exec_driver_sql(*_for_driver(inner, statement, values)).all()]


async def _sqlalchemy_async(connection: Any, statement: Statement, values: Values) -> list[Any]:
    inner = connection if hasattr(connection, "exec_driver_sql") else await connection.connection()
    return [tuple(row) for row in (await inner.exec_driver_sql(*_for_driver(inner, statement, values))).all()]


def _for_driver(connection: Any, statement: Statement, values: Values) -> tuple[str, Any]:
    style = connection.dialect.paramstyle
    if connection.dialect.name == "sqlite":
        return statement.text, dict(values)
    if style == "numeric_dollar":
        return statement.numbered, tuple(statement.values(values))
    if style in ("format", "pyformat"):
        return statement.positional, tuple(_by_place(statement, values))
    message = f"SQLAlchemy's driver {connection.dialect.driver} is not known: use psycopg or asyncpg"
    raise ConfigurationError(message)


def _sqlalchemy_engine(connection: Any) -> Any:
    return connection.get_bind() if hasattr(connection, "get_bind") else connection


_SYNC: dict[str, Callable[[Any, Statement, Values], Any]] = {
    "sqlite3": _sqlite3,
    "psycopg": _psycopg,
    "sqlalchemy": _sqlalchemy,
    "django": _django,
}
_ASYNC: dict[str, Callable[[Any, Statement, Values], Any]] = {
    "aiosqlite": _aiosqlite,
    "psycopg": _psycopg_async,
    "asyncpg": _asyncpg,
    "sqlalchemy": _sqlalchemy_async,
}
