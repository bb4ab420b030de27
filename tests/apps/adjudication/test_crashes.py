"""Workers are killed at random while hundreds of decisions are carried out: none is lost, none is done twice."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive import Status
from tests import warm
from tests.apps.adjudication.conftest import RAILS, System, running
from tests.operate.helpers import environment

pytestmark = pytest.mark.lab_short

KINDS = ("r", "slow-1", "slow-2", "down")  # done at once, after one or two failures, never


def start(url: str, folder: Path) -> subprocess.Popen[bytes]:
    environ = environment(REDRIVE_URL=url, RAIL_FOLDER=str(folder), ADJUDICATION_DISPATCH=f"{RAILS}:pay")
    nothing = subprocess.DEVNULL
    return warm.python(["-m", "tests.apps.adjudication.worker"], env=environ, stdout=nothing, stderr=nothing)


class Workers:
    """Two workers, one of which is killed now and then and replaced."""

    def __init__(self, url: str, folder: Path) -> None:
        self._place = (url, folder)
        self._dice = random.Random(7)
        self._alive = [start(url, folder), start(url, folder)]
        self.killed = 0

    def kill_one(self) -> None:
        victim = self._alive.pop(self._dice.randrange(2))
        victim.kill()
        victim.wait()
        self.killed += 1
        self._alive.append(start(*self._place))

    def pause(self) -> float:
        return self._dice.uniform(0.3, 1.2)

    def end(self) -> None:
        for worker in self._alive:
            worker.kill()
            worker.wait()


@contextmanager
def workers(url: str, folder: Path) -> Iterator[Workers]:
    made = Workers(url, folder)
    try:
        yield made
    finally:
        made.end()


async def all_have_ended(system: System) -> bool:
    states = [row[0] for row in await system.rows("receipt", "settlement_progression_status, 1")]
    return not {"in-escrow", "execution-pending"} & set(states)


async def carried_out_while_workers_die(url: str, folder: Path, decisions: int, kills: int) -> None:
    async with running(url) as system:
        names = [f"{KINDS[n % len(KINDS)]}-{n}" for n in range(decisions)]
        for name in names:
            await system.submit(name)
        with workers(url, folder) as crew:
            for place in range(0, decisions, 20):
                part = names[place : place + 20]
                said = await asyncio.gather(*(system.adjudicate(name) for name in part for _ in range(2)))
                assert {answer.status_code for answer in said} <= {200, 202}
            until = time.monotonic() + 100
            while crew.killed < kills or not await all_have_ended(system):
                assert time.monotonic() < until, "they do not come to an end"
                await asyncio.sleep(crew.pause())
                if crew.killed < kills:
                    await asyncio.to_thread(crew.kill_one)
        for name in names:
            await check(system, name, folder)


async def check(system: System, name: str, folder: Path) -> None:
    """Executed once or re-escalated, with evidence of every attempt that counts."""
    look, event = await system.look(name), await system.execution(name)
    trail = [(entry["kind"], entry["attempt"]) for entry in look["trail"]]
    scheduled = [("retry-scheduled", number) for number in range(1, event.attempts)]
    if look["settlement_progression_status"] == "executed":
        assert not name.startswith("down")
        assert (event.status, look["dispute_lifecycle_status"]) == (Status.DELIVERED, "closed"), name
        assert [(entry["party"], entry["amount_minor"]) for entry in look["entries"]] == [("seller", 1_000)], name
        assert look["dispatch_reference"] == f"rail/{name}:release"
        assert trail == scheduled, name
    else:
        assert (event.status, look["dispute_lifecycle_status"]) == (Status.FAILED, "re-escalated"), name
        assert look["escrow_adjudication"] == "release"
        assert look["entries"] == []
        assert trail == [*scheduled, ("dead-lettered", event.attempts)], name
    assert set((folder / f"{name}:release").read_text().splitlines()) == {"1000 0"}


@pytest.mark.req("A3", "A4", "A5", "A7")
async def test_killed_workers_lose_no_decision_and_carry_none_out_twice(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "rail").mkdir()
    await carried_out_while_workers_die(store_url, tmp_path / "rail", decisions=60, kills=4)


@pytest.mark.lab
@pytest.mark.timeout(600)
async def test_killed_workers_lose_none_of_300_decisions(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "rail").mkdir()
    kills = int(os.environ.get("LAB_KILLS", "25"))
    await carried_out_while_workers_die(store_url, tmp_path / "rail", decisions=300, kills=kills)
