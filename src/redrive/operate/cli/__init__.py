"""The command line: thin over ``operate.views`` and ``operate.actions``; `redrive --help` is its table of contents."""

import sys


def main() -> None:
    """Run `redrive`. Imports late: parts of this package are children of their own that need none of it."""
    from redrive.operate.cli.root import app  # noqa: PLC0415 - see above

    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no error
    app(prog_name="redrive")
