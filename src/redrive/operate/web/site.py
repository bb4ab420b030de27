"""The site: one ASGI app over one ``Redrive``, to be served by itself or mounted below a path of yours.

Nothing is opened here: the first request does that, so that a mounted app needs no life cycle of its own, and a
database that is away when the server starts is told request by request.
"""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RedriveError
from redrive.operate.console.assets import ASSETS
from redrive.operate.console.routers import ROUTERS as CONSOLE
from redrive.operate.web import api, front, problems
from redrive.operate.web.changes import Changes
from redrive.operate.web.guard import BODY_BYTES, BODY_SECONDS, Guard, Limits, Proxy

__all__ = ["Proxy", "ROUTERS", "redrive_asgi"]

ROUTERS: Final[Sequence[APIRouter]] = (*api.ROUTERS, front.router, *CONSOLE)
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
) -> FastAPI:
    """Make an ASGI app of it.

    ``open_for_viewing``: whoever calls from this very machine may look without a token. ``proxy``: a reverse proxy that
    says who calls. Without either a token is needed for everything.
    """
    web = _Site(title="Redrive", openapi_url=None, docs_url=None, redoc_url=None)
    web.state.redrive = app
    limits = Limits(body_bytes, body_seconds)
    web.state.guard = Guard(app, is_open=open_for_viewing, proxy=proxy, limits=limits)
    web.state.changes = Changes(app)
    for router in ROUTERS:
        web.router.routes.extend(router.routes)
    web.mount("/static", ASSETS)
    _mount_others(web, app)
    for kind in (RedriveError, RequestValidationError, HTTPException, Exception):
        web.add_exception_handler(kind, problems.respond)
    return web


def _mount_others(web: FastAPI, app: Redrive) -> None:
    """Mount what the app brings along, where nothing of ours is."""
    ours = {getattr(route, "path", "").split("/")[1] for route in web.routes} - {""}
    for path, asgi in app.mounts.items():
        if path.split("/")[1] in ours:
            raise ConfigurationError(f"{path} belongs to redrive's own site: mount yours at another path")
        web.router.routes.insert(0, Mount(path, asgi))  # first: what is mounted may be hot, and ours are many


class _Site(FastAPI):
    """Puts the headers around everything, what FastAPI answers to an error nobody foresaw included."""

    def build_middleware_stack(self) -> ASGIApp:
        return _careful(super().build_middleware_stack())


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
