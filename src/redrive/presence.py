"""Presence: whether the process of a worker is still there.

A session names the process that holds it: the machine as it runs since it was started, the processes that it can see
there, the process's number, and when it began. Another worker that sees the same processes can tell whether that one is
gone, and need not wait for the end of its lease. In doubt a process is there: on another machine, in another
container, on a system that does not say; then the lease decides.

Next: ``store.contract.Store.sweep`` takes back what sessions of processes that are gone still hold.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_STATE, _START = 0, 19  # places in /proc/<pid>/stat behind the name: fields 3 and 22
_DEAD: Final = frozenset("ZXx")


class Presence:
    """Knows the processes of this machine, as far as this process can see them. Linux; elsewhere it knows none."""

    async def process(self) -> str | None:
        """Name this process so that others can tell whether it is gone."""
        return await asyncio.to_thread(self._process)

    async def gone(self, processes: Iterable[str]) -> set[str]:
        """Pick the processes that are certainly gone, with the children that they ran handlers in."""
        return await asyncio.to_thread(lambda: {each for each in processes if self._is_gone(each)})

    def _process(self) -> str | None:
        place, named = _place(), mark(os.getpid())
        return None if place is None or named is None else f"{place}:{named}"

    def _is_gone(self, process: str) -> bool:
        place, _, named = process.partition(":")
        pid = named.partition(":")[0]
        if place != _place() or not pid.isdigit():
            return False
        return not _is_there(int(pid), named) and not _has_children(named)


def _place() -> str | None:
    """Name the machine since its last start, and the processes that can be seen; None: it cannot be told."""
    try:
        parts = [
            (_PROC / "sys/kernel/random/boot_id").read_text().strip(),
            str((_PROC / "self/ns/pid").readlink()),
            socket.gethostname(),
        ]
    except OSError:
        return None
    with suppress(OSError):  # a process that sees another time would read other beginnings
        parts.append(str((_PROC / "self/ns/time").readlink()))
    with suppress(OSError):
        parts.append(Path("/etc/machine-id").read_text().strip())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def mark(pid: int) -> str | None:
    """Name a process by its number and its beginning; None: there is none, or it cannot be seen."""
    fields = _stat(pid)
    return None if fields is None else f"{pid}:{fields[_START]}"


def _is_there(pid: int, named: str) -> bool:
    """Whether a process runs, or may run for all that can be seen."""
    try:
        os.kill(pid, 0)  # asks only, and also of processes that /proc may hide
    except ProcessLookupError:
        return False
    except OSError:
        return True
    fields = _stat(pid)
    if fields is None:
        return True
    is_same = f"{pid}:{fields[_START]}" == named  # or another one has its number by now
    return is_same and (fields[_STATE] not in _DEAD or _has_threads(pid))


def _has_threads(pid: int) -> bool:
    """Whether other threads may run of a process whose first one has ended."""
    try:
        return len([*(_PROC / str(pid) / "task").iterdir()]) > 1
    except OSError:
        return True


def _has_children(named: str) -> bool:
    """Whether a child for handlers, which has its parent's name among its arguments, outlives it."""
    wanted = f"--parent={named}".encode()
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    return True
    return False


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("latin-1")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # a name may hold anything, spaces and brackets too
