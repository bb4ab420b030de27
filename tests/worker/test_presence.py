"""Workers see that another process of their machine is gone: its work comes back at once, not with its lease."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, Status
from redrive.presence import Presence, mark
from redrive.store.base import Session
from tests import warm
from tests.stores.helpers import Hands
from tests.waiting import until
from tests.worker.conftest import found, working

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when a process began")

LONG = "10m"  # a lease that no test waits for

SCRIPT = """
    import asyncio, sys, time
    from redrive import Redrive
    app = Redrive(sys.argv[1])

    @app.handler("endless"{options})
    def endless(payload):
        open(sys.argv[2], "a").write("begun\\n")
        time.sleep(600)

    async def main():
        async with app:
            await app.worker(lease="10m", concurrency=4, children=1).run()

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def doomed(tmp_path: Path, store_url: str, journal: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "doomed.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("{options}", ""))
    process = warm.python([str(script), store_url, str(journal)], stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def started(*program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", *program])


@pytest.mark.req("A7", "O5")
async def test_the_work_of_a_killed_process_is_taken_back_when_the_next_one_starts(
    app: Redrive, doomed: subprocess.Popen[bytes], journal: Path
) -> None:
    done = asyncio.Event()

    @app.handler("endless")
    async def endless(payload: Any) -> None:
        done.set()

    event = await app.publish("endless", {})
    await until(lambda: journal.stat().st_size > 0)
    doomed.send_signal(signal.SIGKILL)
    await asyncio.to_thread(doomed.wait)

    async with working(app, lease=LONG):
        await until(done.is_set)

    ended = await found(app, event.id)
    assert (ended.status, ended.lost_count, ended.attempts) == (Status.DELIVERED, 1, 1)
    kinds = [entry.kind async for entry in app.store.trail(event.id)]
    assert "lost" in kinds


@pytest.mark.req("A7")
async def test_what_a_living_process_holds_is_left_to_it(
    app: Redrive, doomed: subprocess.Popen[bytes], journal: Path
) -> None:
    event = await app.publish("endless", {})
    await until(lambda: journal.stat().st_size > 0)
    async with app.store.transaction():  # or it could be stopped while it has the file of SQLite to itself
        doomed.send_signal(signal.SIGSTOP)  # stopped is not gone

    worker = app.worker(lease=LONG)
    await worker.drain()

    doomed.send_signal(signal.SIGCONT)
    assert worker.tally.swept == 0
    assert (await found(app, event.id)).status is Status.IN_FLIGHT


async def test_a_session_of_another_machine_is_left_to_its_lease(app: Redrive) -> None:
    hands = await Hands.begin(app)
    process = await Presence().process()
    assert process is not None
    there = "0" * 32 + ":" + process.partition(":")[2].partition(":")[0] + ":1"
    session = Session(app.clock.new_id(), "there", "host", 1, ("default",), ("t",), 1, process=there)
    await app.store.begin_session(session, 30.0)

    await app.worker(lease=LONG).drain()

    alive = {each.id for each in await app.store.sessions() if each.ended_at is None}
    assert alive == {hands.id, session.id}


async def test_a_process_is_gone_when_its_number_belongs_to_another_or_to_nobody() -> None:
    presence = Presence()
    process = await presence.process()
    assert process is not None
    place = process.partition(":")[0]
    dead = started("pass")
    zombie = f"{place}:{mark(dead.pid)}"
    await asyncio.to_thread(os.waitid, os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)

    assert await presence.gone([process]) == set()
    assert await presence.gone([f"{place}:{os.getpid()}:1"]) == {f"{place}:{os.getpid()}:1"}
    assert await presence.gone([zombie]) == {zombie}
    await asyncio.to_thread(dead.wait)
    assert await presence.gone([zombie]) == {zombie}
    assert await presence.gone([f"{'0' * 32}:{dead.pid}:1", "nonsense", f"{place}:x:1"]) == set()


async def test_a_process_is_there_as_long_as_a_child_that_runs_its_handlers_is() -> None:
    presence = Presence()
    process = await presence.process()
    assert process is not None
    gone = f"{process.partition(':')[0]}:{os.getpid()}:1"
    orphan = started("import time; time.sleep(600)", f"--parent={os.getpid()}:1")
    try:
        assert await presence.gone([gone]) == set()
    finally:
        orphan.kill()
        await asyncio.to_thread(orphan.wait)
    assert await presence.gone([gone]) == {gone}
