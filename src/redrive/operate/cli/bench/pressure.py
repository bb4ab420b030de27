"""Pressure: what slows other queues down. A held snapshot, a full table, a storm of retries."""

import asyncio
from itertools import pairwise
from typing import Any, Final

from redrive.app import Redrive
from redrive.operate.cli.bench.drain import all_delivered, worker_rate
from redrive.operate.cli.bench.measure import (
    BenchFailed,
    Child,
    Report,
    Setup,
    alone,
    counters,
    rate_of,
    rounded,
    together,
)
from redrive.operate.cli.bench.place import Place, Rows, hold_snapshot

_FAILURES: Final = 2
_WARM_UP: Final = 5.0
_WINDOW: Final = 10.0
_BEYOND: Final = 1.0  # seconds that the flow goes on after the last window


async def storm(setup: Setup, place: Place) -> Report:
    """Fail every event twice, then succeed: attempts a second beside the no-op drain."""
    events = setup.events or 100_000
    report = Report("storm", place.store, {"events": events, "failures": _FAILURES, "repeat": setup.repeat})
    rates, drains = [], []
    for turn in range(setup.repeat):
        say = setup.saying("storm", turn)
        say("drain")
        drains.append(await worker_rate(place, events))
        say("storm")
        async with place.fresh(Rows(events)) as url:
            result = await alone("work", url=url, goal=events, failures=_FAILURES)
            await all_delivered(place, url, events)
        rates.append(rate_of([result], events) * (_FAILURES + 1))
    report.put("rate", rates)
    report.put("drain_rate", drains)
    report.ratio("ratio_to_drain", "rate", "drain_rate")
    report.goal("ratio_to_drain", 0.30)
    if setup.profile:
        async with place.fresh(Rows(events)) as url:
            await alone("work", url=url, goal=events, failures=_FAILURES, profile=str(setup.profile))
    return report


async def backlog(setup: Setup, place: Place) -> Report:
    """Drain with as many future, blocked, failed and delivered rows in the table, beside the drain of an empty one."""
    lying = setup.events or 1_000_000
    events = min(lying, 100_000)
    report = Report("backlog", place.store, {"rows_of_each_kind": lying, "events": events, "repeat": setup.repeat})
    rates, empty_rates, raw_rates = [], [], []
    setup.say(f"backlog: writing 4 x {lying:,} rows")
    kinds = (Rows(lying, delay=86_400.0), *(Rows(lying, status=each) for each in ("blocked", "failed", "delivered")))
    async with place.fresh(*kinds) as url:
        async with Redrive(url) as app:  # or the workers would let the blocked ones go
            await app.open_dependency("bench", by="bench", reason="its events are to lie there")
        delivered = lying
        for turn in range(setup.repeat):
            say = setup.saying("backlog", turn)
            say("empty table")
            empty_rates.append(await worker_rate(place, events))
            say("raw loop, full table")
            await place.fill(url, Rows(events))
            raw_rates.append(rate_of([await alone("raw_drain", url=url)], events))
            say("full table")
            await place.fill(url, Rows(events))
            rates.append(rate_of([await alone("work", url=url, goal=events)], events))
            delivered += 2 * events
            await all_delivered(place, url, delivered)
        if setup.profile:
            await place.fill(url, Rows(events))
            await alone("work", url=url, goal=events, profile=str(setup.profile))
    report.put("rate", rates)
    report.put("empty_rate", empty_rates)
    report.put("raw_rate", raw_rates)
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    report.ratio("ratio_to_empty", "rate", "empty_rate")
    report.goal("ratio_to_empty", 0.85)
    return report


async def snapshot(setup: Setup, place: Place) -> Report:
    """Hold a snapshot open while events flow: the last 10 s beside the first."""
    seconds = setup.seconds or 120.0
    window = min(_WINDOW, seconds / 4)
    report = Report("snapshot", place.store, {"seconds": seconds, "window": window})
    for label, bare in (("", False), ("raw_", True)):
        if bare and not setup.raw:
            continue
        setup.say(f"snapshot: {'raw loop' if bare else 'redrive'}, {seconds:.0f} s")
        timeline = await _flow(place, seconds, bare=bare)
        rates = _windows(timeline, window, int(seconds / window + 0.01))
        report.figures[f"{label}first_rate"] = rates[0]
        report.figures[f"{label}last_rate"] = rates[-1]
        report.put(f"{label}rate", rates)
        report.ratio(f"{label}last_to_first", f"{label}last_rate", f"{label}first_rate")
        report.figures[f"{label}rates"] = rates
    report.goal("last_to_first", 0.90)
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    return report


async def _flow(place: Place, seconds: float, *, bare: bool) -> list[tuple[float, int]]:
    """Let events flow, hold a snapshot from the warm-up to the end; return the totals by seconds since then."""
    warm_up = min(_WARM_UP, seconds / 4)
    span = warm_up + seconds + _BEYOND
    async with place.fresh() as url:
        with counters(2) as slots:
            flow: dict[str, Any] = {"url": url, "seconds": span}
            running = asyncio.create_task(
                together(
                    Child("work_flow", **flow, slots=slots[0], bare=bare), Child("publish_flow", **flow, slots=slots[1])
                )
            )
            async with hold_snapshot(url, warm_up):
                results = await running
    timeline = results[0]["timeline"]
    begin = timeline[0][0] + warm_up
    return [(at - begin, total) for at, total in timeline]


def _windows(timeline: list[tuple[float, int]], window: float, number: int) -> list[float]:
    """Turn totals into rates, one for each window; all of them lie within what was noted."""
    if timeline[-1][0] < number * window:
        raise BenchFailed(f"the flow ended after {timeline[-1][0]:.1f} s of {number * window:.1f} s")
    edges = [_total_at(timeline, place * window) for place in range(number + 1)]
    return [rounded((after - before) / window) for before, after in pairwise(edges)]


def _total_at(timeline: list[tuple[float, int]], moment: float) -> float:
    """Tell the total at a moment between two notes, as if it had grown evenly there."""
    for (before, less), (after, more) in pairwise(timeline):
        if moment <= after:
            return less + (more - less) * (moment - before) / (after - before)
    return timeline[-1][1]
