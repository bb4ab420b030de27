"""Consoles: what many who watch cost a worker. Each listens for changes and fetches its page anew, as ours does."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from redrive.app import Redrive
from redrive.operate.cli.bench.drain import all_delivered
from redrive.operate.cli.bench.http import free_port
from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, Slots, counters, rate_of, together
from redrive.operate.cli.bench.place import Place, Rows

_CONSOLES: Final = 200
_LOOK_SECONDS: Final = 0.05
_HEAD: Final = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/html\r\nAccept-Encoding: gzip\r\n{more}\r\n"
)


async def consoles(setup: Setup, place: Place) -> Report:
    """Drain while 200 consoles are open, beside one while none is; the server is a process of its own in both."""
    events = setup.events or 300_000
    report = Report("consoles", place.store, {"events": events, "consoles": _CONSOLES, "repeat": setup.repeat})
    found: dict[str, list[float]] = {"watched_rate": [], "rate": [], "pages": [], "server_cores": []}
    for turn in range(setup.repeat):
        for number in (0, _CONSOLES) if turn % 2 else (_CONSOLES, 0):
            setup.saying("consoles", turn)(f"drain, {number} consoles open")
            async with place.fresh(Rows(events)) as url:
                work, server, *watchers = await _watched(url, events, number)
                await all_delivered(place, url, events)
            found["watched_rate" if number else "rate"].append(rate_of([work], events))
            if number:
                found["pages"].append(watchers[0]["count"])
                found["server_cores"].append(server["cpu_seconds"] / (work["ended"] - work["began"]))
    for name, values in found.items():
        report.put(name, values)
    report.ratio("ratio_to_unwatched", "watched_rate", "rate")
    report.goal("ratio_to_unwatched", 0.95)
    return report


async def _watched(url: str, events: int, number: int) -> list[dict[str, Any]]:
    port = free_port()
    with counters(2) as slots:
        return await together(
            Child("work", url=url, goal=events, slots=slots[0]),
            Child("serve_consoles", url=url, port=port, goal=events, slots=slots[1]),
            *([Child("watch_consoles", port=port, number=number)] if number else []),
        )


async def serve_consoles(
    go: Callable[[], None], *, url: str, port: int, goal: int, slots: tuple[str, int, int]
) -> dict[str, Any]:
    """Serve the console until the others have delivered everything."""
    from redrive.operate.web import Server, redrive_asgi  # noqa: PLC0415 - what it needs is an extra

    shared = Slots(*slots)
    async with Redrive(url) as app:
        server = Server(redrive_asgi(app, open_for_viewing=True), "127.0.0.1", port)
        server.bind()
        go()
        async with server:
            while shared.tell(0) < goal:  # noqa: ASYNC110 - an Event does not reach another process
                await asyncio.sleep(_LOOK_SECONDS)
    return {"count": server.answered}


async def watch_consoles(go: Callable[[], None], *, port: int, number: int) -> dict[str, Any]:
    """Be so many consoles until the server goes; return how many pages they were given."""
    go()
    return {"count": sum(await asyncio.gather(*(_console(port) for _ in range(number))))}


async def _console(port: int) -> int:
    """Listen, and fetch the page whenever something has changed; bare sockets, to leave the cores to the others."""
    pages = 0
    listening, said = await asyncio.open_connection("127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said.write(_HEAD.format(path="/api/v1/changes", port=port, more="").encode())
    while line := await listening.readline():
        if not line.startswith(b"event: changed"):
            continue
        writer.write(_HEAD.format(path="/", port=port, more="X-Live: 1\r\n").encode())
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            break  # the server goes
        if not answer.startswith(b"HTTP/1.1 200"):
            raise BenchFailed(f"answered {answer[:100]!r}")
        pages += 1
    said.close()
    writer.close()
    return pages
