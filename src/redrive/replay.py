"""Replay: what people do to single events, deliberately, with a name and a reason on the trail.

A dead letter is replayed in place: the cycle that failed is kept in its history, its identity stays, its fence is never
reset. Nothing here happens by itself, and no restart ever replays anything.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from redrive.errors import EventNotFound, Refused
from redrive.event import Event, Status
from redrive.payload import check_text, check_whole
from redrive.store.base import Store, Transaction

ACTOR_LIMIT: Final = 255
REASON_LIMIT: Final = 2_000
_FIRST: Final = UUID(int=0)

Mark = Literal["discard", "restore"]
_MARKED: Final[dict[Mark, str]] = {"discard": "discarded", "restore": "restored"}


async def replay(
    store: Store, event_id: UUID, *, by: str, reason: str, generation: int | None, payload: str | None = None,
    cycle: int | None = None,
    from_start: bool = False,
) -> None:  # fmt: skip
    """Send a dead letter round again, with an edited payload if one is given; the original is kept.

    One whose effect is there already is ended as delivered instead: its handler would only find that out.
    """
    if generation is not None:
        check_whole(generation, "generation")
    who, why = check_actor(by, "replay"), check_reason(reason, "replay")
    try:
        await store.replay(
            event_id,
            generation=generation,
            by=who,
            reason=why,
            payload=payload,
            cycle=cycle,
            from_start=from_start,
        )
    except Refused:
        if payload is not None or not await _end_handled(store, event_id, by=who, reason=why, cycle=cycle):
            raise


async def _end_handled(store: Store, event_id: UUID, *, by: str, reason: str, cycle: int | None) -> bool:
    """Deliver a dead letter whose effect is there, without its handler; ``False`` when it is none."""
    async with store.transaction() as tx:
        rows = await tx.run("deliver_handled", id=event_id, cycle=cycle)
        for row in rows:
            await _leave(tx, rows)
            if row["batch_id"] is not None:
                await tx.run("batch_look", ids=[str(row["batch_id"])], force=False, by=by)
            facts = {
                "reason": reason, "generation": row["generation"], "cycle": row["cycle"], "from_start": False,
                "already_handled": True,
            }  # fmt: skip
            await tx.record([(event_id, "replayed", row["source"], by, facts)])
    return bool(rows)


async def cancel(store: Store, event_id: UUID, *, by: str, reason: str) -> None:
    """End an event that has not ended."""
    await store.cancel(event_id, by=check_actor(by, "cancel"), reason=check_reason(reason, "cancel"))


async def cancel_all(store: Store, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]:
    """End those of these events that have not ended, in one transaction; return which they were."""
    return await store.cancel_all(event_ids, by=check_actor(by, "cancel"), reason=check_reason(reason, "cancel"))


async def discard(store: Store, event_id: UUID, *, by: str, reason: str) -> None:
    """Hide a dead letter; it stays in the table and can be restored."""
    await _mark_one(store, "discard", event_id, by, reason)


async def restore(store: Store, event_id: UUID, *, by: str, reason: str) -> None:
    """Take a discarded dead letter back into the quarantine."""
    await _mark_one(store, "restore", event_id, by, reason)


async def _mark_one(store: Store, verb: Mark, event_id: UUID, by: str, reason: str) -> None:
    if not await mark(store, verb, clauses=("and id = :id",), values={"id": event_id}, by=by, reason=reason, limit=1):
        event = await store.event(event_id)
        if event is None:
            raise EventNotFound(f"there is no event {event_id}")
        raise Refused(_refusal(verb, event))


async def mark(
    store: Store, verb: Mark, *, clauses: Sequence[str], values: Mapping[str, Any], by: str, reason: str, limit: int,
    until: datetime | None = None, after: UUID = _FIRST,
) -> list[UUID]:  # fmt: skip
    """Discard or restore the next dead letters of a set in one transaction; return them in the order of their ids."""
    who, facts = check_actor(by, verb), {"reason": check_reason(reason, verb)}
    async with store.transaction() as tx:
        rows = await tx.run(verb, clauses=clauses, after=after, until=until, limit=limit, **values)
        rows = [{**row, "id": UUID(str(row["id"]))} for row in sorted(rows, key=lambda row: str(row["id"]))]
        if rows:
            await _count(tx, verb, rows)  # groups before the trail: everybody locks in this order
            await tx.record([(row["id"], _MARKED[verb], row["source"], who, facts) for row in rows])
    return [row["id"] for row in rows]


async def _count(tx: Transaction, verb: Mark, rows: Sequence[Mapping[str, Any]]) -> None:
    if verb == "discard":
        await _leave(tx, rows)
    else:
        await tx.run("group_count", ids=[str(row["id"]) for row in rows], is_new=False)


async def _leave(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Take dead letters out of their groups, and let the next of their ordering keys go."""
    prints = [row["fingerprint"] for row in rows if row["fingerprint"] is not None]
    await tx.run("group_uncount", fingerprints=prints)
    for target, key in sorted({(row["target"], row["ordering_key"]) for row in rows if row["ordering_key"]}):
        await tx.run("promote", target=target, ordering_key=key)


def _refusal(verb: Mark, event: Event) -> str:
    if event.status is not Status.FAILED:
        return f"event {event.id} is {event.status}: only a dead letter can be {_MARKED[verb]}"
    if verb == "discard":
        return f"event {event.id} was discarded already"
    return f"event {event.id} is not discarded: there is nothing to restore"


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
