"""Any two verbs at once end as if one of them had come first: the answers, and every row.

Both begin at the same moment, on connections of their own, in one scene in which most verbs meet most others. What may
come out is what the model makes of the two orders. A purge is left out: it passes over what others are moving.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from redrive import RedriveError
from redrive.clock import VirtualClock
from tests.lab.plans import Model
from tests.lab.record import Record
from tests.lab.sides import Side, dead_counts, in_order, micros, view_of
from tests.stores.helpers import LANES, is_postgres

S = "the session of whoever does it"
ONE, THREE = (1, 1), (3, 1)  # leases that a session which is gone has left
EIGHT, STALE = (8, 2), (8, 1)  # one that is held, and the one before it of the same event
VERBS: tuple[tuple[Any, ...], ...] = (
    ("publish", "t", "a", None, 0, 1),
    ("publish", "t", "b", None, 0, 1),
    ("claim", S, 20),
    ("deliver", ONE),
    ("handle", ONE, S),
    ("retry", ONE, 0),
    ("bury", ONE, "f1", True, False),
    ("block", ONE, "case-api"),
    ("put_back", ONE, 0),
    ("deliver", THREE),
    ("bury", THREE, "f2", True, False),
    ("bury", THREE, "f2", True, True),
    ("put_back", THREE, 0),
    ("deliver", EIGHT),
    ("bury", EIGHT, "f2", True, True),
    ("put_back", EIGHT, 0),
    ("deliver", STALE),
    ("handle", STALE, S),
    ("retry", STALE, 0),
    ("put_back", STALE, 0),
    ("sweep", S, 3),
    ("sweep", S, 1),
    ("beat", S),
    ("cancel", 1),
    ("cancel", 3),
    ("cancel", 4),
    ("cancel", 6),
    ("replay", 2),
    ("replay", 2, "1000"),
    ("replay", 7),
    ("discard", 2),
    ("discard", 7),
    ("restore", 5),
    ("hold", "t"),
    ("plan", "t", True),
    ("start", 1, 20, ()),
    ("carry_on", 2),
    ("stop", 2, "paused"),
    ("stop", 2, "aborted"),
)


Shown = dict[Any, Any]
"""Events by their numbers, the dead letters of each group, and the trail."""
Outcome = tuple[tuple[Any, ...], Shown]
KEPT = (  # deadlocks, an error in the driver's words, and a trail that told what had been before, once
    (("carry_on", 2), ("stop", 2, "aborted")),
    (("stop", 2, "paused"), ("carry_on", 2)),
    (("replay", 2, "1000"), ("replay", 2, "1000")),
    (("replay", 2, "1000"), ("restore", 5)),
    (("replay", 2, "1000"), ("discard", 7)),
    (("replay", 2, "1000"), ("bury", ONE, "f1", True, False)),
)


class Scene:
    """Events in every status, one behind another, a plan, a redrive under way: set up once, and put back each time."""

    def __init__(self, url: str, record: Record) -> None:
        self.clock = VirtualClock()
        self.record = record
        self.left, self.right = Side(url, self.clock), Side(url, self.clock)
        self.model = Model(0)

    async def open(self) -> None:
        for side in (self.left, self.right):
            await side.open()
        await self.left.empty()
        await self.right.empty()
        self.model = Model(micros(self.clock))
        await self.do("begin", 0)
        await self.do("begin", 1)
        await self.do("publish", "t", None, None, 0, 1)
        await self.do("publish", "t", None, None, 0, 1)
        await self.do("publish", "t", None, "k", 0, 1)
        await self.do("publish", "t", None, "k", 0, 1)
        await self.do("publish", "t", None, None, 0, 1)
        await self.do("publish", "t", "b", None, 0, 1)
        await self.do("claim", 0, 20)
        for n in (2, 5, 6):
            await self.do("bury", (n, 1), "f1", True, False)
        await self.do("discard", 5)
        await self.do("publish", "t", "a", None, 0, 1)
        await self.do("publish", "t", None, "m", 0, 0)
        await self.do("claim", 0, 1)
        await self.do("put_back", STALE, 0)
        await self.do("claim", 1, 1)
        await self.do("publish", "t", None, "m", 0, 1)
        await self.do("plan", "t", True)
        await self.do("plan", "t", True)
        await self.do("start", 2, 1, ())
        await self.do("leave", 0)
        self.right.ids, self.right.plans, self.right.rows = self.left.ids, self.left.plans, self.left.rows
        await self.right.begin(3)
        self.model.begin(3)
        self._keep()

    async def close(self) -> None:
        await self.right.close()
        await self.left.close()

    async def do(self, verb: str, *arguments: Any) -> None:
        self.clock.advance(0.001)
        self.model.now = micros(self.clock)
        answer = getattr(self.model, verb)(*arguments)
        assert await self.left.do(verb, *arguments) == answer

    def _keep(self) -> None:
        raw = self.left.raw
        for table in self.left._tables:
            raw.execute(f"create table kept_{table.replace('.', '_')} as select * from {table}")
        kept = [(table, f"kept_{table.replace('.', '_')}") for table in self.left._tables]
        self._full = [pair for pair in kept if raw.execute(f"select count(*) from {pair[1]}").fetchone()[0]]
        self._known = len(self.left.ids), len(self.left.plans), dict(self.left.rows)

    def put_back(self) -> None:
        """Make everything what it was."""
        text = ";".join(f"delete from {table}" for table in self.left._tables)
        text += ";" + ";".join(f"insert into {table} select * from {kept}" for table, kept in self._full)
        if self.left.is_postgres:
            self.left.raw.execute(text)
        else:
            self.left.raw.executescript(f"begin;{text};commit")
        del self.left.ids[self._known[0] :], self.left.plans[self._known[1] :]
        self.left.rows.clear()
        self.left.rows.update(self._known[2])

    async def at_once(self, one: tuple[Any, ...], two: tuple[Any, ...]) -> str | None:
        """Do both at once; say what is wrong."""
        self.put_back()
        self.clock.advance(0.001)
        first, second = for_session(one, 1), for_session(two, 3)
        if "claim" in (one[0], two[0]):
            await self._forget_watermarks()
        begun = [self.left.do(*first), self.right.do(*second)]
        answers = tuple(await asyncio.gather(*begun))
        wrong = await self.judge(first, second, answers)
        return None if wrong is None else f"{one} and {two}: {wrong}; again with: {_again(one, two)}"

    async def judge(self, first: tuple[Any, ...], second: tuple[Any, ...], answers: tuple[Any, ...]) -> str | None:
        """Say what is wrong unless it is as if one of the two had come first: the answers, every row, what was told."""
        if not (await self.left.operator.verify_trail()).sound:
            return f"{answers}, and the trail is broken"
        counted = {fingerprint: dead for fingerprint, dead, _, _ in self.left.groups() if dead}
        seen: Shown = {**self.left.view(), "groups": counted, "trail": self.left.trail()}
        allowed = [self._serial([(0, first), (1, second)], answers), self._serial([(1, second), (0, first)], answers)]
        claiming = "claim" in (first[0], second[0])
        for place, (expected, rows) in enumerate(allowed):
            if answers == expected and all(
                self._fits(seen.get(n), rows.get(n), claiming=claiming) for n in {*seen, *rows}
            ):
                self.record.reached["as if the first came first" if place == 0 else "as if the second came first"] += 1
                return None
        return f"{answers} and {_differences(seen, allowed)}"

    def _fits(self, seen: Any, expected: Any, *, claiming: bool) -> bool:
        """Compare two rows. Who claims while the one before is just leaving its flight puts off, and blocks later."""
        if seen == expected or not claiming:
            return bool(seen == expected)
        return isinstance(seen, tuple) and seen == ("pending", micros(self.clock), *_unblocked(expected)[2:])

    async def _forget_watermarks(self) -> None:
        """Claim like somebody who comes anew: what was put back is due at a time that claims have passed long ago."""
        for hands in (self.left.hands[1], self.right.hands[3]):
            await hands.claims.close()
            hands.claims = hands.app.store.claims(hands.id, LANES, actor="hands")

    def _serial(self, calls: list[tuple[int, tuple[Any, ...]]], answers: tuple[Any, ...]) -> Outcome:
        """Let the model do both in this order. Who finds a redrive taken leaves it alone, and says so: no answer."""
        model = copy.deepcopy(self.model)
        model.now = micros(self.clock)
        expected: dict[int, Any] = {}
        for place, (verb, *arguments) in calls:
            if verb == "carry_on" and answers[place] is None:
                expected[place] = None
                continue
            try:
                expected[place] = getattr(model, verb)(*arguments)
            except RedriveError as error:
                expected[place] = type(error).__name__
        shown: Shown = {**view_of(model), "groups": dead_counts(model), "trail": in_order(model.trail)}
        return (expected[0], expected[1]), shown


def _unblocked(row: Any) -> tuple[Any, ...]:
    """Give a row that is blocked by its ordering key alone, and nothing for any other."""
    return row if isinstance(row, tuple) and row[0] == "blocked" and row[9] is None else ()


def for_session(call: tuple[Any, ...], session: int) -> tuple[Any, ...]:
    return tuple(session if each is S else each for each in call)


def _again(one: tuple[Any, ...], two: tuple[Any, ...]) -> str:
    return f"LAB_CASE={VERBS.index(one)}:{VERBS.index(two)} make lab-short ARGS=tests/lab/test_pairs.py"


def _differences(seen: Shown, allowed: list[Outcome]) -> str:
    said = []
    for answers, rows in allowed:
        wrong = {n: (seen.get(n), rows.get(n)) for n in {*seen, *rows} if seen.get(n) != rows.get(n)}
        said.append(f"not {answers} with {wrong}")
    return "; ".join(said)


async def all_pairs(url: str, run: Record, *, share: float, seed: int, end: float) -> list[str]:
    scene, dice = Scene(url, run), random.Random(seed)
    await scene.open()
    wrong = []
    said_case = os.environ.get("LAB_CASE")
    try:
        if said_case:
            first, second = (VERBS[int(number)] for number in said_case.split(":"))
            return [said for _ in range(50) if (said := await scene.at_once(first, second))]
        for one, two in KEPT * 8:
            if said := await scene.at_once(one, two):
                wrong.append(said)
        for one, two in itertools.product(VERBS, VERBS):
            if dice.random() < share and time.monotonic() < end:
                run.cases += 1
                if said := await scene.at_once(one, two):
                    wrong.append(said)
    finally:
        await scene.close()
    return wrong


@pytest.mark.promise("one-semantics", "fence", "order", "redrive-safe")
@pytest.mark.req("B4")
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
async def test_two_verbs_at_once_end_as_if_one_had_come_first(
    form: str, store_url: str, record: Callable[..., Record], seed: int, budget: float
) -> None:
    run = record("model", "postgres" if is_postgres(store_url) else "sqlite")
    end = time.monotonic() + budget
    wrong = await all_pairs(store_url, run, share=0.2 if form == "short" else 1.0, seed=seed, end=end)

    run.violations.update(["neither order"] * len(wrong))
    assert not wrong, "\n".join(wrong)
    assert "LAB_CASE" in os.environ or run.reached["as if the first came first"]
    assert "LAB_CASE" in os.environ or run.reached["as if the second came first"]
