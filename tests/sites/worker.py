"""A worker of a site as a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import math
import sys
from itertools import count
from typing import Any

from redrive import Context, Redrive
from redrive.transport.nats import Nats

LEASE = "2s"


def booking(url: str, server: str, most: float = math.inf) -> Redrive:
    """Make the app of Paris: it books what comes from Berlin, each in one transaction; over the rest it never ends."""
    app = Redrive(url, site="paris", migrate=True)
    app.intake(Nats(server).stream("FROM_BERLIN", durable="paris"))

    begun = count()

    @app.handler("stock.changed")
    async def book(change: dict[str, Any], ctx: Context) -> None:
        if next(begun) >= most:
            await asyncio.Event().wait()
        async with ctx.transaction() as tx:
            await tx.publish("stock.booked", change)

    return app


async def _work(url: str, server: str) -> None:
    async with booking(url, server, most=8) as app:
        await app.worker(lease=LEASE, concurrency=4).run()


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
