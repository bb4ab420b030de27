"""Server: an ASGI app of ours behind a port, until told to stop.

An address that others can reach is not opened while nobody could prove who they are.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import uvicorn
from fastapi import FastAPI

from redrive.app import Redrive
from redrive.errors import ConfigurationError, Refused
from redrive.logs import log
from redrive.operate.auth import Tokens
from redrive.operate.web.guard import Proxy

_STOP_SECONDS: Final = 10
_MOST_AT_ONCE: Final = 2_000
_BACKLOG: Final = 2_048


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


async def check_bind(app: Redrive, host: str, *, open_for_viewing: bool, proxy: Proxy | None) -> None:
    """Refuse to open a door that nobody guards."""
    if open_for_viewing and not is_loopback(host):
        raise Refused(
            f"--open lets everybody look who can reach {host}: leave it out and use tokens, or bind to 127.0.0.1"
        )
    if is_loopback(host) or proxy is not None:
        return
    if not await Tokens(app).any_live():
        raise Refused(
            f"{host} can be reached by others, and there is no token yet: make one with "
            "`redrive token create NAME --role operator`, or bind to 127.0.0.1"
        )


class Server:
    """One server: it serves as long as it is entered, and leaves when running requests have been answered."""

    def __init__(self, web: FastAPI, host: str, port: int) -> None:
        self._web = web
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._running: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            web, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=True,
            proxy_headers=False, timeout_graceful_shutdown=_STOP_SECONDS, limit_concurrency=_MOST_AT_ONCE,
            backlog=_BACKLOG, ws="none",
        )  # fmt: skip
        self._server = _Uvicorn(config)

    def bind(self) -> str:
        """Take the port; return the address for a browser."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # asyncio sends at once (TCP_NODELAY) only where the protocol is named: else each answer may wait 40 ms.
        place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((self._host.strip("[]"), self._port))
            place.listen(_BACKLOG)  # whoever is told the address may call at once
        except OSError as error:
            place.close()
            raise ConfigurationError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}; choose another with --port"
            ) from None
        self._socket = place
        host = f"[{self._host.strip('[]')}]" if family == socket.AF_INET6 else self._host
        return f"http://{host}:{place.getsockname()[1]}"

    async def __aenter__(self) -> Self:
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        self._running = asyncio.create_task(self._server.serve([self._socket]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running is not None
        assert self._socket is not None
        self.stop()
        try:
            await self._running
        finally:
            self._socket.close()

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more requests; those that wait for news are let go."""
        if not self._server.should_exit:
            log.info("server stopping")
        self._web.state.changes.stop()
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or at_once

    @property
    def answered(self) -> int:
        """How many requests have been answered."""
        return self._server.server_state.total_requests

    @property
    def started(self) -> bool:
        return self._server.started


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone: whoever runs it knows what they mean."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
