"""NATS for tests: a stream of its own for each, and servers that may be killed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from redrive import Redrive, RetryPolicy
from tests.conftest import REQUIRE_ALL, Run
from tests.servers import NatsServer, ServerUnavailable, running_nats

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
