"""Working: processes that run handlers, and end when they are told to, losing nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, Status
from redrive.store.base import Session
from tests.operate.helpers import ended, environment, in_app, read, redrive, start, statuses
from tests.waiting import wait_until

APP = """
import asyncio, os, time
from pathlib import Path
from redrive import Redrive

app = Redrive(os.environ["SHOP_URL"], migrate=True)

@app.handler("quick")
async def quick(payload: dict) -> None: ...

@app.handler("slow")
async def slow(payload: dict) -> None:
    Path("started").touch()
    await asyncio.sleep(payload["seconds"])

@app.handler("thread")
def thread(payload: dict) -> None:
    Path("started").touch()
    time.sleep(payload["seconds"])

@app.handler("slow.queue")
async def other(payload: dict) -> None: ...
"""


@pytest.fixture
def shop(empty_folder: Path, store_url: str) -> tuple[Path, str]:
    (empty_folder / "shop.py").write_text(APP)
    return empty_folder, store_url


@pytest.fixture
def sqlite_shop(empty_folder: Path, sqlite_url: str) -> tuple[Path, str]:
    (empty_folder / "shop.py").write_text(APP)
    return empty_folder, sqlite_url


def publish(url: str, type_: str, **payload: Any) -> str:
    redrive("migrate", "-u", url)
    result = redrive("publish", type_, "-", "-u", url, stdin=str(payload).replace("'", '"'))
    assert result.code == 0, result.err
    return result.out.strip()


def work(shop: tuple[Path, str], *arguments: str) -> subprocess.Popen[str]:
    folder, url = shop
    return start("worker", "shop:app", *arguments, cwd=folder, env=environment(SHOP_URL=url))


def live(url: str) -> list[Session]:
    async def job(app: Redrive) -> list[Session]:
        return [session for session in await app.store.sessions() if session.ended_at is None]

    return in_app(url, job)


def test_a_worker_that_is_told_to_stop_finishes_what_it_runs(shop: tuple[Path, str]) -> None:
    folder, url = shop
    event = publish(url, "slow", seconds=1)
    process = work(shop)
    wait_until((folder / "started").exists)

    process.send_signal(signal.SIGTERM)
    result = ended(process)

    assert result.code == 0
    assert read(url, event).status is Status.DELIVERED
    assert live(url) == []
    assert '"event": "worker stopped"' in result.err


@pytest.mark.parametrize("kind", ["slow", "thread"])
def test_a_second_signal_hands_everything_back_at_once(sqlite_shop: tuple[Path, str], kind: str) -> None:
    folder, url = sqlite_shop
    event = publish(url, kind, seconds=60)
    process = work(sqlite_shop)
    wait_until((folder / "started").exists)

    process.send_signal(signal.SIGTERM)
    time.sleep(0.6)
    process.send_signal(signal.SIGTERM)
    result = ended(process, 15)

    assert result.code == 5
    found = read(url, event)
    assert (found.status, found.lost_count) == (Status.PENDING, 0)


def test_a_drain_runs_what_is_due_and_ends(shop: tuple[Path, str]) -> None:
    _, url = shop
    for _ in range(3):
        publish(url, "quick")

    result = ended(work(shop, "--drain"))

    assert result.code == 0
    assert statuses(url) == [Status.DELIVERED] * 3


def test_a_worker_takes_only_the_queues_it_is_given(sqlite_shop: tuple[Path, str]) -> None:
    _, url = sqlite_shop
    publish(url, "quick")
    redrive("publish", "quick", "{}", "--queue", "other", "-u", url)

    assert ended(work(sqlite_shop, "--drain", "--queue", "other", "--queue", "third")).code == 0

    assert sorted(statuses(url)) == [Status.DELIVERED, Status.PENDING]


def test_several_processes_work_are_restarted_and_stop_together(shop: tuple[Path, str]) -> None:
    _, url = shop
    publish(url, "quick")
    process = work(shop, "--processes", "2")
    first = wait_until(lambda: live(url) if len(live(url)) == 2 else None)

    os.kill(first[0].pid, signal.SIGKILL)
    wait_until(lambda: {each.pid for each in live(url)} - {each.pid for each in first})
    process.send_signal(signal.SIGINT)
    result = ended(process)

    assert result.code == 0
    assert "starting it anew" in result.err
    assert statuses(url) == [Status.DELIVERED]
    assert not [each for each in live(url) if _runs(each.pid)]


def test_children_do_not_outlive_their_parent(sqlite_shop: tuple[Path, str]) -> None:
    _, url = sqlite_shop
    publish(url, "quick")
    process = work(sqlite_shop, "--processes", "2")
    children = wait_until(lambda: live(url) if len(live(url)) == 2 else None)

    process.kill()
    process.communicate()

    wait_until(lambda: not any(_runs(each.pid) for each in children))
    assert live(url) == []


def test_several_processes_drain_together(sqlite_shop: tuple[Path, str]) -> None:
    _, url = sqlite_shop
    for _ in range(4):
        publish(url, "quick")

    assert ended(work(sqlite_shop, "--processes", "2", "--drain")).code == 0

    assert statuses(url) == [Status.DELIVERED] * 4


@pytest.mark.no_tables
def test_up_creates_the_tables_and_works(shop: tuple[Path, str]) -> None:
    folder, url = shop
    process = start("up", "shop:app", cwd=folder, env=environment(SHOP_URL=url))
    wait_until(lambda: live(url))
    event = publish(url, "quick")
    wait_until(lambda: read(url, event).status is Status.DELIVERED)

    process.send_signal(signal.SIGINT)
    result = ended(process)

    assert result.code == 0
    assert "4 handlers at work" in result.err
    assert "stopped: 1 event delivered" in result.err


@pytest.mark.no_tables
def test_up_takes_a_database_and_says_how_other_commands_find_it(sqlite_url: str, tmp_path: Path) -> None:
    process = start("up", "controlplane", "--no-serve", "-u", sqlite_url, cwd=tmp_path, env=environment())
    wait_until(lambda: live(sqlite_url))

    process.send_signal(signal.SIGINT)
    result = ended(process)

    assert result.code == 0
    assert f"export REDRIVE_URL={sqlite_url}" in result.err


def test_up_refuses_a_database_for_an_app_that_names_its_own(shop: tuple[Path, str]) -> None:
    folder, url = shop
    result = ended(start("up", "shop:app", "-u", "sqlite:///other.db", cwd=folder, env=environment(SHOP_URL=url)))

    assert result.code == 2
    assert "names its own database" in result.err


def _runs(pid: int) -> bool:
    """Say whether a process is there, and no mere zombie."""
    try:
        os.kill(pid, 0)
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
