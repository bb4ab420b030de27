"""Processes that carry a redrive are killed, at every point: in the end every member has one outcome, and once only."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive import Redrive, Refused
from tests import warm
from tests.redrive.crashing import POINTS
from tests.redrive.helpers import Shop, outbox, sound
from tests.waiting import until

pytestmark = [pytest.mark.lab_short, pytest.mark.promise("redrive-safe")]

ROOT = Path(__file__).parents[2]
KILLED = -9


def process(url: str, point: str = "none") -> subprocess.Popen[bytes]:
    return warm.python(["-m", "tests.redrive.crashing", url, point], cwd=ROOT)


@contextmanager
def processes(url: str, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run several workers for the length of a block; whoever is in the list then is killed."""
    running = [process(url) for _ in range(number)]
    try:
        yield running
    finally:
        for each in running:
            each.kill()
            each.wait()


async def ended(killed: subprocess.Popen[bytes]) -> int:
    try:
        await until(lambda: killed.poll() is not None)
    finally:
        killed.kill()
        killed.wait()
    return killed.returncode


@pytest.mark.req("B1", "A7")
async def test_a_redrive_survives_the_end_of_its_process_at_every_point(app: Redrive, store_url: str) -> None:
    shop = Shop(app)
    await shop.bury(12)
    await shop.bury(2, always=True)

    before = await outbox(app)
    assert await ended(process(store_url, "plan not committed")) == KILLED
    assert await outbox(app) == before
    for unfinished in await app.redrivings():
        with pytest.raises(Refused):
            await app.start(unfinished.token, by="ada", reason="fixed")

    plan = await shop.plan()
    assert await outbox(app) == before
    running = await shop.start(plan, max_in_flight=4, ramp=(1, 3))
    for point in POINTS:
        assert await ended(process(store_url, point)) == KILLED, point
        await sound(app, running.id)
    with processes(store_url, 1):
        await shop.over(running, "done")

    done = await sound(app, running.id)
    assert (done.delivered, done.failed, done.skipped, done.released) == (12, 2, 0, 14)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.req("B1", "A7")
async def test_a_redrive_survives_processes_that_are_killed_at_random(app: Redrive, store_url: str, seed: int) -> None:
    dice = random.Random(seed)
    shop = Shop(app)
    await shop.bury(70)
    await shop.bury(4, always=True)
    plan = await shop.plan()

    with processes(store_url, 2) as workers:
        running = await shop.start(plan, max_in_flight=6, ramp=(1, 5))
        for _ in range(4):
            released = (await app.redriving(running.id)).released
            some = released + dice.randrange(1, 12)
            await until(lambda some=some: _gone(app, running.id, some))  # type: ignore[misc]
            for number in dice.choice([[0], [1], [0, 1]]):
                workers[number].kill()
                workers[number].wait()
                workers[number] = process(store_url)
        await shop.over(running, "done")

    done = await sound(app, running.id)
    assert (done.delivered, done.failed, done.skipped) == (70, 4, 0)


async def _gone(app: Redrive, redrive_id: object, number: int) -> bool:
    standing = await app.redriving(redrive_id)  # type: ignore[arg-type]
    return standing.released >= min(number, standing.ready)
