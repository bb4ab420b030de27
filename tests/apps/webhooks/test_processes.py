"""Real processes, killed: what was answered is there, backoff survives, nothing is done twice or forgotten."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import httpx
import pytest

from redrive import Event, EventFilter, Redrive, Status
from tests import warm
from tests.apps.webhooks.conftest import SECRET, signed
from tests.waiting import until

pytestmark = pytest.mark.lab_short

ROOT = Path(__file__).parent.parent.parent.parent
RUNS = count()
RUNNING = "tests.apps.webhooks.running"
FAILING = """
from datetime import UTC, datetime

async def fail(payload, ctx):
    with open("attempts", "a") as file:
        file.write(f"{datetime.now(UTC).isoformat()} {ctx.attempt}\\n")
    raise RuntimeError("never")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configure(folder: Path, deliver: str) -> None:
    text = f'[sources.shop]\nsecrets = ["{SECRET}"]\ndeliver = "{deliver}"\n'
    (folder / "webhooks.toml").write_text(text, encoding="utf-8")


@asynccontextmanager
async def running(folder: Path, *command: str, sign_of_life: bytes, **environ: str) -> AsyncIterator[None]:
    """Run a program until the end of the block, where it is killed."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    said = folder / f"said-{next(RUNS)}"
    with said.open("wb") as file:  # a pipe that nobody reads would stop it one day
        process = warm.python(
            command, cwd=folder, stdout=file, stderr=file, env=os.environ | {"PYTHONPATH": path} | environ
        )
    try:
        await until(lambda: process.poll() is not None or sign_of_life in said.read_bytes())
        assert process.poll() is None, said.read_text(encoding="utf-8")[-2_000:]
        yield
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


def up(folder: Path, port: int, **environ: str) -> AbstractAsyncContextManager[None]:
    command = ("-m", "redrive.operate.cli", "up", "webhooks", "--port", str(port))
    return running(folder, *command, sign_of_life=b"is served", **environ)


async def send(client: httpx.AsyncClient, port: int, message_id: str, value: object) -> int | None:
    """Send a message; nothing comes back when nobody answers."""
    body = json.dumps(value).encode()
    try:
        answer = await client.post(
            f"http://127.0.0.1:{port}/hooks/shop", content=body, headers=signed(body, message_id=message_id)
        )
    except httpx.TransportError:
        return None
    return answer.status_code


@pytest.mark.req("H4")
async def test_nothing_runs_before_its_time_because_of_a_restart_and_nothing_is_forgotten(tmp_path: Path) -> None:
    configure(tmp_path, "failing:fail")
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    url = f"sqlite:///{tmp_path / 'webhooks.db'}"
    curve = {"RETRY_BASE_DELAY": "1s", "RETRY_MAX_DELAY": "2s", "MAX_ATTEMPTS": "3", "REDRIVE_URL": url}
    attempts = tmp_path / "attempts"
    port = free_port()

    def made() -> list[datetime]:
        if not attempts.exists():
            return []
        return [datetime.fromisoformat(line.split()[0]) for line in attempts.read_text(encoding="utf-8").splitlines()]

    due: list[datetime] = []
    async with Redrive(url) as app, httpx.AsyncClient() as client:

        async def event() -> Event:
            (found,) = await app.events(EventFilter(type="webhook.shop"))
            return found

        async def settled(number: int) -> bool:
            found = await event()
            return found.attempts == number and found.status is not Status.IN_FLIGHT

        for number in (1, 2, 3):  # each attempt in a process of its own, the one before killed while it waits
            async with up(tmp_path, port, **curve):
                if number == 1:
                    assert await send(client, port, "msg_1", {"n": 1}) == 202
                await until(lambda n=number: settled(n))  # type: ignore[misc]
            due.append((await event()).due_at)
        last = await event()

    tries = made()
    assert (last.status, last.attempts, len(tries)) == (Status.FAILED, 3, 3)
    for failed, retry_after, then in zip(tries, due, tries[1:], strict=False):
        assert timedelta(seconds=2) <= retry_after - failed < timedelta(seconds=10)
        assert then >= retry_after


@pytest.mark.req("H6", "H1")
async def test_whatever_was_answered_before_the_kill_is_there(tmp_path: Path, store_url: str) -> None:
    await crashed(tmp_path, store_url, messages=120, kills=2)


@pytest.mark.lab
@pytest.mark.timeout(600)
async def test_whatever_was_answered_is_there_after_many_kills(tmp_path: Path, store_url: str) -> None:
    await crashed(tmp_path, store_url, messages=5_000, kills=40)


async def crashed(folder: Path, url: str, *, messages: int, kills: int) -> None:
    """Send while the receiver is killed again and again; check what must hold at the end."""
    async with Redrive(url, migrate=True):
        pass
    configure(folder, f"{RUNNING}:note")
    port, dice = free_port(), random.Random(7)
    environ = {"REDRIVE_URL": url, "RETRY_BASE_DELAY": "50ms", "RETRY_MAX_DELAY": "100ms"}
    numbers, answered = iter(range(messages)), set[int]()

    async def sender(client: httpx.AsyncClient) -> None:
        for n in numbers:
            while (status := await send(client, port, f"msg_{n}", {"n": n, "fails": n % 7 == 0})) not in {200, 202}:
                assert status in {None, 503}
                await asyncio.sleep(0.02)
            answered.add(n)

    async with httpx.AsyncClient(timeout=10) as client:
        sending = [asyncio.create_task(sender(client)) for _ in range(8)]
        for kill in range(1, kills + 1):
            async with running(folder, "-m", RUNNING, str(port), sign_of_life=b"ready", **environ):
                goal = messages * kill // (kills + 1)
                await until(lambda goal=goal: len(answered) >= goal)  # type: ignore[misc]
                await asyncio.sleep(dice.uniform(0.0, 0.05))
        async with running(folder, "-m", RUNNING, str(port), sign_of_life=b"ready", **environ):
            await asyncio.wait_for(asyncio.gather(*sending), 120)
            async with Redrive(url) as app:
                everything = EventFilter(type="webhook.shop", limit=2 * messages)

                async def finished() -> bool:
                    return all(event.status is Status.DELIVERED for event in await app.events(everything))

                await until(finished)
                events = await app.events(everything)
                async with app.transaction() as tx:
                    done = [row[0] for row in await tx.fetch("select n from done order by n")]

    assert sorted(event.payload["n"] for event in events) == list(range(messages))
    assert done == list(range(messages))
