"""Whoever drains carries redrives on, as far as they can go now."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Redrive, Rejected, RetryPolicy
from redrive.redrive import Release
from redrive.testing import Harness
from tests.redrive.helpers import Shop, sound


@pytest.mark.req("B1")
async def test_a_drain_carries_a_redrive_to_its_end(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(20)
    await shop.bury(1, always=True)
    shop.broken = False
    running = await shop.start(await shop.plan(), max_in_flight=3, ramp=(1, 4))

    tally = await app.worker().drain()

    done = await sound(app, running.id)
    assert (done.state, done.delivered, done.failed_same) == ("done", 20, 1)
    assert tally.delivered == 20


async def test_a_drain_ends_at_a_gate_that_halts_and_does_not_wait_for_a_rate(app: Redrive) -> None:
    shop = Shop(app)
    await shop.bury(5)
    halting = await shop.start(await shop.plan(), ramp=(1,))
    await app.worker().drain()
    assert (await sound(app, halting.id)).state == "halted"
    await app.abort(halting.id, by="bob", reason="enough")

    shop.broken = False
    slow = await shop.start(await shop.plan(), rate=0.001)
    await app.worker().drain()

    standing = await sound(app, slow.id)
    assert (standing.state, standing.delivered, standing.untouched) == ("running", 1, 4)


@pytest.mark.req("B1")
async def test_the_harness_carries_redrives_on_with_its_own_time() -> None:
    app = Redrive("sqlite:///:memory:", retry=RetryPolicy(max_attempts=1))
    broken = True

    @app.handler("order.paid")
    async def ship(_payload: Any) -> None:
        if broken:
            raise Rejected("carrier says no")

    async with Harness(app) as harness:
        await app.publish_many([("order.paid", {"n": n}) for n in range(6)])
        await harness.run_due()
        broken = False
        plan = await app.plan("type:order.paid", by="ada", unsafe=True)
        running = await app.start(plan.redrive.token, by="ada", reason="fixed", release=Release(rate=1.0))

        assert (await harness.run_due()).delivered == 1
        assert (await harness.advance("3s")).delivered == 3
        await harness.advance("1h")

        assert (await app.redriving(running.id)).state == "done"
        harness.assert_nothing_pending()
