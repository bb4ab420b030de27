"""The crew: one worker of the shop, and the release it runs."""

import asyncio

from redrive.app import Redrive
from redrive.operate.demo.shop import World, shop
from redrive.worker import Worker


class Crew:
    """Runs the shop's handlers; ``app`` is that of the release at work."""

    def __init__(self, url: str, world: World, *, release: int, pace: float) -> None:
        self._url = url
        self._world = world
        self._pace = pace
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self._earlier: list[Redrive] = []
        self.release = release
        self.app = shop(url, world, release=release, pace=pace)

    def start(self) -> None:
        """Have a worker at work."""
        self._worker = self.app.worker(concurrency=10, poll=0.25, name="demo")
        self._working = asyncio.create_task(self._worker.run(), name="demo-worker")

    async def stop(self) -> None:
        """Let it finish what it has in hand."""
        if self._worker is not None and self._working is not None:
            self._worker.stop()
            await self._working
            self._worker = self._working = None

    async def deploy(self, release: int) -> None:
        """Swap the app under the customers' hands: publishing goes on with either, until the shop closes."""
        mended = shop(self._url, self._world, release=release, pace=self._pace)
        await mended.open()
        await self.stop()
        self._earlier.append(self.app)
        self.app, self.release = mended, release
        self.start()

    async def close(self) -> None:
        """Close the apps of all releases; whoever used one after that would open it again, and nobody close it."""
        for app in (*self._earlier, self.app):
            await app.close()
