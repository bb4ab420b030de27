import random
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.policy import RetryPolicy

ATTEMPTS = st.integers(min_value=1, max_value=10_000)
SEEDS = st.integers(min_value=0, max_value=2**32)


@pytest.mark.req("O2", "O3")
def test_the_default_is_five_attempts_doubling_from_one_second_to_five_minutes() -> None:
    policy = RetryPolicy()

    assert policy == RetryPolicy.standard()
    assert policy.max_attempts == 5
    assert policy.schedule() == [1.0, 2.0, 4.0, 8.0]
    assert policy.max_delay == 300.0
    assert policy.jitter == "full"
    assert [policy.should_retry(n) for n in range(7)] == [True] * 5 + [False] * 2


@pytest.mark.req("O2")
@given(ATTEMPTS, SEEDS)
def test_full_jitter_stays_between_nothing_and_the_capped_delay(attempt: int, seed: int) -> None:
    policy = RetryPolicy()

    delay = policy.delay_for(attempt, random.Random(seed).random)

    assert 0.0 <= delay < min(2.0 ** min(attempt - 1, 20), 300.0)


@pytest.mark.req("O2")
def test_full_jitter_reaches_the_whole_span_on_every_attempt() -> None:
    policy = RetryPolicy()

    for attempt, nominal in enumerate(policy.schedule(), start=1):
        assert policy.delay_for(attempt, lambda: 0.0) == 0.0
        assert policy.delay_for(attempt, lambda: 0.5) == nominal / 2


def test_the_same_dice_give_the_same_delays() -> None:
    policy = RetryPolicy(max_attempts=50)

    assert policy.schedule(random.Random(3).random) == policy.schedule(random.Random(3).random)
    assert policy.schedule(random.Random(3).random) != policy.schedule(random.Random(4).random)


@given(ATTEMPTS, SEEDS, st.floats(min_value=0.0, max_value=1.0))
def test_a_fraction_spreads_the_delay_to_both_sides_and_no_further(attempt: int, seed: int, fraction: float) -> None:
    policy = RetryPolicy(jitter=fraction, max_delay="1h")
    nominal = min(2.0 ** min(attempt - 1, 20), 3600.0)

    delay = policy.delay_for(attempt, random.Random(seed).random)

    assert nominal * (1 - fraction) * 0.999_999 <= delay <= nominal * (1 + fraction) * 1.000_001
    assert delay <= policy.max_delay * (1 + fraction)


@given(ATTEMPTS, st.floats(min_value=1.0, max_value=1_000.0), st.integers(min_value=0, max_value=64))
def test_delays_never_fall_and_never_overflow(attempt: int, multiplier: float, first_power: int) -> None:
    policy = RetryPolicy(multiplier=multiplier, jitter="none", first_power=first_power)

    now, later = (policy.delay_for(n, random.random) for n in (attempt, attempt + 1))

    assert 0.0 < now <= later <= policy.max_delay


@pytest.mark.req("A1")
def test_quick_makes_three_attempts_from_25_milliseconds() -> None:
    policy = RetryPolicy.quick()

    assert policy.schedule() == [0.025, 0.05]
    assert [policy.delay_for(n, random.random) for n in (1, 2)] == [0.025, 0.05]
    assert (policy.should_retry(2), policy.should_retry(3)) == (True, False)


@pytest.mark.req("E5")
def test_patient_makes_three_attempts_from_five_minutes_within_a_fifth() -> None:
    policy = RetryPolicy.patient()

    assert policy.schedule() == [300.0, 600.0]
    assert policy.delay_for(1, lambda: 0.0) == pytest.approx(240.0)
    assert policy.delay_for(1, lambda: 1.0) == pytest.approx(360.0)
    assert policy.delay_for(9, lambda: 0.5) == pytest.approx(3600.0)
    assert (policy.should_retry(2), policy.should_retry(3)) == (True, False)


@pytest.mark.req("H2")
def test_stepwise_waits_base_times_two_to_the_attempts_up_to_the_cap() -> None:
    policy = RetryPolicy.stepwise()

    assert policy.schedule() == [10.0, 20.0, 40.0, 80.0]
    assert [policy.delay_for(n, random.random) for n in (5, 6, 7)] == [160.0, 300.0, 300.0]
    assert (policy.should_retry(4), policy.should_retry(5)) == (True, False)


@pytest.mark.req("H3")
def test_an_empty_environment_gives_the_documented_figures() -> None:
    assert RetryPolicy.from_env({}) == RetryPolicy.stepwise("5s", "300s", 5)


@pytest.mark.req("H3")
def test_the_environment_sets_base_cap_and_attempts() -> None:
    environ = {"RETRY_BASE_DELAY": "2s", "RETRY_MAX_DELAY": "1m", "MAX_ATTEMPTS": "7", "PATH": "/bin"}

    policy = RetryPolicy.from_env(environ)

    assert policy.schedule() == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@pytest.mark.req("H3")
@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("RETRY_BASE_DELAY", "five", "'5s'"),
        ("RETRY_BASE_DELAY", "", "'5s'"),
        ("RETRY_MAX_DELAY", "-300s", "'5s'"),
        ("RETRY_MAX_DELAY", "1s", "at least RETRY_BASE_DELAY='5s'"),
        ("MAX_ATTEMPTS", "0", "from 1 to"),
        ("MAX_ATTEMPTS", "2.5", "from 1 to"),
        ("MAX_ATTEMPTS", "many", "from 1 to"),
    ],
)
def test_a_bad_environment_is_refused_by_name_value_and_accepted_form(name: str, value: str, accepted: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy.from_env({name: value})

    message = str(refused.value)
    assert name in message
    assert repr(value) in message
    assert accepted in message


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_attempts", 0, "1 to"),
        ("max_attempts", True, "1 to"),
        ("max_attempts", 2.0, "1 to"),
        pytest.param("max_attempts", 10**5_000, "1 to", id="huge"),
        ("base_delay", "soon", "'5s'"),
        ("base_delay", -1, "'5s'"),
        ("max_delay", float("inf"), "'5s'"),
        ("max_delay", "0.5s", "at least base_delay"),
        ("multiplier", 0.5, "1 to 1000"),
        ("multiplier", float("nan"), "1 to 1000"),
        ("jitter", "some", "'full', 'none' or a number from 0 to 1"),
        ("jitter", 1.5, "'full', 'none' or a number from 0 to 1"),
        ("jitter", True, "'full', 'none' or a number from 0 to 1"),
        ("terminal_errors", (ValueError, "KeyError"), "exception classes"),
        ("terminal_errors", (int,), "exception classes"),
        ("first_power", -1, "0 to 64"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_by_field_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(**{field: value})

    assert field in str(refused.value)
    assert allowed in str(refused.value)


@pytest.mark.req("O3")
def test_durations_may_be_written_in_any_form_and_are_kept_in_seconds() -> None:
    policy = RetryPolicy(base_delay="500ms", max_delay=timedelta(minutes=1), terminal_errors=[KeyError])

    assert (policy.base_delay, policy.max_delay) == (0.5, 60.0)
    assert policy.terminal_errors == (KeyError,)
    assert hash(policy) == hash(replace(policy))
    assert replace(policy, max_attempts=9).max_attempts == 9


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RetryPolicy().max_attempts = 6  # type: ignore[misc]


def test_no_delay_at_all_is_a_policy_too() -> None:
    assert RetryPolicy(base_delay=0).schedule(lambda: 0.9) == [0.0] * 4
