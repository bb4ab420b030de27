"""Growth: how speed and memory change with the backlog, the size of a payload and the number of workers."""

from typing import Any

from redrive.operate.cli.bench.drain import all_delivered
from redrive.operate.cli.bench.measure import Report, Setup, rate_of, rounded, workers
from redrive.operate.cli.bench.place import Place, Rows

_LARGEST = 1_000_000
_USUAL = 100_000
_BYTES_IN_ALL = 400_000_000
_PAYLOADS = (100, 10_000, 1_000_000)
_WORKERS = (1, 2, 4)
_MOST_MEMORY_MB = 150


async def growth(setup: Setup, place: Place) -> Report:
    """Vary the backlog (10 k to 1 M), the payload (100 B to 1 MB) and the worker processes (1 to 4)."""
    largest = setup.events or _LARGEST
    usual = min(largest, _USUAL)
    report = Report("growth", place.store, {"largest_backlog": largest, "usual": usual})
    for events in sorted({max(1, largest // 100), max(1, largest // 10), largest}):
        await _row(setup, place, report, "backlog", events, 100, 1)
    report.figures["peak_rss_mb"] = max(row["peak_rss_mb"] for row in report.table)
    report.figures["rate"] = report.table[-1]["rate"]
    report.goal("peak_rss_mb", _MOST_MEMORY_MB, at_most=True)
    for size in _PAYLOADS:
        events = max(20, min(usual, _BYTES_IN_ALL // size * usual // _USUAL))
        await _row(setup, place, report, "payload", events, size, 1)
    for number in _WORKERS:
        await _row(setup, place, report, "workers", usual, 100, number)
    return report


async def _row(
    setup: Setup, place: Place, report: Report, varied: str, events: int, payload_bytes: int, processes: int
) -> None:
    setup.say(f"growth: {events:,} events of {payload_bytes:,} bytes, {processes} workers")
    async with place.fresh(Rows(events, payload_bytes=payload_bytes)) as url:
        results = await workers(processes, goal=events, url=url)
        await all_delivered(place, url, events)
    rate = rate_of(results, events)
    row: dict[str, Any] = {
        "varied": varied, "events": events, "payload_bytes": payload_bytes, "workers": processes,
        "rate": rounded(rate), "mb_per_second": rounded(rate * payload_bytes / 1e6),
        "peak_rss_mb": rounded(max(result["peak_rss_mb"] for result in results)),
    }  # fmt: skip
    report.table.append(row)
