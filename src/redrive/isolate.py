"""Isolate: handlers in child processes, which can be killed and may die.

A child imports the app's module as anybody would, and then runs one event after the other. What its handler raises is
judged there, where the traceback is, and comes back as a description. A child that dies, for whatever reason, takes
only its own event with it: the attempt failed, and counts. Children end with their parent: a pipe to it closes.

Next: ``settle``. The other side is ``child``.
"""

import asyncio
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from redrive.classify import Described, describe
from redrive.deliver import Handler
from redrive.errors import ConfigurationError, HandlerError, ProcessDied
from redrive.presence import mark
from redrive.store.base import ID, TARGET, Row

HEADER: Final = struct.Struct("!I")
START_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_LAST_WORDS_SECONDS: Final = 1.0
_PROGRAM: Final = "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); from redrive.child import main; main()"


@dataclass(frozen=True, slots=True)
class Hello:
    """What a child is told first: how to find the app and its handlers."""

    modules: tuple[str, ...]
    app_module: str
    app_name: str
    url: str
    opens: bool  # whether a handler wants a context, and with it the database


@dataclass(frozen=True, slots=True)
class Job:
    """One event to handle, and the session that holds it."""

    target: str
    row: list[Any]
    session_id: UUID
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """How it went: nothing but ``settled``, or the failure and, if it can travel, the exception itself."""

    settled: bool = False
    described: Described | None = None
    pickled: bytes | None = None

    def check(self) -> None:
        """Raise here what was raised there, or something that stands for it."""
        if self.described is None:
            return
        raised: object = None
        if self.pickled is not None:
            # A stranger's class may do anything when it is read back; then its description has to do.
            with suppress(BaseException):
                raised = pickle.loads(self.pickled)  # noqa: S301 - written by our own child
        error = raised if isinstance(raised, BaseException) else HandlerError(self.described.failure.message)
        raise self.described.put_on(error)


def frame(message: object) -> bytes:
    """Pack a message: its length, then itself."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


def isolated(handlers: Mapping[str, Handler]) -> list[Handler]:
    """Pick the handlers that run in children."""
    return [handler for handler in handlers.values() if handler.isolation == "process"]


def find_app(app: object, handlers: Sequence[Handler], url: str) -> Hello:
    """Find the name by which a child can import the app: first where the handlers are, then anywhere."""
    modules = tuple(sorted({handler.function.__module__ for handler in handlers}))
    for name in (*modules, *sorted(sys.modules)):
        module = sys.modules.get(name)
        if module is None or name == "__main__":
            continue
        for attribute, value in tuple(vars(module).items()):
            if value is app:
                return Hello(modules, name, attribute, url, any(handler.takes_context for handler in handlers))
    message = (
        "isolation='process' needs an app that a child process can import: "
        "keep it in a variable of a module (app = Redrive(…)), not in a function or in the script itself"
    )
    raise ConfigurationError(message)


class Children:
    """The child processes of one worker: started when needed, used again, at most so many."""

    def __init__(self, most: int, hello: Hello) -> None:
        self._hello = hello
        self._free = asyncio.Semaphore(most)
        self._idle: list[Child] = []
        self._alive: set[Child] = set()

    async def start(self) -> None:
        """Start the first one, so that a module that cannot be imported is an error of the worker, not of an event."""
        try:
            async with self.taken():
                pass
        except Exception as error:
            message = f"a child process cannot import the handlers of {self._hello.app_module}:\n{describe(error)}"
            raise ConfigurationError(message) from error

    @asynccontextmanager
    async def taken(self) -> AsyncIterator["Child"]:
        """Lend a child to one attempt; one that died meanwhile is replaced when the next is needed."""
        async with self._free:
            child = self._idle.pop() if self._idle else await self._started()
            try:
                yield child
            finally:
                if child.is_alive:
                    self._idle.append(child)

    async def _started(self) -> "Child":
        child = await Child.start(self._hello)
        self._alive.add(child)
        child.ended.add_done_callback(lambda _: self._gone(child))
        return child

    def _gone(self, child: "Child") -> None:
        self._alive.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    async def close(self) -> None:
        """End all of them: the idle by closing their line, what is busy or deaf by force."""
        ending = [child.ended for child in self._alive]
        for child in tuple(self._alive):
            child.leave()
        if ending:
            await asyncio.wait(ending, timeout=_END_SECONDS)
        for child in tuple(self._alive):
            child.kill()
        if ending:
            await asyncio.wait(ending)


class Child(asyncio.Protocol):
    """One child process and the line to it. One event at a time."""

    def __init__(self, process: asyncio.subprocess.Process, life: int) -> None:
        self._process = process
        self._life = life
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[Reply] | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self.is_alive = True
        self.ended = asyncio.create_task(self._watch(), name="redrive-child")

    @classmethod
    async def start(cls, hello: Hello) -> "Child":
        """Start a process and wait until it has imported the app."""
        named = await asyncio.to_thread(mark, os.getpid())  # for who wants to know whether all of a worker is gone
        ours, theirs = socket.socketpair()
        life, alive = os.pipe()  # our end stays open as long as we live
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(life), f"--parent={named}",
                json.dumps(sys.path),
                pass_fds=(theirs.fileno(), life), stdin=subprocess.DEVNULL,
                # Of its own session: Ctrl-C in a terminal is for the worker, which then decides.
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            os.close(alive)
            raise
        finally:
            theirs.close()
            os.close(life)
        child = cls(process, alive)
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.get_running_loop().create_connection(lambda: child, sock=ours)
                (await child._ask(hello)).check()
        except TimeoutError:
            await child._end()
            message = f"a child process did not import {hello.app_module} within {START_SECONDS:.0f}s"
            raise ProcessDied(message) from None
        except BaseException:
            await child._end()
            raise
        return child

    async def run(self, row: Row, session_id: UUID, lease_seconds: float) -> Reply:
        """Run one event; whatever its handler raised is in the reply."""
        values = list(row)
        if isinstance(values[ID], UUID):
            values[ID] = UUID(bytes=values[ID].bytes)  # the driver's own class does not travel
        return await self._ask(Job(row[TARGET], values, session_id, lease_seconds))

    async def _ask(self, message: object) -> Reply:
        if self._transport is None or not self.is_alive:
            raise ProcessDied(self._epitaph())
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(frame(message))
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.kill()  # it would go on with an event that nobody waits for
            raise
        finally:
            self._answer = None

    def kill(self) -> None:
        """End it now, and whatever it has started."""
        self.is_alive = False
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let it end by itself."""
        self.is_alive = False
        if self._transport is not None:
            self._transport.close()

    async def _end(self) -> None:
        self.kill()
        await asyncio.wait([self.ended])

    async def _watch(self) -> None:
        await self._process.wait()
        os.close(self._life)
        self.is_alive = False
        if self._transport is not None:
            # Its last words may still be on the line; a process it started may hold that open.
            await asyncio.wait([self._closed], timeout=_LAST_WORDS_SECONDS)
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ProcessDied(self._epitaph()))

    def _epitaph(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"the child process ended with exit code {code} in the middle of its work"
        with suppress(ValueError):
            return f"the child process died with signal {-code} ({signal.Signals(-code).name})"
        return f"the child process died with signal {-code}"

    # The line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the process's end says more
        if not self._closed.done():
            self._closed.set_result(None)
        if self._answer is not None:
            self.kill()  # a process that closed its line can tell us nothing more

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            body, self._buffer = bytes(self._buffer[HEADER.size : end]), self._buffer[end:]
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(pickle.loads(body))  # noqa: S301 - written by our own child
