"""Webhooks: how many signed messages a second one process takes on one core, each answered when it is committed."""

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from redrive.operate.cli.bench.http import free_port
from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, rate_of, together
from redrive.operate.cli.bench.place import Place, filler

_CONNECTIONS: Final = 32
_LOOK_SECONDS: Final = 0.01
_SOURCE: Final = "bench"


async def webhooks(setup: Setup, place: Place) -> Report:
    """Send signed messages on 32 connections to the receiver, on one core; with a worker beside it and without."""
    events = setup.events or 20_000
    report = Report("webhooks", place.store, {"events": events, "connections": _CONNECTIONS, "repeat": setup.repeat})
    found: dict[str, list[float]] = {}
    for turn in range(setup.repeat):
        for name, works in (("", False), ("working_", True)):
            setup.saying("webhooks", turn)("taking and handling" if works else "taking")
            async with place.fresh() as url:
                server, caller = await _served(url, events, works=works)
                stored = sum((await place.count(url)).values())
            if stored < events:
                raise BenchFailed(f"{stored} of {events} messages were stored")
            found.setdefault(f"{name}rate", []).append(rate_of([caller], events))
            for share in ("p50_ms", "p99_ms"):
                found.setdefault(name + share, []).append(caller[share])
            spent = server["cpu_seconds"] / (caller["ended"] - caller["began"])
            found.setdefault(f"{name}server_cores", []).append(spent)
    for name, values in found.items():
        report.put(name, values)
    for name in ("", "working_"):
        report.goal(f"{name}rate", 2_000)
        report.goal(f"{name}p99_ms", 50, at_most=True)
    if setup.profile:
        async with place.fresh() as url:
            await _served(url, events, works=True, profile=str(setup.profile))
    return report


async def _served(url: str, events: int, *, works: bool, **server: Any) -> list[dict[str, Any]]:
    port = free_port()
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    return await together(
        Child("serve_webhooks", url=url, port=port, number=events, secret=secret, works=works, **server),
        Child("send_webhooks", port=port, number=events, secret=secret, text=filler(200)),
    )


def _pin(core: int) -> None:
    """Stay on one core, if there are several."""
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > core:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


# --- the two processes ---


async def serve_webhooks(
    go: Callable[[], None], *, url: str, port: int, number: int, secret: str, works: bool
) -> dict[str, Any]:
    """Run the app as `redrive up webhooks` does, until so many requests were answered."""
    from redrive.operate.cli.shared import load_app  # noqa: PLC0415 - the apps stand above us: found by name
    from redrive.operate.web import Server, redrive_asgi  # noqa: PLC0415 - what it needs is an extra

    _pin(0)
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        config = Path(folder) / "webhooks.toml"
        config.write_text(
            f'[sources]\n{_SOURCE} = {{ secrets = ["{secret}"], deliver = "redrive.operate.cli.bench.raw:noop" }}\n',
            encoding="utf-8",
        )
        os.environ |= {"REDRIVE_URL": url, "WEBHOOKS_CONFIG": str(config)}
        app = load_app("webhooks")
    async with app, _working(app, works=works):
        server = Server(redrive_asgi(app), "127.0.0.1", port)
        server.bind()
        go()
        async with server:
            while server.answered < number:  # noqa: ASYNC110 - nobody is told what is only counted
                await asyncio.sleep(_LOOK_SECONDS)
    return {"count": 0}


@asynccontextmanager
async def _working(app: Any, *, works: bool) -> Any:
    if not works:
        yield
        return
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def send_webhooks(go: Callable[[], None], *, port: int, number: int, secret: str, text: str) -> dict[str, Any]:
    """Send signed messages, one after the other on each connection; bare sockets, to leave the core to the server."""
    _pin(1)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    left, spans = iter(range(number)), list[float]()
    go()
    began = time.monotonic()
    await asyncio.gather(*(_sender(port, key, left, text, spans) for _ in range(_CONNECTIONS)))
    ended = time.monotonic()
    shares = statistics.quantiles(spans, n=100)
    return {
        "count": len(spans), "began": began, "ended": ended, "p50_ms": shares[49] * 1e3, "p99_ms": shares[98] * 1e3,
    }  # fmt: skip


async def _sender(port: int, key: bytes, left: Iterator[int], text: str, spans: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for n in left:
        body = f'{{"n": {n}, "text": "{text}"}}'
        at = int(time.time())
        signed = base64.b64encode(hmac.digest(key, f"msg_{n}.{at}.{body}".encode(), hashlib.sha256)).decode()
        head = (
            f"POST /hooks/{_SOURCE} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"webhook-id: msg_{n}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: v1,{signed}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        sent = time.monotonic()
        writer.write((head + body).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 202"):
            raise BenchFailed(f"answered {answer[:100]!r}")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        spans.append(time.monotonic() - sent)
    writer.close()
    await writer.wait_closed()
