"""A receiver on each store, and senders that know its secrets."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from redrive import Context, Event, EventFilter, Redrive
from redrive.apps.webhooks import Settings, Source, webhooks
from redrive.apps.webhooks.front import Front
from redrive.apps.webhooks.signature import sign
from redrive.apps.webhooks.system import PATH
from redrive.operate.web import redrive_asgi

SECRET = "whsec_" + base64.b64encode(b"a secret of four and twenty").decode()
HERE = "tests.apps.webhooks.conftest"
SHOP = Source("shop", "standard", (SECRET,), (f"{HERE}:take",))


@dataclass(slots=True)
class Desk:
    """What the handler below has seen, and how often it still fails."""

    seen: list[Any] = field(default_factory=list)
    failures: int = 0


desk = Desk()


@pytest.fixture(autouse=True)
def clean_desk() -> None:
    desk.seen, desk.failures = [], 0


async def take(payload: Any, ctx: Context) -> None:
    """Handle a message, or fail as often as was said."""
    if desk.failures:
        desk.failures -= 1
        raise RuntimeError("the shelf is full")
    desk.seen.append(payload)


def signed(
    body: bytes, *, message_id: str | None = None, secret: str = SECRET, at: float | None = None
) -> dict[str, str]:
    """Give the headers of a genuine message."""
    message_id = message_id or f"msg_{secrets.token_hex(8)}"
    stamp = int(time.time() if at is None else at)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": sign(secret, message_id, stamp, body),
        "content-type": "application/json",
    }


@dataclass(slots=True)
class Receiver:
    """An app that takes webhooks, and a way to send it some."""

    app: Redrive
    client: httpx.AsyncClient

    @property
    def front(self) -> Front:
        front: Front = self.app.mounts[PATH]
        return front

    async def send(self, value: Any, source: str = "shop", **options: Any) -> httpx.Response:
        """Send a genuine message of the shop."""
        body = json.dumps(value).encode()
        return await self.post(body, signed(body, **options), source)

    async def post(self, body: Any, headers: dict[str, str], source: str = "shop") -> httpx.Response:
        return await self.client.post(f"{PATH}/{source}", content=body, headers=headers)

    async def events(self, type_: str = "webhook.shop") -> list[Event]:
        return await self.app.events(EventFilter(type=type_))

    async def refused(self) -> dict[tuple[str, str], int]:
        """Count what was refused, as it stands in the database."""
        await self.front.refusals.settle()
        table = "webhooks_refused" if self.app.dialect == "sqlite" else "webhooks.refused"
        async with self.app.transaction() as tx:
            rows = await tx.fetch(f"select source, reason, refused_count from {table}")
        return {(row[0], row[1]): row[2] for row in rows}


Open = Callable[..., Any]


@pytest.fixture
def receiving(store_url: str) -> Open:
    """Open a receiver with some sources, on each store."""
    return lambda *sources, **options: receiver(store_url, *sources, **options)


@asynccontextmanager
async def receiver(
    url: str, *sources: Source, peer: str = "203.0.113.7", clock: Any = None, host: str = "hooks.test", **settings: Any
) -> AsyncIterator[Receiver]:
    app = webhooks(Settings(sources or (SHOP,), url, **settings), migrate=True, clock=clock)
    transport = httpx.ASGITransport(app=redrive_asgi(app), client=(peer, 50_000))
    async with app, httpx.AsyncClient(transport=transport, base_url=f"http://{host}", timeout=30) as client:
        found = Receiver(app, client)
        yield found
        await found.front.refusals.settle()
