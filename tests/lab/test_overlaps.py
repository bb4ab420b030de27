"""PostgreSQL: whatever is held up in its middle while somebody else acts ends as if one of the two had come first.

As ``test_interleavings.py``, for what the model does not know: batches, reservations, schedules, limits, steps,
dependencies, policies, groups, findings, plans, edits and keys (``overlap``). What may come out is what the same
two make of the same scene when they come one after the other, in either order: the answers, and every table but for the
columns that number what came together.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from redrive import Redrive, RedriveError
from redrive.clock import VirtualClock
from tests.lab.gate import Gate, Place
from tests.lab.overlap.base import Player
from tests.lab.overlap.scenes import SCENES
from tests.lab.record import Record
from tests.stores.helpers import Hands

_TABLES = "select 'redrive.' || tablename from pg_tables where schemaname = 'redrive' order by 1"
_APART = ("redrive.schema_version", "redrive.clock")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERS = ("seq", "hash", "previous", "position")  # which of two that came together was first

_ORDERS = ("as if the first came first", "as if the second came first", *["as if one had left"] * 2)

Seen = tuple[Any, ...]


class Stage:
    """A scene, and the two who act in it: the left one can be held up."""

    def __init__(self, url: str, name: str, record: Record) -> None:
        self.name, self.scene, self.record = name, SCENES[name], record
        self.clock = VirtualClock()
        self.gate = Gate(url)
        self._url = url
        self._serial: dict[tuple[str, str], list[Seen]] = {}

    async def open(self) -> None:
        self.left = await self._player("left", self.gate.way)
        self.right = await self._player("right", self._url)
        await self.scene.lay(self.right)
        self.left.things.update(self.right.things)
        self.clock.advance(self.scene.passes)
        self._raw = psycopg.connect(self._url, autocommit=True)
        self._raw.execute("set session_replication_role = replica")  # what is put back is not an act
        self._tables = [table for (table,) in self._raw.execute(_TABLES) if table not in _APART]
        for table in self._tables:
            self._raw.execute(f"create table {_kept(table)} as select * from {table}")
        known = [each for table in self._tables for text in self._texts(table) for each in _ID.findall(text)]
        self._known = {each: f"id {number}" for number, each in enumerate(dict.fromkeys(known))}
        await self.gate.open(self._tables)

    async def _player(self, name: str, url: str) -> Player:
        app = Redrive(url, clock=self.clock, migrate=True)
        if name == "left":
            self.gate.stand_before(app)
        await app.open()
        return Player(name, app, await Hands.begin(app, lease=86_400.0))

    async def close(self) -> None:
        await self.gate.close()
        self._raw.close()
        for player in (self.left, self.right):
            await player.hands.claims.close()
            await player.app.close()

    def put_back(self) -> None:
        gone = ";".join(f"delete from {table}" for table in self._tables)
        back = ";".join(f"insert into {table} select * from {_kept(table)}" for table in self._tables)
        self._raw.execute(f"{gone};{back}".encode())

    def _texts(self, table: str) -> list[str]:
        return [text for (text,) in self._raw.execute(f"select to_jsonb(t)::text from {table} t")]

    def seen(self, answers: tuple[Any, Any]) -> Seen:
        """Tell everything that stands there now; what is new has no name."""
        rows = []
        for table in self._tables:
            for text in self._texts(table):
                row = json.loads(_ID.sub(lambda found: self._known.get(found[0], "new"), text))
                rows.append(f"{table} {json.dumps({name: row[name] for name in row if name not in _NUMBERS})}")
        return *answers, *sorted(rows)

    async def _do(self, player: Player, verb: str) -> Any:
        try:
            return await self.scene.verbs[verb](player)
        except RedriveError as error:
            return type(error).__name__

    async def serial(self, one: str, two: str) -> list[Seen]:
        """Tell what comes out when they come one after the other: one first, two first."""
        if (one, two) not in self._serial:
            self.put_back()
            first = await self._do(self.left, one)
            forth = self.seen((first, await self._do(self.right, two)))
            self.put_back()
            second = await self._do(self.right, two)
            self._serial[one, two] = [forth, self.seen((await self._do(self.left, one), second))]
            self._serial[one, two] += await self._alone(one, two)
        return self._serial[one, two]

    async def _alone(self, one: str, two: str) -> list[Seen]:
        """Tell what comes out when one of them finds the other at it, and leaves."""
        alone = []
        if two in self.scene.yields:
            self.put_back()
            alone.append(self.seen((await self._do(self.left, one), False)))
        if one in self.scene.yields:
            self.put_back()
            alone.append(self.seen((False, await self._do(self.right, two))))
        return alone

    async def places(self, verb: str) -> list[Place]:
        self.put_back()
        return await self.gate.places(lambda: self._do(self.left, verb))

    async def meanwhile(self, one: str, place: Place, two: str) -> str | None:
        """Hold the first up there, let the second run, let the first go on; say what is wrong."""
        allowed = await self.serial(one, two)
        self.put_back()
        answers, waits = await self.gate.meanwhile(
            place, lambda: self._do(self.left, one), lambda: self._do(self.right, two)
        )
        self.record.reached["the second waits" if waits else "the second passes"] += 1
        seen = self.seen(answers)
        if seen in allowed and (await self.right.app.verify_trail()).sound:
            self.record.reached[_ORDERS[allowed.index(seen)]] += 1
            return None
        again = f"LAB_CASE='{self.name}/{one}/{place}/{two}' make lab-short ARGS=tests/lab/test_overlaps.py"
        return f"{one!r} held up at {place}, and {two!r}: {_difference(seen, allowed)}\n    again with: {again}"


def _kept(table: str) -> str:
    return f"kept_{table.partition('.')[2]}"


def _difference(seen: Seen, allowed: list[Seen]) -> str:
    said = []
    if seen in allowed:
        return "the trail is broken"
    for order, expected in zip(_ORDERS, allowed, strict=False):
        more = [str(each) for each in seen if each not in expected]
        less = [str(each) for each in expected if each not in seen]
        said.append(f"\n  not {order}: answers {seen[:2]}, not {expected[:2]};\n    has {more}\n    not {less}")
    return "".join(said)


async def overlapped(url: str, name: str, run: Record, *, share: float, seed: int, end: float) -> list[str]:
    stage, dice, wrong = Stage(url, name, run), random.Random(seed), []
    await stage.open()
    try:
        if case := os.environ.get("LAB_CASE"):
            of, one, at, two = case.split("/")
            kind, _, number = at.partition(":")
            said = await stage.meanwhile(one, Place(kind, int(number)), two) if of == name else None
            return [said] if said else []
        places = [(verb, place) for verb in stage.scene.verbs for place in await stage.places(verb)]
        for (one, place), two in itertools.product(places, stage.scene.verbs):
            is_chosen = dice.random() < share or (one, two) in stage.scene.kept
            if is_chosen and time.monotonic() < end:
                run.cases += 1
                run.faults[f"held up at a {place.kind}"] += 1
                if said := await stage.meanwhile(one, place, two):
                    wrong.append(said)
    finally:
        await stage.close()
    return wrong


@pytest.mark.promise("notices", "one-winner", "trail", "effect-once")
@pytest.mark.req("E8", "W8", "W9", "B3")
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
async def test_what_is_held_up_in_its_middle_ends_as_if_it_had_come_first_or_last(
    form: str, name: str, postgres_url: str, record: Callable[..., Record], seed: int, budget: float
) -> None:
    run = record("overlaps", "postgres")
    end = time.monotonic() + budget

    share = 0.02 if form == "short" else 1.0
    wrong = await overlapped(postgres_url, name, run, share=share, seed=seed, end=end)

    run.violations.update(["neither order"] * len(wrong))
    assert not wrong, "\n".join(wrong)
    assert "LAB_CASE" in os.environ or run.cases
