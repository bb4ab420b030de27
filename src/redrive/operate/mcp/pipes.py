"""Pipes: standard input and output for the protocol alone.

What prints by mistake (a module, a library) goes to standard error, where a client may show it; on the wire it
would be the end of the conversation.
"""

import os
import sys
import threading
from asyncio import Queue, get_running_loop
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Final

_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Wire:
    """What a client writes to, and reads from."""

    read_from: int
    write_to: TextIOWrapper

    async def lines(self) -> AsyncIterator[str]:
        """Read lines in a thread that nobody waits for: a read cannot be called off, and Ctrl-C must end the server."""
        loop, arrived = get_running_loop(), Queue[bytes]()
        ours = os.dup(self.read_from)  # the thread's own: it may read on when everybody else has gone

        def read() -> None:
            data = b"begin"
            while data:
                try:
                    data = os.read(ours, _CHUNK)
                except OSError:
                    data = b""
                if not data:
                    os.close(ours)
                try:
                    loop.call_soon_threadsafe(arrived.put_nowait, data)
                except RuntimeError:  # the loop is closed: the process ends
                    return

        threading.Thread(target=read, name="redrive-mcp-input", daemon=True).start()
        parts: list[bytes] = []
        while data := await arrived.get():
            *whole, rest = data.split(b"\n")
            for line in whole:
                yield b"".join([*parts, line]).decode("utf-8", "replace")
                parts = []
            parts.append(rest)
        if any(parts):
            yield b"".join(parts).decode("utf-8", "replace")


@contextmanager
def wire() -> Iterator[Wire]:
    """Take standard input and output; give them back at the end."""
    sys.stdout.flush()
    read_from, write_to = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    out = os.fdopen(write_to, "w", encoding="utf-8", newline="\n")
    try:
        yield Wire(read_from, out)
    finally:
        sys.stdout.flush()
        os.dup2(read_from, 0)
        os.close(read_from)
        os.dup2(write_to, 1)
        with suppress(OSError):  # the client may have left
            out.close()
