"""The portal: a thread with an event loop and a store of its own, for callers that have no event loop.

It is closed before the process forks, and opened again where it is needed, in the parent as in the child. A child
therefore inherits no connection of it: on PostgreSQL two processes would speak over one line, and SQLite believes that
the child has the file locks of its parent, and so takes none of its own.

An app that was opened with ``await`` belongs to an event loop and stays open over a fork. On PostgreSQL the child opens
its own connections; on SQLite it cannot, and is told so.
"""

import asyncio
import ctypes
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from weakref import WeakSet

from redrive.store.base import Store

T = TypeVar("T")

_FORK_SECONDS: Final = 5.0  # how long a fork waits for calls that are under way
_doors: "WeakSet[Door]" = WeakSet()


class Portal:
    """Runs calls on a store of its own in a thread of its own."""

    def __init__(self, store: Store, *, migrate: bool) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-portal", daemon=True)
        self._thread.start()
        try:
            self._call(self._open(migrate=migrate))
        except BaseException:
            self.close()
            raise

    async def _open(self, *, migrate: bool) -> None:
        await self._store.open()
        if migrate:
            await self._store.migrate()
        await self._store.check_schema()

    def run(self, job: Callable[[Store], Awaitable[T]]) -> T:
        return self._call(job(self._store))  # type: ignore[no-any-return]

    def close(self) -> None:
        self._call(self._store.close())
        self._call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class Door:
    """Opens a portal when somebody needs one, and closes it before a fork."""

    def __init__(self, make: Callable[[], Portal], in_child: Callable[[bool], None]) -> None:
        """``in_child`` is called in a forked child; true: the portal could not be closed, and is the parent's."""
        self._make = make
        self._in_child = in_child
        self._begin()
        _doors.add(self)

    def _begin(self) -> None:
        self._portal: Portal | None = None
        self._inside = 0
        self._changed = threading.Condition()

    def run(self, job: Callable[[Store], Awaitable[T]]) -> T:
        """Run a call on the store of the portal."""
        with self._changed:
            if self._portal is None:
                self._portal = self._make()
            portal = self._portal
            self._inside += 1
        try:
            return portal.run(job)
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close the portal; the next call opens another."""
        with self._changed:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def before_fork(self) -> None:
        """Close the portal when the calls that are under way have ended; let nobody open one until the fork is done."""
        self._changed.acquire()
        if self._portal is not None and self._changed.wait_for(lambda: not self._inside, _FORK_SECONDS):
            portal, self._portal = self._portal, None
            portal.close()

    def after_fork_in_parent(self) -> None:
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """Begin anew, with a new lock too: a thread that the child does not have may hold the old one."""
        left = self._portal
        self._begin()
        if left is not None:
            leave_to_parent(left)
        self._in_child(left is not None)


def leave_to_parent(thing: object) -> None:
    """Never collect an object of the parent: its end would take the parent's connections out of the shared selector."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _tell(method: Callable[["Door"], None]) -> None:
    for door in tuple(_doors):
        method(door)


os.register_at_fork(
    before=lambda: _tell(Door.before_fork),
    after_in_parent=lambda: _tell(Door.after_fork_in_parent),
    after_in_child=lambda: _tell(Door.after_fork_in_child),
)
