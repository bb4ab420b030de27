"""Clock: the only place that touches time, sleep and randomness.

Everything else asks a ``Clock``, so a test (or a simulation) can hand in one where nothing happens by
itself: ``VirtualClock`` moves only when told to, and its dice and ids follow from the seed.

On PostgreSQL the server's own clock decides what is due; ``database_now()`` is then ``None``.
"""

import asyncio
import base64
import os
import random
import secrets
import threading
import time
import uuid
import weakref
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from redrive.duration import parse_duration
from redrive.errors import ConfigurationError
from redrive.instant import from_micros, to_micros

__all__ = ["Clock", "SystemClock", "VirtualClock"]

_VERSION_AND_VARIANT = 7 << 76 | 2 << 62
_RUN_OVER = 1 << 62  # the lower bit of the variant: set only by a carry out of the random part
_SECRET_BYTES = 32
_UUID = uuid.UUID
_UNKNOWN = uuid.SafeUUID.unknown
_new = object.__new__
_set = object.__setattr__  # a UUID refuses setattr


class Clock(Protocol):
    """What the rest of Redrive may know about time and chance."""

    def now(self) -> datetime:
        """Return the present instant, in UTC."""
        ...

    def database_now(self) -> datetime | None:
        """Return the instant the database shall take for now; ``None``: its own clock decides."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never step back, for measuring spans."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for so long."""
        ...

    def pause(self, seconds: float) -> None:
        """Block this thread for so long."""
        ...

    def random(self) -> float:
        """Throw the dice: at least 0, below 1."""
        ...

    def new_id(self) -> uuid.UUID:
        """Return a UUIDv7 greater than every earlier one of this clock."""
        ...

    def new_secret(self) -> str:
        """Return 256 bits that nobody can guess, as text that fits a header or a URL."""
        ...


class SystemClock:
    """The clock and the entropy of the operating system."""

    def __init__(self) -> None:
        self._dice = random.Random()
        self._ids = _Ids(self._dice)
        os.register_at_fork(after_in_child=partial(_reseed, weakref.ref(self)))

    def now(self) -> datetime:
        return datetime.now(UTC)

    def database_now(self) -> datetime | None:
        return None

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def random(self) -> float:
        return self._dice.random()

    def new_id(self) -> uuid.UUID:
        return self._ids.next(time.time_ns() // 1_000_000)

    def new_secret(self) -> str:
        return secrets.token_urlsafe(_SECRET_BYTES)

    def reseed(self) -> None:
        """Begin with new dice: a forked child would otherwise make the ids its parent makes."""
        self._dice.seed()
        self._ids = _Ids(self._dice)  # the old lock may be held by a thread the child does not have


class VirtualClock:
    """A clock that stands still until it is told to move; sleeping only lets others run."""

    def __init__(self, start: datetime | None = None, seed: int = 0, *, new_ids: bool = False) -> None:
        self._micros = _micros(start or datetime(2030, 1, 1, tzinfo=UTC))
        self._elapsed = 0  # in microseconds, like the time itself, so that the two never drift apart
        self._dice = random.Random(seed)
        self._ids = _Ids(random.Random() if new_ids else self._dice)

    def advance(self, span: float | str | timedelta) -> None:
        """Let time pass: ``advance(30)``, ``advance("5m")``."""
        passed = round(parse_duration(span) * 1_000_000)
        self._elapsed += passed
        self._micros += passed

    def set(self, instant: datetime) -> None:
        """Set the wall clock, back or forth, as an administrator would; no time passes."""
        self._micros = _micros(instant)

    def now(self) -> datetime:
        return from_micros(self._micros)

    def database_now(self) -> datetime | None:
        return self.now()

    def monotonic(self) -> float:
        return self._elapsed / 1_000_000

    async def sleep(self, seconds: float) -> None:  # noqa: ARG002 - virtual time does not pass by waiting
        await asyncio.sleep(0)

    def pause(self, seconds: float) -> None:  # noqa: ARG002 - as above
        time.sleep(0)

    def random(self) -> float:
        return self._dice.random()

    def new_id(self) -> uuid.UUID:
        return self._ids.next(self._micros // 1_000)

    def new_secret(self) -> str:
        return base64.urlsafe_b64encode(self._dice.randbytes(_SECRET_BYTES)).rstrip(b"=").decode("ascii")


class _Ids:
    """UUIDv7 in strictly increasing order.

    A later millisecond starts at a random number. Within one, or when time steps back, the number grows by a
    random stride, so that ids stay hard to guess; when it runs over, the next millisecond is borrowed.
    """

    __slots__ = ("_bits", "_last", "_lock", "_milliseconds")

    def __init__(self, dice: random.Random) -> None:
        self._bits = dice.getrandbits
        self._last = 0
        self._milliseconds = -1
        self._lock = threading.Lock()

    def next(self, milliseconds: int) -> uuid.UUID:
        with self._lock:
            number = self._last + self._bits(32) + 1
            if milliseconds > self._milliseconds:
                number = self._start(milliseconds)
            elif number & _RUN_OVER:
                number = self._start(self._milliseconds + 1)
            self._last = number
        # UUID(int=...) checks what we know: 0.8 µs instead of 0.4.
        made = _new(_UUID)
        _set(made, "int", number)
        _set(made, "is_safe", _UNKNOWN)
        return made

    def _start(self, milliseconds: int) -> int:
        self._milliseconds = milliseconds
        return milliseconds << 80 | _VERSION_AND_VARIANT | self._bits(12) << 64 | self._bits(61)


def _micros(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise ConfigurationError(f"{instant!r} has no time zone; pass an aware datetime (tzinfo=datetime.UTC)")
    return to_micros(instant)


def _reseed(ref: weakref.ref[SystemClock]) -> None:
    clock = ref()
    if clock is not None:
        clock.reseed()
