"""A worker of the system with short leases, for tests that kill it: `python -m tests.apps.adjudication.worker`."""

from __future__ import annotations

import asyncio
import os

from redrive.apps.adjudication import make


async def main() -> None:
    app = make({"ADJUDICATION_ISOLATION": "none", **os.environ})
    async with app:
        await app.worker(lease="1s", concurrency=8, poll="100ms").run()


if __name__ == "__main__":
    asyncio.run(main())
