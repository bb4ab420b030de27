"""A PostgreSQL of one's own, to be treated badly: stopped at once, killed, frozen, filled up, replaced by its standby.

``fsync`` is off, since the machine goes on; ``synchronous_commit`` is not: what was acknowledged must survive the end
of every process of the server.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests import servers, warm
from tests.waiting import wait_until

SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "40"}
START_SECONDS = 30.0


@dataclass(slots=True)
class Cluster:
    """One server: its files, its port, and its process while it runs."""

    root: Path
    data: Path
    binaries: Path
    password: str
    identity: dict[str, Any]
    settings: Mapping[str, str]
    port: int = field(default_factory=servers.free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it; it need not answer yet."""
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "",
                   **self.settings}  # fmt: skip
        command = [str(self.binaries / "postgres"), "-D", str(self.data)]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.root / "log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True,
                preexec_fn=warm.end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call
                **self.identity,
            )  # fmt: skip

    def answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=2, autocommit=True) as asked:
            (is_standby,) = asked.execute("select pg_is_in_recovery()").fetchone() or (True,)
            return not is_standby
        return False

    def wait(self) -> float:
        """Wait until it can be written to; say when that was."""
        wait_until(self.answers, START_SECONDS, self.log())
        return time.monotonic()

    def stop_at_once(self) -> None:
        """Immediate shutdown: no checkpoint, no farewell, recovery at the next start."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """End the server itself with SIGKILL; its children notice and end."""
        children = self.children()
        self._end(signal.SIGKILL)
        wait_until(lambda: not any(_is_alive(pid) for pid in children))

    def freeze(self) -> None:
        """Stop all its processes: connections stay open, and nobody answers."""
        for pid in (self.pid, *self.children()):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in (*self.children(), self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            servers._stop(self._process)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run something as its administrator."""
        may_write = "-c default_transaction_read_only=off"  # whatever the server says to others
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5, options=may_write) as admin:
            done = admin.execute(statement.encode(), values or None)
            return done.fetchall() if done.description else []

    def backends(self) -> list[int]:
        """Name the backends that serve somebody else."""
        query = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        return [row[0] for row in self.run(query)]

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make an empty database for the length of a block."""
        name = f"lab_{secrets.token_hex(4)}"
        self.run(f"create database {name} template template0")
        try:
            yield self.url_of(name)
        finally:
            self.run(f"drop database if exists {name} with (force)")

    def url_of(self, database: str) -> str:
        return f"{self.url.rpartition('/')[0]}/{database}"

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-1_500:]

    def standby(self) -> Cluster:
        """Make a server that follows this one, and have every commit wait for it."""
        data = self.root / "standby"
        command = [str(self.binaries / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        command += ["-D", str(data), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        data.mkdir(mode=0o700)
        if self.identity:
            os.chown(data, self.identity["user"], self.identity["group"])
        environment = {**os.environ, "PGPASSWORD": self.password}
        subprocess.run(command, check=True, capture_output=True, cwd="/", env=environment, timeout=60, **self.identity)
        made = Cluster(self.root, data, self.binaries, self.password, self.identity, self.settings)
        made.start()
        wait_until(lambda: self.run("select 1 from pg_stat_replication where state = 'streaming'"), 30, self.log())
        self.run("alter system set synchronous_standby_names = '*'")
        self.run("select pg_reload_conf()")
        wait_until(lambda: self.run("select 1 from pg_stat_replication where sync_state = 'sync'"), 30, self.log())
        return made

    def promote(self) -> float:
        """Make a standby the primary, without anybody to wait for; say when it could be written to."""
        self.run("select pg_promote(false)")
        return self.wait()

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(30)


@contextmanager
def own_cluster(**settings: str) -> Iterator[Cluster]:
    """Run one in a temporary directory for the length of a block, with whatever follows it."""
    root = Path(tempfile.mkdtemp(prefix="redrive-lab-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        identity = servers._unprivileged()
        binaries = servers._binaries(16, root, for_other_user=bool(identity))
        password = "lab"
        data = servers._initialise(binaries, root, password, identity)
        made = Cluster(root, data, binaries, password, identity, {**SETTINGS, **settings})
        made.start()
        stack.callback(made.close)
        made.wait()
        yield made


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
