"""A rolling deployment: workers of an earlier commit and of this one on one database, while it is migrated under them.

What was acknowledged is not lost and no effect is doubled, whichever code settles. Old code that is at work goes on;
old code that starts again goes on too where the schema allows it, and says clearly that it may not where it does not.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from redrive import Redrive
from redrive.store.sql import FIRST_ROLLING, Statement, migrations, needs, statement
from tests.conftest import REQUIRE_ALL, Run
from tests.lab import aftermath, ledger
from tests.lab.checker import EFFECTS, Finding
from tests.lab.crew import ROOT, Crew, Member, crew_on
from tests.lab.hand import ORDER
from tests.lab.record import Record
from tests.lab.test_upgrade import NEWEST, migrate, version_of
from tests.stores.helpers import is_postgres
from tests.waiting import wait_until

pytestmark = pytest.mark.no_tables

ELDERS = {"ed859b7": 11, "cda3618": 13, "7891945": 13, "da5fc07": 14, "a614eba": 15}
"""Commits whose schema is older than today's, and which it is. A migration adds the commit before it."""


def source_of(commit: str, folder: Path, run: Run) -> Path:
    """Take the code of an earlier commit; without the history there is none, and that is said."""
    command = ["git", "archive", "--format=tar", commit, "src"]
    try:
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        run.missing["history"] = f"no code of {commit} to run beside ours: {said}"
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but there is {run.missing['history']}", pytrace=False)
        pytest.skip(run.missing["history"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        asked: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not before Python 3.11.4
        archive.extractall(folder, **asked)
    return folder / "src"


def test_the_code_before_the_last_migration_is_among_those_that_run_beside_ours() -> None:
    assert max(ELDERS.values()) == NEWEST - 1, "add the commit before the new migration to ELDERS"


# --- at work together ---


@pytest.mark.promise("upgrade", "durable", "effect-once")
@pytest.mark.parametrize("commit", [*ELDERS][-1:])
def test_old_and_new_workers_share_a_database_that_is_migrated_under_them(
    commit: str, store_url: str, tmp_path: Path, seed: int, run: Run, record: Callable[..., Record]
) -> None:
    source = source_of(commit, tmp_path / "old", run)
    noted = record("upgrade", "postgres" if is_postgres(store_url) else "sqlite")
    rolled(store_url, tmp_path / "crew", source, ELDERS[commit], random.Random(seed), noted, rounds=4)


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("upgrade", "durable", "effect-once")
@pytest.mark.parametrize("commit", ELDERS)
def test_old_and_new_workers_share_a_database_for_minutes(
    commit: str, store_url: str, tmp_path: Path, seed: int, budget: float, run: Run, record: Callable[..., Record]
) -> None:
    source = source_of(commit, tmp_path / "old", run)
    noted = record("upgrade", "postgres" if is_postgres(store_url) else "sqlite")
    rolled(
        store_url, tmp_path / "crew", source, ELDERS[commit], random.Random(seed), noted, rounds=max(10, int(budget))
    )


def rolled(
    url: str, folder: Path, source: Path, version: int, dice: random.Random, run: Record, *, rounds: int
) -> None:
    """Old code at work; migrate, with kills; new code beside it; kill now an old one and now a new one."""
    asyncio.run(migrate(url, to=version))
    asyncio.run(_tables(url))
    with crew_on(url, folder, source=source) as old, crew_on(url, folder) as new:
        stayers = [old.start("worker"), old.start("producer")]
        for role in ("worker", "worker", "producer"):
            old.start(role)
        wait_until(lambda: old.ledger.exists() and old.ledger.stat().st_size > 20_000, 60, old.said())
        migrated(new, url, dice, run)
        for _ in range(2):
            new.start("worker")
        new.start("producer")
        asyncio.run(redriven(url))
        for _ in range(rounds):
            time.sleep(dice.uniform(0.2, 0.8))
            kill_one(dice.choice([old, new]), stayers, dice, run)
        run.cases += rounds
        assert not {each.pid for each in stayers} & old.exits().keys(), f"old code did not go on: {old.said()}"
        run.reached["attempts of old code"] += attempts_of(old, stayers[0])
        start_late(old, version)
        old.end("producer")
        old.end("worker")
        assert [old.exits()[each.pid] for each in stayers] == [0, 0], old.said()
        new.killed |= old.killed
        if not new.of("worker"):
            new.start("worker")
        aftermath.drain(new)
        found = judged(new, run)
        aftermath.note_reached(run, new)
        run.violations += found.violations
        assert not found.violations, f"{found}\n{new.said()}"


async def _tables(url: str) -> None:
    """Make the tables of the lab's handlers: the code of old has no place to say so."""
    if is_postgres(url):
        server = await asyncpg.connect(url)
        await server.execute(f"{EFFECTS}; {ORDER}")
        await server.close()
        return
    file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    file.executescript(f"{EFFECTS}; {ORDER}")
    file.close()


def migrated(crew: Crew, url: str, dice: random.Random, run: Record) -> None:
    """Run `redrive migrate`, kill it a few times on its way, and let it finish."""
    for _ in range(3):
        one = crew.start("migrate")
        time.sleep(dice.uniform(0.0, 0.3))
        if one.pid not in crew.exits():
            run.faults["migrate"] += 1
        crew.kill(one)
    last = crew.start("migrate")
    wait_until(lambda: last.pid in crew.exits())
    crew.members.remove(last)
    assert crew.exits()[last.pid] == 0, crew.said()
    assert asyncio.run(version_of(url)) == NEWEST


async def redriven(url: str) -> None:
    """Send every dead letter round again; whoever has time carries it on."""
    async with Redrive(url, migrate=False) as app:
        plan = await app.plan("", by="ann", unsafe=True)
        if plan.redrive.ready:
            await app.start(plan.redrive.token, by="ann", reason="the new code can")


def kill_one(crew: Crew, stayers: list[Member], dice: random.Random, run: Record) -> None:
    """Kill one and start it again; old code that may not start on this schema says so and ends."""
    for gone in [each for each in crew.members if each.pid in crew.exits()]:
        crew.members.remove(gone)
    if victims := [each for each in crew.members if each not in stayers]:
        victim = dice.choice(victims)
        run.faults[victim.role] += 1
        crew.replace(victim)


def start_late(crew: Crew, version: int) -> None:
    """Start old code on the schema of today: where it may not work it ends at once, and says why."""
    late = crew.start("worker")
    if max(version, FIRST_ROLLING) > version:
        wait_until(lambda: late.pid in crew.exits())
        crew.members.remove(late)
        assert any("SchemaTooNew" in said for said in crew.ended_by_themselves()), crew.said()
    else:
        wait_until(lambda: attempts_of(crew, late))


def attempts_of(crew: Crew, member: Member) -> int:
    lines = ledger.lines(crew.ledger)
    return sum(line["what"] == "attempt" and line["answer"] == "ok" and line["pid"] == member.pid for line in lines)


def judged(crew: Crew, run: Record) -> Finding:
    """Look at everything; that old code refused a schema which it does not know is no finding, if it said so."""
    found = aftermath.look(crew, is_bounded=False)
    ended = [line["error"] for line in ledger.lines(crew.ledger) if line["what"] == "ended"]
    refused = [error for error in ended if "SchemaTooNew" in error and "upgrade redrive" in error]
    run.reached["refused"] += len(refused)
    found.violations["ended"] -= len(refused)
    found.violations = +found.violations
    return found


# --- the rule for migrations ---


def statements(source: Path, store: str) -> list[Statement]:
    """Read every statement of some code; what it leaves open is left empty."""
    found = []
    for path in sorted((source / "redrive" / "store" / store).glob("*.sql")):
        text = path.read_text().replace("{columns}", "*").replace("{order}", "id").replace("{lanes}", "(0, '', 0, 0)")
        found.append(statement(path.stem, re.sub(r"\{[a-z]+\}", "", text)))
    return found


@pytest.mark.promise("upgrade")
@pytest.mark.parametrize("commit", [commit for commit, version in ELDERS.items() if version == NEWEST - 1])
async def test_the_statements_of_earlier_code_fit_the_schema_of_today(
    commit: str, store_url: str, tmp_path: Path, run: Run, record: Callable[..., Record]
) -> None:
    """A migration only adds; one that must break says ``-- Needs:`` with its own number, and then old code stops."""
    if needs("sqlite", NEWEST) == NEWEST > FIRST_ROLLING:
        pytest.skip(f"migration {NEWEST} says that older code may not go on")
    store = "postgres" if is_postgres(store_url) else "sqlite"
    noted = record("upgrade", store)
    known = statements(source_of(commit, tmp_path / "old", run), store)
    await migrate(store_url)

    unfit = await (unfit_on_postgres if store == "postgres" else unfit_on_sqlite)(store_url, known)

    noted.cases += len(known)
    assert len(known) > 100
    assert not unfit


async def unfit_on_postgres(url: str, known: list[Statement]) -> dict[str, str]:
    unfit = {}
    connection = await asyncpg.connect(url)
    for each in known:
        try:
            await connection.prepare(each.numbered)
        except asyncpg.PostgresError as error:
            unfit[each.verb] = str(error)
    await connection.close()
    return unfit


async def unfit_on_sqlite(url: str, known: list[Statement]) -> dict[str, str]:
    unfit = {}
    file = sqlite3.connect(url.removeprefix("sqlite:///"))
    for each in known:
        try:
            file.execute(f"explain {each.text}", dict.fromkeys(each.names))
        except sqlite3.Error as error:
            unfit[each.verb] = str(error)
    file.close()
    return unfit


def test_both_stores_need_the_same_code() -> None:
    assert [needs("sqlite", version) for version, _, _ in migrations("sqlite")] == [
        needs("postgres", version) for version, _, _ in migrations("postgres")
    ]
