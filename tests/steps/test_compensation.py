"""Compensation: what an event has done is undone in reverse order when it ends without being delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest

from redrive import ConfigurationError, Context, Event, Redrive, Refused, RetryPolicy, Status, Step
from redrive.registry import CompensateOn
from redrive.store.base import Ages, EventFilter
from redrive.testing import Harness
from tests.stores.helpers import Hands, failed, found, raw
from tests.waiting import until
from tests.worker.conftest import working

ONCE = RetryPolicy(max_attempts=1)
FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)
ALWAYS: tuple[CompensateOn, ...] = ("cancelled", "deadline", "dead_letter")


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, retry=FAST, migrate=True) as app:
        yield app


class Saga:
    """Three steps, each with its undoing; then something that may fail."""

    def __init__(
        self, app: Redrive, *, undo_retry: RetryPolicy | None = None, transactional: bool = False, **options: Any
    ) -> None:
        self.log: list[str] = []
        self.fails: BaseException | None = ValueError("no")
        self.undo_fails: dict[str, int] = {}
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

        async def do(name: str, step: Step) -> str:
            self.log.append(f"do {name}")
            return step.key

        @app.compensation(retry=undo_retry)
        async def undo(key: str, ctx: Context) -> None:
            name = ctx.headers["step"]
            if transactional:
                async with ctx.transaction():
                    self.log.append(f"undo {name}")
                return
            assert ctx.headers["step-key"] == key  # what the step told the other side
            if self.undo_fails.get(name, 0) > 0:
                self.undo_fails[name] -= 1
                raise ConnectionError(f"cannot undo {name}")
            self.log.append(f"undo {name}")

        @app.handler("saga", retry=ONCE, **options)
        async def saga(payload: Any, ctx: Context) -> None:
            for name in ("a", "b", "c"):
                await ctx.step(name, do, name, compensate=undo)
            self.reached.set()
            await self.go_on.wait()
            if self.fails:
                raise self.fails


async def settled(app: Redrive, event_id: UUID, compensation: str | None) -> Event:
    """Work until the event stands like this."""

    async def over() -> bool:
        event = await found(app, event_id)
        return event.compensation == compensation and event.status not in (Status.PENDING, Status.IN_FLIGHT)

    async with working(app, poll="50ms"):
        await until(over)
    return await found(app, event_id)


async def compensations(app: Redrive) -> list[Event]:
    return [each for each in await app.events(EventFilter(limit=100)) if each.type == "redrive.compensate"]


async def _any(listing: Awaitable[list[Event]]) -> bool:
    return bool(await listing)


async def states(app: Redrive, event_id: UUID) -> list[str]:
    return [row["state"] for row in await app.store.ask("steps", id=event_id)]


@pytest.mark.req("W9", "B10")
async def test_a_dead_letter_that_asked_for_it_is_undone_in_reverse_order(app: Redrive) -> None:
    saga = Saga(app, compensate_on=ALWAYS)
    saga.undo_fails = {"b": 1}  # has retries of its own
    published = await app.publish("saga", subject="order/7")

    event = await settled(app, published.id, "done")

    assert event.status is Status.FAILED
    assert saga.log == ["do a", "do b", "do c", "undo c", "undo b", "undo a"]
    assert await states(app, published.id) == ["compensated"] * 3
    for each in await compensations(app):
        assert each.status is Status.DELIVERED
        assert (each.correlation_id, each.causation_id) == (str(published.id), str(published.id))
        assert each.subject == "order/7"


@pytest.mark.req("W9")
async def test_a_compensation_may_end_itself_in_its_own_transaction(app: Redrive) -> None:
    saga = Saga(app, transactional=True, compensate_on=ALWAYS)

    await settled(app, (await app.publish("saga")).id, "done")

    assert saga.log[3:] == ["undo c", "undo b", "undo a"]


@pytest.mark.req("W9")
async def test_by_default_a_dead_letter_waits_for_somebody_to_look(app: Redrive) -> None:
    saga = Saga(app)
    published = await app.publish("saga")
    await settled(app, published.id, None)
    saga.fails = None
    await app.replay(published.id, by="anna", reason="mended")

    async with working(app):

        async def delivered() -> bool:
            return (await found(app, published.id)).status is Status.DELIVERED

        await until(delivered)

    assert saga.log == ["do a", "do b", "do c"]
    assert await compensations(app) == []


@pytest.mark.req("W9")
@pytest.mark.parametrize(
    ("store_url", "way"), [("sqlite", "python"), ("postgres", "python"), ("postgres", "sql")], indirect=["store_url"]
)
async def test_a_cancelled_event_is_undone(app: Redrive, way: str) -> None:
    saga = Saga(app)
    saga.go_on.clear()
    published = await app.publish("saga")

    async with working(app, poll="50ms"):
        await asyncio.wait_for(saga.reached.wait(), 30)
        if way == "python":
            await app.cancel(published.id, by="anna", reason="the customer left")
        else:
            with psycopg.connect(app.url, autocommit=True) as connection:
                connection.execute("select redrive.cancel(%s, 'anna', 'the customer left')", (published.id,))
        saga.go_on.set()

        async def undone() -> bool:
            return (await found(app, published.id)).compensation == "done"

        await until(undone)

    assert (await found(app, published.id)).status is Status.CANCELLED
    assert saga.log == ["do a", "do b", "do c", "undo c", "undo b", "undo a"]


@pytest.mark.req("W9")
async def test_an_event_whose_workers_keep_dying_is_undone(app: Redrive) -> None:
    """The dead letter of the sweep takes the same path."""
    saga = Saga(app, compensate_on=ALWAYS)
    saga.go_on.clear()
    published = await app.publish("saga")
    async with working(app, poll="50ms") as worker:
        await asyncio.wait_for(saga.reached.wait(), 30)
        with raw(app.url) as sql:  # as if the worker were gone: nobody holds this session, the fence has moved
            now = "now()" if app.store.name == "postgres" else "1"
            gone = app.clock.new_id()
            queues = "'{}'" if app.store.name == "postgres" else "'[]'"
            sql(
                "insert into {session} (id, name, host, pid, queues, targets, concurrency, started_at, seen_at,"
                f" lease_until, ended_at) values ('{gone}', 'gone', 'h', 1, {queues}, {queues}, 1, {now}, {now},"
                f" {now}, {now})"
            )
            sql(f"update {{outbox}} set session_id = '{gone}', lost_count = 4 where id = '{published.id}'")
        await worker._sweep()
        saga.go_on.set()

        async def undone() -> bool:
            return (await found(app, published.id)).compensation == "done"

        await until(undone)

    assert (await found(app, published.id)).error_class == "worker_lost"
    assert saga.log[3:] == ["undo c", "undo b", "undo a"]


@pytest.mark.req("W9")
async def test_a_passed_deadline_is_undone_by_default_and_other_dead_letters_are_not(app: Redrive) -> None:
    saga = Saga(app)
    saga.fails = TimeoutError("took too long")
    early = await app.publish("saga", 1, deadline="1h")
    assert (await settled(app, early.id, None)).status is Status.FAILED
    saga.go_on.clear()

    late = await settled(app, (await app.publish("saga", 2, deadline="1s")).id, "done")

    assert late.error_type == "redrive.errors.DeadlinePassed"
    assert saga.log == [*(f"do {name}" for name in "abcabc"), "undo c", "undo b", "undo a"]


class DeadlinePassed(TimeoutError):
    """Named like the one that ends an event at its deadline."""


@pytest.mark.req("W9")
async def test_an_error_that_names_the_deadline_is_enough(app: Redrive) -> None:
    saga = Saga(app)
    saga.fails = DeadlinePassed("the handler's own deadline, which the row does not know")

    await settled(app, (await app.publish("saga")).id, "done")

    assert saga.log[3:] == ["undo c", "undo b", "undo a"]


@pytest.mark.req("W9")
async def test_a_compensation_that_cannot_be_done_is_a_dead_letter_and_its_replay_goes_on(app: Redrive) -> None:
    saga = Saga(app, compensate_on=ALWAYS)
    saga.undo_fails = {"b": 3}
    published = await app.publish("saga")

    await settled(app, published.id, "failed")

    assert saga.log[3:] == ["undo c"]
    (dead,) = [each for each in await compensations(app) if each.is_dead_letter]
    with pytest.raises(Refused, match="its compensation failed, see to that first"):
        await app.replay(published.id, by="anna", reason="too early")
    gone = await app.store.purge(Ages(ended=0.0, failed=0.0), by="t", limit=10)
    assert (gone.events, gone.dead_letters) == (0, 0)  # the event and its compensations need each other

    await app.replay(dead.id, by="anna", reason="mended")
    assert (await found(app, published.id)).compensation == "pending"
    with pytest.raises(Refused, match="its compensation is under way"):
        await app.replay(published.id, by="anna", reason="too early", from_start=True)
    plan = await app.plan("type:saga", by="anna")
    assert plan.ineligible == {"compensation under way": 1}
    await settled(app, published.id, "done")

    assert saga.log[3:] == ["undo c", "undo b", "undo a"]


@pytest.mark.req("W9")
async def test_a_cancelled_compensation_counts_as_seen_to_and_the_others_go_on(app: Redrive) -> None:
    saga = Saga(app, undo_retry=RetryPolicy(base_delay=60, max_delay=60, jitter="none"), compensate_on=ALWAYS)
    saga.undo_fails = {"b": 1}
    published = await app.publish("saga")
    await settled(app, published.id, "pending")

    async def waiting() -> list[Event]:
        return [each for each in await compensations(app) if each.status is Status.PENDING and each.attempts]

    async with working(app, poll="50ms"):
        await until(lambda: _any(waiting()))
    (stuck,) = await waiting()
    await app.cancel(stuck.id, by="anna", reason="voided by hand")
    await settled(app, published.id, "done")

    assert saga.log[3:] == ["undo c", "undo a"]
    assert await states(app, published.id) == ["compensated", "skipped", "compensated"]


@pytest.mark.req("W9", "B10")
async def test_what_was_undone_starts_anew_when_it_is_replayed(app: Redrive) -> None:
    saga = Saga(app, compensate_on=ALWAYS)
    published = await app.publish("saga")
    await settled(app, published.id, "done")
    await app.replay(published.id, by="anna", reason="again")
    event = await settled(app, published.id, "done")

    assert event.cycle == 1
    assert saga.log == ["do a", "do b", "do c", "undo c", "undo b", "undo a"] * 2
    assert await states(app, published.id) == ["compensated"] * 6
    (replayed,) = [entry for entry in await app.trail(published.id) if entry.kind == "replayed"]
    assert replayed.facts["from_start"] is True
    keys = {each.idempotency_key for each in await compensations(app)}
    assert len(keys) == 6


@pytest.mark.req("W9")
@pytest.mark.parametrize("takes_none", [True, False])
async def test_a_step_whose_end_nobody_knows_is_undone_by_what_can(app: Redrive, takes_none: bool) -> None:
    undone: list[Any] = []

    async def charge() -> int:
        raise ConnectionError("sent, and no answer")

    async def undo_perhaps(charged: int | None, ctx: Context) -> None:
        undone.append((charged, ctx.headers["step-key"]))

    async def undo_known(charged: int) -> None:
        undone.append(charged)

    undo = app.compensation()(undo_perhaps if takes_none else undo_known)

    @app.handler("t", retry=ONCE, compensate_on=ALWAYS)
    async def handle(payload: None, ctx: Context) -> None:
        await ctx.step("charge", charge, compensate=undo)

    published = await app.publish("t")
    await settled(app, published.id, "done" if takes_none else None)

    assert undone == ([(None, f"{published.id}/charge")] if takes_none else [])


@pytest.mark.req("W9")
@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
async def test_what_was_running_when_its_event_was_cancelled_is_undone_too(app: Redrive, before: int) -> None:
    """Its compensation, run for a step whose end is not known, came before the effect: it comes again."""
    log: list[str] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def quick() -> int:
        log.append("do quick")
        return 1

    async def slow() -> int:
        begun.set()
        while not go.is_set():
            with suppress(asyncio.CancelledError):  # it has called somebody, and cannot take that back
                await go.wait()
        log.append("do slow")
        return 2

    @app.compensation()
    async def undo(result: int | None, ctx: Context) -> None:
        log.append(f"undo {ctx.headers['step']} {result}")

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        for n in range(before):
            await ctx.step(f"quick {n}", quick, compensate=undo)
        await ctx.step("slow", slow, compensate=undo)

    published = await app.publish("t")

    async def undone() -> bool:
        return (await found(app, published.id)).compensation == "done"

    async with working(app, poll="50ms"):
        await asyncio.wait_for(begun.wait(), 30)
        await app.cancel(published.id, by="anna", reason="enough")
        await until(undone)
        go.set()
        await until(lambda: log[-1] == "undo slow (late) 2")
        await until(undone)

    assert log == ["do quick"] * before + ["undo slow None"] + ["undo quick 0 1"] * before + [
        "do slow",
        "undo slow (late) 2",
    ]


@pytest.mark.req("W9")
async def test_whoever_cancels_sees_a_step_that_is_being_kept(postgres_url: str) -> None:
    """A step that is kept while a cancel is under way is either undone or refused, never left over."""
    async with Redrive(postgres_url, migrate=True) as app:
        hands = await Hands.begin(app)
        published = await app.publish("t")
        row = await hands.claim_one()
        values: dict[str, Any] = {
            "id": published.id, "fence": row[1], "cycle": 0, "name": "a", "position": 1, "state": "done", "key": "k",
            "result": "1", "compensation": "compensate:undo", "compensation_id": app.clock.new_id(),
            "compensate_on": "cancelled", "seconds": 0.0,
        }  # fmt: skip
        async with app.store.transaction() as tx:
            assert await tx.run("step_write", **values)
            cancelling = asyncio.create_task(app.cancel(published.id, by="anna", reason="now"))
            await _waits_for_a_lock(postgres_url)
        await cancelling

        assert (await found(app, published.id)).compensation == "pending"
        assert [each.target for each in await compensations(app)] == ["compensate:undo"]
        async with app.store.transaction() as tx:
            assert await tx.run("step_write", **{**values, "name": "b", "compensation_id": app.clock.new_id()}) == []
        await hands.claims.close()


async def _waits_for_a_lock(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

        def waiting() -> bool:
            row = connection.execute(query).fetchone()
            return row is not None and row[0] > 0

        await until(waiting)


async def test_a_dead_letter_without_steps_is_only_that(app: Redrive) -> None:
    hands = await Hands.begin(app)
    published = await app.publish("t")
    row = await hands.claim_one()
    assert await hands.settle(failed(row)) == []
    await hands.claims.close()

    assert (await found(app, published.id)).compensation is None


async def test_a_compensation_takes_steps_but_cannot_be_undone_itself(app: Redrive) -> None:
    log: list[str] = []

    @app.compensation(name="undo", retry=ONCE)
    async def undo_it(result: int, ctx: Context) -> None:
        await ctx.step("inner", log.append, "undone")
        await ctx.step("wrong", log.append, "never", compensate=undo_it)

    @app.handler("t", retry=ONCE, compensate_on=ALWAYS)
    async def handle(payload: None, ctx: Context) -> None:
        await ctx.step("one", lambda: 1, compensate=undo_it)
        raise ValueError("no")

    published = await app.publish("t")
    await settled(app, published.id, "failed")

    assert log == ["undone"]
    (dead,) = await compensations(app)
    assert dead.target == "compensate:undo"
    assert dead.last_error is not None
    assert "what undoes cannot be undone" in dead.last_error


def test_what_cannot_work_is_refused_when_it_is_registered() -> None:
    app = Redrive("sqlite:///:memory:")

    with pytest.raises(ConfigurationError, match="compensate_on takes"):
        app.handler("t", compensate_on=("sometimes",))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="compensate_on takes"):
        app.handler("t", compensate_on="cancelled")  # type: ignore[arg-type]

    @app.compensation()
    def undo(result: int) -> None: ...

    with pytest.raises(ConfigurationError, match="a compensation named 'undo' is there"):
        app.compensation(name="undo")(lambda result: None)


async def test_the_harness_undoes_too() -> None:
    app = Redrive("sqlite:///:memory:")
    saga = Saga(app, compensate_on=ALWAYS)
    async with Harness(app) as h:
        await app.publish("saga")
        ran = await h.run_due()

        assert [attempt.outcome for attempt in ran] == ["dead-lettered", "delivered", "delivered", "delivered"]
        assert saga.log == ["do a", "do b", "do c", "undo c", "undo b", "undo a"]
        h.assert_nothing_pending()


@pytest.mark.req("W9", "B10")
async def test_steps_that_were_not_undone_run_again_only_when_somebody_says_so(app: Redrive) -> None:
    saga = Saga(app, compensate_on=("cancelled",))
    published = await app.publish("saga")
    await app.worker().drain()
    assert (await found(app, published.id)).is_dead_letter

    with pytest.raises(Refused, match=r"finished steps that were not undone \(a, b, c\).*--repeat-steps"):
        await app.replay(published.id, by="anna", reason="anew", from_start=True)
    plan = await app.plan("type:saga", by="anna", unsafe=True)
    with pytest.raises(Refused, match=f"finished steps that were not undone \\({published.id}\\)"):
        await app.start(plan.redrive.token, by="anna", reason="anew", from_start=True)
    assert (await found(app, published.id)).is_dead_letter
    await app.replay(published.id, by="anna", reason="it was refunded by hand", from_start=True, repeat_steps=True)
    await app.worker().drain()

    assert saga.log == ["do a", "do b", "do c"] * 2
