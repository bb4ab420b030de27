"""Waiting: how soon an idle worker picks up a lone event, and what idling costs."""

import statistics
from typing import Any, Final

from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, alone, together
from redrive.operate.cli.bench.place import Place

_WARM_UP: Final = 10
_MOST_CPU_PERCENT: Final = 1.0


async def latency(setup: Setup, place: Place) -> Report:
    """Pick-up of lone events, 30 to 80 ms apart: from the return of publish to the start of the handler."""
    samples = setup.events or 300
    warm_up = min(_WARM_UP, samples)
    report = Report("latency", place.store, {"samples": samples, "repeat": setup.repeat})
    found: dict[str, list[float]] = {}
    for turn in range(setup.repeat):
        say = setup.saying("latency", turn)
        for label, across in (("", True), ("same_process_", False)):
            say("two processes" if across else "same process")
            published, started = await _pick_ups(place, samples + warm_up, across=across)
            pairs = [(called, returned, started[n]) for n, called, returned in published if n >= warm_up]
            # Commit, wake-up and handler can be quicker than the way back to the publisher: that counts as 0.
            after_return = [max(0.0, start - returned) * 1e3 for _, returned, start in pairs]
            after_call = [(start - called) * 1e3 for called, _, start in pairs]
            for name, values in ((label, after_return), (f"{label}from_call_", after_call)):
                found.setdefault(f"{name}p50_ms", []).append(statistics.median(values))
                found.setdefault(f"{name}p99_ms", []).append(statistics.quantiles(values, n=100)[98])
    for name, values in found.items():
        report.put(name, values)
    if place.store == "postgres":
        report.goal("p50_ms", 10, at_most=True)
        report.goal("p99_ms", 50, at_most=True)
    else:
        report.goal("same_process_p50_ms", 5, at_most=True)
        report.goal("p50_ms", 50, at_most=True)
    return report


async def _pick_ups(
    place: Place, goal: int, *, across: bool
) -> tuple[list[tuple[int, float, float]], dict[int, float]]:
    async with place.fresh() as url:
        worker = Child("pick_up", url=url, goal=goal, publishes=not across)
        results: list[dict[str, Any]] = await together(
            worker, *([Child("publish_spaced", url=url, goal=goal)] if across else [])
        )
    started = dict(results[0]["started"])
    if len(started) != goal:
        raise BenchFailed(f"{len(started)} of {goal} events were picked up")
    return results[-1]["published"], started


async def idle(setup: Setup, place: Place) -> Report:
    """CPU of a worker that has nothing to do."""
    seconds = setup.seconds or 20.0
    report = Report("idle", place.store, {"seconds": seconds, "repeat": setup.repeat})
    percent, memory = [], []
    for turn in range(setup.repeat):
        setup.saying("idle", turn)("waiting")
        async with place.fresh() as url:
            result = await alone("idle", url=url, seconds=seconds)
        percent.append(result["used"] / (result["ended"] - result["began"]) * 100)
        memory.append(result["peak_rss_mb"])
    report.put("cpu_percent", percent)
    report.put("peak_rss_mb", memory)
    report.goal("cpu_percent", _MOST_CPU_PERCENT, at_most=True)
    return report
