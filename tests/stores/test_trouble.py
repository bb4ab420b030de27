"""When the database is not as it should be: one clear sentence, and work goes on when it is again."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from redrive import ConfigurationError, Redrive, RedriveError, StoreUnavailable
from redrive.clock import SystemClock, VirtualClock
from redrive.errors import StoreFull, StoreReadOnly
from redrive.store.postgres import PostgresStore
from redrive.store.sqlite import SqliteStore
from tests.stores.helpers import Hands, failed, output_of, start_python


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


@pytest.fixture
async def file(sqlite_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(sqlite_url, clock=VirtualClock()) as app:
        yield app


def writer_connection(app: Redrive) -> sqlite3.Connection:
    assert isinstance(app.store, SqliteStore)
    return app.store.writer.connection


# --- SQLite: the file -------------------------------------------------------------------------------


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    app = Redrive(f"sqlite:///{tmp_path / 'no' / 'such' / 'redrive.db'}")

    with pytest.raises(ConfigurationError, match=f"create {tmp_path / 'no' / 'such'}, or name another file"):
        await app.open()


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n" * 1000)
    app = Redrive(f"sqlite:///{path}")

    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        await app.open()

    assert path.read_text() == "dear diary\n" * 1000


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RedriveError, match="cannot be opened: check the path"):
        await Redrive(f"sqlite:///{tmp_path}").open()


def damage(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + os.urandom(len(whole) - 8192))


async def test_a_damaged_file_is_said_to_be_damaged(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        await app.publish_many([("t", "x" * 500)] * 200)
    damage(Path(path_of(sqlite_url)))

    with pytest.raises(StoreUnavailable, match="is damaged: restore it from a backup"):
        async with Redrive(sqlite_url) as app:
            await app.publish("t")


READ_ONLY = """
import asyncio, os, sys
from redrive import Redrive, RedriveError
import redrive.store.sqlite

os.setgid(65534); os.setuid(65534)

async def main():
    try:
        async with Redrive(sys.argv[1]) as app:
            await app.publish("t")
    except RedriveError as error:
        print(type(error).__name__, error)

asyncio.run(main())
"""


def protect(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="takes root to become somebody else")
@pytest.mark.parametrize("is_new", [True, False])
async def test_a_file_that_cannot_be_written_says_so(is_new: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redrive.db"
        if is_new:
            sqlite3.connect(path).close()
        else:
            async with Redrive(f"sqlite:///{path}") as app:
                await app.publish("t")
        protect(path)

        said = output_of(start_python(READ_ONLY, f"sqlite:///{path}"))

    assert "cannot be written: check its owner and permissions" in said
    assert said.count("\n") == 1


async def test_a_file_that_turned_read_only_says_so_and_goes_on_afterwards(file: Redrive) -> None:
    connection = writer_connection(file)
    connection.execute("pragma query_only=on")

    with pytest.raises(StoreReadOnly, match="cannot be written"):
        await file.publish("t")
    connection.execute("pragma query_only=off")

    assert (await file.publish("t")).created
    assert len(await file.events()) == 1


async def test_a_full_disk_says_so_writes_nothing_and_goes_on_afterwards(file: Redrive) -> None:
    connection = writer_connection(file)
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count={pages + 20}")

    with pytest.raises(StoreFull, match="the disk is full: free some space, nothing was written"):
        await file.publish_many([("t", "x" * 3000) for _ in range(200)])
    small = await file.publish("small")  # there is room for this one
    connection.execute("pragma max_page_count=1000000")
    await file.publish_many([("t", "x" * 3000) for _ in range(200)])

    assert small.created
    assert await file.store.counts() == {("small", "pending"): 1, ("t", "pending"): 200}
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


async def test_a_full_disk_leaves_leases_to_be_settled_later(file: Redrive) -> None:
    await file.publish_many([("t", n) for n in range(100)])
    hands = await Hands.begin(file)
    rows = await hands.claim(100)
    connection = writer_connection(file)
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count={pages}")

    with pytest.raises(StoreFull):
        await hands.settle(*(failed(row, "x" * 5000) for row in rows))
    connection.execute("pragma max_page_count=1000000")
    refused = await hands.settle(*(failed(row, "x" * 5000) for row in rows))

    assert refused == []
    assert await file.store.counts() == {("t", "failed"): 100}
    assert (await file.verify_trail()).sound


async def test_a_file_that_somebody_keeps_locked_is_waited_for(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        other = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
        other.execute("begin immediate")
        publishing = asyncio.create_task(app.publish("t"))
        await asyncio.sleep(0.2)
        waited = not publishing.done()
        other.execute("rollback")

        published = await publishing
        other.close()

    assert waited
    assert published.created


async def test_a_file_that_stays_locked_is_given_up_and_says_so(sqlite_url: str) -> None:
    async with Redrive(sqlite_url):
        pass
    store = SqliteStore(path_of(sqlite_url), SystemClock(), busy_seconds=0.1)
    await store.open()
    other = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
    other.execute("begin immediate")

    with pytest.raises(StoreUnavailable, match="another process keeps the database locked"):
        await store.heartbeat(store.clock.new_id(), 30)
    with pytest.raises(StoreUnavailable, match="another process keeps the database locked"):
        async with store.transaction():
            pass
    other.execute("rollback")

    assert await store.heartbeat(store.clock.new_id(), 30) is False
    async with store.transaction() as transaction:
        assert await transaction.fetch("select 1") == [(1,)]
    other.close()
    await store.close()


# --- SQLite: group commit ---------------------------------------------------------------------------


async def test_one_failing_job_does_not_undo_the_others_of_its_commit(file: Redrive) -> None:
    assert isinstance(file.store, SqliteStore)
    writer = file.store.writer

    def fails(connection: sqlite3.Connection, now: int) -> None:
        connection.execute("update redrive_outbox set source = 'half done'")
        raise LookupError("on purpose")

    with writer.pen:  # everything below waits, and is then one group
        jobs = [asyncio.create_task(file.publish("t", n)) for n in range(5)]
        jobs.insert(2, asyncio.create_task(writer.do(fails)))
        jobs.insert(4, asyncio.create_task(writer.do(lambda connection, now: connection.execute("no such sql"))))
        await asyncio.sleep(0.05)
    answers = await asyncio.gather(*jobs, return_exceptions=True)

    assert [type(answer).__name__ for answer in answers] == [
        "Published", "Published", "LookupError", "Published", "OperationalError", "Published", "Published",
    ]  # fmt: skip
    assert {event.source for event in await file.events()} == {""}
    assert len(await file.events()) == 5


async def test_what_comes_together_shares_a_commit(file: Redrive, sqlite_url: str) -> None:
    assert isinstance(file.store, SqliteStore)
    await file.publish("t")
    commits: list[str] = []
    writer_connection(file).set_trace_callback(lambda text: commits.append(text) if text == "commit" else None)

    with file.store.writer.pen:
        jobs = [asyncio.create_task(file.publish("t", n)) for n in range(50)]
        await asyncio.sleep(0.05)
    await asyncio.gather(*jobs)
    writer_connection(file).set_trace_callback(None)

    assert 1 <= len(commits) <= 2
    assert len(await file.events()) == 50


async def test_a_cancelled_caller_does_not_disturb_the_others(file: Redrive) -> None:
    assert isinstance(file.store, SqliteStore)
    with file.store.writer.pen:
        jobs = [asyncio.create_task(file.publish("t", n)) for n in range(3)]
        await asyncio.sleep(0.05)
        jobs[1].cancel()
        await asyncio.sleep(0)

    answers = await asyncio.gather(*jobs, return_exceptions=True)

    assert [type(answer).__name__ for answer in answers] == ["Published", "CancelledError", "Published"]
    assert (await file.publish("t")).created


async def test_who_finds_nothing_due_does_not_wait_for_those_who_write(file: Redrive, sqlite_url: str) -> None:
    hands = await Hands.begin(file)
    await file.publish("t", delay=20)
    other = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
    other.execute("begin immediate")

    async with asyncio.timeout(30):
        claimed, due_in = await hands.claim(), await hands.claims.next_due()
    other.close()

    assert (claimed, due_in) == ([], 20.0)


async def test_a_look_that_fails_is_followed_by_the_job_that_tells_of_it(file: Redrive) -> None:
    assert isinstance(file.store, SqliteStore)
    asked: list[str] = []

    def look(connection: sqlite3.Connection, now: int) -> None:
        asked.append("look")
        connection.execute("no such sql")

    answer = await file.store.writer.do(lambda connection, now: asked.append("job"), look=look)

    assert (answer, asked) == (None, ["look", "job"])


# --- transactions that are given up -----------------------------------------------------------------


async def test_an_exception_rolls_everything_back(app: Redrive) -> None:
    with pytest.raises(LookupError):
        async with app.store.transaction() as transaction:
            await transaction.publish(app.new_events("t"))
            await transaction.mark_handled("t", "k", app.clock.new_id())
            raise LookupError

    async with app.store.transaction() as transaction:
        assert await transaction.mark_handled("t", "k", app.clock.new_id())
    assert await app.events() == []


async def test_a_transaction_that_is_cancelled_leaves_nothing_and_blocks_nobody(app: Redrive) -> None:
    entered = asyncio.Event()

    async def handler() -> None:
        async with app.store.transaction() as transaction:
            await transaction.publish(app.new_events("t"))
            entered.set()
            await asyncio.sleep(60)

    running = asyncio.create_task(handler())
    await entered.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    async with asyncio.timeout(30):
        assert (await app.publish("after")).created
    assert [event.type for event in await app.events()] == ["after"]


@pytest.mark.parametrize("cancel_after", [0.0, 0.01, 0.05])
async def test_a_transaction_cancelled_while_it_waits_to_begin_blocks_nobody(
    cancel_after: float, sqlite_url: str
) -> None:
    async with Redrive(sqlite_url) as app:
        other = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
        other.execute("begin immediate")

        async def handler() -> None:
            async with app.store.transaction():
                pass

        running = asyncio.create_task(handler())
        await asyncio.sleep(cancel_after)
        running.cancel()
        await asyncio.sleep(0.05)
        other.execute("rollback")
        other.close()
        with suppress(asyncio.CancelledError):
            await running

        async with asyncio.timeout(30):
            assert (await app.publish("t")).created
            async with app.store.transaction() as transaction:
                await transaction.publish(app.new_events("t"))
        assert len(await app.events()) == 2


@pytest.mark.parametrize("cancel_after", [0.0, 0.01, 0.05])
async def test_a_transaction_cancelled_while_the_writer_is_busy_blocks_nobody(
    cancel_after: float, sqlite_url: str
) -> None:
    async with Redrive(sqlite_url) as app:
        other = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
        other.execute("begin immediate")
        publishing = asyncio.create_task(app.publish("t"))  # holds the pen, waits for the file
        await asyncio.sleep(0.05)

        async def handler() -> None:
            async with app.store.transaction():
                pass

        running = asyncio.create_task(handler())
        await asyncio.sleep(cancel_after)
        running.cancel()
        await asyncio.sleep(0.05)
        other.execute("rollback")
        other.close()
        with suppress(asyncio.CancelledError):
            await running
        await publishing

        async with asyncio.timeout(30):
            assert (await app.publish("t")).created
        assert len(await app.events()) == 2


async def test_a_cancelled_publish_in_a_transaction_is_rolled_back_whole(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        for _ in range(10):

            async def handler() -> None:
                async with app.store.transaction() as transaction:
                    rows = [row for n in range(3_000) for row in app.new_events("t", n, retry_key=str(n))]
                    await transaction.publish(rows)

            running = asyncio.create_task(handler())
            await asyncio.sleep(0.06)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert (await app.publish("after")).created

        counts = await app.store.counts()
    assert counts.get(("t", "pending"), 0) in {0, 3_000}  # 3,000 if one of them was quick enough to commit
    assert counts["after", "pending"] == 10


async def test_a_transaction_inside_ones_own_transaction_does_not_wait_for_ever(app: Redrive) -> None:
    async with asyncio.timeout(30):
        async with app.store.transaction():
            if app.store.name == "sqlite":
                with pytest.raises(ConfigurationError, match="go through it"):
                    async with app.store.transaction():
                        pass
            else:
                async with app.store.transaction() as inner:
                    assert await inner.fetch("select 1")
        async with app.store.transaction() as after:
            assert await after.fetch("select 1")


async def test_publishing_beside_ones_own_open_transaction_is_refused_where_it_would_wait_for_ever(
    app: Redrive,
) -> None:
    answers: list[str] = []

    async with asyncio.timeout(30), app.store.transaction() as transaction:
        await transaction.publish(app.new_events("inside"))
        try:
            await asyncio.wait_for(app.publish("beside"), 30)
            answers.append("published")
        except ConfigurationError as error:
            answers.append(str(error))

    if app.store.name == "sqlite":
        assert "a transaction is open here: go through it" in answers[0]
        assert [event.type for event in await app.events()] == ["inside"]
    else:
        assert answers == ["published"]


# --- PostgreSQL -------------------------------------------------------------------------------------


def without_secrets(url: str, said: str) -> None:
    assert "\n" not in said
    assert (urlsplit(url).password or "?") not in said


async def test_a_server_that_is_not_there_is_named(postgres_url: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"postgresql://ann:hush@127.0.0.1:{port}/shop"
    app = Redrive(url)

    with pytest.raises(StoreUnavailable, match=f"PostgreSQL at 127.0.0.1:{port}/shop does not answer") as error:
        await app.open()
    await app.close()

    without_secrets(url, str(error.value))


async def test_a_wrong_password_is_said_to_be_wrong(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    url = f"postgresql://postgres:not-it@{parts.hostname}:{parts.port}{parts.path}"
    app = Redrive(url)

    with pytest.raises(ConfigurationError, match="Check user, password and database in the URL") as error:
        await app.open()
    await app.close()

    assert "password authentication failed" in str(error.value)
    without_secrets(url, str(error.value))


async def test_an_unknown_database_is_named(postgres_url: str) -> None:
    url = f"{postgres_url}_not"
    app = Redrive(url)

    with pytest.raises(ConfigurationError, match=r'database ".*_not" does not exist') as error:
        await app.open()
    await app.close()

    without_secrets(url, str(error.value))


async def test_a_read_only_server_says_so_and_goes_on_afterwards(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        hands = await Hands.begin(app)
        name = urlsplit(postgres_url).path[1:]
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())
            await cut(app, admin)
            with pytest.raises(StoreReadOnly, match="point the URL at the primary"):
                await app.publish("t")
            with pytest.raises(StoreReadOnly, match="point the URL at the primary"):
                await hands.claim()
            admin.execute(f'alter database "{name}" reset default_transaction_read_only'.encode())
            await cut(app, admin)

        assert (await app.publish("t")).created
        assert len(await hands.claim()) == 1
        await hands.claims.close()


async def cut(app: Redrive, admin: psycopg.Connection[tuple[object, ...]]) -> None:
    """End every connection but the administrator's, and let the pool find out."""
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )
    await asyncio.sleep(0.05)


async def test_a_cut_connection_is_made_anew(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        hands = await Hands.begin(app)
        await app.publish("t")
        assert len(await hands.claim()) == 1
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            await cut(app, admin)

        after: list[object] = []
        for act in (app.publish("t"), hands.claim(), app.store.heartbeat(hands.id, 30)):
            try:
                after.append(await act)
            except StoreUnavailable:
                after.append("unavailable")
        once_more = [await app.publish("t"), await hands.claim(), await app.store.heartbeat(hands.id, 30)]

        assert len(after) == 3
        assert once_more[2] is True
        assert len(await app.events()) in {2, 3}
        await hands.claims.close()


async def test_a_transaction_whose_connection_is_cut_leaves_nothing(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        with psycopg.connect(postgres_url, autocommit=True) as admin, pytest.raises(Exception):  # noqa: B017
            async with app.store.transaction() as transaction:
                await transaction.publish(app.new_events("t"))
                await cut(app, admin)
                await transaction.fetch("select 1")

        assert await app.events() == []


async def test_a_transaction_in_which_an_error_was_caught_does_not_pretend_to_be_committed(postgres_url: str) -> None:
    """PostgreSQL answers such a commit with ROLLBACK, and no driver takes that for an error."""
    async with Redrive(postgres_url, migrate=True) as app:
        with pytest.raises(ConfigurationError, match="put the statement into a savepoint"):
            async with app.transaction() as tx:
                await tx.publish("t")
                with suppress(Exception):
                    await tx.execute("select no_such_column")
        assert await app.events() == []

        async with app.transaction() as tx:
            await tx.publish("t")
        assert len(await app.events()) == 1


async def test_a_server_that_falls_silent_costs_an_error_and_not_a_hanging_worker(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True):
        pass
    store = PostgresStore(postgres_url, SystemClock(), call_seconds=0.3)
    await store.open()
    with psycopg.connect(postgres_url) as other:
        other.execute("lock table redrive.outbox in access exclusive mode")

        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await store.counts()
        other.rollback()

    assert await store.counts() == {}
    await store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "names no file"),
        ("mysql://root@localhost/x", "not a database redrive knows"),
        ("redrive.db", "not a database redrive knows"),
        ("", "url takes a text"),
    ],
)
def test_an_unknown_url_says_what_is_known(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Redrive(url)


# --- names that cannot be -----------------------------------------------------------------------------


async def test_a_name_that_no_database_can_hold_is_refused_in_our_words(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        with pytest.raises(RedriveError):
            await app.schedules.get("a\0b")
        with pytest.raises(RedriveError):
            await app.batches.find("a\0b")
        with pytest.raises(RedriveError):
            await app.release_key("a\0b", by="ada", reason="x")
