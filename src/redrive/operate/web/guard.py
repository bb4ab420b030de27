"""Guard: nothing is answered before it is known who asks, and that they may.

Every route names the permission it needs with ``@needs(…)``; one without is refused when the app is made. Order of
things: who (token, cookie, trusted proxy, or a server opened for viewing), whether the role allows it, for what could
come from a foreign page whether it does not, then the body within its limits, then the route.
"""

import asyncio
import ipaddress
import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RedriveError
from redrive.operate.auth import ANYBODY, Caller, Forbidden, ForeignOrigin, How, NotSignedIn, Permission, Role, Tokens
from redrive.operate.auth import proxied as vouched_for
from redrive.operate.web import answers
from redrive.operate.web.problems import BAD_REQUEST, INVALID, NOT_READY, TOO_LARGE, TOO_SLOW, Problem, respond
from redrive.payload import parse_strict

BODY_BYTES: Final = 8_388_608
BODY_SECONDS: Final = 30.0
COOKIE: Final = "redrive_session"
_SECRET: Final = frozenset({Permission.REVEAL, Permission.TOKENS})
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})

F = TypeVar("F", bound=Callable[..., Any])
Answer = Callable[[Request], Coroutine[Any, Any, Response]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def needs(permission: Permission) -> Callable[[F], F]:
    """Say what a route needs."""

    def mark(function: F) -> F:
        function.permission = permission  # type: ignore[attr-defined]
        return function

    return mark


def public(function: F) -> F:
    """Say that anybody may call a route: it tells nothing about events."""
    function.permission = None  # type: ignore[attr-defined]
    return function


def plain(function: F) -> F:
    """Say that a route reads its request itself: FastAPI's own reading costs as much as all the rest of a publish."""
    function.is_plain = True  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, slots=True)
class Proxy:
    """A reverse proxy that says who calls; believed only when it calls from one of these networks."""

    networks: Sequence[str]
    header: str = "X-Forwarded-User"
    role: Role = Role.VIEWER

    def parsed(self) -> tuple[Network, ...]:
        """Read the networks."""
        try:
            return tuple(ipaddress.ip_network(each) for each in self.networks)
        except ValueError as error:
            raise ConfigurationError(f"{error}: a trusted proxy is named by its network, like 10.0.0.0/8") from None


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a body may be, and how long it may take to come."""

    body_bytes: int = BODY_BYTES
    body_seconds: float = BODY_SECONDS


class Guard:
    """Finds out who calls, and whether they may."""

    def __init__(self, app: Redrive, *, is_open: bool, proxy: Proxy | None, limits: Limits) -> None:
        self._app = app
        self.tokens = Tokens(app)
        self.limits = limits
        self._is_open = is_open
        self._proxy = proxy
        self._networks = () if proxy is None else proxy.parsed()

    async def admit(self, request: Request, permission: Permission | None) -> Caller | None:
        """Let a request in, or say why not."""
        caller = None if permission is None else await self._known(request)
        if caller is not None and permission is not None and not caller.may(permission):
            raise Forbidden(f"{caller.name} is {_a(caller.role)}, and this needs the permission to {permission}")
        if request.method not in SAFE and (caller is None or caller.how is not How.TOKEN):
            check_origin(request)
        return caller

    async def _known(self, request: Request) -> Caller:
        try:
            caller = await self.identify(request)
            await self._app.open()
        except ConfigurationError as error:  # nothing that the caller has said: this cannot be worked with
            raise Problem(NOT_READY, str(error)) from error
        return caller

    async def identify(self, request: Request) -> Caller:
        """Say who calls."""
        shown = request.headers.get("authorization")
        if shown is not None:
            scheme, _, secret = shown.partition(" ")
            if scheme.lower() != "bearer" or not secret.strip():
                raise NotSignedIn("this is no bearer token: send `Authorization: Bearer rdv_…`")
            return await self.tokens.caller(secret.strip())
        cookie = request.cookies.get(COOKIE)
        if cookie is not None:
            try:
                return await self.tokens.signed_in(cookie)
            except NotSignedIn:
                if not self._is_open:
                    raise NotSignedIn("you were signed in, and are not any more: sign in again") from None
        named = None if self._proxy is None else request.headers.get(self._proxy.header)
        if named is not None and self._proxy is not None and self.trusts(request):
            return vouched_for(named, self._proxy.role)
        if self._is_open and is_local(request):
            return ANYBODY
        raise NotSignedIn("nothing says who you are: send `Authorization: Bearer rdv_…`")

    def trusts(self, request: Request) -> bool:
        """Say whether a request comes from a trusted proxy."""
        peer = None if request.client is None else _address(request.client.host)
        return peer is not None and any(
            peer in network for network in self._networks if network.version == peer.version
        )

    def is_encrypted(self, request: Request) -> bool:
        """Say whether the browser speaks https, to us or to the proxy before us."""
        if self.trusts(request) and "x-forwarded-proto" in request.headers:
            return request.headers["x-forwarded-proto"].strip().lower() == "https"
        return request.url.scheme == "https"


def check_origin(request: Request) -> None:
    """Insist on proof that a page of ours has sent this; a foreign page cannot forge these headers."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
        raise ForeignOrigin(f"the browser says that a {site} page has sent this")
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if origin is None:
        raise ForeignOrigin("nothing shows which page has sent this")
    if not host or _netloc(origin) != host.lower():
        raise ForeignOrigin(f"this was sent by a page of {origin[:200]}")


def is_local(request: Request) -> bool:
    """Say whether a request comes from this very machine, and not through a proxy or a rebound name."""
    peer = None if request.client is None else _address(request.client.host)
    host = _netloc("//" + request.headers.get("host", ""))
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    forwarded = any(each in request.headers for each in _FORWARDED)
    return peer is not None and peer.is_loopback and name in _LOOPBACK_NAMES and not forwarded


def _netloc(address: str) -> str:
    try:
        return urlsplit(address).netloc.lower()
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _a(role: Role) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


# --- routes ---


class Guarded(APIRoute):
    """A route that lets nobody in unasked."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if not hasattr(endpoint, "permission"):
            raise ConfigurationError(f"the route {path} does not say what it needs: @needs(Permission.…) or @public")
        self.permission: Permission | None = endpoint.permission
        extra = {**(options.get("openapi_extra") or {}), "x-permission": str(self.permission or "public")}
        super().__init__(path, endpoint, **{**options, "openapi_extra": extra})
        if getattr(endpoint, "is_plain", False):
            self.app = _plain_app(self._guarded(endpoint))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Stand before what FastAPI does, which would read the body first."""
        return self._guarded(super().get_route_handler())

    def _guarded(self, inner: Answer) -> Answer:
        async def safely(request: Request) -> Response:
            try:
                return await handle(request)
            except (RedriveError, HTTPException, RequestValidationError):
                raise
            except Exception as error:  # noqa: BLE001 - the caller is told, the log has the rest, the server goes on
                return await respond(request, error)

        async def handle(request: Request) -> Response:
            guard: Guard = request.app.state.guard
            caller = await guard.admit(request, self.permission)
            request.state.caller = caller
            if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
                raise Problem(INVALID, "an address of ours holds no NUL: no database has a place for it")
            if request.method in SAFE:
                return await inner(request)
            request._body = await _body(request, guard.limits)  # noqa: SLF001 - where starlette keeps what was read
            if not getattr(self.endpoint, "is_plain", False):
                _read_json(request)
            if caller is None or "idempotency-key" not in request.headers:
                return await inner(request)
            if self.permission in _SECRET:
                raise Problem(INVALID, "this answer holds a secret and is not kept: leave the Idempotency-Key out")
            return await answers.once(request.app.state.redrive, request, caller, inner)

        return safely


def _plain_app(handler: Answer) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


async def _body(request: Request, limits: Limits) -> bytes:
    """Read the body within its limits."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > limits.body_bytes:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Problem(BAD_REQUEST, "the caller left before the body was there")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limits.body_bytes:
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return b"".join(parts) if len(parts) > 1 else parts[0]
    except TimeoutError:
        raise Problem(TOO_SLOW, f"the body did not come within {limits.body_seconds:g} s") from None


def _read_json(request: Request) -> None:
    """Read a JSON body as strictly as a payload, before FastAPI does; what is no JSON, FastAPI says itself."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.endswith(("/json", "+json")):
        with suppress(json.JSONDecodeError, UnicodeDecodeError):
            request._json = parse_strict(request._body)  # noqa: SLF001 - where starlette keeps what was read


def _too_large(limits: Limits) -> Problem:
    return Problem(TOO_LARGE, f"the body has more than {limits.body_bytes:,} bytes")


# --- what routes ask for ---


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


async def _app(request: Request) -> Redrive:
    app: Redrive = request.app.state.redrive
    return app


async def _guard(request: Request) -> Guard:
    guard: Guard = request.app.state.guard
    return guard


CallerOf = Annotated[Caller, Depends(_caller)]
AppOf = Annotated[Redrive, Depends(_app)]
GuardOf = Annotated[Guard, Depends(_guard)]
