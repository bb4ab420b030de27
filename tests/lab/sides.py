"""The two sides: the verbs of the model, done by a real store through the public API and the store's contract.

Each session has an app of its own, as a worker process has, and operators have another. Events, sessions and redrives
are told as numbers, so that the answers of two stores can be compared with each other and with the model's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

from redrive import LeaseLost, Redrive, RedriveError, Status, redrive
from redrive.clock import VirtualClock
from redrive.event import Outcome, Settlement
from redrive.instant import to_micros
from redrive.operations import UNCHANGED
from redrive.redrive import Redriving, Release
from redrive.store.base import ATTEMPTS, FENCE, ID, IDEMPOTENCY_KEY, SWEPT_STATUS, TARGET, Ages, Row
from tests.lab.model import Lease
from tests.lab.plans import Model
from tests.stores.helpers import Hands

BY = {"by": "ann", "reason": "why"}
KEPT = ("schema_version", "clock")
_VIEW = (
    "select id, status, {due_at}, attempts, lost_count, fence, cycle, priority, {passed}, deleted_at is not null,"
    " blocked_on, fingerprint, {ended_at}, payload from {}outbox order by id"
)
_GROUPS = "select fingerprint, dead_count, total_count, state from {}failure_group order by fingerprint"
_TRAIL = "select {at}, event_id, kind, actor, detail from {}trail"


class Side:
    """One store, two sessions, and an operator."""

    def __init__(self, url: str, clock: VirtualClock) -> None:
        self.url = url
        self.clock = clock
        self.is_postgres = url.startswith("postgres")
        self.apps = [Redrive(url, clock=clock, migrate=True) for _ in range(3)]
        self.operator = self.apps[2]
        self.hands: dict[int, Hands] = {}

    async def open(self) -> None:
        for app in self.apps:
            if not self.is_postgres:
                app.store._synchronous = "OFF"  # type: ignore[attr-defined]  # durability is another experiment
            await app.open()
        self.raw: Any = (
            psycopg.connect(self.url, autocommit=True)
            if self.is_postgres
            else sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        )
        before, listed = self._names()
        self._tables = [before + name for (name,) in self.raw.execute(listed) if name not in KEPT]
        if self.is_postgres:
            self.raw.execute("set session_replication_role = replica")  # the trail may be emptied between two cases
        else:
            for (name,) in self.raw.execute("select name from sqlite_master where type = 'trigger'").fetchall():
                if "trail" in name:
                    self.raw.execute(f"drop trigger {name}")

    def _names(self) -> tuple[str, str]:
        if self.is_postgres:
            return "redrive.", "select tablename from pg_tables where schemaname = 'redrive'"
        listed = (
            "select substr(name, 9) from sqlite_master where type = 'table' and name like 'redrive\\_%' escape '\\'"
        )
        return "redrive_", listed

    async def close(self) -> None:
        await self.empty()
        self.raw.close()
        for app in self.apps:
            await app.close()

    async def empty(self) -> None:
        """Forget everything but the time."""
        for hands in self.hands.values():
            await hands.claims.close()
        self.hands.clear()
        self.ids: list[UUID] = []
        self.plans: list[Any] = []
        self.rows: dict[Lease, Row] = {}
        text = ";".join(f"delete from {name}" for name in self._tables)
        if self.is_postgres:
            self.raw.execute(text)
        else:
            self.raw.executescript(f"begin;{text};commit")

    async def do(self, verb: str, *arguments: Any) -> Any:
        """Answer as the model does, or with the name of the error."""
        try:
            return await getattr(self, verb)(*arguments)
        except RedriveError as error:
            return type(error).__name__

    def number(self, event_id: Any) -> int:
        """Say which it is; of two at once, one may have seen it before the other knows that it was published."""
        known = UUID(str(event_id))
        if known not in self.ids:
            self.ids.append(known)
        return self.ids.index(known) + 1

    def id(self, n: int) -> UUID:
        return self.ids[n - 1] if n <= len(self.ids) else UUID(int=n)

    # --- the walk

    async def publish(
        self, target: str, retry_key: str | None, ordering_key: str | None, delay: int, priority: int
    ) -> Any:
        n = len(self.ids) + 1
        made = await self.operator.publish(
            target, n, retry_key=retry_key, ordering_key=ordering_key, delay=float(delay), priority=priority,
            idempotency_key=f"i{n % 4}",
        )  # fmt: skip
        return self.number(made.id), made.created

    async def claim(self, session: int, want: int) -> Any:
        rows = await self.hands[session].claim(want)
        self.rows.update({(self.number(row[ID]), row[FENCE]): row for row in rows})
        return sorted((self.number(row[ID]), row[FENCE], row[ATTEMPTS]) for row in rows)

    async def deliver(self, lease: Lease) -> Any:
        return self._numbers(await self._holder(lease).deliver(self.rows[lease]))

    async def handle(self, lease: Lease, session: int) -> Any:
        row, store = self.rows[lease], self.hands[session].app.store
        async with store.transaction() as tx:
            is_first = await tx.mark_handled(row[TARGET], row[IDEMPOTENCY_KEY], row[ID])
            if not await tx.deliver(row[ID], row[FENCE]):
                raise LeaseLost("it is somebody else's now")
        return is_first, await self.beat(session)

    async def retry(self, lease: Lease, delay: int) -> Any:
        return await self._settle(lease, Status.PENDING, "f2", delay=float(delay), is_safe=True)

    async def bury(self, lease: Lease, fingerprint: str, is_safe: bool, is_passed: bool) -> Any:
        return await self._settle(lease, Status.FAILED, fingerprint, is_safe=is_safe, is_passed=is_passed)

    async def block(self, lease: Lease, on: str) -> Any:
        return await self._settle(lease, Status.BLOCKED, "f3", is_safe=True, blocked_on=on)

    async def put_back(self, lease: Lease, delay: int) -> Any:
        return self._numbers(await self._holder(lease).put_back(self.rows[lease], float(delay)))

    async def begin(self, session: int) -> Any:
        if session - 2 in self.hands:
            await self.hands.pop(session - 2).claims.close()
        self.hands[session] = await Hands.begin(self.apps[session % 2])

    async def beat(self, session: int) -> Any:
        return await self.hands[session].app.store.heartbeat(self.hands[session].id, 30.0)

    async def leave(self, session: int) -> Any:
        await self.hands[session].app.store.end_session(self.hands[session].id)

    async def sweep(self, session: int, max_lost: int) -> Any:
        rows = await self.hands[session].sweep(max_lost=max_lost)
        self.rows.update({(self.number(row[ID]), row[FENCE]): row for row in rows})
        return sorted((self.number(row[ID]), row[FENCE], row[SWEPT_STATUS]) for row in rows)

    async def unblock(self, on: str, limit: int) -> Any:
        async with self.operator.store.transaction() as tx:
            return sorted(self.number(row["id"]) for row in await tx.run("unblock", name=on, limit=limit))

    async def _settle(
        self, lease: Lease, status: Status, fingerprint: str, *, delay: float | None = None, is_safe: bool,
        is_passed: bool = False, blocked_on: str | None = None,
    ) -> Any:  # fmt: skip
        row = self.rows[lease]
        settlement = Settlement(
            row[ID], row[FENCE], status, Outcome.FAILED, delay, "boom", "broken", "E", is_safe, fingerprint, 5,
            passed=is_passed, blocked_on=blocked_on,
        )  # fmt: skip
        return self._numbers(await self._holder(lease).settle(settlement))

    def _holder(self, lease: Lease) -> Hands:
        return self.hands[max(self.hands)] if lease[0] % 2 else self.hands[min(self.hands)]

    def _numbers(self, ids: Sequence[UUID]) -> list[int]:
        return [self.number(each) for each in ids]

    # --- operators

    async def cancel(self, n: int) -> Any:
        await self.operator.cancel(self.id(n), **BY)

    async def replay(self, n: int, payload: str | None = None) -> Any:
        edited = UNCHANGED if payload is None else json.loads(payload)
        await self.operator.replay(self.id(n), by="ann", reason="why", payload=edited)

    async def discard(self, n: int) -> Any:
        await self.operator.discard(self.id(n), **BY)

    async def restore(self, n: int) -> Any:
        await self.operator.restore(self.id(n), **BY)

    async def release_key(self, target: str, ordering_key: str) -> Any:
        return self.number((await self.operator.release_key(ordering_key, target=target, **BY)).head)

    async def hold(self, target: str) -> Any:
        await self.operator.hold(target, **BY)

    async def lift(self, target: str) -> Any:
        await self.operator.lift(target, **BY)

    async def purge(self, age: int) -> Any:
        gone = await self.operator.store.purge(Ages(ended=age, failed=age), by="ann", limit=1000)
        return gone.events, gone.dead_letters

    # --- redrives

    async def plan(self, target: str, is_unsafe: bool) -> Any:
        made = await self.operator.plan(f"type:{target}", by="ann", unsafe=is_unsafe)
        self.plans.append(made.redrive)
        return len(self.plans), made.redrive.total, made.redrive.ready, sorted(made.ineligible.items())

    async def start(self, number: int, max_in_flight: int, ramp: Sequence[int]) -> Any:
        release = Release(max_in_flight=max_in_flight, ramp=tuple(ramp))
        return _standing(
            await self.operator.start(self.plans[number - 1].token, by="ann", reason="why", release=release)
        )

    async def carry_on(self, number: int) -> Any:
        redrive_id = self.plans[number - 1].id
        async with self.operator.store.transaction() as tx:
            if not await tx.run("redrive_lock", id=redrive_id):
                return None
            await redrive._carry_on(tx, redrive_id, "lab")
            return _standing(await redrive.get_in(tx, redrive_id))

    async def stop(self, number: int, to: str) -> Any:
        stop = self.operator.pause if to == "paused" else self.operator.abort
        return _standing(await stop(self.plans[number - 1].id, **BY))

    async def resume(self, number: int) -> Any:
        return _standing(await self.operator.resume(self.plans[number - 1].id, by="ann"))

    # --- what stands there

    def view(self) -> dict[int, tuple[Any, ...]]:
        """Read what the model knows of every event."""
        rows = self._ask(_VIEW, "due_at", "ended_at")
        return {self.number(row[0]): (*row[1:8], bool(row[8]), bool(row[9]), *row[10:13], str(row[13])) for row in rows}

    def groups(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._ask(_GROUPS)]

    def trail(self) -> list[tuple[Any, ...]]:
        """Read everything that was told, without ids and times."""
        told = [
            (at, None if event_id is None else self.number(event_id), kind, actor, _facts(kind, json.loads(detail)))
            for at, event_id, kind, actor, detail in self._ask(_TRAIL, "at")
        ]
        return in_order(told)

    def _ask(self, text: str, *instants: str) -> list[Any]:
        epoch = "(extract(epoch from {}) * 1000000)::bigint" if self.is_postgres else "{}"
        text = text.replace("{}", "redrive." if self.is_postgres else "redrive_").replace("{passed}", "passed")
        for name in instants:
            text = text.replace(f"{{{name}}}", epoch.format(name))
        return list(self.raw.execute(text).fetchall())


def in_order(told: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Order entries by their time; those of one instant in any order, if it is always the same."""
    return sorted(told, key=repr)


def _facts(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    left_out = {"redrive", "failed_before", "what", "selection", *(("reason",) if kind == "redrive-halted" else ())}
    return {name: value for name, value in facts.items() if name not in left_out and not name.endswith("_at")}


def _standing(found: Redriving) -> tuple[Any, ...]:
    return (
        found.state, found.stage, found.outstanding, found.released, found.delivered, found.failed_same,
        found.failed_other, found.skipped,
    )  # fmt: skip


def view_of(model: Model) -> dict[int, tuple[Any, ...]]:
    """Show the model as ``Side.view`` shows a store."""
    return {
        row.n: (
            row.status, row.due, row.attempts, row.lost, row.fence, row.cycle, row.priority, row.is_passed,
            row.is_discarded, row.blocked_on, row.fingerprint, row.ended, row.payload,
        )
        for row in model.rows.values()
    }  # fmt: skip


def dead_counts(model: Model) -> dict[str, int]:
    """Count the dead letters of each group."""
    counts: dict[str, int] = {}
    for row in model.rows.values():
        if row.status == "failed" and not row.is_discarded and row.fingerprint is not None:
            counts[row.fingerprint] = counts.get(row.fingerprint, 0) + 1
    return counts


def micros(clock: VirtualClock) -> int:
    return to_micros(clock.now())
