"""Redrives that end, and the groups that they leave behind."""

from __future__ import annotations

from typing import Any

from redrive import Status, redrive
from redrive.redrive import Release
from redrive.store.base import ID
from tests.lab.overlap.base import (
    BY,
    Player,
    Scene,
    claimed,
    delivered,
    described,
    operated,
    settled,
    stopped,
)

ENDING = ("gone", "left")


async def lay_ends(player: Player) -> None:
    """A redrive that has brought the last dead letter of a group through; another of the group was discarded."""
    app = player.app
    for name in ("through", "gone", "left"):
        await app.publish(name)
    await claimed(player, "through", "gone", "left")
    for name in ("through", "gone"):
        await settled(Status.FAILED, name)(player)
    await settled(Status.FAILED, "left", fingerprint="f2")(player)
    await app.discard(player.things["gone"][ID], **BY)
    plan = await app.plan("status:failed", by="ann", unsafe=True)
    player.things["plan"] = await app.start(plan.redrive.token, release=Release(max_in_flight=1), **BY)
    await carried_on(player)
    await claimed(player, "through")
    await delivered("through")(player)
    async with app.store.transaction() as tx:
        await tx.note_outcomes(player.things["plan"].id)


async def carried_on(player: Player) -> Any:
    redrive_id = player.things["plan"].id
    async with player.app.store.transaction() as tx:
        if not await tx.run("redrive_lock", id=redrive_id):
            return False
        await redrive._carry_on(tx, redrive_id, "lab")
        return (await redrive.get_in(tx, redrive_id)).state


ENDS = Scene(
    lay_ends,
    {
        "pause": stopped("pause", "plan"),
        "abort": stopped("abort", "plan"),
        "carry on": carried_on,
        **{f"{verb} {which}": operated(verb, which) for verb in ("restore", "discard", "replay") for which in ENDING},
        "resolve": described(state="resolved"),
    },
    yields=("carry on",),
    kept=(("abort", "restore gone"),),
)
