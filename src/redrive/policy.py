"""Policy: whether another attempt is made, and when.

Pure: the same dice give the same delays. A policy that cannot work is refused where it is written
(``ConfigurationError``), not at the first failure.

Next: ``settle`` writes the delay down; ``classify`` knows failures that no further attempt can mend.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Self

from redrive.duration import MAX_SECONDS, format_duration, parse_duration
from redrive.errors import BadDuration, ConfigurationError

__all__ = ["RetryPolicy", "Wait"]

_MOST_ATTEMPTS = 100_000
_STEEPEST = 1_000.0
_MOST_POWERS = 64


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait before one attempt, in seconds: within which bounds, on average, and after how long in all."""

    attempt: int
    earliest: float
    latest: float
    mean: float
    total_mean: float
    total_latest: float


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """At most ``max_attempts``; after the n-th failure wait ``base_delay · multiplier^(n-1+first_power)``.

    The wait is capped at ``max_delay``, then jittered: ``"full"`` spreads it over 0…wait, a fraction ``f``
    over wait·(1±f), ``"none"`` leaves it. ``terminal_errors`` are never retried.
    """

    max_attempts: int
    base_delay: float
    multiplier: float
    max_delay: float
    jitter: Literal["full", "none"] | float
    terminal_errors: tuple[type[BaseException], ...]
    first_power: int

    def __init__(
        self,
        max_attempts: int = 5,
        base_delay: float | str | timedelta = 1.0,
        multiplier: float = 2.0,
        max_delay: float | str | timedelta = "5m",
        jitter: Literal["full", "none"] | float = "full",
        terminal_errors: Iterable[type[BaseException]] = (),
        first_power: int = 0,
    ) -> None:
        base, cap = _duration("base_delay", base_delay), _duration("max_delay", max_delay)
        if cap < base:
            raise ConfigurationError(
                f"max_delay {format_duration(cap)} must be at least base_delay {format_duration(base)}; "
                "raise the one or lower the other"
            )
        checked = {
            "max_attempts": _whole("max_attempts", max_attempts, 1, _MOST_ATTEMPTS),
            "base_delay": base,
            "multiplier": _number("multiplier", multiplier, 1.0, _STEEPEST),
            "max_delay": cap,
            "jitter": jitter
            if jitter in ("full", "none")
            else _number("jitter", jitter, 0.0, 1.0, "'full', 'none' or "),
            "terminal_errors": _exception_types(terminal_errors),
            "first_power": _whole("first_power", first_power, 0, _MOST_POWERS),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def should_retry(self, attempts: int) -> bool:
        """Say whether another attempt is due after so many."""
        return attempts < self.max_attempts

    def delay_for(self, attempt: int, dice: Callable[[], float]) -> float:
        """Return the seconds to wait after the ``attempt``-th failure (counted from 1)."""
        delay = self._nominal(attempt)
        if self.jitter == "none":
            return delay
        if self.jitter == "full":
            return delay * dice()
        return delay * (1.0 + self.jitter * (2.0 * dice() - 1.0))

    def schedule(self, dice: Callable[[], float] | None = None) -> list[float]:
        """Return every wait of this policy in order; without dice, before jitter."""
        attempts = range(1, self.max_attempts)
        if dice is None:
            return [self._nominal(attempt) for attempt in attempts]
        return [self.delay_for(attempt, dice) for attempt in attempts]

    def waits(self) -> Iterator[Wait]:
        """Foretell the wait before every attempt but the first; the time that attempts take comes on top."""
        mean_sum = latest_sum = 0.0
        for failed in range(1, self.max_attempts):
            earliest, latest = self.delay_for(failed, lambda: 0.0), self.delay_for(failed, lambda: 1.0)
            mean = (earliest + latest) / 2
            mean_sum, latest_sum = mean_sum + mean, latest_sum + latest
            yield Wait(failed + 1, earliest, latest, mean, mean_sum, latest_sum)

    def _nominal(self, attempt: int) -> float:
        if self.base_delay == 0.0:
            return 0.0
        power = max(attempt, 1) - 1 + self.first_power
        try:
            return min(self.base_delay * self.multiplier**power, self.max_delay)
        except OverflowError:
            return self.max_delay

    @classmethod
    def standard(cls) -> Self:
        """5 attempts, from 1 s doubling to 5 min, full jitter: the default."""
        return cls()

    @classmethod
    def quick(cls) -> Self:
        """3 attempts, from 25 ms doubling, no jitter: for work next door."""
        return cls(max_attempts=3, base_delay="25ms", jitter="none")

    @classmethod
    def patient(cls) -> Self:
        """3 attempts, from 5 min doubling to 1 h, ±20 %: for systems that recover slowly."""
        return cls(max_attempts=3, base_delay="5m", max_delay="60m", jitter=0.2)

    @classmethod
    def stepwise(
        cls, base: float | str | timedelta = "5s", cap: float | str | timedelta = "300s", attempts: int = 5
    ) -> Self:
        """Wait exactly ``base · 2^n`` after the n-th failure, up to the cap: 10 s, 20 s, 40 s, 80 s."""
        return cls(max_attempts=attempts, base_delay=base, max_delay=cap, jitter="none", first_power=1)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read ``RETRY_BASE_DELAY``, ``RETRY_MAX_DELAY`` and ``MAX_ATTEMPTS``; the rest is ``stepwise``."""
        base = _env_duration(environ, "RETRY_BASE_DELAY", "5s")
        cap = _env_duration(environ, "RETRY_MAX_DELAY", "300s")
        attempts = environ.get("MAX_ATTEMPTS", "5").strip()
        if not re.fullmatch("[0-9]{1,6}", attempts) or not 1 <= int(attempts) <= _MOST_ATTEMPTS:
            raise ConfigurationError(
                f"MAX_ATTEMPTS={attempts[:64]!r} is not a whole number from 1 to {_MOST_ATTEMPTS}, like '5'"
            )
        if cap < base:
            raise ConfigurationError(
                f"RETRY_MAX_DELAY={format_duration(cap)!r} must be at least RETRY_BASE_DELAY={format_duration(base)!r}"
            )
        return cls.stepwise(base, cap, int(attempts))


def _env_duration(environ: Mapping[str, str], name: str, default: str) -> float:
    try:
        return parse_duration(environ.get(name, default))
    except BadDuration as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _duration(field: str, value: float | str | timedelta) -> float:
    try:
        return parse_duration(value)
    except BadDuration as error:
        raise ConfigurationError(f"{field}: {error}") from None


def _whole(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise ConfigurationError(f"{field} must be a whole number from {low} to {high}, not {_shown(value)}")


def _number(field: str, value: object, low: float, high: float, or_else: str = "") -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise ConfigurationError(f"{field} must be {or_else}a number from {low:g} to {high:g}, not {_shown(value)}")


def _exception_types(given: object) -> tuple[type[BaseException], ...]:
    types = (given,) if isinstance(given, type) else tuple(given) if isinstance(given, Iterable) else (given,)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigurationError(f"terminal_errors must be exception classes, not {_shown(each)}")
    return types


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_SECONDS:  # repr() of a huge int raises
        return "a number this large"
    return repr(value)[:64]
