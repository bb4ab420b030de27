"""PostgreSQL: a verb that is held up anywhere in its middle while another one runs ends as if one had come first.

SQLite lets one writer in at a time; here two transactions really overlap. The first is stopped before each of its
statements, its commit too, and at each row that it changes (a trigger of the lab's waits there, only in its
connections). Meanwhile the second runs, until it has ended or waits for the first. What may come out is what the model
makes of the two orders, as in ``test_pairs.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from tests.lab.record import Record
from tests.lab.sides import Side
from tests.lab.test_pairs import EIGHT, VERBS, S, Scene, for_session

GATE = 4711
STATEMENT, CHANGE = "statement", "change"
_LOOK_SECONDS = 0.001
_LONG_SECONDS = 20.0

# Counts what the first verb changes, and waits at the place that was said. A sequence counts on through roll-backs.
_GATES = f"""
create sequence lab_change;
create table lab_stop (at bigint not null);
insert into lab_stop values (0);
create function lab_pass() returns trigger language plpgsql as $$
begin
    if coalesce(current_setting('lab.held', true), '') = 'on' then
        if nextval('lab_change') = (select at from lab_stop) then
            perform pg_advisory_xact_lock_shared({GATE});
        end if;
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    return new;
end $$;
"""
_TRIGGER = (
    "create trigger lab_pass_{number} before insert or update or delete on {table}"
    " for each row execute function lab_pass()"
)

_WAITING = (
    "select exists (select from pg_locks where not granted and"
    " (locktype = 'advisory' and classid = 0 and objid = $1::int) = $2)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first verb is held up: before a statement, or at a change of a row; both are counted from one."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"


class Gate:
    """Stops whoever comes to the place that was said, until it is opened."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.statements = 0
        self.is_reached = asyncio.Event()
        self._opened = asyncio.Event()

    def close(self, place: Place | None) -> None:
        self.place, self.statements = place, 0
        self.is_reached.clear()
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    async def statement(self) -> None:
        self.statements += 1
        if self.place == Place(STATEMENT, self.statements):
            self.is_reached.set()
            await self._opened.wait()


def halting(gate: Gate, kind: type[Any]) -> type[Any]:
    """Make the class of connections whose statements pass the gate."""

    class Halting(kind):  # type: ignore[misc]
        __slots__ = ()

        async def execute(self, *arguments: Any, **options: Any) -> Any:
            await gate.statement()
            return await super().execute(*arguments, **options)

        async def fetch(self, *arguments: Any, **options: Any) -> Any:
            await gate.statement()
            return await super().fetch(*arguments, **options)

        async def fetchrow(self, *arguments: Any, **options: Any) -> Any:
            await gate.statement()
            return await super().fetchrow(*arguments, **options)

        async def fetchval(self, *arguments: Any, **options: Any) -> Any:
            await gate.statement()
            return await super().fetchval(*arguments, **options)

    return Halting


class Held(Scene):
    """The scene of the pairs, with a first side that can be held up."""

    def __init__(self, url: str, record: Record) -> None:
        super().__init__(url, record)
        self.gate = Gate()
        self.url = url
        self.left = Side(f"{url}{'&' if '?' in url else '?'}options=-clab.held%3Don", self.clock)
        for app in self.left.apps:
            app.store.connect = self._connects(app.store.connect)  # type: ignore[attr-defined]

    def _connects(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        async def connected(**options: Any) -> Any:
            connection = await connect(**options)
            connection.__class__ = halting(self.gate, type(connection))
            return connection

        return connected

    async def open(self) -> None:
        await super().open()
        self.watch = await asyncpg.connect(self.url)
        await self.watch.execute(_GATES)
        for number, table in enumerate(self.left._tables):
            await self.watch.execute(_TRIGGER.format(number=number, table=table))

    async def close(self) -> None:
        await self.watch.close()
        await super().close()

    async def places(self, verb: tuple[Any, ...]) -> list[Place]:
        """Let it run by itself, and see where it could be held up."""
        self.put_back()
        self.clock.advance(0.001)
        await self._forget_watermarks()
        async with self._closed(None):
            await self.left.do(*for_session(verb, 1))
        changes = await self.watch.fetchval("select case when is_called then last_value else 0 end from lab_change")
        statements = (Place(STATEMENT, n) for n in range(2, self.gate.statements + 1))
        return [*statements, *(Place(CHANGE, n) for n in range(1, changes + 1))]

    @asynccontextmanager
    async def _closed(self, place: Place | None) -> AsyncIterator[None]:
        at = place.number if place is not None and place.kind == CHANGE else 0
        await self.watch.execute("select setval('lab_change', 1, false)")
        await self.watch.execute("update lab_stop set at = $1", at)
        if at:
            await self.watch.execute("select pg_advisory_lock($1)", GATE)
        self.gate.close(place)
        try:
            yield
        finally:
            self.gate.open()
            if at:
                await self.watch.execute("select pg_advisory_unlock($1)", GATE)

    async def meanwhile(self, one: tuple[Any, ...], place: Place, two: tuple[Any, ...]) -> str | None:
        """Hold the first up there, let the second run, let the first go on; say what is wrong."""
        self.put_back()
        self.clock.advance(0.001)
        first, second = for_session(one, 1), for_session(two, 3)
        await self._forget_watermarks()
        async with self._closed(place):
            before = asyncio.create_task(self.left.do(*first))
            await self._held_up(before)
            after = asyncio.create_task(self.right.do(*second))
            waits = await self._waits(after)
            self.record.reached["the second waits" if waits else "the second passes"] += 1
        answers = (await before, await after)
        wrong = await self.judge(first, second, answers)
        if wrong is None:
            return None
        case = f"{VERBS.index(one)}:{place}:{VERBS.index(two)}"
        again = f"LAB_CASE={case} make test ARGS=tests/lab/test_interleavings.py"
        return f"{one} held up at {place}, and {two}: {wrong}; again with: {again}"

    async def _held_up(self, task: asyncio.Task[Any]) -> None:
        end = time.monotonic() + _LONG_SECONDS
        while not (task.done() or self.gate.is_reached.is_set() or await self._locks(at_gate=True)):
            assert time.monotonic() < end, "it neither ends nor comes to the gate"
            await asyncio.sleep(_LOOK_SECONDS)

    async def _waits(self, task: asyncio.Task[Any]) -> bool:
        end = time.monotonic() + _LONG_SECONDS
        while not task.done():
            if await self._locks(at_gate=False):
                return True
            assert time.monotonic() < end, "the second neither ends nor waits for the first"
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _locks(self, *, at_gate: bool) -> bool:
        """Tell whether somebody waits: at the gate, or for anything else."""
        return bool(await self.watch.fetchval(_WAITING, GATE, at_gate))


ALWAYS = {
    *zip(VERBS, VERBS, strict=True),
    (("claim", S, 20), ("deliver", EIGHT)),
    *((("carry_on", 2), other) for other in (("replay", 2), ("discard", 2), ("stop", 2, "aborted"))),
}
"""What the short form does not leave to chance: each verb and its like, and those who must wait for each other."""


async def interleaved(url: str, run: Record, *, share: float, seed: int, end: float) -> list[str]:
    scene, dice, wrong = Held(url, run), random.Random(seed), []
    await scene.open()
    try:
        if case := os.environ.get("LAB_CASE"):
            first, kind, number, second = case.split(":")
            said = await scene.meanwhile(VERBS[int(first)], Place(kind, int(number)), VERBS[int(second)])
            return [said] if said else []
        places = [(verb, place) for verb in VERBS for place in await scene.places(verb)]
        for (one, place), two in itertools.product(places, VERBS):
            is_chosen = dice.random() < share or (one, two) in ALWAYS
            if is_chosen and time.monotonic() < end:
                run.cases += 1
                run.faults[f"held up at a {place.kind}"] += 1
                if said := await scene.meanwhile(one, place, two):
                    wrong.append(said)
    finally:
        await scene.close()
    return wrong


@pytest.mark.promise("one-semantics", "fence", "order", "redrive-safe", "trail")
@pytest.mark.req("B4", "O5")
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
async def test_a_verb_that_is_held_up_in_its_middle_ends_as_if_it_had_come_first_or_last(
    form: str, postgres_url: str, record: Callable[..., Record], seed: int, budget: float
) -> None:
    run = record("interleavings", "postgres")
    end = time.monotonic() + budget

    wrong = await interleaved(postgres_url, run, share=0.02 if form == "short" else 1.0, seed=seed, end=end)

    run.violations.update(["neither order"] * len(wrong))
    assert not wrong, "\n".join(wrong)
    assert "LAB_CASE" in os.environ or run.reached["the second waits"]
    assert "LAB_CASE" in os.environ or run.reached["the second passes"]
