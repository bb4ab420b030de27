"""Doctor: look for what will hurt later, and say what to do about it.

Checks only read. Each one answers for itself: one that cannot be made says so and the others still run.
"""

import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from redrive import group
from redrive.app import Redrive
from redrive.attention import Urgency
from redrive.duration import format_duration
from redrive.errors import RedriveError
from redrive.event import ErrorClass, Status
from redrive.instant import from_micros, to_micros
from redrive.operate import views
from redrive.store.base import EventFilter, Session
from redrive.store.sql import migrations
from redrive.store.writer import LEAP_BELIEVED_SECONDS

_OLDEST_DUE_WARNING: Final = 60.0
_OLDEST_DUE_PROBLEM: Final = 900.0
_SKEW_WARNING: Final = 1.0
_SKEW_PROBLEM: Final = 30.0
_SAMPLE: Final = 1_000
_MOST_COMPARED: Final = 10_000
_LOW_DISK: Final = 1 << 30
_NO_DISK: Final = 100 << 20
_OPEN_PROBLEM: Final = 3_600.0
_OLDEST_POSTGRES: Final = 14
_RUNS_WORTH: Final = 100
_CLOSE: Final = 0.8
# https://sqlite.org/wal.html#walresetbug: 3.7.0 to 3.51.2, corrected in 3.51.3 and, for older lines, in these.
_CORRECTED_SQLITE: Final = {(3, 44): 6, (3, 50): 7, (3, 51): 3}
_FIRST_CORRECT_SQLITE: Final = (3, 51, 3)


class Health(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    health: Health
    what: str
    what_to_do: str = ""

    @property
    def id(self) -> str:
        """What a program knows it by."""
        return self.name.replace(" ", "-")

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "id": self.id,
            "name": self.name,
            "health": str(self.health),
            "what": self.what,
            "what_to_do": self.what_to_do or None,
        }


def _ok(name: str, what: str) -> Check:
    return Check(name, Health.OK, what)


def _warning(name: str, what: str, what_to_do: str) -> Check:
    return Check(name, Health.WARNING, what, what_to_do)


def _problem(name: str, what: str, what_to_do: str) -> Check:
    return Check(name, Health.PROBLEM, what, what_to_do)


async def examine(app: Redrive) -> AsyncIterator[Check]:
    """Make every check that can be made; stops early when the database cannot be used at all."""
    try:
        await app.store.open()
    except RedriveError as error:
        yield _problem("database", str(error), "correct the URL, or bring the database up")
        return
    try:
        async for check in look(app):
            yield check
    finally:
        await app.store.close()


async def look(app: Redrive) -> AsyncIterator[Check]:
    """Make every check on an app that is open, and leave it open."""
    yield await _answers(app)
    schema = await _schema(app)
    yield schema
    if schema.health is not Health.PROBLEM:
        for name, check in (*_ABOUT_THE_STORE[app.store.name], *_ABOUT_THE_WORK):
            yield await _made(name, check, app)


async def problems(app: Redrive) -> list[Check]:
    """List what is not as it should be, the worst first: for a page of a running server."""
    await app.open()
    found = [check async for check in look(app) if check.health is not Health.OK]
    return sorted(found, key=lambda check: check.health is not Health.PROBLEM)


async def _made(name: str, check: Callable[[Redrive], Awaitable[Check]], app: Redrive) -> Check:
    try:
        return await check(app)
    except RedriveError as error:
        return _warning(name, f"could not be checked: {error}", "see to that first")


# --- the store ---


async def _answers(app: Redrive) -> Check:
    return _ok("database", await app.store.version())


async def _schema(app: Redrive) -> Check:
    found, newest = await app.store.schema_version(), migrations(app.store.name)[-1][0]
    if found == newest:
        return _ok("schema", f"version {found}")
    if found > newest:
        if await app.store.schema_needs() <= newest:
            what = f"version {found}, this redrive knows {newest} and may work on it"
            return _warning("schema", what, "finish the deployment: let everything run the newer redrive")
        return _problem("schema", f"version {found}, this redrive knows {newest}", "upgrade redrive")
    what = f"version {found} of {newest}" if found else "there are no redrive tables yet"
    return _problem("schema", what, "run `redrive migrate`")


def judge_sqlite(version: str) -> Check:
    """Say whether this SQLite has the WAL-reset bug, as far as a version number can tell."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    line, patch = numbers[:2], numbers[2] if len(numbers) > 2 else 0  # noqa: PLR2004 - major, minor, patch
    corrected = numbers >= _FIRST_CORRECT_SQLITE or (line in _CORRECTED_SQLITE and patch >= _CORRECTED_SQLITE[line])
    shown = ".".join(map(str, numbers))
    if corrected:
        return _ok("sqlite", f"SQLite {shown} has the correction of the WAL-reset bug")
    return _warning(
        "sqlite",
        f"SQLite {shown} is a version with the WAL-reset bug: very rarely, two connections that write and checkpoint "
        "at the same moment can damage the file (your distribution may have corrected it under this number)",
        "use a Python with SQLite 3.51.3 or later (or 3.50.7, 3.44.6); until then let one process "
        "alone use the file, and make backups: https://sqlite.org/wal.html#walresetbug",
    )


async def _sqlite_version(app: Redrive) -> Check:
    return judge_sqlite(await app.store.version())


async def _sqlite_durability(app: Redrive) -> Check:
    async with app.store.transaction() as transaction:
        ((mode,),) = await transaction.fetch("pragma journal_mode")
        ((synchronous,),) = await transaction.fetch("pragma synchronous")
    if mode != "wal":
        return _warning("durability", f"journal mode {mode}", "put the file on a local disk, where WAL works")
    if int(synchronous) < 2:  # noqa: PLR2004 - 2 is FULL
        return _warning(
            "durability", f"synchronous={synchronous}: a power cut can take the last commits", "open it with FULL"
        )
    return _ok("durability", "WAL, every commit is synced to disk")


async def _disk(app: Redrive) -> Check:
    path = Path(str(getattr(app.store, "path", ".")))
    free = shutil.disk_usage(path.parent).free
    what = f"{free / (1 << 30):,.1f} GiB free beside {path.name}"
    if free < _NO_DISK:
        return _problem("disk", what, "free some space now: a full disk stops every write")
    if free < _LOW_DISK:
        return _warning("disk", what, "free some space, or `redrive purge --older-than 7d`")
    return _ok("disk", what)


async def _postgres_version(app: Redrive) -> Check:
    shown = await app.store.version()
    major = int((re.findall(r"\d+", shown) or ["0"])[0])
    if major < _OLDEST_POSTGRES:
        return _problem("version", f"{shown} is too old", f"use PostgreSQL {_OLDEST_POSTGRES} or later")
    return _ok("version", f"{shown} is supported")


async def _isolation(app: Redrive) -> Check:
    """Look at what single statements run under; our own connections set it, those of a pooler cannot."""
    async with app.store.transaction() as transaction:
        ((level,),) = await transaction.fetch("show default_transaction_isolation")
    if level == "read committed":
        return _ok("isolation", level)
    return _warning(
        "isolation",
        f"{level} by default: behind a pooler workers and operators may find that others were faster, and try again",
        "for the role that redrive connects as: alter role … set default_transaction_isolation = 'read committed'",
    )


async def _clock(app: Redrive) -> Check:
    async with app.store.transaction() as transaction:
        before = app.clock.now()
        ((theirs,),) = await transaction.fetch("select clock_timestamp()")
        ours = before + (app.clock.now() - before) / 2
    skew = abs((theirs - ours).total_seconds())
    what = f"this host and the server differ by {format_duration(round(skew, 3))}"
    advice = "let NTP set both clocks: the server's clock decides what is due, this one's is in ids and logs"
    if skew > _SKEW_PROBLEM:
        return _problem("clock", what, advice)
    return _warning("clock", what, advice) if skew > _SKEW_WARNING else _ok("clock", what)


async def _file_clock(app: Redrive) -> Check:
    """Look for a leap of the file's clock that retention does not count yet."""
    leaps = await app.store.ask("clock_leaps")
    now = to_micros(app.clock.now())
    doubted = [row for row in leaps if now < row["until"] + LEAP_BELIEVED_SECONDS * 1_000_000]
    if not doubted:
        return _ok("clock", "no leap of the clock keeps retention waiting")
    size = format_duration(round(sum(row["until"] - row["since"] for row in doubted) / 1e6))
    believed = from_micros(max(row["until"] for row in doubted)) + timedelta(seconds=LEAP_BELIEVED_SECONDS)
    return _warning(
        "clock",
        f"the clock went forward by {size} while nobody saw time pass: retention does not count that time before "
        f"{believed:%Y-%m-%d %H:%M} UTC",
        "nothing, if no worker ran meanwhile; otherwise set the machine's clock right",
    )


# --- the work ---


def alive(session: Session, now: datetime) -> bool:
    """Say whether a worker is there."""
    return session.ended_at is None and session.lease_until is not None and session.lease_until > now


async def _workers(app: Redrive) -> Check:
    now = await _now(app)
    here = [each for each in await views.workers(app) if alive(each, now)]
    if here:
        return _ok("workers", f"{len(here)} at work on {len({each.host for each in here})} host(s)")
    waiting = (await app.store.overview())["pending"]
    if waiting:
        return _warning("workers", f"none is running, events wait: {waiting:,}", "start one: `redrive worker APP`")
    return _ok("workers", "none is running, nothing waits")


async def _unserved(app: Redrive) -> Check:
    now = await _now(app)
    here = [each for each in await views.workers(app) if alive(each, now)]
    served = {(queue, target) for each in here for queue in each.queues for target in each.targets}
    waiting = await app.events(EventFilter(status=Status.PENDING, limit=_SAMPLE))
    orphans = Counter(event.target for event in waiting if (event.queue, event.target) not in served)
    if not orphans or not here:
        return _ok("targets", "every event that waits has a worker" if here else "no worker to compare with")
    some = ", ".join(f"{target} ({count})" for target, count in orphans.most_common(5))
    return _warning(
        "targets",
        f"no live worker serves {some}",
        "deploy a worker with these handlers and queues, or cancel the events",
    )


async def _generations(app: Redrive) -> Check:
    left = [each for each in await views.unserved(app) if each.generation]
    if not left:
        return _ok("generations", "every generation that waits has a worker")
    some = ", ".join(f"generation {each.generation} in queue {each.queue} ({each.waiting:,})" for each in left[:5])
    return _problem(
        "generations",
        f"no live worker serves {some}",
        f"serve them: `redrive worker APP --generation {left[0].generation} --drain`, or cancel them",
    )


async def _ordering_keys(app: Redrive) -> Check:
    held = await app.held_keys(limit=1)
    if not held:
        return _ok("ordering keys", "none is held up by a dead letter")
    oldest = held[0]
    return _warning(
        "ordering keys",
        f"dead letters hold up keys: {oldest.ordering_key} of {oldest.target} since {oldest.since:%Y-%m-%d %H:%M} UTC",
        "replay, release or skip their heads: `redrive keys ls`",
    )


async def _expired(app: Redrive) -> Check:
    now = await _now(app)
    sessions = {each.id: each for each in await views.workers(app)}
    held = await app.events(EventFilter(status=Status.IN_FLIGHT, limit=_SAMPLE))
    gone = [
        event for event in held
        if event.session_id is None or event.session_id not in sessions or not alive(sessions[event.session_id], now)
    ]  # fmt: skip
    if not gone:
        return _ok("leases", f"in flight: {len(held)}, all with live workers")
    return _warning(
        "leases",
        f"held by workers that are gone: {len(gone)}",
        "any running worker takes them back within seconds: start one",
    )


async def _backlog(app: Redrive) -> Check:
    oldest = (await app.store.overview())["oldest_due_seconds"]
    if oldest is None or oldest < _OLDEST_DUE_WARNING:
        return _ok("backlog", "nothing due waits longer than a minute")
    what = f"the oldest due event has waited for {format_duration(round(oldest))}"
    advice = "start more workers, raise --concurrency, or see which type is slow: `redrive events ls -s pending`"
    return (_problem if oldest > _OLDEST_DUE_PROBLEM else _warning)("backlog", what, advice)


async def _dependencies(app: Redrive) -> Check:
    found = await views.dependencies(app)
    shut = [each for each in found if each.of.is_shut]
    if not shut:
        coming = sum(each.waiting for each in found)
        return _ok("dependencies", f"none is shut; coming back: {coming:,}" if coming else "none is shut")
    spans = {each.of.name: (each.of.now - (each.of.opened_at or each.of.now)).total_seconds() for each in shut}
    some = ", ".join(
        f"{each.of.name} ({format_duration(round(spans[each.of.name]))}, waiting: {each.waiting:,})"
        for each in shut[:5]
    )
    advice = "see why: `redrive deps ls`; close what is back, resume what is paused"
    long = max(spans.values()) > _OPEN_PROBLEM
    return (_problem if long else _warning)("dependencies", f"shut: {some}", advice)


async def _dead_letters(app: Redrive) -> Check:
    failed = (await app.store.overview())["failed"]
    if not failed:
        return _ok("dead letters", "none")
    count = "more than 10,000" if failed > 10_000 else f"{failed:,}"  # noqa: PLR2004 - the cap of overview.sql
    return _warning("dead letters", f"{count} in quarantine", "look at them: `redrive dlq ls`")


async def _attention(app: Redrive) -> Check:
    found = [each for each in await app.attention() if each.urgency is not Urgency.KNOW]
    if not found:
        return _ok("attention", "nothing waits for a person")
    return _warning("attention", f"waiting for a person: {len(found)}", "see what, and what to do: `redrive attention`")


async def _groups(app: Redrive) -> Check:
    failed = (await app.store.overview())["failed"]
    if failed > _MOST_COMPARED:
        return _ok("groups", f"too many dead letters to count here ({failed:,}); the workers do so now and then")
    wrong = await group.miscounts(app.store)
    if not wrong:
        return _ok("groups", "every group counts its dead letters right")
    missing = sum(each.dead_count is None for each in wrong)
    what = f"wrong counts: {len(wrong) - missing:,}, missing groups: {missing:,}"
    return _warning("groups", what, "count them anew: `redrive groups rebuild`")


async def _time_limits(app: Redrive) -> Check:
    """Look for handlers that need more time than they have: by their dead letters, and by what this process saw."""
    dead: Counter[str] = Counter()
    for row in await app.store.ask("dead_counts"):
        if row["error_class"] in (ErrorClass.TIMED_OUT, ErrorClass.WORKER_LOST):
            dead[f"{row['type']} ({row['error_class'].replace('_', ' ')})"] += row["dead"]
    slow = [
        f"{target} (99 % within {format_duration(p99)}, timeout {format_duration(handler.timeout)})"
        for target, handler in app.handlers.items()
        if handler.timeout is not None
        and target in app.counts.runs
        and (runs := app.counts.runs[target]).count >= _RUNS_WORTH
        and _CLOSE * handler.timeout <= (p99 := runs.quantile(0.99)) < float("inf")
    ]
    if not dead and not slow:
        return _ok("time limits", "no dead letter ran out of time or killed its worker")
    some = ", ".join([*(f"{name}: {count:,}" for name, count in dead.most_common(5)), *slow[:5]])
    return _warning(
        "time limits",
        f"handlers need more time than they have: {some}",
        "give them more time (`redrive policy set TYPE --timeout …`), make them faster, or isolate those that block",
    )


async def _retention(app: Redrive) -> Check:
    kept = app.retention
    if kept.delivered is None:
        return _warning("retention", "delivered events are kept for ever", "limit them: Retention.of(delivered='30d')")
    dead = "for ever" if kept.failed is None else f"for {format_duration(kept.failed)}"
    return _ok("retention", f"delivered events stay for {format_duration(kept.delivered)}, dead letters {dead}")


async def _dedupe(app: Redrive) -> Check:
    """Say how long a duplicate is recognised."""
    kept = app.retention.handled
    if kept is None:
        return _ok("dedupe", "handled keys are kept for ever")
    span = format_duration(kept)
    return _ok("dedupe", f"handled keys are kept for {span}, and while an event with the key can still run")


async def _now(app: Redrive) -> datetime:
    """Tell the time that leases are measured by."""
    if app.store.name != "postgres":
        return app.clock.now()
    async with app.store.transaction() as transaction:
        ((now,),) = await transaction.fetch("select clock_timestamp()")
    return now + timedelta(0)  # type: ignore[no-any-return]


def _seconds(now: Any, since: Any) -> float:
    return float((now - since).total_seconds() if isinstance(now, datetime) else (now - since) / 1e6)


_Named = tuple[str, Callable[[Redrive], Awaitable[Check]]]
_ABOUT_THE_STORE: Final[dict[str, tuple[_Named, ...]]] = {
    "sqlite": (
        ("sqlite", _sqlite_version),
        ("durability", _sqlite_durability),
        ("disk", _disk),
        ("clock", _file_clock),
    ),
    "postgres": (("version", _postgres_version), ("isolation", _isolation), ("clock", _clock)),
}
_ABOUT_THE_WORK: Final[tuple[_Named, ...]] = (
    ("workers", _workers),
    ("targets", _unserved),
    ("generations", _generations),
    ("leases", _expired),
    ("backlog", _backlog),
    ("dependencies", _dependencies),
    ("dead letters", _dead_letters),
    ("groups", _groups),
    ("ordering keys", _ordering_keys),
    ("attention", _attention),
    ("time limits", _time_limits),
    ("retention", _retention),
    ("dedupe", _dedupe),
)
