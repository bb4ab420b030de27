"""Two sites: each with a NATS of its own, joined by a leaf connection that a test can cut, stall and slow down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ExternalStream, StreamConfig, StreamSource

from redrive import Redrive, RetryPolicy
from redrive.transport.nats import Nats
from tests.conftest import REQUIRE_ALL, Run, fresh_database
from tests.servers import NatsServer, ServerUnavailable, free_port, running_nats
from tests.waiting import until

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


@dataclass(slots=True)
class Line:
    """The connection between the sites: every byte passes through here."""

    port: int
    to: int
    delay: float = 0.0
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _cut: bool = False
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def lay(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Let nothing pass, and tell nobody."""
        self._open.clear()

    def heal(self) -> None:
        self._cut = False
        self._open.set()

    async def take_up(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self._cut:
            back.transport.abort()
            return
        far, forth = await asyncio.open_connection("127.0.0.1", self.to)
        self._writers |= {back, forth}
        for task in (asyncio.create_task(self._carry(near, forth)), asyncio.create_task(self._carry(far, back))):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._open.wait()
                await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.transport.abort()


@dataclass(slots=True)
class Site:
    """A site: its name, its NATS, its database, and the other one's name."""

    name: str
    other: str
    server: NatsServer
    url: str
    client: Client

    @property
    def stream(self) -> str:
        return self.name.upper()

    @property
    def mirror(self) -> str:
        return f"FROM_{self.other.upper()}"

    def app(self, *types: str, source: str = "shop") -> Redrive:
        """Make an app that sends some types to the other site, and takes in what that one sends."""
        app = Redrive(self.url, site=self.name, source=source, retry=FAST, migrate=True)
        app.dependency("nats", probe_after=0.3, probe_cap=0.6, release_rate=5_000.0)
        broker = Nats(self.server.url, ack_timeout="2s")
        app.relay(*types, to=broker.subject(f"{self.name}.events"))
        app.intake(broker.stream(self.mirror, durable=self.name))
        return app

    async def held(self, stream: str) -> int:
        """Count the messages of a stream."""
        return int((await self.client.jsm().stream_info(stream)).state.messages)

    async def is_joined(self) -> bool:
        """Tell whether the JetStream of the other site answers from here."""
        try:
            await self.client.request(f"$JS.{self.other}.API.INFO", timeout=1)
        except NatsError:
            return False
        return True

    async def declare(self) -> None:
        await self.client.jsm().add_stream(name=self.stream, subjects=[f"{self.name}.>"], duplicate_window=1)

    async def follow(self) -> None:
        """Keep a copy of the other's stream."""
        manager = self.client.jsm()
        origin = StreamSource(name=self.other.upper(), external=ExternalStream(api=f"$JS.{self.other}.API"))
        await manager.add_stream(StreamConfig(name=self.mirror, mirror=origin))


@dataclass(slots=True)
class Sites:
    berlin: Site
    paris: Site
    line: Line


@pytest.fixture
def servers(run: Run) -> Iterator[tuple[NatsServer, NatsServer, int, int]]:
    """A hub, and a leaf that finds it through another port."""
    hub_port, line_port = free_port(), free_port()
    hub = f'server_name: berlin\nleafnodes {{ listen: "127.0.0.1:{hub_port}", no_advertise: true }}'
    remote = f'remotes: [{{ url: "nats-leaf://127.0.0.1:{line_port}" }}]'
    leaf = f"server_name: paris\nleafnodes {{ reconnect: 1, {remote} }}\nping_interval: 1s\nping_max: 2"
    try:
        with running_nats(hub, "berlin") as berlin, running_nats(leaf, "paris") as paris:
            run.backends["NATS"] = berlin.version
            yield berlin, paris, line_port, hub_port
    except ServerUnavailable as error:
        run.missing["NATS"] = str(error)
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
        pytest.skip(f"no NATS: {error}")


@pytest.fixture(params=["sqlite+postgres", "sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The databases of the two sites: of one kind, or of both."""
    first, _, second = request.param.partition("+")
    with ExitStack() as stack:

        def made(kind: str, name: str) -> str:
            if kind == "sqlite":
                return f"sqlite:///{tmp_path}/{name}.db"
            return stack.enter_context(fresh_database(request.getfixturevalue("postgres_server"), has_tables=True))

        yield made(first, "berlin"), made(second or first, "paris")


@pytest.fixture
async def sites(servers: tuple[NatsServer, NatsServer, int, int], urls: tuple[str, str]) -> AsyncIterator[Sites]:
    berlin, paris, line_port, hub_port = servers
    line = Line(line_port, hub_port)
    await line.lay()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(line.take_up)
        clients = []
        for server in (berlin, paris):
            clients.append(await nats.connect(server.url))
            stack.push_async_callback(clients[-1].close)
        made = Sites(
            Site("berlin", "paris", berlin, urls[0], clients[0]), Site("paris", "berlin", paris, urls[1], clients[1]),
            line,
        )  # fmt: skip
        for site in (made.berlin, made.paris):
            await until(site.is_joined)
            await site.declare()
        for site in (made.berlin, made.paris):
            await site.follow()
        yield made
