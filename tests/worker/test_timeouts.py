"""Timeouts and deadlines: each attempt and each event ends in a named outcome, whatever its handler does."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Context, Event, EventFilter, Redrive, RetryPolicy, Status
from redrive.errors import AttemptStopped, BadDuration, ConfigurationError, TimedOut
from redrive.testing import Harness
from tests.waiting import until
from tests.worker.conftest import FAST, working

pytestmark = pytest.mark.promise("ends-named")

ONCE = RetryPolicy(max_attempts=1)


async def read(app: Redrive, event_id: Any) -> Event:
    event = await app.event(event_id)
    assert event is not None
    return event


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.slots._CANCEL_SECONDS", 0.3)


# --- the timeout of an attempt --------------------------------------------------------------------


@pytest.mark.req("W9", "W2")
async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(app: Redrive) -> None:
    seen: list[str] = []

    @app.handler("slow", timeout="200ms")
    async def slow(payload: Any, ctx: Context) -> None:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    published = await app.publish("slow")
    async with working(app) as worker:
        await until(lambda: worker.tally.delivered == 1)

    entries = await app.trail(published.id)
    assert seen == ["cancelled"]
    assert (worker.tally.timed_out, worker.tally.left_behind) == (1, 0)
    assert [(entry.kind, entry.facts["outcome"], entry.facts["error_class"]) for entry in entries] == [
        ("retry-scheduled", "timed_out", "timed_out")
    ]


@pytest.mark.req("W9")
async def test_a_dead_letter_of_timeouts_says_where_the_handler_was(app: Redrive) -> None:
    @app.handler("slow", timeout="50ms", retry=ONCE)
    async def slow(payload: Any) -> None:
        await asyncio.Event().wait()

    published = await app.publish("slow")
    await app.worker().drain()

    event = await read(app, published.id)
    assert (event.status, event.error_class, event.error_type) == (
        Status.FAILED, "timed_out", "redrive.errors.TimedOut",
    )  # fmt: skip
    assert event.safe_to_retry is True
    assert "the attempt took longer than its timeout of 50ms" in str(event.last_error)
    assert "test_timeouts.py" in str(event.last_error)
    assert "in slow" in str(event.last_error)


@pytest.mark.req("W9")
@pytest.mark.parametrize("end", ["return", "raise"])
async def test_what_a_handler_makes_of_its_cancellation_changes_nothing(app: Redrive, end: str) -> None:
    @app.handler("slow", timeout="50ms", retry=ONCE)
    async def slow(payload: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if end == "raise":
                raise ValueError("while cleaning up") from None

    published = await app.publish("slow")
    await app.worker().drain()

    event = await read(app, published.id)
    assert (event.status, event.error_class) == (Status.FAILED, "timed_out")
    assert ("while cleaning up" in str(event.last_error)) is (end == "raise")


@pytest.mark.req("W9", "B4")
async def test_a_handler_deaf_to_cancellation_is_given_up_and_can_settle_nothing(app: Redrive) -> None:
    """Its event is settled without it, its place is taken by another, and what it does in the end is refused."""
    over, ended = asyncio.Event(), asyncio.Event()
    late: list[str] = []

    @app.handler("deaf", timeout="100ms", retry=ONCE)
    async def deaf(payload: Any, ctx: Context) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        try:
            async with ctx.transaction():
                pass
        except BaseException as error:
            late.append(type(error).__name__)
        ended.set()

    @app.handler("next")
    async def following(payload: Any) -> None: ...

    published = await app.publish("deaf")
    async with working(app, concurrency=1) as worker:
        await until(lambda: worker.tally.left_behind == 1)
        await until(lambda: worker.tally.dead_lettered == 1)
        await app.publish("next")
        await until(lambda: worker.tally.delivered == 1)
        over.set()
        await ended.wait()
        await app.publish("next")
        await until(lambda: worker.tally.delivered == 2)
        assert (len(worker._slots._tasks), len(worker._slots._deaf)) == (1, 0)

    event = await read(app, published.id)
    assert (event.status, event.attempts, event.error_class) == (Status.FAILED, 1, "timed_out")
    assert late == ["LeaseLost"]


@pytest.mark.req("W9", "B4")
async def test_a_thread_that_does_not_end_is_left_behind_and_takes_nobodys_place(app: Redrive) -> None:
    release = threading.Event()
    calls: list[int] = []

    @app.handler("stuck", timeout="100ms", retry=ONCE)
    def stuck(payload: Any, ctx: Context) -> None:
        calls.append(ctx.attempt)
        release.wait(30)

    @app.handler("thread")
    def in_thread(payload: Any) -> None: ...

    try:
        for _ in range(3):
            await app.publish("stuck")
        async with working(app, concurrency=2) as worker:
            await until(lambda: worker.tally.dead_lettered == 3)
            for _ in range(5):
                await app.publish("thread")
            await until(lambda: worker.tally.delivered == 5)
            release.set()
    finally:
        release.set()

    assert calls == [1, 1, 1]
    assert worker.tally.left_behind == 3
    stuck_events = [event for event in await app.events() if event.type == "stuck"]
    assert {(event.status, event.error_class) for event in stuck_events} == {(Status.FAILED, "timed_out")}


@pytest.mark.req("W9")
async def test_a_thread_that_looks_up_ends_in_time(app: Redrive) -> None:
    seen: list[type] = []

    @app.handler("polite", timeout="100ms", retry=ONCE)
    def polite(payload: Any, ctx: Context) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                ctx.check_cancelled()
            except AttemptStopped as stopped:
                seen.append(type(stopped))
                assert ctx.cancelled
                raise
            time.sleep(0.01)

    published = await app.publish("polite")
    tally = await app.worker().drain()

    event = await read(app, published.id)
    assert seen == [TimedOut]
    assert tally.left_behind == 0
    assert (event.status, event.error_class) == (Status.FAILED, "timed_out")


@pytest.mark.req("W9", "B4")
async def test_an_attempt_that_blocks_its_event_loop_is_taken_over_as_timed_out(store_url: str) -> None:
    """The heartbeat goes on in its thread, so the worker is not lost; the event's own lease ends all the same."""
    blocking, done = threading.Event(), threading.Event()
    tallies: list[Any] = []

    async def blocked() -> None:
        app = Redrive(store_url, retry=ONCE, migrate=True)

        @app.handler("cpu", timeout="200ms")
        async def cpu(payload: Any) -> None:
            blocking.set()
            done.wait(30)

        async with app:
            worker = app.worker(lease="3s")
            running = asyncio.create_task(worker.run())
            await until(done.is_set)
            await until(lambda: worker.tally.leases_lost == 1)
            worker.stop()
            await running
            tallies.append(worker.tally)

    async with Redrive(store_url, retry=ONCE, migrate=True) as app:
        published = await app.publish("cpu")
        thread = threading.Thread(target=lambda: asyncio.run(blocked()))
        thread.start()
        try:
            await until(blocking.is_set)
            async with working(app, lease="1s") as other:
                await until(lambda: other.tally.timed_out == 1)
                await until(lambda: other.tally.dead_lettered == 1)
            event = await read(app, published.id)
        finally:
            done.set()
            await asyncio.to_thread(thread.join)
        after = await read(app, published.id)

    assert (event.status, event.error_class, event.attempts, event.lost_count) == (Status.FAILED, "timed_out", 1, 0)
    assert "blocked its worker" in str(event.last_error)
    assert (after.status, after.fence) == (Status.FAILED, 2)
    assert tallies[0].leases_lost == 1


@pytest.mark.req("W9")
async def test_a_transaction_that_was_committed_in_time_stands(app: Redrive) -> None:
    """The timeout came while the handler was tidying up: what is committed is delivered."""

    @app.handler("late", timeout="2s")
    async def late(payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        await asyncio.sleep(60)

    published = await app.publish("late")
    tally = await app.worker().drain()

    assert (await read(app, published.id)).status is Status.DELIVERED
    assert (tally.delivered, tally.timed_out) == (1, 0)


async def test_the_slot_of_a_cancelled_attempt_is_as_good_as_new(app: Redrive) -> None:
    """asyncio.timeout counts cancellations of its task: ours must not be among them."""
    outcomes: list[str] = []

    @app.handler("slow", timeout="50ms", retry=ONCE)
    async def slow(payload: Any) -> None:
        await asyncio.sleep(60)

    @app.handler("next")
    async def following(payload: Any) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            outcomes.append("timeout of its own")

    await app.publish("slow")
    await app.publish("next")
    tally = await app.worker(concurrency=1).drain()

    assert outcomes == ["timeout of its own"]
    assert (tally.delivered, tally.dead_lettered) == (1, 1)


@pytest.mark.req("W9")
async def test_many_limits_end_when_they_should_and_only_those(app: Redrive) -> None:
    @app.handler("stuck", timeout="400ms", retry=ONCE)
    async def stuck(payload: int) -> None:
        await asyncio.Event().wait()

    @app.handler("work", timeout="60s", retry=ONCE)
    async def work(payload: int) -> None:
        await asyncio.sleep(0.001 * payload)

    await app.publish_many([("work" if number % 10 else "stuck", number) for number in range(100)])
    tally = await app.worker(concurrency=100).drain()

    failed = [event.payload for event in await app.events(EventFilter(status=Status.FAILED))]
    assert (tally.delivered, tally.timed_out) == (90, 10)
    assert sorted(failed) == list(range(0, 100, 10))


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.req("W9")
async def test_an_event_that_waited_past_its_deadline_is_ended_without_an_attempt(store_url: str) -> None:
    calls: list[Any] = []
    app = Redrive("sqlite:///:memory:")

    @app.handler("a", deadline="1h")
    async def by_handler(payload: Any) -> None:
        calls.append(payload)

    @app.handler("b")
    async def by_publisher(payload: Any) -> None:
        calls.append(payload)

    async with Harness(app, url=store_url) as h:
        own = await app.publish("a", 1, delay="2h")
        given = await app.publish("b", 2, delay="2h", deadline="90m")
        at = await app.publish("b", 3, delay="2h", deadline=h.now + timedelta(minutes=90))
        fine = await app.publish("b", 4, delay="2h", deadline="3h")
        await h.advance("3h")
        ended = [await read(app, each.id) for each in (own, given, at)]
        assert (await read(app, fine.id)).status is Status.DELIVERED
        assert given.id == ended[1].id
        assert ended[1].deadline_at == ended[1].created_at + timedelta(minutes=90) == ended[2].deadline_at

    assert calls == [4]
    for event in ended:
        assert (event.status, event.error_class) == (Status.FAILED, "timed_out")
        assert "the deadline of the event passed before the attempt was started" in str(event.last_error)


@pytest.mark.req("W9")
async def test_no_retry_is_scheduled_past_the_deadline(store_url: str) -> None:
    every = RetryPolicy(max_attempts=50, base_delay="10m", max_delay="10m", jitter="none")
    app = Redrive("sqlite:///:memory:", retry=every)

    @app.handler("down", deadline="1h")
    async def down(payload: Any) -> None:
        raise ConnectionError("refused")

    async with Harness(app, url=store_url) as h:
        published = await app.publish("down")
        await h.advance("5h")
        event = await read(app, published.id)
        assert event.ended_at is not None
        lasted = event.ended_at - event.created_at

    assert (event.status, event.error_class, event.attempts) == (Status.FAILED, "timed_out", 6)
    assert lasted == timedelta(minutes=50)
    assert "the deadline of the event leaves no time for another attempt" in str(event.last_error)
    assert "Caused by ConnectionError: refused" in str(event.last_error)


@pytest.mark.req("W9")
async def test_the_deadline_ends_a_running_attempt_for_good(app: Redrive) -> None:
    @app.handler("slow", timeout="30s")
    async def slow(payload: Any) -> None:
        await asyncio.sleep(60)

    published = await app.publish("slow", deadline="500ms")
    await app.worker().drain()

    event = await read(app, published.id)
    assert (event.status, event.attempts, event.error_class) == (Status.FAILED, 1, "timed_out")
    assert "the deadline of the event passed during the attempt" in str(event.last_error)


@pytest.mark.req("W9", "W6")
async def test_a_replay_is_a_decision_and_has_no_deadline(store_url: str) -> None:
    calls: list[int] = []
    app = Redrive("sqlite:///:memory:")

    @app.handler("a", deadline="1h")
    async def handled(payload: Any, ctx: Context) -> None:
        calls.append(ctx.cycle)

    async with Harness(app, url=store_url) as h:
        published = await app.publish("a", delay="2h", deadline="30m")
        await h.advance("3h")
        await app.replay(published.id, by="ann", reason="still wanted")
        await h.run_due()
        event = await read(app, published.id)

    assert calls == [1]
    assert (event.status, event.deadline_at) == (Status.DELIVERED, None)


async def test_a_deadline_is_kept_with_a_retry_key_and_in_the_callers_transaction(app: Redrive) -> None:
    published = await app.publish("a", retry_key="k", deadline="1h")
    again = await app.publish("a", retry_key="k", deadline="2h")
    (many,) = await app.publish_many([("a", 1, {"deadline": 5.0})])

    event, other = await read(app, published.id), await read(app, many.id)
    assert again.id == published.id
    assert event.deadline_at == event.created_at + timedelta(hours=1)
    assert other.deadline_at == other.created_at + timedelta(seconds=5)


# --- what cannot work is refused where it is written ----------------------------------------------


@pytest.mark.parametrize("value", [0, -1, "0s", "soon", True, float("nan")])
@pytest.mark.parametrize("name", ["timeout", "deadline"])
def test_a_limit_that_is_none_is_refused_when_the_handler_is_registered(name: str, value: Any) -> None:
    app = Redrive("sqlite:///unused.db", retry=FAST)

    with pytest.raises(BadDuration, match=name):
        app.handler("x", **{name: value})(lambda payload: None)


@pytest.mark.parametrize(
    ("deadline", "said"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), "has passed already"),
        (datetime(2090, 1, 1), "must know its time zone"),  # noqa: DTZ001
        (0, "deadline must be longer than 0"),
        ("-5s", "deadline: '-5s' is not a duration"),
        ([], "is not a duration"),
    ],
)
def test_a_deadline_that_cannot_be_met_is_refused_at_publish(deadline: Any, said: str) -> None:
    app = Redrive("sqlite:///unused.db")

    with pytest.raises(ConfigurationError, match=said):
        app.new_events("x", deadline=deadline)
