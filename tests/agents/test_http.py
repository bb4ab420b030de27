"""Agents over HTTP: a real server, the SDK's own client, and the same doors as for everybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from redrive.operate.auth import Role, Tokens
from redrive.operate.web import redrive_asgi
from tests.agents.shop import ALL, Shop, ask, carried, wrong
from tests.web.serving import served

pytestmark = pytest.mark.req("O11")

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@asynccontextmanager
async def remote(address: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    """Be an agent elsewhere."""
    shown = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=shown, timeout=30) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def token(shop: Shop, name: str, role: Role) -> str:
    return (await Tokens(shop.app).create(name, role, by="test"))[1]


@pytest.mark.req("B1", "B8")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_whole_way_over_http(shop: Shop, mode: str) -> None:
    await shop.bury(12)
    shop.broken = False
    agents, persons = await token(shop, "claude", Role.AGENT), await token(shop, "ada", Role.OPERATOR)
    bearer = {"Authorization": f"Bearer {persons}"}

    async with served(redrive_asgi(shop.app)) as address, remote(address, agents, mode) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ALL
        (group,) = (await ask(client, "list_failure_groups"))["groups"]
        plan = await ask(client, "plan_redrive", selection=f"group:{group['group']}")
        go = {"token": plan["token"], "reason": "the carrier is back"}
        refused = await wrong(client, "start_redrive", **go)
        async with httpx2.AsyncClient(headers=bearer, base_url=address) as person:
            agreed = await person.post(f"/api/v1/redrives/{plan['redrive_id']}/approve")
        started = await ask(client, "start_redrive", **go)
        ended = await carried(shop, client, plan["redrive_id"], "done")

    assert "agent:claude may start alone" in refused
    assert agreed.status_code == 200
    assert started["started_by"] == "agent:claude"
    assert (ended["state"], ended["delivered"], ended["approved_by"]) == ("done", 12, "ada")


async def test_several_agents_at_once_are_kept_apart(sqlite_shop: Shop) -> None:
    ids = await sqlite_shop.bury(6)
    async with served(redrive_asgi(sqlite_shop.app)) as address:

        async def replayed(number: int) -> str:
            async with remote(address, await token(sqlite_shop, f"bot-{number}", Role.AGENT)) as client:
                told = await ask(client, "replay_dlq_event", event_id=ids[number], cycle=0, reason="try")
                return str(told["replayed_by"])

        names = await asyncio.gather(*(replayed(number) for number in range(6)))

    assert names == [f"agent:bot-{number}" for number in range(6)]


@asynccontextmanager
async def door(shop: Shop, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with (
        served(redrive_asgi(shop.app, **options)) as address,
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
    ):
        yield client


@pytest.mark.req("W6")
async def test_it_is_closed_to_whoever_is_not_an_agent(sqlite_shop: Shop) -> None:
    secrets = {role: await token(sqlite_shop, f"{role}-1", role) for role in Role}

    def bearer(role: Role, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {secrets[role]}", **more}

    async with door(sqlite_shop) as client:
        nobody = await client.post("/mcp", json=PING)
        forged = await client.post("/mcp", json=PING, headers={"Authorization": "Bearer rdv_forged"})
        by_role = {role: await client.post("/mcp", json=PING, headers=bearer(role)) for role in Role}
        foreign = await client.post("/mcp", json=PING, headers=bearer(Role.AGENT, Origin="https://evil.example"))
        rebound = await client.post(
            "/mcp", json=PING, headers=bearer(Role.AGENT, Origin="http://evil.example", Host="evil.example:1")
        )
        crossed = await client.post("/mcp", json=PING, headers=bearer(Role.AGENT, **{"Sec-Fetch-Site": "cross-site"}))
        looked = await client.get("/mcp", headers=bearer(Role.AGENT))
        broken = await client.post("/mcp", content=b"{", headers=bearer(Role.AGENT))
        large = await client.post("/mcp", content=b" " * 9_000_000, headers=bearer(Role.AGENT))

    assert (nobody.status_code, forged.status_code) == (401, 401)
    assert {role: each.status_code for role, each in by_role.items()} == {
        Role.VIEWER: 200, Role.AGENT: 200, Role.PUBLISHER: 403, Role.OPERATOR: 403, Role.ADMIN: 403,
    }  # fmt: skip
    assert "token create NAME --role agent" in by_role[Role.OPERATOR].json()["detail"]
    assert (foreign.status_code, crossed.status_code) == (403, 403)
    assert rebound.status_code in (200, 403)  # its token proves more than its name
    assert looked.status_code == 405
    assert broken.status_code == 400
    assert large.status_code == 413
    assert by_role[Role.AGENT].headers["x-content-type-options"] == "nosniff"


async def test_a_server_that_is_open_for_viewing_is_closed_to_agents_without_a_token(sqlite_shop: Shop) -> None:
    async with door(sqlite_shop, open_for_viewing=True) as client:
        assert (await client.get("/api/v1/events")).status_code == 200
        assert (await client.post("/mcp", json=PING)).status_code == 403


async def test_a_revoked_token_ends_it_at_the_next_call(sqlite_shop: Shop) -> None:
    secret = await token(sqlite_shop, "claude", Role.AGENT)
    web = redrive_asgi(sqlite_shop.app)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_dlq_events"}}
    headers = {
        "Authorization": f"Bearer {secret}", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }  # fmt: skip

    async with served(web) as address, httpx2.AsyncClient(base_url=address, headers=headers) as client:
        before = await client.post("/mcp", json=call)
        tokens = web.state.guard.tokens
        await tokens.revoke(await tokens.find("claude"), by="ada")
        after = await client.post("/mcp", json=call)

    assert before.status_code == 200
    assert json.loads(before.content)["result"]["structuredContent"]["events"] == []
    assert after.status_code == 401
