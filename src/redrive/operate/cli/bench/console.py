"""The console as a browser asks for it, without the browser: every page whole, from the request to the last byte."""

from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from functools import partial
from typing import Any

from redrive.app import Redrive
from redrive.group import Group
from redrive.operate.cli.bench.measure import BenchFailed

_PLACES = (
    "/", "/failures", "/failures?state=new", "/events", "/events?q=status:failed", "/events?q=status:pending",
    "/redrives", "/keys", "/dependencies", "/workers", "/policies", "/audit", "/problems",
    "/attention", "/batches", "/tasks?id=corr-777", "/reservations", "/transports", "/schedules", "/reconcilers",
)  # fmt: skip
_OK = 200


async def console_pages(app: Redrive, largest: Group) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
    """Name the pages, and how each is asked for."""
    from redrive.operate.web import redrive_asgi  # noqa: PLC0415 - what it needs is an extra

    web = redrive_asgi(app, open_for_viewing=True)
    own = [f"/failures/{largest.fingerprint}", f"/events/{largest.sample_event_id}"]
    plans = [f"/redrives/{each.id}" for each in await app.redrivings(limit=1)]
    named = dict(zip([*_PLACES, "/failures/<group>", "/events/<id>", "/redrives/<id>"], [*_PLACES, *own, *plans]))  # noqa: B905
    pages: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        f"console {name}": partial(_get, web, path) for name, path in named.items()
    }
    for ask in pages.values():  # a template is read the first time that it is needed after a start
        await ask()
    return pages


async def _get(web: Any, path: str) -> None:
    place, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": place, "raw_path": place.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"localhost"), (b"accept", b"text/html"), (b"accept-encoding", b"gzip")],
        "client": ("127.0.0.1", 5_000), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await web(scope, receive, send)
    if statuses != [_OK]:
        raise BenchFailed(f"the console answered {statuses} to {path}")
