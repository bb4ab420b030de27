"""Drain no-ops with huey on SQLite: fill its queue, then a consumer until it is empty.

Prints ``{"count": …, "seconds": …}``. WAL and ``synchronous=FULL``, results off. 1, 2 and 4 threads were tried once
each: one was best.
"""

import json
import subprocess
import sys
import threading
import time
from typing import Any

from huey import SqliteHuey
from huey.consumer import Consumer

THREADS = 1


def queue_in(url: str) -> tuple[Any, Any, dict[str, int]]:
    """Open huey's queue beside the given database."""
    huey = SqliteHuey(filename=url.removeprefix("sqlite:///") + "-huey", results=False, fsync=True)
    counted = {"count": 0}
    lock = threading.Lock()

    @huey.task()
    def noop(payload: str) -> None:
        json.loads(payload)
        with lock:
            counted["count"] += 1

    return huey, noop, counted


def fill(url: str, events: int) -> None:
    """Put the events in; not measured, so it need not sync."""
    huey, noop, _ = queue_in(url)
    storage = huey.storage
    with storage.db(commit=True) as cursor:
        cursor.executemany(
            "insert into task (queue, data, priority) values (?, ?, ?)",
            (
                (huey.name, huey.serialize_task(noop.s(json.dumps({"n": n, "text": "x" * 75}))), 0)
                for n in range(events)
            ),
        )
    storage.close()


def work(url: str, threads: int) -> None:
    """Run one consumer until nothing is pending."""
    huey, _, counted = queue_in(url)
    consumer = Consumer(huey, workers=threads, periodic=False, initial_delay=0.001, backoff=1.1, max_delay=0.01)
    began = time.monotonic()
    consumer.start()
    last, ended = -1, began
    while True:
        time.sleep(0.02)
        count = counted["count"]
        if count != last:
            last, ended = count, time.monotonic()
        elif huey.storage.queue_size() == 0:
            break
    consumer.stop(graceful=True)
    print(json.dumps({"count": counted["count"], "began": began, "ended": ended}))


def main() -> None:
    """Do as ordered by the one argument."""
    order = json.loads(sys.argv[1])
    threads = order.get("threads", THREADS)
    if order.get("child"):
        work(order["url"], threads)
        return
    fill(order["url"], order["events"])
    child = json.dumps({"url": order["url"], "threads": threads, "child": True})
    children = [
        subprocess.Popen([sys.executable, __file__, child], stdout=subprocess.PIPE)  # noqa: S603 - ourselves
        for _ in range(order["processes"])
    ]
    found = [json.loads(each.communicate()[0].splitlines()[-1]) for each in children]
    seconds = max(one["ended"] for one in found) - min(one["began"] for one in found)
    print(json.dumps({"count": sum(one["count"] for one in found), "seconds": seconds}))


if __name__ == "__main__":
    main()
