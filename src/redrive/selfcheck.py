"""Selfcheck: the engine reconciles itself.

Every step of the walk leaves things whole. This is the net for what no step can see: rows changed by hand, restored
from a backup, or left behind by an error of ours. About once a minute one of the workers looks, whichever comes first;
what it finds is repaired on the path that should have done it, and is a finding like any other, so that people see
what keeps coming back. When nothing is found, only the time of the look is written.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from redrive import batch, dependency, finding, group, ordering, redrive
from redrive.dependency import Dependency
from redrive.duty import Tick
from redrive.errors import LockHeld, Refused, StoreUnavailable
from redrive.finding import Tally
from redrive.logs import log
from redrive.spool import Difference
from redrive.store.base import Store

ENGINE: Final = "redrive:engine"
"""The row that says when somebody looked last."""

EVERY_SECONDS: Final = 60.0
_SETTLED: Final = 5.0
_SHARE: Final = 20  # a look that takes long takes a twentieth of the time at most
_AT_ONCE: Final = 500
_PAGES: Final = 20
_GRACE_SECONDS: Final = 60.0
_STALE_SECONDS: Final = 3_600.0
_NOBODY: Final = UUID(int=0)

Find = Callable[[Store], Awaitable[list[Difference]]]
Repair = Callable[[Store, Sequence[Difference], str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold, and what to do where it does not."""

    name: str
    find: Find
    repair: Repair


class SelfCheck:
    """The looks of one worker process."""

    def __init__(
        self, ready: Callable[[], Awaitable[Store]], checks: Sequence[Check] | None = None, *, after: float = _SETTLED
    ) -> None:
        self._ready = ready
        self._checks = own_checks() if checks is None else checks
        self._after = after
        self._first_at: float | None = None
        self._pause = EVERY_SECONDS

    async def act(self, by: str) -> Tick:
        """Look at everything, if nobody has for a minute."""
        store = await self._ready()
        now = store.clock.monotonic()
        self._first_at = now + self._after if self._first_at is None else self._first_at
        if now < self._first_at:  # a worker that has just started has better things to do
            return Tick(moved=False, pause=self._first_at - now)
        async with store.transaction() as tx:
            ours = await tx.run("reconciler_look", name=ENGINE, by=by, seconds=self._pause)
        if not ours:
            return Tick(moved=False, pause=self._pause)
        began, found = store.clock.monotonic(), 0
        for check in self._checks:
            try:
                found += await look(store, check, by=by)
            except LockHeld as error:  # somebody has one of its rows: the next look repairs it
                log.debug("engine not checked", check=check.name, error=str(error))
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - one that is broken must not hold up the others
                log.error("engine not checked", check=check.name, error=repr(error)[:500])
        self._pause = max(EVERY_SECONDS, _SHARE * (store.clock.monotonic() - began))
        return Tick(found > 0, self._pause)


async def look(store: Store, check: Check, *, by: str) -> int:
    """Find, write down, repair; return how much was found."""
    found = await check.find(store)
    if not found and not await finding.findings(store, name=check.name, limit=1):
        return 0
    run = await finding.begin(store, store.clock.new_id(), check.name, by=by)
    tally = Tally(compared=len(found))
    tally.count(found)
    try:
        if found:
            log.warning("engine repairs itself", check=check.name, found=len(found), first=found[0].key)
            async with store.transaction() as tx:
                await finding.hold(tx, run)
                rows = await finding.seen(tx, run, found, [store.clock.new_id() for _ in found])
            await check.repair(store, found, by)
            await finding.converged(store, [UUID(str(row["id"])) for row in rows])
        tally.healed = await finding.heal(store, run)
    except Exception as error:
        await finding.end(store, run, tally, error)
        raise
    await finding.end(store, run, tally)
    return len(found)


def own_checks() -> list[Check]:
    """List what the engine checks of itself. Another part adds its own here: a name, what drifted, how to repair it."""
    return [
        Check("redrive:leases", _lost_leases, _adopt),
        Check("redrive:redrives", _orphaned_redrives, _end_or_carry_on),
        Check("redrive:groups", _miscounted_groups, _count_anew),
        Check("redrive:blocked", _waiting_in_vain, _let_come_back),
        Check("redrive:stranded", _waiting_for_nothing, _unblock),
        Check("redrive:keys", _Keys().stuck, _promote),
        Check("redrive:runs", _lost_runs, _end_runs),
        Check("redrive:notices", _overdue_notices, _send_notices),
    ]


# --- leases: in flight, and no sweep will find it ---


async def _lost_leases(store: Store) -> list[Difference]:
    rows = await store.ask("check_leases", seconds=_GRACE_SECONDS, limit=_AT_ONCE)
    return [_different(row["id"], "held by a worker", f"held by session {row['session_id']}, which is gone")
            for row in rows]  # fmt: skip


async def _adopt(store: Store, found: Sequence[Difference], _by: str) -> None:
    """Make the missing sessions known as ended: the sweep takes their events, and counts them as lost."""
    ids = [each.key for each in found]
    async with store.transaction() as tx:
        await tx.run("leases_name", ids=ids, nobody=_NOBODY)
        await tx.run("leases_adopt", ids=ids)


# --- redrives: planned by nobody who is there, or not carried on ---


async def _orphaned_redrives(store: Store) -> list[Difference]:
    rows = await store.ask("check_redrives", seconds=_STALE_SECONDS, limit=_AT_ONCE)
    return [_different(row["id"], "moves", f"{row['state']} for more than an hour") for row in rows]


async def _end_or_carry_on(store: Store, found: Sequence[Difference], by: str) -> None:
    for each in found:
        if each.actual is not None and each.actual.startswith('"planning'):
            try:
                reason = "whoever planned it did not finish"
                await redrive.stop(store, UUID(each.key), to="aborted", by=by, reason=reason)
            except Refused as error:  # it moved meanwhile
                log.info("redrive left alone", redrive=each.key, why=str(error))
    await redrive.tick(store, chain="operator")


# --- groups: counters that do not fit their dead letters ---


async def _miscounted_groups(store: Store) -> list[Difference]:
    return [
        Difference(each.fingerprint, "missing", json.dumps(each.counted), None)
        if each.dead_count is None
        else Difference(each.fingerprint, "different", json.dumps(each.counted), json.dumps(each.dead_count))
        for each in await group.miscounts(store)
    ]


async def _count_anew(store: Store, _found: Sequence[Difference], _by: str) -> None:
    await group.rebuild(store)


# --- blocked: what it waits for is back, or was never there ---


async def _waiting_in_vain(store: Store) -> list[Difference]:
    return [
        _different(each.name, "nobody waits", "closed, and events wait for it")
        for each in await dependency.standing(store)
        if each.is_waited_for and not each.is_shut and each.released_from is None and _is_long_closed(each)
    ]


def _is_long_closed(this: Dependency) -> bool:
    return this.closed_at is None or (this.now - this.closed_at).total_seconds() > _GRACE_SECONDS


async def _let_come_back(store: Store, found: Sequence[Difference], _by: str) -> None:
    for each in found:
        await dependency.release(store, each.key, dependency.DEFAULT)


async def _waiting_for_nothing(store: Store) -> list[Difference]:
    rows = await store.ask("check_blocked", limit=_AT_ONCE)
    return [_different(row["id"], "pending", "blocked by nothing") for row in rows]


async def _unblock(store: Store, found: Sequence[Difference], _by: str) -> None:
    async with store.transaction() as tx:
        await tx.run("unblock_these", ids=[each.key for each in found])


# --- ordering keys: nobody in flight, and the first in line waits ---


class _Keys:
    """Walks through the keys, some at a look."""

    def __init__(self) -> None:
        self._after = ordering.START

    async def stuck(self, store: Store) -> list[Difference]:
        found: list[Difference] = []
        for _ in range(_PAGES):
            target, key = self._after
            walked = await store.ask("key_walk", target=target, ordering_key=key, limit=_AT_ONCE)
            found += [
                _different(json.dumps([row["target"], row["ordering_key"]], ensure_ascii=False), "moves", "left behind")
                for row in walked
                if row["stuck"]
            ]
            if len(walked) < _AT_ONCE:
                self._after = ordering.START
                break
            self._after = walked[-1]["target"], walked[-1]["ordering_key"]
        return found


async def _promote(store: Store, found: Sequence[Difference], _by: str) -> None:
    async with store.transaction() as tx:
        for each in found:
            target, key = json.loads(each.key)
            await tx.run("promote", target=target, ordering_key=key)


# --- runs of reconcilers: under way by their row only ---


async def _lost_runs(store: Store) -> list[Difference]:
    rows = await store.ask("check_runs", limit=_AT_ONCE)
    return [_different(row["id"], "ended", f"run of {row['name']} under way, and nobody runs it") for row in rows]


async def _end_runs(store: Store, found: Sequence[Difference], _by: str) -> None:
    async with store.transaction() as tx:
        await tx.run("runs_lost", ids=[each.key for each in found], error="its process is gone")


# --- batches: a notice that is due, and that nobody has sent ---


async def _overdue_notices(store: Store) -> list[Difference]:
    rows = await store.ask("batch_repair", limit=_AT_ONCE)
    return [_different(row["id"], "notice sent", f"batch {row['name']} has nothing left to wait for") for row in rows]


async def _send_notices(store: Store, found: Sequence[Difference], _by: str) -> None:
    await batch.repair(store, [UUID(each.key) for each in found])


def _different(key: Any, desired: str, actual: str) -> Difference:
    return Difference(
        str(key), "different", json.dumps(desired, ensure_ascii=False), json.dumps(actual, ensure_ascii=False)
    )
