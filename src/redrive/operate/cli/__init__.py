"""The command line: thin over ``operate.views`` and ``operate.actions``; `redrive --help` is its table of contents."""

import gc
import sys
from typing import Final

_COLLECT_EVERY: Final = 20_000
"""New objects between two looks for reference cycles. A command makes a hundred thousand that stay while it imports, an
event hundreds and hardly a cycle: at Python's own pace of 700 that was a tenth of a command, a seventh of a worker."""


def main() -> None:
    """Run `redrive`. Imports late: parts of this package are children of their own that need none of it."""
    gc.set_threshold(_COLLECT_EVERY)
    from redrive.operate.cli.root import app  # noqa: PLC0415 - see above

    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no error
    try:
        app(prog_name="redrive")
    finally:
        gc.freeze()  # at the end all is given back anyway: to look through it once more took another tenth
