"""Steps: what has been done once is not done again, by whichever attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from redrive import Context, Event, LeaseLost, Limits, Redrive, Refused, RetryPolicy, Status, Step
from redrive.steps import Steps, decoder_of
from redrive.store.base import Ages
from redrive.testing import Harness
from tests.stores.helpers import Hands, found, raw
from tests.waiting import until
from tests.worker.conftest import working

ONCE = RetryPolicy(max_attempts=1)
FAST = RetryPolicy(max_attempts=5, base_delay=0.01, max_delay=0.02)


class Label(BaseModel):
    number: str
    bought_at: datetime


@dataclass
class Money:
    amount: int


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, retry=FAST, migrate=True, limits=Limits(max_bytes=1_000)) as app:
        yield app


async def ended(app: Redrive, event_id: UUID) -> Event:
    """Work until the event has reached an end."""

    async def over() -> bool:
        return (await found(app, event_id)).status in (Status.DELIVERED, Status.FAILED)

    async with working(app, poll="50ms"):
        await until(over)
    return await found(app, event_id)


@pytest.mark.req("B10")
async def test_a_retry_goes_on_after_the_last_finished_step(app: Redrive) -> None:
    calls: list[str] = []

    async def buy(order: int, step: Step) -> Label:
        calls.append(f"buy {order} {step.key}")
        return Label(number=f"L{order}", bought_at=datetime(2030, 1, 1, tzinfo=UTC))

    def charge(order: int) -> Money:  # in a thread
        calls.append("charge")
        if calls.count("charge") < 3:
            raise ConnectionError("the bank is away")
        return Money(order * 100)

    seen: list[Any] = []

    @app.handler("order.paid")
    async def ship(order: int, ctx: Context) -> None:
        label = await ctx.step("label", buy, order)
        money = await ctx.step("charge", charge, order)
        seen.append((label, money))

    published = await app.publish("order.paid", 7)
    event = await ended(app, published.id)

    assert event.status is Status.DELIVERED
    assert event.attempts == 3
    assert calls == [f"buy 7 {published.id}/label", "charge", "charge", "charge"]
    assert seen == [(Label(number="L7", bought_at=datetime(2030, 1, 1, tzinfo=UTC)), Money(700))]


@pytest.mark.req("B10")
async def test_a_replay_goes_on_where_the_last_cycle_stopped_and_from_start_forgets(app: Redrive) -> None:
    keys: list[str] = []
    broken = True

    async def first(step: Step) -> int:
        keys.append(step.key)
        return len(keys)

    @app.handler("t", retry=ONCE)
    async def handle(payload: None, ctx: Context) -> None:
        await ctx.step("first", first)
        if broken:
            raise ValueError("no")

    published = await app.publish("t")
    assert (await ended(app, published.id)).status is Status.FAILED

    await app.replay(published.id, by="anna", reason="again")
    assert (await ended(app, published.id)).cycle == 1
    assert keys == [f"{published.id}/first"]  # the step was not run again

    broken = False
    await app.replay(published.id, by="anna", reason="anew", from_start=True)
    event = await ended(app, published.id)

    assert event.status is Status.DELIVERED
    assert keys == [f"{published.id}/first", f"{published.id}/first/2"]  # another key: nobody answers with the old one
    steps = await app.store.ask("steps", id=published.id)
    assert [(row["cycle"], row["state"], row["result"], bool(row["forgotten"])) for row in steps] == [
        (0, "done", "1", True),
        (2, "done", "2", False),
    ]
    replays = [entry.facts["from_start"] for entry in await app.trail(published.id) if entry.kind == "replayed"]
    assert replays == [False, True]


@pytest.mark.req("B10")
async def test_a_redrive_may_start_its_events_anew(app: Redrive) -> None:
    runs: list[int] = []
    broken = True

    async def first(n: int) -> int:
        runs.append(n)
        return n

    @app.handler("t", retry=ONCE)
    async def handle(n: int, ctx: Context) -> None:
        await ctx.step("first", first, n)
        if broken:
            raise ValueError("no")

    ids = [(await app.publish("t", n)).id for n in range(3)]
    for event_id in ids:
        await ended(app, event_id)
    broken = False
    plan = await app.plan("type:t", by="anna")
    started = await app.start(plan.redrive.token, by="anna", reason="anew", from_start=True)

    async def delivered() -> bool:
        return all([(await found(app, event_id)).status is Status.DELIVERED for event_id in ids])

    async with working(app, poll="50ms"):
        await until(delivered)

    assert started.from_start
    assert sorted(runs) == [0, 0, 1, 1, 2, 2]


async def test_a_zombie_can_keep_no_step(app: Redrive) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    outcomes: list[BaseException | None] = []

    async def slow() -> str:
        begun.set()
        await go.wait()
        return "late"

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        try:
            await ctx.step("slow", slow)
        except BaseException as error:
            outcomes.append(error)
            raise

    published = await app.publish("t")
    async with working(app) as worker:
        await asyncio.wait_for(begun.wait(), 30)
        with raw(app.url) as sql:  # another worker has claimed it meanwhile
            sql(f"update {{outbox}} set fence = fence + 1 where id = '{published.id}'")
        go.set()
        await until(lambda: bool(outcomes))
        await until(lambda: worker.tally.leases_lost == 1)

    assert isinstance(outcomes[0], LeaseLost)
    assert await app.store.ask("steps", id=published.id) == []


async def test_a_zombie_begins_no_step(app: Redrive) -> None:
    hands = await Hands.begin(app)
    ran: list[str] = []
    published = await app.publish("t")
    row = await hands.claim_one()
    await app.cancel(published.id, by="anna", reason="enough")

    from redrive.context import Desk

    ctx = Context(row, Desk(app.store, app.new_events, asyncio.get_running_loop()))
    with pytest.raises(LeaseLost, match="no longer ours"):
        await ctx.step("first", lambda: ran.append("ran"))
    await hands.claims.close()

    assert ran == []


@pytest.mark.req("B10")
async def test_steps_may_run_side_by_side(app: Redrive) -> None:
    calls: list[str] = []
    results: list[Any] = []

    async def work(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(0)
        return name.upper()

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        results.append(await asyncio.gather(*(ctx.step(name, work, name) for name in "abcde")))
        if len(results) == 1:
            raise ConnectionError

    published = await app.publish("t")
    event = await ended(app, published.id)

    assert event.status is Status.DELIVERED
    assert results == [["A", "B", "C", "D", "E"]] * 2
    assert sorted(calls) == list("abcde")
    steps = await app.store.ask("steps", id=published.id)
    assert [row["position"] for row in steps] == [1, 2, 3, 4, 5]


async def test_code_may_change_between_attempts(app: Redrive) -> None:
    """A step that vanished is not missed, one that came is run, and the order does not matter."""
    calls: list[str] = []
    order = [["a", "b"], ["c", "b", "d"], ["d", "a", "b", "c"]]
    attempts = 0

    async def work(name: str) -> str:
        calls.append(name)
        return name

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        nonlocal attempts
        attempts += 1
        assert [await ctx.step(name, work, name) for name in order[attempts - 1]] == order[attempts - 1]
        if attempts < 3:
            raise ConnectionError

    published = await app.publish("t")

    assert (await ended(app, published.id)).status is Status.DELIVERED
    assert calls == ["a", "b", "c", "d"]


async def test_a_thread_takes_steps_too(app: Redrive) -> None:
    calls: list[str] = []

    def work(name: str, step: Step) -> Money:
        calls.append(step.key.rpartition("/")[2] + name)
        return Money(3)

    seen: list[Money] = []

    @app.handler("t")
    def handle(payload: None, ctx: Context) -> None:
        seen.append(ctx.step_sync("one", work, "x"))
        if len(seen) < 2:
            raise ConnectionError

    published = await app.publish("t")

    assert (await ended(app, published.id)).status is Status.DELIVERED
    assert calls == ["onex"]
    assert seen == [Money(3)] * 2


async def test_a_step_in_a_step_is_refused_in_a_thread_too(app: Redrive) -> None:
    @app.handler("t")
    def handle(payload: None, ctx: Context) -> None:
        ctx.step_sync("outer", lambda: ctx.step_sync("inner", lambda: 1))

    event = await ended(app, (await app.publish("t")).id)

    assert (event.status, event.attempts) == (Status.FAILED, 1)
    assert event.last_error is not None
    assert "step 'inner' is inside step 'outer'" in event.last_error


async def test_a_failed_step_keeps_nothing_and_its_error_is_the_attempts(app: Redrive) -> None:
    def work() -> None:
        raise StopIteration("of all things")  # would confuse a future

    @app.handler("t", retry=ONCE)
    async def handle(payload: None, ctx: Context) -> None:
        await ctx.step("one", work)

    published = await app.publish("t")
    event = await ended(app, published.id)

    assert event.error_type is not None
    assert event.last_error is not None
    assert "of all things" in event.last_error
    assert await app.store.ask("steps", id=published.id) == []


class _Callable:
    async def __call__(self, n: int) -> Money:
        return Money(n)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (partial(lambda a, b: a + b, 1), 3),  # no annotation: plain values
        (lambda n: (n, n), [2, 2]),  # as every later attempt will see it
        (lambda n: None, None),
        (_Callable(), Money(2)),
        (_Callable().__call__, Money(2)),
    ],
    ids=["partial", "tuple", "none", "callable", "method"],
)
async def test_any_callable_is_a_step(app: Redrive, function: Any, expected: Any) -> None:
    seen: list[Any] = []

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        seen.append(await ctx.step("one", function, 2))
        if len(seen) < 2:
            raise ConnectionError

    await ended(app, (await app.publish("t")).id)

    assert seen == [expected] * 2


async def _misnamed(ctx: Context) -> None:
    await ctx.step("", lambda: 1)


async def _twice(ctx: Context) -> None:
    await ctx.step("one", lambda: 1)
    await ctx.step("one", lambda: 1)


async def _nested(ctx: Context) -> None:
    async def outer() -> None:
        await ctx.step("inner", lambda: 1)

    await ctx.step("outer", outer)


async def _unwritable(ctx: Context) -> None:
    await ctx.step("one", object)


async def _too_large(ctx: Context) -> None:
    await ctx.step("one", lambda: "x" * 2_000)


async def _not_what_it_says(ctx: Context) -> None:
    def says_label() -> Label:
        return {"number": 1}  # type: ignore[return-value]

    await ctx.step("one", says_label)


async def _unregistered(ctx: Context) -> None:
    def undo(result: Any) -> None: ...

    await ctx.step("one", lambda: 1, compensate=undo)


async def _in_transaction(ctx: Context) -> None:
    async with ctx.transaction():
        await ctx.step("one", lambda: 1)


async def _sync_in_async(ctx: Context) -> None:
    ctx.step_sync("one", lambda: 1)


async def _unreadable(ctx: Context) -> None:
    def returns_nothing_known() -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        return 1

    await ctx.step("one", returns_nothing_known)


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (_misnamed, "a step needs a name"),
        (_twice, "step 'one' was called twice in one attempt: give each its own name"),
        (_nested, "step 'inner' is inside step 'outer'"),
        (_unwritable, "the result of step 'one' is a object that cannot be written as JSON"),
        (_too_large, "the result of step 'one' takes 2,002 bytes as JSON, at most 1,000 are allowed"),
        (_not_what_it_says, "the result of step 'one' does not fit Label"),
        (_unregistered, "put @app.compensation"),
        (_in_transaction, "step 'one' comes after ctx.transaction()"),
        (_sync_in_async, "make the handler `async def`, and `await ctx.step(…)`"),
        (_unreadable, "the annotations of step 'one' cannot be read"),
    ],
)
async def test_misuse_is_a_dead_letter_at_once_that_says_what_to_do(app: Redrive, misuse: Any, says: str) -> None:
    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        await misuse(ctx)

    event = await ended(app, (await app.publish("t")).id)

    assert event.status is Status.FAILED
    assert event.attempts == 1
    assert event.last_error is not None
    assert says in event.last_error


async def test_a_kept_result_that_the_code_no_longer_reads_is_a_dead_letter(app: Redrive) -> None:
    attempts = 0

    def old() -> str:
        return "text"

    def new() -> Label:
        raise AssertionError("never run")

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        nonlocal attempts
        attempts += 1
        await ctx.step("one", old if attempts == 1 else new)
        raise ConnectionError

    event = await ended(app, (await app.publish("t")).id)

    assert event.attempts == 2
    assert event.last_error is not None
    assert "if the code has changed since it was kept, replay the event from the start" in event.last_error


async def test_a_shadow_answers_kept_steps_and_ends_at_the_first_other(app: Redrive) -> None:
    ran: list[str] = []
    wanted = ["a"]

    @app.handler("t", retry=ONCE, effects="inside")
    async def handle(payload: None, ctx: Context) -> None:
        for name in wanted:
            await ctx.step(name, ran.append, name)
        if not ran[1:] and len(wanted) == 1 and broken:
            raise ValueError("no")

    broken = True
    published = await app.publish("t")
    await ended(app, published.id)
    broken = False

    assert (await app.shadow(published.id)).would == "succeed"
    wanted.append("b")
    with pytest.raises(Refused, match="step 'b' has not been done yet"):
        await app.shadow(published.id)
    assert ran == ["a"]


async def test_steps_go_when_their_event_is_purged(app: Redrive) -> None:
    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        await ctx.step("one", lambda: 1)

    published = await app.publish("t")
    event = await ended(app, published.id)
    assert event.ended_at is not None
    await app.store.purge(Ages(ended=0.0), by="t", limit=10)

    with raw(app.url) as sql:
        assert sql("select count(*) from {step}")[0][0] == 0


async def test_the_harness_takes_steps() -> None:
    app = Redrive("sqlite:///:memory:", retry=FAST)
    runs: list[str] = []

    @app.handler("t")
    async def handle(payload: None, ctx: Context) -> None:
        await ctx.step("one", runs.append, "one")

    async with Harness(app) as h:
        await app.publish("t")
        h.fail_next()
        await h.advance("1m")
        h.assert_delivered("t")

    assert runs == ["one"]


@pytest.mark.req("B4")
async def test_a_late_worker_keeps_no_step(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        hands = await Hands.begin(app)
        published = await app.publish("order")
        row = await hands.claim_one()
        steps = Steps(app.store, row)
        begun = await steps.begin("pay", None)
        await hands.put_back(row)
        again = await hands.claim_one()

        with pytest.raises(LeaseLost):
            await steps.finish(begun, "paid", decoder_of(str))

        assert again[1] == row[1] + 1
        assert await app.steps(published.id) == []
        await hands.claims.close()
