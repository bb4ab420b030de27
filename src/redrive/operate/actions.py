"""Actions: what an operator can do. Each has a name and a reason, and is on the trail.

Acts on several events go one by one: what one of them refuses does not undo the others, and the answer says how each
went. Long ones work in bounded batches, so that the workers are never kept waiting.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from redrive import group
from redrive.app import Redrive
from redrive.errors import EventNotFound, Refused
from redrive.event import Event, Status
from redrive.group import Group
from redrive.operate import views
from redrive.redrive import Plan, Redriving
from redrive.selection import parse
from redrive.store.base import EventFilter, Purge

Verb = Literal["replay", "discard", "restore", "cancel"]
DONE: Final[dict[Verb, str]] = {
    "replay": "replayed", "discard": "discarded", "restore": "restored", "cancel": "cancelled",
}  # fmt: skip

_BATCH: Final = 1_000
_DRY_RUN_LIMIT: Final = 100_000
_CANCEL_BATCH: Final = 500
_CANCEL_ROUNDS: Final = 20


@dataclass(frozen=True, slots=True)
class Done:
    """How an act on one event went; ``refused`` says why it was not done."""

    event: Event
    verb: Verb
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "id": str(self.event.id),
            "type": self.event.type,
            "target": self.event.target,
            "action": self.verb,
            "done": not self.refused,
            "refused": self.refused or None,
        }


async def act(
    app: Redrive, verb: Verb, events: Sequence[Event], *, by: str, reason: str, generation: int | None = None
) -> list[Done]:
    """Do the same to each of the events."""
    return [await _one(app, verb, event, by, reason, generation) for event in events]


async def _one(app: Redrive, verb: Verb, event: Event, by: str, reason: str, generation: int | None) -> Done:
    try:
        if verb == "replay":
            await app.replay(event.id, by=by, reason=reason, generation=generation)
        else:
            await getattr(app, verb)(event.id, by=by, reason=reason)
    except (Refused, EventNotFound) as error:
        return Done(event, verb, str(error))
    return Done(event, verb)


async def cancel_all(app: Redrive, ids: Sequence[UUID], *, by: str, reason: str) -> AsyncIterator[int]:
    """Call events off in bounded batches; yields how many were. What has ended by itself is left alone."""
    gone = 0
    for first in range(0, len(ids), _CANCEL_BATCH):
        left = set(ids[first : first + _CANCEL_BATCH])
        for _ in range(_CANCEL_ROUNDS):  # what a worker is settling at this moment is passed over the first time
            done = set(await app.cancel_all(sorted(left), by=by, reason=reason))
            gone += len(done)
            left -= done
            if not left or not await views.live(app, left):
                break
            await app.clock.sleep(0.05)
        yield gone


async def purge(
    app: Redrive, *, older_than: float, dead_letters: bool, by: str, now: datetime | None = None
) -> AsyncIterator[Purge]:
    """Remove what ended long ago; yields how much is gone so far. Keys of handled events stay: replays need them."""
    await app.open()
    before = _before(app, older_than, now)
    gone = Purge()
    while True:
        batch = await app.store.purge(
            ended_before=before,
            failed_before=before if dead_letters else None,
            handled_before=None,
            by=by,
            dry_run=False,
            limit=_BATCH,
        )
        gone = _sum(gone, batch)
        yield gone
        if max(batch.events, batch.dead_letters) < _BATCH:
            return
        await app.clock.sleep(0.05)  # leave room for the work itself


async def would_purge(
    app: Redrive, *, older_than: float, dead_letters: bool, by: str, now: datetime | None = None
) -> tuple[Purge, bool]:
    """Say what ``purge`` would remove, and whether the count stopped at its limit. Nothing is removed."""
    await app.open()
    before = _before(app, older_than, now)
    would = await app.store.purge(
        ended_before=before,
        failed_before=before if dead_letters else None,
        handled_before=None,
        by=by,
        dry_run=True,
        limit=_DRY_RUN_LIMIT,
    )
    return would, max(would.events, would.dead_letters) >= _DRY_RUN_LIMIT


def _before(app: Redrive, older_than: float, now: datetime | None) -> datetime:
    return (now or app.clock.now()) - timedelta(seconds=older_than)


def _sum(one: Purge, two: Purge) -> Purge:
    return Purge(
        one.events + two.events,
        one.dead_letters + two.dead_letters,
        one.handled + two.handled,
        one.sessions + two.sessions,
    )


# --- redrives ---


async def plan(app: Redrive, selection: str, *, by: str, unsafe: bool = False) -> Plan | None:
    """Plan a redrive; nothing, and nothing is written down, when no dead letter is meant."""
    await app.open()
    wanted = views.narrowed(app, EventFilter(status=Status.FAILED, limit=1), parse(selection))
    if not await app.events(replace(wanted, discarded=False)):
        return None
    planned = await app.plan(selection, by=by, unsafe=unsafe)
    return planned if planned.redrive.total else None


async def pause(app: Redrive, standing: Redriving, *, by: str, reason: str) -> Redriving:
    """Release nothing more until ``resume``."""
    if standing.state != "running":
        raise Refused(f"redrive {standing.id} is {standing.state}: only a running one can be paused")
    return await app.pause(standing.id, by=by, reason=reason)


async def resume(app: Redrive, standing: Redriving, *, by: str) -> Redriving:
    """Go on after a pause or a halt."""
    if standing.started_at is None:
        raise Refused(f"redrive {standing.id} was never started: `redrive run` starts it, with the token of its plan")
    return await app.resume(standing.id, by=by)


# --- groups ---


async def describe(
    app: Redrive,
    found: Group,
    *,
    by: str,
    owner: str | None = None,
    note: str | None = None,
    muted_for: float | None = None,
    state: str | None = None,
) -> Group:
    """Say who looks after a group, what is known of it, that it may be quiet for a while, or that it is resolved."""
    until = None if muted_for is None else app.clock.now() + timedelta(seconds=muted_for)
    return await group.describe(
        app.store, found.fingerprint, by=by, owner=owner, note=note, muted_until=until, state=state
    )


async def rebuild_groups(app: Redrive) -> dict[str, int]:
    """Count every group anew; what is returned was wrong, with its right count."""
    await app.open()
    return await group.rebuild(app.store)
