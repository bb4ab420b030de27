"""Agents over HTTP: MCP below ``/mcp``, behind the same guard as everything else."""

import asyncio
import importlib
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.errors import MissingDriver
from redrive.operate.auth import Caller, Forbidden, Permission, Role
from redrive.operate.web.guard import Guarded, check_origin, needs, plain

router = APIRouter(route_class=Guarded)

_TAKEN: Final = frozenset({Role.AGENT, Role.VIEWER})


@router.post("/mcp", include_in_schema=False)
@needs(Permission.LOOK)
@plain
async def mcp(request: Request) -> Response:
    """Answer an agent. There are no sessions and no streams: a request holds everything, and so does its answer."""
    caller: Caller = request.state.caller
    if caller.role not in _TAKEN:
        raise Forbidden(
            f"{caller.name} is {caller.role}, which is more than an agent gets: give it a token of its own with "
            "`redrive token create NAME --role agent`"
        )
    if "origin" in request.headers or "sec-fetch-site" in request.headers:  # a browser, whatever token its page has
        check_origin(request)
    server = await asyncio.to_thread(_server)  # the first import takes a second
    answered: Response = await server.answer(request.app.state.redrive, caller, request)
    return answered


def _server() -> Any:
    try:
        return importlib.import_module("redrive.operate.mcp.server")
    except ModuleNotFoundError as error:
        raise MissingDriver(f"agents need the package {error.name}: pip install 'redrive[mcp]'") from error
