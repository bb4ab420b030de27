"""What the tests of the web side share: an app with one event of each fate, and callers of every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from redrive import Redrive, RetryPolicy, TerminalHandlerError
from redrive.operate.auth import Role, Tokens
from redrive.operate.web import redrive_asgi

PLACE = "http://redrive.test"


@dataclass(slots=True)
class Site:
    """A served app, and tokens for it."""

    app: Redrive
    web: FastAPI
    tokens: dict[Role, str]
    delivered: str
    dead: str
    waiting: str

    def client(self, role: Role | None = Role.OPERATOR, **options: Any) -> httpx.AsyncClient:
        """Make a caller of a role, or one who shows nothing."""
        shown = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
        return browser(self.web, **{**options, "headers": {**shown, **options.get("headers", {})}})


def browser(web: Any, peer: str = "203.0.113.7", **options: Any) -> httpx.AsyncClient:
    """Make a caller from some address, who shows nothing."""
    transport = httpx.ASGITransport(app=web, client=(peer, 50_000), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, **{"base_url": PLACE, "timeout": 30, **options})


def handlers(app: Redrive) -> None:
    """Register one handler that delivers, and one that never does."""

    @app.handler("order.paid", effects="inside")
    async def ship(order: dict[str, Any]) -> None: ...

    @app.handler("order.bad", effects="inside")
    async def refuse(order: dict[str, Any]) -> None:
        if order.get("mended"):
            return
        raise TerminalHandlerError(f"no such product: card {order.get('card')} <script>alert(1)</script>")

    @app.handler("order.flaky", retry=RetryPolicy(base_delay="1h", max_delay="1h", jitter="none"))
    async def stumble(order: dict[str, Any]) -> None:
        raise ConnectionError("carrier: 503")


async def made(app: Redrive, **options: Any) -> Site:
    """Seed an app, make a token for each role, and put the web before it."""
    handlers(app)
    delivered = await app.publish("order.paid", {"id": 1})
    dead = await app.publish(
        "order.bad", {"id": 2, "card": "4111111111111111", "note": "plain"}, retry_key="order-2",
        correlation_id="basket-7", headers={"Authorization": "Bearer abcdefgh12345", "lane": "7"},
    )  # fmt: skip
    waiting = await app.publish("order.paid", {"id": 4}, delay="1h")
    await app.worker().drain()
    tokens = Tokens(app)
    secrets = {role: (await tokens.create(f"{role}-1", role, by="test"))[1] for role in Role}
    web = redrive_asgi(app, **options)
    return Site(app, web, secrets, str(delivered.id), str(dead.id), str(waiting.id))


@pytest.fixture
async def site(store_url: str) -> AsyncIterator[Site]:
    async with Redrive(store_url, migrate=True) as app:
        yield await made(app)


@pytest.fixture
async def sqlite_site(sqlite_url: str) -> AsyncIterator[Site]:
    async with Redrive(sqlite_url, migrate=True) as app:
        yield await made(app)
