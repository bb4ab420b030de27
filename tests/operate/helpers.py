"""The command line under test: in this process, or as one of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner

from redrive import Event, EventFilter, Redrive, RetryPolicy, Status, TerminalHandlerError
from redrive.operate.cli.root import app as commands
from tests import warm

T = TypeVar("T")

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def redrive(*arguments: str, stdin: str | None = None, env: Mapping[str, str | None] | None = None) -> Result:
    """Run a command in this process. Whatever happens, no traceback gets out."""
    environ: dict[str, str | None] = {"REDRIVE_URL": None, "REDRIVE_DEBUG": None, "COLUMNS": "80", "NO_COLOR": "1"}
    environ |= dict(env or {})
    ended = CliRunner().invoke(commands, list(arguments), input=stdin, env=environ)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), repr(ended.exception)
    assert "Traceback" not in ended.output
    return Result(ended.exit_code, ended.stdout, ended.stderr)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE")}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "80", **more}


def start(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    return warm.python(
        ["-m", "redrive.operate.cli", *arguments],
        cwd=cwd,
        env=options.pop("env", None) or environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ended(process: subprocess.Popen[str], seconds: float = SECONDS) -> Result:
    """Wait for its end."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"did not end within {seconds} s:\n{out}\n{err}") from None
    assert "Traceback" not in err, err
    return Result(process.returncode, out, err)


# --- what is looked at ---


def in_app(url: str, work: Callable[[Redrive], Coroutine[Any, Any, T]]) -> T:
    """Do something with an app of this database."""

    async def job() -> T:
        async with Redrive(url, migrate=True) as app:
            return await work(app)

    return asyncio.run(job())


def read(url: str, event_id: object) -> Event:
    async def job(app: Redrive) -> Event:
        events = [*await app.events(EventFilter(limit=500)), *await app.events(EventFilter(limit=500, discarded=True))]
        return next(event for event in events if str(event.id).startswith(str(event_id)))

    return in_app(url, job)


@dataclass(frozen=True, slots=True)
class Seeds:
    """A database with one event of each fate."""

    url: str
    delivered: str
    dead: str
    retrying: str
    waiting: str


def seed(url: str) -> Seeds:
    """Let one event be delivered, one die, one wait for its retry, and one for its time."""

    async def job(app: Redrive) -> Seeds:
        @app.handler("order.paid")
        async def ship(order: dict[str, Any]) -> None: ...

        @app.handler("order.bad")
        async def refuse(order: dict[str, Any]) -> None:
            raise TerminalHandlerError("no such [bold]product[/bold] \x1b[31m")

        @app.handler("order.flaky", retry=RetryPolicy(base_delay="1h", max_delay="1h", jitter="none"))
        async def stumble(order: dict[str, Any]) -> None:
            raise ConnectionError("carrier: 503")

        delivered = await app.publish("order.paid", {"id": 1, "note": "Zoë \x1b[2J [red]"}, subject="order 1")
        dead = await app.publish("order.bad", {"id": 2}, retry_key="order-2", correlation_id="basket-7")
        retrying = await app.publish("order.flaky", {"id": 3})
        waiting = await app.publish("order.paid", {"id": 4}, delay="1h")
        await app.worker().drain()
        return Seeds(url, str(delivered.id), str(dead.id), str(retrying.id), str(waiting.id))

    return in_app(url, job)


def statuses(url: str) -> list[Status]:
    async def job(app: Redrive) -> list[Status]:
        return [event.status for event in await app.events(EventFilter(limit=500))]

    return in_app(url, job)
