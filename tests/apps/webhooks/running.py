"""`redrive up webhooks` with a lease that a test can wait for: `python -m tests.apps.webhooks.running PORT`.

Its handler writes into a table of its own, in the transaction of its event: what stands there is what was done.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from redrive import Context, Work
from redrive.apps.webhooks import Settings, webhooks
from redrive.operate.web import Server, redrive_asgi


async def note(payload: dict[str, Any], ctx: Context) -> None:
    """Do the work of a message: one row."""
    if ctx.attempt <= payload.get("fails", 0):
        raise RuntimeError("not yet")
    async with ctx.transaction() as tx:
        await tx.execute(f"insert into done (n, at) values ({int(payload['n'])}, '{ctx.attempt}')")


async def make_done(tx: Work) -> None:
    await tx.execute("create table if not exists done (n integer not null, at text not null)")


async def main(port: int) -> None:
    app = webhooks(Settings.read(os.environ, Path.cwd()))
    app.when_open(make_done)
    async with app:
        worker = app.worker(lease="1s", concurrency=20)
        server = Server(redrive_asgi(app), "127.0.0.1", port)
        server.bind()
        async with server:
            print("ready", flush=True)
            await worker.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
