"""Kafka: an idempotent producer, and members of consumer groups that commit what is stored.

The driver has threads of its own and calls back when it is polled: a producer by the event loop, which hears of
everything reported meanwhile at once; a member of a group on a thread that makes all its calls, so that nothing happens
to its partitions in the middle of one.

The driver reconnects by itself and sends again what was under way, so a broker that is back within ``ack_timeout`` is
a delay and no failure. A producer that is beyond that (a fatal error) is given up, and the next message makes another.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Thread
from typing import Any, Final, Literal, cast, overload

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as Record
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from redrive.clock import Clock, SystemClock
from redrive.duration import span
from redrive.errors import BrokerRefused, ConfigurationError, DependencyUnavailable, MessageTooLarge, TopicMissing
from redrive.logs import log
from redrive.transport.base import Beginning, Beginnings, Destination, Headers, Link, LinkState, Message, Received

Setting = str | int | float | bool
Place = tuple[str, int]
"""A topic and the number of a partition."""

_BUSY_SECONDS: Final = 0.002
_IDLE_SECONDS: Final = 0.2
_REACH_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 1.0
_BATCH_BYTES: Final = 900_000  # below what a broker takes by default
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

_PROMISED: Final = {
    "bootstrap.servers": "say them as the first argument of Kafka(…)",
    "group.id": "say kafka.topic(…, group='…')",
    "acks": "an event is delivered when all replicas have it",
    "request.required.acks": "an event is delivered when all replicas have it",
    "enable.idempotence": "a message that is sent again must not stand there twice",
    "message.timeout.ms": "say Kafka(…, ack_timeout='10s')",
    "delivery.timeout.ms": "say Kafka(…, ack_timeout='10s')",
    "enable.auto.commit": "an offset is committed when its message is stored",
    "enable.auto.offset.store": "an offset is committed when its message is stored",
    "enable.partition.eof": "an intake must know when it has seen everything",
    "auto.offset.reset": "say kafka.topic(…, start='earliest')",
    "partition.assignment.strategy": "a rebalance must leave alone what stays where it is",
}
_USUAL: Final[dict[str, Setting]] = {
    "client.id": "redrive",
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 1_000,
    "socket.timeout.ms": 10_000,
    "socket.keepalive.enable": True,
}
_OUT: Final[dict[str, Setting]] = {
    "linger.ms": 5,
    "batch.size": _BATCH_BYTES,
    "message.max.bytes": 100_000_000,  # the broker knows its own limit
    "queue.buffering.max.messages": 20_000,
    "queue.buffering.max.kbytes": 131_072,
    "partitioner": "murmur2_random",  # as Java does: a key goes to the same partition whoever sends it
    "topic.metadata.propagation.max.ms": 5_000,  # how long a topic may be unknown before it is said to be
}
# How long a member may take between two polls, and how long the driver waits in silence for the answer to a join: when
# that was lost on a connection that stays open, nothing came in for its usual 5 minutes. Never below the session's.
_JOIN_MS: Final = 60_000
_IN: Final[dict[str, Setting]] = {
    "session.timeout.ms": 15_000,
    "queued.max.messages.kbytes": 32_768,
}

_E = KafkaError
_REFUSING: Final = frozenset((
    _E._AUTHENTICATION, _E._SSL, _E.SASL_AUTHENTICATION_FAILED, _E.UNSUPPORTED_SASL_MECHANISM, _E.ILLEGAL_SASL_STATE,
    _E.CLUSTER_AUTHORIZATION_FAILED,
))  # fmt: skip
_TOO_LARGE: Final = frozenset((_E.MSG_SIZE_TOO_LARGE, _E.RECORD_LIST_TOO_LARGE, _E.INVALID_MSG_SIZE))
_NO_TOPIC: Final = frozenset((
    _E._UNKNOWN_TOPIC, _E._UNKNOWN_PARTITION, _E.UNKNOWN_TOPIC_OR_PART, _E.UNKNOWN_TOPIC_ID, _E.TOPIC_EXCEPTION,
))  # fmt: skip
_NOT_ALLOWED: Final = frozenset((_E.TOPIC_AUTHORIZATION_FAILED, _E.GROUP_AUTHORIZATION_FAILED))
_NOT_TAKEN: Final = frozenset((_E.INVALID_RECORD, _E.POLICY_VIOLATION, _E.INVALID_TIMESTAMP))


class Kafka:
    """A Kafka cluster."""

    prefix: Literal["ce-", "ce_"] = "ce_"

    def __init__(
        self,
        servers: str | Sequence[str] = "127.0.0.1:9092",
        *,
        name: str = "kafka",
        settings: Mapping[str, Setting] | None = None,
        connect_timeout: str | float = "5s",
        ack_timeout: str | float = "10s",
        create_topics: int | None = None,
    ) -> None:
        """Say where it is; nothing is connected yet. ``name`` is that of the dependency events wait for.

        ``settings``: librdkafka's own, as ``{"security.protocol": "SASL_SSL", "sasl.username": …}``; those that a
        promise rests on cannot be set. ``create_topics``: create a missing topic before its first use, with so many
        partitions; without it, a missing topic is an error.
        """
        if create_topics is not None and create_topics < 1:
            raise ConfigurationError(f"create_topics is a number of partitions, at least 1, not {create_topics}")
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"a broker is named with letters, digits, - and _, not {name!r}")
        for key in settings or ():
            if key in _PROMISED:
                raise ConfigurationError(f"{key} cannot be set: {_PROMISED[key]}")
        self.name = name
        self.servers = servers if isinstance(servers, str) else ",".join(servers)
        self.connect_seconds = span(connect_timeout, "connect_timeout")
        self.clock: Clock = SystemClock()
        self._settings = dict(settings or {})
        self._ack_seconds = span(ack_timeout, "ack_timeout")
        self._partitions = create_topics
        self._created: set[str] = set()
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._link = Link()
        self._lines: dict[bool, _Line] = {}
        self._opening: dict[bool, asyncio.Task[_Line]] = {}

    @property
    def link(self) -> Link:
        return self._link

    @property
    def creates_topics(self) -> bool:
        return self._partitions is not None

    def use(self, clock: Clock) -> None:
        self.clock = clock

    # What there is to send to and to take from

    @overload
    def topic(self, topic: str) -> Destination: ...
    @overload
    def topic(
        self, topic: str, *, group: str, start: Literal["earliest", "latest"] = "earliest", name: str | None = None
    ) -> "KafkaTopic": ...
    def topic(
        self, topic: str, *, group: str | None = None, start: Literal["earliest", "latest"] = "earliest",
        name: str | None = None,
    ) -> "Destination | KafkaTopic":  # fmt: skip
        """Name a topic to send to; with a consumer ``group``, one to take from.

        ``start``: where a group begins that never has: with the oldest message, or (``"latest"``) with those that come
        next. That is fixed once, for all partitions. Partitions that are added later begin with their first message.
        """
        if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            raise ConfigurationError(f"{topic!r} is no topic: letters, digits, dots, - and _, at most 249")
        if group is None:
            return Destination(self, topic)
        if not group:
            raise ConfigurationError("a consumer group needs a name: kafka.topic('payments', group='billing')")
        if start not in {"earliest", "latest"}:
            raise ConfigurationError(f"start is 'earliest' or 'latest', not {start!r}")
        return KafkaTopic(self, topic, group, start, name or f"{topic}/{group}")

    # Sending

    async def send(self, message: Message) -> None:
        line = self._lines.get(False) or await self._line(alone=False)
        if self._partitions is not None and message.topic not in self._created:
            await self.create(message.topic)
        try:
            await line.send(message)
        except MessageTooLarge:
            if len(message.body or b"") > _BATCH_BYTES:
                raise
            # The broker measures a batch, and refuses the small ones together with the large one.
            await (await self._line(alone=True)).send(message)

    async def create(self, topic: str) -> None:
        """Create a topic that is missing, if this app may; one that exists stays as it is."""
        if self._partitions is None or topic in self._created:
            return
        creating = self._creating.get(topic)
        if creating is None or creating.done():
            creating = self._creating[topic] = asyncio.create_task(self._create(topic, self._partitions))
        await asyncio.shield(creating)

    async def _create(self, topic: str, partitions: int) -> None:
        settings: dict[str, Any] = {**_USUAL, **self._settings, "bootstrap.servers": self.servers}
        new = NewTopic(topic, num_partitions=partitions)  # replicated as the cluster does by default
        admin = AdminClient(settings | {"logger": _DriverLog()})
        future = admin.create_topics([new], request_timeout=self.connect_seconds)[topic]
        try:
            await asyncio.to_thread(future.result, self.connect_seconds)
        except KafkaException as error:
            if error.args[0].code() != _E.TOPIC_ALREADY_EXISTS:
                raise self.meaning(error.args[0], topic) from error
        except TimeoutError:
            raise DependencyUnavailable(self.name, f"no answer within {self.connect_seconds:g} s") from None
        else:
            log.info("topic created", broker=self.name, topic=topic, partitions=partitions)
        self._created.add(topic)

    async def topic_id(self, topic: str) -> str:
        """Ask for the id of a topic; empty where the cluster has none."""
        settings: dict[str, Any] = {**_USUAL, **self._settings, "bootstrap.servers": self.servers}
        admin = AdminClient(settings | {"logger": _DriverLog()})
        future = admin.describe_topics(TopicCollection([topic]), request_timeout=self.connect_seconds)[topic]
        try:
            found = await asyncio.to_thread(future.result, self.connect_seconds)
        except KafkaException as error:
            if error.args[0].code() in {_E._UNSUPPORTED_FEATURE, _E.UNSUPPORTED_VERSION}:
                return ""
            raise self.meaning(error.args[0], topic) from error
        except TimeoutError:
            raise DependencyUnavailable(self.name, f"no answer within {self.connect_seconds:g} s") from None
        return str(found.topic_id)

    async def _line(self, *, alone: bool) -> "_Line":
        """Find the producer, or make one; those who ask meanwhile get the same."""
        if (line := self._lines.get(alone)) is not None:
            return line
        opening = self._opening.get(alone)
        if opening is None or opening.done():
            opening = self._opening[alone] = asyncio.create_task(self._open(alone=alone), name=f"redrive-{self.name}")
        return await asyncio.shield(opening)

    async def _open(self, *, alone: bool) -> "_Line":
        if self._link.state is LinkState.IDLE:
            self._link.turn(LinkState.CONNECTING, self.clock)
        settings = self.producer_settings()
        try:
            line = _Line(self, settings | {"batch.num.messages": 1} if alone else settings)
        except DependencyUnavailable as error:
            self._link.turn(LinkState.REFUSED, self.clock, error.message)
            raise
        await line.open()
        self._lines[alone] = line
        self._link.turn(LinkState.OK, self.clock)
        return line

    def lost(self, line: "_Line") -> None:
        """Hear that a producer is of no more use."""
        for alone, each in list(self._lines.items()):
            if each is line:
                del self._lines[alone]

    async def close(self) -> None:
        opening, self._opening = self._opening, {}
        for task in opening.values():
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, DependencyUnavailable):
                    await task
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.close()
        self._link.turn(LinkState.IDLE, self.clock)

    # What the driver says

    def producer_settings(self) -> dict[str, Any]:
        """Put together what the driver is told to send with."""
        return {
            **_USUAL, **_OUT, **self._settings, "bootstrap.servers": self.servers, "enable.idempotence": True,
            "acks": "all", "message.timeout.ms": int(self._ack_seconds * 1_000),
        }  # fmt: skip

    def consumer_settings(self, group: str) -> dict[str, Any]:
        """Put together what the driver is told to take with.

        Whatever a group has no offset for begins at its beginning: a new partition, an offset that was lost. Only where
        a group begins for the first time is a choice, and ``KafkaTopic`` fixes that.
        """
        join = max(_JOIN_MS, int(self._settings.get("session.timeout.ms", 0)))
        return {
            **_USUAL, **_IN, "max.poll.interval.ms": join, **self._settings,
            "bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True,
            "partition.assignment.strategy": "cooperative-sticky",
        }  # fmt: skip

    def stands(self, heard: "_Heard") -> None:
        """Take note of how it stands with the cluster."""
        if heard.state is None:
            if self._link.state is not LinkState.OK:
                self._link.turn(LinkState.OK, self.clock)
        elif heard.state is not self._link.state:
            self._link.turn(heard.state, self.clock, self.why(heard))

    def why(self, heard: "_Heard") -> str:
        if heard.state is LinkState.REFUSED:
            return f"{self.servers} refuses us: {heard.said}"
        return f"{self.servers} cannot be reached: {heard.said or 'no answer'}"

    def down(self, heard: "_Heard", default: str = "") -> DependencyUnavailable:
        """Say that the cluster cannot be used at all now."""
        heard.state = heard.state or LinkState.UNREACHABLE
        heard.said = heard.said or default
        self._link.turn(heard.state, self.clock, self.why(heard))
        return DependencyUnavailable(self.name, self.why(heard))

    def meaning(self, error: KafkaError, topic: str) -> Exception:
        """Turn what the driver says about a topic or a message of it into what we do."""
        code, said = error.code(), error.str()
        if code in _TOO_LARGE:
            return MessageTooLarge(
                f"the message is larger than {self.name} takes for {topic!r} ({said}): publish a reference instead, or "
                "raise max.message.bytes of the topic"
            )
        if code in _NO_TOPIC:
            return TopicMissing(f"{self.name} has no topic {topic!r} ({said}): create it")
        if code in _NOT_ALLOWED:
            return BrokerRefused(f"{self.name} does not allow us to use {topic!r} ({said}): grant it to our user")
        if code in _NOT_TAKEN:
            return BrokerRefused(f"{self.name} refuses the message for {topic!r}: {said}")
        return DependencyUnavailable(self.name, f"the topic {topic!r} cannot take it now: {said} ({error.name()})")


class _Heard:
    """What the driver tells of the cluster apart from answers; it calls on the thread that polls."""

    def __init__(self) -> None:
        self.state: LinkState | None = None
        self.said = ""
        self.fatal: KafkaError | None = None

    def error(self, error: KafkaError) -> None:
        code = error.code()
        if error.fatal() or code == _E._FATAL:
            self.fatal = error
        if code in _REFUSING:
            self.state, self.said = LinkState.REFUSED, error.str()
        elif self.state is LinkState.REFUSED:
            return
        elif code == _E._ALL_BROKERS_DOWN:
            self.state, self.said = LinkState.UNREACHABLE, self.said or error.str()
        else:
            self.said = error.str()

    def well(self) -> None:
        """Forget, because an answer came."""
        self.state, self.said = None, ""


class _DriverLog:
    """Takes what the driver would print: every failed connection, again and again. What matters we are told."""

    def log(self, level: int, text: str, *facts: Any) -> None:
        log.debug("kafka driver", level=level, said=text % facts)


def _made(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any], heard: _Heard, broker: str) -> Any:
    try:
        return kind(settings | {"error_cb": heard.error, "logger": _DriverLog()})
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise DependencyUnavailable(broker, f"its settings are wrong: {said}") from error


# --- sending ---


class _Line:
    """One producer. The event loop looks after its reports itself, every two milliseconds while something is under way.

    A thread could wait for them, but the driver takes Python's lock anew for each report, beside a loop that is busy.
    """

    def __init__(self, broker: Kafka, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._heard = _Heard()
        self._producer: Producer | None = _made(Producer, settings, self._heard, broker.name)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._answers: set[asyncio.Future[KafkaError | None]] = set()
        self._news = asyncio.Event()

    async def open(self) -> None:
        """Reach the cluster, or say why not."""
        try:
            reached = await self._reach()
        except BaseException:
            await self.close()
            raise
        if not reached:
            await self.close()
            raise self._broker.down(self._heard, f"no answer within {self._broker.connect_seconds:g} s")
        self._look()

    async def _reach(self) -> bool:
        """Wait for the first answer of the cluster; be told early that none will come."""
        assert self._producer is not None
        for _ in range(max(1, int(self._broker.connect_seconds / _REACH_SECONDS))):
            with suppress(KafkaException):
                self._producer.cluster_id(0)
                return True
            self._hear(self._producer)
            if self._heard.state is not None:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(_REACH_SECONDS):
                    await self._news.wait()
        return False

    async def send(self, message: Message) -> None:
        """Send, and wait for the report."""
        answer: asyncio.Future[KafkaError | None] = self._loop.create_future()
        reported = partial(self._reported, answer)
        while True:
            if self._producer is None:
                raise DependencyUnavailable(self._broker.name, "the producer was closed")
            try:
                self._producer.produce(
                    message.topic, message.body, message.key, on_delivery=reported, headers=list(message.headers)
                )
                break
            except BufferError:
                self._news.clear()
                await self._news.wait()
            except KafkaException as refused:
                raise self._meaning(refused.args[0], message) from refused
        if not self._answers:
            self._look_in(_BUSY_SECONDS)
        self._answers.add(answer)
        error = await answer
        if error is not None:
            raise self._meaning(error, message)

    def _reported(self, answer: "asyncio.Future[KafkaError | None]", error: KafkaError | None, _: Record) -> None:
        self._answers.discard(answer)
        if error is None and self._heard.state is not None:
            self._heard.well()
        if not answer.done():
            answer.set_result(error)

    def _look(self) -> None:
        """Hear what the driver has to say, and look again soon."""
        if self._producer is None:
            return
        if self._hear(self._producer):
            self._news.set()
            self._broker.stands(self._heard)
        if self._heard.fatal is not None:
            log.warning("kafka producer given up", broker=self._broker.name, error=self._heard.fatal.str())
            self._end()
        else:
            self._look_in(_BUSY_SECONDS if self._answers else _IDLE_SECONDS)

    def _hear(self, producer: Producer) -> bool:
        """Let the driver call back; say whether it had anything to say."""
        try:
            return producer.poll(0) > 0
        except KafkaException as error:  # so it tells that it has come to its end
            self._heard.error(error.args[0])
            return True

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _meaning(self, error: KafkaError, message: Message) -> Exception:
        if error.fatal() or error.code() == _E._FATAL:
            self._heard.fatal = error  # the next look gives it up
        elif error.code() == _E._MSG_TIMED_OUT and self._heard.state is not None:
            return self._broker.down(self._heard)
        return self._broker.meaning(error, message.topic)

    def _end(self) -> "asyncio.Future[None] | None":
        """Let go of the producer; what is under way ends as not delivered."""
        producer, self._producer = self._producer, None
        if producer is None:
            return None
        self._broker.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        for answer in self._answers:
            if not answer.done():
                answer.set_result(_E(_E._PURGE_INFLIGHT))
        gone: asyncio.Future[None] = self._loop.create_future()
        Thread(target=self._close, args=(producer, gone), name=f"redrive-{self._broker.name}").start()
        return gone

    def _close(self, producer: Producer, gone: "asyncio.Future[None]") -> None:
        producer.purge()
        producer.close()  # may wait for connections to end
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear
            self._loop.call_soon_threadsafe(gone.set_result, None)

    async def close(self) -> None:
        """End the producer."""
        if (gone := self._end()) is not None:
            await gone


# --- taking ---


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic, and the consumer group by which we take from it."""

    broker: Kafka
    topic: str
    group: str
    start: str
    name: str

    @property
    def is_exclusive(self) -> bool:
        return False

    async def subscribe(self, beginnings: Beginnings | None = None) -> "_Member":
        try:
            return await self._joined(beginnings)
        except TopicMissing:
            if not self.broker.creates_topics:
                raise
            await self.broker.create(self.topic)
        return await self._joined(beginnings)

    async def _joined(self, beginnings: Beginnings | None) -> "_Member":
        member = _Member(self)
        try:
            await member.open()
            if self.start == "latest":
                await member.begin(await self._positions(member, beginnings))
            await member.join()
        except BaseException:
            await member.close()
            raise
        return member

    async def _positions(self, member: "_Member", beginnings: Beginnings | None) -> Mapping[int, int]:
        """Find where the group began; when it never has, that is here and now, for every partition there is.

        A group that has committed something has begun, whoever knows of it.
        """
        name = f"{self.broker.name}:{self.topic}/{self.group}"
        begun = None if beginnings is None else await beginnings.begun(name)
        topic_id = await self.broker.topic_id(self.topic)
        if begun is not None and begun.topic_id == topic_id:
            return begun.positions
        if begun is not None:  # the topic was made anew: all of it came after the group began
            beginning = Beginning(topic_id, {})
        else:
            beginning = Beginning(topic_id, {} if await member.has_committed() else await member.ends())
        return (beginning if beginnings is None else await beginnings.begin(name, beginning)).positions


class _Member:
    """One member of a consumer group. All calls are made on its thread, one after the other.

    A partition comes with a number, so that what was fetched from it in an earlier stay is not committed in this one.
    """

    def __init__(self, of: KafkaTopic) -> None:
        self._of = of
        self._broker = of.broker
        self._heard = _Heard()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"redrive-{of.broker.name}")
        self._consumer: Consumer | None = None
        self._got: list[Received] = []
        self._starts: dict[Place, int] = {}
        self._stay = 0
        self._owned: dict[Place, int] = {}
        self._ended: set[Place] = set()
        self._stored: dict[Place, int] = {}
        self._taken: dict[Place, int] = {}
        self._stable: dict[Place, int] = {}
        self._is_held = False
        self._is_leaving = False
        self._failure: Exception | None = None

    async def _call(self, function: Callable[..., Any], *values: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *values)
        except KafkaException as error:
            raise self._broker.meaning(error.args[0], self._of.topic) from error

    # Joining and leaving

    async def open(self) -> None:
        broker = self._broker
        if broker.link.state is LinkState.IDLE:
            broker.link.turn(LinkState.CONNECTING, broker.clock)
        await self._call(self._open)
        broker.stands(self._heard)

    def _open(self) -> None:
        of, broker = self._of, self._broker
        settings = broker.consumer_settings(of.group) | {"on_commit": self._committed}
        consumer = self._consumer = _made(Consumer, settings, self._heard, broker.name)
        self._find_topic(consumer)

    async def join(self) -> None:
        await self._call(self._join)

    def _join(self) -> None:
        self._present().subscribe(
            [self._of.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    async def has_committed(self) -> bool:
        """Whether the group has committed an offset of any partition."""
        return bool(await self._call(self._committed_places))

    async def ends(self) -> dict[int, int]:
        """Find where the next message of each partition will be."""
        found: dict[int, int] = await self._call(self._ends)
        return found

    async def begin(self, positions: Mapping[int, int]) -> None:
        """Begin there with partitions of which the group has no offset; commit that, so that others see it."""
        await self._call(self._begin, {(self._of.topic, each): offset for each, offset in positions.items()})

    def _begin(self, starts: dict[Place, int]) -> None:
        self._starts = starts
        committed = self._committed_places()
        fixed = {place: offset for place, offset in starts.items() if place not in committed}
        if fixed:
            try:
                self._present().commit(offsets=_offsets(fixed), asynchronous=False)
            except KafkaException as error:  # members are there already: each begins there all the same
                log.debug("offsets not committed", intake=self._of.name, error=error.args[0].str())

    def _committed_places(self) -> set[Place]:
        places = _partitions((self._of.topic, each) for each in self._numbers())
        found = self._present().committed(places, timeout=self._broker.connect_seconds)
        return {(each.topic, each.partition) for each in found if each.offset >= 0}

    def _ends(self) -> dict[int, int]:
        consumer, seconds, ends = self._present(), self._broker.connect_seconds, {}
        for number in self._numbers():
            place = TopicPartition(self._of.topic, number)
            _, ends[number] = consumer.get_watermark_offsets(place, timeout=seconds, cached=False)
        return ends

    def _numbers(self) -> list[int]:
        found = self._present().list_topics(self._of.topic, timeout=self._broker.connect_seconds)
        return sorted(found.topics[self._of.topic].partitions)

    def _find_topic(self, consumer: Consumer) -> None:
        """Make sure that the cluster is there and has the topic: a group may wait for one in silence.

        Each look waits longer than the one before: an answer that comes after its look is lost, however often we ask.
        """
        left, patience = self._broker.connect_seconds, _LOOK_SECONDS
        while left > 0:
            patience = min(2 * patience, left)
            left -= patience
            with suppress(KafkaException):
                found = consumer.list_topics(self._of.topic, timeout=patience).topics[self._of.topic]
                if found.error is None:
                    return
                raise self._broker.meaning(found.error, self._of.topic)
            consumer.poll(0)
            if self._heard.state is not None:
                break
        raise self._broker.down(self._heard, f"no answer within {self._broker.connect_seconds:g} s")

    async def close(self) -> None:
        self._is_leaving = True  # whoever still waits for messages on the thread makes room
        try:
            await self._call(self._leave)
        finally:
            self._thread.shutdown(wait=False)

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()  # gives the partitions back, by way of ``_revoked``

    # Partitions come and go, while we poll

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stay += 1
        try:
            partitions = self._placed(consumer, partitions)
        except KafkaException as error:
            self._failure = self._broker.meaning(error.args[0], self._of.topic)
            partitions = []
        self._owned |= {(each.topic, each.partition): self._stay for each in partitions}
        consumer.incremental_assign(partitions)
        if self._is_held:
            consumer.pause(partitions)

    def _placed(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Say where to begin with partitions that the group has no offset of, where that is known."""
        unsure = [each for each in partitions if (each.topic, each.partition) in self._starts]
        committed = consumer.committed(unsure, timeout=_ANSWER_SECONDS) if unsure else []
        starts = {
            place: self._starts[place]
            for each in committed
            if each.offset < 0 and (place := (each.topic, each.partition)) in self._starts
        }
        return [
            TopicPartition(*place, starts[place]) if (place := (each.topic, each.partition)) in starts else each
            for each in partitions
        ]

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what is stored before somebody else begins where we said we were."""
        gone = {(each.topic, each.partition) for each in partitions}
        reached = {place: offset for place, offset in self._stored.items() if place in gone}
        if reached and self._heard.state is None and self._failure is None:
            try:
                consumer.commit(offsets=_offsets(reached), asynchronous=False)
            except KafkaException as error:  # the next one stores it again, and finds it there
                log.debug("offsets not committed", intake=self._of.name, error=error.args[0].str())
        self._drop(gone)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else has them already: nothing is committed."""
        self._drop({(each.topic, each.partition) for each in partitions})
        consumer.incremental_unassign(partitions)

    def _drop(self, gone: set[Place]) -> None:
        """Forget what was not handed out yet. What was and is stored later is recognised when it comes again."""
        self._owned = {place: stay for place, stay in self._owned.items() if place not in gone}
        self._stored = {place: offset for place, offset in self._stored.items() if place not in gone}
        self._taken = {place: offset for place, offset in self._taken.items() if place not in gone}
        self._stable = {place: offset for place, offset in self._stable.items() if place not in gone}
        self._ended -= gone
        self._got = [each for each in self._got if each.handle[0] not in gone]

    # Taking

    async def fetch(self, limit: int, seconds: float) -> list[Received]:
        # Kept by the thread, so that nothing is lost when whoever waits here is called off; and asked always, because
        # it may still be gathering for somebody who was.
        await self._call(self._gather, limit, seconds)
        self._broker.stands(self._heard)
        if self._got:
            taken, self._got = self._got[:limit], self._got[limit:]
            return taken
        if self._failure is not None:
            raise self._failure
        return []

    def _gather(self, limit: int, seconds: float) -> None:
        """Wait for messages; without ``seconds``, until there are some or all partitions are at their end."""
        consumer = self._present()
        if self._is_held:
            self._is_held = False
            consumer.resume(_partitions(self._owned))
        if seconds == 0:
            self._await_partitions(consumer, limit)
        looks = 1 if seconds else int(_ANSWER_SECONDS / _LOOK_SECONDS)
        while looks and self._is_waiting and not (seconds == 0 and self._is_at_the_end):
            looks -= not self._look(consumer, limit, seconds or _LOOK_SECONDS)
        if not self._got and self._heard.state is not None:
            self._probe(consumer)

    def _await_partitions(self, consumer: Consumer, limit: int) -> None:
        """Wait until the group has let us in: nobody may take a topic for empty whose partitions we do not have yet.

        That takes 3 s in a group that was empty, by a broker's default, and far longer while a member of it is silent.
        """
        for _ in range(int(_JOIN_MS / 1_000 / _LOOK_SECONDS)):
            if self._stay or not self._is_waiting or self._heard.state is not None:
                return
            self._look(consumer, limit, _LOOK_SECONDS)
        log.warning(
            "kafka has not let us into the group: is one of its members silent?", intake=self._of.name,
            group=self._of.group,
        )  # fmt: skip

    def _look(self, consumer: Consumer, limit: int, seconds: float) -> bool:
        """Poll once, and take all that is there; say whether the driver had anything."""
        first = consumer.poll(seconds)
        if first is None:
            return False
        self._take(first)
        for each in consumer.consume(limit, 0):
            self._take(each)
        return True

    @property
    def _is_waiting(self) -> bool:
        return not self._got and self._failure is None and not self._is_leaving

    @property
    def _is_at_the_end(self) -> bool:
        return bool(self._owned) and self._ended.issuperset(self._owned)

    def _take(self, record: Record) -> None:
        error = record.error()
        if error is not None:
            self._complained(error, (record.topic() or "", record.partition() or 0), record.offset() or 0)
            return
        if self._heard.state is not None:
            self._heard.well()
        place = (cast("str", record.topic()), cast("int", record.partition()))
        self._ended.discard(place)
        self._taken[place] = cast("int", record.offset()) + 1
        self._got.append(self._received(record, place))

    def _complained(self, error: KafkaError, place: Place, offset: int) -> None:
        code = error.code()
        if code == _E._PARTITION_EOF:
            self._ended.add(place)
            self._stable[place] = offset
        elif error.fatal() or code in _NO_TOPIC or code in _NOT_ALLOWED:
            self._failure = self._broker.meaning(error, self._of.topic)
        else:
            self._heard.error(error)
            log.debug("kafka consumer", intake=self._of.name, error=error.str())

    def _received(self, record: Record, place: Place) -> Received:
        offset = cast("int", record.offset())
        kind, at = record.timestamp()
        return Received(
            Message(place[0], record.value(), _headers(record), record.key()),
            f"{place[0]}/{place[1]}/{offset}",
            f"{self._broker.name}:{place[0]}",
            None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(at / 1_000, UTC),
            (place, offset, self._owned.get(place)),
        )

    def _probe(self, consumer: Consumer) -> None:
        """Ask whether the cluster is back: the driver says only when it goes."""
        try:
            consumer.list_topics(self._of.topic, timeout=_PROBE_SECONDS)
        except KafkaException as error:
            self._heard.said = self._heard.said or error.args[0].str()
        else:
            self._heard.well()

    # Committing

    async def acknowledge(self, batch: Sequence[Received]) -> None:
        await self._call(self._commit, batch)

    def _commit(self, batch: Sequence[Received]) -> None:
        reached: dict[Place, int] = {}
        for each in batch:
            place, offset, stay = each.handle
            if stay is not None and self._owned.get(place) == stay:
                reached[place] = offset + 1
        if reached:
            self._stored |= reached
            with suppress(KafkaException):  # the next one says more
                self._present().commit(offsets=_offsets(reached), asynchronous=True)

    def _committed(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        if error is not None:
            log.debug("offsets not committed", intake=self._of.name, error=error.str())

    async def hold(self) -> None:
        await self._call(self._hold)
        if self._failure is not None:
            raise self._failure

    def _hold(self) -> None:
        """Poll, because the group takes silence for death, with everything paused."""
        consumer = self._present()
        if not self._is_held:
            self._is_held = True
            consumer.pause(_partitions(self._owned))
        for each in consumer.consume(100, 0):
            self._take(each)

    async def lag(self) -> int | None:
        return sum((await self.lags()).values())

    async def lags(self) -> dict[Place, int]:
        """Count what waits for us, by partition."""
        found: dict[Place, int] = await self._call(self._lags)
        return found

    def _lags(self) -> dict[Place, int]:
        consumer, lags = self._present(), {}
        unknown = _partitions([place for place in self._owned if place not in self._stored])
        with suppress(KafkaException):
            for each in consumer.committed(unknown, timeout=_PROBE_SECONDS) if unknown else ():
                if each.offset >= 0:
                    self._stored[each.topic, each.partition] = each.offset
            for place in self._owned:
                low, high = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                lags[place] = max(0, self._end(place, high) - max(low, self._reached(place), 0))
        return lags

    def _end(self, place: Place, high: int) -> int:
        """Say how far a partition can be read: behind that are messages of transactions that have not ended."""
        return self._stable[place] if place in self._ended else high

    def _reached(self, place: Place) -> int:
        """Say how far we are. Records that end a transaction take an offset too, and are never handed out."""
        stored = self._stored.get(place, 0)
        if place in self._ended and stored >= self._taken.get(place, 0):
            return self._stable[place]
        return stored

    def _present(self) -> Consumer:
        if self._consumer is None:
            raise DependencyUnavailable(self._broker.name, "the consumer was closed")
        return self._consumer


def _partitions(places: Any) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]


def _offsets(reached: Mapping[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(*place, offset) for place, offset in reached.items()]


def _headers(record: Record) -> Headers:
    try:
        said = record.headers() or []
    except UnicodeDecodeError:  # a name that is no text: no header of ours, and none that could be kept
        return ()
    return tuple((name, b"" if value is None else bytes(value)) for name, value in cast("list[Any]", said))
