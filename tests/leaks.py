"""What a test leaves behind: tasks, threads, file descriptors.

Things that are about to end get a moment to do so; what is still there then is a leak.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

GRACE_SECONDS = 30.0  # only a test that fails waits for so long
DESCRIPTORS = Path("/proc/self/fd")
SHARED: set[int] = set()
"""Descriptors that the first test to need them opens for all: no leaks of its own."""


def threads() -> set[str]:
    return {f"{t.name} ({t.ident})" for t in threading.enumerate() if not t.daemon}


def descriptors() -> set[str]:
    """Return what is open, or nothing where the system does not tell."""
    found = set()
    if DESCRIPTORS.exists():
        for entry in DESCRIPTORS.iterdir():
            number = int(entry.name)
            if number <= 2 or number in SHARED:  # pytest redirects the first, and puts them back when interrupted
                continue
            try:
                found.add(f"{entry.name} -> {entry.readlink()}")
            except FileNotFoundError:  # the one that listed the directory
                continue
    return found


def left_behind(look: Callable[[], set[str]], before: set[str]) -> set[str]:
    until = time.monotonic() + GRACE_SECONDS
    while left := look() - before:
        if time.monotonic() > until:
            return left
        gc.collect()
        time.sleep(0.02)
    return left


async def tasks_left_behind() -> set[str]:
    until = time.monotonic() + GRACE_SECONDS
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        if time.monotonic() > until:
            return {repr(task) for task in left}
        await asyncio.sleep(0.01)
    return set()
