"""The site: one ASGI app over one ``Redrive``, to be served by itself or mounted below a path of yours.

Nothing is opened here: the first request does that, so that a mounted app needs no life cycle of its own, and a
database that is away when the server starts is told request by request.
"""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.app import Redrive
from redrive.errors import RedriveError
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
    web = FastAPI(title="Redrive", openapi_url=None, docs_url=None, redoc_url=None)
    web.state.redrive = app
    limits = Limits(body_bytes, body_seconds)
    web.state.guard = Guard(app, is_open=open_for_viewing, proxy=proxy, limits=limits)
    web.state.changes = Changes(app)
    for router in ROUTERS:
        web.router.routes.extend(router.routes)
    web.mount("/static", ASSETS)
    for kind in (RedriveError, RequestValidationError, HTTPException, Exception):
        web.add_exception_handler(kind, problems.respond)
    web.add_middleware(_Headers)
    return web


class _Headers:
    """Add to every answer what tells a browser to be careful with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, careful)


def openapi(web: FastAPI) -> dict[str, Any]:
    """Describe the API (OpenAPI 3.1)."""
    return api.described(web.routes)
