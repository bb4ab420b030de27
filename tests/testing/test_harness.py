"""``redrive.testing`` as a user's test suite would use it."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
from pydantic import BaseModel

from redrive import ConfigurationError, Context, Redrive, Rejected, RetryPolicy, Status
from redrive.testing import Harness
from redrive.testing import harness as inside


class Paid(BaseModel):
    order: int
    amount: float = 1.0


def shop() -> Redrive:
    """Return an app whose database could never be opened: a harness must not need it."""
    app = Redrive("sqlite:////nowhere/at/all/shop.db")

    @app.handler("order.paid")
    async def ship(paid: Paid, ctx: Context) -> None:
        await ctx.publish("mail.requested", {"to": f"customer-{paid.order}@example.org", "lines": [1, 2]})

    @app.handler("mail.requested")
    def send(mail: dict[str, Any]) -> None:
        if mail["to"].startswith("customer-13@"):
            raise ConnectionError("mail server down")

    return app


# --- running ---


async def test_everything_due_runs_and_what_it_publishes_too() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("order.paid", {"order": 7})

        done = await h.run_due()

        assert [(attempt.type, attempt.outcome) for attempt in done] == [
            ("order.paid", "delivered"),
            ("mail.requested", "delivered"),
        ]
        assert (done.delivered, done.retried, done.dead_lettered) == (2, 0, 0)
        h.assert_delivered("order.paid")
        h.assert_nothing_pending()


async def test_a_follow_up_keeps_the_correlation_of_its_cause() -> None:
    app = shop()
    async with Harness(app) as h:
        published = await app.publish("order.paid", {"order": 7}, correlation_id="basket-1")
        await h.run_due()

        h.assert_published("mail.requested", correlation_id="basket-1", causation_id=published.id)


async def test_nothing_runs_before_its_time() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("order.paid", {"order": 7}, delay="1h")

        early = await h.advance("59m59s")
        due = await h.advance("1s")

        assert early == []
        assert due.delivered == 2


async def test_time_passes_from_due_time_to_due_time_in_order() -> None:
    app = Redrive()
    seen: list[tuple[str, datetime]] = []

    @app.handler("tick")
    async def tick(name: str) -> None:
        seen.append((name, app.clock.now()))

    async with Harness(app) as h:
        start = h.now
        for name, delay in (("late", "3h"), ("soon", "1m"), ("now", "0s"), ("after", "5h")):
            await app.publish("tick", name, delay=delay)

        await h.advance("4h")

        assert seen == [
            ("now", start),
            ("soon", start + timedelta(minutes=1)),
            ("late", start + timedelta(hours=3)),
        ]
        assert h.now == start + timedelta(hours=4)


async def test_events_of_every_queue_run() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("mail.requested", {"to": "a"}, queue="slow")
        await app.publish("mail.requested", {"to": "b"}, queue="fast")

        done = await h.run_due()

        assert done.delivered == 2


async def test_an_event_without_a_handler_is_put_back_as_a_worker_would() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("stock.counted")

        done = await h.run_due()

        assert [attempt.outcome for attempt in done] == ["unknown target"]
        with pytest.raises(AssertionError, match="the next is due in"):
            h.assert_nothing_pending()


async def test_the_same_seed_does_the_same_again_and_another_does_not() -> None:
    async def times(seed: int) -> list[tuple[Any, datetime]]:
        app = shop()
        async with Harness(app, seed=seed) as h:
            await app.publish("mail.requested", {"to": "customer-13@example.org"})
            return [(attempt.id, attempt.at) for attempt in await h.advance("1h")]

    first, again, other = await times(1), await times(1), await times(2)

    assert len(first) == 5
    assert first == again
    assert first != other


async def test_a_handler_that_publishes_its_own_type_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_MOST_ATTEMPTS", 100)
    app = Redrive()

    @app.handler("loop")
    async def loop(_payload: Any, ctx: Context) -> None:
        await ctx.publish("loop")

    async with Harness(app) as h:
        await app.publish("loop")

        with pytest.raises(ConfigurationError, match="does a handler publish its own type"):
            await h.run_due()


async def test_a_handler_cannot_turn_the_crank_that_turns_it() -> None:
    app = Redrive()

    @app.handler("a")
    async def handle(_payload: Any) -> None:
        await harness.advance("1s")

    async with Harness(app) as harness:
        await app.publish("a")

        done = await harness.run_due()

        assert isinstance(done[0].error, ConfigurationError)
        assert "call them from the test" in str(done[0].error)


# --- failing ---


@pytest.mark.req("O2", "O3")
async def test_by_default_an_event_is_tried_five_times_within_the_jittered_curve_and_then_quarantined() -> None:
    waits: list[list[float]] = []
    for seed in range(40):
        app = shop()
        async with Harness(app, seed=seed) as h:
            h.fail_next(99, ConnectionError("down"), target="mail.requested")
            await app.publish("mail.requested", {"to": "a@b"})

            done = await h.advance("1h")

            (letter,) = await h.dead_letters()
            assert [attempt.outcome for attempt in done] == ["retried"] * 4 + ["dead-lettered"]
            assert letter.attempts == letter.max_attempts == 5
            at = [attempt.at for attempt in done]
            waits.append([(b - a).total_seconds() for a, b in pairwise(at)])

    for nth, nominal in enumerate([1.0, 2.0, 4.0, 8.0]):
        column = [wait[nth] for wait in waits]
        assert 0.0 <= min(column) < 0.25 * nominal
        assert 0.75 * nominal < max(column) <= nominal


@pytest.mark.req("O3", "A1")
async def test_a_handlers_own_policy_replaces_the_default() -> None:
    app = Redrive()

    @app.handler("adjudicated", retry=RetryPolicy.quick())
    async def execute(_payload: Any) -> None:
        raise ConnectionError("down")

    async with Harness(app) as h:
        await app.publish("adjudicated")
        start = h.now

        done = await h.advance("1s")

        assert [attempt.at - start for attempt in done] == [
            timedelta(0),
            timedelta(milliseconds=25),
            timedelta(milliseconds=75),
        ]
        assert done.dead_lettered == 1


@pytest.mark.req("H2")
async def test_the_stepwise_preset_waits_base_times_two_to_the_attempts_up_to_its_cap() -> None:
    app = Redrive(retry=RetryPolicy.stepwise("5s", "60s", attempts=6))

    @app.handler("webhook")
    def receive(_payload: Any) -> None:
        raise TimeoutError("no answer")

    async with Harness(app) as h:
        await app.publish("webhook")

        done = await h.advance("1h")

        at = [attempt.at for attempt in done]
        assert [(b - a).total_seconds() for a, b in pairwise(at)] == [10, 20, 40, 60, 60]
        assert [attempt.outcome for attempt in done] == ["retried"] * 5 + ["dead-lettered"]


@pytest.mark.req("A2")
async def test_a_scheduled_retry_shows_its_key_its_attempts_and_when_it_will_run() -> None:
    app = Redrive(retry=RetryPolicy(base_delay="10s", jitter="none"))

    @app.handler("receipt")
    async def settle(_payload: Any) -> None: ...

    async with Harness(app) as h:
        h.fail_next(1, ConnectionError("down"))
        await app.publish("receipt", retry_key="receipt-9:release")

        await h.run_due()

        (event,) = await h.events("receipt")
        assert event.retry_key == "receipt-9:release"
        assert event.attempt_count == 1
        assert event.next_retry_at == h.now + timedelta(seconds=10)


async def test_injected_failures_hit_only_the_target_they_name_and_only_so_often() -> None:
    app = shop()
    async with Harness(app) as h:
        h.fail_next(2, ConnectionError("down"), target="mail.requested")
        await app.publish("order.paid", {"order": 7})

        done = await h.advance("1h")

        assert [(a.target, a.outcome, a.error and str(a.error)) for a in done] == [
            ("order.paid", "delivered", None),
            ("mail.requested", "retried", "down"),
            ("mail.requested", "retried", "down"),
            ("mail.requested", "delivered", None),
        ]


async def test_an_injected_failure_keeps_the_handler_from_running_and_is_classified_like_any_other() -> None:
    app = Redrive()
    ran = []

    @app.handler("a")
    def handle(payload: Any) -> None:
        ran.append(payload)

    async with Harness(app) as h:
        h.fail_next(1, Rejected("no such customer"))
        await app.publish("a", 1)

        done = await h.run_due()

        (letter,) = await h.dead_letters("a")
        assert ran == []
        assert done.dead_lettered == 1
        assert (letter.error_class, letter.safe_to_retry) == ("rejected", False)
        assert letter.last_error is not None
        assert "no such customer" in letter.last_error


async def test_a_payload_that_does_not_fit_is_seen_as_the_dead_letter_it_is() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("order.paid", {"order": "seven"})

        done = await h.run_due()

        assert [attempt.outcome for attempt in done] == ["dead-lettered"]
        assert "order" in str(done[0].error)


async def test_failing_a_target_that_nobody_handles_is_refused_with_those_there_are() -> None:
    async with Harness(shop()) as h:
        with pytest.raises(ConfigurationError, match=r"there are mail\.requested, order\.paid"):
            h.fail_next(target="order.payed")


@pytest.mark.req("W6")
async def test_a_dead_letter_can_be_replayed_once_the_fault_is_gone() -> None:
    app = shop()
    async with Harness(app) as h:
        h.fail_next(5, ConnectionError("down"), target="order.paid")
        await app.publish("order.paid", {"order": 7})
        await h.advance("1h")
        (letter,) = await h.dead_letters()

        untouched = await h.advance("30d")
        await app.replay(letter.id, by="alice", reason="the carrier is back")
        done = await h.run_due()

        assert untouched == []
        assert done.delivered == 2
        (event,) = h.assert_delivered("order.paid")
        assert event.failure_history[0].replayed_by == "alice"


# --- handlers that work in the database ---


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.req("O8")
async def test_a_duplicate_meets_the_transaction_of_the_first_and_has_no_second_effect(kind: str) -> None:
    app = Redrive()

    async def book(paid: dict[str, Any], ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("create table if not exists booking (n int)")
            await tx.execute("insert into booking values (?)", paid["order"])
            await tx.publish("booked", paid)

    def book_sync(paid: dict[str, Any], ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute("create table if not exists booking (n int)")
            tx.execute("insert into booking values (?)", paid["order"])
            tx.publish("booked", paid)

    app.handler("order.paid")(book if kind == "async" else book_sync)
    async with Harness(app) as h:
        for _ in range(2):
            await app.publish("order.paid", {"order": 7}, idempotency_key="order-7")

        done = await h.run_due()

        assert [a.outcome for a in done if a.target == "order.paid"] == ["delivered", "already handled"]
        h.assert_published("booked", payload={"order": 7}, times=1)
        async with app.store.transaction() as tx:
            assert await tx.fetch("select n from booking") == [(7,)]


async def test_what_a_failed_transaction_published_was_never_published() -> None:
    app = Redrive()

    @app.handler("a")
    async def handle(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.publish("b")
            raise ConnectionError("too bad")

    async with Harness(app) as h:
        await app.publish("a")
        await h.run_due()

        h.assert_published("b", times=0)


async def test_publishing_past_the_open_transaction_fails_with_advice_instead_of_waiting_for_ever() -> None:
    app = Redrive(retry=RetryPolicy(max_attempts=1))

    @app.handler("a")
    async def handle(_payload: Any, ctx: Context) -> None:
        async with ctx.transaction():
            await app.publish("b")

    async with Harness(app) as h:
        await app.publish("a")

        done = await h.run_due()

        assert "tx.publish" in str(done[0].error)
        h.assert_published("b", times=0)


# --- asserting ---


async def test_published_events_are_found_by_a_part_of_their_payload() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("order.paid", Paid(order=7, amount=9.5), subject="order/7")

        found = h.assert_published("order.paid", payload={"order": 7}, times=1)
        h.assert_published("order.paid", payload=Paid(order=7, amount=9.5))
        h.assert_published("order.paid", payload={"amount": ANY}, subject="order/7", status=Status.PENDING)
        h.assert_published("order.paid", payload={"order": 8}, times=0)
        h.assert_published("mail.requested", times=0)

        assert found[0].payload == {"order": 7, "amount": 9.5}


async def test_a_missing_publish_is_reported_with_what_was_published_instead() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("mail.requested", {"to": "b@c"})

        with pytest.raises(AssertionError) as caught:
            h.assert_published("mail.requested", payload={"to": "a@b"}, times=1)

        said = str(caught.value)
        assert 'mail.requested payload={"to": "a@b"} should have been published 1 times, and was 0 times' in said
        assert 'mail.requested  {"to": "b@c"}  pending after 0 attempts' in said


async def test_a_publish_to_two_handlers_counts_once() -> None:
    app = shop()

    @app.handler("order.paid", name="bookkeeping")
    async def book(_payload: Any) -> None: ...

    async with Harness(app) as h:
        await app.publish("order.paid", {"order": 7})

        rows = h.assert_published("order.paid", times=1)

        assert sorted(row.target for row in rows) == ["bookkeeping", "order.paid"]


async def test_an_undelivered_event_is_reported_with_its_error() -> None:
    app = shop()
    async with Harness(app) as h:
        await app.publish("mail.requested", {"to": "customer-13@example.org"})
        await h.run_due()

        with pytest.raises(AssertionError, match=r"pending after 1 attempts: .*ConnectionError: mail server down"):
            h.assert_delivered("mail.requested")
        with pytest.raises(AssertionError, match="none was published"):
            h.assert_delivered("order.paid")


async def test_a_field_that_events_do_not_have_is_named() -> None:
    async with Harness(shop()) as h:
        with pytest.raises(ConfigurationError, match="no field order"):
            h.assert_published("order.paid", order=7)


# --- the app, during and after ---


async def test_the_app_is_put_back_exactly_also_after_an_exception(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    async with app:
        before = dict(vars(app))

        with pytest.raises(ZeroDivisionError):
            async with Harness(app):
                app.handler("only.here")(lambda payload: None)
                await app.publish("only.here")
                1 / 0  # noqa: B018

        after = dict(vars(app))
        assert after == before
        assert "only.here" not in app.handlers
        assert await app.events() == []


async def test_a_harness_that_cannot_open_its_database_leaves_the_app_alone() -> None:
    app = shop()
    before = dict(vars(app))

    with pytest.raises(ConfigurationError, match="does not exist"):
        async with Harness(app, url="sqlite:////nowhere/at/all/test.db"):
            pass

    assert vars(app) == before


async def test_code_that_opens_and_closes_the_app_does_not_lose_the_events() -> None:
    app = shop()
    async with Harness(app) as h:
        async with app:
            await app.publish("order.paid", {"order": 7})

        h.assert_published("order.paid", times=1)


async def test_an_app_is_in_one_harness_at_a_time() -> None:
    app = shop()
    async with Harness(app) as h:
        with pytest.raises(ConfigurationError, match="in a Harness already"):
            async with Harness(app):
                pass

        await app.publish("order.paid", {"order": 7})
        assert (await h.run_due()).delivered == 2


async def test_code_without_an_event_loop_publishes_into_the_harness() -> None:
    app = shop()

    @app.handler("import")
    def read(_payload: Any) -> None:
        app.publish_sync("order.paid", {"order": 1})

    async with Harness(app) as h:
        app.publish_sync("order.paid", {"order": 2})
        await asyncio.to_thread(app.publish_sync, "order.paid", {"order": 3})
        await app.publish("import")

        await h.run_due()

        h.assert_published("order.paid", times=3)
        h.assert_nothing_pending()


async def test_publishing_into_a_foreign_database_is_refused_where_nobody_would_look() -> None:
    app = shop()
    async with Harness(app):
        with sqlite3.connect(":memory:") as connection, pytest.raises(ConfigurationError, match=r"url=…"):
            await app.publish_in(connection, "order.paid", {"order": 7})
        connection.close()


@pytest.mark.parametrize("way", ["once_in", "once_in_sync", "take_in", "close_in"])
async def test_a_handler_in_a_harness_in_memory_writes_nothing_into_a_real_database(sqlite_url: str, way: str) -> None:
    app = Redrive(sqlite_url)
    async with app:
        await app.publish("real", {})

    @app.handler("order.paid", retry=RetryPolicy(max_attempts=1))
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), check_same_thread=False)
        try:
            if way == "once_in":
                await ctx.once_in(connection)
            elif way == "once_in_sync":
                await asyncio.to_thread(ctx.once_in_sync, connection)
            elif way == "take_in":
                await app.reservations.take_in(connection, "seat", owner="me")
            else:
                await app.batches.close_in(connection, ctx.id)
            connection.commit()
        finally:
            connection.close()

    for _ in range(2):
        async with Harness(app) as h:
            await app.publish("order.paid", {"order": 7})
            ran = await h.run_due()
            assert (ran.dead_lettered, type(ran[0].error)) == (1, ConfigurationError)
            assert "Harness(app, url=…)" in str(ran[0].error)

    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as real:
        assert real.execute("select count(*) from redrive_event_handled").fetchone() == (0,)
        assert real.execute("select count(*) from redrive_reservation").fetchone() == (0,)
    real.close()


async def test_ids_in_a_database_of_its_own_are_new_in_each_run(tmp_path: Path) -> None:
    app, seen = Redrive("sqlite:///:memory:"), []

    @app.handler("order.paid")
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        seen.append(ctx.id)

    for name in ("one", "two"):
        async with Harness(app, url=f"sqlite:///{tmp_path / name}.db") as h:
            await app.publish("order.paid", {})
            await h.run_due()
    for _ in range(2):
        async with Harness(app) as h:
            await app.publish("order.paid", {})
            await h.run_due()

    assert len(set(seen)) == 3  # in memory nothing outlives a run, and the ids are those of the seed


async def test_on_a_database_of_its_own_the_harness_sees_what_was_published_in_a_transaction(store_url: str) -> None:
    app = shop()
    async with Harness(app, url=store_url) as h:
        connection: Any
        if store_url.startswith("sqlite"):
            connection = sqlite3.connect(store_url.removeprefix("sqlite:///"))
        else:
            connection = psycopg.connect(store_url)
        app.publish_in_sync(connection, "order.paid", {"order": 1})
        connection.rollback()
        app.publish_in_sync(connection, "order.paid", {"order": 2})
        connection.commit()
        connection.close()
        app.publish_sync("order.paid", {"order": 13})

        done = await h.advance("1h")

        h.assert_published("order.paid", payload={"order": 1}, times=0)
        h.assert_published("order.paid", payload={"order": 2}, times=1)
        assert done.dead_lettered == 1
        assert len(await h.dead_letters("mail.requested")) == 1

    with pytest.raises(ConfigurationError, match="fresh database"):
        async with Harness(app, url=store_url):
            pass


def test_a_plain_function_may_run_the_harness_by_asyncio_run() -> None:
    app = shop()

    async def scenario() -> None:
        async with Harness(app, start=datetime(2026, 2, 28, 23, 59, tzinfo=UTC)) as h:
            await app.publish("order.paid", {"order": 7}, delay="2m")
            await h.advance("2m")
            h.assert_delivered("mail.requested")
            assert h.now == datetime(2026, 3, 1, 0, 1, tzinfo=UTC)

    asyncio.run(scenario())


async def test_an_outage_passes_in_virtual_time() -> None:
    app = Redrive("sqlite:///:memory:")
    app.dependency("carrier-api", threshold=2)
    up = False

    @app.handler("order.paid", needs=["carrier-api"])
    async def ship(payload: Any) -> None:
        if not up:
            raise ConnectionError("refused")

    async with Harness(app) as h:
        for number in range(40):
            await app.publish("order.paid", number)
        ran = await h.run_due()
        assert [attempt.outcome for attempt in ran[:3]] == ["deferred", "blocked", "blocked"]
        await h.advance("10m")
        assert len(await h.events(status=Status.BLOCKED)) == 40
        up = True
        await h.advance("2m")
        h.assert_delivered("order.paid")
        assert not await h.dead_letters()


async def test_events_of_a_key_and_a_generation_come_through_an_outage_in_order() -> None:
    app = Redrive("sqlite:////nowhere/at/all/shop.db", generation=7)
    app.dependency("carrier", threshold=1, probe_after=10)
    up, shipped = False, list[int]()

    @app.handler("order.changed", needs=["carrier"])
    async def ship(number: int) -> None:
        if not up:
            raise ConnectionError("refused")
        shipped.append(number)

    async with Harness(app) as h:
        for number in range(3):
            await app.publish("order.changed", number, ordering_key="order-7")
        await h.advance("1m")
        assert {event.status for event in await h.events()} == {Status.BLOCKED}
        up = True
        await h.advance("5m")

        assert shipped == [0, 1, 2]
        h.assert_nothing_pending()


# --- schedules ---


async def test_schedules_tick_at_their_own_time_while_time_passes() -> None:
    app = Redrive("sqlite:////nowhere/at/all/shop.db")
    app.schedules.add("nightly", "report.due", {"of": "sales"}, cron="0 3 * * *", tz="Europe/Berlin")
    at: list[datetime] = []

    @app.handler("report.due")
    async def report(payload: dict[str, Any]) -> None:
        at.append(app.clock.now())

    async with Harness(app, start=datetime(2030, 3, 29, 12, tzinfo=UTC)) as h:
        ran = await h.advance("3d")  # the clocks go forward on the 31st

        assert ran.delivered == 3
        assert at == [datetime(2030, 3, day, hour, tzinfo=UTC) for day, hour in ((30, 2), (31, 1))] + [
            datetime(2030, 4, 1, 1, tzinfo=UTC)
        ]
        h.assert_published("report.due", times=3, payload={"of": "sales"})
        h.assert_nothing_pending()


async def test_a_schedule_that_is_set_in_a_harness_is_gone_after_it() -> None:
    app = Redrive("sqlite:////nowhere/at/all/shop.db")
    async with Harness(app) as h:
        await app.schedules.set("s", "report.due", every="1h", by="ann", reason="test")
        await h.advance("2h")
        assert len(await h.events("report.due")) == 2

    async with Harness(app) as h:
        await h.advance("2h")
        assert await h.events() == []
