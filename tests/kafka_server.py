"""A real Apache Kafka for tests: one node, KRaft, the jars by Maven, Java 17 or newer.

The jars are fetched once into the virtual environment. A broker can be killed and started again on the same port with
the same data, which is what most tests want of it.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import ServerUnavailable, free_port, silence
from tests.warm import end_with_parent

POM = Path(__file__).with_name("kafka.pom.xml")
START_SECONDS = 180.0  # a machine may be very busy
STOP_SECONDS = 20.0
USERS = {"ada": "ada-secret"}
MOCK = """
import sys
from confluent_kafka import Producer
settings = {"test.mock.num.brokers": 3, "test.mock.broker.rtt": int(sys.argv[1]), "log_level": 0}
host = Producer({"bootstrap.servers": "none", **settings})
print(",".join(f"{each.host}:{each.port}" for each in host.list_topics(timeout=20).brokers.values()), flush=True)
sys.stdin.read()
"""
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class KafkaServer:
    """A Kafka, ours or somebody else's."""

    def __init__(self, bootstrap: str, version: str) -> None:
        self.bootstrap = bootstrap
        self.version = version

    @property
    def is_ours(self) -> bool:
        return False


class OwnKafka(KafkaServer):
    """A broker that can be killed and started again. A second listener wants a user and a password.

    A third names another port than its own to whoever asks: somebody may stand there, and pass on what he likes.
    """

    def __init__(self, root: Path, jars: Path, *, warm: bool = False) -> None:
        self._root, self._jars = root, jars
        # Without the second compiler it is up in half the time, and slower ever after.
        self._compiler = [] if warm else ["-XX:TieredStopAtLevel=1"]
        self._port, self._sasl_port, self._controller = free_port(), free_port(), free_port()
        self.behind_port, self.before_port = free_port(), free_port()
        version = next(jars.glob("kafka_2.13-*.jar")).stem.rpartition("-")[2]  # what the broker says of itself
        super().__init__(f"127.0.0.1:{self._port}", version)
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = root / "server.properties"
        self._settings.write_text(self._properties())
        self._run_tool("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._settings))

    @property
    def is_ours(self) -> bool:
        return True

    @property
    def sasl_bootstrap(self) -> str:
        return f"127.0.0.1:{self._sasl_port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        with (self._root / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        until = time.monotonic() + START_SECONDS
        while not _answers(self._port):
            if self._process.poll() is not None or time.monotonic() > until:
                log = (self._root / "log").read_text(errors="replace").strip()[-2000:]
                raise ServerUnavailable(f"Kafka did not start: {log}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it fall silent without closing anything."""
        assert self._process is not None
        silence(self._process)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _java(self) -> list[str]:
        return ["java", "-Xmx512m", "-XX:+UseSerialGC", *self._compiler, "-cp", f"{self._jars}/*"]

    def _run_tool(self, *command: str) -> None:
        result = subprocess.run([*self._java(), *command], capture_output=True, text=True, check=False, timeout=60)
        if result.returncode:
            raise ServerUnavailable(f"{command[0]} failed: {(result.stderr or result.stdout).strip()[-2000:]}")

    def _properties(self) -> str:
        open_ones = f"PLAINTEXT://127.0.0.1:{self._port},SASL_PLAINTEXT://127.0.0.1:{self._sasl_port}"
        listeners = f"{open_ones},BEHIND://127.0.0.1:{self.behind_port}"
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"{open_ones},BEHIND://127.0.0.1:{self.before_port}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,BEHIND:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN} required {users};",
            "sasl.enabled.mechanisms": "PLAIN",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._root / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "num.partitions": "3",
            # A killed broker may come back once the session of the one before has run out: nine seconds by default.
            "broker.session.timeout.ms": "1500",
            "broker.heartbeat.interval.ms": "300",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def running_kafka(*, warm: bool = False) -> Iterator[OwnKafka]:
    """Run a Kafka in a temporary directory; ``warm``: one that gets fast in time, rather than one that is up soon."""
    jars = _fetched_jars()
    root = Path(tempfile.mkdtemp(prefix="redrive-kafka-"))
    try:
        kafka = OwnKafka(root, jars, warm=warm)
        kafka.start()
        try:
            yield kafka
        finally:
            kafka.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def mock_kafka(*, slow_ms: int = 0) -> Iterator[KafkaServer]:
    """Run librdkafka's own imitation of a cluster; it lives in one of its clients, here in a process of its own.

    ``slow_ms``: how long each answer takes.
    """
    command = [sys.executable, "-c", MOCK, str(slow_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield KafkaServer(process.stdout.readline().strip(), "mock")
        finally:
            process.stdin.close()
            process.wait(STOP_SECONDS)


def existing_kafka(bootstrap: str) -> KafkaServer:
    """Use one that somebody else runs."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise ServerUnavailable(f"no Kafka answers at the given address: {error}") from error
    return KafkaServer(bootstrap, "of REDRIVE_TEST_KAFKA")


def _fetched_jars() -> Path:
    """Fetch what the pom names, once for a virtual environment."""
    if shutil.which("java") is None:
        raise ServerUnavailable("there is no java on the path: a real Kafka needs Java 17")
    place = Path(sys.prefix) / "share" / "redrive-kafka"
    if _is_fetched(place):
        return place
    if shutil.which("mvn") is None:
        raise ServerUnavailable("there is no mvn on the path: Maven fetches the jars of Kafka")
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of all processes of a run one fetches
        if not _is_fetched(place):
            _fetch(place)
    return place


def _fetch(place: Path) -> None:
    fetching = Path(tempfile.mkdtemp(prefix="redrive-kafka-", dir=place.parent))
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={fetching}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if result.returncode:
            raise ServerUnavailable(f"Maven could not fetch Kafka: {result.stdout.strip()[-2000:]}")
        (fetching / "pom").write_bytes(POM.read_bytes())
        shutil.rmtree(place, ignore_errors=True)
        fetching.rename(place)
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailable("Maven took more than ten minutes to fetch Kafka") from error
    finally:
        shutil.rmtree(fetching, ignore_errors=True)


def _is_fetched(place: Path) -> bool:
    return (place / "pom").exists() and (place / "pom").read_bytes() == POM.read_bytes()


def _cluster_id() -> str:
    """Make a new one; never one that begins with a hyphen, which the tool takes for an option: one in 64 did."""
    return base64.b64encode(os.urandom(16), altchars=b"Aa").decode().rstrip("=")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
