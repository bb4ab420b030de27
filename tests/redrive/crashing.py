"""A worker that kills itself at a chosen point: `python -m tests.redrive.crashing URL POINT`.

Everything it runs is the real thing; the only thing added is a SIGKILL behind a call. POINT may be `none`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from redrive import Redrive, Rejected, RetryPolicy, redrive
from redrive.store.postgres import PostgresTransaction
from redrive.store.sqlite import SqliteTransaction

# name: (which call of a transaction, and when); the transaction has not been committed by then
IN_TRANSACTION: dict[str, tuple[str, Callable[[tuple[Any, ...], Any], bool]]] = {
    "plan not committed": ("run", lambda args, _: args[0] == "redrive_planned"),
    "release not committed": ("release", lambda _, released: bool(released)),
    "outcomes not committed": ("note_outcomes", lambda *_: True),
    "gate not committed": ("run", lambda args, _: args[0] == "redrive_next_stage"),
    "end not committed": ("run", lambda args, done: args[0] == "redrive_done" and bool(done)),
}
POINTS = ("release not committed", "released", "in the handler", "after the handler", "outcomes not committed",
          "gate not committed", "end not committed")  # fmt: skip


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., Awaitable[Any]], when: Callable[[tuple[Any, ...], Any], bool]) -> Callable[..., Any]:
    """Let a call happen, and the process end right behind it."""

    @wraps(call)
    async def called(*arguments: Any, **named: Any) -> Any:
        result = await call(*arguments, **named)
        if when(arguments[1:], result):
            die()
        return result

    return called


def arm(point: str) -> None:
    """Put the end behind its call."""
    if point in IN_TRANSACTION:
        name, when = IN_TRANSACTION[point]
        for kind in (SqliteTransaction, PostgresTransaction):
            setattr(kind, name, dying(getattr(kind, name), when))
    if point == "released":
        redrive.tick = dying(redrive.tick, lambda _, ticked: ticked.moved)


def shop(url: str, point: str = "none") -> Redrive:
    """Make an app whose handler works, but for what can never work."""
    app = Redrive(url, retry=RetryPolicy(max_attempts=1), migrate=True)

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        if point == "in the handler":
            die()
        if payload.get("always"):
            raise Rejected("carrier says no")
        if point == "after the handler":
            asyncio.get_running_loop().call_soon(die)

    return app


async def main(url: str, point: str) -> None:
    arm(point)
    app = shop(url, point)
    async with app:
        if point == "plan not committed":
            await app.plan("type:order.paid", by="ada", unsafe=True)
        await app.worker(lease="1s", concurrency=4).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
