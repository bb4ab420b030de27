"""Schedules: those who set, pause, remove, declare and tick."""

from __future__ import annotations

from typing import Any

from tests.lab.overlap.base import (
    BY,
    Player,
    Scene,
    Verb,
)


async def lay_schedules(player: Player) -> None:
    """One that is due, one that is paused, and one that each app declares in its own way."""
    schedules = player.app.schedules
    await schedules.set("due", "report", every="10m", **BY)
    await schedules.set("paused", "report", every="10m", **BY)
    await schedules.set("declared", "report", every="1h", **BY)
    await schedules.pause("paused", **BY)


def scheduled(verb: str, *arguments: Any, **options: Any) -> Verb:
    async def act(player: Player) -> Any:
        await getattr(player.app.schedules, verb)(*arguments, **BY, **options)

    return act


async def ticked(player: Player) -> Any:
    return (await player.app.schedules.tick(player.app.store, set())).moved


async def declared(player: Player) -> Any:
    """Begin as a worker does."""
    if not player.app.schedules._declared:
        player.app.schedules.add("declared", "report", {"by": player.name}, every="30m")
        player.app.schedules.add("fresh", "report", {"by": player.name}, every="30m")
    await player.app.schedules.declare(player.app.store, player.name)


SCHEDULES = Scene(
    lay_schedules,
    {
        "tick": ticked,
        "declare": declared,
        "run": scheduled("run_now", "due"),
        "set due": scheduled("set", "due", "report", {"n": 1}, every="10m"),
        "set due otherwise": scheduled("set", "due", "report", every="1h"),
        "set fresh": scheduled("set", "fresh", "report", {"n": 2}, every="1h"),
        "set new": scheduled("set", "new", "report", every="10m"),
        "set paused": scheduled("set", "paused", "report", every="1h"),
        **{
            f"{verb} {name}": scheduled(verb, name)
            for verb in ("pause", "resume", "remove")
            for name in ("due", "paused")
        },
    },
    passes=900.0,
    yields=("tick",),
    kept=(
        ("declare", "set fresh"),
        ("declare", "declare"),
        ("set due", "remove due"),
        ("set due", "set due otherwise"),
        ("pause due", "remove due"),
        ("resume paused", "set paused"),
    ),
)
