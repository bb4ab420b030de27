"""Schedule: events that come by the clock.

A schedule says what is published and how often. Its row holds the next tick; the worker that moves it on publishes the
event of the tick in the same transaction, so that there is exactly one, with any number of workers and no leader. Two
that look at once compare what they have seen with what is there: the second moves nothing.

Declared schedules are written when a worker begins, where they differ from what is there. After that the table rules,
so that an old and a new release side by side do not undo each other's work again and again.

Next: what is published goes the way of every event.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, Unpack, cast, get_args

from redrive import check
from redrive.cadence import Cadence, check_cron, check_zone
from redrive.duration import parse_duration
from redrive.duty import Duty, Tick
from redrive.errors import ConfigurationError, Refused
from redrive.event import NewEvent, Options, Published
from redrive.instant import instant_of, iso, to_micros
from redrive.logs import log
from redrive.payload import check_text
from redrive.store.base import Store, Transaction

CatchUp = Literal["latest", "all", "skip"]
Span = str | float | timedelta
Digests = set[str]

NAME_LIMIT: Final = 255
MOST_MADE_UP: Final = 1_000
"""How many missed ticks ``catch_up="all"`` makes up for."""

_LATE: Final = timedelta(minutes=1)  # after this a tick counts as missed, where missed ticks are skipped
_LOOK_SECONDS: Final = 1.0  # how soon a schedule that somebody else has set is noticed
_NONE_SECONDS: Final = 5.0  # the same while there is none at all
_LEAST_SECONDS: Final = 0.05  # however many there are: twenty looks a second at most
_BATCH: Final = 100
_MOST_EVENTS: Final = 1_000  # of one transaction
_LONG_AWAY: Final = timedelta(hours=1)  # after this the missed ticks are counted in a thread
_SPREAD_SECONDS: Final = 0.02  # workers that wake for the same tick part in time
_OF_ONE_EVENT: Final = ("id", "idempotency_key", "correlation_id", "causation_id", "due_at")
_ACTOR_LIMIT: Final = 255
_REASON_LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True)
class Definition:
    """What somebody has declared; the payload is JSON text already."""

    name: str
    type: str
    payload: str
    options: Mapping[str, Any]
    cadence: Cadence
    catch_up: CatchUp

    @property
    def digest(self) -> str:
        """A short text that differs when the definition does."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, as the trail keeps it."""
        how_often = (
            {"cron": self.cadence.cron, "time_zone": self.cadence.time_zone}
            if self.cadence.cron is not None
            else {"every_seconds": self.cadence.every_seconds, "offset_seconds": self.cadence.offset_seconds}
        )
        said = {"type": self.type, "payload": json.loads(self.payload), "options": dict(self.options)}
        return {**said, **how_often, "catch_up": self.catch_up}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stands in the database."""

    name: str
    type: str
    payload: Any
    options: Mapping[str, Any]
    cron: str | None
    every_seconds: float | None
    offset_seconds: float
    time_zone: str
    catch_up: CatchUp
    next_at: datetime | None
    last_at: datetime | None
    """The tick of its latest event."""
    event_count: int
    missed_count: int
    """Ticks that passed while no worker was there and got no event of their own."""
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    changed_at: datetime
    changed_by: str

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, instants as ISO 8601 in UTC."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: iso(value) if isinstance(value, datetime) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class _Due:
    """What one schedule's time has brought: the ticks to publish, and where it goes on."""

    definition: Definition
    digest: str  # as it stands in the table
    expected: datetime
    ticks: Sequence[tuple[datetime, int]]  # and how many before it get no event
    missed: int
    next_at: datetime | None


class Schedules:
    """``app.schedules``: declare them, look at them, and act on them."""

    def __init__(self, ready: Callable[[], Awaitable[Store]], new_events: Callable[..., list[NewEvent]]) -> None:
        self._ready = ready
        self._new_events = new_events
        self._declared: dict[str, Callable[[], Definition]] = {}

    # Declaring

    def add(
        self,
        name: str,
        type_: str,
        payload: Any = None,
        *,
        cron: str | None = None,
        every: Span | None = None,
        offset: Span | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "latest",
        **options: Unpack[Options],
    ) -> None:
        """Declare a schedule; workers write it down when they begin, if it differs from what is there.

        ``cron="0 3 * * *"`` ticks by the wall clock of ``tz``; ``every="10m"`` at multiples of the span since 1970,
        shifted by ``offset``. ``catch_up``: when no worker was there, one event for the ``"latest"`` missed tick, or
        one for ``"all"`` of them (a thousand at most), or ``"skip"`` them. The options are those of ``publish``; with
        a ``retry_key`` a tick makes no event while the one before has not ended.
        """
        check.text(name, "name", like="nightly")
        if name in self._declared:
            raise ConfigurationError(f"schedule {name!r} is declared twice: give one of them another name")
        cadence = Cadence.of(cron=cron, every=every, offset=offset, tz=tz)

        def definition() -> Definition:
            return self._defined(name, type_, payload, cadence, catch_up, options)

        definition()  # what cannot work is refused here; made anew later, when all handlers are known
        self._declared[name] = definition

    def _defined(
        self, name: str, type_: str, payload: Any, cadence: Cadence, catch_up: CatchUp, options: Options
    ) -> Definition:
        if not check_text(name, "name", NAME_LIMIT).strip():
            raise ConfigurationError("a schedule needs a name: others recognise it by that")
        if catch_up not in get_args(CatchUp):
            raise ConfigurationError(f"catch_up is 'latest', 'all' or 'skip', not {catch_up!r}")
        said = _plain_options(options)
        rows = self._new_events(type_, payload, **said)
        # Who publishes a tick may be another app on the same database: all it has to know is written down.
        said |= {"source": rows[0].source, "generation": rows[0].generation, "targets": [row.target for row in rows]}
        return Definition(name, type_, rows[0].payload, said, cadence, catch_up)

    # Looking

    async def ls(self) -> list[Schedule]:
        """List all of them, by name."""
        return [_schedule(row) for row in await (await self._ready()).ask("schedules")]

    async def get(self, name: str) -> Schedule:
        """Read one."""
        return _schedule(await _find((await self._ready()).ask, name))

    async def next_at(self) -> datetime | None:
        """Tell when the next of them is due."""
        return _at((await (await self._ready()).ask("schedules_next"))[0]["next_at"])

    # Acting

    async def set(
        self,
        name: str,
        type_: str,
        payload: Any = None,
        *,
        by: str,
        reason: str,
        cron: str | None = None,
        every: Span | None = None,
        offset: Span | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "latest",
        **options: Unpack[Options],
    ) -> Schedule:
        """Set a schedule at once; workers notice within seconds.

        One that is also declared in code goes back to that when the next worker begins.
        """
        cadence = Cadence.of(cron=cron, every=every, offset=offset, tz=tz)
        definition = self._defined(name, type_, payload, cadence, catch_up, options)
        who, why = _said(by), _said(reason, "reason")
        async with (await self._ready()).transaction() as tx:
            for facts in await _write(tx, [definition], who):
                await tx.note("schedule-set", who, {"reason": why, **facts})
            return _schedule(await _find(tx.run, name))

    async def remove(self, name: str, *, by: str, reason: str) -> None:
        """Remove one; what it has published stays. One that is declared in code comes back with the next worker."""
        async with self._changing(name, "schedule-removed", by, reason) as (tx, row, facts):
            facts["was"] = _definition(row).to_json()
            _check(await tx.run("schedule_remove", name=name), name)

    async def pause(self, name: str, *, by: str, reason: str) -> Schedule:
        """Let it tick no more until ``resume``."""
        async with self._changing(name, "schedule-paused", by, reason) as (tx, row, _):
            if row["paused_at"] is not None:
                raise Refused(f"schedule {name!r} is paused already, by {row['paused_by']}")
            _check(await tx.run("schedule_pause", name=name, by=by), name)
            return _schedule(await _find(tx.run, name))

    async def resume(self, name: str, *, by: str, reason: str) -> Schedule:
        """Go on with the next tick from now; those of the pause are not made up for."""
        async with self._changing(name, "schedule-resumed", by, reason) as (tx, row, _):
            if row["paused_at"] is None:
                raise Refused(f"schedule {name!r} is not paused")
            next_at = _definition(row).cadence.next_after(_since(row, await _now(tx)))
            _check(await tx.run("schedule_resume", name=name, next_at=next_at, digest=row["digest"]), name)
            return _schedule(await _find(tx.run, name))

    @asynccontextmanager
    async def _changing(
        self, name: str, kind: str, by: str, reason: str
    ) -> AsyncIterator[tuple[Transaction, Mapping[str, Any], dict[str, Any]]]:
        """Keep a schedule from others while it is changed, and note that it was; facts may be added to the note."""
        who, facts = _said(by), {"reason": _said(reason, "reason"), "schedule": name}
        async with (await self._ready()).transaction() as tx:
            await tx.run("schedules_lock", names=[name])
            yield tx, await _find(tx.run, name), facts
            await tx.note(kind, who, facts)

    async def run_now(self, name: str, *, by: str, reason: str) -> Published:
        """Publish an extra event now; the ticks stay where they are."""
        who, why = _said(by), _said(reason, "reason")
        store = await self._ready()
        definition = _definition(await _find(store.ask, name))
        async with store.transaction() as tx:
            key = f"schedule:{name}!{store.clock.new_id()}"
            rows = self._rows(store, definition, key, {"schedule": name, "scheduled-at": iso(await _now(tx))})
            published = (await tx.publish(rows))[0]
            await tx.note("schedule-run", who, {"reason": why, "schedule": name}, published.id)
        return published

    # Ticking

    def duty(self) -> Duty:
        """Make the duty of one worker. It has an event of its own because it wants its rests exactly as it says."""
        return Duty("schedules", _Keeper(self).act, asyncio.Event())

    async def declare(self, store: Store, by: str) -> None:
        """Write down what is declared and differs from what is there."""
        if not self._declared:
            return
        known = {row["name"]: row["digest"] for row in await store.ask("schedules")}
        made = [self._declared[name]() for name in sorted(self._declared)]
        changed = [each for each in made if known.get(each.name) != each.digest]
        for first in range(0, len(changed), _BATCH):
            async with store.transaction() as tx:
                for facts in await _write(tx, changed[first : first + _BATCH], by):
                    await tx.note("schedule-set", by, facts)

    async def tick(self, store: Store, unreadable: Digests) -> Tick:
        """Publish the events of some schedules whose time has come; say when to look again."""
        rows = await store.ask("schedules_due", limit=_BATCH, apart=sorted(unreadable))
        now, upcoming = _instant(rows[0]["now"]), _at(rows[0]["upcoming_at"])
        found = [row for row in rows if row["name"] is not None]
        if not found:
            return Tick(moved=False, pause=_until(now, upcoming, store))
        if now - _instant(found[0]["next_at"]) < _LONG_AWAY:
            due = _all_due(found, unreadable)
        else:
            due = await asyncio.to_thread(_all_due, found, unreadable)
        moved = [await self._publish(store, some) for some in _bounded(due)]
        if len(found) == _BATCH:
            return Tick(moved=any(moved), pause=0.0)
        soonest = min((at for at in (upcoming, *(each.next_at for each in due)) if at is not None), default=None)
        return Tick(moved=any(moved), pause=_until(now, soonest, store))

    async def _publish(self, store: Store, due: Sequence[_Due]) -> int:
        """Move schedules on and publish their events in one transaction; return how many were ours to move."""
        async with store.transaction() as tx:
            moved = await tx.run(
                "schedule_advance",
                names=[each.definition.name for each in due],
                digests=[each.digest for each in due],
                expected=[to_micros(each.expected) for each in due],
                next_ats=[_micros(each.next_at) for each in due],
                last_ats=[_micros(each.ticks[-1][0]) if each.ticks else None for each in due],
                event_counts=[len(each.ticks) for each in due],
                missed_counts=[each.missed for each in due],
            )
            names = {row["name"] for row in moved}
            ours = [each for each in due if each.definition.name in names]
            rows = [row for each in ours for row in self._ticked(store, each)]
            if rows:
                await tx.publish(rows)
        for each in ours:
            if each.missed:
                log.warning(
                    "schedule missed ticks", schedule=each.definition.name, missed=each.missed,
                    events=len(each.ticks), catch_up=each.definition.catch_up,
                )  # fmt: skip
        return len(ours)

    def _ticked(self, store: Store, due: _Due) -> Iterator[NewEvent]:
        name = due.definition.name
        for tick, missed in due.ticks:
            headers = {"schedule": name, "scheduled-at": iso(tick)}
            if missed:
                headers["missed"] = str(missed)
            yield from self._rows(store, due.definition, f"schedule:{name}@{iso(tick)}", headers)

    def _rows(self, store: Store, definition: Definition, key: str, headers: Mapping[str, str]) -> list[NewEvent]:
        """Make the rows of one tick, for the targets that were known when the schedule was written."""
        options = dict(definition.options)
        targets = options.pop("targets")
        options["headers"] = {**options.get("headers", {}), **headers}
        row = self._new_events(definition.type, None, idempotency_key=key, **options)[0]
        return [replace(row, id=store.clock.new_id(), target=each, payload=definition.payload) for each in targets]


class _Keeper:
    """One worker's part: it writes down once what is declared, then it ticks."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._has_declared = False
        self._unreadable: Digests = set()

    async def act(self, by: str) -> Tick:
        store = await self._schedules._ready()  # noqa: SLF001 - two halves of one thing
        if not self._has_declared:
            await self._schedules.declare(store, by)
            self._has_declared = True
        return await self._schedules.tick(store, self._unreadable)


# --- what is due ---


def _all_due(rows: Sequence[Mapping[str, Any]], unreadable: Digests) -> list[_Due]:
    return [due for row in rows if (due := _due(row, unreadable)) is not None]


def _due(row: Mapping[str, Any], unreadable: Digests) -> _Due | None:
    try:
        definition = _definition(row)
        check_zone(definition.cadence.time_zone)
        if definition.cadence.cron is not None:
            check_cron(definition.cadence.cron)
    except ConfigurationError as error:  # a zone this machine does not know: the others must not wait for it
        unreadable.add(row["digest"])
        log.error("schedule left to other workers", schedule=row["name"], error=str(error))
        return None
    first, now = _instant(row["next_at"]), _instant(row["now"])
    kept, count = definition.cadence.due(first, now, MOST_MADE_UP if definition.catch_up == "all" else 1)
    if definition.catch_up == "skip" and kept and now - kept[-1] > _LATE:
        kept = []
    missed = count - len(kept)
    ticks = [(tick, 0 if number else missed) for number, tick in enumerate(kept)]
    return _Due(definition, row["digest"], first, ticks, missed, definition.cadence.next_after(now))


def _until(now: datetime, at: datetime | None, store: Store) -> float:
    """How long to rest: to the next tick, but no longer than a schedule that somebody sets may go unnoticed."""
    if at is None:
        return _NONE_SECONDS
    pause = max((at - now).total_seconds(), _LEAST_SECONDS) + _SPREAD_SECONDS * store.clock.random()
    return min(pause, _LOOK_SECONDS)


def _bounded(due: Sequence[_Due]) -> Iterator[list[_Due]]:
    """Cut into transactions of a bounded number of events."""
    some: list[_Due] = []
    for each in due:
        if some and sum(len(one.ticks) for one in some) + len(each.ticks) > _MOST_EVENTS:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


# --- in the database ---


async def _find(ask: Callable[..., Awaitable[list[dict[str, Any]]]], name: str) -> Mapping[str, Any]:
    rows = await ask("schedule_get", name=name)
    if rows:
        return rows[0]
    known = [row["name"] for row in await ask("schedules")]
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`redrive schedules ls` lists them"
    raise Refused(f"there is no schedule {name[:80]!r}: {hint}")


async def _write(tx: Transaction, definitions: Sequence[Definition], by: str) -> list[dict[str, Any]]:
    """Write definitions where they differ from what is there; return what to note of each when all are locked."""
    await tx.run("schedules_lock", names=[each.name for each in definitions])
    now = await _now(tx)
    facts = []
    for each in definitions:
        found = await tx.run("schedule_get", name=each.name)
        was = found[0] if found else None
        if await _written(tx, each, _since(was, now), by):
            before = None if was is None else _definition(was).to_json()
            facts.append({"schedule": each.name, "was": before, "is": each.to_json()})
    return facts


async def _written(tx: Transaction, definition: Definition, since: datetime, by: str) -> bool:
    cadence = definition.cadence
    next_at = cadence.next_after(since)
    written = await tx.run(
        "schedule_write",
        name=definition.name,
        type=definition.type,
        payload=definition.payload,
        options=json.dumps(definition.options),
        cron=cadence.cron,
        every_seconds=cadence.every_seconds,
        offset_seconds=cadence.offset_seconds,
        time_zone=cadence.time_zone,
        catch_up=definition.catch_up,
        next_at=next_at,
        following_at=None if next_at is None else cadence.next_after(next_at),
        digest=definition.digest,
        by=by,
    )
    return bool(written)


def _check(changed: Sequence[Any], name: str) -> None:
    """Refuse when nothing was changed: a worker of an earlier release, which takes no lock, came in between."""
    if not changed:
        raise Refused(f"somebody else has changed schedule {name!r} meanwhile: look at it again")


def _since(row: Mapping[str, Any] | None, now: datetime) -> datetime:
    """After which instant to tick: after now, and never again as before, though the clock was set back."""
    last = None if row is None else _at(row["last_at"])
    return now if last is None else max(now, last)


async def _now(tx: Transaction) -> datetime:
    return _instant((await tx.run("schedules_next"))[0]["now"])


def _definition(row: Mapping[str, Any]) -> Definition:
    cadence = Cadence(row["cron"], row["every_seconds"], row["offset_seconds"], row["time_zone"])
    return Definition(row["name"], row["type"], row["payload"], json.loads(row["options"]), cadence, row["catch_up"])


def _schedule(row: Mapping[str, Any]) -> Schedule:
    values = {name: row[name] for name in Schedule.__slots__}
    values |= {"payload": json.loads(row["payload"]), "options": json.loads(row["options"])}
    values |= {name: _at(row[name]) for name in Schedule.__slots__ if name.endswith("_at")}
    return Schedule(**values)


def _plain_options(options: Options) -> dict[str, Any]:
    """Bring options into a form that can be kept as JSON."""
    said = cast("dict[str, Any]", {name: value for name, value in options.items() if value is not None})
    if wrong := sorted(said.keys() & set(_OF_ONE_EVENT)):
        raise ConfigurationError(f"{wrong[0]} belongs to one event: a schedule cannot have it, each tick has its own")
    if "delay" in said:
        said["delay"] = parse_duration(said["delay"])
    if "deadline" in said:
        if isinstance(said["deadline"], datetime):
            raise ConfigurationError("the deadline of a schedule is a span from each tick's publish, like '1h'")
        said["deadline"] = parse_duration(said["deadline"])
    if "priority" in said and isinstance(said["priority"], int):
        said["priority"] = int(said["priority"])
    if isinstance(said.get("headers"), Mapping):
        said["headers"] = dict(said["headers"])
    return said


def _said(text: str, what: Literal["by", "reason"] = "by") -> str:
    """Refuse an act without a name or a reason."""
    if not text.strip():
        raise Refused("say who does it: by=…" if what == "by" else "say why: reason=… is kept on the trail")
    return check_text(text, what, _ACTOR_LIMIT if what == "by" else _REASON_LIMIT)


def _instant(value: Any) -> datetime:
    return instant_of(value)


def _at(value: Any) -> datetime | None:
    return None if value is None else _instant(value)


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)
