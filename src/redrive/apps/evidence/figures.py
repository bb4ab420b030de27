"""Figures: what Prometheus is told of this app, under the names of its design; the dots became underscores.

What this process has counted is its own; what the database knows is the same whoever is asked. The rules that go with
them are in ``evidence.rules.yml``.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from importlib import resources
from typing import Final

from redrive.apps.evidence.desk import Desk
from redrive.apps.evidence.tables import instant
from redrive.operate.reading import Metric, Reading

_DAY: Final = timedelta(days=1)

ATTEMPTS: Final = Metric(
    "evidence_attach_attempts_total", "counter",
    "Attempts at artifacts of this process: first or retry, attached or failed.", ("attempt", "outcome"),
)  # fmt: skip
FIRST: Final = Metric(
    "evidence_attach_first_attempt_success_rate", "gauge",
    "Share of first attempts that attached, since this process began.",
)  # fmt: skip
RETRIED: Final = Metric(
    "evidence_attach_retry_success_rate", "gauge", "Share of retries that attached, since this process began."
)
PERMANENT: Final = Metric(
    "evidence_permanent_failures_count", "gauge",
    "Artifacts that failed for good in this process; it only grows.", ("error_code",),
)  # fmt: skip
DEPTH: Final = Metric(
    "evidence_retry_queue_depth", "gauge",
    "What waits for a retry or is being retried, as rows and as artifacts; artifacts up to 10,001.", ("of",),
)  # fmt: skip
LATENCY: Final = Metric(
    "evidence_n2_latency_seconds", "gauge", "Time from N1 to N2 of the jobs that ended within a day.", ("stat",)
)
FORCED: Final = Metric("evidence_n2_forced_count", "gauge", "Jobs whose N2 was forced within a day.")
TOOK: Final = Metric("scheduler_duration_seconds", "gauge", "How long the retry scheduler's last look took.")
BATCH: Final = Metric("scheduler_batch_size", "gauge", "Rows of the retry scheduler's last batch.")
CIRCUIT: Final = Metric(
    "scheduler_circuit_breaker_open_count", "gauge", "Looks at which the case API's circuit was open; it only grows."
)
BEAT: Final = Metric(
    "scheduler_heartbeat_age_seconds", "gauge", "For how long the retry scheduler has not been heard of."
)

ALL: Final = (ATTEMPTS, FIRST, RETRIED, PERMANENT, DEPTH, LATENCY, FORCED, TOOK, BATCH, CIRCUIT, BEAT)


def rules() -> str:
    """Return the alert rules as they are written for Prometheus."""
    return resources.files(__package__).joinpath("evidence.rules.yml").read_text(encoding="utf-8")


def register(desk: Desk) -> None:
    """Have them told with the engine's own."""

    @desk.app.measure
    async def measure() -> Iterable[Reading]:
        return [*_counted(desk), *await _known(desk)]


def _counted(desk: Desk) -> Iterator[Reading]:
    attempts = desk.counts.attempts
    for labels, number in attempts.items():
        yield Reading(ATTEMPTS, number, labels)
    for metric, which in ((FIRST, "first"), (RETRIED, "retry")):
        attached, failed = attempts[which, "attached"], attempts[which, "failed"]
        if attached + failed:
            yield Reading(metric, attached / (attached + failed))
    for code, number in desk.counts.permanent.items():
        yield Reading(PERMANENT, number, (code,))


async def _known(desk: Desk) -> list[Reading]:
    now = desk.app.clock.now()
    async with desk.app.transaction() as tx:
        ((artifacts, rows),) = await desk.tables.ask(tx, "depth")
        ((ended, average, longest, forced),) = await desk.tables.ask(tx, "latency", now - _DAY)
        scheduler = await desk.tables.ask(tx, "scheduler")
    told = [Reading(DEPTH, rows, ("rows",)), Reading(DEPTH, artifacts, ("artifacts",)), Reading(FORCED, forced)]
    if ended:
        told += [Reading(LATENCY, average, ("average",)), Reading(LATENCY, longest, ("longest",))]
    for last_run_at, seconds, batch, opened in scheduler:
        last = instant(last_run_at)
        assert last is not None
        told += [Reading(TOOK, seconds), Reading(BATCH, batch), Reading(CIRCUIT, opened)]
        told.append(Reading(BEAT, max(0.0, (now - last).total_seconds())))
    return told
