"""A full disk: it is said, nothing is half written, and work goes on by itself when there is room again."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from redrive import Context, Redrive, Rejected, RetryPolicy, Status
from redrive.errors import StoreFull
from redrive.store.sqlite import SqliteStore
from tests.lab import checker
from tests.lab.record import Record
from tests.lab.sides import Side
from tests.lab.test_model import Machine, World, explore
from tests.waiting import until
from tests.worker.conftest import working

EVENTS = 12
MANY = 1_000_000  # pages


def limit(app: Redrive, pages: int) -> None:
    """Let the file have so many pages, as far as the only connection that writes to it is concerned."""
    store = app.store
    assert isinstance(store, SqliteStore)
    with store.writer.pen:
        store.writer.connection.execute(f"pragma max_page_count={pages}")


def pages_of(app: Redrive) -> int:
    store = app.store
    assert isinstance(store, SqliteStore)
    with store.writer.pen:
        (pages,) = store.writer.connection.execute("pragma page_count").fetchone()
    return int(pages)


def shop(url: str) -> Redrive:
    """Handlers that write, fail for a while, and fail for good."""
    app = Redrive(url, retry=RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02))

    @app.handler("lab.pay", brake=False)
    async def pay(payload: dict[str, Any], ctx: Context) -> None:
        if payload["n"] % 4 == 3:
            raise Rejected("no funds " + "x" * 2_000)
        if payload["n"] % 4 == 2 and ctx.attempt == 1:
            raise ConnectionError("not yet " + "x" * 2_000)
        async with ctx.transaction() as tx:
            row = (ctx.idempotency_key, str(ctx.id) + "x" * 500, ctx.fence)
            await tx.execute("insert into lab_effect values (?, ?, ?)", *row)

    return app


async def fill_up(url: str, room: int, record: Record) -> None:
    """Work on a file with so much room, until it is full; make room; let everything come to its end."""
    said: list[dict[str, Any]] = []
    app = shop(url)
    async with app:
        async with app.transaction() as tx:
            await tx.execute(checker.EFFECTS)
        limit(app, pages_of(app) + room)
        with structlog.testing.capture_logs() as logs:
            async with working(app, concurrency=4) as worker:
                for n in range(EVENTS):
                    await publish(app, n, said, record)
                # as far as it gets: everything has ended, or the disk is full for the worker, too
                await until(lambda: _ended(worker.tally) >= _alive(said) or _met(logs))
                record.reached["the worker met it"] += _met(logs)
                await asyncio.to_thread(limit, app, MANY)  # a transaction may have the pen, and needs the loop
                for n in range(EVENTS, EVENTS + 3):
                    await publish(app, n, said, record)
                await until(lambda: _ended(worker.tally) >= _alive(said))
        events = await app.events()
        assert {event.status for event in events} <= {Status.DELIVERED, Status.FAILED}
    record.cases += 1
    found = checker.check(url, lines=said, max_attempts=3)
    record.violations.update(found.violations)
    assert not found.violations, f"room for {room} pages: {found}"
    check_file(url)


async def publish(app: Redrive, n: int, said: list[dict[str, Any]], record: Record) -> None:
    event_id: UUID | None = None
    try:
        event_id = (await app.publish("lab.pay", {"n": n, "text": "x" * 1_500})).id
    except StoreFull:
        record.faults["disk full"] += 1
    said.append({"what": "publish", "answer": "ok" if event_id else "fail", "ids": [str(event_id)] if event_id else []})


def _ended(tally: Any) -> int:
    return int(tally.delivered + tally.dead_lettered)


def _alive(said: list[dict[str, Any]]) -> int:
    return sum(line["answer"] == "ok" for line in said)


def _met(logs: Any) -> bool:
    return any(entry["event"] in ("store unavailable, waiting", "outcome not written yet") for entry in logs)


def check_file(url: str) -> None:
    file = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        assert file.execute("pragma integrity_check").fetchall() == [("ok",)]
    finally:
        file.close()


@pytest.mark.promise("durable", "no-phantom", "not-stuck")
@pytest.mark.req("A5")
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
async def test_a_worker_goes_on_by_itself_when_there_is_room_again(
    form: str, tmp_path: Path, record: Callable[..., Record]
) -> None:
    run = record("disk full")
    for room in range(0, 40, 2) if form == "short" else range(60):
        await fill_up(f"sqlite:///{tmp_path / f'{room}.db'}", room, run)
        await asyncio.sleep(0)

    assert run.faults["disk full"]
    assert run.reached["the worker met it"]


@pytest.mark.promise("effect-once", "durable")
async def test_a_handler_that_overlooks_the_full_disk_has_delivered_nothing(sqlite_url: str) -> None:
    """SQLite ends the transaction by itself: what a handler does after that must not be committed alone."""
    app = Redrive(sqlite_url, retry=RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02))
    room = [20]

    @app.handler("lab.pay", brake=False)
    async def pay(payload: Any, ctx: Context) -> None:
        limit_of_handler(app, room.pop() if room else MANY)
        async with ctx.transaction() as tx:
            await tx.execute("insert into lab_effect values (?, 'first', 1)", ctx.idempotency_key)
            with suppress(sqlite3.Error):
                await tx.execute("insert into lab_effect values ('big', ?, 1)", "x" * 1_000_000)
            await tx.execute("insert into lab_effect values ('last', 'last', 1)")

    async with app:
        async with app.transaction() as tx:
            await tx.execute(checker.EFFECTS)
        await app.publish("lab.pay", {})
        async with working(app) as worker:
            await until(lambda: _ended(worker.tally) == 1)
        (event,) = await app.events()

    assert (event.status, event.attempts, event.deferred_count) == (Status.DELIVERED, 1, 1)  # no fault of the event
    assert not checker.check(sqlite_url, max_attempts=3).violations
    kept = checker.query(sqlite_url, "select key from lab_effect")
    assert sorted(row["key"] for row in kept) == sorted([event.idempotency_key, "big", "last"])


def limit_of_handler(app: Redrive, room: int) -> None:
    """Leave some room beyond what the file has."""
    limit(app, pages_of(app) + room)


class Full(Machine):
    """Does each verb on a file without a free page first, and again when there is room."""

    def __init__(self) -> None:
        for side in self.world.sides:
            self.world.run(side.empty())
            side.raw.execute("vacuum")
        super().__init__()

    def ask(self, side: Side, verb: str, *arguments: Any) -> Any:
        for app in side.apps:
            limit(app, pages_of(app))
        before = side.view()
        answer = super().ask(side, verb, *arguments)
        for app in side.apps:
            limit(app, MANY)
        if answer != "StoreFull":
            return answer
        assert side.view() == before, f"{verb} was refused, and half of it is there"
        self.world.record.faults[f"{verb} on a full disk"] += 1
        return super().ask(side, verb, *arguments)


@pytest.mark.promise("durable", "no-phantom", "trail")
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
def test_every_verb_is_done_or_refused_when_no_page_is_free(
    form: str, sqlite_url: str, record: Callable[..., Record], seed: int, budget: float
) -> None:
    run = record("disk full")
    world = World([sqlite_url], run)
    end, turn = time.monotonic() + budget, 0
    try:
        while turn == 0 or (form == "long" and time.monotonic() < end):
            explore(world, Full, cases=25 if form == "short" else 200, steps=40, seed=seed + turn)
            turn += 1
    finally:
        world.close()

    for verb in ("publish", "bury"):
        assert run.faults[f"{verb} on a full disk"], f"{verb} never met a full disk"
