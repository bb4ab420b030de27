"""Cadence: when a schedule ticks, whatever the wall clocks of a zone do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.cadence import COUNTED, Cadence

SPRING = {
    "Europe/Berlin": datetime(2026, 3, 29, 1, tzinfo=UTC),
    "America/New_York": datetime(2026, 3, 8, 7, tzinfo=UTC),
}
AUTUMN = {
    "Europe/Berlin": datetime(2026, 10, 25, 1, tzinfo=UTC),
    "America/New_York": datetime(2026, 11, 1, 6, tzinfo=UTC),
}
ZONES = list(SPRING)


def local(cadence: Cadence, after: datetime, count: int) -> list[str]:
    zone = ZoneInfo(cadence.time_zone)
    return [f"{at.astimezone(zone):%d %H:%M %z}" for at in islice(cadence.after(after), count)]


@pytest.mark.parametrize("zone", ZONES)
def test_a_time_that_the_day_leaves_out_ticks_when_the_clocks_have_gone_forward(zone: str) -> None:
    change = SPRING[zone]
    ticks = list(islice(Cadence.of(cron="30 2 * * *", tz=zone).after(change - timedelta(days=1, hours=12)), 3))

    assert ticks[0] == change - timedelta(hours=23.5)  # 02:30 of the day before, an hour before 03:30 of that clock
    assert ticks[1] == change  # 02:00 is 03:00 now
    assert ticks[2] == change + timedelta(hours=23.5)


@pytest.mark.parametrize(
    ("zone", "minute", "expected"),
    [
        ("Europe/Berlin", "30 2 * * *", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
        ("America/New_York", "30 1 * * *", ["31 01:30 -0400", "01 01:30 -0400", "02 01:30 -0500"]),
    ],
)
def test_a_time_that_comes_twice_ticks_the_first_time(zone: str, minute: str, expected: list[str]) -> None:
    cadence = Cadence.of(cron=minute, tz=zone)

    assert local(cadence, AUTUMN[zone] - timedelta(days=1, hours=12), 3) == expected
    # asked between the two: the second of them is none
    assert cadence.next_after(AUTUMN[zone] + timedelta(minutes=10)) == AUTUMN[zone] + timedelta(days=1, minutes=30)


@pytest.mark.parametrize("zone", ZONES)
def test_a_line_for_every_half_hour_ticks_as_real_time_passes(zone: str) -> None:
    for change in (SPRING[zone], AUTUMN[zone]):
        ticks = list(islice(Cadence.of(cron="*/30 * * * *", tz=zone).after(change - timedelta(hours=3)), 14))
        assert {later - earlier for earlier, later in pairwise(ticks)} == {timedelta(minutes=30)}


@pytest.mark.parametrize("zone", ZONES)
def test_every_knows_nothing_of_daylight_saving(zone: str) -> None:
    for change in (SPRING[zone], AUTUMN[zone]):
        ticks = list(islice(Cadence.of(every="1h").after(change - timedelta(hours=3)), 6))
        assert ticks == [change + timedelta(hours=n) for n in range(-2, 4)]


@pytest.mark.parametrize("zone", [*ZONES, "Australia/Lord_Howe"])
def test_times_that_fall_together_after_a_gap_tick_once(zone: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = list(islice(Cadence.of(cron="0,15,30,45 0-5 * * *", tz=zone).after(start), 9_000))

    assert all(earlier < later for earlier, later in pairwise(ticks))


LINES = st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 3 * * MON", "15 */6 * * *", "0 0 L * *"])
INSTANTS = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001


@given(line=LINES, zone=st.sampled_from([*ZONES, "UTC", "Asia/Kathmandu"]), at=INSTANTS)
def test_the_next_tick_lies_ahead_and_there_is_none_between(line: str, zone: str, at: datetime) -> None:
    cadence = Cadence.of(cron=line, tz=zone)
    first, second = islice(cadence.after(at), 2)

    assert at < first < second
    assert cadence.next_after(first) == second
    assert cadence.next_after(first - timedelta(microseconds=1)) == first


@given(line=LINES, zone=st.sampled_from(ZONES), at=INSTANTS, hours=st.integers(0, 100), most=st.integers(1, 50))
def test_what_is_due_is_the_end_of_what_one_would_have_counted(
    line: str, zone: str, at: datetime, hours: int, most: int
) -> None:
    cadence = Cadence.of(cron=line, tz=zone)
    first = cadence.next_after(at)
    assert first is not None
    now = first + timedelta(hours=hours)

    kept, count = cadence.due(first, now, most)

    one_by_one = [first]
    while (tick := cadence.next_after(one_by_one[-1])) is not None and tick <= now:
        one_by_one.append(tick)
    assert (kept, count) == (one_by_one[-most:], len(one_by_one))


def test_too_many_are_not_counted_and_the_end_is_right_all_the_same() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    now = first + timedelta(days=1_000, seconds=5)

    kept, count = Cadence.of(cron="* * * * *").due(first, now, 3)
    assert kept == [now - timedelta(minutes=n, seconds=5) for n in (2, 1, 0)]
    assert count == COUNTED

    kept, count = Cadence.of(every="1s").due(first, now, 2)
    assert kept == [now - timedelta(seconds=1), now]
    assert count == 1_000 * 86_400 + 6
