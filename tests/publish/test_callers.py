"""Publish in the transaction of the caller's own connection, whatever library it comes from."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from redrive import ConfigurationError, Published, Redrive
from redrive.context import Context, Desk
from tests.stores.helpers import Hands, raw

pytestmark = pytest.mark.promise("no-phantom")

Act = Callable[[], Any]


@dataclass(slots=True)
class Caller:
    """A connection in a transaction of its own, and how that ends."""

    connection: Any
    commit: Act
    rollback: Act
    execute: Callable[[str], Any]
    is_async: bool = False


async def awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def plain(connection: Any, *, is_async: bool = False) -> Caller:
    return Caller(connection, connection.commit, connection.rollback, connection.execute, is_async)


@asynccontextmanager
async def with_sqlite3(url: str) -> AsyncIterator[Caller]:
    connection = sqlite3.connect(path_of(url))
    try:
        yield plain(connection)
    finally:
        connection.close()


@asynccontextmanager
async def with_sqlite3_autocommit(url: str) -> AsyncIterator[Caller]:
    """The caller begins and ends by hand."""
    connection = sqlite3.connect(path_of(url), isolation_level=None)
    try:
        connection.execute("begin")
        yield Caller(
            connection, lambda: connection.execute("commit"), lambda: connection.execute("rollback"),
            connection.execute,
        )  # fmt: skip
    finally:
        connection.close()


@asynccontextmanager
async def with_sqlite3_row_factory(url: str) -> AsyncIterator[Caller]:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    async with with_sqlite3(url) as caller:
        caller.connection.row_factory = as_dict
        yield caller


@asynccontextmanager
async def with_sqlite3_row(url: str) -> AsyncIterator[Caller]:
    async with with_sqlite3(url) as caller:
        caller.connection.row_factory = sqlite3.Row
        yield caller


@asynccontextmanager
async def with_aiosqlite(url: str) -> AsyncIterator[Caller]:
    async with aiosqlite.connect(path_of(url)) as connection:
        connection.row_factory = aiosqlite.Row
        yield plain(connection, is_async=True)


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        yield plain(connection)


@asynccontextmanager
async def with_psycopg_dict_row(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield plain(connection)


@asynccontextmanager
async def with_psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield plain(connection, is_async=True)


@asynccontextmanager
async def with_psycopg_async_dict_row(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as connection:
        yield plain(connection, is_async=True)


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback, connection.execute, is_async=True)
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback, connection.execute, is_async=True)


def alchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://").replace("sqlite://", f"sqlite+{driver}://")


def sync_driver(url: str) -> str:
    return "psycopg" if url.startswith("postgres") else "pysqlite"


def async_driver(url: str) -> str:
    return "asyncpg" if url.startswith("postgres") else "aiosqlite"


@asynccontextmanager
async def with_sqlalchemy_connection(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(alchemy_url(url, sync_driver(url)), poolclass=NullPool)
    with engine.connect() as connection:
        yield Caller(connection, connection.commit, connection.rollback, lambda text: connection.execute(sa.text(text)))


@asynccontextmanager
async def with_sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(alchemy_url(url, sync_driver(url)), poolclass=NullPool)
    with Session(engine) as session:
        yield Caller(session, session.commit, session.rollback, lambda text: session.execute(sa.text(text)))


@asynccontextmanager
async def with_sqlalchemy_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(alchemy_url(url, sync_driver(url)), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    try:
        yield Caller(session, session.commit, session.rollback, lambda text: session.execute(sa.text(text)))
    finally:
        session.remove()


@asynccontextmanager
async def with_sqlalchemy_async_connection(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(alchemy_url(url, async_driver(url)), poolclass=NullPool)
    async with engine.connect() as connection:
        yield Caller(
            connection, connection.commit, connection.rollback, lambda text: connection.execute(sa.text(text)),
            is_async=True,
        )  # fmt: skip
    await engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_async_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(alchemy_url(url, async_driver(url)), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Caller(
            session, session.commit, session.rollback, lambda text: session.execute(sa.text(text)), is_async=True
        )
    await engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_async_psycopg(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(alchemy_url(url, "psycopg"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Caller(
            session, session.commit, session.rollback, lambda text: session.execute(sa.text(text)), is_async=True
        )
    await engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_async_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(alchemy_url(url, async_driver(url)), poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    try:
        yield Caller(
            session, session.commit, session.rollback, lambda text: session.execute(sa.text(text)), is_async=True
        )
    finally:
        await session.remove()
        await engine.dispose()


Make = Callable[[str], AbstractAsyncContextManager[Caller]]
SQLITE: list[Make] = [
    with_sqlite3, with_sqlite3_autocommit, with_sqlite3_row_factory, with_sqlite3_row, with_aiosqlite,
]  # fmt: skip
POSTGRES: list[Make] = [
    with_psycopg, with_psycopg_dict_row, with_psycopg_async, with_psycopg_async_dict_row, with_asyncpg,
    with_asyncpg_pool, with_sqlalchemy_async_psycopg,
]  # fmt: skip
BOTH: list[Make] = [
    with_sqlalchemy_connection, with_sqlalchemy_session, with_sqlalchemy_scoped_session,
    with_sqlalchemy_async_connection, with_sqlalchemy_async_session, with_sqlalchemy_async_scoped_session,
]  # fmt: skip

EVERY = pytest.mark.parametrize(
    ("store_url", "make"),
    [("sqlite", make) for make in SQLITE + BOTH] + [("postgres", make) for make in POSTGRES + BOTH],
    indirect=["store_url"],
    ids=lambda value: value if isinstance(value, str) else value.__name__.removeprefix("with_"),
)


async def publish(app: Redrive, caller: Caller, *arguments: Any, **options: Any) -> Published:
    """Through both doors where there are two: the synchronous one for synchronous libraries."""
    if caller.is_async:
        return await app.publish_in(caller.connection, *arguments, **options)
    return app.publish_in_sync(caller.connection, *arguments, **options)


async def ids(app: Redrive) -> list[UUID]:
    return sorted(event.id for event in await app.events())


@EVERY
async def test_an_event_is_committed_with_the_callers_work_and_not_before(
    make: Make, app: Redrive, store_url: str
) -> None:
    with raw(store_url) as run:
        run("create table orders (n integer)")
        async with make(store_url) as caller:
            factory = getattr(caller.connection, "row_factory", None)
            await awaited(caller.execute("insert into orders values (1)"))
            published = await publish(app, caller, "order.placed", {"ü": [1.5, None]}, subject="order/1", delay="1h")
            assert getattr(caller.connection, "row_factory", None) is factory
            before = await ids(app), run("select count(*) from orders")
            await awaited(caller.commit())
        after = run("select count(*) from orders")

    (event,) = await app.events()
    assert before == ([], [(0,)])
    assert after == [(1,)]
    assert (published.id, published.created) == (event.id, True)
    assert (event.type, event.payload, event.subject, event.source) == (
        "order.placed", {"ü": [1.5, None]}, "order/1", "shop",
    )  # fmt: skip
    assert (event.due_at - event.created_at).total_seconds() == 3600


@EVERY
async def test_an_event_is_rolled_back_with_the_callers_work(make: Make, app: Redrive, store_url: str) -> None:
    with raw(store_url) as run:
        run("create table orders (n integer)")
        async with make(store_url) as caller:
            await awaited(caller.execute("insert into orders values (1)"))
            await publish(app, caller, "order.placed", {"n": 1})
            await awaited(caller.rollback())
        after = run("select count(*) from orders")

    assert after == [(0,)]
    assert await app.events() == []


@pytest.mark.req("A3")
@EVERY
async def test_a_live_retry_key_answers_with_the_event_that_has_it(make: Make, app: Redrive, store_url: str) -> None:
    live = await app.publish("t", 1, retry_key="k")

    async with make(store_url) as caller:
        again = await publish(app, caller, "t", 2, retry_key="k")
        fresh = await publish(app, caller, "t", 3, retry_key="k2")
        twice = await publish(app, caller, "t", 4, retry_key="k2")
        await awaited(caller.commit())

    assert (again.id, again.created) == (live.id, False)
    assert fresh.created
    assert (twice.id, twice.created) == (fresh.id, False)
    assert {event.payload for event in await app.events()} == {1, 3}


@EVERY
async def test_many_are_published_at_once(make: Make, app: Redrive, store_url: str) -> None:
    live = await app.publish("t", "live", retry_key="k")

    async with make(store_url) as caller:
        published = await app.publish_many_in(
            caller.connection,
            [
                ("t", 1),
                ("t", 2, {"retry_key": "k"}),
                ("u", 3, {"retry_key": "k"}),
                ("u", 4, {"retry_key": "k"}),
                ("t", 5, {"queue": "slow"}),
            ],
        )
        nothing = await app.publish_many_in(caller.connection, [])
        before = len(await app.events())
        await awaited(caller.commit())

    assert (nothing, before) == ([], 1)
    assert [each.created for each in published] == [True, False, True, False, True]
    assert published[1].id == live.id
    assert published[3].id == published[2].id
    assert {event.payload for event in await app.events()} == {"live", 1, 3, 5}


@pytest.mark.req("O8")
@EVERY
async def test_an_idempotency_key_is_recorded_in_the_callers_transaction(
    make: Make, app: Redrive, store_url: str
) -> None:
    import asyncio

    hands = await Hands.begin(app)
    await app.publish("t", idempotency_key="i")
    context = Context(await hands.claim_one(), Desk(app.store, app.new_events, asyncio.get_running_loop()))
    answers = []

    for end in ("rollback", "commit", "commit"):
        async with make(store_url) as caller:
            answers.append(await context.once_in(caller.connection))
            await awaited(getattr(caller, end)())

    with raw(store_url) as run:
        rows = run("select target, idempotency_key, event_id from {event_handled}")
    assert answers == [True, True, False]
    assert [(row[0], row[1], UUID(str(row[2]))) for row in rows] == [("t", "i", context.id)]
    await hands.claims.close()


@EVERY
async def test_a_synchronous_door_refuses_what_must_be_awaited(make: Make, app: Redrive, store_url: str) -> None:
    async with make(store_url) as caller:
        if caller.is_async:
            with pytest.raises(ConfigurationError, match=r"is asynchronous: use `await app\.publish_in"):
                app.publish_in_sync(caller.connection, "t")
        else:
            await app.publish_in(caller.connection, "t")  # the other way round is fine
        await awaited(caller.rollback())

    assert await app.events() == []


@pytest.mark.parametrize("wrong", [object(), "sqlite:///x.db", None, 5])
async def test_something_that_is_no_connection_is_named(wrong: Any) -> None:
    app = Redrive("sqlite:///:memory:")

    with pytest.raises(ConfigurationError, match=r"cannot write through a .*: known are sqlite3, aiosqlite"):
        await app.publish_in(wrong, "t")
    with pytest.raises(ConfigurationError, match="cannot write through a"):
        app.publish_in_sync(wrong, "t")


async def test_a_database_of_another_kind_is_named(app: Redrive) -> None:
    engine = sa.create_mock_engine("mysql+pymysql://", lambda *_: None)

    class Connection:
        __module__ = "sqlalchemy.engine.base"
        dialect = engine.dialect

    with pytest.raises(ConfigurationError, match="cannot live in a mysql database"):
        await app.publish_in(Connection(), "t")


async def test_what_cannot_be_stored_is_refused_before_the_callers_connection_is_touched(
    app: Redrive, store_url: str
) -> None:
    async with with_sqlalchemy_connection(store_url) as caller:
        statements: list[str] = []
        sa.event.listen(
            caller.connection, "before_cursor_execute", lambda *given: statements.append(cast("str", given[2]))
        )
        with pytest.raises(ValueError, match="NUL"):
            app.publish_in_sync(caller.connection, "t", "\0")
        with pytest.raises(ValueError, match="NUL"):
            await app.publish_many_in(caller.connection, [("t", 1), ("t", "\0")])

    assert statements == []


async def test_a_subclass_of_a_known_connection_is_known(app: Redrive, store_url: str) -> None:
    class Mine(psycopg.Connection[Any]):
        pass

    class MineToo(sqlite3.Connection):
        pass

    if store_url.startswith("postgres"):
        with Mine.connect(store_url) as connection:
            app.publish_in_sync(connection, "t")
    else:
        file = sqlite3.connect(path_of(store_url), factory=MineToo)
        app.publish_in_sync(file, "t")
        file.commit()
        file.close()

    assert len(await app.events()) == 1
