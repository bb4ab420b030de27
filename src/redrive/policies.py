"""Policies: a worker's handlers, under what operators have said about them.

What somebody changes in the database holds here some seconds later, without a restart; an attempt under way keeps its
time limit. What cannot be used, because it was written past us, leaves the handler's own word.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from redrive import override
from redrive.clock import Clock
from redrive.deliver import Handler
from redrive.errors import ConfigurationError
from redrive.logs import log
from redrive.policy import RetryPolicy
from redrive.store.base import Store
from redrive.throttle import Throttle

_SECONDS: Final = 2.0


class Policies:
    """Those of one worker; ``handlers`` is the same mapping all the time."""

    def __init__(self, store: Store, clock: Clock, handlers: Mapping[str, Handler], retry: RetryPolicy) -> None:
        self.handlers = dict(handlers)
        self._store = store
        self._clock = clock
        self._registered = handlers
        self._retry = retry
        self._version = 0
        self._at = 0.0

    @property
    def pause(self) -> float:
        """In how many seconds to read again."""
        return max(0.0, self._at - self._clock.monotonic())

    async def read(self, by: str) -> dict[str, Throttle] | None:
        """Take in what has changed; return the limits of all targets that have some, or nothing if all is as it was."""
        self._at = self._clock.monotonic() + _SECONDS * (0.75 + 0.5 * self._clock.random())
        news = await override.news(self._store, self._version)
        if news is None:
            return None
        self._version, overrides = news
        for target, handler in self._registered.items():
            self.handlers[target] = _under(handler, self._retry, overrides)
        throttles = {
            target: Throttle(handler.concurrency, handler.rate)
            for target, handler in self.handlers.items()
            if handler.concurrency is not None or handler.rate is not None or handler.isolation is not None
        }
        if overrides:
            log.info("policies read", worker=by, overrides=len(overrides), throttled=len(throttles))
        return throttles


def _under(handler: Handler, retry: RetryPolicy, overrides: list[override.Override]) -> Handler:
    """Put what operators say in the place of what a handler says."""
    said = override.matching(overrides, handler.types, handler.target)
    if not said:
        return handler
    terms = override.Terms(handler.retry or retry, handler.timeout, handler.concurrency, handler.rate)
    try:
        terms = override.under(terms, said)
    except (ConfigurationError, TypeError) as error:
        log.error("policy cannot be used", target=handler.target, pattern=said[-1].pattern, error=str(error)[:500])
        return handler
    return replace(
        handler, retry=terms.retry, timeout=terms.timeout, concurrency=terms.concurrency, rate=terms.rate,
        is_limited=terms.timeout is not None or handler.deadline is not None,
    )  # fmt: skip
