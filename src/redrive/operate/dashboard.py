"""Dashboard: the same figures for Grafana; `redrive dashboard` prints it as JSON to be imported.

What the database knows is told by every process that is scraped, hence ``max``; what workers count is theirs, hence
``sum``.
"""

from typing import Any, Final

_WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}

_FIRST_ATTEMPT: Final = (
    "sum(rate(redrive_first_attempt_delivered_total{@}[~]))"
    " / sum(rate(redrive_attempts_total{@, outcome='delivered'}[~]))"
)

# Title, kind and unit, how wide, and what is drawn: legend and query. One row of the page each.
# In a query `@` stands for the jobs that were chosen, and `~` for the interval.
_ROWS: Final[tuple[tuple[tuple[str, str, int, tuple[tuple[str, str], ...]], ...], ...]] = (
    (
        ("Workers", "stat", 4, (("workers", "max(redrive_workers{@})"),)),
        ("Oldest due event", "stat:s", 4, (("oldest", "max(redrive_queue_oldest_due_seconds{@})"),)),
        ("Dead letters", "stat", 4, (("dead", "max(redrive_events{@, status='failed'})"),)),
        ("Causes that need a person", "stat", 4, (
            ("causes", "sum(max by (state) (redrive_groups{@, state=~'new|regressed'}))"),
        )),
        ("Delivered at the first attempt", "stat:percentunit", 4, ((
            "first attempt",
            _FIRST_ATTEMPT,
        ),)),
        ("Dependencies down", "stat", 4, ((
            "down",
            "sum(max by (dependency) (redrive_dependency_state{@, state!='closed', kind!='hold'})) or vector(0)",
        ),)),
    ),
    (
        ("Attempts by outcome", "graph:ops", 12, ((
            "{{outcome}}", "sum by (outcome) (rate(redrive_attempts_total{@}[~]))",
        ),)),
        ("Failed attempts by type and class", "graph:ops", 12, ((
            "{{type}} {{class}}",
            "sum by (type, class) (rate(redrive_attempts_total{@, outcome=~'failed|timed_out|lost'}[~]))",
        ),)),
    ),
    (
        ("Events by status", "graph:short", 8, (("{{status}}", "max by (status) (redrive_events{@})"),)),
        ("Queue depth", "graph:short", 8, (("{{queue}}", "max by (queue) (redrive_queue_depth{@})"),)),
        ("Oldest age", "graph:s", 8, (
            ("{{status}}", "max by (status) (redrive_oldest_age_seconds{@})"),
        )),
    ),
    (
        ("Dead letters in quarantine", "graph:short", 8, (
            ("{{type}} {{class}}", "max by (type, class) (redrive_dead_letters{@})"),
        )),
        ("Recovered", "graph:ops", 8, (
            ("by {{by}}", "sum by (by) (rate(redrive_recovered_total{@}[~]))"),
        )),
        ("Time to recovery, median", "graph:s", 8, ((
            "by {{by}}",
            "histogram_quantile(0.5, sum by (by, le) (rate(redrive_recovery_seconds_bucket{@}[~])))",
        ),)),
    ),
    (
        ("Handler run time, p99", "graph:s", 8, ((
            "{{target}}",
            "histogram_quantile(0.99, sum by (target, le) (rate(redrive_handler_seconds_bucket{@}[~])))",
        ),)),
        ("Turn of the store, p95", "graph:s", 8, ((
            "turn",
            "histogram_quantile(0.95, sum by (le) (rate(redrive_turn_seconds_bucket{@}[~])))",
        ),)),
        ("Waiting for a dependency", "graph:short", 8, (
            ("{{dependency}}", "max by (dependency) (redrive_dependency_waiting{@})"),
        )),
    ),
    (
        ("Redrives under way", "graph:short", 8, (
            ("{{outcome}}", "max by (outcome) (redrive_redrive_events{@})"),
        )),
        ("Deduplicated, lost, put back", "graph:ops", 8, (
            ("deduplicated", "sum(rate(redrive_deduplicated_total{@}[~]))"),
            ("leases lost", "sum(rate(redrive_lease_losses_total{@}[~]))"),
            ("swept", "sum(rate(redrive_swept_total{@}[~]))"),
            ("put back", "sum(rate(redrive_put_back_total{@}[~]))"),
        )),
        ("Ordering keys held up", "graph:short", 8, (("keys", "max(redrive_held_keys{@})"),)),
    ),
    (
        ("Unsent by route", "graph:short", 8, (("{{route}}", "max by (route) (redrive_relay_unsent{@})"),)),
        ("Oldest unsent", "graph:s", 8, (
            ("{{route}}", "max by (route) (redrive_relay_oldest_unsent_seconds{@})"),
        )),
        ("Intake lag", "graph:short", 8, (("{{intake}}", "max by (intake) (redrive_intake_lag{@})"),)),
    ),
    (
        ("Messages sent", "graph:ops", 8, (
            ("{{route}}", "sum by (route) (rate(redrive_relay_sent_total{@}[~]))"),
        )),
        ("Messages taken in", "graph:ops", 8, ((
            "{{intake}} {{outcome}}",
            "sum by (intake, outcome) (rate(redrive_intake_messages_total{@}[~]))",
        ),)),
        ("Routes and intakes that are not well", "graph:short", 8, ((
            "{{transport}} {{state}}",
            "max by (transport, state) (redrive_transport_workers{@, state!~'ok|idle'})",
        ),)),
    ),
    (
        ("Batches under way", "graph:short", 8, (
            ("{{state}}", "max by (state) (redrive_batches{@})"),
            ("overdue", "max(redrive_batches_overdue{@})"),
        )),
        ("First to final notice, median", "graph:s", 8, ((
            "median",
            "histogram_quantile(0.5, max by (le) (rate(redrive_batch_seconds_bucket{@}[~])))",
        ),)),
        ("Schedules late", "graph:s", 8, (
            ("late", "max(redrive_schedule_late_seconds{@})"),
            ("number", "max(redrive_schedules_late{@})"),
        )),
    ),
    (
        ("Findings", "graph:short", 8, ((
            "{{reconciler}} {{kind}} {{state}}",
            "max by (reconciler, kind, state) (redrive_findings{@})",
        ),)),
        ("Runs of reconcilers", "graph:ops", 8, (
            ("{{reconciler}} {{outcome}}", "sum by (reconciler, outcome) (rate(redrive_reconcile_runs_total{@}[~]))"),
            ("{{reconciler}} failing", "max by (reconciler) (redrive_reconciler_failing{@}) > 0"),
        )),
        ("Needs a person", "graph:short", 8, ((
            "{{kind}} {{urgency}}",
            "max by (kind, urgency) (redrive_attention{@}) > 0",
        ),)),
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Build it, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in _ROWS:
        left = 0
        height = 4 if row[0][1].startswith("stat") else 8
        for title, kind, width, targets in row:
            panels.append(_panel(len(panels) + 1, title, kind, (left, top, width, height), targets))
            left += width
        assert left == _WIDTH
        top += height
    return {
        "title": "Redrive",
        "uid": "redrive",
        "tags": ["redrive"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _job()]},
        "panels": panels,
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    return {
        "name": "job", "type": "query", "datasource": _SOURCE, "query": "label_values(redrive_database_up, job)",
        "includeAll": True, "multi": True, "allValue": ".*", "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(
    number: int, title: str, kind: str, place: tuple[int, int, int, int], targets: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    shape, _, unit = kind.partition(":")
    left, top, width, height = place
    return {
        "id": number,
        "title": title,
        "type": "stat" if shape == "stat" else "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": left, "y": top, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": unit or "short", "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": _written(query), "legendFormat": legend}
            for place, (legend, query) in enumerate(targets)
        ],
    }


def _written(query: str) -> str:
    return query.replace("@", "job=~'$job'").replace("~]", "$__rate_interval]")
