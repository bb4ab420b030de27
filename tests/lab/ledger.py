"""The ledger: what the outside knows, kept outside the system: every operation and every committed effect, a line each.

Append-only and synced, so that it survives the kill of whoever writes it; several processes may write at once (a line
is one ``write`` to a file opened for appending).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Answer = Literal["invoke", "ok", "fail", "unknown"]


class Ledger:
    """Lines of JSON in a file."""

    def __init__(self, path: str | Path, *, is_synced: bool = True) -> None:
        self.path = Path(path)
        self._synced = is_synced
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, answer: Answer, **facts: Any) -> None:
        """Write down that an operation was begun, or how it was answered."""
        self._write({"what": what, "answer": answer, **facts})

    def effect(self, key: str, **facts: Any) -> None:
        """Write down an effect that was committed."""
        self._write({"what": "effect", "answer": "ok", "key": key, **facts})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")
        if self._synced:
            os.fdatasync(self._file)


@contextmanager
def ledger_at(path: str | Path, *, is_synced: bool = True) -> Iterator[Ledger]:
    """Open a ledger for the length of a block."""
    made = Ledger(path, is_synced=is_synced)
    try:
        yield made
    finally:
        made.close()


def lines(path: str | Path) -> Iterable[dict[str, Any]]:
    """Read it back; a last line that a kill cut off was never said."""
    if not Path(path).exists():
        return
    for line in Path(path).read_bytes().split(b"\n"):
        if line:
            try:
                yield json.loads(line)
            except ValueError:
                continue
