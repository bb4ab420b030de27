"""`redrive mcp` as a client starts it: a process of its own, with nothing but the protocol on its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import Implementation

from redrive import Redrive, RetryPolicy, TerminalHandlerError
from tests import warm
from tests.agents.shop import ALL, Shop, ask, carried, wrong
from tests.operate.helpers import environment
from tests.operate.helpers import redrive as command

pytestmark = pytest.mark.req("O11")

HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}},
}  # fmt: skip


def process(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    return warm.python(
        ["-m", "redrive.operate.cli", "mcp", *arguments], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=cwd,
    )  # fmt: skip


def greeted(running: subprocess.Popen[str]) -> dict[str, Any]:
    """Say hello, and read the answer."""
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(json.dumps(HELLO) + "\n")
    running.stdin.flush()
    answer: dict[str, Any] = json.loads(running.stdout.readline())
    return answer


@pytest.mark.req("B1", "B8")
async def test_the_whole_way_over_pipes(shop: Shop, store_url: str) -> None:
    await shop.bury(12)
    shop.broken = False
    server = StdioServerParameters(
        command=warm.launcher(), args=["-m", "redrive.operate.cli", "mcp", store_url], env=environment()
    )
    with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230, PTH123 - what the client wants for standard error
        async with Client(
            stdio_client(server, nowhere), client_info=Implementation(name="Desk Agent", version="1")
        ) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ALL
            (group,) = (await ask(client, "list_failure_groups"))["groups"]
            plan = await ask(client, "plan_redrive", selection=f"group:{group['group']}")
            go = {"token": plan["token"], "reason": "the carrier is back"}
            refused = await wrong(client, "start_redrive", **go)
            await shop.app.approve((await shop.app.redrivings())[0].id, by="ada")
            started = await ask(client, "start_redrive", **go)
            ended = await carried(shop, client, plan["redrive_id"], "done")

    assert "agent:Desk-Agent may start alone" in refused
    assert started["started_by"] == "agent:Desk-Agent"
    assert (ended["state"], ended["delivered"]) == ("done", 12)


LENT = """
import asyncio, os
from redrive.operate.mcp.pipes import wire

def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False

before = [number for number in range(64) if is_open(number)]
with wire() as lent:
    async def talk():
        return [line async for line in lent.lines()]
    said = asyncio.run(talk())
print(said, [number for number in range(64) if is_open(number) and number not in before])
"""


def test_standard_input_and_output_are_given_back_and_nothing_else_stays_open() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LENT], input="one\ntwo", capture_output=True, text=True, env=environment(), check=True
    )

    assert ended.stdout == "['one', 'two'] []\n"


async def buried(url: str) -> None:
    async with Redrive(url, retry=RetryPolicy(max_attempts=1), migrate=True) as app:

        @app.handler("order.paid")
        async def ship(order: dict[str, Any]) -> None:
            raise TerminalHandlerError("no")

        await app.publish("order.paid", {"n": 1})
        await app.worker().drain()


async def test_a_closed_input_ends_it_quietly(sqlite_url: str) -> None:
    await buried(sqlite_url)
    running = process(sqlite_url)
    assert greeted(running)["result"]["serverInfo"]["name"] == "redrive"
    call = {"name": "list_dlq_events", "arguments": {}}
    assert running.stdin is not None
    running.stdin.write("this is not JSON\n")
    running.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
    running.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}) + "\n")
    running.stdin.flush()
    assert running.stdout is not None
    answer = json.loads(running.stdout.readline())
    while "result" not in answer:  # what is no message may be answered with an error, or passed over
        answer = json.loads(running.stdout.readline())
    out, err = running.communicate(timeout=30)

    assert running.returncode == 0
    assert answer["id"] == 2
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_quietly_while_its_input_is_open(sqlite_url: str, sent: signal.Signals) -> None:
    await buried(sqlite_url)
    running = process(sqlite_url)
    greeted(running)

    running.send_signal(sent)
    code = running.wait(timeout=30)
    out, err = running.communicate()

    assert (code, out, err) == (0, "", "")


async def test_a_client_that_is_gone_is_no_error(sqlite_url: str) -> None:
    await buried(sqlite_url)
    running = process(sqlite_url)
    greeted(running)
    assert running.stdin is not None
    assert running.stdout is not None

    running.stdout.close()
    running.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}) + "\n")
    running.stdin.close()
    running.stdin = None
    code = running.wait(timeout=30)
    assert running.stderr is not None
    err = running.stderr.read()
    running.stderr.close()

    assert (code, "Traceback" in err) == (0, False)


async def test_what_an_app_prints_does_not_reach_the_client(sqlite_url: str, tmp_path: Path) -> None:
    await buried(sqlite_url)
    (tmp_path / "chatty.py").write_text(
        "import os\nfrom redrive import Redrive\nprint('hello from the app')\nos.system('echo hello from a child')\n"
        f"app = Redrive({sqlite_url!r})\n"
    )
    running = process("chatty:app", "--name", "night-shift", cwd=tmp_path)
    answer = greeted(running)
    out, err = running.communicate(timeout=30)

    assert answer["id"] == 1
    assert (running.returncode, out) == (0, "")
    assert "hello from the app" in err
    assert "hello from a child" in err


def test_a_database_that_is_not_there_is_said_on_standard_error(tmp_path: Path) -> None:
    running = process(f"sqlite:///{tmp_path}/none.db")
    out, err = running.communicate(timeout=30)

    assert (running.returncode, out) == (1, "")
    assert "there is no file" in err


def test_the_command_has_its_place_and_its_help() -> None:
    told = command("--help").out
    assert told.index(" serve ") < told.index(" mcp ") < told.index(" relay ")
    assert "agent" in command("mcp", "--help").out
