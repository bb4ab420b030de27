"""Gather: callers that come at the same time are served together.

While one group is being acted on, whoever comes waits for the next; so the group grows with the load, and a lone caller
waits for nobody. There is no timer. What is done for a group must be all or nothing, a transaction: when it fails, each
of the group is tried alone, so that one caller's fault does not become that of all.

Not for code that may itself be inside a transaction: the group it would wait for could be waiting for it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final, Generic, TypeVar

from redrive.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")

_MOST: Final = 500


class Gather(Generic[T, R]):
    """``await gather(item)`` answers what became of one item; ``act`` is called with as many as have come together."""

    def __init__(self, act: Callable[[Sequence[T]], Awaitable[Sequence[R]]], *, most: int = _MOST) -> None:
        """Say what is done for a group of at most so many: it answers one result for each item, in their order."""
        self._act = act
        self._most = most
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._acting: asyncio.Task[None] | None = None

    async def __call__(self, item: T) -> R:
        """Wait until the group of this item has been acted on; its own result, or its own error, comes back."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._acting is None:
            # Of nobody's context: a trace or a transaction of the first caller is not that of the others.
            self._acting = asyncio.create_task(self._serve(), context=Context())
        return await answer

    async def _serve(self) -> None:
        group: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
                await self._together(group)
        finally:
            self._acting = None
            for _, answer in (*group, *self._waiting):  # only when we are cancelled, with the loop that we run on
                answer.cancel()
            self._waiting.clear()

    async def _together(self, group: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._act([item for item, _ in group])
        except Exception as error:  # noqa: BLE001 - whatever it was, whoever waits must hear of it
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                for _, answer in group:
                    _fail(answer, error)
                return
            for each in group:
                await self._together([each])
            return
        for (_, answer), result in zip(group, results, strict=True):
            if not answer.done():  # who was cancelled meanwhile does not wait any more
                answer.set_result(result)


def _fail(answer: "asyncio.Future[R]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
