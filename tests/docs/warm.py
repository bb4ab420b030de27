"""`redrive` commands out of an interpreter that has imported everything already: a quarter of the time of a new one.

``python tests/docs/warm.py SOCKET`` waits for orders and forks for each of them, with the terminal, the folder and the
environment of whoever ordered. It has no threads, and opens nothing before it forks.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from redrive.operate import cli

MOST_BYTES = 100_000
STORES = ("redrive.store.sqlite", "redrive.store.postgres")


def serve(place: Path) -> NoReturn:
    parts = [module.name for module in pkgutil.iter_modules(cli.__path__) if module.name != "__main__"]
    for name in (*STORES, *(f"{cli.__name__}.{part}" for part in parts)):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who carry out
    unready = place.with_name("unready")
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(str(unready))
    door.listen(64)
    unready.rename(place)  # whoever sees it can come in
    while True:
        line, _ = door.accept()
        if os.fork() == 0:
            door.close()
            _carry_out(line)
        line.close()


def _carry_out(line: socket.socket) -> NoReturn:
    """Run a command; say its process id, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order, (terminal,), _, _ = socket.recv_fds(line, MOST_BYTES, 1)
    command = os.fork()
    if command == 0:
        line.close()
        _run(json.loads(order), terminal)
    os.close(terminal)
    line.send(str(command).encode())
    _, status = os.waitpid(command, 0)
    line.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(order: dict[str, Any], terminal: int) -> NoReturn:
    """Become the command, as its script would."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (terminal, 1), (terminal, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(place, mode, 1, "utf-8") for place, mode in enumerate("rww"))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["words"]
    code = 1
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
