"""Fixtures that every test may use: a fresh store of each kind, and a watch for what tests leave behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import secrets
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
import structlog
from psycopg import sql

from redrive import Redrive
from redrive.clock import VirtualClock
from redrive.logs import log
from tests import leaks, warm
from tests.kafka_server import KafkaServer, existing_kafka, running_kafka
from tests.servers import (
    EMPTY,
    NatsServer,
    Postgres,
    ServerUnavailable,
    existing_nats,
    existing_postgres,
    running_nats,
    running_postgres,
)
from tests.spread import Spread

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
REQUIRE_ALL = os.environ.get("REDRIVE_REQUIRE_ALL_BACKENDS") == "1"


@dataclass(slots=True)
class Run:
    """What this run used."""

    backends: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUN] = Run()
    hypothesis.settings.register_profile("redrive", deadline=None)  # how fast a busy machine is proves nothing
    hypothesis.settings.load_profile("redrive")
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        warm.door()  # one for all processes of this run
    if config.option.markexpr != "lab":  # its long runs are to meet a real disk
        _work_in_memory()
    if "REDRIVE_TEST_POSTGRES" not in os.environ:  # ours speaks neither, and asking takes a third of a connection
        os.environ.setdefault("PGSSLMODE", "disable")
        os.environ.setdefault("PGGSSENCMODE", "disable")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a script: and so are ours
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _work_in_memory() -> None:
    """Let tests write to memory where there is room (TMPDIR goes first): thousands of databases are slow on a disk."""
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    if has_room and "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spread:
    return Spread(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what such a process has used."""
    told, run = getattr(node, "workeroutput", {}), node.config.stash[RUN]
    run.backends.update(told.get("backends", {}))
    run.missing.update(told.get("missing", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        run = session.config.stash[RUN]
        output.update(backends=run.backends, missing=run.missing)


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Run:
    return pytestconfig.stash[RUN]


# --- stores ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server(run: Run) -> Iterator[Postgres]:
    """One real PostgreSQL for the run: ours, or the one that REDRIVE_TEST_POSTGRES points at."""
    with ExitStack() as stack:
        try:
            if url := os.environ.get("REDRIVE_TEST_POSTGRES"):
                server = existing_postgres(url)
            else:
                version = int(os.environ.get("REDRIVE_TEST_POSTGRES_VERSION", "16"))
                server = stack.enter_context(running_postgres(version))
        except ServerUnavailable as error:
            run.missing["PostgreSQL"] = str(error)
            if REQUIRE_ALL:
                pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
            pytest.skip(f"no PostgreSQL: {error}")
        run.backends["PostgreSQL"] = server.version
        template = f"redrive_test_{secrets.token_hex(6)}"
        url = stack.enter_context(fresh_database(server, name=template))
        _migrate(url)
        # Whoever connects first writes down what PostgreSQL knows of its catalogues, and copies have it, too.
        psycopg.connect(url).close()
        admin = stack.enter_context(server.administered())
        leaks.SHARED.add(descriptor := admin.fileno())
        yield replace(server, template=template, admin=admin)
        leaks.SHARED.remove(descriptor)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: Postgres) -> Iterator[str]:
    """Yield the URL of a fresh database; fail if the test leaves a connection to it open."""
    with fresh_database(postgres_server, has_tables=_wants_tables(request)) as url:
        yield url


def _wants_tables(request: pytest.FixtureRequest) -> bool:
    """Tell whether the database comes with our tables: they are copied, which is four times as fast as migrating."""
    return request.node.get_closest_marker("no_tables") is None


def _migrate(url: str) -> None:
    """Make our tables, in a thread: the first test to ask may have a browser open, whose event loop runs in ours."""

    async def migrate() -> None:
        async with Redrive(url, clock=VirtualClock(), migrate=True):
            pass

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(migrate())).result()


@contextmanager
def fresh_database(postgres_server: Postgres, *, name: str = "", has_tables: bool = False) -> Iterator[str]:
    """Make a database for the length of a block, for tests that need several."""
    name = name or f"redrive_test_{secrets.token_hex(6)}"
    identifier = sql.Identifier(name)
    template = sql.Identifier(postgres_server.template if has_tables else EMPTY)
    with postgres_server.administered() as admin:
        how = sql.SQL(" strategy file_copy" if admin.info.server_version >= 150_000 else "")  # the only one before
        admin.execute(sql.SQL("create database {} template {}{}").format(identifier, template, how))
    try:
        yield postgres_server.url_of(name)
    finally:
        with postgres_server.administered() as admin:
            left = _connections_left(admin, name)
            admin.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))
    if left:
        pytest.fail("connections left open:\n" + "\n".join(left), pytrace=False)


def _connections_left(admin: psycopg.Connection, database: str) -> list[str]:
    until = time.monotonic() + leaks.GRACE_SECONDS
    while True:
        rows = admin.execute(
            "select pid, application_name, state, query from pg_stat_activity"
            " where datname = %s and backend_type = 'client backend'",
            (database,),
        ).fetchall()
        if not rows or time.monotonic() > until:
            return [" ".join(map(str, row)) for row in rows]
        time.sleep(0.02)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "redrive.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path, migrated_file: Path, run: Run) -> str:
    run.backends["SQLite"] = sqlite3.sqlite_version
    path = tmp_path / "redrive.db"
    if _wants_tables(request):
        shutil.copy(migrated_file, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Give the test one store after the other."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def nats_server(run: Run) -> Iterator[NatsServer]:
    """One real NATS for the run: ours, or the one that REDRIVE_TEST_NATS points at. Tests name their own streams."""
    with ExitStack() as stack:
        try:
            url = os.environ.get("REDRIVE_TEST_NATS")
            server = existing_nats(url) if url else stack.enter_context(running_nats())
        except ServerUnavailable as error:
            run.missing["NATS"] = str(error)
            if REQUIRE_ALL:
                pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
            pytest.skip(f"no NATS: {error}")
        run.backends["NATS"] = server.version
        yield server


@pytest.fixture(scope="session")
def kafka_server(run: Run) -> Iterator[KafkaServer]:
    """One real Kafka for the run: ours, or the one that REDRIVE_TEST_KAFKA points at. Tests name their own topics."""
    with ExitStack() as stack:
        try:
            bootstrap = os.environ.get("REDRIVE_TEST_KAFKA")
            server = existing_kafka(bootstrap) if bootstrap else stack.enter_context(running_kafka())
        except ServerUnavailable as error:
            run.missing["Kafka"] = str(error)
            if REQUIRE_ALL:
                pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
            pytest.skip(f"no Kafka: {error}")
        run.backends["Kafka"] = server.version
        yield server


# --- nothing is left behind -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def leaves_nothing_open() -> Iterator[None]:
    threads, descriptors = leaks.threads(), leaks.descriptors()
    yield
    if left := leaks.left_behind(leaks.threads, threads):
        pytest.fail(f"threads left running: {sorted(left)}", pytrace=False)
    if left := leaks.left_behind(leaks.descriptors, descriptors):
        pytest.fail(f"file descriptors left open: {sorted(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Put the log back: a command sends it to its own standard error, and others catch it for a while."""
    yield
    log.before_first = None
    structlog.reset_defaults()


@pytest.fixture
async def leaves_no_task(leaves_nothing_open: None) -> AsyncIterator[None]:
    """Watch the event loop of an asynchronous test; each of them gets it at collection."""
    yield
    if left := await leaks.tasks_left_behind():
        pytest.fail("tasks left running:\n" + "\n".join(sorted(left)), pytrace=False)


# --- what the run tells ---------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(inspect.unwrap(item.function)):
            names = item.fixturenames
            names.insert(names.index("leaves_nothing_open") + 1, "leaves_no_task")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # thousands of tests stand here until the end: no collection need look at them again


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    run = config.stash[RUN]
    for name, reason in run.missing.items():
        terminalreporter.section(f"{name.upper()} DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(reason, red=True)
        terminalreporter.line(f"Nothing in this run says anything about {name}.", red=True, bold=True)
    ran = ", ".join(f"{name} {version}" for name, version in sorted(run.backends.items()))
    terminalreporter.section("backends")
    terminalreporter.line(f"ran on: {ran or 'none'}")
