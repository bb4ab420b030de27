import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.duration import MAX_SECONDS, format_duration, parse_duration
from redrive.errors import BadDuration, ConfigurationError


@pytest.mark.req("H3")
@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("5s", 5.0),
        ("25ms", 0.025),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("1.5h", 5400.0),
        ("1m5ms", 60.005),
        (" 300s ", 300.0),
        ("7", 7.0),
        (0, 0.0),
        (2, 2.0),
        (0.25, 0.25),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_read_as_people_write_it(written: str | float | timedelta, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.req("H3")
@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "5x",
        "-5s",
        "30m1h",
        "1h1h",
        "1e3",
        "5 5",
        "nan",
        "inf",
        "\N{ARABIC-INDIC DIGIT FIVE}s",
        "5s" * 100,
        "1,5s",
        "99999999999d",
    ],
)
def test_text_that_is_no_duration_is_refused_with_what_is_accepted(written: str) -> None:
    with pytest.raises(BadDuration, match=r"'25ms', '5s', '1h30m', '2d'"):
        parse_duration(written)


@pytest.mark.parametrize(
    "given_",
    [
        -1,
        -0.001,
        math.nan,
        math.inf,
        -math.inf,
        pytest.param(10**5_000, id="huge"),
        True,
        None,
        [5],
        timedelta(seconds=-1),
    ],
)
def test_a_value_that_is_no_duration_is_refused(given_: object) -> None:
    with pytest.raises(BadDuration) as refused:
        parse_duration(given_)  # type: ignore[arg-type]

    assert isinstance(refused.value, ConfigurationError)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.0005, "0.5ms"),
        (0.025, "25ms"),
        (0.9996, "1s"),
        (1.5, "1.5s"),
        (5, "5s"),
        (59.96, "1m"),
        (90, "1m30s"),
        (3599.6, "1h"),
        (5400, "1h30m"),
        (86_399, "1d"),
        (273_600, "3d4h"),
        (-5, "-5s"),
    ],
)
def test_a_duration_is_shown_in_at_most_two_units(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


def test_a_span_without_end_is_not_shown_as_a_number() -> None:
    with pytest.raises(BadDuration):
        format_duration(math.inf)


@given(st.floats(min_value=0.001, max_value=MAX_SECONDS / 2))
def test_what_is_shown_reads_back_as_nearly_the_same(seconds: float) -> None:
    again = parse_duration(format_duration(seconds))

    assert again == pytest.approx(seconds, rel=0.06)
