"""Drain no-ops with pgqueuer: fill its queue, then one worker or several until it is empty.

Prints ``{"count": …, "seconds": …}``. Batches of 100, 500, 1,000 and 2,000 were tried once each: 500 and 1,000
were alike and best.
"""

import asyncio
import json
import subprocess
import sys
import time
from datetime import timedelta

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 500
FILL = 5_000


async def fill(url: str, events: int) -> None:
    """Install pgqueuer's tables and put the events in."""
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for first in range(0, events, FILL):
        several = range(first, min(first + FILL, events))
        payloads: list[bytes | None] = [json.dumps({"n": n, "text": "x" * 75}).encode() for n in several]
        await queries.enqueue(["bench"] * len(several), payloads, [0] * len(several))
    await connection.execute("vacuum analyze")
    await connection.execute("checkpoint")
    await connection.close()


async def work(url: str, batch: int) -> None:
    """Run one worker to the end of the queue."""
    count = 0
    connection = await asyncpg.connect(url)
    manager = QueueManager(Queries(AsyncpgDriver(connection)))

    @manager.entrypoint("bench")
    async def noop(job: Job) -> None:
        nonlocal count
        json.loads(job.payload or b"null")
        count += 1

    began = time.monotonic()
    await manager.run(
        mode=QueueExecutionMode.drain, batch_size=batch, dequeue_timeout=timedelta(seconds=1),
    )  # fmt: skip
    ended = time.monotonic()
    await connection.close()
    print(json.dumps({"count": count, "began": began, "ended": ended}))


def main() -> None:
    """Do as ordered by the one argument."""
    order = json.loads(sys.argv[1])
    batch = order.get("batch", BATCH)
    if order.get("child"):
        asyncio.run(work(order["url"], batch))
        return
    asyncio.run(fill(order["url"], order["events"]))
    child = json.dumps({"url": order["url"], "batch": batch, "child": True})
    children = [
        subprocess.Popen([sys.executable, __file__, child], stdout=subprocess.PIPE)  # noqa: S603 - ourselves
        for _ in range(order["processes"])
    ]
    found = [json.loads(each.communicate()[0].splitlines()[-1]) for each in children]
    seconds = max(one["ended"] for one in found) - min(one["began"] for one in found)
    print(json.dumps({"count": sum(one["count"] for one in found), "seconds": seconds}))


if __name__ == "__main__":
    main()
