"""`redrive mcp`: agents as operators, over standard input and output, until the client is done."""

import asyncio
from typing import Annotated, Any

import typer

from redrive.app import Redrive
from redrive.errors import MissingDriver
from redrive.operate.cli.serve import place
from redrive.operate.cli.shared import existing, run
from redrive.operate.cli.signals import on_signals
from redrive.operate.mcp.pipes import Wire, wire


def mcp(
    ctx: typer.Context,
    app: Annotated[
        str | None,
        typer.Argument(metavar="[APP|URL]", help="Your app as module:attribute, or only its database."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Who it is on the trail; else as the client says.")
    ] = None,
) -> None:
    """Serve an agent over standard input and output (MCP). A client starts this itself; over HTTP, `serve` has it.

    An agent looks, replays one event, plans. Redrives of more than a few events wait for a person.
    """
    server = _server()
    with wire() as pipes:
        run(_serve(server, place(ctx, app), pipes, name))


def _server() -> Any:
    try:
        from redrive.operate.mcp import server  # noqa: PLC0415 - what it needs is an extra
    except ModuleNotFoundError as error:
        raise MissingDriver(f"agents need the package {error.name}: pip install 'redrive[mcp]'") from error
    return server


async def _serve(server: Any, where: str | Redrive, pipes: Wire, name: str | None) -> None:
    async with existing(where) as app:
        serving = asyncio.ensure_future(server.serve_pipes(app, pipes, name))

        def stop(_count: int) -> None:
            serving.cancel()

        with on_signals(stop):
            await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
