"""A case API to try things with: it attaches, and can be told to fail in every way a real one does.

    python -m redrive.apps.evidence.fake_cases --port 8400 --journal cases.log --transient 0.1

Each attachment is a line of the journal, written before the answer, so that a process that is killed forgets none. Told
to, it answers 500 or 503, does not answer, attaches and loses the answer, or says that the case is gone. It is a bare
protocol, since it shares the machine with what it serves: about 25 µs a request.
"""

import argparse
import asyncio
import json
import os
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

BEHAVIOURS: Final = ("ok", "500", "503", "404", "403", "422", "timeout", "lose", "reset")
"""``timeout``: never answer; ``lose``: attach, then hang up; ``reset``: hang up without attaching."""

_TRANSIENT: Final = ("500", "503", "lose", "reset")
_REASONS: Final = {200: "OK", 201: "Created", 403: "Forbidden", 404: "Not Found", 422: "Unprocessable", 500: "Error",
                   503: "Unavailable"}  # fmt: skip


class FakeCases:
    """Cases and what is attached to them."""

    def __init__(self, *, journal: Path | None = None, transient: float = 0.0, honours_keys: bool = True) -> None:
        """``transient``: the share of artifacts whose first call fails; ``honours_keys=False``: attaches twice."""
        self.attached: Counter[str] = Counter()
        """How often each artifact was attached; more than once is what must not happen."""
        self.calls: Counter[str] = Counter()
        """Calls by method."""
        self.gone: set[str] = set()
        """Cases that were deleted."""
        self._told: dict[str, deque[str]] = {}
        self._always: deque[str] = deque()
        self._seen: set[str] = set()
        self._transient = round(transient * 10_000)
        self._honours_keys = honours_keys
        self._journal: int | None = None
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self._held: list[Callable[[], None]] | None = None
        if journal is not None:
            self._remember(journal)

    def _remember(self, journal: Path) -> None:
        if journal.exists():
            for line in journal.read_text(encoding="utf-8").split("\n"):
                if line:
                    self.attached[line] += 1
                    self._seen.add(line)
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def tell(self, key: str, *behaviours: str) -> None:
        """Say how the next calls for an artifact, or for any artifact of a case, shall end."""
        self._told.setdefault(key, deque()).extend(behaviours)

    def tell_all(self, *behaviours: str) -> None:
        """Say how the next calls shall end, whatever they are about."""
        self._always.extend(behaviours)

    def hold(self) -> None:
        """Keep every answer back until ``release``."""
        self._held = []

    def release(self) -> None:
        """Send the answers that were kept back."""
        held, self._held = self._held or [], None
        for reply in held:
            reply()

    def reply(self, send: Callable[[], None]) -> None:
        """Send an answer now, or when answers are released."""
        send() if self._held is None else self._held.append(send)

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Listen; return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for each in [*self._open]:
                each.hang_up()
            await self._server.wait_closed()
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None

    async def serve(self) -> None:
        """Answer until cancelled."""
        assert self._server is not None
        await self._server.serve_forever()

    # One request

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any] | str:
        """Decide; a text instead of an answer: ``timeout`` or ``reset``."""
        self.calls[method] += 1
        parts = path.strip("/").split("/")
        if method == "POST" and parts == ["told"]:
            for key, behaviours in json.loads(body or b"{}").items():
                self.tell(key, *behaviours)
            return 200, {}
        if method == "GET" and parts == ["attached"]:
            return 200, {"attached": len(self.attached), "twice": sum(n > 1 for n in self.attached.values())}
        if len(parts) < 3 or parts[0] != "cases" or parts[2] != "attachments":  # noqa: PLR2004
            return 404, {"error": "NO_SUCH_ROUTE"}
        case_id = parts[1]
        if case_id in self.gone:
            return 404, {"error": "CASE_NOT_FOUND"}
        if method == "GET":
            return (200, {}) if self.attached[parts[-1]] else (404, {"error": "ATTACHMENT_NOT_FOUND"})
        return self._attach(case_id, headers.get("idempotency-key", ""))

    def _attach(self, case_id: str, artifact_id: str) -> tuple[int, Any] | str:
        behaviour = self._behaviour(case_id, artifact_id)
        if behaviour in ("timeout", "reset"):
            return behaviour
        if behaviour == "404":
            self.gone.add(case_id)
            return 404, {"error": "CASE_NOT_FOUND"}
        if behaviour not in ("ok", "lose"):
            return int(behaviour), {"error": "CORRUPTED_FILE" if behaviour == "422" else f"told to answer {behaviour}"}
        known = self.attached[artifact_id] > 0
        if not (known and self._honours_keys):
            self.attached[artifact_id] += 1
            if self._journal is not None:
                os.write(self._journal, artifact_id.encode() + b"\n")
        return "reset" if behaviour == "lose" else (200 if known else 201, {"attachment_id": artifact_id})

    def _behaviour(self, case_id: str, artifact_id: str) -> str:
        for told in (self._told.get(artifact_id), self._told.get(case_id), self._always):
            if told:
                return told.popleft()
        if not self._transient or artifact_id in self._seen:
            return "ok"
        self._seen.add(artifact_id)
        dice = zlib.crc32(artifact_id.encode())
        return _TRANSIENT[dice // 10_000 % len(_TRANSIENT)] if dice % 10_000 < self._transient else "ok"


class _Connection(asyncio.Protocol):
    """One keep-alive connection; requests come one after the other."""

    def __init__(self, cases: FakeCases) -> None:
        self._cases = cases
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._cases._open.add(self)  # noqa: SLF001 - two parts of one server

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a part of the protocol
        self._cases._open.discard(self)  # noqa: SLF001 - as above

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            whole = self._body(headers, end + 4)
            if whole is None:
                return
            body, self._buffer = whole
            method, path, _ = first.split(" ", 2)
            self._cases.reply(partial(self._reply, self._cases.answer(method, path, headers, body)))

    def _body(self, headers: dict[str, str], start: int) -> tuple[bytes, bytes] | None:
        """Take a body off the buffer, of a given length or in chunks; ``None`` while it is not all there."""
        if headers.get("transfer-encoding") != "chunked":
            stop = start + int(headers.get("content-length", 0))
            return (self._buffer[start:stop], self._buffer[stop:]) if len(self._buffer) >= stop else None
        body = b""
        while (end := self._buffer.find(b"\r\n", start)) >= 0:
            size = int(self._buffer[start:end], 16)
            if len(self._buffer) < end + 4 + size:
                return None
            body += self._buffer[end + 2 : end + 2 + size]
            start = end + 4 + size
            if size == 0:
                return body, self._buffer[start:]
        return None

    def _reply(self, answer: tuple[int, Any] | str) -> None:
        assert self._transport is not None
        if answer == "reset":
            self._transport.abort()
        elif not isinstance(answer, str):
            code, said = answer
            text = json.dumps(said).encode()
            head = f"HTTP/1.1 {code} {_REASONS.get(code, '')}\r\nContent-Type: application/json\r\n"
            self._transport.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)


async def _main(arguments: argparse.Namespace) -> None:
    cases = FakeCases(journal=arguments.journal, transient=arguments.transient, honours_keys=not arguments.ignores_keys)
    port = await cases.start(arguments.port)
    print(f"cases at http://127.0.0.1:{port}", flush=True)  # noqa: T201 - a command prints
    await cases.serve()


def main(arguments: Iterable[str] | None = None, run: Callable[[Any], Any] = asyncio.run) -> None:
    """Run it until it is told to stop."""
    parser = argparse.ArgumentParser(description="A case API to try things with.")
    parser.add_argument("--port", type=int, default=8400)
    parser.add_argument("--journal", type=Path, help="keep what is attached in this file")
    parser.add_argument("--transient", type=float, default=0.0, help="share of artifacts whose first call fails")
    parser.add_argument("--ignores-keys", action="store_true", help="attach again what comes again")
    run(_main(parser.parse_args(None if arguments is None else [*arguments])))


if __name__ == "__main__":
    main()
