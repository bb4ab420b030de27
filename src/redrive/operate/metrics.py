"""Metrics: what Prometheus is told, from two sources.

What the workers of this process have counted (``counts.py``) is read as it stands. What only the database knows is
asked for in bounded queries, at most every few seconds, however many scrape. Labels are types, classes, outcomes and
the like, never ids; of each there are at most so many, and the rest counts as ``other``.

To add a family: declare a ``Metric``, and say its values in one of ``SOURCES``.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from redrive.app import Redrive
from redrive.counts import MOST_NAMES, OTHER, Histogram
from redrive.dependency import State, kind_of
from redrive.errors import MissingDriver, StoreUnavailable
from redrive.event import THROTTLE
from redrive.logs import log
from redrive.operate import watched
from redrive.operate.reading import Metric, Reading, seconds_between

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_KEEP_SECONDS: Final = 5.0
_SHARE: Final = 20.0  # what takes long is asked for less often: a twentieth of the time at most
_CAP: Final = 10_000
_LOOKED_AT: Final = 1_000
_MOST_WAITED_FOR: Final = 50
_MOST_KEYS: Final = 100


# --- what the workers of this process have counted ---

ATTEMPTS: Final = Metric(
    "redrive_attempts_total", "counter",
    "Attempts by type, outcome (delivered, failed, timed_out, cancelled, lost, blocked, deferred) and error class.",
    ("type", "outcome", "class"),
)  # fmt: skip
AT_ONCE: Final = Metric(
    "redrive_first_attempt_delivered_total", "counter", "Events that their first attempt delivered.", ("type",)
)
RECOVERED: Final = Metric(
    "redrive_recovered_total", "counter",
    "Events that were delivered after a failure: by a retry, or by a replay, alone or in a redrive.", ("type", "by"),
)  # fmt: skip
RECOVERY: Final = Metric(
    "redrive_recovery_seconds", "histogram",
    "Time from the publish to the delivery, of events that their first attempt did not deliver.", ("by",),
)  # fmt: skip
DEAD_LETTERED: Final = Metric(
    "redrive_dead_lettered_total", "counter", "Events that became dead letters.", ("type", "class")
)
HOOKS_FAILED: Final = Metric(
    "redrive_hook_failures_total", "counter",
    "Hooks (on_retry, on_dead_letter) whose work, or a part of it, could not be written: evidence is missing.",
    ("target", "hook"),
)  # fmt: skip
RUNS: Final = Metric("redrive_handler_seconds", "histogram", "How long handlers ran, however they ended.", ("target",))
TURNS: Final = Metric(
    "redrive_turn_seconds", "histogram", "How long the store took for a turn: settle what has ended, claim what is due."
)
CLAIMED: Final = Metric("redrive_claimed_total", "counter", "Events that were claimed.")
DEDUPLICATED: Final = Metric(
    "redrive_deduplicated_total", "counter", "Deliveries without a second effect: the idempotency key had been handled."
)
LEASES_LOST: Final = Metric(
    "redrive_lease_losses_total", "counter", "Outcomes that could not be written because the lease had gone to another."
)
SWEPT: Final = Metric("redrive_swept_total", "counter", "Events that were taken back from workers that are gone.")
PUT_BACK: Final = Metric("redrive_put_back_total", "counter", "Events that were handed back without an attempt.")
THROTTLED: Final = Metric(
    "redrive_throttled_total", "counter", "Events that had to wait for the limit of their handler."
)
LEFT_BEHIND: Final = Metric(
    "redrive_left_behind_total", "counter", "Handlers that did not stop when their time was over, and were given up."
)
WAITED_FOR_KEY: Final = Metric(
    "redrive_key_waits_total", "counter",
    "Events that were handed back because another transaction had their idempotency key and had not ended.",
)  # fmt: skip
UNKNOWN: Final = Metric(
    "redrive_unknown_target_total", "counter", "Events that were claimed and have no handler here.", ("target",)
)
SENT: Final = Metric("redrive_relay_sent_total", "counter", "Messages that a broker has acknowledged.", ("route",))
TAKEN_IN: Final = Metric(
    "redrive_intake_messages_total", "counter",
    "Messages that came in: stored as events, duplicate (seen before), reused (dropped: another message had its id), "
    "echo (our own, come back), or refused (those that could not be read, and are dead letters).",
    ("intake", "outcome"),
)  # fmt: skip
RECONCILED: Final = Metric(
    "redrive_reconcile_runs_total", "counter", "Runs of reconcilers that have ended, by outcome: done or failed.",
    ("reconciler", "outcome"),
)  # fmt: skip

# --- what the database knows ---

UP: Final = Metric("redrive_database_up", "gauge", "1 when the database answered; without it nothing below is known.")
EVENTS: Final = Metric(
    "redrive_events", "gauge",
    "Events that have not been delivered or called off, by status. Pending and blocked: exact up to 10,000, above that "
    "an estimate of PostgreSQL. Failed: the dead letters of all groups.", ("status",),
)  # fmt: skip
OLDEST: Final = Metric(
    "redrive_oldest_age_seconds", "gauge",
    "Age of the oldest event in a status: since it was due (pending, in_flight), published (blocked; of the first "
    "thousand), or became a dead letter (failed; the one that was published first).", ("status",),
)  # fmt: skip
WORKERS: Final = Metric("redrive_workers", "gauge", "Worker processes that are at work.")
DEPTH: Final = Metric(
    "redrive_queue_depth", "gauge", "Pending events of a queue; counted up to 10,001 a priority and generation.",
    ("queue",),
)  # fmt: skip
QUEUE_AGE: Final = Metric(
    "redrive_queue_oldest_due_seconds", "gauge", "For how long the oldest due event of a queue has waited.", ("queue",)
)
DUE: Final = Metric(
    "redrive_due_events", "gauge",
    "Events that are due and wait, by type; of the oldest 1,000 of each priority and generation.", ("queue", "type"),
)  # fmt: skip
UNSERVED: Final = Metric(
    "redrive_unserved_events", "gauge", "Pending events of queues and generations that no worker takes.", ("queue",)
)
DEAD: Final = Metric(
    "redrive_dead_letters", "gauge", "Dead letters in quarantine, by type and error class.", ("type", "class")
)
GROUPS: Final = Metric(
    "redrive_groups", "gauge", "Causes that dead letters have, by state: new, ongoing, regressed or resolved.",
    ("state",),
)  # fmt: skip
KEYS: Final = Metric("redrive_held_keys", "gauge", "Ordering keys that a dead letter holds up; counted up to 101.")
DEPENDENCY: Final = Metric(
    "redrive_dependency_state", "gauge", "1 for the state in which a dependency, brake or hold is.",
    ("dependency", "kind", "state"),
)  # fmt: skip
WAITING: Final = Metric(
    "redrive_dependency_waiting", "gauge",
    "Events that are blocked on a dependency, brake, hold or limit; counted up to 1,001.", ("dependency", "kind"),
)  # fmt: skip
REDRIVES: Final = Metric("redrive_redrives", "gauge", "Redrives that are kept, by state.", ("state",))
MEMBERS: Final = Metric(
    "redrive_redrive_events", "gauge",
    "Members of redrives that are not over: ready, released, delivered, failed_same, failed_other, skipped.",
    ("outcome",),
)  # fmt: skip
TOOK: Final = Metric("redrive_scrape_seconds", "gauge", "How long the database took to answer all of this, last time.")

COUNTED: Final = (
    ATTEMPTS, AT_ONCE, RECOVERED, RECOVERY, DEAD_LETTERED, HOOKS_FAILED, RUNS, TURNS, CLAIMED, DEDUPLICATED,
    LEASES_LOST, SWEPT, PUT_BACK, THROTTLED, LEFT_BEHIND, WAITED_FOR_KEY, UNKNOWN, SENT, TAKEN_IN, RECONCILED,
)  # fmt: skip
"""Families of each worker process."""

KNOWN: Final = (
    UP, EVENTS, OLDEST, WORKERS, DEPTH, QUEUE_AGE, DUE, UNSERVED, DEAD, GROUPS, KEYS, DEPENDENCY, WAITING, REDRIVES,
    MEMBERS, *watched.KNOWN, TOOK,
)  # fmt: skip
"""Families of the database: everybody who is asked says the same."""


def counted(app: Redrive) -> Iterator[Reading]:
    """Read what the workers of this process have counted. Touches no database."""
    counts, tally = app.counts, app.counts.together
    for labels, number in [*counts.attempts.items()]:
        yield Reading(ATTEMPTS, number, labels)
    for type_, number in [*counts.at_once.items()]:
        yield Reading(AT_ONCE, number, (type_,))
    for of, number in [*counts.recovered.items()]:
        yield Reading(RECOVERED, number, of)
    for by, recovery in counts.recovery.items():
        yield Reading(RECOVERY, recovery, (by,))
    for of, number in [*counts.dead_lettered.items()]:
        yield Reading(DEAD_LETTERED, number, of)
    yield from _hooks_failed(app)
    for target, runs in [*counts.runs.items()]:
        yield Reading(RUNS, runs, (target,))
    yield Reading(TURNS, counts.turns)
    for metric, number in (
        (CLAIMED, tally.claimed),
        (DEDUPLICATED, tally.deduplicated),
        (LEASES_LOST, tally.leases_lost),
        (SWEPT, tally.swept),
        (PUT_BACK, tally.put_back),
        (THROTTLED, tally.throttled),
        (LEFT_BEHIND, tally.left_behind),
        (WAITED_FOR_KEY, tally.waited_for_key),
    ):
        yield Reading(metric, number)
    for target, number in tally.unknown_targets.items():
        yield Reading(UNKNOWN, number, (target,))
    yield from _carried(app)


def _carried(app: Redrive) -> Iterator[Reading]:
    for relay in app.traffic.relays.values():
        yield Reading(SENT, relay.link.moved, (relay.name,))
    for intake in app.traffic.intakes.values():
        for outcome, number in intake.taken.items():
            yield Reading(TAKEN_IN, number, (intake.name, outcome))
    for of, number in [*app.counts.reconciled.items()]:
        yield Reading(RECONCILED, number, of)


def _hooks_failed(app: Redrive) -> Iterator[Reading]:
    """Say it of every hook, when it is 0 too: an alert asks by how much it grew."""
    for target, handler in [*app.handlers.items()][:MOST_NAMES]:
        for hook in ("on_retry", "on_dead_letter"):
            if getattr(handler, hook) is not None:
                yield Reading(HOOKS_FAILED, app.counts.hooks_failed[target, hook], (target, hook))


async def _events(app: Redrive) -> list[Reading]:
    (row,) = await app.store.ask("standing")
    queues = await app.store.ask("depths", limit=MOST_NAMES)
    told = [
        Reading(WORKERS, row["workers"]),
        Reading(EVENTS, _best(sum(each["waiting"] for each in queues), row["pending_estimate"]), ("pending",)),
        Reading(EVENTS, row["in_flight"], ("in_flight",)),
        Reading(EVENTS, _best(row["blocked"], row["blocked_estimate"]), ("blocked",)),
    ]
    told += [
        Reading(OLDEST, seconds_between(row[f"{status}_since"], row["now"]), (status,))
        for status in ("pending", "in_flight", "blocked", "failed")
    ]
    for each in queues:
        told.append(Reading(DEPTH, each["waiting"], (each["queue"],)))
        told.append(Reading(QUEUE_AGE, each["oldest_due_seconds"] or 0.0, (each["queue"],)))
    return told


def _best(number: int, estimate: int | None) -> int:
    """Believe the count as far as it goes."""
    return number if number <= _CAP else max(number, estimate or 0)


async def _due(app: Redrive) -> list[Reading]:
    due = await app.store.ask("due_types", looked_at=_LOOKED_AT, limit=MOST_NAMES)
    told = [Reading(DUE, row["due"], (row["queue"], row["type"])) for row in due]
    unserved: Counter[str] = Counter()
    for row in await app.store.ask("unserved"):
        unserved[row["queue"]] += row["waiting"]
    return told + [Reading(UNSERVED, number, (queue,)) for queue, number in unserved.most_common(MOST_NAMES)]


async def _dead_letters(app: Redrive) -> list[Reading]:
    dead: Counter[tuple[str, str]] = Counter()
    groups = Counter(dict.fromkeys(("new", "ongoing", "regressed", "resolved"), 0))
    shown: set[str] = set()
    for row in await app.store.ask("dead_counts"):
        if row["type"] in shown or len(shown) < MOST_NAMES:
            shown.add(row["type"])
        dead[row["type"] if row["type"] in shown else OTHER, row["error_class"]] += row["dead"]
        groups[row["state"]] += row["groups"]
    held = len(await app.held_keys(limit=_MOST_KEYS + 1))
    told = [Reading(EVENTS, dead.total(), ("failed",))]
    told += [Reading(DEAD, number, labels) for labels, number in dead.items()]
    return told + [Reading(GROUPS, number, (state,)) for state, number in groups.items()] + [Reading(KEYS, held)]


async def _dependencies(app: Redrive) -> list[Reading]:
    told = [
        Reading(DEPENDENCY, int(row["state"] == state), (row["name"], row["kind"], state.value))
        for row in (await app.store.ask("dependencies"))[:MOST_NAMES]
        for state in State
    ]
    names = [row["name"] for row in await app.store.ask("waited_for")][:_MOST_WAITED_FOR]
    for row in await app.store.ask("blocked_counts", names=names) if names else ():
        kind = "limit" if row["name"].startswith(THROTTLE) else str(kind_of(row["name"]))
        told.append(Reading(WAITING, row["n"], (row["name"], kind)))
    return told


async def _redrives(app: Redrive) -> list[Reading]:
    rows = {row["state"]: row for row in await app.store.ask("redrive_states")}
    states = ("planned", "running", "paused", "halted", "done", "aborted")
    told = [Reading(REDRIVES, rows[state]["n"] if state in rows else 0, (state,)) for state in states]
    going = [rows[state] for state in ("running", "paused", "halted") if state in rows]
    outcomes = ("ready", "released", "delivered", "failed_same", "failed_other", "skipped")
    return told + [Reading(MEMBERS, sum(row[outcome] for row in going), (outcome,)) for outcome in outcomes]


Source = Callable[[Redrive], Awaitable[Iterable[Reading]]]

SOURCES: Final[list[Source]] = [_events, _due, _dead_letters, _dependencies, _redrives, *watched.SOURCES]
"""Who is asked when the database is: each answers with readings of ``KNOWN`` families."""


class Board:
    """What the database said last, for so long as that is fresh."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._asking = asyncio.Lock()
        self._readings: list[Reading] = []
        self._fresh_until = float("-inf")

    async def readings(self) -> list[Reading]:
        """Ask the database unless that was done just now; one asks at a time, the others get the same answer."""
        clock = self._app.clock
        async with self._asking:
            began = clock.monotonic()
            if began >= self._fresh_until:
                self._readings = await self._asked()
                took = clock.monotonic() - began
                self._readings.append(Reading(TOOK, took))
                self._fresh_until = began + max(_KEEP_SECONDS, _SHARE * took)
            return self._readings

    async def _asked(self) -> list[Reading]:
        try:
            await self._app.open()
            found = [reading for source in SOURCES for reading in await source(self._app)]
        except StoreUnavailable:
            return [Reading(UP, 0)]
        for measure in self._app.measures:
            try:
                found += await measure()
            except Exception as error:  # noqa: BLE001 - somebody's own figures must not take ours along
                log.error("metrics of the app's own failed", measure=repr(measure), error=repr(error)[:500])
        return [Reading(UP, 1), *found]


_boards: WeakKeyDictionary[Redrive, Board] = WeakKeyDictionary()


async def metrics_text(app: Redrive) -> bytes:
    """Write everything in Prometheus' text format: what this process has counted, and what the database knows."""
    check_installed()
    board = _boards.setdefault(app, Board(app))
    return _written([*await board.readings(), *counted(app)])


async def written_anew(app: Redrive) -> bytes:
    """Write everything, and ask the database for it whoever has asked before: for tests and benchmarks."""
    return _written([*await Board(app).readings(), *counted(app)])


def check_installed() -> None:
    """Refuse early when the library is missing."""
    try:
        import prometheus_client  # noqa: F401, PLC0415 - an extra: imported when it is asked for
    except ModuleNotFoundError as error:
        raise MissingDriver("metrics need prometheus-client: pip install 'redrive[metrics]'") from error


class Collector:
    """What this process has counted, for a registry of your own: ``REGISTRY.register(Collector(app))``."""

    def __init__(self, app: Redrive) -> None:
        check_installed()
        self._app = app

    def collect(self) -> Iterable["Family"]:
        """Answer a scrape. Asks no database: a registry is read by a thread that has no event loop."""
        return _families([*counted(self._app)])


class _Said:
    """Readings that stand, as the library wants to collect them."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable["Family"]:
        return _families(self._readings)


def _written(readings: Sequence[Reading]) -> bytes:
    from prometheus_client import generate_latest  # noqa: PLC0415 - see check_installed

    return generate_latest(_Said(readings))


def _families(readings: Sequence[Reading]) -> Iterator["Family"]:
    from prometheus_client.core import (  # noqa: PLC0415 - see check_installed
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    kinds: Mapping[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    found: dict[Metric, list[Reading]] = {}
    for reading in readings:
        found.setdefault(reading.metric, []).append(reading)
    for metric, values in found.items():
        if metric.kind == "histogram":
            histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for reading in values:
                assert isinstance(reading.value, Histogram)
                histograms.add_metric(reading.labels, [*_cumulative(reading.value)], reading.value.total)
            yield histograms
            continue
        family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
        for reading in values:
            family.add_metric(reading.labels, reading.value)
        yield family


def _cumulative(histogram: Histogram) -> Iterator[tuple[str, float]]:
    seen = 0
    for bound, number in zip((*histogram.bounds, float("inf")), histogram.buckets, strict=True):
        seen += number
        yield ("+Inf" if bound == float("inf") else str(bound)), seen
