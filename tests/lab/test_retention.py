"""Retention against a model: tables are filled at random, and a purge must remove what nobody needs, and nothing else.

The model is the list of rules in ``redrive.retention``, written a second time. It reads the rows as they are before the
purge; the statements of both stores have to come to the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from redrive import Redrive
from redrive.clock import VirtualClock
from redrive.instant import to_micros
from redrive.store.base import Ages
from tests.stores.helpers import is_postgres

DAY = 86_400.0
STATUSES = ("pending", "in_flight", "blocked", "failed", "failed", "failed", "delivered", "delivered", "cancelled")
REDRIVES = ("planned", "running", "paused", "halted", "done", "aborted")
AGES = Ages(ended=30 * DAY, failed=60 * DAY, handled=45 * DAY)


@dataclass(slots=True)
class Row:
    """An event as the model sees it."""

    id: UUID
    target: str
    idempotency_key: str
    ordering_key: str | None
    status: str
    age: float
    is_passed: bool
    is_discarded: bool
    compensation: str | None
    batch: UUID | None

    @property
    def can_run(self) -> bool:
        return self.status in ("pending", "in_flight", "blocked", "failed")


@dataclass(slots=True)
class Tables:
    """Rows of all tables that refer to events."""

    rows: list[Row] = field(default_factory=list)
    undone_by: dict[UUID, UUID] = field(default_factory=dict)  # a compensation, and the event it belongs to
    redrives: dict[UUID, tuple[str, float]] = field(default_factory=dict)  # state, seconds until it expires
    items: list[tuple[UUID, UUID, str]] = field(default_factory=list)  # redrive, event, state
    batches: dict[UUID, bool] = field(default_factory=dict)  # whether its final notice was sent
    handled: dict[tuple[str, str], float] = field(default_factory=dict)

    def is_needed(self, row: Row) -> bool:
        """Say whether anything needs an event that has ended."""
        is_open = {id_ for id_, (state, left) in self.redrives.items() if state in REDRIVES[1:4] or (
            state == "planned" and left > 0)}  # fmt: skip
        items = [(redrive, state) for redrive, event, state in self.items if event == row.id]
        line = [r for r in self.rows if (r.target, r.ordering_key) == (row.target, row.ordering_key)]
        holds = row.status == "failed" and row.ordering_key and not row.is_passed and not row.is_discarded
        return bool(
            row.compensation in ("pending", "failed")
            or row.id in self.undone_by
            or any(state == "released" for _, state in items)
            or (row.status == "failed" and any(state == "ready" and of in is_open for of, state in items))
            or (row.batch is not None and not self.batches[row.batch])
            or (holds and any(r.status in ("pending", "blocked") for r in line))
        )

    def may_go(self) -> set[UUID]:
        limits = {"delivered": AGES.ended, "cancelled": AGES.ended, "failed": AGES.failed}
        old = [row for row in self.rows if row.status in limits and row.age > (limits[row.status] or 0)]
        return {row.id for row in old if not self.is_needed(row)}

    def keys_that_may_go(self, gone: set[UUID]) -> set[tuple[str, str]]:
        wanted = {(row.target, row.idempotency_key) for row in self.rows if row.can_run and row.id not in gone}
        return {key for key, age in self.handled.items() if age > (AGES.handled or 0)} - wanted


async def filled(app: Redrive, dice: random.Random, count: int) -> Tables:
    """Fill the tables, past everything that would keep them sensible."""
    tables, now = Tables(), app.clock.now()
    own = "redrive." if is_postgres(app.url) else "redrive_"
    batches = [await app.batches.open(name) for name in ("under way", "told")]
    tables.batches = {batches[0].id: False, batches[1].id: True}
    shared = [f"key-{n}" for n in range(4)]
    published = await app.publish_many([("t", None)] * count)
    ids = [each.id for each in published]
    for each in ids:
        status = dice.choice(STATUSES)
        tables.rows.append(Row(
            each, dice.choice("ab"), dice.choice([str(each), str(dice.choice(ids)), *shared]),
            None if status == "in_flight" else dice.choice((None, None, "k", "l", "m")), status,
            DAY * dice.choice((1, 29, 31, 59, 61, 400)), chance(dice, 0.2), chance(dice, 0.2),
            dice.choice((None, None, None, "pending", "failed", "done")),
            dice.choice((None, None, None, *tables.batches)),
        ))  # fmt: skip
    async with app.store.transaction() as tx:

        def at(age: float) -> Any:
            return moment(app, now - timedelta(seconds=age))

        async def put(table: str, **values: Any) -> None:
            marks = ", ".join(places(app, len(values)))
            await tx.execute(f"insert into {own}{table} ({', '.join(values)}) values ({marks})", *values.values())

        for row in tables.rows:
            ended = at(row.age) if row.status in ("failed", "delivered", "cancelled") else None
            values = {
                "status": row.status, "ended_at": ended, "target": row.target, "idempotency_key": row.idempotency_key,
                "ordering_key": row.ordering_key, "passed": flag(app, row.is_passed), "compensation": row.compensation,
                "deleted_at": at(0) if row.is_discarded else None, "batch_id": key(app, row.batch),
            }  # fmt: skip
            marks = places(app, len(values) + 1)
            sets = ", ".join(f"{name} = {mark}" for name, mark in zip(values, marks, strict=False))
            await tx.execute(
                f"update {own}outbox set {sets} where id = {marks[-1]}", *values.values(), key(app, row.id)
            )
        told = f"update {own}batch set closed_at = opened_at, final_at = opened_at where id = {places(app, 1)[0]}"
        await tx.execute(told, key(app, batches[1].id))
        for n, undo in enumerate(dice.sample(ids, count // 6)):
            tables.undone_by[undo] = dice.choice([each for each in ids if each != undo])
            await put(
                "step", event_id=key(app, tables.undone_by[undo]), cycle=0, name=f"s{n}", position=n, state="done",
                key="k", compensation_id=key(app, undo), fence=1, started_at=at(0),
            )  # fmt: skip
        for n, state in enumerate((*REDRIVES, "planned")):
            redrive_id, left = app.clock.new_id(), 3_600.0 if n < len(REDRIVES) else -3_600.0
            tables.redrives[redrive_id] = state, left
            await put(
                "redrive", id=key(app, redrive_id), state=state, selection="", sentence="", planned_by="ann",
                planned_at=at(0), expires_at=at(-left),
            )  # fmt: skip
            for position, event in enumerate(dice.sample(ids, 3)):
                released = {item[1] for item in tables.items if item[2] == "released"}
                kinds = ("ready", "ready", "delivered") if event in released else ("ready", "released", "delivered")
                tables.items.append((redrive_id, event, dice.choice(kinds)))
                await put(
                    "redrive_item", redrive_id=key(app, redrive_id), position=position, event_id=key(app, event),
                    cycle=0, state=tables.items[-1][2],
                )  # fmt: skip
        for target in "ab":
            for known in sorted({row.idempotency_key for row in tables.rows} | {"nobody's", str(app.clock.new_id())}):
                tables.handled[target, known] = DAY * dice.choice((1, 44, 46, 400))
                await put(
                    "event_handled", target=target, idempotency_key=known, event_id=key(app, dice.choice(ids)),
                    handled_at=at(tables.handled[target, known]),
                )  # fmt: skip
    return tables


def chance(dice: random.Random, share: float) -> bool:
    return dice.random() < share


def moment(app: Redrive, at: datetime) -> Any:
    return at if is_postgres(app.url) else to_micros(at)


def key(app: Redrive, id_: UUID | None) -> Any:
    return id_ if id_ is None or is_postgres(app.url) else str(id_)


def flag(app: Redrive, value: bool) -> Any:
    return value if is_postgres(app.url) else int(value)


def places(app: Redrive, count: int) -> Sequence[str]:
    return [f"${n}" if is_postgres(app.url) else "?" for n in range(1, count + 1)]


async def left(app: Redrive, read: str, of: Callable[[Any], Any]) -> set[Any]:
    own = "redrive." if is_postgres(app.url) else "redrive_"
    async with app.store.transaction() as tx:
        return {of(row) for row in await tx.fetch(read.format(own=own))}


@pytest.mark.req("H5", "O8")
@pytest.mark.parametrize("seed", range(6))
async def test_a_purge_removes_what_nobody_needs_and_nothing_else(store_url: str, seed: int) -> None:
    dice = random.Random(seed)
    async with Redrive(store_url, clock=VirtualClock(), migrate=True) as app:
        tables = await filled(app, dice, 60)
        may_go = tables.may_go()
        keys_may_go = tables.keys_that_may_go(may_go)

        await app.store.purge(AGES, by="w", limit=10_000)

        kept = await left(app, "select id from {own}outbox", lambda row: UUID(str(row[0])))
        keys = await left(app, "select target, idempotency_key from {own}event_handled", tuple)
    assert {row.id for row in tables.rows} - kept == may_go
    assert set(tables.handled) - keys == keys_may_go
    assert may_go
    assert keys_may_go
