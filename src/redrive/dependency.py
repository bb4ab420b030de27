"""Dependency: what events wait for, and how they come back.

Something outside is down, nearly everything of a type fails, or somebody has put a hold on it: all three are a row with
a name that events can be ``blocked`` on. The row is shared by all workers through the database.

    closed      events run; failures in a row are counted
    open        events are blocked without running; now and then one of them is tried as a probe
    half_open   that probe is under way; it closes the circuit or opens it for longer
    degraded    usable in a reduced mode: handlers that can proceed so run, the others are blocked

When it closes, those who wait come back oldest first: ten at first, and twice as many with every second. Every decision
is made under the lock of the row, by whichever worker comes by; there is no leader to lose. What is opened by hand is
closed by hand only.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from redrive import check
from redrive.errors import ConfigurationError, Refused
from redrive.event import THROTTLE
from redrive.instant import instant_of
from redrive.payload import check_text
from redrive.store.base import Row, Store, Transaction, claimed_row

FREE_ROUNDS: Final = 10
"""How often an event may fail for a dependency that works for others, before that counts as an attempt."""

BRAKE: Final = "brake:"
HOLD: Final = "hold:"
QUEUE: Final = "queue:"
RESERVED: Final = (BRAKE, HOLD, QUEUE, THROTTLE)

_BRAKE_SHARE: Final = 0.9
_BRAKE_LEAST: Final = 20
_BRAKE_SECONDS: Final = 60.0
_PROBE_LEASE_SECONDS: Final = 30.0
_RELEASE_START: Final = 10.0
_RELEASE_CHUNK: Final = 500
_JITTER: Final = 0.2
_MOST_OPENINGS: Final = 30
_NAME_LIMIT: Final = 255
_ROUND_CAP_SECONDS: Final = 30.0
_MOST_FAILURES: Final = 1_000_000
_FASTEST_RELEASE: Final = 1_000_000.0
_SOONEST_PROBE: Final = 0.001


class Kind(StrEnum):
    """Who shuts it: failures of something outside, failures of our own, or a person."""

    DEPENDENCY = "dependency"
    BRAKE = "brake"
    HOLD = "hold"


class State(StrEnum):
    """Whether events run."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Circuit:
    """How a dependency is judged; spans in seconds.

    ``threshold`` failures in a row, none more than ``window`` after the one before, open it. The first probe comes
    after ``probe_after``, each further one after twice the wait, up to ``probe_cap``. ``release_rate`` is how many a
    second come back at most. ``errors`` and ``hosts`` say which exceptions speak of it when a handler needs several.
    """

    errors: tuple[type[BaseException] | str, ...] = ()
    hosts: tuple[str, ...] = ()
    threshold: int = 5
    window: float = 30.0
    probe_after: float = 5.0
    probe_cap: float = 60.0
    release_rate: float = 1_000.0

    @classmethod
    def of(
        cls, name: str, *, errors: Iterable[type[BaseException] | str], hosts: Iterable[str], threshold: int,
        window: str | float, probe_after: str | float, probe_cap: str | float, release_rate: float,
    ) -> "Circuit":  # fmt: skip
        """Read what was said about a dependency; refuse what cannot work."""
        check_name(name)
        check.whole(threshold, "threshold", 1, _MOST_FAILURES)
        check.number(release_rate, "release_rate", 1, _FASTEST_RELEASE)
        first = check.seconds(probe_after, "probe_after", _SOONEST_PROBE)
        cap = check.seconds(probe_cap, "probe_cap")
        if first > cap:
            raise ConfigurationError(
                f"probe_cap of {name!r} takes a span of at least probe_after ({first:g}s), not {cap:g}s"
            )
        apart = check.seconds(window, "window", _SOONEST_PROBE)
        return cls(
            _error_kinds(name, errors), check.texts(hosts, "hosts", like="api.carrier.example"), threshold, apart,
            first, cap, release_rate,
        )  # fmt: skip


DEFAULT: Final = Circuit()


@dataclass(frozen=True, slots=True)
class Dependency:
    """One of them, as it stands."""

    name: str
    kind: Kind
    state: State
    by_hand: bool
    failed_count: int
    passed_count: int
    counted_at: datetime | None
    opened_at: datetime | None
    opened_by: str | None
    reason: str | None
    openings: int
    probe_at: datetime | None
    probe_event_id: UUID | None
    probe_until: datetime | None
    closed_at: datetime | None
    released_from: datetime | None
    released_count: int
    is_waited_for: bool
    now: datetime

    @property
    def is_shut(self) -> bool:
        """Whether events wait for it: it is open, half open or degraded."""
        return self.state is not State.CLOSED

    @property
    def may_be_probed(self) -> bool:
        """Whether somebody should look if it is back: its time has come, and nobody is looking."""
        if not self.is_shut or self.by_hand or self.kind is Kind.HOLD:
            return False
        if self.probe_until is not None:
            return self.probe_until <= self.now  # the prober is gone
        return self.probe_at is not None and self.probe_at <= self.now

    @property
    def next_at(self) -> datetime | None:
        """When something will happen to those who wait, if it happens by itself."""
        if not self.is_waited_for or (self.is_shut and (self.by_hand or self.kind is Kind.HOLD)):
            return None
        if self.is_shut:
            return self.probe_until or self.probe_at
        if self.released_from is None or room(self, DEFAULT) > 0:
            return self.now
        return self.now + timedelta(seconds=0.5)

    @property
    def is_worth_a_probe(self) -> bool:
        """Whether there is somebody to try it with, or nobody who could ever tell."""
        return self.may_be_probed and (self.is_waited_for or self.state is State.DEGRADED)

    def counts_brake(self) -> bool:
        """Whether its counts are of the last minute."""
        return self.counted_at is not None and (self.now - self.counted_at).total_seconds() < _BRAKE_SECONDS


@dataclass(frozen=True, slots=True)
class News:
    """What one worker has seen of a dependency since it last said so."""

    failed: int
    passed: int = 0
    in_a_row: int = 0
    """Failures since the last success."""
    is_degraded: bool = False


# --- names ---


def check_name(name: object, what: str = "the name of a dependency") -> str:
    """Refuse a name that could be taken for a brake, a hold, a queue or a limit."""
    checked = check.text(name, what, limit=_NAME_LIMIT, like="carrier-api")
    if checked.startswith(RESERVED):
        raise ConfigurationError(
            f"{what} must not begin with {checked.partition(':')[0]}:, which is kept for our own: "
            f"not {check.shown(name)}"
        )
    return checked


def is_name(name: object) -> bool:
    """Say whether a dependency may have this name."""
    try:
        check_name(name)
    except ConfigurationError:
        return False
    return True


def check_needs(needs: object, handler: str) -> tuple[str, ...]:
    """Read the names a handler needs."""
    if isinstance(needs, str | Mapping) or not isinstance(needs, Iterable):
        raise ConfigurationError(
            f"needs of {handler} must be a list of names: needs=['carrier-api'], not {check.shown(needs)}"
        )
    return tuple(dict.fromkeys(check_name(each, "each of needs") for each in needs))


def brake_of(target: str) -> str:
    """Name the brake of a target."""
    return BRAKE + target


def hold_name(type_: str | None, queue: str | None) -> str:
    """Name the hold on a type or a queue."""
    if (type_ is None) == (queue is None):
        raise Refused("say what to pause: a type like order.paid or order.*, or a queue")
    what = check_text(type_ or queue or "", "type" if queue is None else "queue", _NAME_LIMIT)
    if not what.strip() or "*" in what[:-1]:
        raise Refused(f"{what!r} is no type or queue: order.paid means one, order.* all that begin so")
    return (HOLD if queue is None else QUEUE) + what


def held_type(name: str, type_: str) -> bool:
    """Say whether a hold is on this type; its pattern may end in ``*``."""
    pattern = name.removeprefix(HOLD)
    return type_.startswith(pattern[:-1]) if pattern.endswith("*") else type_ == pattern


def _error_kinds(name: str, given: object) -> tuple[type[BaseException] | str, ...]:
    kinds = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for each in kinds:
        if isinstance(each, str):
            check.text(each, "errors", like="bank_sdk.Unavailable")
        elif not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigurationError(
                f"errors of {name!r} takes exception classes or their dotted names, not {check.shown(each)}"
            )
    return kinds


# --- how it goes on: pure, decided under the lock ---


def opened(
    this: Dependency, circuit: Circuit, dice: Callable[[], float], *, by: str, reason: str, degraded: bool = False
) -> Dependency:
    """Shut it because of failures, and say when to look again; the longer the more often it has been opened."""
    soon = this.closed_at is not None and (this.now - this.closed_at).total_seconds() < circuit.window
    again = this.is_shut or soon or (this.released_from is not None and this.is_waited_for)
    openings = min(this.openings + 1 if again else 1, _MOST_OPENINGS)
    wait = min(circuit.probe_after * 2 ** (openings - 1), circuit.probe_cap)
    wait *= 1 - _JITTER + 2 * _JITTER * dice()
    return replace(
        this, state=State.DEGRADED if degraded else State.OPEN, by_hand=False,
        opened_at=this.opened_at if this.is_shut else this.now, opened_by=by, reason=reason, openings=openings,
        probe_at=this.now + timedelta(seconds=wait), probe_until=None, released_from=None, released_count=0,
    )  # fmt: skip


def opened_by_hand(this: Dependency, *, by: str, reason: str, degraded: bool = False) -> Dependency:
    """Shut it until a person closes it."""
    return replace(
        this, state=State.DEGRADED if degraded else State.OPEN, by_hand=True,
        opened_at=this.opened_at if this.is_shut else this.now, opened_by=by, reason=reason, probe_at=None,
        probe_until=None, released_from=None, released_count=0,
    )  # fmt: skip


def closed(this: Dependency) -> Dependency:
    """Let events run again, and begin to let those come back who wait."""
    return replace(
        this, state=State.CLOSED, by_hand=False, failed_count=0, passed_count=0, counted_at=None, closed_at=this.now,
        probe_at=None, probe_until=None, released_from=this.now, released_count=0,
    )  # fmt: skip


def probing(this: Dependency, event_id: UUID) -> Dependency:
    """Note that somebody looks; the note runs out by itself."""
    return replace(
        this, state=State.HALF_OPEN if this.state is State.OPEN else this.state, probe_event_id=event_id,
        probe_until=this.now + timedelta(seconds=_PROBE_LEASE_SECONDS),
    )  # fmt: skip


def counted(this: Dependency, circuit: Circuit, news: News) -> Dependency:
    """Add what a worker has seen. A success ends a row of failures; a pause longer than the window does too."""
    if this.kind is Kind.BRAKE:
        recent = this if this.counts_brake() else replace(this, failed_count=0, passed_count=0, counted_at=this.now)
        return replace(
            recent, failed_count=recent.failed_count + news.failed, passed_count=recent.passed_count + news.passed
        )
    row = news.in_a_row if news.passed else failures_in_a_row(this, circuit) + news.failed
    return replace(this, failed_count=row, counted_at=this.now if news.failed else this.counted_at)


def failures_in_a_row(this: Dependency, circuit: Circuit) -> int:
    """How many failures still count."""
    stale = this.counted_at is None or (this.now - this.counted_at).total_seconds() > circuit.window
    return 0 if stale else this.failed_count


def is_too_much(this: Dependency, circuit: Circuit) -> bool:
    """Say whether the counts open it."""
    if this.kind is Kind.BRAKE:
        return nearly_all(this.failed_count, this.passed_count)
    return this.failed_count >= circuit.threshold


def nearly_all(failed: int, passed: int) -> bool:
    """Say whether nearly everything fails, and often enough that it means something."""
    return failed + passed >= _BRAKE_LEAST and failed >= _BRAKE_SHARE * (failed + passed)


def why_opened(this: Dependency) -> str:
    """Say it for people."""
    if this.kind is Kind.BRAKE:
        return f"{this.failed_count:,} of {this.failed_count + this.passed_count:,} attempts failed within a minute"
    return f"{this.failed_count:,} failures in a row"


def room(this: Dependency, circuit: Circuit) -> int:
    """How many may come back now: ten at first, twice as many with every second, up to the rate."""
    if this.released_from is None:
        return 0
    seconds = max(0.0, (this.now - this.released_from).total_seconds())
    first = min(_RELEASE_START, circuit.release_rate)
    rising = min(seconds, math.log2(circuit.release_rate / first))  # the full rate is reached after that
    rate = first * 2**rising
    allowed = rate + circuit.release_rate * (seconds - rising)
    # Not more than a second's worth at once: a pause of the workers is not made up in a burst.
    return max(0, min(math.floor(allowed) - this.released_count, math.ceil(rate), _RELEASE_CHUNK))


def round_seconds(rounds: int, dice: Callable[[], float]) -> float:
    """How long an event waits after a failure that costs it no attempt: 1 s, 2 s, 4 s, up to half a minute."""
    return min(2.0 ** min(rounds, 30), _ROUND_CAP_SECONDS) * (1 - _JITTER + 2 * _JITTER * dice())


# --- what workers do ---


async def standing(store: Store, waited_for: Mapping[str, datetime] | None = None) -> list[Dependency]:
    """Read all of them; who is waited for only if that is not known yet."""
    names = await waiting(store) if waited_for is None else waited_for
    return _together(await store.ask("dependencies"), names)


async def waiting(store: Store) -> dict[str, datetime]:
    """Read the names that events wait for, and what time it is."""
    return _waited_for(await store.ask("waited_for"))


def _waited_for(rows: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
    """Leave out the names of limits: whoever has a permit to give takes those."""
    return {row["name"]: _instant(row["now"]) for row in rows if not row["name"].startswith(THROTTLE)}


def _together(rows: Iterable[Mapping[str, Any]], waited_for: Mapping[str, datetime]) -> list[Dependency]:
    """Put the rows and the names together. What has no row counts as closed: nobody waits for it for ever."""
    known = {row["name"]: dependency_from({**row, "is_waited_for": row["name"] in waited_for}) for row in rows}
    for name, now in waited_for.items():
        known.setdefault(name, _unknown(name, now))
    return [known[name] for name in sorted(known)]


def _unknown(name: str, now: datetime) -> Dependency:
    return Dependency(
        name, kind_of(name), State.CLOSED, by_hand=False, failed_count=0, passed_count=0, counted_at=None,
        opened_at=None, opened_by=None, reason=None, openings=0, probe_at=None, probe_event_id=None, probe_until=None,
        closed_at=None, released_from=None, released_count=0, is_waited_for=True, now=now,
    )  # fmt: skip


async def register(store: Store, names: Iterable[str]) -> None:
    """Make the dependencies known that handlers need, so that people see them before they fail."""
    async with store.transaction() as tx:
        for name in sorted(names):
            await tx.run("dependency_new", name=name, kind=Kind.DEPENDENCY.value)


async def tell(
    store: Store, name: str, kind: Kind, news: News, circuit: Circuit, dice: Callable[[], float], *, by: str
) -> Dependency:
    """Add to the shared counts; open it when they are too much."""
    async with store.transaction() as tx:
        this = await _made(tx, name, kind)
        if this.is_shut:
            return this
        this = counted(this, circuit, news)
        if is_too_much(this, circuit):
            this = opened(this, circuit, dice, by=by, reason=why_opened(this), degraded=news.is_degraded)
            await tx.note(_shut_kind(this), by, {"dependency": name, "reason": this.reason})
        await _write(tx, this)
        return this


async def probe(
    store: Store, name: str, session_id: UUID, targets: Sequence[str], queues: Sequence[str], generation: int
) -> Row | None:
    """Take one of those who wait, to try whether it is back; nothing when somebody else does, or nobody waits here."""
    with suppress(Refused):  # another event of its ordering key was claimed meanwhile: the next look finds that one
        return await _probed(store, name, session_id, targets, queues, generation)
    return None


async def _probed(
    store: Store, name: str, session_id: UUID, targets: Sequence[str], queues: Sequence[str], generation: int
) -> Row | None:
    async with store.transaction() as tx:
        this = await _locked(tx, name)
        if this is None or not this.may_be_probed:
            return None
        if not this.is_waited_for and this.state is State.DEGRADED:
            await _write(tx, closed(this))  # all of them proceed: only trying the whole thing tells
            await tx.note("dependency-closed", "probe", {"dependency": name, "reason": "nobody waits, it is tried"})
            return None
        last = this.probe_event_id or UUID(int=0)
        for after in dict.fromkeys((last, UUID(int=0))):
            found = await tx.run(
                "probe", name=name, session=session_id, after=after, targets=list(targets), queues=list(queues),
                generation=generation,
            )  # fmt: skip
            if found:
                row = claimed_row(tuple(found[0].values()))
                await _write(tx, probing(this, UUID(str(row[0]))))
                return row
    return None


async def renew(store: Store, name: str, event_id: UUID) -> None:
    """Go on with a probe that takes long."""
    async with store.transaction() as tx:
        this = await _locked(tx, name)
        if this is not None and this.is_shut and this.probe_event_id == event_id and this.probe_until is not None:
            await _write(tx, probing(this, event_id))


async def conclude(
    store: Store, name: str, event_id: UUID, circuit: Circuit, dice: Callable[[], float], *, ok: bool | None, by: str
) -> None:
    """Write down what a probe has shown; ``None``: nothing, try again. Only the latest probe has a say."""
    async with store.transaction() as tx:
        this = await _locked(tx, name)
        if this is None or not this.is_shut or this.by_hand or this.probe_event_id != event_id:
            return
        if ok:
            waited = (this.now - this.opened_at).total_seconds() if this.opened_at else 0.0
            await _write(tx, closed(this))
            await tx.note("dependency-closed", by, {"dependency": name, "seconds": round(waited, 3)})
        elif ok is None:
            state = State.OPEN if this.state is State.HALF_OPEN else this.state
            await _write(tx, replace(this, state=state, probe_until=None, probe_at=this.now))
        else:
            reason = this.reason or why_opened(this)
            degraded = this.state is State.DEGRADED
            by_whom = this.opened_by or by
            await _write(tx, opened(this, circuit, dice, by=by_whom, reason=reason, degraded=degraded))


async def release(store: Store, name: str, circuit: Circuit) -> int:
    """Let those come back who wait for something that is closed, or that nobody knows; return how many."""
    async with store.transaction() as tx:
        this = await _made(tx, name, kind_of(name))
        if this.is_shut:
            return 0
        if this.released_from is None:
            this = replace(this, released_from=this.now, released_count=0)
        allowed = room(this, circuit)
        gone = len(await tx.run("unblock", name=name, limit=allowed)) if allowed else 0
        if gone < allowed:  # all are out
            this = replace(this, released_from=None, released_count=0)
        else:
            this = replace(this, released_count=this.released_count + gone)
        await _write(tx, this)
        return gone


def kind_of(name: str) -> Kind:
    """Read the kind off a name."""
    if name.startswith(BRAKE):
        return Kind.BRAKE
    return Kind.HOLD if name.startswith((HOLD, QUEUE)) else Kind.DEPENDENCY


# --- what people do ---


async def open_by_hand(store: Store, name: str, *, by: str, reason: str, degraded: bool) -> Dependency:
    """Shut a dependency until somebody closes it."""
    async with store.transaction() as tx:
        this = await _known(tx, name)
        if this.kind is Kind.HOLD:
            raise Refused(f"{name!r} is a hold: `redrive pause` puts one on a type or a queue")
        this = opened_by_hand(this, by=by, reason=reason, degraded=degraded)
        await _write(tx, this)
        await tx.note(_shut_kind(this), by, {"dependency": name, "reason": reason, "by_hand": True})
        return this


async def close_by_hand(store: Store, name: str, *, by: str, reason: str) -> Dependency:
    """Let events run again that wait for a dependency or a brake."""
    async with store.transaction() as tx:
        this = await _known(tx, name)
        if this.kind is Kind.HOLD:
            raise Refused(f"{name!r} is a hold: `redrive resume` takes it away")
        if not this.is_shut:
            raise Refused(f"{name!r} is closed already: those who waited are coming back by themselves")
        this = closed(this)
        await _write(tx, this)
        await tx.note("dependency-closed", by, {"dependency": name, "reason": reason, "by_hand": True})
        return this


async def hold(store: Store, name: str, *, by: str, reason: str) -> Dependency:
    """Put a hold on a type or a queue."""
    async with store.transaction() as tx:
        this = await _made(tx, name, Kind.HOLD)
        if this.is_shut:
            raise Refused(f"{_held(name)} is paused already, by {this.opened_by}: {this.reason}")
        this = opened_by_hand(this, by=by, reason=reason)
        await _write(tx, this)
        await tx.note("hold-placed", by, {"hold": name, "reason": reason})
        return this


async def lift(store: Store, name: str, *, by: str, reason: str) -> Dependency:
    """Take a hold away; those who waited come back at a bounded rate."""
    async with store.transaction() as tx:
        this = await _locked(tx, name)
        if this is None or not this.is_shut:
            others = [each.name for each in await standing_in(tx) if each.kind is Kind.HOLD and each.is_shut]
            known = ", ".join(map(_held, others)) or "nothing"
            raise Refused(f"{_held(name)} is not paused: {known} is")
        this = closed(this)
        await _write(tx, this)
        await tx.note("hold-lifted", by, {"hold": name, "reason": reason})
        return this


def _held(name: str) -> str:
    return f"queue {name.removeprefix(QUEUE)!r}" if name.startswith(QUEUE) else repr(name.removeprefix(HOLD))


async def standing_in(tx: Transaction) -> list[Dependency]:
    """Read all of them in a transaction."""
    names = _waited_for(await tx.run("waited_for"))
    return _together(await tx.run("dependencies"), names)


async def _known(tx: Transaction, name: str) -> Dependency:
    """Find one that is known: it has a row, or events wait for it."""
    this = await _locked(tx, name)
    if this is not None:
        return this
    others = await standing_in(tx)
    if any(each.name == name for each in others):
        return await _made(tx, name, kind_of(name))
    known = ", ".join(each.name for each in others if each.kind is not Kind.HOLD) or "none yet"
    raise Refused(f"no dependency is called {name!r}: known are {known}; a worker makes known what its handlers need")


async def _made(tx: Transaction, name: str, kind: Kind) -> Dependency:
    """Lock a row, and make it when it is not there."""
    await tx.run("dependency_new", name=name, kind=kind.value)
    this = await _locked(tx, name)
    assert this is not None
    return this


async def _locked(tx: Transaction, name: str) -> Dependency | None:
    rows = await tx.run("dependency_lock", name=name)
    return dependency_from(rows[0]) if rows else None


async def _write(tx: Transaction, this: Dependency) -> None:
    left_out = ("kind", "is_waited_for", "now")
    values = {each.name: getattr(this, each.name) for each in fields(this) if each.name not in left_out}
    await tx.run("dependency_write", **{**values, "state": this.state.value})


def _shut_kind(this: Dependency) -> str:
    return "dependency-degraded" if this.state is State.DEGRADED else "dependency-opened"


def _instant(value: Any) -> datetime:
    return instant_of(value)


_NAMES: Final = tuple(each.name for each in fields(Dependency))
_INSTANTS: Final = tuple(name for name in _NAMES if name.endswith(("_at", "_until", "_from")) or name == "now")


def dependency_from(row: Mapping[str, Any]) -> Dependency:
    """Read a row of either store."""
    values = {name: row[name] for name in _NAMES}
    for name in _INSTANTS:
        if values[name] is not None:
            values[name] = _instant(values[name])
    values["kind"], values["state"] = Kind(row["kind"]), State(row["state"])
    values["by_hand"], values["is_waited_for"] = bool(row["by_hand"]), bool(row["is_waited_for"])
    probed = row["probe_event_id"]
    values["probe_event_id"] = None if probed is None else UUID(str(probed))
    return Dependency(**values)
