"""A payment rail that fails as the id of the receipt says: `down-…` always, `slow-N-…` N times, others for good.

What was paid lies in RAIL_FOLDER, a file for each idempotency key; each call adds a line to it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from redrive.apps.adjudication.words import Instruction


class Panic(BaseException):
    """Something that is not even an Exception."""


def calls(key: str) -> int:
    """Say how often a payment was asked for."""
    file = Path(os.environ["RAIL_FOLDER"]) / key
    return len(file.read_text().splitlines()) if file.exists() else 0


def run_out_of_memory() -> None:
    """Ask for more than this process may have; afterwards it may have as much as before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 200_000_000, before[1]))
    try:
        bytearray(4_000_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def pay(instruction: Instruction) -> str:
    """Pay, or fail."""
    with (Path(os.environ["RAIL_FOLDER"]) / instruction.key).open("a") as file:
        file.write(f"{instruction.to_seller_minor} {instruction.to_buyer_minor}\n")
    what, *more = instruction.transaction_receipt_id.split("-")
    if what == "down" or (what == "slow" and calls(instruction.key) <= int(more[0])):
        raise ConnectionError("the rail is down")
    if what == "exit":
        sys.exit("enough")
    if what == "panic":
        raise Panic("no way out")
    if what == "gone":
        os._exit(7)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "memory":
        run_out_of_memory()
    return f"rail/{instruction.key}"
