"""Permits: never more than the rate and one batch, never more than the number at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.rate import Rate
from redrive.throttle import Throttle

START = datetime(2030, 1, 1, tzinfo=UTC)


@given(
    st.sampled_from(["20/s", "1000/s", "7/s", "30/m", "1/s", "0.5/s"]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 500)), min_size=1, max_size=60),
)
def test_in_any_span_no_more_start_than_the_rate_and_one_batch(text: str, asked: list[tuple[float, int]]) -> None:
    rate = Rate.parse(text)
    throttle = Throttle(rate=rate)
    free_at, now = START, START
    given_: list[tuple[datetime, int]] = []
    for pause, wanted in asked:
        now += timedelta(seconds=pause)
        count = min(wanted, throttle.permits(free_at, now, 0))
        free_at = throttle.given(free_at, now, count)
        given_.append((now, count))
    for first, (begin, _) in enumerate(given_):
        total = 0
        for at, count in given_[first:]:
            total += count
            assert total <= rate.per_second * (at - begin).total_seconds() + rate.burst + 0.01


@pytest.mark.parametrize(("used", "permits"), [(0, 4), (3, 1), (4, 0), (9, 0)])
def test_no_more_than_so_many_at_once(used: int, permits: int) -> None:
    assert Throttle(concurrency=4).permits(START, START, used) == permits


def test_the_narrower_limit_decides() -> None:
    throttle = Throttle(concurrency=2, rate=Rate.parse("100/s"))
    assert throttle.permits(START, START, 0) == 2
    assert throttle.permits(START + timedelta(seconds=0.19), START, 0) == 1
    assert throttle.permits(START + timedelta(seconds=1), START, 0) == 0


def test_asking_again_pays_when_it_says_so() -> None:
    throttle = Throttle(rate=Rate.parse("20/s"))
    free_at = throttle.given(START, START, throttle.permits(START, START, 0))
    pause = throttle.seconds_to_next(free_at, START)
    assert throttle.permits(free_at, START, 0) == 0
    assert throttle.permits(free_at, START + timedelta(seconds=pause), 0) == 2
