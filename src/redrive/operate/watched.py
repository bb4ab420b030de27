"""Watched: what the database knows beside events, from batches to what needs a person, for Prometheus.

Each function below is a source of ``metrics.py``: it answers with readings of the families above it, from rows that an
index leads to, and a bounded number of them.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from redrive.app import Redrive
from redrive.attention import SOURCES as MATTERS
from redrive.attention import Urgency
from redrive.batch import GRACE_SECONDS
from redrive.counts import MOST_NAMES, RECOVERY_BOUNDS, Histogram
from redrive.operate.reading import Metric, Reading, seconds_between
from redrive.transport.relay import RELAY
from redrive.transport.traffic import STALE_SECONDS

_MOST: Final = 1_000
_MOST_FINDINGS: Final = 200
_REMEMBERED_SECONDS: Final = 300.0  # by then a final notice that was written is committed

BATCHES: Final = Metric(
    "redrive_batches", "gauge",
    "Batches that have not sent their final notice: open, running (closed), tried (first notice sent). Of the newest "
    "1,000, the oldest 1,000 that are closed, and those that were seen before.", ("state",),
)  # fmt: skip
OVERDUE: Final = Metric(
    "redrive_batches_overdue", "gauge",
    "Batches that should have sent their final notice by their deadline; counted up to 1,001.",
)  # fmt: skip
BATCH_SECONDS: Final = Metric(
    "redrive_batch_seconds", "histogram",
    "Time from the first notice of a batch to its final one, of those that ended while this process was being asked. "
    "Every process counts all of them: take the max of the rates.",
)  # fmt: skip
UNSENT: Final = Metric(
    "redrive_relay_unsent", "gauge",
    "Events that a route has not sent; of the first 1,000 of each priority and generation in its queue, of the first "
    "1,000 that wait for a broker, and of all that are in flight.", ("route",),
)  # fmt: skip
OLDEST_UNSENT: Final = Metric(
    "redrive_relay_oldest_unsent_seconds", "gauge", "For how long the oldest of them has waited to be sent.", ("route",)
)
TRANSPORTS: Final = Metric(
    "redrive_transport_workers", "gauge",
    "Workers by how they stand with a route or intake: ok, connecting, unreachable, refused, paused or idle.",
    ("transport", "kind", "state"),
)  # fmt: skip
INTAKE_LAG: Final = Metric(
    "redrive_intake_lag", "gauge", "Messages that wait at the broker for an intake, as far as the broker says.",
    ("intake",),
)  # fmt: skip
FINDINGS: Final = Metric(
    "redrive_findings", "gauge",
    "Differences that reconcilers have found and that are there still, by kind (missing, extra, different) and state "
    "(open, ignored); of the latest 200 of each reconciler.", ("reconciler", "kind", "state"),
)  # fmt: skip
FAILING: Final = Metric(
    "redrive_reconciler_failing", "gauge", "1 when the last run of a reconciler that has ended failed.", ("reconciler",)
)
LOOKED: Final = Metric(
    "redrive_reconciler_last_run_seconds", "gauge", "How long ago a run of a reconciler began.", ("reconciler",)
)
LATE: Final = Metric(
    "redrive_schedules_late", "gauge",
    "Schedules whose time has come and that nobody has published; counted up to 1,001.",
)  # fmt: skip
LATENESS: Final = Metric("redrive_schedule_late_seconds", "gauge", "How late the latest of them is.")
ATTENTION: Final = Metric(
    "redrive_attention", "gauge",
    "What will not move by itself, by kind and by how long it can wait (now, soon, know); up to 21 of a kind. Each "
    "look at the database asks for one kind anew.",
    ("kind", "urgency"),
)  # fmt: skip

KNOWN: Final = (
    BATCHES, OVERDUE, BATCH_SECONDS, UNSENT, OLDEST_UNSENT, TRANSPORTS, INTAKE_LAG, FINDINGS, FAILING, LOOKED, LATE,
    LATENESS, ATTENTION,
)  # fmt: skip


# --- batches ---


class Endings:
    """How long batches took from the first notice to the final one, counted from look to look.

    The database writes the notices, so no worker sees one pass. But those that ended since the last look are few: they
    were seen before, or are among the newest.
    """

    def __init__(self) -> None:
        self.times = Histogram(RECOVERY_BOUNDS)
        self.unfinished: set[str] = set()
        self._counted: dict[str, Any] = {}
        self._looked_at: Any = None

    def take(self, rows: Iterable[Mapping[str, Any]], now: Any) -> None:
        """Count those that have ended since the last look; the first look only learns what there is."""
        self.unfinished.clear()
        for row in rows:
            id_, ended = str(row["id"]), row["final_at"]
            if ended is None:
                self.unfinished.add(id_)
            elif id_ not in self._counted and self._is_recent(ended):
                self._counted[id_] = ended
                if self._looked_at is not None:
                    self.times.add(seconds_between(row["first_at"] or row["closed_at"], ended))
        self._looked_at = now
        self._counted = {id_: ended for id_, ended in self._counted.items() if self._is_recent(ended)}

    def _is_recent(self, ended: Any) -> bool:
        return self._looked_at is None or seconds_between(ended, self._looked_at) <= _REMEMBERED_SECONDS


_endings: WeakKeyDictionary[Redrive, Endings] = WeakKeyDictionary()


async def _batches(app: Redrive) -> list[Reading]:
    endings = _endings.setdefault(app, Endings())
    found = await app.store.ask("batches_watched", ids=sorted(endings.unfinished), limit=_MOST)
    rows = [row for row in found if row["id"] is not None]
    endings.take(rows, found[0]["now"])
    states = Counter(_state(row) for row in rows if row["final_at"] is None)
    overdue = await app.store.ask("batch_overdue", grace=GRACE_SECONDS, limit=_MOST + 1)
    told = [Reading(BATCHES, states[state], (state,)) for state in ("open", "running", "tried")]
    return [*told, Reading(OVERDUE, len(overdue)), Reading(BATCH_SECONDS, endings.times)]


def _state(row: Mapping[str, Any]) -> str:
    return "open" if row["closed_at"] is None else "running" if row["first_at"] is None else "tried"


# --- brokers ---


async def _transports(app: Redrive) -> list[Reading]:
    rows = await app.store.ask("transports")
    relays = app.traffic.relays
    routes = {row["name"] for row in rows if row["kind"] == "relay"} | relays.keys()
    told = [*_links(rows)]
    if not routes:
        return told
    unsent = await app.traffic.unsent(rows)
    for target in sorted(routes | unsent.keys())[:MOST_NAMES]:
        row, route = unsent.get(target), target.removeprefix(RELAY)
        told.append(Reading(UNSENT, row["n"] if row else 0, (route,)))
        told.append(Reading(OLDEST_UNSENT, seconds_between(row["oldest_at"], row["now"]) if row else 0.0, (route,)))
    return told


def _links(rows: Iterable[Mapping[str, Any]]) -> Iterable[Reading]:
    states: Counter[tuple[str, str, str]] = Counter()
    lags: dict[str, int] = {}
    for row in rows:
        if seconds_between(row["written_at"], row["now"]) > STALE_SECONDS:
            continue
        states[row["name"], row["kind"], row["state"]] += 1
        if row["kind"] == "intake" and row["lag"] is not None:
            lags[row["destination"]] = max(row["lag"], lags.get(row["destination"], 0))
    for of, number in states.most_common(MOST_NAMES):
        yield Reading(TRANSPORTS, number, of)
    for intake, lag in sorted(lags.items())[:MOST_NAMES]:
        yield Reading(INTAKE_LAG, lag, (intake,))


# --- what is put right, and what comes round ---


async def _reconcilers(app: Redrive) -> list[Reading]:
    told = []
    for row in await app.store.ask("reconcilers_last", limit=MOST_NAMES):
        told.append(Reading(FAILING, int(row["state"] == "failed"), (row["name"],)))
        told.append(Reading(LOOKED, seconds_between(row["looked_at"], row["now"]), (row["name"],)))
    findings = await app.store.ask("findings_standing", names=MOST_NAMES, limit=_MOST_FINDINGS)
    return told + [Reading(FINDINGS, row["n"], (row["name"], row["kind"], row["state"])) for row in findings]


async def _schedules(app: Redrive) -> list[Reading]:
    (row,) = await app.store.ask("schedules_late", limit=_MOST + 1)
    return [Reading(LATE, row["late"]), Reading(LATENESS, seconds_between(row["since"], row["now"]))]


class Matters:
    """How many there are of each kind. They last, and to look for all of them takes as long as all the rest.

    So the first look asks for every kind, and each further one for the kind that was asked for longest ago.
    """

    def __init__(self) -> None:
        self.found: dict[str, Counter[Urgency]] = {}

    def wanted(self) -> tuple[str, ...]:
        """Name the kinds to look for next."""
        return (next(iter(self.found)),) if self.found else tuple(MATTERS)

    def take(self, kind: str, urgencies: Iterable[Urgency]) -> None:
        """Keep what was found, behind what the others have."""
        self.found.pop(kind, None)
        self.found[kind] = Counter(urgencies)


_matters: WeakKeyDictionary[Redrive, Matters] = WeakKeyDictionary()


async def _attention(app: Redrive) -> list[Reading]:
    matters = _matters.setdefault(app, Matters())
    wanted = matters.wanted()
    found = await app.attention(kinds=wanted)
    for kind in wanted:
        matters.take(kind, [each.urgency for each in found if each.kind == kind])
    return [Reading(ATTENTION, matters.found[kind][each], (kind, each.value)) for kind in MATTERS for each in Urgency]


SOURCES: Final[tuple[Callable[[Redrive], Awaitable[list[Reading]]], ...]] = (
    _batches, _transports, _reconcilers, _schedules, _attention,
)  # fmt: skip
