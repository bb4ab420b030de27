"""A worker that kills itself in the middle of a run: `python -m tests.reconcile.crashing URL POINT`.

Everything it runs is the real thing; the only thing added is a SIGKILL behind a call. POINT may be `none`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from redrive import Redrive, RetryPolicy
from redrive.store.postgres import PostgresTransaction
from redrive.store.sqlite import SqliteTransaction

KEYS = 2_500
POINTS = {
    # the verb after whose nth call the process ends; its transaction is not committed by then
    "second chunk not committed": ("findings_answered", 2),
    "second chunk seen": ("findings_seen", 2),
    "one chunk is in": ("findings_seen", 3),
    "before the end": ("reconcile_end", 1),
}


def arm(point: str) -> None:
    """Put the end behind its call."""
    if point not in POINTS:
        return
    verb, left = POINTS[point]
    calls = 0
    kinds: tuple[Any, ...] = (SqliteTransaction, PostgresTransaction)
    for kind in kinds:
        whole = kind.run

        async def run(self: Any, verb_: str, /, *arguments: Any, _whole: Any = whole, **values: Any) -> Any:
            nonlocal calls
            result = await _whole(self, verb_, *arguments, **values)
            calls += verb_ == verb
            if calls == left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        kind.run = run


def shop(url: str) -> Redrive:
    """Make an app with many differences, and a converge that leaves them to be counted."""
    app = Redrive(url, retry=RetryPolicy(max_attempts=5, base_delay=0.01, max_delay=0.05), migrate=True)

    async def converge(key: str, desired: Any, actual: Any) -> None:
        """Do nothing."""

    app.reconcilers.add("carts", desired=lambda: {f"{n:05d}": n for n in range(KEYS)}, actual=dict, converge=converge)
    return app


async def main(url: str, point: str) -> None:
    arm(point)
    app = shop(url)
    async with app:
        if point == "here":
            await app.reconcilers.run_here("carts")
        else:
            await app.worker(lease="1s", concurrency=1).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
