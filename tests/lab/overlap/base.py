"""What all scenes of the overlaps share: players, and the verbs of the walk.

A verb is done by a player, who has an app and a session of his own. ``things`` are what the scene was laid with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redrive import Redrive, Status
from redrive.event import Outcome, Settlement
from redrive.group import describe
from redrive.store.base import FENCE, ID, IDEMPOTENCY_KEY, TARGET
from tests.stores.helpers import Hands

BY: Any = {"by": "ann", "reason": "why"}
LONG = 5.0


@dataclass(slots=True)
class Player:
    """One of the two."""

    name: str
    app: Redrive
    hands: Hands
    things: dict[str, Any] = field(default_factory=dict)


Verb = Callable[[Player], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Scene:
    """How it is laid, by one player, and what can be done in it."""

    lay: Callable[[Player], Awaitable[None]]
    verbs: dict[str, Verb]
    passes: float = 0.0
    """Seconds between the laying and what is done."""
    yields: tuple[str, ...] = ()
    """Who may find that somebody else is at it, do nothing, answer False, and come again."""
    kept: tuple[tuple[str, str], ...] = ()
    """What was wrong once: a deadlock, or a trail that told what had been before."""


def settled(status: Status, which: str, **options: Any) -> Verb:
    """End an attempt in this way."""

    async def settle(player: Player) -> Any:
        row = player.things[which]
        given = {"delay": None, "fingerprint": "f1", **options}
        settlement = Settlement(
            row[ID], row[FENCE], status, Outcome.FAILED, given["delay"], "boom", "broken", "E", True,
            given["fingerprint"], 5, blocked_on=given.get("blocked_on"),
        )  # fmt: skip
        return len(await player.hands.settle(settlement))

    return settle


def delivered(which: str) -> Verb:
    async def deliver(player: Player) -> Any:
        return len(await player.hands.deliver(player.things[which]))

    return deliver


def put_back(which: str) -> Verb:
    async def put(player: Player) -> Any:
        return len(await player.hands.put_back(player.things[which], LONG))

    return put


def handled(which: str) -> Verb:
    """Do what a handler does in its transaction."""

    async def handle(player: Player) -> Any:
        row = player.things[which]
        async with player.app.store.transaction() as tx:
            is_first = await tx.mark_handled(row[TARGET], row[IDEMPOTENCY_KEY], row[ID])
            return is_first, await tx.deliver(row[ID], row[FENCE])

    return handle


def operated(verb: str, which: str, **options: Any) -> Verb:
    async def operate(player: Player) -> Any:
        row = player.things[which]
        await getattr(player.app, verb)(row[ID], **BY, **options)

    return operate


async def swept(player: Player) -> Any:
    return len(await player.hands.sweep())


async def claimed(player: Player, *names: str) -> None:
    """Claim as many events as there are names, and call them so in the order of their publishing."""
    rows = sorted(await player.hands.claim(len(names)), key=lambda row: str(row[ID]))
    player.things.update(zip(names, rows, strict=True))


def acted(verb: str, *arguments: Any, **options: Any) -> Verb:
    async def act(player: Player) -> Any:
        await getattr(player.app, verb)(*arguments, **BY, **options)

    return act


def described(**said: Any) -> Verb:
    async def say(player: Player) -> Any:
        return (await describe(player.app.store, "f1", by=player.name, **said)).state

    return say


def stopped(verb: str, which: str) -> Verb:
    async def stop(player: Player) -> Any:
        return (await getattr(player.app, verb)(player.things[which].id, **BY)).state

    return stop
