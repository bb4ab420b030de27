"""Signals: how a command that works for long is told to stop."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SAME_SIGNAL: Final = 0.3


@contextmanager
def on_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Call ``act`` with the number of signals so far. Some senders send one twice; that is no second wish."""
    loop = asyncio.get_running_loop()
    count, heard_at = 0, 0.0

    def heard() -> None:
        nonlocal count, heard_at
        now = loop.time()
        if count == 0 or now - heard_at > _SAME_SIGNAL:
            count, heard_at = count + 1, now
            act(count)

    for each in _SIGNALS:
        loop.add_signal_handler(each, heard)
    try:
        yield
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
