"""Repeat: whether a handler does the same when it runs again.

Delivery is at least once, so sooner or later a worker dies after the handler has done its work and before that was
written down, or a publisher publishes twice. Here all of that happens, one thing at a time, on a fresh store each; what
the handler left behind must be the same as after one plain run.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from redrive.app import Redrive
from redrive.errors import ConfigurationError
from redrive.event import Options, Status
from redrive.testing.harness import Harness

__all__ = ["Repeated", "Trial", "check_idempotent"]

_MOST_POINTS: Final = 25
_LONG_ENOUGH: Final = "1d"
_SHOWN: Final = 500
_KEY: Final = "check-idempotent"
_ALWAYS: Final = 1_000_000

Observe = Callable[[], Any]
Reset = Callable[[], Any]
Draft = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was let happen, and what was seen afterwards."""

    what: str
    seen: Any
    is_same: bool
    runs: int
    """How often handlers were run for it."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """What came of all trials; ``plain`` is what one run without trouble leaves behind."""

    type: str
    plain: Any
    trials: Sequence[Trial]

    @property
    def is_idempotent(self) -> bool:
        return all(trial.is_same for trial in self.trials)

    def check(self) -> None:
        """Raise an ``AssertionError`` that says what happened when it was not the same."""
        if not self.is_idempotent:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        odd = [trial for trial in self.trials if not trial.is_same]
        if not odd:
            return f"{self.type} is idempotent: the same after {len(self.trials)} kinds of trouble"
        lines = [f"{self.type} is not idempotent. One plain run leaves {_short(self.plain)}, but when"]
        lines += [f"  {trial.what}, it is {_short(trial.seen)}" for trial in odd]
        lines.append(
            "Do the work in `ctx.transaction()`, or make it harmless to repeat: docs/how-to/idempotent-handlers.md"
        )
        return "\n".join(lines)


async def check_idempotent(
    app: Redrive, type_: str, payload: Any = None, *, observe: Observe, reset: Reset | None = None,
    before: Sequence[Draft] = (), beside: Sequence[Draft] = (), **options: Unpack[Options],
) -> Repeated:  # fmt: skip
    """Run the handlers of an event through everything that makes them run twice; say whether that made a difference.

    ``observe`` returns what they leave behind, as a value that can be compared: rows, or calls that a fake has counted.
    It is called after each trial, while the app is open, and may be async. ``reset`` puts the world outside the app
    back before each. ``before``: events, as ``(type, payload)``, that have been handled by then; ``beside``: others
    that are handled at the same time, in either order.

    ``.check()`` of the answer raises an ``AssertionError`` that says what went wrong.
    """
    world = _World(app, (type_, payload), options, observe, reset, before, beside)
    plain, awaits = await world.plain()
    trials = [await world.trial(plain, "it is published twice with one idempotency key", copies=2)]
    for target, number in awaits.items():
        whose = "" if len(awaits) == 1 else f" ({target})"
        trials += [
            await world.trial(plain, f"the worker dies after await {at} of {number}{whose}", _Trouble(target, at))
            for at in _points(number)
        ]
        trials.append(await world.trial(plain, f"the worker dies at the end of the handler{whose}", _Trouble(target)))
        what = f"it fails at its end until it is a dead letter, and is replayed{whose}"
        trials.append(await world.trial(plain, what, _Trouble(target, fails=True)))
    if beside:
        trials.append(await world.trial(plain, "the others come first", turned=True))
    return Repeated(type_, plain, trials)


def _points(awaits: int) -> list[int]:
    """Choose where to crash: everywhere, or evenly when that is too much."""
    if awaits <= _MOST_POINTS:
        return list(range(1, awaits + 1))
    return sorted({1 + round(n * (awaits - 1) / (_MOST_POINTS - 1)) for n in range(_MOST_POINTS)})


@dataclass(frozen=True, slots=True)
class _Trouble:
    target: str
    after_awaits: int | None = None
    fails: bool = False

    def begin(self, h: Harness) -> None:
        if self.fails:
            h.fail_next(_ALWAYS, Exception("trouble at the end"), target=self.target, at_end=True)
        else:
            h.crash_next(target=self.target, after_awaits=self.after_awaits)


@dataclass(frozen=True, slots=True)
class _World:
    app: Redrive
    event: Draft
    options: Options
    observe: Observe
    reset: Reset | None
    before: Sequence[Draft]
    beside: Sequence[Draft]

    async def plain(self) -> tuple[Any, dict[str, int]]:
        """Run it once without any trouble; return what is seen, and how often each of its handlers waits."""
        targets = [name for name, handler in self.app.handlers.items() if self.event[0] in handler.types]
        if not targets:
            raise ConfigurationError(f"nobody handles {self.event[0]}: name the type of an event that has a handler")
        async with await self._fresh() as h:
            counted = h.count_awaits()
            await self._published(h)
            await h.advance(_LONG_ENOUGH)
            for event in await h.events(self.event[0]):
                if event.status is not Status.DELIVERED:
                    message = f"{event.target} is not delivered even without trouble, so there is nothing to compare"
                    raise ConfigurationError(f"{message}: it is {event.status}, {event.last_error}")
            return await _value(self.observe()), {target: counted.get(target, 0) for target in targets}

    async def trial(
        self, plain: Any, what: str, trouble: _Trouble | None = None, *, copies: int = 1, turned: bool = False
    ) -> Trial:  # fmt: skip
        async with await self._fresh() as h:
            await self._published(h, trouble, copies=copies, turned=turned)
            ran = await h.advance(_LONG_ENOUGH)
            h.heal()
            for letter in await h.dead_letters():
                await self.app.replay(letter.id, by="check_idempotent", reason="the trouble is over")
            ran += await h.advance(_LONG_ENOUGH)
            seen = await _value(self.observe())
        return Trial(what, seen, bool(seen == plain), len(ran))

    async def _fresh(self) -> Harness:
        if self.reset is not None:
            await _value(self.reset())
        return Harness(self.app)

    async def _published(
        self, h: Harness, trouble: _Trouble | None = None, *, copies: int = 1, turned: bool = False
    ) -> None:
        for type_, payload in self.before:
            await self.app.publish(type_, payload)
        await h.advance(_LONG_ENOUGH)
        if trouble is not None:
            trouble.begin(h)
        options: Options = {"idempotency_key": _KEY, **self.options}
        mine = [(*self.event, options)] * copies
        others: list[tuple[str, Any, Options]] = [(*each, {}) for each in self.beside]
        for type_, payload, said in [*others, *mine] if turned else [*mine, *others]:
            await self.app.publish(type_, payload, **said)


async def _value(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
