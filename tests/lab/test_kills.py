"""kill -9: workers, producers, migrations and checkpoints are killed at random, and started again; nothing is lost."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest

from redrive.store.sql import migrations
from tests.conftest import fresh_database
from tests.lab import aftermath
from tests.lab.checker import query
from tests.lab.crew import Crew, crew_on
from tests.lab.record import Record
from tests.servers import Postgres
from tests.waiting import wait_until

PROMISES = ("durable", "no-phantom", "effect-once", "fence", "not-stuck", "bounded", "trail", "order", "notices")
Fresh = tuple[str, Callable[[int], AbstractContextManager[str]]]


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Fresh:
    """Say which store it is, and how to have an empty one."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres_server")
        return "postgres", lambda _round: fresh_database(server)

    @contextmanager
    def file(number: int) -> Iterator[str]:
        (tmp_path / f"round-{number}").mkdir()
        yield f"sqlite:///{tmp_path / f'round-{number}' / 'redrive.db'}"

    return "sqlite", file


@pytest.mark.req("A7", "B4")
@pytest.mark.promise(*PROMISES)
def test_workers_and_producers_are_killed_and_nothing_is_lost(
    fresh: Fresh, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    store, database = fresh
    run = record("kill -9", store)
    with database(0) as url:
        killed_again_and_again(url, tmp_path / "crew", random.Random(seed), run, kills=26)
    assert run.faults["worker"]
    assert run.faults["producer"]
    assert run.reached["lost"]


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise(*PROMISES)
def test_thousands_of_kills(
    fresh: Fresh,
    tmp_path: Path,
    seed: int,
    budget: float,
    record: Callable[..., Record],
) -> None:
    store, database = fresh
    run, dice, until_when, rounds = record("kill -9", store), random.Random(seed), time.monotonic() + budget, 0
    while not rounds or (time.monotonic() < until_when and not run.violations):
        rounds += 1
        with database(rounds) as url:
            killed_again_and_again(url, tmp_path / f"crew-{rounds}", dice, run, kills=100)
    assert run.reached["lost"]


def killed_again_and_again(url: str, folder: Path, dice: random.Random, run: Record, *, kills: int) -> None:
    """Let a crew work, kill one of it at random moments, start it again; then let it finish, and look."""
    with crew_on(url, folder) as crew:
        assemble(crew)
        wait_until(lambda: version(url))  # kills in the middle of the first migration are below
        for _ in range(kills):
            time.sleep(dice.uniform(0.02, 0.5))
            victim = dice.choice(crew.members)
            run.faults[victim.role] += 1
            crew.replace(victim)
        for each in crew.of("checkpoint"):
            crew.kill(each)
        aftermath.drain(crew)
        run.cases += kills
        found = aftermath.look(crew)
        run.violations += found.violations
        aftermath.note_reached(run, crew)
        assert not found.violations, f"{found}\n{crew.said()}"


def assemble(crew: Crew) -> None:
    """Three workers, two producers; on SQLite somebody who checkpoints."""
    for _ in range(3):
        crew.start("worker")
    for _ in range(2):
        crew.start("producer")
    if crew.url.startswith("sqlite"):
        crew.start("checkpoint")


@pytest.mark.req("O5")
@pytest.mark.promise("upgrade")
def test_a_migration_is_killed_again_and_again_and_the_next_goes_on(
    fresh: Fresh, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    store, database = fresh
    with database(0) as url:
        killed_migrations(url, tmp_path / "crew", random.Random(seed), record("kill -9", store), kills=12)


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("upgrade")
def test_hundreds_of_killed_migrations(
    fresh: Fresh,
    tmp_path: Path,
    seed: int,
    budget: float,
    record: Callable[..., Record],
) -> None:
    store, database = fresh
    run, dice, until_when, rounds = record("kill -9", store), random.Random(seed), time.monotonic() + budget, 0
    while not rounds or time.monotonic() < until_when:
        rounds += 1
        with database(rounds) as url:
            killed_migrations(url, tmp_path / f"crew-{rounds}", dice, run, kills=20)


def killed_migrations(url: str, folder: Path, dice: random.Random, run: Record, *, kills: int) -> None:
    """Start `redrive migrate`, two at once, on an empty database and kill them at growing moments; then let one finish.

    The schema that comes out is the one that an undisturbed migration makes, and work can begin.
    """
    with crew_on(url, folder) as crew:
        for number in range(kills):
            pair = [crew.start("migrate"), crew.start("migrate")]
            time.sleep(dice.uniform(0.0, 0.05 + 0.4 * number / kills))
            for each in pair:
                if each.pid not in crew.exits():
                    run.faults["migrate"] += 1
                crew.kill(each)
            run.reached[f"version {version(url)}"] += 1
        last = crew.start("migrate")
        wait_until(lambda: last.pid in crew.exits())
        assert crew.exits()[last.pid] == 0, crew.said()
        run.cases += kills
        assert version(url) == migrations("sqlite")[-1][0]
        crew.start("worker")
        crew.start("producer", most=20)
        wait_until(lambda: query(url, "select 1 from {}outbox where status = 'delivered'"))
        aftermath.drain(crew)
        found = aftermath.look(crew)
        run.violations += found.violations
        assert not found.violations, f"{found}\n{crew.said()}"


def version(url: str) -> int:
    """Ask how far the schema has come."""
    try:
        (row,) = query(url, "select max(version) as n from {}schema_version")
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, sqlite3.OperationalError):
        return 0  # there is none yet
    return int(row["n"] or 0)
