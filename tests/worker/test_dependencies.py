"""An outage is not poison: circuits, brakes and holds, on every store."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import sqlite3
import urllib.error
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import psycopg
import pytest

from redrive import (
    ConfigurationError,
    Context,
    DependencyDegraded,
    DependencyUnavailable,
    Event,
    EventFilter,
    Redrive,
    Refused,
    Rejected,
    RetryPolicy,
    Status,
    TerminalHandlerError,
)
from redrive import dependency as deps
from redrive.clock import VirtualClock
from redrive.dependency import Dependency, State
from redrive.store.sql import load
from tests.waiting import until
from tests.worker.conftest import working

QUICK = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


def judged(app: Redrive, *names: str, **options: Any) -> None:
    for name in names:
        app.dependency(name, **{"threshold": 3, "probe_after": "200ms", "probe_cap": "400ms", **options})


async def of(app: Redrive, name: str) -> Dependency:
    return next(each for each in await app.dependencies() if each.name == name)


async def the_event(app: Redrive, event_id: UUID) -> Event:
    event = await app.event(event_id)
    assert event is not None
    return event


async def all_events(app: Redrive) -> list[Event]:
    return await app.events(EventFilter(limit=20_000))


async def count(app: Redrive, status: Status) -> int:
    return sum(number for (_, of), number in (await app.store.counts()).items() if of == status)


async def kinds(app: Redrive) -> list[str]:
    return [entry.kind async for entry in app.store.trail()]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def still(store_url: str, clock: VirtualClock) -> AsyncIterator[Redrive]:
    """An app whose time moves only when told to."""
    async with Redrive(store_url, retry=QUICK, migrate=True, clock=clock) as app:
        yield app


# --- circuits ---


@pytest.mark.lab_short
@pytest.mark.req("W4", "B3", "E11")
async def test_an_outage_buries_nothing_and_costs_no_attempt(app: Redrive) -> None:
    judged(app, "case-api", release_rate=5_000)
    up, calls = asyncio.Event(), Counter[str]()

    @app.handler("case.opened", needs=["case-api"])
    async def file(payload: Any) -> None:
        calls["up" if up.is_set() else "down"] += 1
        if not up.is_set():
            raise DependencyUnavailable("case-api", "503")

    await app.publish_many([("case.opened", {"n": n}) for n in range(2_000)])
    async with working(app, concurrency=10), working(app, concurrency=10):
        await until(lambda: _is(app, "case-api", State.OPEN, State.HALF_OPEN))
        await until(lambda: _none_left(app))
        assert calls["down"] < 100, "an open circuit lets nothing through but its probes"
        up.set()
        await until(lambda: _delivered(app, 2_000))

    events = await all_events(app)
    assert {event.status for event in events} == {Status.DELIVERED}
    assert {event.attempts for event in events} == {1}
    assert (await of(app, "case-api")).state is State.CLOSED
    noted = Counter(await kinds(app))
    assert noted["dependency-opened"] == 1
    assert noted["dependency-closed"] == 1
    assert noted["dead-lettered"] == 0


async def _is(app: Redrive, name: str, *states: State) -> bool:
    return any(each.name == name and each.state in states for each in await app.dependencies())


async def _none_left(app: Redrive) -> bool:
    return await count(app, Status.PENDING) == 0


async def _waiting(app: Redrive, number: int) -> bool:
    return await count(app, Status.BLOCKED) == number


async def _knows(app: Redrive, queues: tuple[str, ...]) -> bool:
    """Whether the worker has begun: its session is there."""
    return any(session.queues == queues for session in await app.store.sessions())


async def _delivered(app: Redrive, number: int) -> bool:
    return await count(app, Status.DELIVERED) == number


@pytest.mark.req("W4")
async def test_an_open_circuit_blocks_an_event_before_its_handler_runs(app: Redrive) -> None:
    runs: list[int] = []

    @app.handler("order.paid", needs=["carrier-api"])
    async def ship(payload: Any) -> None:
        runs.append(1)

    await app.worker().drain()  # makes the dependency known
    await app.open_dependency("carrier-api", by="ann", reason="they told us")
    published = await app.publish("order.paid", {})
    await app.worker().drain()

    event = await the_event(app, published.id)
    assert not runs
    assert (event.status, event.blocked_on, event.attempts, event.last_error) == (
        Status.BLOCKED, "carrier-api", 0, None,
    )  # fmt: skip
    (entry,) = await app.trail(published.id)
    assert (entry.kind, entry.facts) == ("blocked", {"blocked_on": "carrier-api", "tried": False})
    assert (await of(app, "carrier-api")).is_waited_for


async def test_below_the_threshold_an_event_comes_back_without_having_spent_an_attempt(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        raise DependencyUnavailable("carrier-api", "503")

    published = await app.publish("order.paid", {})
    await app.worker().drain()

    event = await the_event(app, published.id)
    assert (event.status, event.attempts, event.deferred_count) == (Status.PENDING, 0, 1)
    assert event.error_class == "dependency_unavailable"
    assert event.due_at > event.created_at
    (entry,) = await app.trail(published.id)
    assert (entry.kind, entry.facts["outcome"]) == ("retry-scheduled", "deferred")


async def run_for(app: Redrive, clock: VirtualClock, seconds: int, step: float = 0.5) -> None:
    for _ in range(int(seconds / step)):
        await app.worker().drain()
        clock.advance(step)


@pytest.mark.req("W4", "B3")
@pytest.mark.parametrize("declared", [True, False])
async def test_an_event_that_fails_alone_while_others_pass_does_not_circle_for_ever(
    still: Redrive, clock: VirtualClock, *, declared: bool
) -> None:
    @still.handler("order.paid", needs=["carrier-api"] if declared else [])
    async def ship(payload: Any) -> None:
        if payload == "poison":
            raise DependencyUnavailable("carrier-api", "for this one only")

    worker = still.worker(concurrency=1)
    poison = await still.publish("order.paid", "poison")
    for _ in range(60):
        await still.publish("order.paid", "healthy")
        await worker.drain()
        clock.advance(5)

    event = await the_event(still, poison.id)
    assert (event.status, event.deferred_count, event.attempts) == (Status.FAILED, deps.FREE_ROUNDS, 3)
    assert not (await of(still, "carrier-api")).is_shut
    assert "dependency-opened" not in await kinds(still)


async def test_an_event_that_opens_the_circuit_again_and_again_is_charged_at_last(
    still: Redrive, clock: VirtualClock
) -> None:
    still.dependency("carrier-api", threshold=1, probe_after=1, probe_cap=1)

    @still.handler("order.paid", needs=["carrier-api"])
    async def ship(payload: Any) -> None:
        if payload == "poison":
            raise DependencyUnavailable("carrier-api", "for this one only")

    worker = still.worker(concurrency=1)
    poison = await still.publish("order.paid", "poison")
    for _ in range(80):
        await still.publish("order.paid", "healthy")
        await worker.drain()
        clock.advance(2)

    event = await the_event(still, poison.id)
    assert (event.status, event.deferred_count) == (Status.FAILED, deps.FREE_ROUNDS)
    assert await count(still, Status.DELIVERED) > 40


@pytest.mark.req("B3")
async def test_a_lone_event_waits_for_as_long_as_the_outage_lasts(still: Redrive, clock: VirtualClock) -> None:
    up = False

    @still.handler("order.paid")
    async def ship(payload: Any) -> None:
        if not up:
            raise DependencyUnavailable("carrier-api")

    published = await still.publish("order.paid", {})
    worker = still.worker()
    for minute in range(60):
        await worker.drain()
        clock.advance(20 + minute)  # 49 minutes in all

    event = await the_event(still, published.id)
    assert (event.status, event.blocked_on, event.attempts) == (Status.BLOCKED, "carrier-api", 0)
    up = True
    clock.advance(90)
    await worker.drain()
    assert (await the_event(still, published.id)).status is Status.DELIVERED


async def test_probes_come_one_at_a_time_and_ever_later(still: Redrive, clock: VirtualClock) -> None:
    still.dependency("api", threshold=1, probe_after=10, probe_cap=40)
    tried: list[Any] = []

    @still.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        tried.append(payload)
        raise ConnectionError("refused")

    await still.publish_many([("order.paid", number) for number in range(3)])
    worker, other = still.worker(concurrency=1), still.worker(concurrency=1)
    waits: list[float] = []
    for _ in range(6):
        await worker.drain()
        await other.drain()
        standing = await of(still, "api")
        assert standing.probe_at is not None
        waits.append((standing.probe_at - standing.now).total_seconds())
        clock.advance(standing.probe_at - standing.now)

    assert len(tried) == 6
    assert set(tried) == {0, 1, 2}, "each in its turn"
    for wait, expected in zip(waits, [10, 20, 40, 40, 40, 40], strict=True):
        assert 0.79 * expected <= wait <= 1.21 * expected


@pytest.mark.req("E11")
async def test_one_probe_is_under_way_however_many_workers_there_are(app: Redrive) -> None:
    judged(app, "api", threshold=1)
    probing, done, calls = asyncio.Event(), asyncio.Event(), Counter[str]()

    @app.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        calls["all"] += 1
        if calls["all"] == 1:
            raise ConnectionError("refused")
        calls["running"] += 1
        calls["most"] = max(calls["most"], calls["running"])
        probing.set()
        await done.wait()
        calls["running"] -= 1

    async def is_shut() -> bool:
        return any(each.name == "api" and each.state is not State.CLOSED for each in await app.dependencies())

    await app.publish("order.paid", 0)
    async with working(app):
        await until(is_shut)  # who comes before that is told, might let go what waits for something that works
        async with working(app), working(app):
            await until(probing.is_set)
            await asyncio.sleep(1.0)  # by then each of them knows that it is shut
            await app.publish_many([("order.paid", n) for n in range(1, 50)])
            await until(lambda: _waiting(app, 49))
            seen = (calls["most"], calls["all"], (await of(app, "api")).state)
            done.set()
            await until(lambda: _delivered(app, 50))
    assert seen == (1, 2, State.HALF_OPEN)


async def test_a_probe_that_is_handed_back_proves_nothing(app: Redrive) -> None:
    judged(app, "api", threshold=1)
    calls: list[int] = []

    @app.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("refused")
        if len(calls) == 2:
            await asyncio.sleep(60)

    published = await app.publish("order.paid", 0)
    async with working(app) as worker:
        await until(lambda: len(calls) == 2)
        worker.stop(at_once=True)
    assert (await the_event(app, published.id)).attempts == 0
    assert (await of(app, "api")).state is State.OPEN

    async with working(app):
        await until(lambda: _delivered(app, 1))


async def test_the_probe_of_a_worker_that_is_gone_is_taken_over(still: Redrive, clock: VirtualClock) -> None:
    still.dependency("api", threshold=1, probe_after=1)
    up = False

    @still.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        if not up:
            raise ConnectionError("refused")

    await still.publish_many([("order.paid", number) for number in range(2)])
    await still.worker().drain()
    clock.advance(2)
    gone = still.worker(lease="5s")
    await gone._begin_session()
    row = await deps.probe(still.store, "api", gone._session(), ["order.paid"], ["default"], 0)
    assert row is not None
    await gone._close_claims()
    up = True

    await still.worker().drain()
    assert await count(still, Status.DELIVERED) == 0, "somebody is looking already"
    clock.advance(31)
    await still.worker().drain()

    assert await _delivered(still, 2)
    assert (await of(still, "api")).state is State.CLOSED


async def test_a_late_probe_has_no_say(still: Redrive, clock: VirtualClock) -> None:
    still.dependency("api", threshold=1, probe_after=1)

    @still.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        raise ConnectionError("refused")

    await still.publish("order.paid", {})
    await still.worker().drain()
    stranger = still.clock.new_id()

    await deps.conclude(still.store, "api", stranger, deps.DEFAULT, still.clock.random, ok=True, by="late")

    assert (await of(still, "api")).state is State.OPEN


@pytest.mark.req("W4")
async def test_those_who_wait_come_back_oldest_first_at_a_bounded_and_growing_rate(
    still: Redrive, clock: VirtualClock
) -> None:
    @still.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None: ...

    await still.worker().drain()
    await still.open_dependency("api", by="ann", reason="maintenance")
    published = await still.publish_many([("order.paid", n) for n in range(3_000)])
    await still.worker().drain()
    assert await count(still, Status.BLOCKED) == 3_000
    await still.close_dependency("api", by="ann", reason="done")

    gone: list[int] = []
    circuit = deps.Circuit(release_rate=400)
    for _ in range(200):
        gone.append(await deps.release(still.store, "api", circuit))
        if len(gone) == 4:
            pending = {event.id for event in await still.events(EventFilter(status=Status.PENDING, limit=20_000))}
            assert pending == {each.id for each in published[: sum(gone)]}
        if sum(gone) == 3_000:
            break
        clock.advance(0.25)

    a_second = [sum(gone[n : n + 4]) for n in range(0, len(gone), 4)]
    assert a_second[0] <= 20
    assert a_second[1] <= 40
    assert a_second[:4] == sorted(a_second[:4])
    assert max(a_second) <= 401
    assert max(a_second) > 300


async def test_a_worker_that_slept_does_not_make_up_for_it_in_a_burst(still: Redrive, clock: VirtualClock) -> None:
    async with still.store.transaction() as tx:
        this = deps.closed(await deps._made(tx, "api", deps.Kind.DEPENDENCY))
        await deps._write(tx, this)
    clock.advance(3_600)

    assert deps.room(await of(still, "api"), deps.Circuit(release_rate=100)) == 100


@pytest.mark.req("W4", "W7")
async def test_nobody_waits_for_ever_for_something_that_is_not_shut(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None: ...

    published = await app.publish("order.paid", {})
    table = "redrive.outbox" if app.store.name == "postgres" else "redrive_outbox"
    async with app.store.transaction() as tx:
        await tx.execute(f"update {table} set status = 'blocked', blocked_on = 'nobody knows it'")
    await app.worker().drain()

    assert (await the_event(app, published.id)).status is Status.DELIVERED


async def test_a_circuit_that_was_opened_by_hand_is_closed_by_hand_only(still: Redrive, clock: VirtualClock) -> None:
    @still.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None: ...

    await still.worker().drain()
    await still.open_dependency("api", by="ann", reason="maintenance")
    published = await still.publish("order.paid", {})
    await run_for(still, clock, 300, step=30)
    assert (await the_event(still, published.id)).status is Status.BLOCKED
    standing = await of(still, "api")
    assert (standing.state, standing.opened_by, standing.reason, standing.probe_at) == (
        State.OPEN, "ann", "maintenance", None,
    )  # fmt: skip

    await still.close_dependency("api", by="bob", reason="over")
    await still.worker().drain()

    assert (await the_event(still, published.id)).status is Status.DELIVERED
    entries = [entry async for entry in still.store.trail() if entry.kind.startswith("dependency")]
    assert [(entry.kind, entry.actor, entry.facts["reason"]) for entry in entries] == [
        ("dependency-opened", "ann", "maintenance"),
        ("dependency-closed", "bob", "over"),
    ]


async def test_a_worker_at_work_learns_of_it(app: Redrive) -> None:
    runs: list[Any] = []

    @app.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        runs.append(payload)

    async with working(app) as worker:
        await until(lambda: _is(app, "api", State.CLOSED))
        await app.open_dependency("api", by="ann", reason="maintenance")
        await until(lambda: "api" in worker._circuits._shut)
        published = await app.publish("order.paid", {})
        await until(lambda: _stands(app, published.id, Status.BLOCKED))
        await app.close_dependency("api", by="ann", reason="over")
        await until(lambda: _stands(app, published.id, Status.DELIVERED))
    assert len(runs) == 1


async def _stands(app: Redrive, event_id: UUID, status: Status) -> bool:
    return (await the_event(app, event_id)).status is status


async def test_a_blocked_event_can_be_cancelled_and_not_replayed(app: Redrive) -> None:
    @app.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None: ...

    await app.worker().drain()
    await app.open_dependency("api", by="ann", reason="maintenance")
    published = await app.publish("order.paid", {}, retry_key="order-1")
    await app.worker().drain()
    assert (await app.publish("order.paid", {}, retry_key="order-1")).id == published.id

    with pytest.raises(Refused, match="blocked"):
        await app.replay(published.id, by="ann", reason="impatient")
    with pytest.raises(Refused, match="blocked"):
        await app.discard(published.id, by="ann", reason="impatient")
    await app.cancel(published.id, by="ann", reason="not needed")

    assert (await the_event(app, published.id)).status is Status.CANCELLED
    assert not (await of(app, "api")).is_waited_for


# --- whose fault it is ---


class Odd(Exception):
    """A failure of a library of ours."""


class Request:
    def __init__(self, url: str) -> None:
        self.url = url


ASKED = httpx.Request("GET", "https://elsewhere.example/v1")


class HttpError(ConnectionError):
    def __init__(self, url: str) -> None:
        super().__init__("refused")
        self.request = Request(url)


@pytest.mark.req("W3")
@pytest.mark.parametrize(
    ("needs", "error", "blamed"),
    [
        (["one"], ConnectionError("refused"), "one"),
        (["one"], OSError(110, "timed out"), "one"),
        (["one"], TimeoutError("a limit of our own"), None),
        (["one"], ValueError("a bug"), None),
        (["one"], FileNotFoundError("here"), None),
        (["one"], HttpError("https://elsewhere.example/v1"), None),
        (["three"], HttpError("https://elsewhere.example/v1"), "three"),
        (["two"], ConnectionError("refused"), None),
        (["three"], OSError("disk"), None),
        (["three"], OSError(errno.ENOSPC, "no space left"), None),
        (["three"], OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0)"), "three"),
        (["three"], TimeoutError(errno.ETIMEDOUT, "no answer"), "three"),
        (["three"], socket.gaierror(-2, "unknown name"), "three"),
        (["three"], httpx.ConnectTimeout("no answer"), "three"),
        (["three"], httpx.ReadError("reset"), "three"),
        (["three"], httpx.HTTPStatusError("404", request=ASKED, response=httpx.Response(404, request=ASKED)), None),
        (["three"], urllib.error.URLError(ConnectionRefusedError()), "three"),
        (["three"], sqlite3.OperationalError("no such column: weight"), None),
        (["three"], sqlite3.OperationalError("database is locked"), None),
        (["three"], psycopg.errors.UndefinedColumn("weight"), None),
        (["three"], psycopg.OperationalError("the server is gone"), None),
        (["three"], MemoryError(), None),
        (["three"], KeyError("weight"), None),
        (["three"], ExceptionGroup("both", [KeyError(), ConnectionResetError()]), "three"),
        (["one", "two"], ConnectionError("refused"), None),
        (["one", "two"], TimeoutError("either"), None),
        (["one", "two"], Odd("by class"), "two"),
        (["one", "two"], HttpError("https://one.example/v1"), "one"),
        (["one"], DependencyUnavailable("three"), "three"),
        ([], DependencyUnavailable("three"), "three"),
        ([], ConnectionError("refused"), None),
        (["one"], ExceptionGroup("both", [ValueError(), DependencyUnavailable("three")]), "three"),
    ],
)
async def test_an_exception_is_blamed_on_the_dependency_it_speaks_of(
    sqlite_url: str, needs: list[str], error: Exception, blamed: str | None
) -> None:
    async with Redrive(sqlite_url, retry=RetryPolicy(base_delay=60.0, max_delay=60.0, jitter=0.0)) as app:
        app.dependency("one", threshold=1, hosts=["one.example"])
        app.dependency("two", threshold=1, errors=[f"{__name__}.Odd"])
        app.dependency("three", threshold=1)

        @app.handler("order.paid", needs=needs)
        async def ship(payload: Any) -> None:
            raise error

        published = await app.publish("order.paid", {})
        await app.worker().drain()
        event = await the_event(app, published.id)

    assert event.blocked_on == blamed
    assert event.attempts == (0 if blamed else 1)


async def test_what_fails_for_good_stays_a_dead_letter_whatever_it_needs(app: Redrive) -> None:
    judged(app, "api", threshold=1)

    @app.handler("order.paid", needs=["api"], retry=RetryPolicy(terminal_errors=(ConnectionError,)))
    async def ship(payload: Any) -> None:
        raise payload_error[payload]

    payload_error = {"no": Rejected("no"), "declared": ConnectionError("gone for good")}
    await app.publish("order.paid", "no")
    await app.publish("order.paid", "declared")
    await app.worker().drain()

    assert await count(app, Status.FAILED) == 2


# --- degraded ---


@pytest.mark.req("W3", "W4")
async def test_handlers_that_can_proceed_in_a_reduced_mode_do_and_the_others_wait(app: Redrive) -> None:
    seen: list[frozenset[str]] = []

    @app.handler("order.paid", needs=["search"], degraded="proceed")
    async def ship(payload: Any, ctx: Context) -> None:
        seen.append(ctx.degraded)

    @app.handler("order.paid", name="index", needs=["search"])
    async def index(payload: Any) -> None: ...

    await app.worker().drain()
    await app.open_dependency("search", by="ann", reason="slow", degraded=True)
    await app.publish("order.paid", {})
    await app.worker().drain()

    by_target = {event.target: event for event in await all_events(app)}
    assert seen == [frozenset({"search"})]
    assert (by_target["order.paid"].status, by_target["order.paid"].degraded) == (Status.DELIVERED, True)
    assert (by_target["index"].status, by_target["index"].blocked_on) == (Status.BLOCKED, "search")
    await app.close_dependency("search", by="ann", reason="fast again")
    await app.worker().drain()
    assert await _delivered(app, 2)


async def test_a_handler_says_that_a_dependency_is_degraded(still: Redrive, clock: VirtualClock) -> None:
    still.dependency("search", threshold=1, probe_after=10, probe_cap=10)
    whole = False

    @still.handler("order.paid", needs=["search"], degraded="proceed")
    async def ship(payload: Any, ctx: Context) -> None:
        if not whole and "search" not in ctx.degraded:
            raise DependencyDegraded("search", "read only")

    first = await still.publish("order.paid", {})
    await still.worker().drain()
    assert (await of(still, "search")).state is State.DEGRADED
    await run_for(still, clock, 15, step=5)
    whole = True
    await run_for(still, clock, 15, step=5)

    event = await the_event(still, first.id)
    assert event.status is Status.DELIVERED
    assert (await of(still, "search")).state is State.CLOSED


# --- brakes ---


@pytest.mark.req("B3")
async def test_when_nearly_everything_of_a_type_fails_it_waits_and_nothing_is_buried(app: Redrive) -> None:
    fixed = asyncio.Event()

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        if not fixed.is_set():
            raise KeyError("a bad deploy")

    @app.handler("mail.due")
    async def send(payload: Any) -> None: ...

    await app.publish_many([("order.paid", {"n": n}) for n in range(300)])
    async with working(app, concurrency=5), working(app, concurrency=5):
        await until(lambda: _is(app, "brake:order.paid", State.OPEN, State.HALF_OPEN))
        await until(lambda: _none_left(app))
        await app.publish("mail.due", {})
        await until(lambda: _delivered(app, 1))
        assert await count(app, Status.FAILED) == 0
        assert (await of(app, "brake:order.paid")).reason
        fixed.set()
        await app.close_dependency("brake:order.paid", by="ann", reason="rolled back")
        await until(lambda: _delivered(app, 301))


@pytest.mark.req("B3")
async def test_nothing_is_buried_either_while_the_others_are_being_told_of_the_brake(postgres_url: str) -> None:
    """Who had begun to tell had forgotten what was under way: the next two dozen failures were not braked."""
    twice = RetryPolicy(max_attempts=2, base_delay=0.3, jitter="none")
    async with Redrive(postgres_url, retry=twice) as app:

        @app.handler("order.paid")
        async def ship(payload: Any) -> None:
            raise KeyError("a bad deploy")

        await app.publish_many([("order.paid", {"n": n}) for n in range(30)])
        other = await asyncpg.connect(postgres_url)
        await other.execute("insert into redrive.dependency (name, kind) values ('brake:order.paid', 'brake')")
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from redrive.dependency for update")  # whoever tells of it waits
        async with working(app, concurrency=5):
            await until(lambda: _none_left(app))
            buried = await count(app, Status.FAILED)
            await transaction.rollback()
        await other.close()

    assert buried == 0


@pytest.mark.req("W4")
async def test_a_circuit_opens_at_its_threshold_even_while_the_first_failures_are_being_told(postgres_url: str) -> None:
    calls = 0
    async with Redrive(postgres_url, retry=QUICK) as app:
        app.dependency("api", threshold=3, probe_after="60s", probe_cap="60s")

        @app.handler("order.paid", needs=["api"])
        async def ship(payload: Any) -> None:
            nonlocal calls
            calls += 1
            raise ConnectionError("refused")

        other = await asyncpg.connect(postgres_url)
        watch = await asyncpg.connect(postgres_url)
        await other.execute("insert into redrive.dependency (name, kind) values ('api', 'dependency')")
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from redrive.dependency for update")  # whoever tells of it waits

        async def is_telling() -> bool:
            return bool(await watch.fetchval("select count(*) from pg_locks where not granted"))

        async with working(app, concurrency=1):
            await app.publish("order.paid", {})
            await until(is_telling)
            await app.publish_many([("order.paid", {"n": n}) for n in range(20)])
            await until(lambda: _none_left(app))
            await transaction.rollback()
            await until(lambda: _is_shut(app, "api"))
        await other.close()
        await watch.close()

    assert calls == 3


async def _is_shut(app: Redrive, name: str) -> bool:
    return (await of(app, name)).is_shut


@pytest.mark.req("B3")
async def test_poison_amid_healthy_traffic_is_dead_lettered(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        if payload % 4 == 0:
            raise KeyError("poison")

    await app.publish_many([("order.paid", n) for n in range(200)])
    async with working(app):
        await until(lambda: _delivered(app, 150))
        await until(lambda: _dead(app, 50))
    assert all(not each.is_shut for each in await app.dependencies())


async def _dead(app: Redrive, number: int) -> bool:
    return await count(app, Status.FAILED) == number


@pytest.mark.parametrize("error", [TerminalHandlerError("no"), KeyError("yes")])
async def test_what_is_terminal_or_has_no_brake_is_dead_lettered_however_many(app: Redrive, error: Exception) -> None:
    @app.handler("order.paid", brake=not isinstance(error, KeyError))
    async def ship(payload: Any) -> None:
        raise error

    await app.publish_many([("order.paid", n) for n in range(60)])
    async with working(app):
        await until(lambda: _dead(app, 60))


async def test_a_replay_is_not_braked(app: Redrive) -> None:
    @app.handler("order.paid", brake=True)
    async def ship(payload: Any) -> None:
        raise error[0]

    error: list[Exception] = [TerminalHandlerError("no")]
    await app.publish_many([("order.paid", n) for n in range(30)])
    await app.worker().drain()
    assert await count(app, Status.FAILED) == 30

    error[0] = KeyError("still no")
    for event in await all_events(app):
        await app.replay(event.id, by="ann", reason="try again")
    async with working(app):
        await until(lambda: _dead(app, 30))


async def test_a_brake_lets_go_by_itself_when_a_probe_succeeds(still: Redrive, clock: VirtualClock) -> None:
    broken = True

    @still.handler("order.paid")
    async def ship(payload: Any) -> None:
        if broken:
            raise KeyError("a bad deploy")

    await still.publish_many([("order.paid", n) for n in range(100)])
    await still.worker().drain()
    assert (await of(still, "brake:order.paid")).state is State.OPEN
    await run_for(still, clock, 120, step=10)
    assert await count(still, Status.FAILED) == 0
    broken = False
    await run_for(still, clock, 80, step=10)
    await run_for(still, clock, 6, step=1)

    assert await _delivered(still, 100)
    assert (await of(still, "brake:order.paid")).state is State.CLOSED


# --- holds ---


async def test_a_paused_type_waits_and_comes_back_on_resume(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None: ...

    @app.handler("mail.due")
    async def send(payload: Any) -> None: ...

    async with working(app):
        await app.hold("order.*", by="ann", reason="audit")
        await asyncio.sleep(1.0)  # the promise: a second
        held = await app.publish("order.paid", {})
        other = await app.publish("mail.due", {})
        await until(lambda: _stands(app, held.id, Status.BLOCKED))
        await until(lambda: _stands(app, other.id, Status.DELIVERED))
        assert (await the_event(app, held.id)).blocked_on == "hold:order.*"
        with pytest.raises(Refused, match="paused already, by ann"):
            await app.hold("order.*", by="bob", reason="me too")
        await app.lift("order.*", by="ann", reason="audited")
        await until(lambda: _stands(app, held.id, Status.DELIVERED))
    noted = [entry async for entry in app.store.trail() if entry.kind.startswith("hold")]
    assert [(entry.kind, entry.actor) for entry in noted] == [("hold-placed", "ann"), ("hold-lifted", "ann")]


async def test_a_paused_queue_is_not_claimed_from(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None: ...

    async with working(app, queues=("default", "slow"), poll="100ms"):
        await app.hold(queue="slow", by="ann", reason="too slow")
        await asyncio.sleep(1.0)  # the promise: a second
        held = await app.publish("order.paid", {}, queue="slow")
        other = await app.publish("order.paid", {})
        await until(lambda: _stands(app, other.id, Status.DELIVERED))
        event = await the_event(app, held.id)
        assert (event.status, event.fence) == (Status.PENDING, 0)
        await app.lift(queue="slow", by="ann", reason="go")
        await until(lambda: _stands(app, held.id, Status.DELIVERED))


@pytest.mark.parametrize("queues", [("slow",), ("slow", "slower")])
async def test_a_worker_all_of_whose_queues_are_paused_waits(queues: tuple[str, ...], app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(payload: Any) -> None: ...

    for queue in queues:
        await app.hold(queue=queue, by="ann", reason="too slow")
    held = await app.publish("order.paid", {}, queue=queues[0])
    async with working(app, queues=queues, poll="100ms"):
        await until(lambda: _knows(app, queues))
        assert (await the_event(app, held.id)).fence == 0
        for queue in queues:
            await app.lift(queue=queue, by="ann", reason="go")
        await until(lambda: _stands(app, held.id, Status.DELIVERED))


async def test_a_paused_queue_is_not_probed_from(still: Redrive, clock: VirtualClock) -> None:
    still.dependency("api", threshold=1, probe_after=1)
    ran: list[bool] = []

    @still.handler("order.paid", needs=["api"])
    async def ship(payload: Any) -> None:
        ran.append(True)
        if len(ran) == 1:
            raise ConnectionError("refused")

    await still.publish("order.paid", {})
    await still.worker().drain()
    clock.advance(2)
    await still.hold(queue="default", by="ann", reason="audit")
    await still.worker().drain()
    assert len(ran) == 1

    await still.lift(queue="default", by="ann", reason="audited")
    await still.worker().drain()
    assert await _delivered(still, 1)


# --- ordering keys ---


@pytest.mark.req("W4", "B6")
async def test_a_head_that_waits_for_a_dependency_keeps_its_place_and_the_others_behind_it(app: Redrive) -> None:
    """Two workers, and one event of each key after the other, whatever waits, probes and comes back meanwhile."""
    judged(app, "api", release_rate=5_000)
    up, ran, running = asyncio.Event(), dict[str, list[int]](), set[str]()

    @app.handler("order.paid", needs=["api"])
    async def ship(payload: Any, ctx: Context) -> None:
        key = str(ctx.ordering_key)
        assert key not in running, "one of a key at a time"
        running.add(key)
        try:
            await asyncio.sleep(0)
            if not up.is_set():
                raise DependencyUnavailable("api", "503")
            ran.setdefault(key, []).append(payload)
        finally:
            running.discard(key)

    keys = [f"order-{number}" for number in range(10)]
    ids = [(await app.publish("order.paid", n, ordering_key=key)).id for n in range(5) for key in keys]
    async with working(app, concurrency=10), working(app, concurrency=10):
        await until(lambda: _waiting(app, 50))
        heads = {(await the_event(app, each)).blocked_on for each in ids[:10]}
        others = {((event := await the_event(app, each)).blocked_on, event.fence) for each in ids[10:]}
        assert "api" in heads
        assert others == {(None, 0)}, "they stand behind their heads and were never taken"
        up.set()
        await until(lambda: _delivered(app, 50))

    assert ran == {key: [0, 1, 2, 3, 4] for key in keys}
    assert {event.attempts for event in await all_events(app)} == {1}


@pytest.mark.req("W4", "B6")
async def test_a_key_whose_head_is_held_goes_on_in_order_when_the_hold_is_lifted(
    still: Redrive, clock: VirtualClock
) -> None:
    ran: list[int] = []

    @still.handler("order.paid")
    async def ship(payload: Any) -> None:
        ran.append(payload)

    ids = [(await still.publish("order.paid", n, ordering_key="a")).id for n in range(3)]
    await still.hold("order.paid", by="ann", reason="audit")
    await still.worker().drain()
    assert [(await the_event(still, each)).blocked_on for each in ids] == ["hold:order.paid", None, None]

    await still.lift("order.paid", by="ann", reason="audited")
    clock.advance(1)
    await still.worker().drain()
    assert ran == [0, 1, 2]


async def test_a_worker_probes_with_events_of_its_own_generation_and_of_none(store_url: str) -> None:
    clock, up, ran = VirtualClock(), False, list[str]()

    async def ship(payload: str) -> None:
        if not up:
            raise ConnectionError("refused")
        ran.append(payload)

    apps = [Redrive(store_url, retry=QUICK, migrate=True, clock=clock, generation=number) for number in (1, 2)]
    for app in apps:
        app.dependency("api", threshold=1, probe_after=1)
        app.handler("order.paid", needs=["api"])(ship)
    async with apps[0] as old, apps[1] as new:
        await old.publish("order.paid", "of the old one")
        await old.worker().drain()
        clock.advance(2)
        up = True

        await new.worker().drain()
        assert ran == []
        assert (await of(new, "api")).is_shut, "what waits is not its to try"
        await old.worker().drain()
        assert ran == ["of the old one"]
        assert not (await of(new, "api")).is_shut


# --- what cannot work is refused ---


async def test_what_cannot_be_opened_closed_or_lifted_says_why(app: Redrive) -> None:
    @app.handler("order.paid", needs=["carrier-api"])
    async def ship(payload: Any) -> None: ...

    await app.worker().drain()
    with pytest.raises(Refused, match=r"no dependency is called 'carier'.*carrier-api"):
        await app.open_dependency("carier", by="ann", reason="typo")
    with pytest.raises(Refused, match="no dependency is called"):
        await app.close_dependency("carier", by="ann", reason="typo")
    with pytest.raises(Refused, match="closed already"):
        await app.close_dependency("carrier-api", by="ann", reason="why not")
    with pytest.raises(Refused, match="reason"):
        await app.open_dependency("carrier-api", by="ann", reason="  ")
    with pytest.raises(Refused, match="is not paused"):
        await app.lift("order.paid", by="ann", reason="go")
    with pytest.raises(Refused, match="say what to pause"):
        await app.hold(by="ann", reason="something")
    with pytest.raises(Refused, match="no type or queue"):
        await app.hold("*.paid", by="ann", reason="something")
    await app.hold("order.paid", by="ann", reason="audit")
    with pytest.raises(Refused, match="is a hold"):
        await app.close_dependency("hold:order.paid", by="ann", reason="wrong word")


@pytest.mark.parametrize("needs", ["carrier-api", 7, [7], [""], ["a\nb"], None])
def test_needs_that_are_no_names_are_refused(needs: Any) -> None:
    with pytest.raises(ConfigurationError):
        Redrive("sqlite:///:memory:").handler("order.paid", needs=needs)


@pytest.mark.parametrize("prefix", ["brake:", "hold:", "queue:", "throttle:"])
async def test_a_name_that_is_kept_for_our_own_is_no_dependency(app: Redrive, prefix: str) -> None:
    name = f"{prefix}0:0:default:order.paid"
    with pytest.raises(ConfigurationError, match=f"must not begin with {prefix}"):
        app.dependency(name)
    with pytest.raises(ConfigurationError, match=f"must not begin with {prefix}"):
        app.handler("order.paid", needs=[name])

    @app.handler("order.paid")
    async def ship(payload: Any) -> None:
        raise DependencyUnavailable(name)

    published = await app.publish("order.paid", {})
    async with working(app):
        await until(lambda: _dead(app, 1))

    assert (await the_event(app, published.id)).blocked_on is None


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0}, {"threshold": True}, {"threshold": 1.5}, {"window": "soon"}, {"probe_after": 0},
        {"probe_after": "1h", "probe_cap": "1m"}, {"release_rate": 0}, {"release_rate": float("nan")},
        {"errors": [7]}, {"hosts": "one.example"}, {"hosts": [7]},
    ],
)  # fmt: skip
def test_a_circuit_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Redrive("sqlite:///:memory:").dependency("carrier-api", **options)


def test_a_probe_has_the_columns_of_a_claim() -> None:
    def returned(store: str, verb: str) -> list[str]:
        names = re.findall(r"returning (.*?)(?:\n\)|\Z)", load(store, verb).text, re.DOTALL)[-1]
        names = re.sub(r"\b(?:least|greatest|case)\b.*? as (\w+)", r"\1", names, flags=re.DOTALL)  # kept within bounds
        return [name.strip().removeprefix("o.") for name in names.split(",")]

    probed = returned("sqlite", "probe")
    assert probed == returned("sqlite", "claim")[: len(probed)]  # and whether a column is odd
    assert returned("postgres", "probe") == returned("postgres", "turn")
    assert returned("sqlite", "probe") == [*returned("postgres", "probe"), "status"]
