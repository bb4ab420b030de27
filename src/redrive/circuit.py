"""Circuits: what one worker knows of the dependencies, and what it has to tell the others.

Before a handler runs, ``gate`` says what its event would have to wait for. After it has run, ``passed`` or ``failed``
counts; a counter a target is all that a success costs. Now and then the worker brings its counts to the database and
reads what the others have found (``exchange``): nobody is more than a tick behind, and what a worker sees itself it
acts on at once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from redrive import dependency
from redrive.classify import leaves, matches
from redrive.clock import Clock
from redrive.deliver import Handler
from redrive.dependency import DEFAULT, Circuit, Dependency, Kind, News, State, brake_of
from redrive.errors import DependencyDegraded, DependencyUnavailable, LockHeld, StoreUnavailable
from redrive.event import ErrorClass
from redrive.logs import log
from redrive.store.base import CYCLE, ID, TARGET, TYPE, Row, Store

_RENEW_SECONDS: Final = 10.0
_FORGET_SECONDS: Final = 60.0
_LOOK_SHARE: Final = 20.0
_LONG_LOOK: Final = 0.02
_HELD_SECONDS: Final = 2.0
_NOTHING: Final[frozenset[str]] = frozenset()
# Failures that say that something does not work, as opposed to: this event cannot be done (yet).
_OUTAGE_LIKE: Final = frozenset(
    (
        ErrorClass.BROKEN.value,
        ErrorClass.TIMED_OUT.value,
        ErrorClass.DEPENDENCY_UNAVAILABLE.value,
        ErrorClass.DEPENDENCY_DEGRADED.value,
    )
)


@dataclass(slots=True)
class _Streak:
    """What has been seen of one dependency and not been told yet; ``told`` is being written right now."""

    failed: int = 0
    in_a_row: int = 0
    passed: bool = False
    is_degraded: bool = False
    declared_seen: int = 0
    named_seen: int = 0
    events: dict[Any, float] = field(default_factory=dict)
    told: News | None = None

    def begin_telling(self) -> News:
        """Set the counts aside while they are written: failures meanwhile add to them."""
        self.told = News(self.failed, int(self.passed), self.in_a_row, self.is_degraded)
        self.failed, self.in_a_row, self.passed = 0, 0, False
        return self.told

    def take_back(self) -> None:
        """Count again what could not be written."""
        assert self.told is not None
        self.failed += self.told.failed
        if not self.passed:
            self.in_a_row, self.passed = self.in_a_row + self.told.in_a_row, bool(self.told.passed)
        self.told = None


@dataclass(slots=True)
class _Probe:
    name: str
    since: float
    ok: bool | None = None
    over: bool = False


class Circuits:
    """One worker's view."""

    def __init__(
        self, store: Store, clock: Clock, handlers: Mapping[str, Handler], rules: Mapping[str, Circuit]
    ) -> None:
        self.held_queues: frozenset[str] = _NOTHING
        self.news = asyncio.Event()
        self._store = store
        self._clock = clock
        self._handlers = handlers
        self._rules = rules
        self._users: dict[str, list[str]] = {}
        for handler in handlers.values():
            for name in handler.needs:
                self._users.setdefault(name, []).append(handler.target)
        self._named: dict[str, set[str]] = {}
        self._known: dict[str, Dependency] = {}
        self._shut: dict[str, State] = {}
        self._holds: dict[str, str | None] = {}
        self._delivered: dict[str, int] = defaultdict(int)
        self._stumbled: dict[str, int] = defaultdict(int)
        self._told: dict[str, tuple[float, int, int]] = {}
        self._streaks: dict[str, _Streak] = {}
        self._probes: dict[Any, _Probe] = {}
        self._waited_for: dict[str, datetime] = {}
        self._held_until: dict[str, float] = {}  # rows that somebody else's transaction has locked
        self._look_at = 0.0

    # Before a handler runs

    def gate(self, handler: Handler, row: Row) -> str | None:
        """Say what this event has to wait for, if anything."""
        if not self._shut:
            return None
        tried = self._probes[row[ID]].name if row[ID] in self._probes else None
        for name in self._gates(handler, row):
            state = self._shut.get(name)
            if state is None or name == tried:
                continue
            if state is State.DEGRADED and handler.degraded == "proceed":
                continue
            return name
        return None

    def _gates(self, handler: Handler, row: Row) -> Iterable[str]:
        hold = self._hold_on(row[TYPE])
        if hold is not None:
            yield hold
        yield from handler.needs
        if handler.brake and row[CYCLE] == 0:
            yield brake_of(row[TARGET])

    def _hold_on(self, type_: str) -> str | None:
        if type_ not in self._holds:
            names = (name for name in self._shut if name.startswith(dependency.HOLD))
            self._holds[type_] = next((name for name in names if dependency.held_type(name, type_)), None)
        return self._holds[type_]

    def degraded(self, handler: Handler) -> frozenset[str]:
        """Say which of a handler's dependencies work only in a reduced mode."""
        if not self._shut or handler.degraded != "proceed":
            return _NOTHING
        return frozenset(name for name in handler.needs if self._shut.get(name) is State.DEGRADED)

    # After it has run

    def passed(self, row: Row) -> None:
        """Count a success."""
        self._delivered[row[TARGET]] += 1
        if self._probes:
            self._conclude(row, None, ok=True)

    @property
    def is_probing(self) -> bool:
        """Whether there is a probe of which the others have not been told the end."""
        return bool(self._probes)

    def let_go(self, row: Row) -> None:
        """Note that an attempt proves nothing of what it probed: handed back, blocked elsewhere, failed for good."""
        if row[ID] in self._probes:
            probe = self._probes[row[ID]]
            if not probe.over:
                probe.over = True
                self.news.set()

    def blamed(self, handler: Handler, error: BaseException, *, is_outside: bool) -> str | None:
        """Say which dependency an exception speaks of.

        One that it names; else one that declares it by its ``errors`` or ``hosts``; else the only need of the handler,
        if something outside did not answer, and the need does not say otherwise.
        """
        for each in leaves(error):
            if isinstance(each, DependencyUnavailable | DependencyDegraded) and dependency.is_name(each.dependency):
                return each.dependency
        if not handler.needs or any(isinstance(each, StoreUnavailable) for each in leaves(error)):
            return None
        for name in handler.needs:
            if self._declares(name, error):
                return name
        if len(handler.needs) > 1 or not is_outside:
            return None
        rules = self._rules.get(handler.needs[0], DEFAULT)
        of_another = bool(rules.hosts) and any(_host_of(each) for each in leaves(error))
        return None if rules.errors or of_another else handler.needs[0]

    def _declares(self, name: str, error: BaseException) -> bool:
        rules = self._rules.get(name, DEFAULT)
        if rules.errors and any(matches(type(each), kind) for each in leaves(error) for kind in rules.errors):
            return True
        return bool(rules.hosts) and any(_host_of(each) in rules.hosts for each in leaves(error))

    def failed(self, name: str, row: Row, error: BaseException) -> tuple[bool, bool]:
        """Count a failure of a dependency; say whether it was shut before, and whether it is now."""
        is_degraded = isinstance(error, DependencyDegraded)
        if self._conclude(row, name, ok=False) or name in self._shut:
            return True, True
        target = row[TARGET]
        if target not in self._users.get(name, ()):
            self._named.setdefault(name, set()).add(target)
        streak = self._streaks.setdefault(name, _Streak())
        self._end_row(name, streak)
        now = self._clock.monotonic()
        streak.events = {each: at for each, at in streak.events.items() if now - at < _FORGET_SECONDS}
        streak.events[row[ID]] = now
        streak.failed += 1
        streak.in_a_row += 1
        streak.is_degraded = is_degraded
        if not self._is_too_much(name, streak):
            return False, False
        self._shut[name] = State.DEGRADED if is_degraded else State.OPEN  # until the others have been told
        self.news.set()
        return False, True

    def _is_too_much(self, name: str, streak: _Streak) -> bool:
        """Say whether the failures in a row open it: those that are known, those being told and those of our own."""
        rules, known = self._rules.get(name, DEFAULT), self._known.get(name)
        before = 0 if known is None else dependency.failures_in_a_row(known, rules)
        if streak.told is not None:
            before = streak.told.in_a_row if streak.told.passed else before + streak.told.failed
        return streak.in_a_row > 0 and (0 if streak.passed else before) + streak.in_a_row >= rules.threshold

    def _end_row(self, name: str, streak: _Streak) -> None:
        """Forget a row of failures when somebody has passed meanwhile.

        A delivery by a handler that declares the need proves that it works. One that only names it in an exception may
        not have called it at all: its deliveries count only while a single event fails.
        """
        declared = sum(self._delivered[target] for target in self._users.get(name, ()))
        named = sum(self._delivered[target] for target in self._named.get(name, ()))
        if declared > streak.declared_seen or (named > streak.named_seen and len(streak.events) == 1):
            streak.in_a_row, streak.passed = 0, True
        streak.declared_seen, streak.named_seen = declared, named

    def stumbled(self, handler: Handler, row: Row, error_class: str) -> str | None:
        """Count a failure of our own; the name of the brake when nearly everything of this target fails."""
        brake = brake_of(row[TARGET])
        self._conclude(row, brake, ok=False)
        if not handler.brake or row[CYCLE] > 0 or error_class not in _OUTAGE_LIKE:
            return None  # a replay is watched by whoever asked for it
        self._stumbled[row[TARGET]] += 1
        if brake in self._shut:
            return brake
        failed, passed = self._lately(row[TARGET])
        known = self._known.get(brake)
        if known is not None and known.counts_brake():
            failed, passed = failed + known.failed_count, passed + known.passed_count
        if not dependency.nearly_all(failed, passed):
            return None
        self.news.set()
        return brake

    def _lately(self, target: str) -> tuple[int, int]:
        """Count what has not been told yet, at most of the last minute."""
        now = self._clock.monotonic()
        since, failed, passed = self._told.get(target, (now, 0, 0))
        self._told.setdefault(target, (now, 0, 0))
        if now - since > _FORGET_SECONDS:
            failed, passed = self._stumbled[target] - 1, self._delivered[target]
            self._told[target] = (now, failed, passed)
        return self._stumbled[target] - failed, self._delivered[target] - passed

    def _conclude(self, row: Row, name: str | None, *, ok: bool) -> bool:
        """Take an attempt for the answer of a probe; a failure of something else means that the dependency answered."""
        probe = self._probes.get(row[ID])
        if probe is None or probe.over:
            return False
        probe.ok = ok or (name != probe.name and not probe.name.startswith(dependency.BRAKE))
        probe.over = True
        self.news.set()
        return probe.name == name

    # Between the database and us

    async def exchange(self, held: Container[Any], *, by: str) -> None:
        """Tell the others what this worker has seen, and read what they have found."""
        self.news.clear()
        for event_id, running in self._probes.items():
            running.over = running.over or event_id not in held  # given up on the way: it proves nothing
        await self._tell(by)
        await self._refresh()

    def worth_a_probe(self) -> list[str]:
        """Name the dependencies that somebody should try by now."""
        return [each.name for each in self._known.values() if each.is_worth_a_probe and self._is_free(each.name)]

    async def probe(
        self, name: str, session_id: UUID, queues: Sequence[str], generation: int, *, by: str
    ) -> Row | None:
        """Claim an event to try a dependency with."""
        targets, of = sorted(self._handlers), [queue for queue in queues if queue not in self.held_queues]
        try:
            row = await dependency.probe(self._store, name, session_id, targets, of, generation)
        except LockHeld:
            self._leave_alone(name)
            return None
        if row is not None:
            self._probes[row[ID]] = _Probe(name, self._clock.monotonic())
            log.info("probing", worker=by, dependency=name, event_id=str(row[ID]))
        return row

    async def release(self) -> int:
        """Release events that wait for something that works; return how many."""
        gone = 0
        for each in [*self._known.values()]:
            if each.is_waited_for and each.name not in self._shut and self._is_free(each.name):
                try:
                    gone += await dependency.release(self._store, each.name, self._rules.get(each.name, DEFAULT))
                except LockHeld:
                    self._leave_alone(each.name)
        return gone

    def _leave_alone(self, name: str) -> None:
        """Leave a dependency alone for a while: somebody else's transaction holds its row."""
        self._held_until[name] = self._clock.monotonic() + _HELD_SECONDS

    def _is_free(self, name: str) -> bool:
        return not self._held_until or self._held_until.get(name, 0.0) <= self._clock.monotonic()

    async def _refresh(self) -> None:
        await self._look_who_waits()
        known = {each.name: each for each in await dependency.standing(self._store, self._waited_for)}
        if missing := [name for name in self._users if name not in known]:
            with suppress(LockHeld):
                await dependency.register(self._store, missing)
        self._known = known
        untold = {name: self._shut[name] for name, each in self._streaks.items()
                  if name in self._shut and self._is_too_much(name, each)}  # fmt: skip
        self._shut = untold | {name: each.state for name, each in known.items() if each.is_shut}
        self._holds.clear()
        held = (name.removeprefix(dependency.QUEUE) for name in self._shut if name.startswith(dependency.QUEUE))
        self.held_queues = frozenset(held)

    async def _look_who_waits(self) -> None:
        """Look again; when that takes long, less often, so that it takes a twentieth of the time at most."""
        began = self._clock.monotonic()
        if began >= self._look_at:
            self._waited_for = await dependency.waiting(self._store)
            ended = self._clock.monotonic()
            self._look_at = ended + _LOOK_SHARE * (ended - began) if ended - began > _LONG_LOOK else ended

    async def _tell(self, by: str) -> None:
        for name, streak in [*self._of_streaks()]:
            try:
                after = await self._tell_news(name, Kind.DEPENDENCY, streak.begin_telling(), by)
            except LockHeld:
                streak.take_back()
                self._leave_alone(name)
                continue
            except BaseException:
                streak.take_back()
                raise
            self._now_known(after)
            streak.told = None
        for target, news, counted in [*self._of_targets()]:
            try:
                after = await self._tell_news(brake_of(target), Kind.BRAKE, news, by)
            except LockHeld:
                self._leave_alone(brake_of(target))
                continue
            # In one step, and not before: what fails meanwhile must find all of it here or there, or it is not braked.
            self._told[target] = counted
            self._now_known(after)
        for event_id, probe in [*self._probes.items()]:
            if self._is_free(probe.name):
                try:
                    await self._tell_of(event_id, probe, by)
                except LockHeld:
                    self._leave_alone(probe.name)

    def _now_known(self, after: Dependency) -> None:
        self._known[after.name] = after
        if after.is_shut:
            self._shut[after.name] = after.state

    async def _tell_news(self, name: str, kind: Kind, news: News, by: str) -> Dependency:
        rules = self._rules.get(name, DEFAULT)
        before = self._known.get(name)
        after = await dependency.tell(self._store, name, kind, news, rules, self._clock.random, by=by)
        if after.is_shut and not (before is not None and before.is_shut):
            log.warning("dependency opened", worker=by, dependency=name, state=after.state.value, why=after.reason)
        return after

    async def _tell_of(self, event_id: Any, probe: _Probe, by: str) -> None:
        now, of = self._clock.monotonic(), UUID(str(event_id))
        if not probe.over:
            if now - probe.since > _RENEW_SECONDS:
                await dependency.renew(self._store, probe.name, of)
                probe.since = now
            return
        rules = self._rules.get(probe.name, DEFAULT)
        await dependency.conclude(self._store, probe.name, of, rules, self._clock.random, ok=probe.ok, by=by)
        log.info("probe ended", worker=by, dependency=probe.name, event_id=str(of), ok=probe.ok)
        del self._probes[event_id]

    def _of_streaks(self) -> Iterable[tuple[str, _Streak]]:
        """Collect what is to be told of dependencies. Successes of one that nobody has complained of are no news."""
        for name in self._users:
            if name not in self._streaks and name in self._known and self._known[name].failed_count > 0:
                self._streaks[name] = _Streak()  # another worker has seen it fail: our successes count from now on
        for name, streak in self._streaks.items():
            if not self._is_free(name):
                continue
            self._end_row(name, streak)
            known = self._known.get(name)
            if streak.failed or (streak.passed and known is not None and known.failed_count):
                yield name, streak
            else:
                streak.passed = False

    def _of_targets(self) -> Iterable[tuple[str, News, tuple[float, int, int]]]:
        """Collect what is to be told of brakes, and up to where: only of targets that fail here or elsewhere."""
        now = self._clock.monotonic()
        for target in dict.fromkeys((*self._stumbled, *self._delivered)):
            since, failed, passed = self._told.get(target, (now, 0, 0))
            failed, passed = self._stumbled[target] - failed, self._delivered[target] - passed
            known = self._known.get(brake_of(target))
            watched = known is not None and known.counts_brake() and known.failed_count > 0
            counted = (now, self._stumbled[target], self._delivered[target])
            if not self._is_free(brake_of(target)):
                continue
            if failed or (passed and watched):
                yield target, News(failed, passed), counted
            elif now - since > _FORGET_SECONDS or target not in self._told:
                self._told[target] = counted


def _host_of(error: BaseException) -> str | None:
    """Find out whom a library for HTTP was talking to: httpx and requests know the request, aiohttp the host."""
    try:
        request = getattr(error, "request", None)
        url = getattr(request, "url", None) or getattr(error, "url", None)
        host = getattr(error, "host", None)
        return urlsplit(str(url)).hostname if url is not None else host if isinstance(host, str) else None
    except Exception:  # noqa: BLE001 - a property of a stranger's class; httpx raises when there is no request
        return None
