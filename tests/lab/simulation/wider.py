"""A wider world: beside everything else somebody changes policies, sets schedules, pauses queues and clears up.

Its seeds are others than those of the world as such (`wide SEED`), so those that were kept lead where they led.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from redrive import Redrive
from redrive.store.base import Ages
from tests.lab.simulation.process import Process, chance
from tests.lab.simulation.scenario import MAX_ATTEMPTS, discard, make_peace, operating, redrive, skip_key
from tests.lab.simulation.world import Outcome, World

PATTERNS = ("lab.plain", "lab.keyed", "lab.needy", "lab.*", "*")
SCHEDULES = ("early", "late")
QUEUE = "default"


async def set_policy(app: Redrive, process: Process) -> None:
    dice = process.world.dice
    values: dict[str, Any] = dice.choice([
        {"max_attempts": dice.randrange(1, MAX_ATTEMPTS + 1)}, {"timeout": 0.3 + dice.random()},
        {"concurrency": 1}, {"rate": dice.choice(("2/s", "20/s"))},
        {"base_delay": 0.1, "max_delay": 0.2, "jitter": "none"},
    ])  # fmt: skip
    await app.set_policy(dice.choice(PATTERNS), by="ann", reason="try this", **values)


async def clear_policy(app: Redrive, process: Process) -> None:
    policies = await app.policies()
    if policies:
        await app.clear_policy(process.world.dice.choice(policies).pattern, by="ann", reason="no better")


async def set_schedule(app: Redrive, process: Process) -> None:
    dice = process.world.dice
    await app.schedules.set(
        dice.choice(SCHEDULES), dice.choice(("lab.plain", "lab.keyed")), {"n": "tick", "plan": []}, by="ann",
        reason="now and then", every=dice.choice((1.0, 2.0)), catch_up=dice.choice(("latest", "all", "skip")),
        ordering_key=dice.choice((None, "a")),
    )  # fmt: skip


async def pause_schedule(app: Redrive, process: Process) -> None:
    await app.schedules.pause(process.world.dice.choice(SCHEDULES), by="ann", reason="not now")


async def resume_schedule(app: Redrive, process: Process) -> None:
    await app.schedules.resume(process.world.dice.choice(SCHEDULES), by="bob", reason="now")


async def run_schedule(app: Redrive, process: Process) -> None:
    await app.schedules.run_now(process.world.dice.choice(SCHEDULES), by="ann", reason="once more")


async def remove_schedule(app: Redrive, process: Process) -> None:
    await app.schedules.remove(process.world.dice.choice(SCHEDULES), by="ann", reason="no more")


async def pause_queue(app: Redrive, process: Process) -> None:
    await app.hold(queue=QUEUE, by="ann", reason="stop all")
    await process.clock.sleep(1.5 * process.world.dice.random())
    await app.lift(queue=QUEUE, by="bob", reason="go on")


async def cancel_many(app: Redrive, process: Process) -> None:
    rows = process.world.disk.query("select id from redrive_outbox where ended_at is null order by id limit 3")
    await app.cancel_all([UUID(event_id) for (event_id,) in rows], by="ann", reason="all wrong")


async def clear_up(app: Redrive, process: Process) -> None:
    dice = process.world.dice
    age = 0.5 * dice.random()
    ages = Ages(ended=age, failed=age if chance(dice, 0.5) else None)
    await app.store.purge(ages, by="ann", dry_run=chance(dice, 0.2), limit=dice.choice((1, 1_000)))


async def look_around(app: Redrive, process: Process) -> None:
    await app.attention()
    await app.groups(everything=True)
    await app.schedules.ls()
    await app.held_keys()


ACTS: list[Callable[[Redrive, Process], Any]] = [
    set_policy, set_policy, clear_policy, set_schedule, set_schedule, pause_schedule, resume_schedule, run_schedule,
    remove_schedule, pause_queue, cancel_many, clear_up, clear_up, look_around, redrive, skip_key, discard,
]  # fmt: skip


class Wider(World):
    """One more operator, with more to do."""

    name = "wide"
    undoing_fails = True
    others = (("o1", operating(ACTS)),)

    def declare(self, app: Redrive) -> None:
        app.schedules.add("early", "lab.plain", {"n": "tick", "plan": []}, every=1.0, catch_up="all")

    @property
    def outcome(self) -> Outcome:
        ticks, gone = self.disk.query(
            "select (select count(*) from redrive_outbox where idempotency_key like 'schedule:%')"
            " + (select count(*) from lab_removed where key like 'schedule:%'),"
            " (select count(*) from lab_removed where key > '')"
        )[0]
        self.reached["schedule ticked"], self.reached["removed"] = ticks, gone
        self.reached["policy set"], self.reached["queue paused"] = self.acts["set_policy"], self.acts["pause_queue"]
        return super().outcome

    async def make_peace(self, app: Redrive, process: Process) -> None:
        await make_peace(app, process)
        for each in await app.schedules.ls():
            await app.schedules.remove(each.name, by="ann", reason="the end")
