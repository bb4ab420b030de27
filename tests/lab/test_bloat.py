"""Bloat: a mass of dead letters that is replayed, and a backlog of millions; an event costs what it costs alone.

The long forms are sized by their minutes, up to a million dead letters and a backlog of five million.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from redrive.operate.actions import rebuild_groups
from tests.lab.backlog import drained, forgotten_by_workers, weighed
from tests.lab.bulk import EFFECT_EVERY, GROUPS, Mass, bulk_app, fill
from tests.lab.checker import Finding, query
from tests.lab.crew import Crew, crew_on
from tests.lab.flat import POOL_DESCRIPTORS, Watched, held_snapshot, judge
from tests.lab.record import Record

MOST_DEAD = 1_000_000
MOST_WAITING = 5_000_000
DEAD_A_SECOND = 1_500  # of a budget, with what it takes to write and to judge them
WAITING_A_SECOND = 6_000


def _store(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgres"


# --- a mass of dead letters ---------------------------------------------------------------------------


@pytest.mark.promise("flat", "durable", "effect-once", "redrive-safe")
def test_thousands_of_dead_letters_are_replayed_while_workers_are_killed(
    store_url: str, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    run = record("bloat", _store(store_url))
    replayed(store_url, tmp_path / "crew", random.Random(seed), run, number=6_000)


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("flat", "durable", "effect-once", "redrive-safe")
def test_a_million_dead_letters_are_replayed_while_workers_are_killed(
    store_url: str, tmp_path: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    run = record("bloat", _store(store_url))
    number = min(MOST_DEAD, max(20_000, int(budget * DEAD_A_SECOND)))
    pace = replayed(store_url, tmp_path / "crew", random.Random(seed), run, number=number)
    run.figures["a second"], run.figures["a second later"] = (round(each) for each in pace)
    assert pace[1] > pace[0] * 0.5, "it slows down"


def replayed(url: str, folder: Path, dice: random.Random, run: Record, *, number: int) -> tuple[float, float]:
    """Redrive all of them at once; say how many were delivered a second, in the second quarter and in the last."""
    fill(url, Mass("dead", number, status="failed"))
    redrive_id = asyncio.run(begun(url, number))
    with crew_on(url, folder) as crew, ExitStack() as snapshot:
        watched = {each.pid: Watched() for each in (crew.start("bulk"), crew.start("bulk"))}
        victim = crew.start("bulk")
        going = Going(url, redrive_id, number)
        is_held, end = False, time.monotonic() + 120 + number / 200
        while not going.is_done:
            assert time.monotonic() < end, f"{going.samples[-1]} of {number}; {crew.said()}"
            time.sleep(min(0.5, max(0.05, number / 200_000)))
            done = going.look()
            for pid, each in watched.items():
                each.look(pid)
            if not is_held and done > 0.25:
                snapshot.enter_context(held_snapshot(url))
                is_held = True
            elif done > 0.6:
                snapshot.close()
            if done < 0.7 and (not run.faults["worker"] or dice.random() < 0.03):
                victim = crew.replace(victim)
                run.faults["worker"] += 1
        crew.end("bulk")
        run.cases += number
        found = judged(url, redrive_id, number, crew)
        run.violations += found.violations
        assert not found.violations, f"{found}\n{crew.said()}"
    run.figures["dead letters"] = number
    judge(run, watched, descriptors=POOL_DESCRIPTORS)
    return going.pace(0.25, 0.5), going.pace(0.75, 0.98)


async def begun(url: str, number: int) -> UUID:
    """Count the groups, plan a redrive of everything, and let it go."""
    async with bulk_app(url) as app:
        await rebuild_groups(app)
        plan = await app.plan("", by="ann")
        assert plan.redrive.ready == number, plan.ineligible
        assert {each.dead_count for each in await app.groups()} <= {number // GROUPS, number // GROUPS + 1}
        started = await app.start(plan.redrive.token, by="ann", reason="the carrier is back")
    return started.id


@dataclass(slots=True)
class Going:
    """How far a redrive has come, and when."""

    url: str
    id: UUID
    number: int
    is_done: bool = False
    samples: list[tuple[float, int]] = field(default_factory=list)

    def look(self) -> float:
        (row,) = query(self.url, "select state, delivered from {}redrive where id = ?", (str(self.id),))
        self.is_done = row["state"] != "running"
        self.samples.append((time.monotonic(), row["delivered"]))
        return float(row["delivered"]) / self.number

    def pace(self, since: float, to: float) -> float:
        """How many a second between two shares of the whole."""
        (began, first), (ended, last) = (self._at(share) for share in (since, to))
        return (last - first) / max(ended - began, 1e-3)

    def _at(self, share: float) -> tuple[float, int]:
        return next((sample for sample in self.samples if sample[1] >= share * self.number), self.samples[-1])


def judged(url: str, redrive_id: UUID, number: int, crew: Crew) -> Finding:
    """Name what must never be; by counts of the database, a million rows would not fit here."""
    found = Finding()

    def expect(name: str, said: str, text: str, wanted: int) -> None:
        ((counted,),) = (tuple(row.values()) for row in query(url, text))
        if counted != wanted:
            found.violations[name] += abs(counted - wanted)
            found.first.setdefault(name, f"{said}: {counted}, not {wanted}")

    of = f"redrive_id = '{redrive_id}'"
    effects = -(-number // EFFECT_EVERY)
    expect("lost", "delivered", "select count(*) from {}outbox where status = 'delivered' and fence > 1", number)
    expect("lost", "keys with an effect", "select count(distinct key) from lab_effect", effects)
    expect("duplicate", "effects", "select count(*) from lab_effect", effects)
    place = "e.event_id" if _store(url) == "sqlite" else "e.event_id::uuid"  # as the index has it
    last = f"select count(*) from lab_effect e join {{}}outbox o on o.id = {place} and o.fence = e.fence"
    expect("stale settle", "effects of the last claim", last, effects)
    expect("released twice", "in their second cycle", "select count(*) from {}outbox where cycle = 1", number)
    expect("trail gap", "replayed", "select count(*) from {}trail where kind = 'replayed'", number)
    expect("trail gap", "events replayed",
           "select count(distinct event_id) from {}trail where kind = 'replayed'", number)  # fmt: skip
    expect("wrong count", "members delivered",
           f"select count(*) from {{}}redrive_item where state = 'delivered' and {of}", number)  # fmt: skip
    for name in ("released", "delivered"):
        expect("wrong count", name, f"select {name} from {{}}redrive where id = '{redrive_id}'", number)
    expect("wrong count", "done", "select count(*) from {}redrive where state = 'done'", 1)
    expect("wrong count", "in groups", "select sum(dead_count) from {}failure_group", 0)
    expect("wrong count", "groups resolved", "select count(*) from {}failure_group where state = 'resolved'", GROUPS)
    for said in crew.ended_by_themselves():
        found.add("ended", said)
    if not asyncio.run(_is_sound(url)):
        found.add("trail gap", "a chain is broken")
    return found


async def _is_sound(url: str) -> bool:
    async with bulk_app(url) as app:
        return (await app.verify_trail()).sound


# --- a backlog ------------------------------------------------------------------------------------------


@pytest.mark.promise("flat")
def test_a_call_costs_the_same_beside_four_times_as_many_events(
    store_url: str, tmp_path: Path, record: Callable[..., Record]
) -> None:
    run = record("bloat", _store(store_url))
    weighed(store_url, run, first=30_000, number=120_000)
    drained(store_url, tmp_path / "crew", run, rounds=2, number=3_000)


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("flat", "durable")
def test_a_call_costs_the_same_beside_a_backlog_of_millions(
    store_url: str, tmp_path: Path, budget: float, record: Callable[..., Record]
) -> None:
    run = record("bloat", _store(store_url))
    number = min(MOST_WAITING, max(300_000, int(budget * WAITING_A_SECOND)))
    weighed(store_url, run, first=number // 10, number=number)
    drained(store_url, tmp_path / "crew", run, rounds=4, number=number // 50)
    forgotten_by_workers(store_url, tmp_path / "crew", run, number=number // 50)
