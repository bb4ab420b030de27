"""Limits: permits given out, waited for and given back."""

from __future__ import annotations

from typing import Any

from redrive.rate import Rate
from redrive.throttle import Throttle, Throttles
from tests.lab.overlap.base import (
    Player,
    Scene,
    Verb,
    claimed,
    delivered,
    operated,
    put_back,
    swept,
)
from tests.stores.helpers import LANES

TWO = Throttle(concurrency=2, rate=Rate.parse("10/s"))


async def lay_limits(player: Player) -> None:
    """A target with two places, one of them taken by a session that lives, and two events that wait.

    ``loosen`` is left out: it passes over what others are moving, and comes again.
    """
    for _ in range(3):
        await player.app.publish("t")
    await claimed(player, "running", "waits", "waits too")
    throttles = _throttles(player, "running", "waits", "waits too")
    admitted = await throttles.admit("t", player.hands.id, 1)
    assert (len(admitted.running), len(admitted.waiting)) == (1, 2)
    for _ in range(2):
        await player.app.publish("t")
    await claimed(player, "came", "came too")


def _throttles(player: Player, *names: str) -> Throttles:
    made = Throttles(player.app.store, player.app.clock, ["t"], LANES)
    made.limit({"t": TWO}, {})
    for name in names:
        made.arrive(player.things[name])
    return made


def admitted(*names: str, hands: int = 5) -> Verb:
    async def admit(player: Player) -> Any:
        found = await _throttles(player, *names).admit("t", player.hands.id, hands)
        return len(found.running), len(found.taken), len(found.waiting)

    return admit


LIMITS = Scene(
    lay_limits,
    {
        "admit came": admitted("came"),
        "admit came too": admitted("came too"),
        "admit both": admitted("came", "came too"),
        "take": admitted(),
        "take one": admitted(hands=1),
        "sweep": swept,
        "cancel waits": operated("cancel", "waits"),
        "cancel came": operated("cancel", "came"),
        "deliver running": delivered("running"),
        "put came back": put_back("came"),
    },
)
