"""NATS JetStream: publishes that are acknowledged, and durable pull consumers.

One connection, opened when it is first needed, and again when it is needed after it was lost; the driver's own
reconnecting is off, so that whoever waits for an answer hears at once that none will come. Each message carries
``Nats-Msg-Id``: JetStream takes a second one with that id, within its window, for the same.

A publish that nobody takes says only that its stream has no leader now, or does not exist: JetStream is asked which. A
stream without a leader is a broker that is away; it is missing when the leader of the cluster has said so several
times, over some seconds.

An intake takes from a durable consumer. By default one process at a time does, and a consumer that was left with
messages under way is set back to the first of them, so that the order of the stream is kept through crashes on either
side; what comes twice by that has been seen. A consumer numbers what it delivers: where a number is missing, a message
went to a connection that is not there any more, and the consumer is set back too. ``shared=True`` lets processes share
the work, and gives up the order.
"""

import asyncio
import json
import math
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from redrive.clock import Clock, SystemClock
from redrive.duration import span
from redrive.errors import (
    BrokerRefused,
    ConfigurationError,
    DependencyUnavailable,
    MessageTooLarge,
    MissingDriver,
    TopicMissing,
)
from redrive.transport.base import Beginnings, Destination, Link, LinkState, Message, Received

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, RetentionPolicy
    from nats.js.manager import JetStreamManager
except ModuleNotFoundError as error:
    raise MissingDriver(f"NATS needs the driver nats-py ({error}): pip install 'redrive[nats]'") from error

_ID: Final = "Nats-Msg-Id"
_STATUS: Final = "Status"
_NO_RESPONDERS: Final = "503"
_BEAT: Final = "100"
_TOO_LARGE: Final = 10_054  # the stream's own limit
_TAKEN: Final = frozenset((10_058, 10_065))  # a stream of that name, or for that subject, is there
_MISSING_SECONDS: Final = 3.0  # how long, and how many answers, it takes to believe that no stream takes a subject
_MISSING_ANSWERS: Final = 3
_DEAF_SECONDS: Final = 10.0  # an election takes up to 9 s; after that, another server of the cluster may know more
_COOL_SECONDS: Final = 0.25  # how long a failed attempt to connect speaks for those that follow
_FATAL: Final = ("deleted", "leadership", "shutdown", "push based")  # these end a consumer, others only a batch
_ACK_WAIT: Final = 30.0
_MOST_UNDER_WAY: Final = 5_000
_PULL_SECONDS: Final = 30.0
_BEAT_SECONDS: Final = 2.0  # how often a consumer that has nothing for us says that it is there
_ANSWER_SECONDS: Final = 5.0
_PULL_BYTES: Final = 80 * 1_048_576  # more than the largest message a server can be told to take
_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_FILTER: Final = re.compile(r"([^\s.*>]+|\*)(\.([^\s.*>]+|\*))*(\.>)?|>")
_NAME: Final = re.compile(r"[^\s.*>/\\]+")
_DOMAIN: Final = re.compile(rb'"domain": *"([^"]+)"')
_DENIED: Final = re.compile(r'permissions violation for publish to "([^"]*)"', re.IGNORECASE)


class Nats:
    """A NATS server or cluster with JetStream."""

    prefix: Literal["ce-", "ce_"] = "ce-"

    def __init__(
        self,
        url: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        name: str = "nats",
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | Path | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout: str | float = "3s",
        ack_timeout: str | float = "10s",
    ) -> None:
        """Say where it is; nothing is connected yet. ``name`` is that of the dependency events wait for."""
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ConfigurationError(f"a broker is named with letters, digits, - and _, not {name!r}")
        self.name = name
        self._servers = [url] if isinstance(url, str) else list(url)
        given: dict[str, Any] = {"user": user, "password": password, "token": token, "tls": tls}
        given["user_credentials"] = None if credentials is None else str(credentials)
        self._options = {key: value for key, value in given.items() if value is not None}
        self._connect_seconds = span(connect_timeout, "connect_timeout")
        self._ack_seconds = span(ack_timeout, "ack_timeout")
        self._declared: dict[str, str] = {}
        self._absent: dict[str, _Absence] = {}
        self._domains: dict[str, str] = {}
        self._deaf_since: float | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        self._clock: Clock = SystemClock()
        self._link = Link()
        self._line: _Line | None = None
        self._connecting: asyncio.Task[_Line] | None = None
        self._cool_until = 0.0

    @property
    def link(self) -> Link:
        return self._link

    def use(self, clock: Clock) -> None:
        self._clock = clock

    # What there is to send to and to take from

    def subject(self, subject: str, *, declare: str | None = None) -> Destination:
        """Name a subject to send to. ``declare``: create the stream of that name for it when no stream takes it."""
        if not _SUBJECT.fullmatch(subject):
            raise ConfigurationError(f"{subject!r} is no subject to send to: orders.paid, without blanks, * and >")
        if declare is not None:
            self._declared[subject] = _checked_name(declare, "stream")
        return Destination(self, subject)

    def stream(
        self, stream: str, *, durable: str, subject: str | None = None, declare: bool = False, shared: bool = False,
        name: str | None = None,
    ) -> "NatsStream":  # fmt: skip
        """Name a stream to take from, by a durable consumer, which is created when it is not there.

        ``subject``: only messages of these, like ``orders.>``. ``declare``: create the stream too, for that subject.
        ``shared``: several processes take from it at once, in no order.
        """
        if subject is not None and not _FILTER.fullmatch(subject):
            raise ConfigurationError(f"{subject!r} is no subject: orders.paid, orders.* or orders.>")
        if declare and subject is None:
            raise ConfigurationError(
                f"declare=True creates the stream {stream!r} for a subject: say subject='orders.>'"
            )
        _checked_name(stream, "stream")
        _checked_name(durable, "durable")
        return NatsStream(self, stream, durable, subject, declare, not shared, name or f"{stream}/{durable}")

    # Sending

    async def send(self, message: Message) -> None:
        is_again = False
        while True:
            line = self._line
            if line is None or line.is_closed:
                line = await self.line()
            try:
                await line.send(message)
            except _NoResponders:
                await self._unheard(line, message.topic, is_again=is_again)
                is_again = True
            else:
                if self._absent:
                    self._absent.pop(message.topic, None)
                return

    async def _unheard(self, line: "_Line", subject: str, *, is_again: bool) -> None:
        """Find out why nobody took a message. Return when it is worth sending again, otherwise raise the reason.

        Only the leader of the cluster knows all streams. One that has just been elected may not know them yet, so its
        word is taken when it has been the same for some seconds.
        """
        stream = await self._stream_of(line, subject)
        now = self._clock.monotonic()
        if stream is not None:
            self._absent.pop(subject, None)
            if not is_again:  # it may have been created between the message and the question
                return
            raise DependencyUnavailable(self.name, f"the stream {stream} of {subject!r} has no leader now")
        absence = self._absent.get(subject)
        if absence is None or now - absence.last > _MISSING_SECONDS:
            absence = self._absent[subject] = _Absence(now)
        absence.last = now
        absence.answers += 1
        if absence.answers >= _MISSING_ANSWERS and now - absence.since >= _MISSING_SECONDS:
            raise TopicMissing(
                f"no stream of {self.name} takes the subject {subject!r}: create one that does, or use "
                f"nats.subject({subject!r}, declare='STREAM')"
            )
        if (declared := self._declared.get(subject)) is not None:
            await self.declare(line, declared, subject)
            if absence.answers == 1:
                return
        await self._clock.sleep(_MISSING_SECONDS / _MISSING_ANSWERS)

    async def _stream_of(self, line: "_Line", subject: str) -> str | None:
        """Ask JetStream which stream takes a subject; None when there is none."""
        domain = self._domains.get(subject)
        manager = line.client.jsm(prefix=f"$JS.{domain}.API") if domain else line.client.jsm()
        try:
            with self.speaking(f"nobody takes {subject!r}, and JetStream cannot say which stream should"):
                return await manager.find_stream_name_by_subject(subject)
        except TopicMissing:
            return None

    async def declare(self, line: "_Line", stream: str, subject: str) -> None:
        """Create a stream, unless one takes the subject already."""
        with self.speaking(f"creating the stream {stream}"):
            try:
                await line.client.jsm().add_stream(name=stream, subjects=[subject])
            except nats.js.errors.BadRequestError as error:
                if error.err_code not in _TAKEN:
                    raise
                if await self._stream_of(line, subject) is None:
                    raise BrokerRefused(
                        f"the stream {stream} of {self.name} exists and does not take the subject {subject!r}: add it "
                        "to the stream's subjects"
                    ) from error

    async def line(self) -> "_Line":
        """Find the connection, or make one; those who ask meanwhile get the same."""
        if self._line is not None and not self._line.is_closed:
            return self._line
        if self._clock.monotonic() < self._cool_until:
            raise DependencyUnavailable(self.name, self._link.error)
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect(), name=f"redrive-{self.name}")
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> "_Line":
        if self._link.state is LinkState.IDLE:
            self._link.turn(LinkState.CONNECTING, self._clock)
        heard = _Heard()
        client = _Connection(heard)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await client.connect(
                    self._servers, allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0,
                    connect_timeout=math.ceil(self._connect_seconds), ping_interval=5, max_outstanding_pings=2,
                    skip_subject_validation=True, error_cb=heard.error, closed_cb=heard.closed, name="redrive",
                    **self._options,
                )  # fmt: skip
                line = _Line(self, client, self._ack_seconds)
                heard.line = line
                await line.open()
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            await _closed(client)
            self._cool_until = self._clock.monotonic() + _COOL_SECONDS
            raise self._failed(heard.last or error) from error
        except BaseException:
            await _closed(client)
            raise
        self._line = line
        self._link.turn(LinkState.OK, self._clock)
        return line

    def _failed(self, error: BaseException) -> DependencyUnavailable:
        refused = isinstance(error, nats.errors.AuthorizationError | nats.errors.InvalidUserCredentialsError)
        refused = refused or "authorization" in str(error).lower() or "authentication" in str(error).lower()
        where = ", ".join(_without_secrets(each) for each in self._servers)
        said = str(error) or type(error).__name__
        why = f"{where} refuses our credentials: {said}" if refused else f"{where} cannot be reached: {said}"
        self._link.turn(LinkState.REFUSED if refused else LinkState.UNREACHABLE, self._clock, why)
        return DependencyUnavailable(self.name, why)

    def lost(self, line: "_Line", why: str) -> None:
        """Hear that a connection is gone."""
        if line is self._line:
            self._line = None
            self._link.turn(LinkState.UNREACHABLE, self._clock, why)

    async def close(self) -> None:
        line, self._line = self._line, None
        connecting, self._connecting = self._connecting, None
        if connecting is not None and not connecting.done():
            connecting.cancel()
            with suppress(asyncio.CancelledError, DependencyUnavailable):
                await connecting
        if line is not None:
            await _closed(line.client)
        if self._hanging_up is not None:
            await self._hanging_up
        self._link.turn(LinkState.IDLE, self._clock)
        self._cool_until = 0.0

    def speaking(self, about: str) -> "_Speaking":
        """Turn what the driver raises into what we do."""
        return _Speaking(self, about)

    def deaf(self) -> None:
        """Note that JetStream gives no answer over this connection; when that lasts, connect to another server.

        A server that is cut off from the rest of its cluster keeps its clients, and can do nothing for them.
        """
        now = self._clock.monotonic()
        if self._deaf_since is None:
            self._deaf_since = now
        if now - self._deaf_since > _DEAF_SECONDS and len(self._servers) > 1 and self._line is not None:
            line, self._deaf_since = self._line, None
            line.closed("JetStream does not answer there; trying another server")
            self._hanging_up = asyncio.create_task(_closed(line.client), name=f"redrive-{self.name}")

    def heard(self) -> None:
        """Note that JetStream has answered."""
        self._deaf_since = None

    def acknowledged(self, subject: str, answer: bytes) -> None:
        """Note that a stream has taken a message, and in which domain it is: there JetStream is asked about it."""
        self.heard()
        if subject not in self._domains:
            found = _DOMAIN.search(answer)
            self._domains[subject] = found[1].decode(errors="replace") if found else ""


class _Connection(Client):
    """The driver's connection, of which we hear at once when it is lost.

    nats-py 2.16 tries to send what is left on a connection that was reset, fails, and then neither closes it nor says
    so: what is left is dropped here, and whoever waits for its answer sends it again.
    """

    def __init__(self, heard: "_Heard") -> None:
        super().__init__()
        self._heard = heard

    async def _process_op_err(self, e: Exception) -> None:
        self._pending: list[bytes] = []
        self._pending_data_size = 0
        self._heard.last = e
        await self._heard.closed()
        await super()._process_op_err(e)


@dataclass(slots=True)
class _Heard:
    """What the driver tells of a connection, apart from answers."""

    line: "_Line | None" = None
    last: Exception | None = None

    async def error(self, error: Exception) -> None:
        self.last = error
        if self.line is not None:
            self.line.complain(error)

    async def closed(self) -> None:
        if self.line is not None:
            self.line.closed(str(self.last or "the connection was closed"))


@dataclass(frozen=True, slots=True)
class _Speaking:
    broker: Nats
    about: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, nats.js.errors.NotFoundError):
            raise TopicMissing(f"{self.about}: {error.description}") from error
        if isinstance(error, nats.js.errors.BadRequestError):
            raise BrokerRefused(f"{self.about}: {error.description}") from error
        if not isinstance(error, nats.errors.Error | OSError | TimeoutError):
            return
        self.broker.deaf()
        said = str(error) or type(error).__name__
        if isinstance(error, nats.js.errors.ServiceUnavailableError):
            said = error.description or "JetStream does not answer; start the server with it (nats-server -js)"
        raise DependencyUnavailable(self.broker.name, f"{self.about}: {said}") from error


class _NoResponders(Exception):
    """Nobody listens to a subject now: its stream has no leader, or there is none."""


@dataclass(slots=True)
class _Absence:
    """How long, and by how many answers, a subject has had no stream."""

    since: float
    last: float = 0.0
    answers: int = 0


@dataclass(slots=True)
class _Sent:
    """A message under way."""

    answer: "asyncio.Future[None]"
    subject: str
    until: float


@dataclass(slots=True)
class _Line:
    """One connection: what was sent on it and waits for an answer ends with it."""

    broker: Nats
    client: Client
    ack_seconds: float
    is_closed: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _inbox: str = ""
    _number: int = 0
    _sent: dict[str, _Sent] = field(default_factory=dict)
    _watch: asyncio.TimerHandle | None = None
    _pulls: "list[_Pull]" = field(default_factory=list)

    def time(self) -> float:
        return self._loop.time()

    async def open(self) -> None:
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._answered, pending_msgs_limit=0, pending_bytes_limit=0)
        await self.client.flush()
        self._look()

    async def send(self, message: Message) -> None:
        """Send, and wait for the stream's acknowledgement."""
        body = message.body or b""
        headers = {name: value.decode() for name, value in message.headers}
        headers[_ID] = message.id
        size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 16
        if size > self.client.max_payload:
            raise MessageTooLarge(
                f"the message takes {size:,} bytes with its headers, and {self.broker.name} takes "
                f"{self.client.max_payload:,} (max_payload): publish a reference instead, or raise the limit there"
            )
        self._number += 1
        token = str(self._number)
        loop = self._loop
        sent = self._sent[token] = _Sent(loop.create_future(), message.topic, loop.time() + self.ack_seconds)
        try:
            await self.client.publish(message.topic, body, reply=f"{self._inbox}.{token}", headers=headers)
            await sent.answer
        except nats.errors.Error as error:
            raise DependencyUnavailable(self.broker.name, str(error)) from error
        finally:
            self._sent.pop(token, None)

    async def _answered(self, answer: Msg) -> None:
        sent = self._sent.get(answer.subject.rpartition(".")[2])
        if sent is None or sent.answer.done():
            return
        if answer.headers and answer.headers.get(_STATUS) == _NO_RESPONDERS:
            sent.answer.set_exception(_NoResponders())
            return
        error = _error_in(answer.data)
        if error is None:
            sent.answer.set_result(None)
            self.broker.acknowledged(sent.subject, answer.data)
        else:
            sent.answer.set_exception(self._meaning(error, sent.subject))

    def _meaning(self, error: dict[str, Any], subject: str) -> Exception:
        said = f"{error.get('description', 'no reason given')} ({error.get('err_code', error.get('code'))})"
        if error.get("err_code") == _TOO_LARGE:
            return MessageTooLarge(f"the stream of {subject!r} takes no message so large: {said}")
        if error.get("code") == 400:  # noqa: PLR2004 - as in HTTP: the request is at fault
            return BrokerRefused(f"the stream of {subject!r} refuses the message: {said}")
        return DependencyUnavailable(self.broker.name, f"the stream of {subject!r} cannot take it now: {said}")

    def complain(self, error: Exception) -> None:
        """Hear of an error that is no answer: a subject we may not send to."""
        denied = _DENIED.search(str(error))
        for sent in list(self._sent.values()) if denied else ():
            if denied and sent.subject == denied[1] and not sent.answer.done():
                sent.answer.set_exception(
                    BrokerRefused(f"{self.broker.name} does not allow us to send to {sent.subject!r}: {error}")
                )

    def _look(self) -> None:
        """Give up what was not answered in time, oldest first."""
        now = self._loop.time()
        for sent in self._sent.values():
            if sent.until > now:
                break
            if not sent.answer.done():
                why = f"no acknowledgement within {self.ack_seconds:g} s"
                sent.answer.set_exception(DependencyUnavailable(self.broker.name, why))
        self._watch = self._loop.call_later(min(1.0, self.ack_seconds), self._look)

    def closed(self, why: str) -> None:
        """End everything that was under way."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        gone = f"the connection was lost: {why}"
        self.broker.lost(self, gone)
        for sent in self._sent.values():
            if not sent.answer.done():
                sent.answer.set_exception(DependencyUnavailable(self.broker.name, gone))
        for pull in self._pulls:
            pull.fail(DependencyUnavailable(self.broker.name, gone))

    def attach(self, pull: "_Pull") -> None:
        self._pulls.append(pull)

    def detach(self, pull: "_Pull") -> None:
        with suppress(ValueError):
            self._pulls.remove(pull)


# --- taking ---


@dataclass(frozen=True, slots=True)
class NatsStream:
    """A stream, and the durable consumer by which we take from it."""

    broker: Nats
    stream: str
    durable: str
    subject: str | None
    declares: bool
    is_exclusive: bool
    name: str

    async def subscribe(self, beginnings: Beginnings | None = None) -> "_Pull":  # noqa: ARG002 - its consumers are kept
        line = await self.broker.line()
        with self.broker.speaking(f"the consumer {self.durable} of the stream {self.stream}"):
            info = await self._prepare(line)
            pull = _Pull(self, line, info.delivered.consumer_seq if info.delivered is not None else 0)
            await pull.open()
        return pull

    async def _prepare(self, line: _Line) -> ConsumerInfo:
        """Find the consumer, or make it; set it back where the messages after those under way would come first."""
        manager = line.client.jsm()
        info = await self._found(manager, self.durable)
        if info is None:
            if (left := await self._found(manager, self._stand_in)) is not None:
                return await self._put_in_place(manager, left)
            await self._find_stream(line)
            return await manager.add_consumer(self.stream, self._config())
        if not self.is_exclusive:
            return info
        if info.num_ack_pending or info.num_waiting:  # who still waits there is gone, or will not store what it gets
            return await self._set_back(manager, info)
        if info.config.deliver_policy == DeliverPolicy.BY_START_SEQUENCE:
            await self._drop(manager, self._stand_in)  # somebody may have died while setting it back
        return info

    async def _set_back(self, manager: JetStreamManager, info: ConsumerInfo) -> ConsumerInfo:
        """Make the consumer anew behind what was acknowledged: all the rest comes again, in order, and to us alone.

        Meanwhile a stand-in keeps the place. Without a consumer a stream kept by interest would drop its messages, and
        after a crash in between the stream would be read from its start.
        """
        retention = (await manager.stream_info(self.stream)).config.retention
        if retention == RetentionPolicy.WORK_QUEUE:  # it keeps what was not acknowledged, and takes no second consumer
            await self._drop(manager, self.durable)
            return await manager.add_consumer(self.stream, info.config)
        await self._drop(manager, self._stand_in)
        floor = info.ack_floor.stream_seq if info.ack_floor is not None else 0
        start = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": floor + 1, "opt_start_time": None}
        named = {"durable_name": self._stand_in, "name": None}
        stand_in = await manager.add_consumer(self.stream, info.config.evolve(**start, **named))
        await self._drop(manager, self.durable)
        return await self._put_in_place(manager, stand_in)

    async def _put_in_place(self, manager: JetStreamManager, stand_in: ConsumerInfo) -> ConsumerInfo:
        config = stand_in.config.evolve(durable_name=self.durable, name=None)
        made = await manager.add_consumer(self.stream, config)
        await self._drop(manager, self._stand_in)
        return made

    @property
    def _stand_in(self) -> str:
        return f"{self.durable}-stand-in"

    async def _found(self, manager: JetStreamManager, durable: str) -> ConsumerInfo | None:
        found: ConsumerInfo | None = None
        with suppress(nats.js.errors.NotFoundError):
            found = await manager.consumer_info(self.stream, durable)
        return found

    async def _drop(self, manager: JetStreamManager, durable: str) -> None:
        with suppress(nats.js.errors.NotFoundError):
            await manager.delete_consumer(self.stream, durable)

    async def _find_stream(self, line: _Line) -> None:
        try:
            await line.client.jsm().stream_info(self.stream)
        except nats.js.errors.NotFoundError as error:
            if not self.declares or self.subject is None:
                raise TopicMissing(
                    f"{self.broker.name} has no stream {self.stream!r}: create it, or say declare=True with its subject"
                ) from error
            await self.broker.declare(line, self.stream, self.subject)

    def _config(self) -> ConsumerConfig:
        return ConsumerConfig(
            durable_name=self.durable,
            filter_subject=self.subject,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT,
            max_ack_pending=_MOST_UNDER_WAY,
        )


class _Pull:
    """Asks for messages a few hundred at a time; they come as there are some, and wait here to be fetched."""

    def __init__(self, of: NatsStream, line: _Line, delivered: int) -> None:
        self._of = of
        self._line = line
        self._inbox = line.client.new_inbox()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{of.stream}.{of.durable}"
        self._subscription: Any = None
        self._got: list[Received] = []
        self._owed = 0
        self._heard_at = 0.0
        self._delivered = delivered  # how many deliveries the consumer has made, as far as we know
        self._news = asyncio.Event()
        self._error: Exception | None = None

    async def open(self) -> None:
        self._line.attach(self)
        self._subscription = await self._line.client.subscribe(
            self._inbox, cb=self._arrived, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def fetch(self, limit: int, seconds: float) -> list[Received]:
        if not self._got and self._error is None:
            if self._owed <= 0:
                await self._ask(limit, waits=seconds > 0)
                seconds = seconds or _ANSWER_SECONDS  # it answers at once whether there is something
            if not self._got and self._owed > 0 and seconds > 0:
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._news.wait()
        if self._owed <= 0 and 0 < len(self._got) <= limit:
            await self._ask(limit, waits=seconds > 0)  # they come while these are being stored
        if self._got:
            taken, self._got = self._got[:limit], self._got[limit:]
            return taken
        if self._owed > 0 and self._line.time() - self._heard_at > _ANSWER_SECONDS:
            why = f"the consumer {self._of.durable} is silent: its leader is gone, and our request with it"
            self.fail(DependencyUnavailable(self._of.broker.name, why))
        if self._error is not None:
            raise self._error
        return []

    async def _ask(self, limit: int, *, waits: bool) -> None:
        asked: dict[str, Any] = {"batch": limit, "max_bytes": _PULL_BYTES}
        waiting = {"expires": int(_PULL_SECONDS * 1e9), "idle_heartbeat": int(_BEAT_SECONDS * 1e9)}
        asked |= waiting if waits else {"no_wait": True}
        self._owed = limit
        self._heard_at = self._line.time()
        with self._of.broker.speaking("asking for messages"):
            await self._line.client.publish(self._next, json.dumps(asked).encode(), reply=self._inbox)

    async def _arrived(self, message: Msg) -> None:
        if self._error is not None:  # what came before it was dropped, and will come again first
            return
        self._heard_at = self._line.time()
        status = message.headers.get(_STATUS) if message.headers and not message.reply else None
        if status == _BEAT:
            return
        if status is not None and not message.data:
            self._ended(status, str((message.headers or {}).get("Description", "")))
        else:
            self._owed -= 1
            self._line.broker.heard()
            self._take(message)
        self._news.set()

    def _take(self, message: Msg) -> None:
        place = _place(message.reply)
        if self._of.is_exclusive and place.delivery not in {0, self._delivered + 1}:
            of = self._of
            self.fail(DependencyUnavailable(
                of.broker.name, f"the consumer {of.durable} has delivered to somebody else too: it will be set back "
                "(another service needs a durable of its own, or shared=True)"))  # fmt: skip
            return
        self._delivered = place.delivery
        self._got.append(self._received(message, place))

    def _ended(self, status: str, said: str) -> None:
        """Hear that nothing more comes of what was asked for: there is no more, time is over, or something is wrong."""
        self._owed = 0
        if status == _NO_RESPONDERS or any(word in said.lower() for word in _FATAL):
            self.fail(DependencyUnavailable(self._of.broker.name, f"the consumer {self._of.durable}: {said or status}"))

    def fail(self, error: Exception) -> None:
        self._error = error
        self._got.clear()  # not acknowledged: it will come again, in order
        self._news.set()

    def _received(self, message: Msg, place: "_Place") -> Received:
        headers = tuple((name, str(value).encode()) for name, value in (message.headers or {}).items())
        message_id = (message.headers or {}).get(_ID, "")
        return Received(
            Message(message.subject, message.data, headers, None, str(message_id)),
            f"{self._of.stream}:{place.sequence}",
            f"{self._of.broker.name}:{self._of.stream}",
            place.at,
            message.reply,
        )

    async def acknowledge(self, batch: Sequence[Received]) -> None:
        publish = self._line.client.publish
        with self._of.broker.speaking("acknowledging"):
            for each in batch:
                await publish(each.handle, b"+ACK")

    async def hold(self) -> None:
        if self._error is not None:
            raise self._error

    async def lag(self) -> int | None:
        with self._of.broker.speaking("asking for the lag"):
            info = await self._line.client.jsm().consumer_info(self._of.stream, self._of.durable)
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def close(self) -> None:
        self._line.detach(self)
        if self._subscription is not None and not self._line.is_closed:
            with suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()


class _Place(NamedTuple):
    """Where a message stands in its stream, the number of its delivery by the consumer, and when it was sent."""

    sequence: int = 0
    delivery: int = 0
    at: datetime | None = None


def _place(reply: str) -> _Place:
    """Read it off the subject of the message's acknowledgement."""
    parts = reply.split(".")
    at = 5 if len(parts) <= 9 else 7  # noqa: PLR2004 - newer servers name domain and account before the stream
    try:
        sent = datetime.fromtimestamp(int(parts[at + 2]) / 1e9, UTC)
        return _Place(int(parts[at]), int(parts[at + 1]), sent)
    except (IndexError, ValueError, OverflowError):
        return _Place()


def _error_in(data: bytes) -> dict[str, Any] | None:
    if b'"error"' not in data:
        return None
    answer = json.loads(data)
    return answer.get("error") if isinstance(answer, dict) else None


def _checked_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a {what}: no blanks, dots, *, > or slashes")
    return name


def _without_secrets(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//•••@", url)


async def _closed(client: Client) -> None:
    """Close a connection in whatever state it is."""
    with suppress(nats.errors.Error, OSError, RuntimeError):
        async with asyncio.timeout(5):
            await client.close()
