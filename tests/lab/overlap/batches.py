"""Batches: members that end while somebody closes, forces or adds to theirs."""

from __future__ import annotations

from typing import Any

from redrive import Status, batch
from tests.lab.overlap.base import (
    BY,
    LONG,
    Player,
    Scene,
    Verb,
    claimed,
    delivered,
    handled,
    operated,
    put_back,
    settled,
)


async def lay_batches(player: Player) -> None:
    """One open, with a dead letter and two in flight; one closed, with two in flight; one that is overdue."""
    batches, things = player.app.batches, player.things
    told: Any = {"first_notice": "first", "final_notice": "final"}
    things["open"] = await batches.open("open", **told)
    for name in ("one", "two", "dead"):
        await things["open"].add(name)
    things["closed"] = await batches.open("closed", **told)
    for name in ("four", "five"):
        await things["closed"].add(name)
    await things["closed"].close()
    things["late"] = await batches.open("late", deadline="1m", **told)
    await things["late"].add("six")
    await things["late"].close()
    await claimed(player, "one", "two", "dead", "four", "five", "six")
    await settled(Status.FAILED, "dead")(player)


def closed(which: str, *, by_hand: bool = False) -> Verb:
    async def close(player: Player) -> Any:
        found = await player.app.batches.get(player.things[which].id)
        if by_hand:
            return (await player.app.batches.close(found.id, **BY)).state
        return await found.close()

    return close


def forced(which: str) -> Verb:
    async def force(player: Player) -> Any:
        return (await player.app.batches.force(player.things[which].id, **BY)).state

    return force


async def added(player: Player) -> Any:
    found = await player.app.batches.get(player.things["open"].id)
    return (await found.add("more")).created


async def tended(player: Player) -> Any:
    return (await player.app.batches._tend("worker")).moved


async def repaired(player: Player) -> Any:
    ids = [player.things[name].id for name in ("open", "closed", "late")]
    return len(await batch.repair(player.app.store, ids))


BATCHES = Scene(
    lay_batches,
    {
        "deliver one": delivered("one"),
        "bury two": settled(Status.FAILED, "two"),
        "cancel two": operated("cancel", "two"),
        "retry one": settled(Status.PENDING, "one", delay=LONG),
        "deliver four": delivered("four"),
        "deliver five": delivered("five"),
        "handle four": handled("four"),
        "bury four": settled(Status.FAILED, "four"),
        "bury five": settled(Status.FAILED, "five"),
        "retry four": settled(Status.PENDING, "four", delay=LONG),
        "retry five": settled(Status.PENDING, "five", delay=LONG),
        "block five": settled(Status.BLOCKED, "five", blocked_on="api"),
        "put five back": put_back("five"),
        "cancel five": operated("cancel", "five"),
        "deliver six": delivered("six"),
        "bury six": settled(Status.FAILED, "six"),
        "replay dead": operated("replay", "dead"),
        "discard dead": operated("discard", "dead"),
        "close": closed("open"),
        "close by hand": closed("open", by_hand=True),
        "force open": forced("open"),
        "force closed": forced("closed"),
        "force late": forced("late"),
        "add": added,
        "tend": tended,
        "repair": repaired,
    },
    passes=61.0,
    kept=(("force closed", "cancel five"), ("cancel five", "force closed"), ("close by hand", "cancel two")),
)
