"""`redrive serve`: the HTTP side, until told to stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from redrive.app import Redrive
from redrive.errors import ConfigurationError, MissingDriver
from redrive.operate.auth import Role, Tokens
from redrive.operate.cli.outcome import BadInput, Code, say
from redrive.operate.cli.shared import existing, load_app, log_to_stderr, run, said_url, shown, url_from
from redrive.operate.cli.signals import on_signals

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8321
_NEXT_PORTS: Final = 10

HostOption = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65_535, help="On which port; 0 takes a free one.")]
OpenOption = Annotated[
    bool, typer.Option("--open", help="Let whoever is on this machine look without a token; looking is all.")
]


def serve(
    ctx: typer.Context,
    app: Annotated[
        str | None,
        typer.Argument(metavar="[APP|URL]", help="Your app as module:attribute, or only its database."),
    ] = None,
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
    open_: OpenOption = False,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trust-proxy", metavar="NETWORK", help="Believe the identity header of these peers: 10.0.0.0/8."
        ),
    ] = None,
    identity_header: Annotated[
        str, typer.Option("--identity-header", metavar="NAME", help="In which the proxy says who calls.")
    ] = "X-Forwarded-User",
    proxy_role: Annotated[
        Role, typer.Option("--proxy-role", help="The role of those whom the proxy names.")
    ] = Role.VIEWER,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", "-a", metavar="URL", help="Another database, for whole tasks; may be repeated."),
    ] = None,
) -> None:
    """Serve the API and the console. Everything needs a token; `redrive token create` makes one."""
    web = web_side()
    where = place(ctx, app)
    proxy = web.Proxy(tuple(trust_proxy), identity_header, proxy_role) if trust_proxy else None
    log_to_stderr("info")
    door = Door(host, port, open_for_viewing=open_, proxy=proxy, also=tuple(also or ()))
    raise typer.Exit(run(_serve(where, door)))


def web_side() -> Any:
    """Load what serves: its packages are an extra."""
    try:
        from redrive.operate import web  # noqa: PLC0415 - what it needs is an extra
    except ModuleNotFoundError as error:
        raise MissingDriver(f"serving needs the package {error.name}: pip install 'redrive[server]'") from error
    return web


def place(ctx: typer.Context, app: str | None) -> str | Redrive:
    """Decide what to serve: an app, or only its database."""
    if app is None or "://" in app:
        return app or url_from(ctx, None)
    loaded = load_app(app)
    if (said_url(ctx, None) or loaded.url) != loaded.url:
        raise BadInput(
            f"{app} works on {shown(loaded.url)}, and --url or REDRIVE_URL names another database: leave that out"
        )
    return loaded


async def _serve(place: str | Redrive, door: "Door") -> int:
    async with existing(place) as app:
        stopped = asyncio.Event()
        async with beside(app, door) as serving:

            def on_signal(count: int) -> None:
                stopped.set()
                if count > 1 and serving is not None:
                    serving.stop(at_once=True)

            with on_signals(on_signal):
                await stopped.wait()
    say("✓ stopped")
    return Code.DONE


# --- beside a worker, or alone ---


@dataclass(frozen=True, slots=True)
class Door:
    """Where to serve, and for whom; without a port, on ours or the next that is free."""

    host: str = DEFAULT_HOST
    port: int | None = None
    open_for_viewing: bool = False
    proxy: Any = None
    also: tuple[str, ...] = ()


@asynccontextmanager
async def beside(app: Redrive, door: Door | None) -> AsyncIterator[Any]:
    """Serve an open app while something else goes on."""
    if door is None:
        yield None
        return
    try:
        web = web_side()
    except MissingDriver as error:
        if door.port is not None:
            raise
        say(f"  Nothing is served: {error}")
        yield None
        return
    await web.check_bind(app, door.host, open_for_viewing=door.open_for_viewing, proxy=door.proxy)
    site = web.redrive_asgi(app, open_for_viewing=door.open_for_viewing, proxy=door.proxy, also=door.also)
    serving, address = bound(web, site, door)
    say(f"✓ {shown(app.url)} is served at {address}")
    if not door.open_for_viewing and door.proxy is None and not await Tokens(app).any_live():
        say("  There is no token yet: `redrive token create NAME --role operator`, or --open to look without.")
    async with serving:
        yield serving


def bound(web: Any, site: Any, door: Door) -> tuple[Any, str]:
    """Take a port; return the server and its address."""
    ports = [door.port] if door.port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _NEXT_PORTS), 0]
    for port in ports:
        serving = web.Server(site, door.host, port)
        try:
            return serving, serving.bind()
        except ConfigurationError:
            if port == ports[-1]:
                raise
    raise AssertionError  # pragma: no cover - the last port answers or raises
