"""Steps: kept while the event ends in any way."""

from __future__ import annotations

from typing import Any

from redrive import Status
from redrive.payload import Decoder
from redrive.steps import Begun, Compensation, Steps
from tests.lab.overlap.base import (
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
    swept,
)

UNDO = Compensation("undo", ("cancelled", "deadline", "dead_letter"), in_doubt=True)


async def lay_steps(player: Player) -> None:
    """Two events: one has done a step, and both are in the middle of one."""
    for _ in range(2):
        await player.app.publish("saga")
    await claimed(player, "first", "second")
    await _finish(player, "first", await _begun(player, "first", "a"))
    player.things["first begun"] = await _begun(player, "first", "b")
    player.things["second begun"] = await _begun(player, "second", "b")


async def _begun(player: Player, which: str, name: str) -> Begun:
    return await Steps(player.app.store, player.things[which]).begin(name, UNDO)


async def _finish(player: Player, which: str, begun: Begun) -> Any:
    steps = Steps(player.app.store, player.things[which])
    return await steps.finish(begun, begun.step.name, Decoder(str))


def finished(which: str) -> Verb:
    """Keep the step that is under way; its beginning was a transaction of its own."""

    async def finish(player: Player) -> Any:
        return await _finish(player, which, player.things[f"{which} begun"])

    return finish


STEPS = Scene(
    lay_steps,
    {
        "b of first": finished("first"),
        "b of second": finished("second"),
        "cancel first": operated("cancel", "first"),
        "cancel second": operated("cancel", "second"),
        "deliver first": delivered("first"),
        "handle first": handled("first"),
        "bury first": settled(Status.FAILED, "first"),
        "bury second": settled(Status.FAILED, "second"),
        "retry first": settled(Status.PENDING, "first", delay=LONG),
        "sweep": swept,
        "put second back": put_back("second"),
    },
)
