"""Plans, edits and keys: started, approved, proposed, released and skipped."""

from __future__ import annotations

from typing import Any

from redrive import Status
from redrive.store.base import ID
from tests.lab.overlap.base import (
    BY,
    Player,
    Scene,
    Verb,
    acted,
    claimed,
    operated,
    settled,
    stopped,
)


async def lay_plans(player: Player) -> None:
    """Two dead letters with a plan, one of them with a proposed edit, and a key whose dead head holds up another."""
    app, things = player.app, player.things
    for name in ("one", "two"):
        await app.publish(name)
    for _ in range(2):
        await app.publish("keyed", ordering_key="k")
    await claimed(player, "one", "two", "head")
    for name in ("one", "two", "head"):
        await settled(Status.FAILED, name)(player)
    things["plan"] = (await app.plan("status:failed", by="ann", unsafe=True)).redrive
    things["edit"] = await app.propose(things["one"][ID], {"n": 1}, **BY)


def started(*, above: int | None) -> Verb:
    async def start(player: Player) -> Any:
        player.app.approval_above = above
        return (await player.app.start(player.things["plan"].token, **BY)).state

    return start


def approved(which: str) -> Verb:
    async def approve(player: Player) -> Any:
        return (await player.app.approve(player.things[which].id, by=player.name)).state

    return approve


def edited(which: str) -> Verb:
    async def edit(player: Player) -> Any:
        player.app.approval_above = None
        await player.app.replay(player.things[which][ID], payload={"by": player.name}, **BY)

    return edit


async def proposed(player: Player) -> Any:
    return (await player.app.propose(player.things["two"][ID], {"n": 2}, **BY)).state


PLANS = Scene(
    lay_plans,
    {
        "start": started(above=None),
        "start if approved": started(above=0),
        "approve plan": approved("plan"),
        "approve edit": approved("edit"),
        "abort plan": stopped("abort", "plan"),
        "abort edit": stopped("abort", "edit"),
        "propose": proposed,
        "edit one": edited("one"),
        "edit two": edited("two"),
        **{
            f"{verb} {which}": operated(verb, which)
            for verb in ("replay", "discard")
            for which in ("one", "two", "head")
        },
        "release key": acted("release_key", "k", target="keyed"),
        "skip key": acted("skip_key", "k", target="keyed"),
    },
    kept=(
        ("release key", "release key"),
        ("release key", "skip key"),
        ("skip key", "release key"),
        ("propose", "replay two"),
    ),
)
