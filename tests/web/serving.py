"""A real server on a free port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from redrive.operate.web import Server
from tests.waiting import until


@asynccontextmanager
async def served(web: FastAPI) -> AsyncIterator[str]:
    """Serve an app; yield its address."""
    server = Server(web, "127.0.0.1", 0)
    address = server.bind()
    async with server:
        await until(lambda: server.started)
        yield address
