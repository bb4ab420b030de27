"""Revision: a replay with an edited payload that waits for a second person.

Where redrives need approval at all, nobody puts other words into an event alone: the edit is written down as a plan of
one. Whoever approves lets it go, in one transaction: the original is kept, the edited payload takes its place, the dead
letter goes round again. An event that was replayed meanwhile is no longer what was edited, and is refused.
"""

import hashlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from redrive.errors import Refused
from redrive.redrive import DEFAULT_IN_FLIGHT, PLAN_KEPT_SECONDS, Redriving, check_second_person, get_in
from redrive.store.base import Store, edited_meanwhile

_CHAIN: Final = "operator"


@dataclass(frozen=True, slots=True)
class Revision:
    """An edited payload as JSON text, of which event, and of which cycle of it."""

    event_id: UUID
    cycle: int
    payload: str


async def propose(
    store: Store, redrive_id: UUID, edit: Revision, *, by: str, reason: str, generation: int | None, from_start: bool
) -> Redriving:
    """Write an edit down as a plan of one."""
    digest = hashlib.sha256(f"{edit.event_id}:{edit.cycle}:{edit.payload}".encode()).hexdigest()
    async with store.transaction() as tx:
        planned = await tx.run(
            "revision_plan", id=redrive_id, event_id=edit.event_id, cycle=edit.cycle, digest=digest, by=by,
            reason=reason, generation=generation, from_start=from_start, keep=PLAN_KEPT_SECONDS,
        )  # fmt: skip
        if not planned:
            raise Refused(f"event {edit.event_id} is no longer the dead letter that was edited: look at it again")
        (member,) = await tx.run("revision_member", id=redrive_id, event_id=edit.event_id, payload=edit.payload)
        if member["fingerprint"] is not None:
            await tx.run("redrive_groups", id=redrive_id, fingerprints=[member["fingerprint"]], members=[1])
        facts = {"redrive": str(redrive_id), "reason": reason, "event": str(edit.event_id)}
        await tx.note("edit-proposed", by, facts)
        return await get_in(tx, redrive_id)


async def waiting(store: Store, redrive_id: UUID) -> Revision | None:
    """Read the edit that waits; nothing when it has gone or was dropped."""
    rows = await store.ask("revision_get", id=redrive_id)
    return Revision(UUID(str(rows[0]["event_id"])), rows[0]["cycle"], rows[0]["payload"]) if rows else None


async def approve(store: Store, redrive_id: UUID, *, by: str) -> Redriving:
    """Agree with somebody else's edit, and let it go."""
    async with store.transaction() as tx:
        planned = await get_in(tx, redrive_id)
        check_second_person(planned, by)
        edits = await tx.run("revision_get", id=redrive_id)
        if planned.state != "planned" or not edits:
            raise Refused(f"redrive {redrive_id} is {planned.state}: only a plan can be approved")
        if planned.expires_at <= planned.now:
            raise Refused(f"this edit waited until {planned.expires_at:%Y-%m-%d %H:%M} UTC, and is void: edit anew")
        event_id, who, why = UUID(str(edits[0]["event_id"])), planned.planned_by, planned.reason or ""
        await tx.run("redrive_approve", id=redrive_id, by=by)
        started = await tx.run(
            "redrive_start", id=redrive_id, digest=planned.digest, by=who, reason=why, generation=planned.generation,
            rate=None, max_in_flight=DEFAULT_IN_FLIGHT, ramp=[], halt_at=planned.halt_at, gated=True,
            from_start=planned.from_start,
        )  # fmt: skip
        if not started:
            raise Refused(f"somebody else has just approved redrive {redrive_id}, or dropped it: look at it again")
        for other in await tx.run("redrive_unnoted", id=redrive_id, limit=1):  # before the event is locked
            await tx.note_outcomes(UUID(str(other["redrive_id"])))
        payload, cycle = edits[0]["payload"], edits[0]["cycle"]
        if not await tx.revise(event_id, payload, by=who, reason=why, cycle=cycle):
            raise Refused(edited_meanwhile(event_id))
        await tx.run("revision_drop", id=redrive_id)
        released = await tx.release(redrive_id, limit=1, stage=None, priority=None, chain=_CHAIN)
        if not released or released[0][1] is not None:
            refused = released[0][1] if released else "a redrive has just released it"
            raise Refused(f"event {event_id} cannot be replayed: {refused}")
        await tx.note("redrive-approved", by, {"redrive": str(redrive_id), "events": 1, "event": str(event_id)})
        return await get_in(tx, redrive_id)
