"""The child: what runs in a process of its own for handlers with ``isolation="process"``.

It imports the app's module, then takes one event after the other from its parent, runs the handler the way the worker
would, and says how it went. Follow-ups and transactions go over its own connection; the fence guards them like any
other. When the parent is gone it ends, whatever it is doing: nobody would hear the answer.

The other side is ``isolate``.
"""

import asyncio
import importlib
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from redrive.app import Redrive
from redrive.classify import DEFAULT_RULES, Described, Rule, civil, classify, describe, fingerprint
from redrive.context import Context, Desk
from redrive.deliver import deliver
from redrive.errors import ConfigurationError
from redrive.isolate import HEADER, Hello, Job, Reply, frame
from redrive.policy import RetryPolicy
from redrive.settle import ERROR_LIMIT
from redrive.store.base import Row
from redrive.tracing import continuing

_MOST_PICKLED: Final = 65_536


def main() -> None:
    """Serve the parent; the arguments are the numbers of the socket, and of the pipe that closes when it is gone."""
    line, life = (int(each) for each in sys.argv[1:3])
    del sys.argv[1:]
    # A thread of its own sees the parent go even while a handler blocks the event loop.
    threading.Thread(target=_end_with_parent, args=(life,), name="redrive-parent", daemon=True).start()
    asyncio.run(_serve(socket.socket(fileno=line)))


def _end_with_parent(life: int) -> None:
    os.read(life, 1)  # nothing is ever written: it returns when the other end is closed
    os._exit(1)


async def _serve(line: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=line)
    app, answer = await _begin(await _read(reader))
    writer.write(frame(answer))
    if app is not None:
        desk = Desk(app.store, app.new_events, asyncio.get_running_loop(), app.handlers, limits=app.limits)
        threads = ThreadPoolExecutor(1, thread_name_prefix="redrive-handler")
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the parent wants nothing more
            while True:
                job: Job = await _read(reader)
                app.store.renew_with(job.session_id, job.lease_seconds)
                writer.write(frame(await _run(app, job.target, job.row, desk, threads)))
        await app.close()
    with suppress(ConnectionError):
        await writer.drain()
    writer.close()


class _Here(Executor):
    """Runs what it is given at once: a handler without a context needs no event loop beside it (0.1 ms an event)."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


async def _read(reader: asyncio.StreamReader) -> Any:
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(length))  # noqa: S301 - written by our own parent


async def _begin(hello: Hello) -> tuple[Redrive | None, Reply]:
    """Import the handlers and find the app, or say what is wrong with them."""
    try:
        return await _app(hello), Reply()
    except BaseException as error:  # noqa: BLE001 - importing a module can raise anything
        return None, _failed(error, "", RetryPolicy(), DEFAULT_RULES)


async def _run(app: Redrive, target: str, row: Row, desk: Desk, threads: Executor) -> Reply:
    handler = app.handlers.get(target)
    if handler is None:
        message = f"{target!r} has no handler in a child process: register it when its module is imported"
        return _failed(ConfigurationError(message), target, app.retry, app.rules)
    context = Context(row, desk)
    try:
        with continuing(row):
            await deliver(handler, row, context, threads if handler.takes_context else _Here())
    except BaseException as error:  # noqa: BLE001 - any shape of failure is the handler's failure
        told = _failed(error, target, handler.retry or app.retry, handler.rules, handler.home)
        return replace(told, settled=context.settled)
    return Reply(context.settled)


async def _app(hello: Hello) -> Redrive:
    for module in hello.modules:
        importlib.import_module(module)
    app = getattr(importlib.import_module(hello.app_module), hello.app_name)
    if not isinstance(app, Redrive):
        message = f"{hello.app_module}.{hello.app_name} is not the app in a child process: make it when it is imported"
        raise ConfigurationError(message)
    if app.url != hello.url:
        message = f"{hello.app_module} names another database in a child process: decide on it when it is imported"
        raise ConfigurationError(message)
    if hello.opens:
        await app.open()
    return app


def _failed(error: BaseException, target: str, policy: RetryPolicy, rules: Sequence[Rule], home: str = "") -> Reply:
    error = civil(error)
    failure = classify(error, policy, rules)
    print_ = fingerprint(error, target, failure.error_class, home)
    described = Described(failure, describe(error, ERROR_LIMIT), print_)
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - ours; many exceptions can be written and not be read
    except BaseException:  # noqa: BLE001 - a stranger's class; its description has to do
        return Reply(described=described)
    return Reply(described=described, pickled=pickled if len(pickled) <= _MOST_PICKLED else None)
