"""PostgreSQL: a verb that is held up anywhere in its middle while another one runs ends as if one had come first.

SQLite lets one writer in at a time; here two transactions really overlap: the first is held up at the gate (``gate``)
while the second runs. What may come out is what the model makes of the two orders, as in ``test_pairs.py``.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.gate import Gate, Place
from tests.lab.record import Record
from tests.lab.sides import Side
from tests.lab.test_pairs import EIGHT, VERBS, S, Scene, for_session


class Held(Scene):
    """The scene of the pairs, with a first side that can be held up."""

    def __init__(self, url: str, record: Record) -> None:
        super().__init__(url, record)
        self.gate = Gate(url)
        self.left = Side(self.gate.way, self.clock)
        for app in self.left.apps:
            self.gate.stand_before(app)

    async def open(self) -> None:
        await super().open()
        await self.gate.open(self.left._tables)

    async def close(self) -> None:
        await self.gate.close()
        await super().close()

    async def places(self, verb: tuple[Any, ...]) -> list[Place]:
        await self._lay()
        return await self.gate.places(lambda: self.left.do(*for_session(verb, 1)))

    async def meanwhile(self, one: tuple[Any, ...], place: Place, two: tuple[Any, ...]) -> str | None:
        """Hold the first up there, let the second run, let the first go on; say what is wrong."""
        await self._lay()
        first, second = for_session(one, 1), for_session(two, 3)
        answers, waits = await self.gate.meanwhile(place, lambda: self.left.do(*first), lambda: self.right.do(*second))
        self.record.reached["the second waits" if waits else "the second passes"] += 1
        wrong = await self.judge(first, second, answers)
        if wrong is None:
            return None
        case = f"{VERBS.index(one)}:{place}:{VERBS.index(two)}"
        again = f"LAB_CASE={case} make lab-short ARGS=tests/lab/test_interleavings.py"
        return f"{one} held up at {place}, and {two}: {wrong}; again with: {again}"

    async def _lay(self) -> None:
        self.put_back()
        self.clock.advance(0.001)
        await self._forget_watermarks()


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
