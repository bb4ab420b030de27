"""Processes out of an interpreter that has imported everything already: a fork instead of half a second of imports.

``python([...])`` is a ``subprocess.Popen`` of Python. The first order of a run starts ``python -m tests.warm``, which
has no threads and opens nothing; it forks for each order, with the folder, the environment and the standard input,
output and error that it is given. What comes of it is a process like any other: it has an id of its own, is killed,
stopped and waited for, and ends as an interpreter ends. Only what is about the start of Python itself needs a real one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
DOOR = "WARM_PYTHON"
"""The variable that says where one listens already."""
MOST_BYTES = 200_000
STATUS_BYTES = 16
PR_SET_PDEATHSIG = 1
LAUNCHER = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({door!r})
order = dict(words=sys.argv[1:], folder=os.getcwd(), environment=dict(os.environ), ends_with_us=True)
socket.send_fds(line, [json.dumps(order).encode()], [0, 1, 2])
process = int(line.recv({size}))
signal.signal(signal.SIGTERM, lambda number, _: os.kill(process, number))
signal.signal(signal.SIGINT, lambda number, _: os.kill(process, number))
code = os.waitstatus_to_exitcode(int(line.recv({size})))
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
PARTS = ("redrive.store", "redrive.operate", "redrive.operate.cli", "redrive.operate.web")


def end_with_parent(how: signal.Signals = signal.SIGQUIT) -> None:
    """Have the kernel end a process even if the tests are killed; the default ends a PostgreSQL at once."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


# --- those who order ---


def python(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a Python with these arguments: a script, ``-m`` and a module, or ``-c`` and a program."""
    if sys.platform != "linux":  # then each starts for itself
        return subprocess.Popen([sys.executable, *arguments], **options)
    return _Process(arguments, **options)


class _Process(subprocess.Popen[Any]):
    """A ``Popen`` whose process was forked by somebody else, who says how it ended."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(list(arguments), **options)

    def _execute_child(self, *given: Any) -> None:
        words, _, _, _, _, folder, environment, _, _, _, *pipes = given[:16]
        order = {
            "words": words, "folder": os.fspath(folder or Path.cwd()), "environment": dict(environment or os.environ)
        }  # fmt: skip
        ours = (pipes[0], pipes[3], pipes[5])  # the ends that the process is to have; -1: the same as we
        streams = [end if end >= 0 else number for number, end in enumerate(ours)]
        try:
            self._line.connect(door())
            socket.send_fds(self._line, [json.dumps(order).encode()], streams)
            self.pid = int(self._line.recv(STATUS_BYTES))
            self._child_created = True
        except BaseException:
            self._line.close()
            raise
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._line], [], [], 0)[0]:
            return 0, 0
        status = int(self._line.recv(STATUS_BYTES))
        self._line.close()
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def launcher() -> str:
    """Say what to start instead of ``sys.executable``, for those who start Python by themselves: it orders, and waits.

    Who kills it kills what it has ordered, a moment later.
    """
    if sys.platform != "linux":
        return sys.executable
    place = Path(door()).with_name("python")
    if not place.exists():
        new = place.with_name(f"python-{os.getpid()}")
        new.write_text(LAUNCHER.format(python=sys.executable, door=door(), size=STATUS_BYTES), encoding="utf-8")
        new.chmod(0o755)
        new.rename(place)
    return str(place) if os.access(place, os.X_OK) else sys.executable  # nothing may be run from there


_server: list[subprocess.Popen[bytes]] = []


def door() -> str:
    """Say where the warm interpreter listens; start it if nobody has."""
    if DOOR not in os.environ:
        folder = tempfile.mkdtemp(prefix="redrive-warm-")
        place = f"{folder}/door"
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", place], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            preexec_fn=partial(end_with_parent, signal.SIGKILL) if _is_first_thread() else None,  # noqa: PLW1509
        )  # fmt: skip
        assert server.stdout is not None
        with server.stdout:
            assert server.stdout.readline() == b"ready\n"
        _server.append(server)
        os.environ[DOOR] = place
        atexit.register(_close, place)
    return os.environ[DOOR]


def _is_first_thread() -> bool:
    """Whether this thread lasts as long as the tests: its end, not the process's, is what the kernel looks at."""
    return threading.current_thread() is threading.main_thread()


def _close(place: str) -> None:
    for server in _server:
        server.kill()
        server.wait()
    shutil.rmtree(Path(place).parent)


# --- the one who forks ---


def serve(place: str) -> None:
    """Import everything, then fork for each order; only a forked process ever returns from here."""
    for part in PARTS:
        package = importlib.import_module(part)
        for module in pkgutil.iter_modules(package.__path__, f"{part}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    # What is here is nobody's to collect: to look through it takes a process 0.4 s at its end, and a copy of all of it.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who carry out
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(place)
    door.listen(64)
    os.write(1, b"ready\n")
    os.dup2(0, 1)
    while True:
        line, _ = door.accept()
        if os.fork() == 0:
            door.close()
            end_with_parent(signal.SIGKILL)
            return _carry_out(line)
        line.close()


def _carry_out(line: socket.socket) -> None:
    """Fork once more: the one becomes the process, the other says its id, waits for it, and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    said, streams, _, _ = socket.recv_fds(line, MOST_BYTES, 3)
    order = json.loads(said)
    process = os.fork()
    if process == 0:
        line.close()
        _become(order, streams)
        return
    for stream in streams:
        os.close(stream)
    line.send(str(process).encode())
    if order.get("ends_with_us"):
        end = os.pidfd_open(process)
        if line.fileno() in select.select([end, line.fileno()], [], [])[0]:  # which is to say that nobody is left there
            os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with suppress(BrokenPipeError):
        line.send(str(status).encode())
    os._exit(0)


def _become(order: dict[str, Any], streams: Sequence[int]) -> None:
    end_with_parent(signal.SIGKILL)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where tests run in the background
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, 1, "utf-8", closefd=False) for number, mode in enumerate("rww")
    )
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = order["words"]


def run() -> NoReturn:
    """Do what the words say, as the interpreter itself would."""
    match sys.argv:
        case ["-m", module, *words]:
            sys.argv = [module, *words]
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *words]:
            sys.argv = ["-c", *words]
            sys.path.insert(0, "")
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        case [script, *_]:
            sys.path.insert(0, str(Path(script).parent))
            runpy.run_path(script, run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
    run()
