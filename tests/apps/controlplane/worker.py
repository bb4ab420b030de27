"""A worker of a site as a process of its own, to be killed: `python -m tests.apps.controlplane.worker URL WORLD …`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import warm
from tests.apps.controlplane.helpers import site

LEASE = "2s"
_ROOT = Path(__file__).parents[3]


def start(
    url: str, world: object, name: str = "here", nats: str = "", peers: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    command = ["-m", "tests.apps.controlplane.worker", url, str(world), name, nats, *peers]
    return warm.python(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _work(url: str, world: str, name: str, nats: str, *peers: str) -> None:
    async with site(url, world, site=name, nats=nats or None, peers=peers, hold="3s") as app:
        await app.worker(lease=LEASE, concurrency=8).run()


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
