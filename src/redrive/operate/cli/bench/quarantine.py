"""Quarantine: what an operator waits for among a million dead letters, and what a redrive costs everybody else."""

import statistics
from typing import Any, Final

from redrive.operate.cli.bench.drain import all_delivered, worker_rate
from redrive.operate.cli.bench.measure import (
    BenchFailed,
    Child,
    Report,
    Setup,
    alone,
    rate_of,
    rounded,
    samples_of,
    together,
)
from redrive.operate.cli.bench.place import Place, Rows

_GROUPS: Final = 200
_SAMPLES: Final = 20
_WARM_UP: Final = 10
_RATE: Final = 50.0


async def quarantine(setup: Setup, place: Place) -> Report:
    """Pages, groups and selections, and a plan of all, among 5 M rows with 1 M dead letters."""
    rows = setup.events or 5_000_000
    dead = max(1, rows // 5)
    samples = samples_of(rows, _SAMPLES)
    settings = {"rows": rows, "dead_letters": dead, "samples": samples, "repeat": setup.repeat}
    report = Report("quarantine", place.store, settings)
    kinds = (
        Rows(max(1, rows * 7 // 10), status="delivered", groups=_GROUPS),
        Rows(dead, status="failed", groups=_GROUPS),
        Rows(max(1, rows // 10), delay=86_400.0, groups=_GROUPS),
    )
    setup.say(f"quarantine: writing {rows:,} rows")
    found: dict[str, list[float]] = {}
    pages: dict[str, list[tuple[float, float]]] = {}
    async with place.fresh(*kinds) as url:
        await alone("regroup", url=url)
        for turn in range(setup.repeat):
            say = setup.saying("quarantine", turn)
            say("pages")
            for name, times in (await alone("look", url=url, samples=samples))["pages"].items():
                pages.setdefault(name, []).append((statistics.median(times), statistics.quantiles(times, n=20)[18]))
            say("plan")
            planned = await alone("plan", url=url)
            if planned["count"] != dead:
                raise BenchFailed(f"the plan took {planned['count']} of {dead} dead letters")
            found.setdefault("plan_seconds", []).append(planned["ended"] - planned["began"])
            found.setdefault("plan_peak_rss_mb", []).append(planned["peak_rss_mb"])
    report.table = [
        {
            "page": name,
            "p50_ms": rounded(statistics.median(p50 for p50, _ in times)),
            "p95_ms": rounded(statistics.median(p95 for _, p95 in times)),
        }
        for name, times in pages.items()
    ]
    report.figures["slowest_page_p95_ms"] = max(row["p95_ms"] for row in report.table)
    for name, values in found.items():
        report.put(name, values)
    report.goal("slowest_page_p95_ms", 100, at_most=True)
    report.goal("plan_seconds", 10, at_most=True)
    report.goal("plan_peak_rss_mb", 200, at_most=True)
    return report


async def redrive(setup: Setup, place: Place) -> Report:
    """Redrive dead letters through no-op handlers, from the start to the last outcome, beside the plain drain."""
    events = setup.events or 100_000
    report = Report("redrive", place.store, {"events": events, "repeat": setup.repeat})
    rates, drains = [], []
    for turn in range(setup.repeat):
        say = setup.saying("redrive", turn)
        say("drain")
        drains.append(await worker_rate(place, events))
        say("redrive")
        async with place.fresh(Rows(events, status="failed")) as url:
            result = await alone("redrive_all", url=url)
            await all_delivered(place, url, events)
        rates.append(rate_of([result], events))
    report.put("rate", rates)
    report.put("drain_rate", drains)
    report.ratio("ratio_to_drain", "rate", "drain_rate")
    report.goal("ratio_to_drain", 0.50)
    if setup.profile:
        async with place.fresh(Rows(events, status="failed")) as url:
            await alone("redrive_all", url=url, profile=str(setup.profile))
    return report


async def beside(setup: Setup, place: Place) -> Report:
    """Pick-up of lone live events while a redrive goes on at 50 a second, beside the same without one."""
    samples = setup.events or 300
    report = Report("beside", place.store, {"samples": samples, "redrive_rate": _RATE, "repeat": setup.repeat})
    found: dict[str, list[float]] = {}
    for turn in range(setup.repeat):
        for label, rate in (("", None), ("beside_", _RATE)):
            setup.saying("beside", turn)("a redrive goes on" if rate else "alone")
            waits = await _pick_ups(place, samples + _WARM_UP, rate)
            found.setdefault(f"{label}p50_ms", []).append(statistics.median(waits))
            found.setdefault(f"{label}p99_ms", []).append(statistics.quantiles(waits, n=100)[98])
    for name, values in found.items():
        report.put(name, values)
    report.ratio("ratio_of_p50", "beside_p50_ms", "p50_ms")
    report.goal("ratio_of_p50", 1.2, at_most=True)
    return report


async def _pick_ups(place: Place, goal: int, rate: float | None) -> list[float]:
    """Publish lone events and return how long each took from the call to its handler, in milliseconds."""
    dead = 0 if rate is None else int(goal * 0.1 * rate)  # more than can be released meanwhile
    async with place.fresh(*([Rows(dead, status="failed")] if dead else [])) as url:
        results: list[dict[str, Any]] = await together(
            Child("pick_up", url=url, goal=goal, publishes=False, redrive_rate=rate),
            Child("publish_spaced", url=url, goal=goal),
        )
    started = dict(results[0]["started"])
    if len(started) != goal:
        raise BenchFailed(f"{len(started)} of {goal} events were picked up")
    if rate is not None and not results[0]["redriven"]:
        raise BenchFailed("the redrive released nothing meanwhile")
    return [(started[n] - called) * 1e3 for n, called, _ in results[1]["published"] if n >= _WARM_UP]
