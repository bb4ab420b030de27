"""A world of redrives: keys whose ids are not in their order, slow handlers, ramps and rates, half a fix.

Its seeds are its own (`redriven SEED`), as those of the wider world are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from redrive import Redrive
from redrive.redrive import Release
from tests.lab.simulation.process import Process, chance
from tests.lab.simulation.scenario import Intent, discard, operating, release_key, replay
from tests.lab.simulation.world import Outcome, World

KEYS = "abc"
AFTERWARDS = ("ok", "ok", "ok", "slow", "slow", "fatal", "fail")


async def redrive(app: Redrive, process: Process) -> None:
    """Plan and start a redrive in one of all modes; pause and resume some of them."""
    dice = process.world.dice
    plan = await app.plan(dice.choice(("type:lab.*", "type:lab.keyed", "type:lab.passing")), by="ann", unsafe=True)
    release = Release(
        rate=dice.choice((None, None, 3.0, 20.0)), max_in_flight=dice.choice((2, 50)),
        ramp=dice.choice(((), (1, 2), (2, 2), (3,), (5, 1))), halt_at=dice.choice((0.1, 0.1, 0.5, None)),
    )  # fmt: skip
    going = await app.start(plan.redrive.token, by="ann", reason="mended", release=release)
    await process.clock.sleep(1.5 * dice.random())
    if chance(dice, 0.2):
        await app.pause(going.id, by="ann", reason="wait")
        await process.clock.sleep(0.5 * dice.random())
        await app.resume(going.id, by="bob")


ACTS: list[Callable[[Redrive, Process], Any]] = [redrive, redrive, redrive, redrive, replay, discard, release_key]


class Jumbled(Intent):
    """An event whose id is older, or newer, than its place in line; each time it is published it has another."""

    ids: random.Random

    @property
    def options(self) -> dict[str, Any]:
        bits = self.ids.getrandbits
        return {**self._options, "id": UUID(int=(bits(47) << 80) | (7 << 76) | (2 << 62) | bits(60))}

    @options.setter
    def options(self, options: dict[str, Any]) -> None:
        self._options, self.ids = options, random.Random(options["idempotency_key"])


class Redriven(World):
    """Dead letters with keys, and operators who redrive them."""

    name = "redriven"
    others = (("o1", operating(ACTS)), ("o2", operating(ACTS)))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.with_batch = False
        self.intents = [self._drafted(number) for number in range(self.dice.randrange(8, 20))]

    def _drafted(self, number: int) -> Intent:
        dice = self.dice
        type_ = dice.choice(("lab.keyed", "lab.passing", "lab.passing", "lab.plain"))
        plan = ["fatal", dice.choice(AFTERWARDS), dice.choice(AFTERWARDS)]
        options: dict[str, Any] = {"idempotency_key": f"k{number}", "retry_key": f"r{number}"}
        if type_ != "lab.plain":
            options["ordering_key"] = dice.choice(KEYS)
        kind = Jumbled if chance(dice, 0.5) else Intent
        return kind(number, type_, {"n": str(number), "plan": plan}, options)

    @property
    def outcome(self) -> Outcome:
        (row,) = self.disk.query(
            "select count(*) filter (where ramp <> '[]' and stage > 0), count(*) filter (where stopped_by = 'gate'),"
            " (select count(*) from redrive_redrive_item where waits) from redrive_redrive"
        )
        self.reached["stage passed"], self.reached["redrive halted"], self.reached["member waited"] = row
        return super().outcome
