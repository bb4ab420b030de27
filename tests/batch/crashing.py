"""A worker that kills itself at a chosen point: `python -m tests.batch.crashing URL POINT`. POINT may be `none`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from redrive import Context, PrerequisiteMissing, Redrive
from redrive.batch import FINAL_NOTICE, FIRST_NOTICE
from redrive.store import postgres, sqlite
from tests.batch.helpers import FAST

POINTS = ("in the handler", "delivered, not committed", "settled", "turned")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., Awaitable[Any]], *, times: int) -> Callable[..., Any]:
    """Let a call happen some times, and the process end right behind the last."""
    left = times

    @wraps(call)
    async def called(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        result = await call(*arguments, **named)
        left -= 1
        if not left:
            die()
        return result

    return called


def arm(point: str) -> None:
    """Put the end behind its call."""
    for kind in (sqlite.SqliteTransaction, postgres.PostgresTransaction):
        if point == "delivered, not committed":
            kind.deliver = dying(kind.deliver, times=3)  # type: ignore[method-assign]
    for claims in (sqlite.SqliteClaims, postgres.PostgresClaims):
        if point == "turned":
            claims.turn = dying(claims.turn, times=4)  # type: ignore[method-assign]
        if point == "settled":
            claims.turn = dying(claims.turn, times=6)  # type: ignore[method-assign]


def depot(url: str, point: str = "none") -> Redrive:
    """Make an app whose parcels fail once, some of them."""
    app = Redrive(url, retry=FAST, migrate=True)
    handled = 0

    @app.handler("parcel")
    async def carry(payload: dict[str, Any], ctx: Context) -> None:
        nonlocal handled
        handled += 1
        if point == "in the handler" and handled == 3:
            die()
        if ctx.attempt <= payload.get("fails", 0):
            raise PrerequisiteMissing("not on the shelf yet")
        if payload.get("inside"):
            async with ctx.transaction():
                pass

    @app.handler(FIRST_NOTICE)
    @app.handler(FINAL_NOTICE)
    async def note(_payload: dict[str, Any]) -> None: ...

    return app


async def main(url: str, point: str) -> None:
    arm(point)
    async with depot(url, point) as app:
        await app.worker(lease="1s", concurrency=4).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
