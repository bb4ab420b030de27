"""Brokers for tests: a stream or a topic of its own for each, and servers that may be killed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Record
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from nats.aio.client import Client
from nats.js.api import Placement

from redrive import Redrive, RetryPolicy
from tests.conftest import REQUIRE_ALL, Run
from tests.kafka_server import KafkaServer, OwnKafka, mock_kafka
from tests.servers import NatsCluster, NatsServer, ServerUnavailable, running_nats, running_nats_cluster
from tests.waiting import PATIENCE_SECONDS

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, retry=FAST, migrate=True, source="shop") as app:
        yield app


@pytest.fixture
def own_nats(run: Run) -> Iterator[NatsServer]:
    """A server that the test may kill."""
    try:
        with running_nats() as server:
            run.backends["NATS"] = server.version
            yield server
    except ServerUnavailable as error:
        run.missing["NATS"] = str(error)
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
        pytest.skip(f"no NATS: {error}")


@pytest.fixture(scope="module")
def cluster_servers(run: Run) -> Iterator[NatsCluster]:
    try:
        with running_nats_cluster() as servers:
            run.backends["NATS"] = servers.version
            yield servers
    except ServerUnavailable as error:
        run.missing["NATS"] = str(error)
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
        pytest.skip(f"no NATS: {error}")


@dataclass(slots=True)
class Cluster:
    """A cluster of three NATS servers with a stream of the test's own; a plain client tells who leads."""

    servers: NatsCluster
    stream: str = field(default_factory=lambda: f"C{secrets.token_hex(4)}")

    @property
    def subject(self) -> str:
        return f"{self.stream}.in"

    async def ask(self, what: str, *values: Any, **named: Any) -> Any:
        """Ask JetStream until it answers, at any server that runs."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                client = await nats.connect(
                    self.servers.urls, connect_timeout=1, allow_reconnect=False, error_cb=_ignored
                )
                try:
                    return await getattr(client.jsm(timeout=1), what)(*values, **named)
                finally:
                    await client.close()
            except (nats.errors.Error, OSError, TimeoutError):
                assert time.monotonic() < until, f"the cluster does not answer: {what} {values}"
                await asyncio.sleep(0.1)

    async def make(self, **options: Any) -> None:
        await self.ask("add_stream", name=self.stream, subjects=[f"{self.stream}.>"], **options)

    async def make_at_one(self) -> NatsServer:
        """Make the stream at one server that does not lead the cluster."""
        name = next(each for each in self.servers.nodes if each != self.servers.leader)
        await self.make(num_replicas=1, placement=Placement(tags=[name]))
        return self.servers.nodes[name]

    async def leader(self, consumer: str | None = None) -> str:
        """Name the server that leads the stream, or a consumer of it; wait until there is one."""
        while True:
            asked = ("stream_info", self.stream) if consumer is None else ("consumer_info", self.stream, consumer)
            if (found := await self.ask(*asked)).cluster.leader:
                return str(found.cluster.leader)

    async def step_down(self, consumer: str | None = None) -> None:
        """Let the leader give up its place, as it does before a restart."""
        await self.ask(
            "_api_request",
            f"$JS.API.STREAM.LEADER.STEPDOWN.{self.stream}"
            if consumer is None
            else f"$JS.API.CONSUMER.LEADER.STEPDOWN.{self.stream}.{consumer}",
        )

    async def messages(self) -> int:
        return int((await self.ask("stream_info", self.stream)).state.messages)


async def _ignored(_error: Exception) -> None: ...


@pytest.fixture
async def nats_cluster(cluster_servers: NatsCluster) -> AsyncIterator[Cluster]:
    """A cluster of three, all of them running, with a leader."""
    cluster = Cluster(cluster_servers)
    await cluster.ask("account_info")
    yield cluster
    # In this thread: a server ends with the thread that has started it.
    for node in cluster_servers.nodes.values():
        node.bring_back()


@dataclass(slots=True)
class Stream:
    """A stream of the test's own, seen with a plain client."""

    name: str
    subject: str
    client: Client
    url: str

    async def messages(self) -> list[Any]:
        """Read everything that is in it, in order."""
        manager = self.client.jsm()
        info = await manager.stream_info(self.name)
        sequences = range(info.state.first_seq, info.state.last_seq + 1)
        return [await manager.get_msg(self.name, sequence) for sequence in sequences]

    async def put(self, body: bytes, headers: dict[str, str] | None = None, subject: str | None = None) -> None:
        await self.client.jetstream().publish(subject or f"{self.subject}.in", body, headers=headers)


@pytest.fixture
async def stream(nats_server: NatsServer) -> AsyncIterator[Stream]:
    name = f"T{secrets.token_hex(4)}"
    client = await nats.connect(nats_server.url)
    try:
        await client.jsm().add_stream(name=name, subjects=[f"{name}.>"])
        yield Stream(name, name, client, nats_server.url)
        await client.jsm().delete_stream(name)
    finally:
        await client.close()


# --- Kafka ---

Header = tuple[str, bytes | None]


@dataclass(slots=True)
class Topic:
    """A topic of the test's own, seen with a plain client."""

    name: str
    bootstrap: str
    is_mock: bool = False

    def put(
        self, body: bytes | None, headers: Sequence[Header] = (), key: bytes | None = None, *, number: int = 1
    ) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for _ in range(number):
            producer.produce(self.name, body, key, headers=list(headers))
        assert producer.flush(20) == 0

    def put_all(self, bodies: Sequence[tuple[bytes, bytes]]) -> None:
        """Put bodies with their keys, in order."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for key, body in bodies:
            producer.produce(self.name, body, key, headers=[("content-type", b"application/cloudevents+json")])
            producer.poll(0)
        assert producer.flush(60) == 0

    def messages(self) -> list[Record]:
        """Read everything that is in it, in order by partition."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "look", "enable.partition.eof": True}
        consumer = Consumer(settings | {"enable.auto.commit": False})
        found = consumer.list_topics(self.name, timeout=20).topics[self.name].partitions
        consumer.assign([TopicPartition(self.name, each, 0) for each in found])
        records: list[Record] = []
        left, until = len(found), time.monotonic() + 30
        while left:
            assert time.monotonic() < until, "the topic has no end"
            for each in consumer.consume(1_000, 0.2):
                if (error := each.error()) is None:
                    records.append(each)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left -= 1
        consumer.close()
        return sorted(records, key=lambda each: (each.partition() or 0, each.offset() or 0))

    def committed(self, group: str) -> int:
        """Count what a group has committed, over all partitions."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        found = consumer.list_topics(self.name, timeout=20).topics[self.name].partitions
        said = consumer.committed([TopicPartition(self.name, each) for each in found], timeout=20)
        consumer.close()
        return sum(max(0, each.offset) for each in said)

    def make(self, partitions: int = 3, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        if self.is_mock:  # it makes a topic when it is first heard of
            admin.list_topics(self.name, timeout=20)
            return
        config = {name.replace("_", "."): value for name, value in config.items()}
        admin.create_topics([NewTopic(self.name, partitions, 1, config=config)])[self.name].result(20)
        until = time.monotonic() + 20
        while len(admin.list_topics(self.name, timeout=20).topics[self.name].partitions) < partitions:
            assert time.monotonic() < until, "the topic did not come"
            time.sleep(0.02)

    def remove(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([self.name])[self.name].result(20)


@pytest.fixture(scope="session")
def kafka_mock(run: Run) -> Iterator[KafkaServer]:
    with mock_kafka() as server:
        run.backends["a mock of Kafka"] = "by librdkafka"
        yield server


@pytest.fixture(scope="session", params=["mock", "real"])
def cluster(request: pytest.FixtureRequest) -> KafkaServer:
    """Give the test one Kafka after the other."""
    server: KafkaServer = request.getfixturevalue("kafka_mock" if request.param == "mock" else "kafka_server")
    return server


@pytest.fixture
def topic(cluster: KafkaServer) -> Topic:
    made = Topic(f"t{secrets.token_hex(4)}", cluster.bootstrap, cluster.version == "mock")
    made.make()
    return made


@pytest.fixture
def real_topic(kafka_server: KafkaServer) -> Topic:
    made = Topic(f"t{secrets.token_hex(4)}", kafka_server.bootstrap)
    made.make()
    return made


@pytest.fixture
def own_kafka(kafka_server: KafkaServer) -> OwnKafka:
    """The Kafka of the run, where it is ours to kill: it comes back at the same place with the same data."""
    if not isinstance(kafka_server, OwnKafka):
        pytest.skip("the Kafka of REDRIVE_TEST_KAFKA is not ours to kill")
    return kafka_server
