"""A saga of three steps with effects outside, killed at every point, ends complete or wholly undone: never a half."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

import pytest

from redrive import Redrive, Refused, Status
from tests import warm
from tests.stores.helpers import found, raw

SAGA = Path(__file__).with_name("saga.py")


class Saga:
    """The process that carries out orders, and the world that it acts on."""

    def __init__(self, url: str, world: Path) -> None:
        self._world = world
        with closing(sqlite3.connect(world)) as outside:
            outside.execute("create table effect (key text primary key, event text, name text)")
            outside.execute("create table undone (n integer primary key, key text, event text, name text)")
            outside.commit()
        self.process = warm.python(
            [str(SAGA), url, str(world)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ},
        )  # fmt: skip

    def killed(self, ending: str, point: int) -> bool:
        """Work until the end, or until the point that kills; say whether there was such a point."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{ending} {point}\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        assert code in (0, -signal.SIGKILL), f"the worker ended with {code}"
        return code != 0

    def effects(self, event_id: UUID) -> tuple[list[str], list[str]]:
        """Say what is done and stays done, and what was undone, in order, without repetitions."""
        with closing(sqlite3.connect(self._world)) as outside:
            done = outside.execute("select key, name from effect where event = ? order by name", (str(event_id),))
            effects = dict(done.fetchall())
            undone = outside.execute("select key, name from undone where event = ? order by n", (str(event_id),))
            names = dict(undone.fetchall())
        return [name for key, name in effects.items() if key not in names], list(names.values())


@pytest.fixture
def saga(store_url: str, tmp_path: Path) -> Iterator[Saga]:
    saga = Saga(store_url, tmp_path / "world.db")
    yield saga
    assert saga.process.stdin is not None
    assert saga.process.stdout is not None
    saga.process.stdin.close()
    saga.process.wait(10)
    saga.process.stdout.close()


@pytest.mark.lab_short
@pytest.mark.req("W9", "B10")
@pytest.mark.parametrize("ending", ["deliver", "reject"])
async def test_a_saga_killed_at_any_point_is_complete_or_wholly_undone(store_url: str, saga: Saga, ending: str) -> None:
    ids: list[UUID] = []
    async with Redrive(store_url, migrate=True) as app:
        killed = True
        while killed:  # one saga for each point, until there is none left
            ids.append((await app.publish("saga")).id)
            killed = saga.killed(ending, len(ids))
            with raw(store_url) as run:  # nobody sees that its process is gone: the next one has a saga of its own
                run("update {session} set process = null")
        # One that would be delivered in the end either goes on or is called off; the stores take turns at that.
        for event_id in ids[app.store.name == "sqlite" :: 2] if ending == "deliver" else ():
            with suppress(Refused):  # it had ended before
                await app.cancel(event_id, by="anna", reason="enough")
        with raw(store_url) as run:  # the leases of the dead run out
            run("update {session} set lease_until = " + ("0" if app.store.name == "sqlite" else "'2000-01-01'"))
        assert not saga.killed(ending, 0)

        for point, event_id in enumerate(ids, 1):
            event = await found(app, event_id)
            left, undone = saga.effects(event_id)
            where = f"killed at point {point}: {event.status}, {event.compensation}, left {left}, undone {undone}"
            if event.status is Status.DELIVERED:
                assert (left, undone) == (["a", "b", "c"], []), where
            else:
                assert event.status is (Status.FAILED if ending == "reject" else Status.CANCELLED), where
                assert left == [], where
                assert event.compensation in ("done", None), where
                assert undone == sorted(undone, reverse=True), where
    assert len(ids) > 15
