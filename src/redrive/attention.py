"""Attention: everything that will not move by itself, as one list for people.

Most that goes wrong is put right without anybody: retries, probes, sweeps. What is left stands still until a person
acts: dead letters, keys they hold up, redrives that halted, events that no worker takes. Each kind has a source below,
a function that asks the store and answers with matters; all of them only read, and look at a bounded number of rows.
Something new that can stand still gets a function of its own in ``SOURCES``.
"""

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from redrive.dependency import HOLD, QUEUE, Dependency, Kind, standing
from redrive.duration import format_duration
from redrive.errors import Refused
from redrive.event import THROTTLE
from redrive.instant import instant_of, iso
from redrive.redrive import DIGEST_SHOWN
from redrive.setting import AGENTS_ABOVE, AGENTS_ALONE
from redrive.store.base import Session, Store

SHOWN: Final = 20
"""So many matters of one kind are told apart; the others are one line."""

GRACE_SECONDS: Final = 60.0
"""A deploy may leave events without a worker for so long."""

LONG_SECONDS: Final = 3_600.0
"""After this an outage is worth knowing, and a pause may have been forgotten."""

PLANNING_SECONDS: Final = 900.0
"""A plan that is not written down by then was left behind; a million members took a minute."""

_CAP: Final = 10_000  # where the statements stop counting
_KEYS_CAP: Final = 100
_LOOKED: Final = 1_000
_NAMED: Final = 5
_MODULE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*(?::|$))")
_WHY: Final = '"…"'


class Urgency(StrEnum):
    """How long it can wait."""

    NOW = "now"
    """Work stands still, and more may be piling up behind it."""
    SOON = "soon"
    """It stays as it is until somebody decides."""
    KNOW = "know"
    """It may go on by itself, or somebody has said that it can wait."""


@dataclass(frozen=True, slots=True)
class Matter:
    """Something that waits for a person: why, since when, and which command comes next."""

    kind: str
    what: str
    urgency: Urgency
    sentence: str
    act: str
    look: str
    count: int = 1
    more: bool = False
    """There are more than were counted."""
    since: datetime | None = None
    about: str = ""
    """The id of the event, redrive or group, or the name of the reconciler, if it is one alone."""

    @property
    def how_many(self) -> str:
        """The count for people: ``12``, ``10,000+``."""
        return counted(self.count, more=self.more)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**told, "urgency": str(self.urgency), "since": None if self.since is None else iso(self.since)}


@dataclass(frozen=True, slots=True)
class Look:
    """What every source may ask: the store, its time, and how work stands."""

    store: Store
    now: datetime
    work: Mapping[str, Any]
    approval_above: int | None

    def seconds(self, since: datetime | None) -> float:
        """How long ago; what has no beginning is older than anything."""
        return float("inf") if since is None else (self.now - since).total_seconds()


Source = Callable[[Look], Awaitable[Sequence[Matter]]]


async def attention(store: Store, *, kinds: Collection[str] = (), approval_above: int | None = None) -> list[Matter]:
    """Ask every source, or some; what cannot wait comes first."""
    unknown = sorted(set(kinds) - set(SOURCES))
    if unknown:
        raise Refused(f"no matter is of the kind {unknown[0]!r}: there are {', '.join(SOURCES)}")
    (work,) = await store.ask("attention_work")
    now: datetime = _at(work["now"])
    look = Look(store, now, work, approval_above)
    found = [each for kind, source in SOURCES.items() if not kinds or kind in kinds for each in await source(look)]
    urgencies = list(Urgency)
    return sorted(found, key=lambda each: urgencies.index(each.urgency))  # stable: else in the order of the sources


# --- who works ---


async def _no_worker(look: Look) -> list[Matter]:
    work = look.work
    parts = [
        (work["due"], "due"),
        (work["in_flight"], "held by workers that are gone"),
        (work["blocked"], "blocked"),
    ]
    waiting = sum(count for count, _ in parts)
    if work["workers"] or not (waiting or work["running"]):
        return []
    left, oldest = _at(work["left_at"]), _at(work["oldest"])
    since = max((each for each in (left, oldest) if each is not None), default=None)
    if look.seconds(since) < GRACE_SECONDS:
        return []
    told = [f"{counted(count)} {what}" for count, what in parts if count]
    told += [f"{_plural(work['running'], 'redrive')} under way"] if work["running"] else []
    sentence = f"No worker is at work, and there is work: {', '.join(told)}."
    return [
        Matter(
            "worker", "no worker", Urgency.NOW, sentence, "redrive worker APP", "redrive doctor",
            min(waiting or work["running"], _CAP), waiting > _CAP, since,
        )
    ]  # fmt: skip


async def _unserved(look: Look) -> list[Matter]:
    """List what no worker takes; without any worker, what a plain one would not take either."""
    lanes = [
        _lane(row)
        for row in await look.store.ask("attention_lanes", limit=_LOOKED)
        if look.seconds(_at(row["since"])) >= GRACE_SECONDS and (row["generation"] or look.work["workers"])
    ]
    if not look.work["workers"]:
        return _few(lanes, "unserved", "queues and generations wait without a worker", "redrive doctor")
    targets = [
        _target(row["target"], row["queue"], row["generation"], row["waiting"], _at(row["since"]))
        for row in await look.store.ask("attention_targets", limit=_LOOKED)
        if look.seconds(_at(row["since"])) >= GRACE_SECONDS
    ]
    found = [*lanes, *targets, *await _throttled(look)]
    return _few(found, "unserved", "queues, generations and targets wait without a worker", "redrive doctor")


def _lane(row: Mapping[str, Any]) -> Matter:
    queue, generation, waiting = row["queue"], row["generation"], row["waiting"]
    what = f"generation {generation} in queue {queue}" if generation else f"queue {queue}"
    options = ["--queue", queue] + (["--generation", str(generation)] if generation else [])
    sentence = f"{_events(waiting)} of {what} {_wait(waiting)}, and no worker serves {_them(waiting)}."
    term = f" generation:{generation}" if generation else ""
    return Matter(
        "unserved", what, Urgency.NOW, sentence, _command("redrive", "worker", "APP", *options),
        _command("redrive", "events", "ls", f"status:pending queue:{_term(queue)}{term}"), min(waiting, _CAP),
        waiting > _CAP, _at(row["since"]),
    )  # fmt: skip


def _target(target: str, queue: str, generation: int, waiting: int, since: datetime | None) -> Matter:
    options = ["--queue", queue] + (["--generation", str(generation)] if generation else [])
    sentence = (
        f"{_events(waiting)} for {target} {_wait(waiting)} in queue {queue}, and no worker there has a handler for "
        f"{_them(waiting)}: deploy one that has, or cancel {_them(waiting)}."
    )
    return Matter(
        "unserved", f"target {target}", Urgency.NOW, sentence, _command("redrive", "worker", "APP", *options),
        _command("redrive", "events", "ls", "--target", target), min(waiting, _CAP), waiting > _CAP, since,
    )  # fmt: skip


async def _throttled(look: Look) -> list[Matter]:
    """List those who wait for a limit of a handler that nobody has any more: nobody gives permits for it."""
    names = [row["name"] for row in await look.store.ask("waited_for") if row["name"].startswith(THROTTLE)]
    here = [each for each in await look.store.sessions() if _alive(each, look.now)] if names else []
    found = []
    for name in names:
        generation, queue, target = _lane_of(name, here)
        if any(_serves(each, queue, generation) and target in each.targets for each in here):
            continue
        (row,) = await look.store.ask("dependency_waiting", name=name)
        found.append(_target(target, queue, generation, row["n"], None))
        if len(found) > SHOWN:
            break
    return found


def _lane_of(name: str, here: Sequence[Session]) -> tuple[int, str, str]:
    """Read the lane and the target off a name; as names may have colons, those that somebody serves are tried first."""
    _priority, generation, rest = name.removeprefix(THROTTLE).split(":", 2)
    for each in here:
        for queue in each.queues:
            if rest.startswith(f"{queue}:") and rest.removeprefix(f"{queue}:") in each.targets:
                return int(generation), queue, rest.removeprefix(f"{queue}:")
    queue, _, target = rest.partition(":")
    return int(generation), queue, target


def _alive(each: Session, now: datetime) -> bool:
    return each.ended_at is None and each.lease_until is not None and each.lease_until > now


def _serves(each: Session, queue: str, generation: int) -> bool:
    return queue in each.queues and generation in (0, each.generation)


# --- ordering keys ---


async def _held_keys(look: Look) -> list[Matter]:
    """List the keys that somebody waits behind; a dead letter that holds up nobody is one like all others."""
    rows = await look.store.ask("attention_keys", limit=_LOOKED + 1)
    found = [_held(row) for row in rows if row["waiting"]]
    if len(rows) <= _LOOKED:
        return _few(found, "key", "ordering keys are held up by a dead letter", "redrive keys ls")
    sentence = f"More than {_LOOKED:,} ordering keys are held up by a dead letter; the oldest are listed."
    rest = Matter(
        "key", "all keys", Urgency.NOW, sentence, "redrive keys ls --limit 10000", "redrive groups ls", _LOOKED,
        more=True, since=_at(rows[0]["since"]),
    )  # fmt: skip
    return [*found[:SHOWN], rest]


def _held(row: Mapping[str, Any]) -> Matter:
    key, target, waiting = row["ordering_key"], row["target"], row["waiting"]
    many = counted(waiting, cap=_KEYS_CAP)
    sentence = (
        f"{many} {'event waits' if waiting == 1 else 'events wait'} behind a dead letter of {target} with the ordering "
        f"key {key}: replay it once its cause is mended, or release or skip the key."
    )
    return Matter(
        "key", f"{key} of {target}", Urgency.NOW, sentence, f"redrive replay {row['head']} --reason {_WHY}",
        _command("redrive", "keys", "show", "--target", target, "--", key), min(waiting, _KEYS_CAP),
        waiting > _KEYS_CAP, _at(row["since"]), str(row["head"]),
    )  # fmt: skip


# --- dead letters ---


async def _compensations(look: Look) -> list[Matter]:
    groups = await look.store.ask("attention_groups", compensations=True, limit=_LOOKED)
    found = [_undone(row) for row in groups]  # muted or not: somebody's money may be in between
    found += [_dropped(row) for row in await look.store.ask("attention_compensations", limit=SHOWN + 1)]
    return _few(found, "compensation", "causes keep steps from being undone", "redrive dlq ls type:redrive.compensate")


def _undone(row: Mapping[str, Any]) -> Matter:
    count, short = row["dead_count"], _short(row["fingerprint"])
    sentence = (
        f"{_plural(count, 'compensation')} by {row['target'].partition(':')[2]} failed for the last time "
        f"({_said(row['title'])}): what was done is half undone until "
        f"{'it is' if count == 1 else 'they are'} replayed."
    )
    return Matter(
        "compensation", f"group {short}", Urgency.NOW, sentence, f"redrive plan group:{short}",
        f"redrive groups show {short}", count, since=_at(row["since"]), about=short,
    )  # fmt: skip


def _dropped(row: Mapping[str, Any]) -> Matter:
    sentence = (
        f"The compensation {row['target'].partition(':')[2]} of event {row['event_id']} ({row['event_target']}) failed "
        "and was discarded: its step and those before it stay as they are, unless it is restored and replayed."
    )
    return Matter(
        "compensation", str(row["id"]), Urgency.SOON, sentence, f"redrive dlq restore {row['id']} --reason {_WHY}",
        f"redrive events show {row['event_id']}", since=_at(row["since"]), about=str(row["id"]),
    )  # fmt: skip


async def _dead_letters(look: Look) -> list[Matter]:
    rows = await look.store.ask("attention_groups", compensations=False, limit=_LOOKED)
    muted = [row for row in rows if _is_muted(look, row)]
    loud = sorted((row for row in rows if not _is_muted(look, row)), key=lambda row: -row["dead_count"])
    found = [_group(row) for row in loud]
    found = _few(found, "dead-letters", "causes have dead letters", "redrive groups ls --limit 1000")
    (alone,) = await look.store.ask("attention_ungrouped")
    return [*found, *_ungrouped(alone), *_muted(muted)]


def _is_muted(look: Look, row: Mapping[str, Any]) -> bool:
    return row["muted_until"] is not None and _at(row["muted_until"]) > look.now


def _group(row: Mapping[str, Any]) -> Matter:
    count, short = row["dead_count"], _short(row["fingerprint"])
    back = ", which has come back after it was resolved" if row["state"] == "regressed" else ""
    owner = f" {row['owner']} looks after {_them(count)}." if row["owner"] else ""
    sentence = (
        f"{_plural(count, 'dead letter')} of {row['target']} ({_said(row['title'])}){back}: "
        f"mend the cause, then replay {_them(count)}, or discard {_them(count)}.{owner}"
    )
    return Matter(
        "dead-letters", f"group {short}", Urgency.SOON, sentence, f"redrive plan group:{short}",
        f"redrive groups explain {short}", count, since=_at(row["since"]), about=short,
    )  # fmt: skip


def _ungrouped(row: Mapping[str, Any]) -> list[Matter]:
    count = row["n"]
    if not count:
        return []
    many = f"{counted(count)} dead {'letter belongs' if count == 1 else 'letters belong'}"
    sentence = f"{many} to no group: look at {_them(count)}, then replay or discard {_them(count)}."
    return [
        Matter(
            "dead-letters", "no group", Urgency.SOON, sentence, "redrive plan -- '-group:*'",
            "redrive dlq ls -- '-group:*'", min(count, _CAP), count > _CAP, _at(row["since"]),
        )
    ]  # fmt: skip


def _muted(rows: Sequence[Mapping[str, Any]]) -> list[Matter]:
    if not rows:
        return []
    count = sum(row["dead_count"] for row in rows)
    until = min(_at(row["muted_until"]) for row in rows)
    sentence = (
        f"{_plural(count, 'dead letter')} of {_plural(len(rows), 'muted group')} {_wait(count)}, too; the first is "
        f"quiet until {until:%Y-%m-%d %H:%M} UTC."
    )
    look, act = "redrive groups ls", f"redrive groups mute {_short(rows[0]['fingerprint'])} 0"
    since = min(_at(row["since"]) for row in rows)
    return [Matter("dead-letters", "muted groups", Urgency.KNOW, sentence, act, look, count, since=since)]


async def _hooks(look: Look) -> list[Matter]:
    missing: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in await look.store.ask("attention_hooks"):
        missing.setdefault((row["target"], row["hook"] or "on_dead_letter"), []).append(row)
    return _few(
        [_hook(target, hook, rows) for (target, hook), rows in sorted(missing.items())],
        "hook", "hooks failed", "redrive events ls",
    )  # fmt: skip


def _hook(target: str, hook: str, rows: Sequence[Mapping[str, Any]]) -> Matter:
    ids = list(dict.fromkeys(str(row["event_id"]) for row in rows))
    count = len(ids)
    if hook == "on_retry":
        of, way_out = _plural(count, "event"), "Mend the hook, and write that by hand."
        act = f"redrive events timeline {ids[0]}"
    else:
        of, way_out = _plural(count, "dead letter"), "Do that by hand and discard, or mend the hook and replay."
        act = f"redrive replay {' '.join(ids[:_NAMED])} --reason {_WHY}"
    sentence = f"The {hook} hook of {target} failed for {of}: what it should have written is missing. {way_out}"
    return Matter(
        "hook", f"hook of {target}", Urgency.SOON, sentence, act, f"redrive events timeline {ids[0]}", count,
        len(rows) >= _LOOKED, min(_at(row["since"]) for row in rows), ids[0],
    )  # fmt: skip


# --- redrives ---


async def _redrives(look: Look) -> list[Matter]:
    rows = await look.store.ask(
        "attention_redrives", approval=await _approval(look), agents=await _agents(look), planning=PLANNING_SECONDS,
        limit=_LOOKED,
    )  # fmt: skip
    told = [_redrive(row) for row in rows if not _is_short_pause(look, row)]
    return _few(told, "redrive", "redrives stand still", "redrive redrives ls")


async def _approval(look: Look) -> int | None:
    """Above how many events a second person is needed: what the database says for everybody, or the app, if less."""
    rows = await look.store.ask("setting_get", name="approval_above")
    limits = [look.approval_above, json.loads(rows[0]["value"]) if rows else None]
    return min((each for each in limits if each is not None), default=None)


async def _agents(look: Look) -> int:
    """Above how many events an agent needs a person."""
    rows = await look.store.ask("setting_get", name=AGENTS_ABOVE)
    return int(json.loads(rows[0]["value"])) if rows else AGENTS_ALONE


def _is_short_pause(look: Look, row: Mapping[str, Any]) -> bool:
    return row["state"] == "paused" and look.seconds(_at(row["stopped_at"])) < LONG_SECONDS


def _redrive(row: Mapping[str, Any]) -> Matter:
    id_, events = str(row["id"]), _plural(row["ready"], "event")
    stopped = f"by {row['stopped_by']} ({_said(row['stop_reason'] or 'no reason given')})"
    look, urgency, since = f"redrive redrives show {id_}", Urgency.SOON, row["stopped_at"]
    if row["state"] == "halted":
        said = f"A redrive of {events} was halted {stopped}: look at what failed, mend it, then go on or abort it."
        act, look = f"redrive redrives resume {id_}", f"redrive redrives report {id_}"
    elif row["state"] == "paused":
        said = f"A redrive of {events} was paused {stopped}: it goes on when somebody resumes it."
        act = f"redrive redrives resume {id_}"
    elif row["state"] == "planning":
        said = f"A plan of {row['planned_by']} was never finished: whoever made it is gone. Drop it, and plan again."
        act, urgency, since = f"redrive redrives abort {id_} --reason {_WHY}", Urgency.KNOW, row["planned_at"]
    elif row["edited"]:
        said = f"A payload that {row['planned_by']} has edited waits for the approval of somebody else."
        act, since = f"redrive redrives approve {id_}", row["planned_at"]
    elif row["approved_by"] is None:
        said = f"A plan of {row['planned_by']} to redrive {events} waits for the approval of somebody else."
        act, since = f"redrive redrives approve {id_}", row["planned_at"]
    else:
        said = f"{row['approved_by']} approved a redrive of {events}, and nobody has started it."
        act = f"redrive run {id_}:{row['digest'][:DIGEST_SHOWN]} --reason {_WHY}"
        since = row["approved_at"]
    return Matter("redrive", id_, urgency, said, act, look, row["ready"], since=_at(since), about=id_)


# --- what events wait for ---


async def _holds(look: Look) -> list[Matter]:
    """List what a person has shut, and only a person opens again."""
    shut = await _long_shut(look)
    by_hand = [each for each in shut if each.by_hand or each.kind is Kind.HOLD]
    found = [_hold(each, waiting) for each in by_hand if (waiting := await _waiting(look.store, each))]
    return _few(found, "hold", "pauses and circuits opened by hand keep events waiting", "redrive deps ls")


async def _dependencies(look: Look) -> list[Matter]:
    """List brakes at once: nearly all of a target fails, most likely by a fault of its own. And outages that last.

    An outage ends when the other side is back, but somebody should know.
    """
    shut = await _long_shut(look)
    failing = [each for each in shut if not each.by_hand and each.kind is not Kind.HOLD]
    found = [_outage(look, each, waiting) for each in failing if (waiting := await _waiting(look.store, each))]
    return _few(found, "dependency", "dependencies and brakes are open", "redrive deps ls")


async def _long_shut(look: Look) -> list[Dependency]:
    shut = [each for each in await standing(look.store) if each.is_shut]
    return sorted(
        (each for each in shut if each.kind is Kind.BRAKE or look.seconds(each.opened_at) >= LONG_SECONDS),
        key=lambda each: (each.opened_at is not None, each.opened_at, each.name),
    )[:_LOOKED]


async def _waiting(store: Store, each: Dependency) -> int:
    if each.name.startswith(QUEUE):
        (row,) = await store.ask("attention_queue", queue=each.name.removeprefix(QUEUE))
    else:
        (row,) = await store.ask("dependency_waiting", name=each.name)
    return int(row["n"])


def _hold(each: Dependency, waiting: int) -> Matter:
    why = f"{each.opened_by} ({_said(each.reason or 'no reason given')})"
    if each.kind is Kind.HOLD:
        is_queue = each.name.startswith(QUEUE)
        name = each.name.removeprefix(QUEUE if is_queue else HOLD)
        what = f"queue {name}" if is_queue else name
        sentence = f"{_events(waiting)} {_wait(waiting)} because {what} was paused by {why}: only a person resumes it."
        act = _command("redrive", "resume", *(["--queue", name] if is_queue else [name]))
    else:
        what = each.name
        sentence = f"{_events(waiting)} {_wait(waiting)} for {what}, opened by hand by {why}: only a person closes it."
        act = _command("redrive", "deps", "close", each.name)
    return Matter(
        "hold", what, Urgency.SOON, sentence, f"{act} --reason {_WHY}", _command("redrive", "deps", "show", each.name),
        min(waiting, _CAP), waiting > _CAP, each.opened_at,
    )  # fmt: skip


def _outage(look: Look, each: Dependency, waiting: int) -> Matter:
    lasted = "" if each.opened_at is None else f" for {format_duration(round(look.seconds(each.opened_at)))}"
    down = each.reason or ("nearly everything of it failed" if each.kind is Kind.BRAKE else "it failed")
    sentence = (
        f"{_events(waiting)} {_wait(waiting)} for {each.name}, open{lasted} ({_said(down)}): "
        f"{'fix the cause; ' if each.kind is Kind.BRAKE else ''}they come back by themselves once a probe succeeds."
    )
    urgency = Urgency.NOW if each.kind is Kind.BRAKE and not each.by_hand else Urgency.KNOW
    return Matter(
        "dependency", each.name, urgency, sentence,
        f"{_command('redrive', 'deps', 'close', each.name)} --reason {_WHY}",
        _command("redrive", "deps", "show", each.name), min(waiting, _CAP), waiting > _CAP, each.opened_at,
    )  # fmt: skip


# --- what drifts ---


async def _findings(look: Look) -> list[Matter]:
    """List differences that converging does not heal: they come back, or stay through run after run."""
    rows = await look.store.ask("findings_recurring", name=None, limit=_LOOKED)
    return _few(
        [_finding(row) for row in rows], "finding", "differences keep coming back", "redrive reconcile findings"
    )


def _finding(row: Mapping[str, Any]) -> Matter:
    name, key, returned, seen = row["name"], row["key"], row["returned_count"], row["seen_count"]
    how = f"came back {returned} times after it was healed" if returned else f"is there since {seen} runs"
    sentence = f"{_said(key)} of the reconciler {name} is {row['kind']}, and {how}: something undoes what it does."
    return Matter(
        "finding", f"{name}: {_said(key)}", Urgency.SOON, sentence,
        _command("redrive", "reconcile", "ignore", str(row["id"]), "--reason") + f" {_WHY}",
        _command("redrive", "reconcile", "findings", name), 1, since=_at(row["first_seen_at"]), about=name,
    )  # fmt: skip


SOURCES: Final[Mapping[str, Source]] = {
    "worker": _no_worker,
    "unserved": _unserved,
    "key": _held_keys,
    "compensation": _compensations,
    "redrive": _redrives,
    "dead-letters": _dead_letters,
    "hook": _hooks,
    "hold": _holds,
    "dependency": _dependencies,
    "finding": _findings,
}
"""Every kind of matter, and who finds them; the order is that of the list."""


# --- words ---


def _few(found: Sequence[Matter], kind: str, what: str, look: str) -> list[Matter]:
    """Tell some of them apart, and count the others in one line."""
    if len(found) <= SHOWN:
        return list(found)
    rest = found[SHOWN:]
    more = len(found) >= _LOOKED
    sentence = f"{counted(len(rest), more=more)} more {what}."
    since = min((each.since for each in rest if each.since is not None), default=None)
    urgency = min((each.urgency for each in rest), key=list(Urgency).index)
    return [*found[:SHOWN], Matter(kind, "the others", urgency, sentence, look, look, len(rest), more, since)]


def counted(count: int, *, cap: int = _CAP, more: bool = False) -> str:
    """Write a count; statements stop counting one above their cap."""
    return f"{min(count, cap):,}+" if more or count > cap else f"{count:,}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{counted(count)} events"


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _said(text: str) -> str:
    """Take the first line of what was said, without the module of an exception."""
    line = _MODULE.sub("", text.partition("\n")[0].strip(), count=1)
    return line if len(line) <= 100 else line[:99] + "…"  # noqa: PLR2004 - a part of a sentence


def _short(fingerprint: str) -> str:
    return fingerprint.partition(":")[2][:8]


def _command(*words: str) -> str:
    """Write a command so that a shell reads these very words."""
    return " ".join(map(shlex.quote, words))


def _term(value: str) -> str:
    """Write a value so that a selection reads it as it is."""
    return json.dumps(value, ensure_ascii=False)


def _at(value: Any) -> Any:
    return instant_of(value)
