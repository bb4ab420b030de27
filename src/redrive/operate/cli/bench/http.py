"""HTTP: how many publishes a second one server process answers, each when it is committed."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from redrive.app import Redrive
from redrive.operate.auth import Role, Tokens
from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, rate_of, together
from redrive.operate.cli.bench.place import TYPE, Place, filler

_CONNECTIONS: Final = 32
_LOOK_SECONDS: Final = 0.01


async def http(setup: Setup, place: Place) -> Report:
    """Publish over HTTP, one event a request, on 32 connections; the server is one process, the caller another."""
    events = setup.events or 20_000
    settings = {"events": events, "connections": _CONNECTIONS, "repeat": setup.repeat}
    report = Report("http", place.store, settings)
    rates, cores = [], []
    for turn in range(setup.repeat):
        setup.saying("http", turn)("publishing")
        async with place.fresh() as url:
            results = await _served(url, events)
            stored = (await place.count(url)).get("pending", 0)
        if stored != events:
            raise BenchFailed(f"{stored} of {events} rows were stored")
        rates.append(rate_of(results[1:], events))
        cores.append(results[0]["cpu_seconds"] / (results[1]["ended"] - results[1]["began"]))
    report.put("rate", rates)
    report.put("server_cores", cores)
    report.goal("rate", 2_000)
    if setup.profile:
        async with place.fresh() as url:
            await _served(url, events, profile=str(setup.profile))
    return report


async def _served(url: str, events: int, **server: Any) -> list[dict[str, Any]]:
    async with Redrive(url) as app:
        _, token = await Tokens(app).create("bench", Role.PUBLISHER, by="bench")
    port = free_port()
    return await together(
        Child("serve_http", url=url, port=port, number=events, **server),
        Child("publish_http", port=port, token=token, number=events, text=filler(100)),
    )


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


# --- the two processes ---


async def serve_http(go: Callable[[], None], *, url: str, port: int, number: int) -> dict[str, Any]:
    """Serve until so many requests were answered."""
    from redrive.operate.web import Server, redrive_asgi  # noqa: PLC0415 - what it needs is an extra

    async with Redrive(url) as app:
        server = Server(redrive_asgi(app), "127.0.0.1", port)
        server.bind()
        go()
        async with server:
            while server.answered < number:  # noqa: ASYNC110 - nobody is told what is only counted
                await asyncio.sleep(_LOOK_SECONDS)
    return {"count": 0}


async def publish_http(go: Callable[[], None], *, port: int, token: str, number: int, text: str) -> dict[str, Any]:
    """Publish one event after the other on each of some connections; bare sockets, to leave the core to the server."""
    left = iter(range(number))
    go()
    began = time.monotonic()
    counts = await asyncio.gather(*(_caller(port, token, left, text) for _ in range(_CONNECTIONS)))
    return {"count": sum(counts), "began": began, "ended": time.monotonic()}


async def _caller(port: int, token: str, left: Any, text: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: "
    )
    done = 0
    for n in left:
        body = json.dumps({"type": TYPE, "payload": {"n": n, "text": text}})
        writer.write(f"{head}{len(body)}\r\n\r\n{body}".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 201"):
            raise BenchFailed(f"answered {answer[:100]!r}")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        done += 1
    writer.close()
    await writer.wait_closed()
    return done
