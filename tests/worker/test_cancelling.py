"""Calling events off: pending, blocked or running; the handler is told, and one answer stands."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest

from redrive import Context, Event, EventFilter, Redrive, Refused, RetryPolicy, Status
from redrive.errors import AttemptStopped, Cancelled
from redrive.store.base import Finished, Session
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = pytest.mark.promise("ends-named")

ONCE = RetryPolicy(max_attempts=1)


async def read(app: Redrive, event_id: Any) -> Event:
    event = await app.event(event_id)
    assert event is not None
    return event


@pytest.mark.req("W9")
async def test_a_running_handler_is_cancelled_within_a_second(app: Redrive) -> None:
    started = asyncio.Event()
    told: list[tuple[float, bool, str]] = []

    @app.handler("long", timeout="1h")
    async def long(payload: Any, ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with pytest.raises(Cancelled) as why:
                ctx.check_cancelled()
            told.append((time.monotonic(), ctx.cancelled, str(why.value)))
            raise

    published = await app.publish("long")
    async with working(app) as worker:
        await started.wait()
        await app.cancel(published.id, by="ann", reason="wrong order")
        called = time.monotonic()
        await until(lambda: worker.tally.cancelled == 1)

        async def noted() -> bool:
            return (await read(app, published.id)).session_id is None

        await until(noted)

    event = await read(app, published.id)
    assert told[0][0] - called < 1.0 + 1.0  # a second, and one more for a busy machine
    assert told[0][1:] == (True, "called off by ann: wrong order")
    assert (event.status, event.cancelled_by, event.cancel_reason) == (Status.CANCELLED, "ann", "wrong order")
    assert (worker.tally.delivered, worker.tally.timed_out, worker.tally.leases_lost) == (0, 0, 0)
    assert [entry.kind for entry in await app.trail(published.id)] == ["cancelled"]


@pytest.mark.req("W9")
async def test_another_process_calls_off_what_this_one_runs(store_url: str, app: Redrive) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.handler("long")
    async def long(payload: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    published = await app.publish("long")
    async with working(app), Redrive(store_url) as operator:
        await started.wait()
        await operator.cancel(published.id, by="ann", reason="wrong order")
        await asyncio.wait_for(stopped.wait(), 30)

    assert (await read(app, published.id)).status is Status.CANCELLED


@pytest.mark.req("W9")
async def test_a_handler_in_a_thread_is_asked_to_stop(app: Redrive) -> None:
    started = threading.Event()
    seen: list[str] = []

    @app.handler("long")
    def long(payload: Any, ctx: Context) -> None:
        started.set()
        while True:
            time.sleep(0.01)
            try:
                ctx.check_cancelled()
            except AttemptStopped as stopped:
                seen.append(str(stopped))
                return

    published = await app.publish("long")
    async with working(app) as worker:
        await until(started.is_set)
        await app.cancel(published.id, by="ann", reason="wrong order")
        await until(lambda: worker.tally.cancelled == 1)

    assert seen == ["called off by ann: wrong order"]
    assert worker.tally.left_behind == 0
    assert (await read(app, published.id)).status is Status.CANCELLED


@pytest.mark.req("W9", "B4")
async def test_a_handler_that_does_not_listen_changes_nothing(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.slots._CANCEL_SECONDS", 0.2)
    started, over = asyncio.Event(), asyncio.Event()

    @app.handler("deaf")
    async def deaf(payload: Any) -> None:
        started.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    published = await app.publish("deaf")
    async with working(app, concurrency=1) as worker:
        await started.wait()
        await app.cancel(published.id, by="ann", reason="wrong order")
        await until(lambda: worker.tally.left_behind == 1)
        over.set()
        await until(lambda: not worker._slots._deaf)

    assert (worker.tally.cancelled, worker.tally.delivered) == (1, 0)
    assert (await read(app, published.id)).status is Status.CANCELLED


@pytest.mark.req("W9")
async def test_what_waits_is_called_off_and_never_runs(app: Redrive) -> None:
    calls: list[Any] = []

    @app.handler("a")
    async def handled(payload: Any) -> None:
        calls.append(payload)

    pending, blocked, other = [await app.publish("a", number) for number in range(3)]
    verb = "redrive_outbox" if app.store.name == "sqlite" else "redrive.outbox"
    async with app.store.transaction() as tx:
        await tx.execute(f"update {verb} set status = 'blocked' where id = '{blocked.id}'")
    for each in (pending, blocked):
        await app.cancel(each.id, by="ann", reason="wrong order")

    await app.worker().drain()

    assert calls == [2]
    events = {event.id: event for event in await app.events()}
    assert [events[each.id].status for each in (pending, blocked, other)] == [
        Status.CANCELLED, Status.CANCELLED, Status.DELIVERED,
    ]  # fmt: skip
    (entry,) = await app.trail(blocked.id)
    assert entry.facts == {"reason": "wrong order", "was": "blocked"}
    with pytest.raises(Refused, match="is delivered already: nothing is left to cancel"):
        await app.cancel(other.id, by="ann", reason="too late")


@pytest.mark.req("W9")
async def test_what_was_claimed_ahead_and_is_called_off_is_never_started(app: Redrive) -> None:
    calls: list[int] = []
    first, proceed = asyncio.Event(), asyncio.Event()

    @app.handler("queue")
    async def queue(payload: int) -> None:
        calls.append(payload)
        first.set()
        await proceed.wait()

    published = await app.publish_many([("queue", number) for number in range(3)])
    worker = app.worker(concurrency=1)
    worker._appetite._ahead = 2  # as after a while of short handlers
    running = asyncio.create_task(worker.run())
    await first.wait()
    assert worker.tally.claimed == 3
    await app.cancel(published[1].id, by="ann", reason="wrong order")
    await until(lambda: worker.tally.cancelled == 1)
    proceed.set()
    await until(lambda: worker.tally.delivered == 2)
    worker.stop()
    await running

    assert calls == [0, 2]
    assert worker.tally.leases_lost == 0


async def test_a_thread_learns_that_its_worker_has_stopped(app: Redrive) -> None:
    started, ended = threading.Event(), threading.Event()

    @app.handler("long")
    def long(payload: Any, ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            time.sleep(0.01)
        ended.set()

    published = await app.publish("long")
    async with working(app, drain="100ms"):
        await until(started.is_set)

    await until(ended.is_set)
    event = await read(app, published.id)
    assert (event.status, event.attempts) == (Status.PENDING, 0)


@pytest.mark.req("W9", "B4")
async def test_of_cancel_success_and_failure_one_answer_stands(app: Redrive) -> None:
    """A hundred handlers finish, well or badly, just while they are called off."""
    dice = random.Random(7)
    effects: list[int] = []

    @app.handler("race", retry=ONCE)
    async def race(payload: int, ctx: Context) -> None:
        await asyncio.sleep(0.2 + 0.1 * random.Random(payload).random())
        if payload % 3 == 0:
            raise ValueError("badly")
        if payload % 3 == 1:
            async with ctx.transaction():
                effects.append(payload)

    published = await app.publish_many([("race", number) for number in range(100)])
    answers: dict[Any, str] = {}

    async def call_off(event_id: Any) -> None:
        await asyncio.sleep(0.2 + 0.15 * dice.random())
        try:
            await app.cancel(event_id, by="ann", reason="race")
            answers[event_id] = "cancelled"
        except Refused as error:
            answers[event_id] = str(error)

    async with working(app, concurrency=100) as worker:
        await until(lambda: worker.tally.claimed == 100)
        await asyncio.gather(*(call_off(each.id) for each in published))
        await until(lambda: not worker._hands.running)

    events = {event.id: event for event in await app.events(EventFilter(limit=200))}
    assert len(answers) == len(events) == 100
    for event_id, event in events.items():
        kinds = [entry.kind for entry in await app.trail(event_id)]
        if answers[event_id] == "cancelled":
            assert (event.status, kinds) == (Status.CANCELLED, ["cancelled"])
        else:
            assert event.status in (Status.DELIVERED, Status.FAILED)
            assert f"is {event.status} already" in answers[event_id]
            assert kinds == (["dead-lettered"] if event.status is Status.FAILED else [])


@pytest.mark.req("W9", "B4")
async def test_of_cancel_sweep_and_replay_one_answer_stands(app: Redrive) -> None:
    """Lost events are swept, and dead letters replayed, by some, while others call them off."""

    @app.handler("poison", retry=ONCE, brake=False)
    async def poison(payload: Any) -> None:
        raise ValueError

    dead = await app.publish_many([("poison", n) for n in range(20)])
    await app.worker().drain()
    lost = await app.publish_many([("other", n) for n in range(20)])
    session = app.clock.new_id()
    claims = app.store.claims(session, [("default", 1, 0)], actor="gone")
    await app.store.begin_session(Session(session, "gone", "h", 1, ("default",), (), 1), 30.0)
    taken = await claims.turn(Finished(), 100)
    await claims.close()
    await app.store.end_session(session)
    assert len(taken.claimed) == 20

    async def call_off(event_id: Any) -> bool:
        try:
            await app.cancel(event_id, by="ann", reason="race")
        except Refused:
            return False
        return True

    async def replay(event_id: Any) -> bool:
        await app.replay(event_id, by="bob", reason="race")
        return True

    async def sweep() -> bool:
        await app.store.sweep(app.clock.new_id(), max_lost=5, limit=5, base_seconds=0.0, actor="sweeper")
        return True

    acts = [call_off(each.id) for each in lost] + [sweep() for _ in range(8)] + [replay(each.id) for each in dead]
    acts += [call_off(each.id) for each in dead]
    outcomes = await asyncio.gather(*acts)

    assert all(outcomes[: len(lost)])
    assert {(await read(app, each.id)).status for each in lost} == {Status.CANCELLED}
    for each, cancelled in zip(dead, outcomes[-len(dead) :], strict=True):
        event = await read(app, each.id)
        assert event.status is (Status.CANCELLED if cancelled else Status.PENDING)
        assert event.cycle == 1
    verdict = await app.verify_trail()
    assert verdict.sound


@pytest.mark.req("W9")
async def test_many_are_called_off_at_once_and_what_has_ended_is_left_alone(app: Redrive) -> None:
    @app.handler("a")
    async def handled(payload: Any) -> None: ...

    done = await app.publish("a")
    await app.worker().drain()
    published = await app.publish_many([("a", n) for n in range(50)])

    gone = await app.store.cancel_all([done.id, *(each.id for each in published)], by="ann", reason="flood")

    assert set(gone) == {each.id for each in published}
    assert (await read(app, done.id)).status is Status.DELIVERED
    (entry,) = await app.trail(published[0].id)
    assert (entry.actor, entry.facts) == ("ann", {"reason": "flood", "was": "pending"})
