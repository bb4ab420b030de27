"""The brokers of the lab: a sender that sends each copy until it is acknowledged, the server, and what can befall both.

The sender goes straight to the server; whoever takes in goes through a proxy. What a broker holds is counted there: an
answer that was lost makes one more copy.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import nats
import nats.errors
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from nats.aio.client import Client

from tests.kafka_server import OwnKafka
from tests.lab.proxy import Proxy
from tests.servers import NatsServer
from tests.waiting import wait_until

LINES = 25
"""Ordering keys: few, so that the next of a line comes soon behind one that was lost."""
CHUNK = 200
_LATE = 500
_TIMES = (5, 8, 12, 30, 45)
"""How many of a hundred messages come once, twice and so on: four times on average."""
_PARTITIONS = 3
_DOCUMENT = "application/cloudevents+json"


def deliveries(keys: int, dice: random.Random) -> Iterator[int]:
    """Name each key one to five times: of a line the first copy in its order, all others late and in any order."""
    waiting: list[int] = []
    for key in range(keys):
        (copies,) = dice.choices(range(1, 6), _TIMES)
        if line_of(key) is not None:
            yield key
            copies -= 1
        waiting += [key] * copies
        while len(waiting) > _LATE:
            place = dice.randrange(len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            yield waiting.pop()
    dice.shuffle(waiting)
    yield from waiting


def chunks(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Put together what is sent at once: of a line no more than one that was not sent before, for the order's sake."""
    chunk: list[int] = []
    lines: set[str] = set()
    highest = -1
    for number in numbers:
        line = line_of(number) if number > highest else None
        if len(chunk) == CHUNK or line in lines:
            yield chunk
            chunk, lines = [], set()
        chunk.append(number)
        if line is not None:
            lines.add(line)
            highest = number
    yield chunk


def line_of(key: int) -> str | None:
    """Say which ordering key a message has; every other one has none."""
    return f"line {key // 2 % LINES}" if key % 2 == 0 else None


def document(key: int) -> bytes:
    line = line_of(key)
    said: dict[str, Any] = {"specversion": "1.0", "id": f"k{key}", "source": "/lab", "data": {"n": key}}
    said |= {"type": "lab.came"} if line is None else {"type": "lab.line", "partitionkey": line}
    return json.dumps(said).encode()


class Side(ABC):
    """One broker, and what can be done to it."""

    broker: str
    start = "earliest"
    """Where a consumer group begins."""
    where: str
    """Where whoever takes in connects to."""

    def __init__(self, server: NatsServer | OwnKafka, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy

    @abstractmethod
    def make(self, name: str) -> None:
        """Make a stream or topic, to send to and to ask about from now on."""

    @abstractmethod
    def send(self, keys: Sequence[int]) -> None:
        """Send copies; return when each of them was acknowledged."""

    @abstractmethod
    def held(self) -> int:
        """Count the messages that are there."""

    @abstractmethod
    def left(self) -> int:
        """Count those that were not acknowledged by whoever takes in."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the stream or topic."""

    @abstractmethod
    def close(self) -> None: ...

    # What can befall it

    def is_killed(self) -> None:
        self.server.kill()
        self.server.start()

    def is_silent(self) -> None:
        self.server.pause()
        time.sleep(1.5)
        self.server.resume()

    def is_cut(self) -> None:
        self.proxy.cut_all()

    def is_half_open(self) -> None:
        """Leave a request of somebody who is gone at the server, and let whoever takes in come back beside it."""
        wait_until(lambda: not self.left(), 180)
        time.sleep(0.3)
        self.proxy.abandon_all()
        wait_until(lambda: self.proxy.living)
        time.sleep(0.3)

    def is_parted(self) -> None:
        self.proxy.refuse()
        time.sleep(0.4)
        self.proxy.refuse(is_refusing=False)

    def is_swallowed(self) -> None:
        self.proxy.swallow_all()


class NatsSide(Side):
    """JetStream. It is given no message ids, so that it takes every copy."""

    broker = "nats"

    def __init__(self, server: NatsServer, proxy: Proxy) -> None:
        super().__init__(server, proxy)
        self.where = f"nats://127.0.0.1:{proxy.port}"
        self._url = server.url
        self._runner = asyncio.Runner()
        self._client: Client | None = None
        self._name = ""

    def make(self, name: str) -> None:
        self._name = name
        self._runner.run(self._asked("add_stream", name=name, subjects=[f"{name}.in"]))

    def send(self, keys: Sequence[int]) -> None:
        self._runner.run(self._send(list(keys)))

    async def _send(self, left: list[int]) -> None:
        while left:
            client = await self._connected()
            js = client.jetstream()
            sending = (
                js.publish(f"{self._name}.in", document(key), timeout=2, headers={"content-type": _DOCUMENT})
                for key in left
            )
            answers = await asyncio.gather(*sending, return_exceptions=True)
            left = [key for key, answer in zip(left, answers, strict=True) if isinstance(answer, BaseException)]
            if left:
                await self._hang_up()

    def held(self) -> int:
        info = self._runner.run(self._asked("stream_info", self._name))
        return int(info.state.messages)

    def left(self) -> int:
        info = self._runner.run(self._asked("consumer_info", self._name, "lab"))
        return int(info.num_pending + info.num_ack_pending)

    def remove(self) -> None:
        self._runner.run(self._asked("delete_stream", self._name))

    async def _asked(self, what: str, *values: Any, **named: Any) -> Any:
        """Ask until it answers: a consumer that is being set back is not there for a moment."""
        for _ in range(100):
            client = await self._connected()
            try:
                return await getattr(client.jsm(), what)(*values, **named)
            except (nats.errors.Error, OSError, TimeoutError):
                await self._hang_up()
                await asyncio.sleep(0.1)
        raise AssertionError(f"NATS does not answer: {what} {values}")

    async def _connected(self) -> Client:
        while self._client is None or not self._client.is_connected:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                self._client = await nats.connect(self._url, allow_reconnect=False, connect_timeout=1, error_cb=_quiet)
                break
            await asyncio.sleep(0.02)
        return self._client

    async def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await asyncio.wait_for(client.close(), 2)

    def close(self) -> None:
        self._runner.run(self._hang_up())
        self._runner.close()


async def _quiet(_error: Exception) -> None: ...


class KafkaSide(Side):
    """Kafka. Lines go to the partition of their key, everything else to any, so that copies may come by two at once."""

    broker = "kafka"

    def __init__(self, server: OwnKafka, proxy: Proxy) -> None:
        super().__init__(server, proxy)
        self.where = f"127.0.0.1:{proxy.port}"
        self._bootstrap: dict[str, str | int | float | bool] = {"bootstrap.servers": server.bootstrap, "log_level": 0}
        self._name = ""
        self._producer: Producer | None = None
        self._looker: Consumer | None = None

    def make(self, name: str) -> None:
        self._name = name
        admin = AdminClient(self._bootstrap)
        admin.create_topics([NewTopic(name, _PARTITIONS, 1)])[name].result(30)
        self._looker = Consumer(self._bootstrap | {"group.id": f"lab-{name}"})

    def send(self, keys: Sequence[int]) -> None:
        left = list(keys)
        while left:
            settings = {"enable.idempotence": True, "message.timeout.ms": 30_000, "reconnect.backoff.max.ms": 500}
            self._producer = self._producer or Producer(self._bootstrap | settings)
            failed: list[int] = []
            for key in left:
                self._produce(self._producer, key, failed)
            self._producer.flush()  # until each of them was answered or timed out
            left = failed
            if left:
                self._producer.close()
                self._producer = None

    def _produce(self, producer: Producer, key: int, failed: list[int]) -> None:
        def answered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(key)

        line = line_of(key)
        headers: dict[str, str | bytes | None] = {"content-type": _DOCUMENT}
        place = None if line is None else line.encode()
        producer.produce(self._name, document(key), place, headers=headers, on_delivery=answered)

    def held(self) -> int:
        return sum(high - low for low, high in map(self._ends, range(_PARTITIONS)))

    def left(self) -> int:
        assert self._looker is not None
        places = [TopicPartition(self._name, each) for each in range(_PARTITIONS)]
        committed = _answered(partial(self._looker.committed, places, 30))
        return sum(self._ends(each.partition)[1] - max(0, each.offset) for each in committed)

    def _ends(self, partition: int) -> tuple[int, int]:
        assert self._looker is not None
        low, high = _answered(partial(self._looker.get_watermark_offsets, TopicPartition(self._name, partition), 30))
        return low, high

    def remove(self) -> None:
        if self._looker is not None:
            self._looker.close()
            self._looker = None
        admin = AdminClient(self._bootstrap)
        admin.delete_topics([self._name])[self._name].result(30)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        if self._looker is not None:
            self._looker.close()


def _answered(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer: a Kafka that has just been started may not know yet what it leads."""

    def answer() -> Any:
        with suppress(KafkaException):
            return ask()
        return None

    return wait_until(answer)
