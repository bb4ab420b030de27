"""Lock: a reservation that is renewed for as long as a block of code runs.

It is renewed at a third of its time to live. A process that dies renews nothing, and the lock runs out by itself. One
that lives but cannot reach the database for so long is told: the block is cancelled, and ends with ``ReservationLost``.
What is written by a block that does not hear of it (it blocks the event loop, or the machine slept) is refused by
``lock.guard`` in the transaction of the write: that is the promise, the renewals are only a convenience.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from redrive.clock import Clock
from redrive.duration import span
from redrive.errors import ReservationLost, StoreUnavailable, Taken
from redrive.logs import log
from redrive.reserve import Reservation, Reservations, Span
from redrive.store.base import Store

PREFIX: Final = "lock:"
"""How the resources of locks begin."""

_RENEWALS: Final = 3  # in each time to live
_RELEASE_SECONDS: Final = 5.0


class Lock:
    """A lock that is held; ``lost`` is set when it is no longer."""

    def __init__(self, name: str, reservation: Reservation, seconds: float, clock: Clock) -> None:
        self.name = name
        self.reservation = reservation
        self.lost = asyncio.Event()
        self.why: str | None = None
        """Why it was lost."""
        self._seconds = seconds
        self._clock = clock

    @property
    def token(self) -> int:
        return self.reservation.token

    async def guard(self, connection: Any) -> None:
        """Make the transaction of your own connection stand or fall with this lock."""
        await self.reservation.guard(connection)

    async def keep(self, block: asyncio.Task[Any]) -> None:
        """Renew until cancelled; cancel the block when that is over."""
        while self.why is None:
            await self._clock.sleep(self._seconds / _RENEWALS)
            await self._renew()
        log.error("lock lost", lock=self.name, why=self.why)
        self.lost.set()
        block.cancel()

    async def _renew(self) -> None:
        """Renew once, trying again until the time is over: it is counted from before the last renewal was asked for."""
        ends = self.reservation.asked_at + self._seconds
        while (left := ends - self._clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self.reservation.renew(self._seconds)
            except ReservationLost as error:
                self.why = str(error)
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("lock not renewed, trying again", lock=self.name, error=str(error))
                await self._clock.sleep(self._seconds / _RENEWALS / 4)
                continue
            return
        self.why = f"lock {self.name!r} ran out: it could not be renewed in time"

    async def release(self) -> None:
        """Give it back; one that cannot be given back runs out."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.reservation.release()
        except ReservationLost as error:
            self.why = str(error)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("lock not released, it runs out by itself", lock=self.name, error=str(error))


class Locks:
    """``app.locks``: one process at a time."""

    def __init__(self, ready: Callable[[], Awaitable[Store]], reservations: Reservations) -> None:
        self._ready = ready
        self._reservations = reservations

    @asynccontextmanager
    async def hold(
        self, name: str, *, ttl: Span = "30s", wait: Span | None = None, owner: str = ""
    ) -> AsyncIterator[Lock]:
        """Hold a lock for as long as the block runs; ``Taken`` when somebody has it, or still has after ``wait``.

        When it is lost all the same, the block is cancelled and ends with ``ReservationLost``.
        """
        async with self._kept(name, await self._take(name, ttl, wait, owner), ttl) as lock:
            yield lock

    @asynccontextmanager
    async def try_hold(self, name: str, *, ttl: Span = "30s", owner: str = "") -> AsyncIterator[Lock | None]:
        """Hold a lock, or enter the block with ``None`` when somebody has it."""
        reservation = None
        with suppress(Taken):
            reservation = await self._take(name, ttl, None, owner)
        if reservation is None:
            yield None
            return
        async with self._kept(name, reservation, ttl) as lock:
            yield lock

    async def _take(self, name: str, ttl: Span, wait: Span | None, owner: str) -> Reservation:
        who = owner or f"{socket.gethostname()}:{os.getpid()}"
        return await self._reservations.take(PREFIX + name, owner=who, ttl=ttl, wait=wait)

    @asynccontextmanager
    async def _kept(self, name: str, reservation: Reservation, ttl: Span) -> AsyncIterator[Lock]:
        lock = Lock(name, reservation, span(ttl, "ttl"), (await self._ready()).clock)
        block = asyncio.current_task()
        assert block is not None
        cancelling = block.cancelling()
        keeping = asyncio.create_task(lock.keep(block), name=f"redrive-lock-{name}")
        try:
            try:
                yield lock
            finally:
                keeping.cancel()
                await asyncio.wait((keeping,))
                if lock.why is None:
                    await lock.release()
        except BaseException as error:
            # Our own cancel ends here, unless somebody else wants the task to end too.
            if lock.lost.is_set() and block.uncancel() <= cancelling and isinstance(error, asyncio.CancelledError):
                raise ReservationLost(lock.why) from None
            raise
        if lock.lost.is_set():
            block.uncancel()
        if lock.why is not None:  # the block has ended before it heard of it
            raise ReservationLost(lock.why)
