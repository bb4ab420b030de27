"""Schedules by the real clock, with worker processes that come and go."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from redrive import EventFilter, Redrive
from tests.stores.helpers import start_python
from tests.waiting import until

pytestmark = pytest.mark.lab_short

WORK = """
import asyncio, sys
from redrive import Redrive

app = Redrive(sys.argv[1])
for n in range(20):
    app.schedules.add(f"s{n}", "tick", every="1s", catch_up="all")

@app.handler("tick")
async def tick(payload: object) -> None: ...

async def main():
    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(sys.stdin.readline)
        worker.stop()
        await running

print("ready", flush=True)
asyncio.run(main())
"""


def worker(url: str) -> subprocess.Popen[str]:
    process = start_python(WORK, url)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str], *, kill: bool = False) -> None:
    if kill:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    else:
        _, said = process.communicate("stop\n", timeout=60)
        assert process.returncode == 0, said


@pytest.mark.req("E4")
async def test_every_tick_has_one_event_while_workers_are_killed(store_url: str, tmp_path: Path) -> None:
    async with Redrive(store_url, migrate=True) as app:

        async def reached(count: int) -> bool:
            found = await app.schedules.ls()
            return len(found) == 20 and min(each.event_count for each in found) >= count

        processes = [await asyncio.to_thread(worker, store_url) for _ in range(3)]
        await until(lambda: reached(2))
        for process in processes[:2]:
            end(process, kill=True)
        await until(lambda: reached(4))
        end(processes[2], kill=True)  # nobody is left
        last = await asyncio.to_thread(worker, store_url)
        await until(lambda: reached(7))
        await asyncio.to_thread(end, last)

        events = await app.events(EventFilter(limit=100_000))
        for each in await app.schedules.ls():
            ticks = sorted(e.headers["scheduled-at"] for e in events if e.headers["schedule"] == each.name)
            at = [datetime.fromisoformat(tick) for tick in ticks]
            assert {later - earlier for earlier, later in pairwise(at)} == {timedelta(seconds=1)}
            assert len(at) == each.event_count
