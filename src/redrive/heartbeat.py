"""Heartbeat: renew a worker's session, and with it the lease of everything it holds.

It has a thread and a connection of its own, so that a blocked event loop does not lose its leases. It notices what the
loop cannot: an attempt that is overdue while the loop is blocked is left to others, and a loop that has not answered
for a long time is doubted altogether.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

from redrive.attempt import Attempt, Watch
from redrive.clock import Clock
from redrive.errors import StoreUnavailable
from redrive.logs import log
from redrive.store.base import Store

_LATE_SECONDS: Final = 1.0  # a limit that ended so long ago unnoticed: the event loop is blocked


class Heartbeat:
    """Renews a session from its own thread, with its own connection: a busy event loop does not lose its leases."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease_seconds: float,
        stall_seconds: float,
        session: Callable[[], UUID],
        on_lost: Callable[[], None],
        watch: Watch,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._stall_seconds = stall_seconds
        self._session = session
        self._on_lost = on_lost
        self._watch = watch
        self._worker_loop = asyncio.get_running_loop()
        self._answered_at = clock.monotonic()
        self._expired: set[Attempt] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redrive-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        async with self._store.pulse() as renew:
            pause = self._lease_seconds / 3
            while True:
                overdue = await self._wait(pause)
                if self._stopped.is_set():
                    return
                pause = self._lease_seconds / 3
                if not self._loop_is_alive():
                    continue
                session = self._session()
                try:
                    alive = await renew(session, self._lease_seconds, [each.row for each in overdue])
                except Exception as error:  # noqa: BLE001 - its end would cost the worker every lease from then on
                    if not isinstance(error, StoreUnavailable):
                        log.error("heartbeat failed, trying again", session=str(session), error=repr(error)[:500])
                    pause = min(0.5, pause)
                    continue
                self._expired.update(overdue)
                if not alive and session == self._session():
                    self._tell(self._on_lost)

    async def _wait(self, seconds: float) -> list[Attempt]:
        """Wait for the next beat; sooner when an attempt is overdue and the blocked event loop cannot see to it."""
        until = self._clock.monotonic() + seconds
        while not await self._rest(max(0.0, min(0.5, until - self._clock.monotonic()))):
            late = set(self._watch.late(_LATE_SECONDS))
            self._expired &= late
            if late - self._expired or self._clock.monotonic() >= until:
                return list(late - self._expired)
        return []

    async def _rest(self, seconds: float) -> bool:
        """Rest for so long; true: it shall stop. It may block, for nothing else runs in this thread."""
        return self._stopped.wait(seconds)

    def _loop_is_alive(self) -> bool:
        """Doubt a loop that has not answered for a quarter of an hour: let others take its events."""
        self._tell(self._answered)
        return self._clock.monotonic() - self._answered_at < self._stall_seconds

    def _answered(self) -> None:
        self._answered_at = self._clock.monotonic()

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._worker_loop.call_soon_threadsafe(what)
