"""What operators say about policies while workers run."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from redrive import ConfigurationError, Override, Redrive, RedriveError, Refused, RetryPolicy, Status
from tests.waiting import until
from tests.worker.conftest import found, working

STUBBORN = RetryPolicy(max_attempts=50, base_delay=0.05, max_delay=0.05, jitter="none")


async def said(app: Redrive, pattern: str, **values: Any) -> Override:
    return await app.set_policy(pattern, by="ann", reason="the vendor asked", **values)


@pytest.mark.req("A8")
async def test_a_running_worker_takes_a_new_retry_policy_soon(app: Redrive) -> None:
    tries: list[float] = []

    @app.handler("order.paid", retry=STUBBORN, brake=False)
    async def ship(_: Any) -> None:
        tries.append(time.monotonic())
        raise RuntimeError("no")

    async with working(app):
        published = await app.publish("order.paid", {})
        await until(lambda: len(tries) >= 3)
        await said(app, "order.*", max_attempts=4)

        async def is_dead() -> bool:
            return (await found(app, published.id)).status is Status.FAILED

        await until(is_dead)

    dead = await found(app, published.id)
    assert dead.max_attempts == 4
    assert dead.attempts < 50


@pytest.mark.req("A8")
async def test_the_schedule_follows_the_override_and_goes_back_when_it_is_cleared(app: Redrive) -> None:
    @app.handler("order.paid", retry=RetryPolicy(base_delay="1h", max_delay="2h", jitter="none"))
    async def ship(_: Any) -> None:
        raise RuntimeError("no")

    async def waits() -> timedelta:
        published = await app.publish("order.paid", {})
        before = (await found(app, published.id)).created_at
        await app.worker().drain()
        return (await found(app, published.id)).due_at - before

    assert await waits() > timedelta(minutes=59)

    await said(app, "order.paid", base_delay="5m", max_delay="10m")
    assert timedelta(minutes=4) < await waits() < timedelta(minutes=6)

    await app.clear_policy("order.paid", by="ann", reason="the vendor is back")
    assert await waits() > timedelta(minutes=59)


@pytest.mark.req("A8", "W9")
async def test_a_timeout_set_at_run_time_holds_for_the_next_attempt_and_not_for_the_one_under_way(app: Redrive) -> None:
    begun: list[str] = []
    go_on = asyncio.Event()

    @app.handler("report.made")
    async def make(payload: str) -> None:
        begun.append(payload)
        await (go_on.wait() if payload == "first" else asyncio.sleep(30))

    async with working(app) as worker:
        first = await app.publish("report.made", "first")
        await until(lambda: begun == ["first"])
        await said(app, "report.made", timeout="100ms", max_attempts=1)
        await until(lambda: worker.options.concurrency > 0 and _timeout(worker) == 0.1)
        second = await app.publish("report.made", "second")

        async def second_failed() -> bool:
            return (await found(app, second.id)).status is Status.FAILED

        await until(second_failed)
        assert (await found(app, second.id)).error_class == "timed_out"
        assert (await found(app, first.id)).status is Status.IN_FLIGHT
        go_on.set()

        async def first_done() -> bool:
            return (await found(app, first.id)).status is Status.DELIVERED

        await until(first_done)


def _timeout(worker: Any) -> float | None:
    found: float | None = worker._handlers["report.made"].timeout
    return found


@pytest.mark.req("A8")
async def test_each_value_comes_from_the_most_specific_pattern_that_names_it(app: Redrive) -> None:
    @app.handler("order.paid", name="ship")
    async def ship(_: Any) -> None:
        raise RuntimeError("no")

    await said(app, "*", max_attempts=9, base_delay="90s", max_delay="90s", jitter="none")
    await said(app, "order.*", max_attempts=8, base_delay="50s")
    await said(app, "order.paid", max_attempts=7)
    await said(app, "ship", max_attempts=6)
    published = await app.publish("order.paid", {})
    await app.worker().drain()

    event = await found(app, published.id)
    assert event.max_attempts == 6
    assert timedelta(seconds=50) <= event.due_at - event.created_at < timedelta(seconds=90)


@pytest.mark.req("A8")
async def test_what_is_not_named_stays_and_every_change_is_on_the_trail(app: Redrive) -> None:
    await said(app, "order.*", max_attempts=8, rate="20/s")
    now = await said(app, "order.*", timeout="30s", rate="none")
    await app.clear_policy("order.*", by="bob", reason="it is over")

    assert now.values == {"max_attempts": 8, "rate": None, "timeout": 30.0}
    assert now.set_by == "ann"
    assert await app.policies() == []
    entries = [entry async for entry in app.store.trail() if entry.kind.startswith("policy")]
    assert [(entry.kind, entry.actor) for entry in entries] == [
        ("policy-set", "ann"),
        ("policy-set", "ann"),
        ("policy-cleared", "bob"),
    ]
    assert entries[1].facts["was"] == {"max_attempts": 8, "rate": "20/s"}
    assert entries[1].facts["is"] == now.values
    assert (await app.verify_trail()).sound


@pytest.mark.req("A8")
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"base_delay": "-5s"}, "base_delay"),
        ({"base_delay": -5}, "base_delay"),
        ({"base_delay": "10m", "max_delay": "5m"}, "max_delay"),
        ({"multiplier": 0.5}, "multiplier"),
        ({"jitter": "some"}, "jitter"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": "20"}, "rate"),
        ({"rate": 20}, "rate"),
        ({"colour": "red"}, "colour"),
        ({}, "say what to change"),
    ],
)
async def test_a_policy_that_cannot_work_is_refused_and_nothing_changes(
    app: Redrive, values: dict[str, Any], complaint: str
) -> None:
    await said(app, "order.*", max_attempts=8)
    before = await app.policies()

    with pytest.raises(RedriveError, match=complaint):
        await said(app, "order.*", **values)

    assert await app.policies() == before


async def test_a_change_that_contradicts_what_was_set_before_is_refused(app: Redrive) -> None:
    await said(app, "order.*", max_delay="1m")
    with pytest.raises(ConfigurationError, match="max_delay 1m must be at least base_delay 5m"):
        await said(app, "order.*", base_delay="5m")


@pytest.mark.parametrize(("by", "reason"), [("", "why"), (" ", "why"), ("ann", ""), ("ann", "\t")])
async def test_nobody_and_no_reason_change_nothing(app: Redrive, by: str, reason: str) -> None:
    with pytest.raises(Refused):
        await app.set_policy("order.*", by=by, reason=reason, max_attempts=3)
    with pytest.raises(Refused):
        await app.clear_policy("order.*", by=by, reason=reason)
    assert await app.policies() == []


@pytest.mark.parametrize("pattern", ["", "  ", "a*b", "*.paid", "x" * 256, "nul\0"])
async def test_a_pattern_that_can_match_nothing_is_refused(app: Redrive, pattern: str) -> None:
    with pytest.raises(RedriveError):
        await said(app, pattern, max_attempts=3)


async def test_clearing_what_nobody_has_set_says_what_is_set(app: Redrive) -> None:
    await said(app, "order.*", max_attempts=3)
    with pytest.raises(Refused, match=r"'mail\.\*': there is one for order\.\*"):
        await app.clear_policy("mail.*", by="ann", reason="why not")


@pytest.mark.parametrize("hostile", ["'; drop table outbox; --", "%s", "$1", "\u202e{}", "[bold]"])
async def test_hostile_patterns_and_reasons_are_data(app: Redrive, hostile: str) -> None:
    await app.set_policy(hostile, by=hostile, reason=hostile, max_attempts=3)
    (only,) = await app.policies()
    assert (only.pattern, only.set_by, only.reason) == (hostile, hostile, hostile)
    await app.clear_policy(hostile, by=hostile, reason=hostile)
    assert await app.policies() == []


async def test_two_who_set_the_same_pattern_at_once_lose_nothing(app: Redrive) -> None:
    given = {"max_attempts": 8, "timeout": 30.0, "concurrency": 4, "multiplier": 3.0, "max_delay": 600.0}
    await asyncio.gather(*(said(app, "order.*", **{name: value}) for name, value in given.items()))
    (only,) = await app.policies()
    assert only.values == given


async def test_a_base_delay_above_the_cap_of_a_handler_waits_as_long_as_the_cap(app: Redrive) -> None:
    @app.handler("order.paid", retry=RetryPolicy(base_delay="1s", max_delay="2s", jitter="none"))
    async def ship(_: Any) -> None:
        raise RuntimeError("no")

    await said(app, "order.paid", base_delay="1h")
    published = await app.publish("order.paid", {})
    await app.worker().drain()
    event = await found(app, published.id)
    assert timedelta(seconds=2) <= event.due_at - event.created_at < timedelta(minutes=1)
