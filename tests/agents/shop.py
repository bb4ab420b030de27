"""A shop whose handler can be mended, and an agent that looks after it."""

from __future__ import annotations

import json
from typing import Any

from mcp import Client

from redrive import Redrive, RetryPolicy, TerminalHandlerError
from redrive.operate.auth import Caller
from redrive.operate.mcp.server import named, server

CARD = "4111111111111111"
ALL = [
    "list_dlq_events", "get_dlq_event_detail", "replay_dlq_event", "list_failure_groups", "explain_failure_group",
    "plan_redrive", "start_redrive", "get_redrive", "pause_redrive", "abort_redrive",
]  # fmt: skip


class Shop:
    """An app with dead letters."""

    def __init__(self, url: str) -> None:
        self.broken = True
        self.app = Redrive(url, retry=RetryPolicy(max_attempts=1), migrate=True)

        @self.app.handler("order.paid")
        async def ship(order: dict[str, Any]) -> None:
            if self.broken:
                raise TerminalHandlerError(order.get("error") or f"the carrier refuses card {order.get('card')}")

    async def bury(self, count: int = 1, **payload: Any) -> list[str]:
        """Have some orders fail."""
        options = {name: payload.pop(name) for name in ("subject", "source", "headers") if name in payload}
        ids = [
            str((await self.app.publish("order.paid", {"n": n, "card": CARD, **payload}, **options)).id)
            for n in range(count)
        ]
        await self.app.worker().drain()
        return ids

    async def trail(self) -> list[tuple[str, str]]:
        return [(each.kind, each.actor) async for each in self.app.store.trail()]


def agent(app: Redrive, name: str = "claude", caller: Caller | None = None, mode: str = "auto") -> Client:
    """Be an agent in this process; the protocol is all there but for the wire."""
    return Client(server(app, lambda _ctx: caller or named(name)), mode=mode)


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that answers. The client checks what it answers against the schema of the tool."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (text,) = result.content
    assert text.type == "text"
    assert json.loads(text.text) == result.structured_content
    found: dict[str, Any] = result.structured_content
    return found


async def wrong(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that cannot do it; return what it says."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    (text,) = result.content
    assert text.type == "text"
    assert "Traceback" not in text.text
    return text.text


async def carried(shop: Shop, client: Client, redrive_id: str, state: str) -> dict[str, Any]:
    """Have a worker carry a redrive on until it stands like this, as the agent sees it."""
    for _ in range(10):
        await shop.app.worker().drain()
        told = await ask(client, "get_redrive", redrive_id=redrive_id)
        if told["state"] == state:
            return told
    raise AssertionError(f"it never was {state}")
