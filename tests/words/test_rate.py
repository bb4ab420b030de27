"""Rates as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.rate import Rate


@pytest.mark.parametrize(
    ("text", "per_second", "burst", "shown"),
    [
        ("20/s", 20.0, 4, "20/s"),
        (" 1000 / s ", 1000.0, 200, "1000/s"),
        ("30/m", 0.5, 1, "30/m"),
        ("5/10s", 0.5, 1, "5/10s"),
        ("0.5/s", 0.5, 1, "0.5/s"),
        ("3600/h", 1.0, 1, "3600/h"),
        ("1/d", 1 / 86_400, 1, "1/d"),
        ("100/1h30m", 100 / 5400, 1, "100/1h30m"),
    ],
)
def test_a_rate_is_a_number_and_a_span(text: str, per_second: float, burst: int, shown: str) -> None:
    rate = Rate.parse(text)
    assert rate.per_second == pytest.approx(per_second)
    assert (rate.burst, str(rate)) == (burst, shown)


@pytest.mark.parametrize(
    "text",
    ["", "20", 20, 0.5, None, True, "0/s", "-1/s", "20/", "/s", "20/0s", "20/fortnight", "1e9/s", "2000000/s", "1/99w",
     "nan/s", "20/s/s", "²/s", "9" * 5_000 + "/s", "20 per s"],
)  # fmt: skip
def test_anything_else_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ConfigurationError, match="'20/s'"):
        Rate.parse(text)


@given(st.integers(1, 999_999), st.sampled_from("smhd"))
def test_what_is_written_is_read_back(count: int, unit: str) -> None:
    rate = Rate.parse(f"{count}/{unit}")
    assert Rate.parse(str(rate)) == rate


@given(st.text(max_size=30))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        rate = Rate.parse(text)
    except ConfigurationError:
        return
    assert rate.per_second > 0
