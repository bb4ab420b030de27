"""Ordering: what people see of ordering keys, and do about them.

Of the events of one target with one key, one is under way at a time, the first published first. A dead letter holds up
its key until it is replayed, discarded (skip) or told to let the others pass (release); a handler may say that from the
start (``on_failed="pass"``). The claim keeps the order (see ``0006_keys.sql``); nothing here is needed for that.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.errors import LockHeld, Refused
from redrive.instant import instant_of
from redrive.logs import log
from redrive.store.base import Store

_WALKED: Final = 500
_SHOWN: Final = 3

Cursor = tuple[str, str]
START: Final[Cursor] = ("", "")


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key that a dead letter holds up: ``waiting`` events stand behind ``head`` (counted up to 10,001)."""

    target: str
    ordering_key: str
    head: UUID
    type: str
    error_class: str | None
    last_error: str | None
    attempts: int
    since: datetime
    waiting: int


@dataclass(frozen=True, slots=True)
class InLine:
    """An event as it stands in the line of its key."""

    id: UUID
    target: str
    type: str
    status: str
    blocked_on: str | None
    created_at: datetime
    due_at: datetime


async def held_keys(
    store: Store,
    *,
    ordering_key: str | None = None,
    target: str | None = None,
    after: UUID | None = None,
    limit: int = 100,
) -> list[HeldKey]:
    """List the keys that a dead letter holds up, the oldest first."""
    rows = await store.ask("keys", ordering_key=ordering_key, target=target, after=after, limit=limit)
    return [_held(row) for row in rows]


async def line(store: Store, target: str, ordering_key: str, *, limit: int = 50) -> list[InLine]:
    """List the events of a key that have not ended, in their order."""
    rows = await store.ask("key_line", target=target, ordering_key=ordering_key, limit=limit)
    return [
        InLine(
            **{**row, "id": UUID(str(row["id"])), "created_at": _at(row["created_at"]), "due_at": _at(row["due_at"])}
        )
        for row in rows
    ]


async def release(store: Store, ordering_key: str, *, target: str | None, by: str, reason: str) -> HeldKey:
    """Let the events behind a dead letter go; it stays a dead letter and can be replayed."""
    held = await find(store, ordering_key, target)
    async with store.transaction() as tx:
        released = await tx.run("key_release", target=held.target, ordering_key=ordering_key)
        if not released:
            raise Refused(not_held(ordering_key))
        await tx.run("promote", target=held.target, ordering_key=ordering_key)
        facts = {"reason": reason, "target": held.target, "ordering_key": ordering_key}
        for row in released:
            await tx.note("key-released", by, facts, UUID(str(row["id"])))
    return held


def not_held(ordering_key: str) -> str:
    """Say why an act on a key came too late."""
    return f"key {ordering_key!r} is not held up any more, somebody was faster: `redrive keys ls` lists those that are"


async def unstick(store: Store, after: Cursor) -> Cursor:
    """Walk through some keys and let go what was left behind; return where to go on.

    Every statement that ends an event promotes the next one. This is the net for what it cannot see: a handler's
    transaction with an old snapshot (``repeatable read``), and rows changed by hand.
    """
    walked = await store.ask("key_walk", target=after[0], ordering_key=after[1], limit=_WALKED)
    stuck = [row for row in walked if row["stuck"]]
    for row in stuck:
        with suppress(LockHeld):  # somebody has it: the next walk finds it again
            async with store.transaction() as tx:
                await tx.run("promote", target=row["target"], ordering_key=row["ordering_key"])
            log.warning("event left behind in its key, let go", target=row["target"], key=row["ordering_key"])
    return (walked[-1]["target"], walked[-1]["ordering_key"]) if len(walked) == _WALKED else START


async def find(store: Store, ordering_key: str, target: str | None) -> HeldKey:
    """Find the one dead letter that holds up a key."""
    found = await held_keys(store, ordering_key=ordering_key, target=target, limit=_SHOWN + 1)
    if not found:
        raise Refused(f"no dead letter holds up key {ordering_key!r}: `redrive keys ls` lists those that are held up")
    if len(found) > 1:
        names = ", ".join(each.target for each in found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
        raise Refused(f"key {ordering_key!r} is held up in several targets ({names}): say which, with target")
    return found[0]


def _held(row: Mapping[str, Any]) -> HeldKey:
    return HeldKey(**{**row, "head": UUID(str(row["head"])), "since": _at(row["since"])})


def _at(value: Any) -> datetime:
    return instant_of(value)
