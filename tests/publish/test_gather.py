"""Callers that come together are served together, and each gets its own answer or its own error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from redrive import Gather, Redrive, StoreUnavailable


class Acts:
    """Doubles numbers, in groups it remembers; refuses those that are negative."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.error: Exception | None = None

    async def __call__(self, group: Sequence[int]) -> list[int]:
        self.groups.append(list(group))
        await self.may_go.wait()
        if self.error is not None:
            raise self.error
        if any(each < 0 for each in group):
            raise ValueError("negative")
        return [2 * each for each in group]


async def test_who_comes_while_a_group_is_served_is_in_the_next() -> None:
    acts = Acts()
    acts.may_go.clear()
    gather: Gather[int, int] = Gather(acts)
    calls = [asyncio.create_task(gather(1))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    calls += [asyncio.create_task(gather(each)) for each in (2, 3, 4)]
    await asyncio.sleep(0)
    acts.may_go.set()

    assert await asyncio.gather(*calls) == [2, 4, 6, 8]
    assert acts.groups == [[1], [2, 3, 4]]


async def test_a_group_has_its_limit() -> None:
    acts = Acts()
    gather: Gather[int, int] = Gather(acts, most=3)

    assert await asyncio.gather(*map(gather, range(8))) == list(range(0, 16, 2))
    assert acts.groups == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_one_callers_fault_is_not_that_of_the_others() -> None:
    acts = Acts()
    gather: Gather[int, int] = Gather(acts)

    answers = await asyncio.gather(*map(gather, (1, -1, 2)), return_exceptions=True)

    assert answers[::2] == [2, 4]
    assert isinstance(answers[1], ValueError)
    assert acts.groups == [[1, -1, 2], [1], [-1], [2]]


async def test_while_the_store_is_away_nobody_is_tried_alone() -> None:
    acts = Acts()
    acts.error = StoreUnavailable("gone")
    gather: Gather[int, int] = Gather(acts)

    answers = await asyncio.gather(*map(gather, (1, 2, 3)), return_exceptions=True)

    assert [type(each) for each in answers] == [StoreUnavailable] * 3
    assert acts.groups == [[1, 2, 3]]
    acts.error = None
    assert await gather(4) == 8


async def test_who_is_cancelled_takes_nobody_along() -> None:
    acts = Acts()
    acts.may_go.clear()
    gather: Gather[int, int] = Gather(acts)
    calls = [asyncio.create_task(gather(each)) for each in (1, 2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    calls[0].cancel()
    await asyncio.sleep(0)
    acts.may_go.set()

    assert await calls[1] == 4
    with pytest.raises(asyncio.CancelledError):
        await calls[0]


async def test_many_are_published_in_a_transaction_with_one_call(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)
    app.route("order.paid", "ship", "bill")
    async with app:
        async with app.transaction() as tx:
            published = await tx.publish_many([("order.paid", {"n": 1}), ("order.sent", {"n": 2}, {"subject": "s"})])
            assert await tx.publish_many([]) == []

        stored = {event.id: event for event in await app.events()}
        assert [stored[each.id].payload for each in published] == [{"n": 1}, {"n": 2}]
        assert [each.target for each in published] == ["ship", "order.sent"]
        assert stored[published[1].id].subject == "s"
        assert len(stored) == 3
