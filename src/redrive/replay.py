"""Replay: what people do to single events, deliberately, with a name and a reason on the trail.

A dead letter is replayed in place: the cycle that failed is kept in its history, its identity stays, its fence is never
reset. Nothing here happens by itself, and no restart ever replays anything.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from redrive.errors import Refused
from redrive.payload import check_text, check_whole
from redrive.store.base import Store

ACTOR_LIMIT: Final = 255
REASON_LIMIT: Final = 2_000


async def replay(
    store: Store, event_id: UUID, *, by: str, reason: str, generation: int | None, payload: str | None = None
) -> None:
    """Send a dead letter round again, with an edited payload if one is given; the original is kept."""
    if generation is not None:
        check_whole(generation, "generation")
    who, why = check_actor(by, "replay"), check_reason(reason, "replay")
    await store.replay(event_id, generation=generation, by=who, reason=why, payload=payload)


async def cancel(store: Store, event_id: UUID, *, by: str, reason: str) -> None:
    """End an event that has not ended."""
    await store.cancel(event_id, by=check_actor(by, "cancel"), reason=check_reason(reason, "cancel"))


async def cancel_all(store: Store, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]:
    """End those of these events that have not ended, in one transaction; return which they were."""
    return await store.cancel_all(event_ids, by=check_actor(by, "cancel"), reason=check_reason(reason, "cancel"))


async def discard(store: Store, event_id: UUID, *, by: str, reason: str) -> None:
    """Hide a dead letter; it stays in the table and can be restored."""
    await store.discard(event_id, by=check_actor(by, "discard"), reason=check_reason(reason, "discard"))


async def restore(store: Store, event_id: UUID, *, by: str, reason: str) -> None:
    """Take a discarded dead letter back into the quarantine."""
    await store.restore(event_id, by=check_actor(by, "restore"), reason=check_reason(reason, "restore"))


def check_actor(by: str, verb: str) -> str:
    """Refuse an act without a name."""
    if not by.strip():
        message = f"say who does it: {verb} needs by=…"
        raise Refused(message)
    return check_text(by, "by", ACTOR_LIMIT)


def check_reason(reason: str, verb: str) -> str:
    """Refuse an act without a reason."""
    if not reason.strip():
        message = f"say why: {verb} needs a reason"
        raise Refused(message)
    return check_text(reason, "reason", REASON_LIMIT)
