"""Schedules: one event a tick, whoever works, whatever the clock does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog

from redrive import ConfigurationError, Context, PayloadRefused, Priority, Redrive, Refused
from redrive.cadence import Cadence
from redrive.clock import VirtualClock
from redrive.instant import iso
from redrive.schedule import MOST_MADE_UP, _all_due, _written
from tests.schedule.conftest import START, published, ticks, work

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
Beside = Callable[[], Redrive]


def handled(app: Redrive, type_: str = "report.due") -> list[Context]:
    seen: list[Context] = []

    @app.handler(type_)
    async def take(payload: Any, ctx: Context) -> None:
        seen.append(ctx)

    return seen


# --- ticking ---


@pytest.mark.req("E4")
async def test_a_tick_is_an_event_that_names_its_schedule_and_its_time(app: Redrive, clock: VirtualClock) -> None:
    seen = handled(app)
    app.schedules.add("nightly", "report.due", {"of": "sales"}, cron="*/10 * * * *", queue="default", subject="sales")

    await work(app)
    assert await published(app) == []
    clock.advance("10m")
    await work(app)

    (event,) = await published(app)
    assert event.payload == {"of": "sales"}
    assert event.subject == "sales"
    assert event.headers == {"schedule": "nightly", "scheduled-at": "2030-01-01T12:10:00.000000Z"}
    assert event.idempotency_key == "schedule:nightly@2030-01-01T12:10:00.000000Z"
    assert [ctx.id for ctx in seen] == [event.id]
    standing = await app.schedules.get("nightly")
    assert (standing.next_at, standing.last_at) == (NOON + timedelta(minutes=20), NOON + timedelta(minutes=10))
    assert (standing.event_count, standing.missed_count) == (1, 0)


@pytest.mark.req("E4")
async def test_any_number_of_workers_make_one_event_of_a_tick(
    app: Redrive, clock: VirtualClock, beside: Beside
) -> None:
    others = [beside() for _ in range(3)]
    for each in (app, *others):
        each.schedules.add("a", "report.due", every="1m")
        each.schedules.add("b", "report.due", cron="* * * * *")
        await each.open()
    for _ in range(10):
        clock.advance("1m")
        await asyncio.gather(*(work(each) for each in (app, *others)))
    for each in others:
        await each.close()

    wanted = [iso(NOON + timedelta(minutes=n)) for n in range(2, 11)]
    assert await ticks(app, "a") == await ticks(app, "b") == wanted


async def test_many_due_at_once_are_all_published(app: Redrive, clock: VirtualClock) -> None:
    for n in range(250):
        app.schedules.add(f"s{n}", "report.due", {"n": n}, every="1m")
    await work(app)
    clock.advance("1m")

    await work(app)

    assert sorted(event.payload["n"] for event in await published(app)) == list(range(250))
    assert {each.event_count for each in await app.schedules.ls()} == {1}


async def test_every_ticks_at_multiples_of_its_span_and_the_offset_shifts_them(app: Redrive) -> None:
    await app.schedules.set("plain", "t", every="1h", by="ann", reason="test")
    await app.schedules.set("shifted", "t", every="1h", offset="5m", by="ann", reason="test")

    assert (await app.schedules.get("plain")).next_at == NOON + timedelta(hours=1)
    assert (await app.schedules.get("shifted")).next_at == NOON + timedelta(minutes=5)


async def test_a_retry_key_leaves_out_ticks_while_the_event_before_has_not_ended(
    app: Redrive, clock: VirtualClock
) -> None:
    app.schedules.add("slow", "nobody.handles", every="1m", retry_key="slow", queue="elsewhere")
    await work(app)
    for _ in range(3):
        clock.advance("1m")
        await work(app)

    assert len(await published(app)) == 1


async def test_the_targets_are_those_of_the_app_that_declares_it(
    app: Redrive, clock: VirtualClock, beside: Beside
) -> None:
    app.schedules.add("fan", "report.due", every="1m", headers={"team": "ops"}, priority=Priority.LOW)
    handled(app)

    @app.handler("report.due", name="archive")
    async def archive(payload: Any) -> None: ...

    await work(app)
    clock.advance("1m")
    async with beside() as other:  # knows nothing of any of it
        await work(other)

    events = await published(app)
    assert {event.target for event in events} == {"report.due", "archive"}
    assert {event.idempotency_key for event in events} == {"schedule:fan@2030-01-01T12:01:00.000000Z"}
    assert {(event.headers["team"], event.priority) for event in events} == {("ops", 2)}


# --- when nobody was there ---


async def away(app: Redrive, clock: VirtualClock, catch_up: Any, span: str, **how: Any) -> list[str]:
    app.schedules.add("s", "report.due", catch_up=catch_up, **how)
    await work(app)
    clock.advance(span)
    await work(app)
    return await ticks(app, "s")


async def test_latest_makes_one_event_for_the_last_tick_and_says_how_many_were_missed(
    app: Redrive, clock: VirtualClock
) -> None:
    assert await away(app, clock, "latest", "65m", cron="*/10 * * * *") == ["2030-01-01T13:00:00.000000Z"]

    (event,) = await published(app)
    assert event.headers["missed"] == "5"
    assert (await app.schedules.get("s")).missed_count == 5
    assert (await app.schedules.get("s")).next_at == NOON + timedelta(minutes=70)


async def test_all_makes_up_for_each_in_order(app: Redrive, clock: VirtualClock) -> None:
    found = await away(app, clock, "all", "65m", cron="*/10 * * * *")

    assert found == [iso(NOON + timedelta(minutes=10 * n)) for n in range(1, 7)]
    in_order = [event.headers["scheduled-at"] for event in await published(app)]
    assert in_order == found
    assert all("missed" not in event.headers for event in await published(app))


@pytest.mark.parametrize("how", [{"every": "1s"}, {"cron": "* * * * *"}])
async def test_all_is_bounded_and_counts_the_rest(app: Redrive, clock: VirtualClock, how: Any) -> None:
    found = await away(app, clock, "all", "40m" if "every" in how else "2d", **how)

    count = 2_400 if "every" in how else 2 * 24 * 60
    events = await published(app)
    assert len(found) == MOST_MADE_UP
    assert events[0].headers["missed"] == str(count - MOST_MADE_UP)
    assert (await app.schedules.get("s")).missed_count == count - MOST_MADE_UP
    assert found[-1] <= iso(clock.now())


async def test_skip_makes_up_for_none_and_goes_on(app: Redrive, clock: VirtualClock) -> None:
    assert await away(app, clock, "skip", "65m", cron="*/10 * * * *") == []
    assert (await app.schedules.get("s")).missed_count == 6

    clock.advance("5m")
    await work(app)
    assert await ticks(app, "s") == ["2030-01-01T13:10:00.000000Z"]


async def test_a_tick_that_is_a_little_late_is_not_missed(app: Redrive, clock: VirtualClock) -> None:
    assert await away(app, clock, "skip", "600s", cron="*/10 * * * *") == ["2030-01-01T12:10:00.000000Z"]


async def test_years_of_missed_ticks_are_not_walked_through(app: Redrive, clock: VirtualClock) -> None:
    found = await away(app, clock, "latest", "3000d", cron="* * * * *", tz="Europe/Berlin")

    assert found == [iso(START + timedelta(days=3000) - timedelta(seconds=30))]


@pytest.mark.parametrize("change", ["none", "set", "resume"])
async def test_a_clock_that_is_set_back_makes_no_tick_twice(app: Redrive, clock: VirtualClock, change: str) -> None:
    await app.schedules.set("s", "report.due", every="1m", by="ann", reason="new")
    await work(app)
    clock.advance("1m")
    await work(app)

    clock.set(START)  # on SQLite the file's time goes on, on PostgreSQL the clock's is what counts
    if change == "set":
        await app.schedules.set("s", "report.due", cron="* * * * *", by="ann", reason="the same, in other words")
    if change == "resume":
        await app.schedules.pause("s", by="ann", reason="wait")
        await app.schedules.resume("s", by="ann", reason="go on")
    for _ in range(3):
        await work(app)
        clock.advance("1m")
    await work(app)

    found = await ticks(app, "s")
    assert found == [iso(NOON + timedelta(minutes=n)) for n in range(1, len(found) + 1)]
    assert len(found) in (3, 4)


async def test_a_tick_that_came_while_another_definition_was_written_does_not_come_again(
    app: Redrive, clock: VirtualClock
) -> None:
    """Who writes has read the row and the time before the tick, and is a moment late."""
    await app.schedules.set("s", "report.due", every="1m", by="ann", reason="new")
    clock.advance("1m")
    await work(app)
    ticked = (await app.schedules.get("s")).last_at

    definition = app.schedules._defined("s", "report.due", None, Cadence.of(every="20s"), "latest", {})
    async with app.store.transaction() as tx:
        await _written(tx, definition, NOON + timedelta(seconds=59), "ann")

    now = await app.schedules.get("s")
    assert (now.every_seconds, ticked) == (20.0, NOON + timedelta(minutes=1))
    assert now.next_at == NOON + timedelta(seconds=80)


async def test_a_worker_that_has_read_a_definition_publishes_nothing_of_it_when_it_was_changed_meanwhile(
    app: Redrive, clock: VirtualClock
) -> None:
    await app.schedules.set("s", "report.due", {"v": 1}, every="1m", by="ann", reason="new")
    clock.advance("1m")
    seen = [row for row in await app.store.ask("schedules_due", limit=10, apart=[]) if row["name"] is not None]
    await app.schedules.set("s", "report.due", {"v": 2}, every="1m", by="ann", reason="mended")

    late = await app.schedules._publish(app.store, _all_due(seen, set()))
    await work(app)

    assert late == 0
    assert [event.payload for event in await published(app)] == [{"v": 2}]


# --- declaring and changing ---


async def test_a_changed_declaration_is_written_when_a_worker_begins_and_only_then(
    app: Redrive, clock: VirtualClock, beside: Beside
) -> None:
    app.schedules.add("s", "report.due", {"v": 1}, every="1h")
    old = app.worker()
    await old.drain()
    async with beside() as other:
        other.schedules.add("s", "report.due", {"v": 2}, every="1h")
        await work(other)
        await old.drain()  # still there, and does not write its own again
        clock.advance("1h")
        await old.drain()

    (event,) = await published(app)
    assert event.payload == {"v": 2}
    kinds = [(e.kind, e.facts["was"] is None) async for e in app.store.trail() if e.kind.startswith("schedule")]
    assert kinds == [("schedule-set", True), ("schedule-set", False)]


async def test_a_change_of_what_is_published_leaves_the_next_tick_where_it_is(
    app: Redrive, clock: VirtualClock
) -> None:
    app.schedules.add("s", "report.due", {"v": 1}, every="1h")
    await work(app)
    clock.advance("2h")  # a tick has been missed when the new release begins

    async with Redrive(app.url, clock=clock) as other:
        other.schedules.add("s", "report.due", {"v": 2}, every="1h")
        await work(other)

    assert [event.payload for event in await published(app)] == [{"v": 2}]


async def test_a_change_of_the_times_counts_from_now(app: Redrive, clock: VirtualClock, beside: Beside) -> None:
    app.schedules.add("s", "report.due", every="1h")
    await work(app)
    clock.advance("2h")
    async with beside() as other:
        other.schedules.add("s", "report.due", cron="30 * * * *")
        await work(other)

    assert await published(app) == []
    assert (await app.schedules.get("s")).next_at == NOON + timedelta(hours=2, minutes=30)


async def test_workers_that_begin_at_once_write_a_declaration_once(app: Redrive, beside: Beside) -> None:
    others = [beside() for _ in range(4)]
    for each in others:
        each.schedules.add("s", "report.due", every="1h")
        await each.open()
    await asyncio.gather(*(work(each) for each in others))
    for each in others:
        await each.close()

    assert len([e async for e in app.store.trail() if e.kind == "schedule-set"]) == 1


async def test_a_paused_schedule_does_not_tick_and_resumes_with_the_next(app: Redrive, clock: VirtualClock) -> None:
    app.schedules.add("s", "report.due", every="1m")
    await work(app)

    await app.schedules.pause("s", by="ann", reason="migration")
    clock.advance("1h")
    await work(app)
    assert await published(app) == []
    with pytest.raises(Refused, match="paused already, by ann"):
        await app.schedules.pause("s", by="bob", reason="again")
    await app.schedules.resume("s", by="ann", reason="done")
    await work(app)
    assert await published(app) == []

    clock.advance("1m")
    await work(app)
    assert await ticks(app, "s") == [iso(NOON + timedelta(minutes=61))]
    with pytest.raises(Refused, match="is not paused"):
        await app.schedules.resume("s", by="ann", reason="done")


async def test_an_extra_run_is_an_event_of_its_own_and_on_the_trail(app: Redrive, clock: VirtualClock) -> None:
    await app.schedules.set("s", "report.due", {"v": 1}, every="1m", by="ann", reason="new")

    extra = await app.schedules.run_now("s", by="ann", reason="the report was wrong")
    clock.advance("1m")
    await work(app)

    assert len(await published(app)) == 2
    entry = [each for each in await app.trail(extra.id) if each.kind == "schedule-run"]
    assert [(each.actor, each.facts["reason"]) for each in entry] == [("ann", "the report was wrong")]


async def test_a_removed_schedule_is_gone_and_the_trail_knows_what_it_was(app: Redrive, clock: VirtualClock) -> None:
    await app.schedules.set("s", "report.due", every="1m", by="ann", reason="new")
    await app.schedules.remove("s", by="ann", reason="nobody reads it")
    clock.advance("1m")
    await work(app)

    assert await published(app) == []
    gone = [e async for e in app.store.trail() if e.kind == "schedule-removed"]
    assert [(each.facts["schedule"], each.facts["was"]["every_seconds"]) for each in gone] == [("s", 60.0)]
    with pytest.raises(Refused, match="there is no schedule 's'"):
        await app.schedules.get("s")


# --- what cannot work ---


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"cron": "0 0 31 2 *"}, "never fires"),
        ({"cron": "* * */20 * 1L"}, "never fires"),
        ({"cron": "61 * * * *"}, "the minute"),
        ({"cron": "0 25 * * *"}, "the hour"),
        ({"cron": "0 3 * * MOO"}, "the day-of-week"),
        ({"cron": "0 3 * *"}, "4 fields instead of five"),
        ({"cron": "9" * 5_000 + " * * * *"}, "a cron line is a text"),
        ({"cron": "0 3 * * *", "tz": "Europe/Berln"}, "did you mean Europe/Berlin"),
        ({"cron": "0 3 * * *", "tz": "../../etc/passwd"}, "there is no time zone"),
        ({"cron": "0 3 * * *", "tz": "Europe"}, "there is no time zone"),
        ({"cron": "0 3 * * *", "every": "1h"}, "one way"),
        ({}, "one way"),
        ({"every": "0.5s"}, "at least 1s"),
        ({"every": "soon"}, "is not a duration"),
        ({"every": "1h", "tz": "Europe/Berlin"}, "leave tz out"),
        ({"every": "1h", "offset": "1h"}, "shorter than every"),
        ({"cron": "0 3 * * *", "offset": "5m"}, "says its minutes itself"),
        ({"every": "1h", "catch_up": "some"}, "'latest', 'all' or 'skip'"),
        ({"every": "1h", "due_at": START}, "belongs to one event"),
        ({"every": "1h", "deadline": START}, "is a span"),
        ({"every": "1h", "colour": "red"}, "publish has no option colour"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_said(how: Any, said: str) -> None:
    app = Redrive("sqlite:///:memory:")

    with pytest.raises(ConfigurationError, match=said):
        app.schedules.add("s", "report.due", **how)

    app.schedules.add("s", "report.due", every="1h")  # the name is still free


@pytest.mark.parametrize("how", [{"cron": "0 0 31 2 *"}, {"cron": "0 3 * * *", "tz": "Mars/Base"}])
async def test_what_cannot_work_changes_nothing(app: Redrive, how: Any) -> None:
    before = await app.schedules.set("s", "report.due", every="1h", by="ann", reason="new")

    with pytest.raises(ConfigurationError):
        await app.schedules.set("s", "report.due", by="ann", reason="test", **how)

    assert await app.schedules.ls() == [before]


def test_a_payload_that_cannot_be_stored_is_refused_where_it_is_said() -> None:
    app = Redrive("sqlite:///:memory:")
    with pytest.raises(PayloadRefused):
        app.schedules.add("s", "report.due", {"x": float("nan")}, every="1h")


def test_a_name_can_be_declared_once() -> None:
    app = Redrive("sqlite:///:memory:")
    app.schedules.add("s", "report.due", every="1h")
    with pytest.raises(ConfigurationError, match="declared twice"):
        app.schedules.add("s", "report.due", every="2h")


async def test_a_schedule_that_this_machine_cannot_read_does_not_hold_up_the_others(
    app: Redrive, clock: VirtualClock
) -> None:
    for name in ("bad", "good"):
        await app.schedules.set(name, "report.due", cron="* * * * *", by="ann", reason="test")
    table = "redrive_schedule" if app.store.name == "sqlite" else "redrive.schedule"
    async with app.store.transaction() as tx:
        await tx.execute(f"update {table} set time_zone = 'Mars/Base', digest = 'other' where name = 'bad'")
    worker = app.worker()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            clock.advance("1m")
            await worker.drain()

    assert (await ticks(app, "bad"), len(await ticks(app, "good"))) == ([], 2)
    assert [each["schedule"] for each in logs if each["event"] == "schedule left to other workers"] == ["bad"]
