"""A worker's life: starting, stopping, losing its session, dying."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redrive import Context, EventFilter, Redrive, RetryPolicy, Status, StoreUnavailable
from redrive.worker import Worker, _cancelled
from tests import warm
from tests.stores.helpers import is_postgres, raw
from tests.waiting import until
from tests.worker.conftest import FAST, working

pytestmark = pytest.mark.promise("bounded")


async def test_a_stopping_worker_lets_running_handlers_finish(app: Redrive) -> None:
    started, finished = asyncio.Event(), asyncio.Event()

    @app.handler("slow")
    async def slow(payload: Any) -> None:
        started.set()
        await asyncio.sleep(0.3)
        finished.set()

    await app.publish("slow")
    async with working(app):
        await started.wait()

    assert finished.is_set()
    (event,) = await app.events()
    assert event.status is Status.DELIVERED


async def test_a_stopping_worker_hands_back_what_it_cannot_finish_without_spending_attempts(app: Redrive) -> None:
    started: list[bool] = []
    cancelled: list[bool] = []

    @app.handler("endless")
    async def endless(payload: Any) -> None:
        started.append(True)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    for _ in range(5):
        await app.publish("endless")
    async with working(app, concurrency=2, drain="200ms"):
        await until(lambda: len(started) == 2)  # a claim is not a start yet

    assert cancelled == [True, True]
    events = await app.events()
    assert {(event.status, event.attempts) for event in events} == {(Status.PENDING, 0)}
    (session,) = await app.store.sessions()
    assert session.ended_at is not None


async def test_a_handler_in_a_thread_that_does_not_end_is_handed_back_and_cannot_settle(app: Redrive) -> None:
    import threading

    release = threading.Event()

    @app.handler("stuck")
    def stuck(payload: Any) -> None:
        release.wait(20)

    await app.publish("stuck")
    async with working(app, drain="100ms") as worker:
        await until(lambda: worker.tally.claimed == 1)
        await asyncio.sleep(0.05)
    release.set()
    await asyncio.sleep(0.1)

    (event,) = await app.events()
    assert (event.status, event.attempts) == (Status.PENDING, 0)


async def test_a_stopping_worker_ends_though_a_driver_has_forgotten_that_it_was_called_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ``asyncio.wait_for`` does before Python 3.12, when the answer comes in the same moment."""
    monkeypatch.setattr("redrive.worker._CALL_OFF_EVERY", 0.05)

    async def fetch_for_ever() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(600)

    duty = asyncio.create_task(fetch_for_ever())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await _cancelled([duty])

    assert duty.cancelled()


async def test_a_handler_that_swallows_cancellation_does_not_hold_up_the_stop_for_ever(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.slots._CANCEL_SECONDS", 0.2)
    over = asyncio.Event()

    @app.handler("deaf")
    async def deaf(payload: Any) -> None:
        while not over.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    await app.publish("deaf")
    async with working(app, drain="100ms") as worker:  # the handler ends only after this
        await until(lambda: worker.tally.claimed == 1)
        await asyncio.sleep(0.05)
    over.set()
    await asyncio.sleep(0.2)

    (event,) = await app.events()
    assert event.status is Status.PENDING


@pytest.mark.req("B4")
async def test_a_worker_whose_session_was_swept_settles_nothing_and_starts_over(app: Redrive) -> None:
    """The zombie: paused past its lease, its event given to another, it wakes and finds itself replaced."""
    calls: list[int] = []
    proceed = asyncio.Event()

    @app.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        calls.append(ctx.fence)
        if ctx.fence == 1:
            await proceed.wait()

    published = await app.publish("pay")
    async with working(app, lease="1s") as worker:
        await until(lambda: calls == [1])
        first_session = worker.session_id
        assert first_session is not None
        await app.store.end_session(first_session)
        await app.store.sweep(app.clock.new_id(), max_lost=5, limit=10, base_seconds=0.0, actor="another")
        await until(lambda: worker.session_id != first_session)
        await until(lambda: len(calls) == 2)
        proceed.set()
        await until(lambda: worker.tally.delivered == 1)

    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count) == (Status.DELIVERED, 1)
    assert event.fence == calls[1] > calls[0]
    assert worker.tally.leases_lost >= 1


@pytest.mark.req("B4", "O8")
async def test_the_transaction_of_a_worker_that_lost_its_lease_is_rolled_back(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table ledger (fence integer)")
    inside, proceed = asyncio.Event(), asyncio.Event()

    @app.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        if ctx.fence == 1:
            inside.set()
            await proceed.wait()
        async with ctx.transaction() as tx:
            await tx.execute(f"insert into ledger values ({ctx.fence})")

    await app.publish("pay")
    zombie = app.worker(lease="30s")
    task = asyncio.create_task(zombie.run())
    await inside.wait()
    assert zombie.session_id is not None
    await app.store.end_session(zombie.session_id)
    await app.store.sweep(app.clock.new_id(), max_lost=5, limit=10, base_seconds=0.0, actor="another")
    await app.worker().drain()
    proceed.set()
    await until(lambda: zombie.tally.leases_lost == 1)
    zombie.stop()
    await task

    async with app.store.transaction() as tx:
        (effect,) = await tx.fetch("select fence from ledger")
    assert effect[0] > 1


async def test_a_blocked_event_loop_does_not_lose_its_leases(app: Redrive) -> None:
    """The heartbeat has a thread and a connection of its own."""

    @app.handler("cpu")
    async def cpu(payload: Any) -> None:
        time.sleep(2.5)  # noqa: ASYNC251 - the point of the test

    published = await app.publish("cpu")
    async with working(app, lease="1s") as worker:
        await until(lambda: worker.tally.claimed == 1)
        await app.store.sweep(app.clock.new_id(), max_lost=5, limit=10, base_seconds=0.0, actor="another")
        await until(lambda: worker.tally.delivered == 1)

    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count, event.fence) == (Status.DELIVERED, 0, 1)


@pytest.mark.parametrize("limit", [None, 8])
async def test_a_last_chance_is_taken_alone(app: Redrive, limit: int | None) -> None:
    """An event that may be what kills workers runs with nothing beside it, so that nothing else is lost with it."""
    together: list[tuple[str, int]] = []
    running = 0

    @app.handler("work", concurrency=limit)
    async def work(payload: str) -> None:
        nonlocal running
        running += 1
        together.append((payload, running))
        await asyncio.sleep(0.05)
        running -= 1

    await app.publish_many([("work", f"n{number}") for number in range(4)])
    suspect = await app.publish("work", "suspect")
    await app.publish_many([("work", f"m{number}") for number in range(4)])
    table = "redrive.outbox" if app.store.name == "postgres" else "redrive_outbox"
    async with app.store.transaction() as tx:
        await tx.execute(f"update {table} set lost_count = 2 where id = '{suspect.id}'")

    async with working(app, max_lost=3, concurrency=8) as worker:
        await until(lambda: worker.tally.delivered == 9)

    order = [payload for payload, _ in together]
    assert dict(together)["suspect"] == 1
    following = together[order.index("suspect") + 1]
    assert following[1] == 1, "something was started while the suspect ran"
    assert max(count for _, count in together) > 1


SCRIPT = """
    import asyncio, os, sys, signal, time
    from redrive import Redrive, RetryPolicy
    app = Redrive(sys.argv[1], retry=RetryPolicy(base_delay=0.01, max_delay=0.02))

    @app.handler("poison")
    async def poison(payload):
        os.kill(os.getpid(), signal.SIGKILL)

    @app.handler("hold")
    async def hold(payload):
        print("holding", flush=True)
        await asyncio.sleep(60)

    @app.handler("good")
    async def good(payload):
        await asyncio.sleep(0.02)

    async def main():
        async with app:
            await app.worker(lease="1s", max_lost=3, concurrency=4).run()

    asyncio.run(main())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker_script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def spawn(script: Path, url: str) -> subprocess.Popen[bytes]:
    return warm.python([str(script), url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.req("A7")
async def test_what_a_killed_process_held_is_taken_over(app: Redrive, store_url: str, script: Path) -> None:
    published = await app.publish("hold")
    process = spawn(script, store_url)
    assert process.stdout is not None
    while b"holding" not in await asyncio.to_thread(process.stdout.readline):
        assert process.poll() is None, "the worker ended by itself"
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    process.stdout.close()
    done: list[int] = []

    @app.handler("hold")
    async def hold(payload: Any, ctx: Context) -> None:
        done.append(ctx.fence)

    async with working(app, lease="1s"):
        await until(lambda: bool(done))

    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.lost_count, event.attempts) == (Status.DELIVERED, 1, 1)
    assert "lost" in [entry.kind for entry in await app.trail(published.id)]


@pytest.mark.lab_short
@pytest.mark.req("A7")
async def test_a_payload_that_kills_its_worker_ends_in_quarantine_and_takes_no_neighbour_with_it(
    app: Redrive, store_url: str, script: Path
) -> None:
    poison = await app.publish("poison")
    await app.publish_many([("good", number) for number in range(40)])

    async def is_buried() -> bool:
        event = await app.event(poison.id)
        return event is not None and event.status is Status.FAILED

    deaths = 0
    while not await is_buried():
        assert deaths < 6, "the poison goes on for ever"
        deaths += 1
        with spawn(script, store_url) as process:
            while process.poll() is None and not await is_buried():  # noqa: ASYNC110 - nobody here is told
                await asyncio.sleep(0.1)
            process.kill()

    @app.handler("good")
    async def good(payload: Any) -> None: ...

    async with working(app, lease="1s"):

        async def all_good() -> bool:
            events = await app.events(EventFilter(type="good", limit=100))
            return {event.status for event in events} == {Status.DELIVERED}

        await until(all_good)
    event = await app.event(poison.id)
    assert event is not None
    assert event.error_class == "worker_lost"
    assert (await app.verify_trail()).sound


async def test_a_worker_refuses_options_that_cannot_work(app: Redrive) -> None:
    from redrive import ConfigurationError

    for wrong in ({"concurrency": 0}, {"queues": ()}, {"lease": "10ms"}, {"max_lost": 0}, {"lease": "soon"}):
        with pytest.raises(ConfigurationError):
            app.worker(**wrong)


async def test_two_workers_share_the_work_and_nothing_is_done_twice(app: Redrive) -> None:
    done: list[int] = []

    @app.handler("work")
    async def work(payload: int) -> None:
        done.append(payload)
        if payload % 50 == 0:
            await asyncio.sleep(0.001)

    await app.publish_many([("work", number) for number in range(2_000)])
    async with working(app, concurrency=10) as one, working(app, concurrency=10) as two:
        await until(lambda: len(done) >= 2_000)

    assert sorted(done) == list(range(2_000))
    assert one.tally.delivered + two.tally.delivered == 2_000


async def test_a_worker_hears_of_a_lone_event_at_once_and_without_notifications_by_its_poll(store_url: str) -> None:
    app = Redrive(store_url, retry=FAST, migrate=True, notify=False)
    seen = asyncio.Event()

    @app.handler("ping")
    async def ping(payload: Any) -> None:
        seen.set()

    async with app, working(app, poll="200ms"):
        await asyncio.sleep(0.5)
        await app.publish("ping")
        await until(seen.is_set)


async def test_events_in_other_queues_are_left_alone(app: Redrive) -> None:
    @app.handler("work")
    async def work(payload: Any) -> None: ...

    await app.publish("work", 1, queue="mail")
    await app.worker().drain()
    (event,) = await app.events()
    assert event.status is Status.PENDING

    await app.worker(queues=("default", "mail")).drain()
    (event,) = await app.events()
    assert event.status is Status.DELIVERED


async def test_high_priority_goes_first(app: Redrive) -> None:
    order: list[int] = []

    @app.handler("work")
    async def work(payload: int) -> None:
        order.append(payload)

    for priority in (3, 2, 1, 0):
        await app.publish("work", priority, priority=priority)
    await app.worker(concurrency=1).drain()

    assert order == [0, 1, 2, 3]


async def test_a_worker_needs_an_open_app(store_url: str) -> None:
    from redrive import ConfigurationError

    with pytest.raises(ConfigurationError, match="open the app"):
        Redrive(store_url).worker()


def test_the_process_id_in_a_name_tells_workers_apart(tmp_path: Path) -> None:
    app = Redrive(f"sqlite:///{tmp_path / 'x.db'}")
    worker = Worker(app.store, {}, app.clock, retry=RetryPolicy(), retention=app.retention, new_events=app.new_events)
    assert worker.name.endswith(f":{os.getpid()}")


async def test_an_event_claimed_by_an_answer_that_never_came_is_run_all_the_same(app: Redrive) -> None:
    """A silent server may carry out a claim after the worker gave up on it; the session lives, so no sweep helps."""
    from redrive.store.base import Finished

    done: list[int] = []

    @app.handler("work")
    async def work(payload: int) -> None:
        done.append(payload)

    async with working(app, lease="1s", queues=("other",)) as worker:
        await until(lambda: worker.session_id is not None)
        assert worker.session_id is not None
        await app.publish("work", 1, queue="late")
        late = app.store.claims(worker.session_id, [("late", 1, 0)], actor="late")
        assert len((await late.turn(Finished(), 1)).claimed) == 1
        await late.close()
        worker._doubt_until = float("inf")  # as after a call that failed

        async def put_back() -> bool:
            (event,) = await app.events()
            return event.status is Status.PENDING

        await until(put_back)
    await app.worker(queues=("late",)).drain()
    assert done == [1]


async def test_a_zombie_cannot_make_the_worker_forget_a_later_claim_of_its_event(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler ignores cancellation and ends with LeaseLost while the same worker holds the event anew."""
    monkeypatch.setattr("redrive.slots._CANCEL_SECONDS", 0.1)
    zombie_may_end, second_may_end = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    @app.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        calls.append(ctx.fence)
        if len(calls) == 1:
            while not zombie_may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await zombie_may_end.wait()
            async with ctx.transaction():
                pass
        await second_may_end.wait()

    published = await app.publish("pay")
    async with working(app, lease="1s") as worker:
        await until(lambda: len(calls) == 1)
        assert worker.session_id is not None
        await app.store.end_session(worker.session_id)
        await app.store.sweep(app.clock.new_id(), max_lost=5, limit=10, base_seconds=0.0, actor="another")
        await until(lambda: len(calls) == 2)
        lost = worker.tally.leases_lost
        zombie_may_end.set()
        await until(lambda: worker.tally.leases_lost > lost)
        second_may_end.set()
        await until(lambda: worker.tally.delivered == 1)

    event = await app.event(published.id)
    assert event is not None
    assert event.status is Status.DELIVERED


async def test_upkeep_goes_on_after_an_error_nobody_foresaw(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[int] = []
    sweep = app.store.sweep

    async def broken_once(*arguments: Any, **options: Any) -> Any:
        sweeps.append(1)
        if len(sweeps) == 1:
            raise RuntimeError("permission denied, or a bug")
        return await sweep(*arguments, **options)

    monkeypatch.setattr(app.store, "sweep", broken_once)
    async with working(app, lease="1s"):
        await until(lambda: len(sweeps) > 1)


async def test_the_heartbeat_goes_on_after_an_error_nobody_foresaw(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it others would take every event of this worker, and it would claim nothing more."""
    beats: list[int] = []
    pulse = app.store.pulse

    @asynccontextmanager
    async def broken_once() -> AsyncIterator[Any]:
        async with pulse() as renew:

            async def beat(*arguments: Any) -> bool:
                beats.append(1)
                if len(beats) == 1:
                    raise RuntimeError("an error of the driver that has no name here")
                return await renew(*arguments)

            yield beat

    monkeypatch.setattr(app.store, "pulse", broken_once)
    async with working(app, lease="1s"):
        await until(lambda: len(beats) > 2)


async def test_what_a_sweep_took_over_is_settled_though_its_answer_was_lost(
    app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper holds a lease that it does not know of, and its session lives: no other sweep would help."""
    sweep, answers = app.store.sweep, 0

    async def answer_lost(*arguments: Any, **options: Any) -> Any:
        nonlocal answers
        rows = await sweep(*arguments, **options)
        answers += bool(rows)
        if answers == 1 and rows:
            raise StoreUnavailable("the connection was cut before the answer came")
        return rows

    fences: set[int] = set()

    async def note(payload: Any, ctx: Context) -> None:
        fences.add(ctx.fence)

    app.handler("work")(note)
    published = await app.publish("work")
    dead = app.worker(lease="1s", max_lost=1)
    async with dead._at_work(alive=False):
        await dead._turn()
        assert dead.session_id is not None
        await app.store.end_session(dead.session_id)
        monkeypatch.setattr(app.store, "sweep", answer_lost)
        async with working(app, lease="1s", max_lost=1):

            async def ended() -> bool:
                event = await app.event(published.id)
                return event is not None and event.ended_at is not None

            await until(ended)
    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.error_class) == (Status.FAILED, "worker_lost")
    assert fences <= {1}, "it was run again"
    assert answers >= 1
    assert [entry.kind for entry in await app.trail(published.id)].count("lost") == 1


async def test_a_purge_that_takes_long_keeps_nobody_from_being_swept(
    app: Redrive, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of rows take minutes; what a dead worker held must not wait for them."""
    monkeypatch.setattr("redrive.worker._PURGE_LIMIT", 1)  # a hundred rows take ten seconds
    monkeypatch.setattr("redrive.worker._PURGE_EVERY", 0.0)

    async def nothing(payload: Any) -> None: ...

    app.handler("work")(nothing)
    await app.publish_many([("work", number) for number in range(100)])
    await app.worker().drain()
    with raw(store_url) as run:
        run(f"update {{outbox}} set ended_at = {'to_timestamp(0)' if is_postgres(store_url) else 0}")
    published = await app.publish("work")

    async def are_left() -> int:
        return len(await app.events(EventFilter(limit=200))) - 1

    dead = app.worker(lease="1s")
    async with dead._at_work(alive=False):
        await dead._turn()
        async with working(app, lease="1s"):
            await until(lambda: _is(are_left, lambda left: left < 100))
            assert dead.session_id is not None
            await app.store.end_session(dead.session_id)

            await until(lambda: _is(partial(app.event, published.id), lambda event: event.lost_count == 1))

            assert await are_left() > 0


async def _is(ask: Callable[[], Awaitable[Any]], what: Callable[[Any], bool]) -> bool:
    return what(await ask())
