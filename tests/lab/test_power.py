"""What was acknowledged survives a power cut at any moment, and what was not is there whole or not at all."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Redrive, redrive
from redrive.clock import VirtualClock
from redrive.store.sqlite import SqliteStore
from tests.lab import checker
from tests.lab.powerless import Cut, Kept, Run, digest, recording
from tests.lab.record import Record
from tests.stores.helpers import Hands, failed, retried, uuid_of


async def live(path: Path, synchronous: str) -> None:
    """A bit of everything that is written, with checkpoints between."""
    clock = VirtualClock()
    app = Redrive(f"sqlite:///{path}", clock=clock)
    app._store = store = SqliteStore(str(path), clock, synchronous=synchronous)
    async with app:
        store.writer.connection.execute("pragma wal_autocheckpoint=30")
        hands = await Hands.begin(app)
        for round_ in range(3):
            await app.publish("lab.t", "x" * 3000, ordering_key="k", retry_key=f"r{round_}")
            await app.publish_many([("lab.t", n) for n in range(4)])
            rows = await hands.claim()
            await hands.deliver(rows[0])
            await hands.settle(failed(rows[1]), failed(rows[2]))
            await hands.settle(retried(rows[3], 1.0))
            async with app.transaction() as work:
                await work.execute("insert into lab_effect values (?, ?, ?)", f"k{round_}", str(rows[4][0]), 1)
            async with store.transaction() as tx:
                await tx.deliver(rows[4][0], rows[4][1])
            plan = await app.plan("type:lab.t", by="ann", unsafe=True)
            started = await app.start(plan.redrive.token, by="ann", reason="mended")
            await redrive.tick(store, chain="lab")
            dead = await hands.claim(1)
            await hands.settle(failed(dead[0]))
            await app.replay(uuid_of(dead[0]), by="ann", reason="again")
            await redrive.tick(store, chain="lab")
            await app.abort(started.id, by="ann", reason="enough")
            clock.advance(2)
            await _checkpoint(store)
        await hands.deliver(*await hands.claim())
        await store.end_session(hands.id)


async def _checkpoint(store: SqliteStore) -> None:
    with store.writer.pen:
        store.writer.connection.execute("pragma wal_checkpoint(truncate)").fetchall()


async def lived(path: Path, synchronous: str) -> tuple[Run, dict[str, bytes]]:
    """Run it once, from a file whose tables are on the disk."""
    async with Redrive(f"sqlite:///{path}", clock=VirtualClock()):
        pass
    file = sqlite3.connect(path, isolation_level=None)
    file.execute(checker.EFFECTS)
    file.close()
    before = {path.name: path.read_bytes()}  # noqa: ASYNC240 - nobody else is here
    with recording() as run:
        file = sqlite3.connect(path)
        run.states.append(digest(file))
        file.close()
        await live(path, synchronous)
    return run, before


def cut_everywhere(
    run: Run, before: dict[str, bytes], folder: Path, record: Record, *, between: float, seeds: range
) -> None:
    """Cut the power around every sync, and at some places between."""
    cut, dice = Cut(run, before), random.Random(seeds.start)
    path = folder / next(iter(before))
    while cut.at < len(run.notes):
        is_sync = run.notes[cut.at].kind in ("sync", "commit", "remove")
        if is_sync or dice.random() < between:
            ways: list[tuple[Kept, int]] = [("none", 0)]
            ways += [("all", 0), *(("some", seed) for seed in seeds)] if cut.has_unsynced else []
            for kept, seed in ways:
                cut.draw(folder, kept, random.Random(f"{seed} {cut.at}"))
                record.cases += 1
                record.faults[f"cut, {kept} kept"] += 1
                if (wrong := cut.verdict(path)) is not None:
                    record.violations[wrong.partition(":")[0]] += 1
        note = cut.step()
        record.reached[f"{note.kind} {note.name.removeprefix(path.name) or 'db'}"] += 1


def check_reached(record: Record) -> None:
    for what in ("write db", "write -wal", "sync db", "sync -wal", "commit db"):
        assert record.reached[what], f"never happened: {what}"


@pytest.mark.promise("durable", "trail", "no-phantom")
@pytest.mark.req("O1")
async def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, record: Callable[..., Record]) -> None:
    run, before = await lived(tmp_path / "lab.db", "FULL")
    (folder := tmp_path / "cut").mkdir()
    cuts = record("power loss")

    cut_everywhere(run, before, folder, cuts, between=0.02, seeds=range(1, 2))

    check_reached(cuts)
    assert len(run.states) > 40


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("durable", "trail", "no-phantom")
async def test_a_power_cut_at_every_write_loses_nothing(
    tmp_path: Path, record: Callable[..., Record], seed: int
) -> None:
    run, before = await lived(tmp_path / "lab.db", "FULL")
    (folder := tmp_path / "cut").mkdir()
    cuts = record("power loss")

    cut_everywhere(run, before, folder, cuts, between=1.0, seeds=range(seed, seed + 20))

    check_reached(cuts)


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
async def test_a_store_that_does_not_wait_for_the_disk_is_found_out(synchronous: str, tmp_path: Path) -> None:
    """The experiment can fail: this is what it says of settings that acknowledge too early."""
    run, before = await lived(tmp_path / "lab.db", synchronous)
    (folder := tmp_path / "cut").mkdir()
    cuts = Record("power loss")

    cut_everywhere(run, before, folder, cuts, between=0.0, seeds=range(0))

    assert cuts.violations["lost"] > 10
