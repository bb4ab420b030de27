"""The door: a real server on a free port of this machine, its log in a file, and requests to it byte by byte."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redrive.operate.auth import Role
from tests import warm
from tests.lab.dirt import Request
from tests.lab.rich import Known
from tests.operate.helpers import environment
from tests.waiting import wait_until

_LISTENS = re.compile(rb"http://([\d.]+):(\d+)")
_CONTINUE = re.compile(rb"^HTTP/1\.[01] 100 .*?\r\n\r\n", re.DOTALL)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_WRONG = (
    b"Traceback",
    b"request failed",
    b"Exception in ASGI",
    b"Task exception",
    b"never awaited",
    b"never retrieved",
)
_ANSWERS = frozenset(
    {200, 201, 202, 204, 303, 304, 307, 400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 415, 422, 428, 431}
)
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, as far as it is judged."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Door:
    """A server, and what it has written to its log."""

    host: str
    port: int
    known: Known
    log: Path
    _read: int = field(default=0)

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(self, request: Request) -> Answer | None:
        """Send bytes and read the answer to its end; none when the server closed without one."""
        role = Role.AGENT if request.target.startswith("/mcp") else Role.ADMIN
        sent = request.to_bytes(self.known.tokens[role])
        found = b""
        with socket.create_connection((self.host, self.port), timeout=_SECONDS) as line:
            try:
                line.sendall(sent)
                if request.raw or _is_unfinished(request):
                    line.shutdown(socket.SHUT_WR)
                while part := line.recv(65_536):
                    found += part
            except (ConnectionError, BrokenPipeError):
                pass  # it had enough of us
        found = _CONTINUE.sub(b"", found)
        status = _STATUS.match(found)
        if status is None:
            return None
        head, _, body = found.partition(b"\r\n\r\n")
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        headers = {name.decode("latin-1").lower(): value.strip().decode("latin-1") for name, _, value in lines}
        return Answer(int(status[1]), headers, body)

    def wrong_with(self, request: Request) -> str | None:
        """Send it, and say what kind of violation its answer is, if it is one."""
        try:
            answer = self.ask(request)
        except TimeoutError:
            return "no answer"
        if answer is None:
            return None if request.raw or _is_unfinished(request) else "no answer"
        if answer.status >= 500:
            return "5xx"
        return None if _is_documented(request, answer) else "undocumented answer"

    def lives(self) -> bool:
        """Say whether it answers the next request."""
        answer = self.ask(Request("healthy", target="/healthz"))
        return answer is not None and answer.status == 200

    def complaints(self) -> list[str]:
        """Return what its log says since the last time that no log should say."""
        text = self.log.read_bytes()[self._read :]
        self._read += len(text)
        return [line.decode("utf-8", "replace") for line in text.splitlines() if any(each in line for each in _WRONG)]


def _is_unfinished(request: Request) -> bool:
    """Say whether the server has to wait for more than was sent, and may close without a word when nothing comes."""
    named = {name.lower() for name, _ in request.headers}
    return bool(named & {"content-length", "transfer-encoding", "upgrade", "connection"})


def _is_documented(request: Request, answer: Answer) -> bool:
    if answer.status not in _ANSWERS:
        return False
    kind = answer.headers.get("content-type", "")
    if answer.status < 400 or not request.target.startswith("/api/") or b"Invalid HTTP request" in answer.body:
        return True
    if request.method == "HEAD":
        return True
    if not kind.startswith("application/problem+json"):
        return False
    return {"type", "title", "status", "detail", "next"} <= set(json.loads(answer.body))


@contextmanager
def door_to(known: Known, folder: Path) -> Iterator[Door]:
    """Serve a database for the length of a block."""
    log = folder / "server.log"
    with log.open("wb") as file:
        process = warm.python(
            ["-m", "redrive.operate.cli", "serve", known.url, "--port", "0"],
            cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
        )  # fmt: skip
    try:
        wait_until(lambda: _LISTENS.search(log.read_bytes()) is not None or process.poll() is not None)
        said = _LISTENS.search(log.read_bytes())
        assert said is not None, log.read_text(errors="replace")
        yield Door(said[1].decode(), int(said[2]), known, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
