"""The site: one ASGI app over one ``Redrive``, to be served by itself or mounted below a path of yours.

Nothing is opened here: the first request does that, so that a mounted app needs no life cycle of its own, and a
database that is away when the server starts is told request by request.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RedriveError
from redrive.operate.console.assets import ASSETS
from redrive.operate.console.routers import ROUTERS as CONSOLE
from redrive.operate.web import agents, api, front, problems
from redrive.operate.web.api.publish import together
from redrive.operate.web.changes import Changes
from redrive.operate.web.guard import BODY_BYTES, BODY_SECONDS, Guard, Limits, Proxy
from redrive.operate.web.shared import Shared

__all__ = ["Proxy", "ROUTERS", "redrive_asgi"]

ROUTERS: Final[Sequence[APIRouter]] = (*api.ROUTERS, agents.router, front.router, *CONSOLE)
"""Every route there is. The publish route is the hottest, so the API comes first."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def redrive_asgi(
    app: Redrive,
    *,
    open_for_viewing: bool = False,
    proxy: Proxy | None = None,
    body_bytes: int = BODY_BYTES,
    body_seconds: float = BODY_SECONDS,
    also: Sequence[str] = (),
) -> FastAPI:
    """Make an ASGI app of it.

    ``open_for_viewing``: whoever calls from this very machine may look without a token. ``proxy``: a reverse proxy that
    says who calls. Without either a token is needed for everything. ``also``: databases of other services or sites,
    whose events are shown with ours where a whole task is.
    """
    web = _Site(title="Redrive", openapi_url=None, docs_url=None, redoc_url=None)
    web.state.redrive = app
    web.state.also = tuple(also)
    limits = Limits(body_bytes, body_seconds)
    web.state.guard = Guard(app, is_open=open_for_viewing, proxy=proxy, limits=limits)
    web.state.changes = Changes(app)
    web.state.together = together(app)
    for router in ROUTERS:
        web.router.routes.extend(router.routes)
    web.mount("/static", ASSETS)
    web.state.mounts = _checked_mounts(web, app)
    for kind in (RedriveError, RequestValidationError, HTTPException, Exception):
        web.add_exception_handler(kind, problems.respond)
    return web


def _checked_mounts(web: FastAPI, app: Redrive) -> dict[str, ASGIApp]:
    """Take what the app brings along; refuse it where something of ours is."""
    ours = {getattr(route, "path", "").split("/")[1] for route in web.routes} - {""}
    for path in app.mounts:
        if path.split("/")[1] in ours:
            raise ConfigurationError(f"{path} belongs to redrive's own site: mount yours at another path")
    return app.mounts


class _Site(FastAPI):
    """Puts the headers around everything, what FastAPI answers to an error nobody foresaw included."""

    def build_middleware_stack(self) -> ASGIApp:
        changes: Changes = self.state.changes
        pages = Shared(super().build_middleware_stack(), self.state.redrive.clock, lambda: changes.told)
        return _careful(_beside(self.state.mounts, pages))


def _beside(mounts: Mapping[str, ASGIApp], ours: ASGIApp) -> ASGIApp:
    """Let what the app brings along answer below its paths, before any route of ours is looked at: it may be hot."""
    longest_first = sorted(mounts.items(), reverse=True)

    async def site(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        for place, theirs in longest_first:
            if path.startswith(place) and path[len(place) : len(place) + 1] in {"", "/"}:
                root = scope.get("root_path", "") + place
                # Its addresses begin there, too.
                await _safely(theirs, {**scope, "app_root_path": root, "root_path": root}, receive, send)
                return
        await ours(scope, receive, send)

    return site


async def _safely(theirs: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer for an app that fails before it has begun to answer."""
    has_begun = False

    async def noticed(message: Message) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        await theirs(scope, receive, noticed)
    except Exception as error:
        if has_begun or scope["type"] != "http":
            raise
        await (await problems.respond(Request(scope), error))(scope, receive, send)


def _careful(app: ASGIApp) -> ASGIApp:
    """Add to every answer what tells a browser to be careful with it."""
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in HEADERS.items()]
    unkept = (b"cache-control", b"no-store")

    async def site(scope: Scope, receive: Receive, send: Send) -> None:
        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                kept = any(name == unkept[0] for name, _ in headers)
                message["headers"] = [*headers, *raw] if kept else [*headers, *raw, unkept]
            await send(message)

        await app(scope, receive, careful if scope["type"] == "http" else send)

    return site
