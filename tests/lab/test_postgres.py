"""PostgreSQL is cut, stopped, killed, frozen, closed and replaced under real workers; they go on by themselves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from redrive import Redrive
from tests import servers, warm
from tests.conftest import REQUIRE_ALL, Run
from tests.lab import aftermath
from tests.lab.cluster import Cluster, own_cluster
from tests.lab.crew import Crew, crew_on
from tests.lab.proxy import proxy_to
from tests.lab.record import Record
from tests.waiting import wait_until

PROMISES = ("durable", "no-phantom", "effect-once", "fence", "not-stuck", "trail", "order")
FIRST_CLAIM_SECONDS = 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_cluster() as made:
        yield made


@dataclass(slots=True)
class Scene:
    """A server under attack, those who work on it, and how soon they went on."""

    cluster: Cluster
    crew: Crew
    dice: random.Random
    run: Record
    waits: list[float] = field(default_factory=list)

    def suffer(self, name: str) -> None:
        """Make one fault, and measure how long after the server was ready again something new was begun."""
        tail = aftermath.Tail(self.crew.ledger)
        ready = FAULTS[name](self.cluster, self.dice)
        self.run.faults[name] += 1
        self.run.cases += 1
        marker = self.publish_marker()
        begun = tail.wait_for("attempt", 30, id=marker)
        self.waits.append(begun["at"] - ready)

    def publish_marker(self) -> str:
        """Publish as soon as anybody can."""
        app = Redrive(self.crew.url)
        while True:
            with suppress(psycopg.Error), psycopg.connect(self.crew.url, connect_timeout=5) as connection:
                published = app.publish_in_sync(connection, "lab.work", {"n": 0}, priority=0)
                connection.commit()
                return str(published.id)
            time.sleep(0.02)

    def end(self) -> None:
        """Let the crew finish, and look at everything."""
        aftermath.drain(self.crew)
        found = aftermath.look(self.crew, is_bounded=False)
        aftermath.note_reached(self.run, self.crew)
        self.run.violations += found.violations
        self.waits.sort()
        self.run.figures["first claim, slowest"] = round(self.waits[-1], 2)
        self.run.figures["first claim, p99"] = round(self.waits[int(0.99 * (len(self.waits) - 1))], 2)
        assert not found.violations, f"{found}\n{self.crew.said()}"


# --- the faults: each makes one, ends it, and says when the server was ready again ------------------


def connections_cut(cluster: Cluster, dice: random.Random) -> float:
    for pid in cluster.backends():
        if dice.random() < 0.8:
            cluster.run("select pg_terminate_backend(%s)", pid)
    return time.monotonic()


def stopped_at_once(cluster: Cluster, dice: random.Random) -> float:
    cluster.stop_at_once()
    time.sleep(dice.uniform(0.1, 1.0))
    cluster.start()
    return cluster.wait()


def backend_killed(cluster: Cluster, dice: random.Random) -> float:
    """The postmaster takes the shared memory for damaged and starts everything anew."""
    pid = dice.choice(cluster.backends())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    return cluster.wait()


def fallen_silent(cluster: Cluster, dice: random.Random) -> float:
    cluster.freeze()
    time.sleep(dice.uniform(0.5, 3.0))
    cluster.thaw()
    return time.monotonic()


def read_only(cluster: Cluster, dice: random.Random) -> float:
    cluster.run("alter system set default_transaction_read_only = on")
    cluster.run("select pg_reload_conf()")
    time.sleep(dice.uniform(0.3, 1.5))
    cluster.run("alter system reset default_transaction_read_only")
    cluster.run("select pg_reload_conf()")
    return time.monotonic()


def connections_exhausted(cluster: Cluster, dice: random.Random) -> float:
    """Somebody takes every connection there is, those kept for administrators too, while the workers lose theirs."""
    with ExitStack() as stack:
        admin = stack.enter_context(psycopg.connect(cluster.url, autocommit=True))
        end = time.monotonic() + dice.uniform(0.5, 1.5)
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname like 'lab_%'")
        while time.monotonic() < end:
            try:
                stack.enter_context(psycopg.connect(cluster.url, connect_timeout=2))
            except psycopg.OperationalError:
                time.sleep(0.02)
    return time.monotonic()


def closed_by_its_administrator(cluster: Cluster, dice: random.Random) -> float:
    """As before a restore: nobody new is let in, and those who were in are thrown out."""
    ((name,),) = cluster.run("select datname from pg_database where datname like 'lab_%'")
    cluster.run(f"alter database {name} allow_connections false")
    cluster.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = '" + name + "'")
    time.sleep(dice.uniform(0.3, 1.5))
    cluster.run(f"alter database {name} allow_connections true")
    return time.monotonic()


FAULTS: dict[str, Callable[[Cluster, random.Random], float]] = {
    "connections cut": connections_cut,
    "stopped at once": stopped_at_once,
    "backend killed": backend_killed,
    "silent": fallen_silent,
    "read-only": read_only,
    "connections exhausted": connections_exhausted,
    "closed": closed_by_its_administrator,
}


@contextmanager
def at_work(cluster: Cluster, folder: Path, dice: random.Random, run: Record) -> Iterator[Scene]:
    with cluster.database() as url, crew_on(url, folder) as crew:
        for _ in range(2):
            crew.start("worker", lease="2s", call_seconds=5.0)
        crew.start("producer", call_seconds=5.0)
        wait_until(lambda: crew.ledger.exists() and crew.ledger.stat().st_size > 10_000, 30, crew.said())
        yield Scene(cluster, crew, dice, run)


@pytest.mark.req("O9")
@pytest.mark.promise(*PROMISES)
def test_workers_outlive_whatever_happens_to_the_server(
    cluster: Cluster, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    run, dice = record("postgresql faults", "postgres"), random.Random(seed)
    with at_work(cluster, tmp_path / "crew", dice, run) as scene:
        for name in (*FAULTS, *dice.sample([*FAULTS], len(FAULTS))):  # a minute of it, with pgbouncer and the standby
            scene.suffer(name)
        scene.end()
    assert run.reached["lab.work delivered"]


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise(*PROMISES)
def test_hours_of_faults(
    cluster: Cluster, tmp_path: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    run, dice, end, rounds = record("postgresql faults", "postgres"), random.Random(seed), time.monotonic() + budget, 0
    waits: list[float] = []
    while not rounds or time.monotonic() < end:
        rounds += 1
        with at_work(cluster, tmp_path / f"crew-{rounds}", dice, run) as scene:
            for _ in range(40):
                scene.suffer(dice.choices([*FAULTS], [8, 2, 4, 2, 2, 2, 2])[0])
            scene.end()
        waits += scene.waits
    waits.sort()
    run.figures["first claim, p99"] = p99 = round(waits[int(0.99 * (len(waits) - 1))], 2)
    run.figures["first claim, slowest"] = round(waits[-1], 2)
    assert p99 <= FIRST_CLAIM_SECONDS


# --- through a pooler, and from a primary to its standby --------------------------------------------


@pytest.fixture
def pgbouncer(run: Run) -> str:
    """Find pgbouncer; .ci/run fetches it where there is none."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        reason = "pgbouncer is not on the PATH (Debian: apt-get install pgbouncer; .ci/run fetches it)"
        run.missing["pgbouncer"] = reason
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    return found


class Pooler:
    """pgbouncer in transaction mode before a cluster: fewer connections to the server than there are clients."""

    def __init__(self, binary: str, cluster: Cluster, root: Path) -> None:
        self.port = servers.free_port()
        self._identity = cluster.identity
        self._process: subprocess.Popen[bytes] | None = None
        self._root = root
        root.chmod(0o755)
        for part in (Path(binary), *Path(binary).parent.glob("lib*.so*")):  # .ci/run lays its libraries beside it
            shutil.copy(part, root / part.name)
        (root / "log").touch()
        (root / "log").chmod(0o666)
        (root / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={cluster.port} user=postgres password={cluster.password}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\nserver_login_retry = 1\n"
            f"ignore_startup_parameters = extra_float_digits\nlogfile = {root / 'log'}\n"
        )

    def start(self) -> None:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self._root)}
        self._process = subprocess.Popen(
            [str(self._root / "pgbouncer"), "-q", str(self._root / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env=environment,
            preexec_fn=warm.end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call
            **self._identity,
        )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def shared_folder(cluster: Cluster) -> Iterator[Path]:
    """Give a folder that the server's user can reach, too."""
    folder = cluster.root / "pooler"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.req("O9")
@pytest.mark.promise(*PROMISES)
def test_through_pgbouncer_in_transaction_mode_nothing_is_lost_when_it_is_killed(
    cluster: Cluster, tmp_path: Path, pgbouncer: str, shared_folder: Path, seed: int, record: Callable[..., Record]
) -> None:
    run, dice = record("postgresql faults", "postgres"), random.Random(seed)
    pooler = Pooler(pgbouncer, cluster, shared_folder)
    pooler.start()
    try:
        with cluster.database() as url, crew_on(url, tmp_path / "crew") as crew:
            pooled = f"postgresql://postgres@127.0.0.1:{pooler.port}/{url.rpartition('/')[2]}?pooler=transaction"
            for _ in range(2):
                crew.start("worker", url=pooled, lease="2s", call_seconds=5.0)
            crew.start("producer", url=pooled, call_seconds=5.0)
            wait_until(lambda: crew.ledger.exists() and crew.ledger.stat().st_size > 10_000, 30, crew.said())
            scene = Scene(cluster, crew, dice, run)
            for _ in range(2):
                tail = aftermath.Tail(crew.ledger)
                pooler.kill()
                time.sleep(dice.uniform(0.0, 0.3))
                pooler.start()
                ready = time.monotonic()
                begun = tail.wait_for("attempt", 30, id=scene.publish_marker())
                scene.waits.append(begun["at"] - ready)
                run.faults["pgbouncer killed"] += 1
            scene.suffer("connections cut")
            scene.end()
    finally:
        pooler.kill()


@pytest.mark.req("O9")
@pytest.mark.promise(*PROMISES)
def test_a_standby_takes_over_and_everything_acknowledged_is_there(
    tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    """With synchronous replication; without it PostgreSQL itself may lose what it acknowledged."""
    run = record("postgresql faults", "postgres")
    with ExitStack() as stack:
        primary = stack.enter_context(own_cluster())
        standby = primary.standby()
        stack.callback(standby.close)
        proxy = stack.enter_context(proxy_to("127.0.0.1", primary.port))
        primary.run("create database lab_promoted template template0")
        crew = stack.enter_context(crew_on(primary.url_of("lab_promoted"), tmp_path / "crew"))
        address = crew.url.replace(str(primary.port), str(proxy.port))
        for _ in range(2):
            crew.start("worker", url=address, lease="2s", call_seconds=5.0)
        crew.start("producer", url=address, call_seconds=5.0)
        wait_until(lambda: crew.ledger.exists() and crew.ledger.stat().st_size > 10_000, 30, crew.said())
        scene = Scene(standby, crew, random.Random(seed), run)

        tail = aftermath.Tail(crew.ledger)
        primary.kill()
        proxy.target = ("127.0.0.1", standby.port)  # the standby is read-only for a moment
        ready = standby.promote()
        crew.url = standby.url_of("lab_promoted")
        begun = tail.wait_for("attempt", 30, id=scene.publish_marker())
        scene.waits.append(begun["at"] - ready)
        run.faults["promoted"] += 1
        run.cases += 1
        scene.end()
