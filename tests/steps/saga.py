"""A saga in a process that dies at a chosen point: ``python saga.py <database> <world>``, orders on standard input.

Each order (``<ending> <point>``) is carried out by a fork of its own, which works until nothing is due, or kills itself
in front of the so-manyth statement or effect since its first handler began. The world is a database of its own: what is
done there is not rolled back by anybody.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import asyncpg

import redrive.store
import redrive.store.postgres
import redrive.store.sqlite
from redrive import Context, Redrive, Rejected, RetryPolicy, Step
from redrive.store.sql import load

connect = sqlite3.connect
reached = -1  # not counting yet
deadly = 0


def point() -> None:
    global reached  # noqa: PLW0603 - one number for all the threads of a process that may end at any of its values
    if reached >= 0:
        reached += 1
        if reached == deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def watch_statements() -> None:
    """Make a point of each statement that either driver is given."""

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda text: point() if counts(text) else None)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]
    for name in ("fetch", "execute"):
        run = getattr(asyncpg.Connection, name)

        async def counted(self: Any, query: str, *arguments: Any, run: Any = run, **options: Any) -> Any:
            if counts(query):
                point()
            return await run(self, query, *arguments, **options)

        setattr(asyncpg.Connection, name, counted)


def counts(text: str) -> bool:
    head = text.lstrip().lower()[:400]
    if head.startswith("--"):  # a statement of a trigger
        return False
    return head.startswith("commit") or "step" in head or ("outbox" in head and "update" in head)


def saga_on(url: str, world: str, ending: str) -> Redrive:
    app = Redrive(url, migrate=False)

    def act(sql: str, *values: Any) -> None:
        with connect(world, timeout=10) as outside:
            outside.execute(sql, values)
        outside.close()

    async def do(name: str, event: str, step: Step) -> str:
        point()
        if name == "c" and ending == "reject":
            raise Rejected("no stock")
        act("insert into effect values (?, ?, ?) on conflict do nothing", step.key, event, name)
        point()
        return step.key

    @app.compensation(retry=RetryPolicy(base_delay=0.01, max_delay=0.01))
    async def undo(key: str | None, ctx: Context) -> None:
        assert key in (None, ctx.headers["step-key"])
        point()
        act("insert into undone (key, event, name) values (?, ?, ?)",
            ctx.headers["step-key"], ctx.causation_id, ctx.headers["step"])  # fmt: skip
        point()

    @app.handler("saga", compensate_on=("cancelled", "dead_letter"))
    async def saga(payload: Any, ctx: Context) -> None:
        global reached  # noqa: PLW0603 - as above
        reached = max(reached, 0)
        for name in ("a", "b", "c"):
            await ctx.step(name, do, name, str(ctx.id), compensate=undo)

    return app


async def work(app: Redrive) -> None:
    async with app:
        while (await app.worker(concurrency=1, lease="1h").drain()).claimed:
            pass


def carry_out(url: str, world: str, ending: str) -> None:
    watch_statements()
    asyncio.run(work(saga_on(url, world, ending)))
    os._exit(0)


def main(url: str, world: str) -> None:
    global deadly  # noqa: PLW0603 - as above
    store = "postgres" if url.startswith("postgres") else "sqlite"
    for file in Path(redrive.store.__path__[0], store).glob("*.sql"):
        load(store, file.stem)  # here, and not again in every fork
    gc.freeze()
    for order in sys.stdin:
        ending, number = order.split()
        deadly = int(number)
        child = os.fork()
        if child == 0:
            carry_out(url, world, ending)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
