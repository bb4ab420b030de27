"""The walk of an event through a worker, on every store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pydantic
import pytest
import structlog

from redrive import (
    ConfigurationError,
    Context,
    EventFilter,
    Redrive,
    Rejected,
    RetryPolicy,
    Status,
    TerminalHandlerError,
)
from tests.waiting import until
from tests.worker.conftest import working


class Order(pydantic.BaseModel):
    number: int
    items: list[str] = []


async def only_event(app: Redrive) -> Any:
    (event,) = await app.events()
    return event


@pytest.mark.req("O1")
async def test_an_event_is_delivered_to_its_handler_with_the_payload_it_asks_for(app: Redrive) -> None:
    seen: list[tuple[Order, str, int]] = []

    @app.handler("order.paid")
    async def ship(order: Order, ctx: Context) -> None:
        seen.append((order, ctx.subject or "", ctx.attempt))

    await app.publish("order.paid", {"number": 7, "items": ["a"]}, subject="order/7")
    async with working(app):
        await until(lambda: bool(seen))

    assert seen == [(Order(number=7, items=["a"]), "order/7", 1)]
    event = await only_event(app)
    assert (event.status, event.attempts, event.fence) == (Status.DELIVERED, 1, 1)
    assert event.ended_at is not None


async def test_a_plain_function_runs_in_a_thread(app: Redrive) -> None:
    threads: list[str] = []

    @app.handler("report.due")
    def report(payload: dict[str, Any]) -> None:
        threads.append(threading.current_thread().name)

    await app.publish("report.due", {})
    await app.worker().drain()

    assert len(threads) == 1
    assert threads[0].startswith("redrive-handler")


@pytest.mark.req("W1", "A2", "H2")
async def test_a_transient_failure_is_retried_until_it_succeeds_and_every_attempt_is_visible(app: Redrive) -> None:
    attempts: list[int] = []

    @app.handler("order.paid")
    async def ship(payload: Any, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("carrier is down")

    published = await app.publish("order.paid", {})
    async with working(app):
        await until(lambda: len(attempts) == 3)

    event = await only_event(app)
    assert attempts == [1, 2, 3]
    assert event.status is Status.DELIVERED
    trail = await app.trail(published.id)
    assert [entry.kind for entry in trail] == ["retry-scheduled", "retry-scheduled"]
    assert [entry.facts["attempt"] for entry in trail] == [1, 2]
    assert all("next_retry_at" in entry.facts for entry in trail)


@pytest.mark.req("O1", "O3", "W1", "W5", "A4")
async def test_a_spent_budget_makes_a_dead_letter_with_its_whole_story(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any, ctx: Context) -> None:
        raise ConnectionError(f"carrier is down, attempt {ctx.attempt}")

    published = await app.publish("order.paid", {"n": 1}, correlation_id="c-1", causation_id="k-1", retry_key="r-1")
    async with working(app) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)

    event = await only_event(app)
    assert event.status is Status.FAILED
    assert event.is_dead_letter
    assert event.attempts == event.max_attempts == 3
    assert event.error_class == "dependency_unavailable"
    assert event.error_type.endswith("ConnectionError")
    assert event.last_error.startswith("ConnectionError: carrier is down, attempt 3")
    assert event.first_failed_at is not None
    assert event.first_failed_at <= event.ended_at
    assert (event.correlation_id, event.causation_id, event.retry_key) == ("c-1", "k-1", "r-1")
    assert event.fingerprint is not None
    kinds = [entry.kind for entry in await app.trail(published.id)]
    assert kinds == ["retry-scheduled", "retry-scheduled", "dead-lettered"]
    assert (await app.verify_trail()).sound


@pytest.mark.req("O4", "W2")
@pytest.mark.parametrize(
    ("error", "error_class", "safe"),
    [
        (TerminalHandlerError("no"), "rejected", True),
        (Rejected("never"), "rejected", False),
    ],
)
async def test_a_terminal_failure_is_not_retried(app: Redrive, error: Exception, error_class: str, safe: bool) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        raise error

    await app.publish("order.paid", {}, subject="order/7")
    await app.worker().drain()

    event = await only_event(app)
    assert (event.status, event.attempts) == (Status.FAILED, 1)
    assert (event.operation, event.resource) == ("order.paid", "order/7")
    assert (event.error_class, event.safe_to_retry) == (error_class, safe)


@pytest.mark.req("O4")
async def test_a_payload_that_does_not_fit_is_terminal_and_never_reaches_the_handler(app: Redrive) -> None:
    reached: list[Order] = []

    @app.handler("order.paid")
    async def ship(order: Order) -> None:
        reached.append(order)

    await app.publish("order.paid", {"number": "seven"})
    await app.worker().drain()

    event = await only_event(app)
    assert not reached
    assert (event.status, event.attempts, event.error_class) == (Status.FAILED, 1, "invalid")
    assert "number" in event.last_error


@pytest.mark.req("O3")
async def test_a_handler_has_its_own_policy_and_its_own_terminal_errors(app: Redrive) -> None:
    @app.handler("once", retry=RetryPolicy(max_attempts=1))
    async def once(payload: Any) -> None:
        raise ConnectionError

    @app.handler("strict", retry=RetryPolicy(terminal_errors=(KeyError,)))
    async def strict(payload: Any) -> None:
        raise KeyError("x")

    await app.publish("once")
    await app.publish("strict")
    await app.worker().drain()

    assert [(event.status, event.attempts) for event in await app.events()] == [(Status.FAILED, 1)] * 2


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.req("A7")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(1),
        StopAsyncIteration(),
        asyncio.CancelledError(),
        MemoryError(),
        RecursionError(),
        Unprintable(),
        RuntimeError("x" * 50_000_000),
        RuntimeError("\x00 and \ud800"),
        BaseExceptionGroup("several", [SystemExit(), ValueError("v")]),
    ],
    ids=lambda error: type(error).__name__ if isinstance(error, BaseException) else error,
)
async def test_whatever_a_handler_raises_is_a_stored_failure_and_the_worker_lives_on(
    app: Redrive, error: BaseException, kind: str
) -> None:
    healthy: list[int] = []

    async def bad_async(payload: Any) -> None:
        raise error

    def bad_sync(payload: Any) -> None:
        raise error

    app.handler("bad", retry=RetryPolicy(max_attempts=1))(bad_async if kind == "async" else bad_sync)

    @app.handler("good")
    async def good(payload: int) -> None:
        healthy.append(payload)

    await app.publish("bad")
    await app.publish("good", 1)
    async with working(app) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)
        await app.publish("good", 2)
        await until(lambda: healthy == [1, 2])

    (event,) = await app.events(EventFilter(status=Status.FAILED))
    assert event.last_error
    assert len(event.last_error) <= 8_192
    assert event.attempts == 1


@pytest.mark.req("O8")
async def test_work_and_record_and_delivered_are_one_commit(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table ledger (key text)")

    @app.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(f"insert into ledger values ('{ctx.idempotency_key}')")
            if ctx.attempt == 1:
                raise ConnectionError("after the insert, before the commit")

    await app.publish("pay", {}, idempotency_key="p-1")
    await app.publish("pay", {}, idempotency_key="p-1")
    async with working(app) as worker:
        await until(lambda: worker.tally.delivered == 2)

    async with app.store.transaction() as tx:
        assert len(await tx.fetch("select key from ledger")) == 1
    assert {event.status for event in await app.events()} == {Status.DELIVERED}
    assert worker.tally.deduplicated == 1


@pytest.mark.req("O8", "O5", "W6")
async def test_a_replay_of_an_event_that_had_its_effect_has_no_second_one(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table ledger (key text)")

    @app.handler("pay", retry=RetryPolicy(max_attempts=1))
    async def pay(payload: Any, ctx: Context) -> None:
        if payload["pay"]:
            async with ctx.transaction() as tx:
                await tx.execute("insert into ledger values ('x')")
        else:
            raise TerminalHandlerError("the twin of a paid one")

    await app.publish("pay", {"pay": True}, idempotency_key="k")
    await app.worker().drain()

    @app.handler("pay.again", name="again")
    async def unused(payload: Any) -> None: ...

    twin = await app.publish("pay", {"pay": True}, idempotency_key="k")
    await app.worker().drain()
    async with app.store.transaction() as tx:
        assert len(await tx.fetch("select key from ledger")) == 1
    event = await app.event(twin.id)
    assert event is not None
    assert event.status is Status.DELIVERED


async def test_a_transaction_works_from_a_plain_function_and_publishes_with_it(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table ledger (key text)")

    @app.handler("pay")
    def pay(payload: Any, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute("insert into ledger values ('x')")
            assert len(tx.fetch("select key from ledger")) == 1
            tx.publish("receipt", {"of": ctx.idempotency_key})

    receipts: list[tuple[Any, str, str | None]] = []

    @app.handler("receipt")
    async def receipt(payload: Any, ctx: Context) -> None:
        receipts.append((payload, ctx.correlation_id, ctx.causation_id))

    paid = await app.publish("pay", {}, idempotency_key="p-1", correlation_id="c")
    await app.worker().drain()

    assert receipts == [({"of": "p-1"}, "c", str(paid.id))]


@pytest.mark.req("O8")
async def test_an_exception_after_the_transaction_leaves_the_event_delivered(app: Redrive) -> None:
    @app.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        raise RuntimeError("too late")

    await app.publish("pay")
    await app.worker().drain()

    assert (await only_event(app)).status is Status.DELIVERED


@pytest.mark.req("O5", "W6")
async def test_a_replay_sends_a_dead_letter_round_again_and_it_is_delivered(app: Redrive) -> None:
    broken = True

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        if broken:
            raise Rejected("not yet")

    published = await app.publish("order.paid", {"n": 1}, correlation_id="c", idempotency_key="i")
    await app.worker().drain()
    broken = False
    await app.replay(published.id, by="ada", reason="fixed in 1.2", generation=7)
    await app.worker(generation=7).drain()

    event = await only_event(app)
    assert (event.status, event.attempts, event.generation, event.cycle) == (Status.DELIVERED, 1, 7, 1)
    assert (event.correlation_id, event.idempotency_key) == ("c", "i")
    (cycle,) = event.failure_history
    assert (cycle.replayed_by, cycle.reason, cycle.error_class) == ("ada", "fixed in 1.2", "rejected")
    assert event.fence == 2


@pytest.mark.req("W6")
async def test_no_restart_replays_anything(app: Redrive) -> None:
    calls: list[int] = []

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        calls.append(1)
        raise Rejected("no")

    await app.publish("order.paid")
    for _ in range(3):
        await app.worker().drain()

    assert len(calls) == 1


async def test_an_unknown_target_is_put_back_without_spending_an_attempt_and_reported(app: Redrive) -> None:
    await app.publish("from.the.future", {})

    worker = app.worker()
    await worker.drain()

    event = await only_event(app)
    assert worker.tally.unknown_targets == {"from.the.future": 1}
    assert (event.status, event.attempts) == (Status.PENDING, 0)
    assert event.due_at > event.created_at


async def test_two_handlers_of_a_type_have_each_their_own_row_and_fate(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None: ...

    @app.handler("order.paid", name="bill")
    async def bill(payload: Any) -> None:
        raise Rejected("no account")

    await app.publish("order.paid", {})
    await app.worker().drain()

    events = {event.target: event for event in await app.events()}
    assert events["order.paid"].status is Status.DELIVERED
    assert events["bill"].status is Status.FAILED
    assert events["bill"].idempotency_key == events["order.paid"].idempotency_key


@pytest.mark.req("H4")
async def test_a_retry_waits_for_its_time_even_when_the_worker_is_restarted(app: Redrive) -> None:
    calls: list[int] = []

    @app.handler("order.paid", retry=RetryPolicy(base_delay="1h", max_delay="1h", jitter="none"))
    async def ship(payload: Any) -> None:
        calls.append(1)
        raise ConnectionError

    await app.publish("order.paid")
    await app.worker().drain()
    await app.worker().drain()
    async with working(app):
        await asyncio.sleep(0.2)

    event = await only_event(app)
    assert len(calls) == 1
    assert event.next_retry_at is not None
    assert 3_500 < (event.next_retry_at - event.created_at).total_seconds() < 3_700


async def test_a_plain_function_publishes_follow_ups_with_its_correlation(app: Redrive) -> None:
    seen: list[tuple[str, str | None]] = []

    @app.handler("first")
    def first(payload: Any, ctx: Context) -> None:
        ctx.publish_sync("second", {})

    @app.handler("second")
    async def second(payload: Any, ctx: Context) -> None:
        seen.append((ctx.correlation_id, ctx.causation_id))

    published = await app.publish("first", {})
    await app.worker().drain()

    assert seen == [(str(published.id), str(published.id))]


async def test_a_drain_that_is_stopped_hands_back_and_returns(app: Redrive) -> None:
    worker = app.worker(concurrency=1, drain="50ms")

    @app.handler("work")
    async def work(payload: Any) -> None:
        worker.stop()
        await asyncio.sleep(30)

    await app.publish_many([("work", 1), ("work", 2)])
    await asyncio.wait_for(worker.drain(), 25)

    assert {(event.status, event.attempts) for event in await app.events()} == {(Status.PENDING, 0)}


@pytest.mark.req("W1")
async def test_every_retry_is_a_log_line(app: Redrive) -> None:
    @app.handler("work")
    async def work(payload: Any, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("away")

    published = await app.publish("work")
    with structlog.testing.capture_logs() as logs:
        async with working(app) as worker:
            await until(lambda: worker.tally.delivered == 1)

    (line,) = [entry for entry in logs if entry["event"] == "attempt failed, retry scheduled"]
    assert (line["event_id"], line["attempt"], line["error"]) == (str(published.id), 1, "ConnectionError: away")


async def test_publishing_synchronously_into_memory_is_refused_instead_of_lost() -> None:
    with pytest.raises(ConfigurationError, match="use a file"):
        Redrive("sqlite:///:memory:").publish_sync("work")


@pytest.mark.parametrize(
    "url", ["postgresql://h:notaport/db", "postgresql://[bad", "mysql://x", "sqlite:///", "nonsense"]
)
def test_a_url_that_is_none_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        Redrive(url)


class Faulty(RetryPolicy):
    """Somebody's own policy, with a fault of its own."""

    def delay_for(self, attempt: int, dice: Any = None) -> float:
        raise ZeroDivisionError


@pytest.mark.req("A7")
async def test_a_fault_beside_the_handler_keeps_no_event_and_ends_no_slot(app: Redrive) -> None:
    @app.handler("order.paid", retry=Faulty(max_attempts=3), brake=False)
    async def fail(payload: Any) -> None:
        raise ConnectionError

    @app.handler("mail.sent")
    async def send(payload: Any) -> None: ...

    broken = await app.publish("order.paid")
    async with working(app, concurrency=1) as worker:

        async def back() -> bool:
            event = await app.event(broken.id)
            return event is not None and event.status is Status.PENDING and event.fence == 1

        await until(back)
        mail = await app.publish("mail.sent")

        async def sent() -> bool:
            event = await app.event(mail.id)
            return event is not None and event.status is Status.DELIVERED

        await until(sent)
        assert worker.tally.delivered == 1
