"""Reservations: those who take, renew, give back and take away."""

from __future__ import annotations

from typing import Any

from tests.lab.overlap.base import (
    BY,
    Player,
    Scene,
    Verb,
)


async def lay_reservations(player: Player) -> None:
    """One that is held, one that has run out, one that was given back; one that nobody ever had is "new"."""
    reservations, things = player.app.reservations, player.things
    things["held"] = (await reservations.take("held", owner="ann", ttl="1h")).token
    things["over"] = (await reservations.take("over", owner="ann", ttl="1s")).token
    back = await reservations.take("back", owner="ann", ttl="1h")
    things["back"] = back.token
    await back.release()


def taken(resource: str) -> Verb:
    async def take(player: Player) -> Any:
        return (await player.app.reservations.take(resource, owner=player.name, ttl="1m")).token

    return take


def by_token(verb: str, resource: str, *arguments: Any) -> Verb:
    async def act(player: Player) -> Any:
        await getattr(player.app.reservations.by_token(resource, player.things[resource]), verb)(*arguments)

    return act


def released(resource: str) -> Verb:
    async def release(player: Player) -> Any:
        return (await player.app.reservations.release(resource, **BY)).token

    return release


RESERVATIONS = Scene(
    lay_reservations,
    {
        **{f"take {name}": taken(name) for name in ("held", "over", "back", "new")},
        **{f"renew {name}": by_token("renew", name, "2h") for name in ("held", "over", "back")},
        **{f"release {name}": by_token("release", name) for name in ("held", "over")},
        **{f"take {name} away": released(name) for name in ("held", "over")},
    },
    passes=5.0,
)
