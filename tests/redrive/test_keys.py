"""Redrives of events with ordering keys: in the order of the key, on every store."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal
from uuid import UUID

import pytest

from redrive import EventFilter, Redrive, Refused, Rejected, Status, redrive
from redrive.redrive import Release
from tests.waiting import until
from tests.worker.conftest import working


class Line:
    """A handler that writes down the order in which it succeeds."""

    def __init__(self, app: Redrive, *, on_failed: Literal["block", "pass"] = "pass") -> None:
        self.broken = True
        self.never: set[int] = set()
        self.done: list[int] = []

        self.app = app

        @app.handler("order.paid", on_failed=on_failed)
        async def ship(payload: dict[str, int]) -> None:
            if self.broken or payload["n"] in self.never:
                raise Rejected("carrier says no")
            self.done.append(payload["n"])

    async def over(self, running: redrive.Redriving) -> redrive.Redriving:
        async def done() -> bool:
            return (await redrive.get(self.app.store, running.id)).state == "done"

        await until(done)
        return await redrive.get(self.app.store, running.id)


async def planned(app: Redrive, selection: str = "type:order.paid") -> redrive.Plan:
    return await app.plan(selection, by="ada", unsafe=True)


@pytest.mark.req("B1", "B6")
async def test_a_redrive_brings_the_dead_letters_of_a_key_in_their_order(app: Redrive) -> None:
    line = Line(app)
    await app.publish_many([("order.paid", {"n": n}, {"ordering_key": "a"}) for n in range(12)])
    await app.publish_many([("order.paid", {"n": 100 + n}) for n in range(3)])
    await app.worker().drain()
    line.broken = False
    plan = await planned(app)
    assert (plan.redrive.ready, plan.ineligible) == (15, {})

    async with working(app):
        running = await app.start(plan.redrive.token, by="ada", reason="mended")
        over = await line.over(running)

    assert (over.delivered, over.skipped, over.failed) == (15, 0, 0)
    assert [n for n in line.done if n < 100] == list(range(12))
    assert sorted(n for n in line.done if n >= 100) == [100, 101, 102]


@pytest.mark.req("B1", "B6")
async def test_what_stands_behind_a_head_that_fails_again_is_skipped_with_the_reason(app: Redrive) -> None:
    line = Line(app)
    await app.publish_many([("order.paid", {"n": n}, {"ordering_key": "a"}) for n in range(4)])
    await app.worker().drain()
    line.broken, line.never = False, {1}
    app._handlers["order.paid"] = replace(app._handlers["order.paid"], on_failed="block")
    plan = await planned(app)

    async with working(app):
        running = await app.start(plan.redrive.token, by="ada", reason="mended")
        over = await line.over(running)

    assert (over.delivered, over.failed_same, over.skipped) == (1, 1, 2)
    assert line.done == [0]
    rows = await app.store.ask("redrive_eligibility", id=over.id, after=0)
    assert "behind a failed head of its ordering key" in {row["reason"] for row in rows}


@pytest.mark.req("B1", "B6")
async def test_a_dead_letter_behind_a_head_that_is_not_in_the_plan_may_not_go(app: Redrive) -> None:
    line = Line(app, on_failed="block")
    await app.publish_many([("order.paid", {"n": n}, {"ordering_key": "a"}) for n in range(2)])
    await app.worker().drain()
    (held,) = await app.held_keys()
    await app.skip_key("a", by="ada", reason="later")
    await app.worker().drain()
    await app.restore(held.head, by="ada", reason="now")
    second = next(each for each in await app.events(EventFilter(status=Status.FAILED)) if each.id != held.head)

    alone = await planned(app, f"type:order.paid id:{second.id}")
    both = await planned(app)
    assert (alone.redrive.ready, alone.ineligible) == (0, {"behind a failed head of its ordering key": 1})
    assert (both.redrive.ready, both.ineligible) == (2, {})
    with pytest.raises(Refused, match="behind a failed head of its ordering key"):
        await app.replay(second.id, by="ada", reason="mended")
    line.broken = False
    await app.replay(held.head, by="ada", reason="mended")
    await app.replay(second.id, by="ada", reason="mended")
    await app.worker().drain()
    assert line.done == [0, 1]


def inverted(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ids fall while time goes on, as those of two publishers do now and then."""
    falling = iter(UUID(int=(0x01A0 << 112) + (7 << 76) + (2 << 62) - n) for n in range(1, 100_000))
    monkeypatch.setattr(app.clock, "new_id", lambda: next(falling))


@pytest.mark.req("B1", "B6")
@pytest.mark.parametrize("on_failed", ["pass", "block"])
@pytest.mark.parametrize("release", [Release(), Release(ramp=(1, 3)), Release(rate=500.0), Release(max_in_flight=1)])
async def test_a_redrive_keeps_the_order_of_a_key_whose_ids_are_not_in_it(
    app: Redrive, monkeypatch: pytest.MonkeyPatch, release: Release, on_failed: Literal["block", "pass"]
) -> None:
    line = Line(app)
    inverted(app, monkeypatch)
    for n in range(12):  # one by one: each has its own time
        await app.publish("order.paid", {"n": n}, ordering_key=f"k{n % 3}")
    await app.worker().drain()
    if on_failed == "block":
        app._handlers["order.paid"] = replace(app._handlers["order.paid"], on_failed="block")
    line.broken = False
    plan = await planned(app)
    assert (plan.redrive.ready, plan.ineligible) == (12, {})

    async with working(app):
        running = await app.start(plan.redrive.token, by="ada", reason="mended", release=release)
        over = await line.over(running)

    assert (over.delivered, over.skipped, over.failed) == (12, 0, 0)
    assert [[n for n in line.done if n % 3 == key] for key in range(3)] == [list(range(key, 12, 3)) for key in range(3)]


@pytest.mark.req("B1", "B6")
async def test_members_of_a_key_that_lie_in_several_chunks_of_a_plan_go_in_order(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.redrive._PLAN_CHUNK", 2)
    line = Line(app)
    inverted(app, monkeypatch)
    for n in range(9):
        await app.publish("order.paid", {"n": n}, ordering_key="ab"[n % 2])
    await app.worker().drain()
    line.broken, line.never = False, {3}
    app._handlers["order.paid"] = replace(app._handlers["order.paid"], on_failed="block")
    plan = await planned(app)
    assert (plan.redrive.ready, plan.ineligible) == (9, {})

    async with working(app):
        over = await line.over(await app.start(plan.redrive.token, by="ada", reason="mended"))

    assert (over.delivered, over.failed_same, over.skipped) == (6, 1, 2)  # behind 3 are 5 and 7
    assert [n for n in line.done if n % 2 == 0] == [0, 2, 4, 6, 8]
    assert [n for n in line.done if n % 2 == 1] == [1]


@pytest.mark.req("B1", "B6")
async def test_behind_a_dead_letter_that_is_not_in_the_plan_nobody_of_its_key_may_go(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    Line(app)
    inverted(app, monkeypatch)
    published = [await app.publish("order.paid", {"n": n}, ordering_key="a") for n in range(5)]
    await app.worker().drain()
    async with app.store.transaction() as tx:  # a head in the middle that holds up those behind it
        table, no = ("redrive.outbox", "false") if app.store.name == "postgres" else ("redrive_outbox", "0")
        await tx.execute(f"update {table} set passed = {no} where id = '{published[2].id}'")

    plan = await planned(app, f"type:order.paid -id:{published[2].id}")

    assert (plan.redrive.ready, plan.ineligible) == (2, {"behind a failed head of its ordering key": 2})


@pytest.mark.req("B1", "B6")
async def test_a_plan_of_an_older_worker_is_put_in_order_before_anything_is_released(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(app)
    inverted(app, monkeypatch)
    for n in range(6):
        await app.publish("order.paid", {"n": n}, ordering_key="a")
    await app.worker().drain()
    line.broken = False
    plan = await planned(app)
    prefix, no = ("redrive.", "false") if app.store.name == "postgres" else ("redrive_", "0")
    async with app.store.transaction() as tx:  # what version 15 writes
        await tx.execute(f"update {prefix}redrive_item set line = null, place = null, waits = {no}, follows = null")
        await tx.execute(f"update {prefix}redrive set lined_up = {no}")

    async with working(app):
        over = await line.over(await app.start(plan.redrive.token, by="ada", reason="mended"))

    assert over.delivered == 6
    assert line.done == list(range(6))
