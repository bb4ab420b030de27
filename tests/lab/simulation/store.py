"""The real store and heartbeat, with callbacks of the loop in the place of threads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from redrive.heartbeat import Heartbeat
from redrive.store.sqlite import SqliteStore
from redrive.store.writer import Writer, _Order
from tests.lab.simulation.disk import Line
from tests.lab.simulation.loop import HEART, WRITER, Blocked
from tests.lab.simulation.process import Process, current

_BUSY_SECONDS = 0.05


class Pen:
    """A lock that never blocks the one thread: who would wait, for it or for the file, is told so, and comes again."""

    def __init__(self, process: Process, line: Line) -> None:
        self._process = process
        self._line = line
        self._is_held = False

    @property
    def is_free(self) -> bool:
        return not self._is_held and self._process.world.disk.is_free_for(self._line)

    def acquire(self) -> bool:
        if not self.is_free:
            raise Blocked
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        self._process.world.loop.let_go()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class LoopWriter(Writer):
    """Writes what has come together in a callback of the writer's lane."""

    def start(self) -> None:
        self._process = current()
        self._pen = Pen(self._process, cast("Line", self.connection))
        self.pen = cast("Any", self._pen)
        self._waiting: list[_Order] = []
        self._is_called = False
        self._orders = cast("Any", self)  # what is handed in is put here

    def put(self, order: _Order) -> None:
        self._waiting.append(order)
        self._call()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._process.world.loop.call_soon(self._go, context=self._process.lanes[WRITER].context)

    def _go(self) -> None:
        self._is_called = False
        if not self._waiting:
            return
        if not self._pen.is_free:
            self._process.world.loop.park(self._call)
            return
        group, self._waiting = self._waiting, []
        with self.pen:
            self._write(group)
        self._answer(group)

    def close(self) -> None:
        if self._waiting:
            raise Blocked


class SimStore(SqliteStore):
    """The SQLite store of one process of the simulation."""

    writes_with = LoopWriter

    def __init__(self, process: Process) -> None:
        super().__init__(str(process.world.disk.path), process.clock, busy_seconds=_BUSY_SECONDS, synchronous="OFF")
        self._process = process

    def _connect(self, *, query_only: bool = False) -> sqlite3.Connection:
        return cast("sqlite3.Connection", Line(self._process.world.disk, self._process))

    @asynccontextmanager
    async def wakes(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        """Be told of our own commits at once, and of those of others by the world, a little later."""
        self._wakes.add(wake)
        self._process.wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.discard(wake)
            self._process.wakes.remove(wake)


class LoopHeartbeat(Heartbeat):
    """Beats in a task of the heart's lane."""

    def start(self) -> None:
        self._process = current()
        loop = self._process.world.loop
        self._task = self._process.lanes[HEART].context.run(loop.create_task, self._beat())

    def stop(self) -> None:
        self._stopped.set()
        self._task.cancel()

    async def _rest(self, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return self._stopped.is_set()

    def _tell(self, what: Callable[[], None]) -> None:
        if what == self._on_lost:
            self._process.world.reached["session begun anew"] += 1
        self._process.world.loop.call_soon(what, context=self._process.main.context)
