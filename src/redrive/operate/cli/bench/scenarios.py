"""The scenarios: one function each, from a setup and a place to a report."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from redrive.operate.cli.bench import raw
from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, alone, rate_of, together, workers
from redrive.operate.cli.bench.place import Place, Rows

Scenario = Callable[[Setup, Place], Awaitable[Report]]


async def drain(setup: Setup, place: Place) -> Report:
    """No-op handlers: a worker beside the raw claim-and-settle loop."""
    events = setup.events or (100_000 if place.store == "postgres" else 200_000)
    settings = {"events": events, "repeat": setup.repeat, "processes": setup.processes, "raw_batch": raw.BATCH}
    report = Report("drain", place.store, settings)
    rates: list[float] = []
    raw_rates: list[float] = []
    cpu: list[float] = []
    for turn in range(setup.repeat):
        setup.say(f"drain {turn + 1}/{setup.repeat}: raw loop")
        async with place.fresh(Rows(events)) as url:
            raw_rates.append(
                rate_of(await together(*(Child("raw_drain", url=url) for _ in range(setup.processes))), events)
            )
            await _all_delivered(place, url, events)
        setup.say(f"drain {turn + 1}/{setup.repeat}: redrive")
        async with place.fresh(Rows(events)) as url:
            results = await workers(setup.processes, goal=events, url=url)
            rates.append(rate_of(results, events))
            cpu.append(sum(result["cpu_seconds"] for result in results) / events * 1e6)
            await _all_delivered(place, url, events)
    report.put("rate", rates)
    report.put("raw_rate", raw_rates)
    report.put("cpu_us_per_event", cpu)
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    report.goal("ratio_to_raw", 0.40 if place.store == "postgres" else 0.25)
    if setup.profile:
        async with place.fresh(Rows(events)) as url:
            await alone("work", url=url, goal=events, profile=str(setup.profile))
    return report


async def publish(setup: Setup, place: Place) -> Report:
    """Bulk and single publish beside raw inserts into the same table."""
    events = setup.events or 100_000
    single = min(events, 3_000)
    settings = {"events": events, "single_events": single, "repeat": setup.repeat, "batch": raw.BULK}
    report = Report("publish", place.store, settings)
    found: dict[str, list[float]] = {}
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("raw_rate", "raw_publish", {"number": events, "batch": raw.BULK}),
        ("rate", "publish", {"number": events, "batch": raw.BULK}),
        ("raw_single_rate", "raw_publish", {"number": single, "batch": 1}),
        ("single_rate", "publish", {"number": single, "batch": 1}),
    ]
    if place.store == "postgres":
        ways.insert(1, ("raw_copy_rate", "raw_publish", {"number": events, "batch": raw.BULK, "copy": True}))
    for turn in range(setup.repeat):
        for name, job, arguments in ways:
            setup.say(f"publish {turn + 1}/{setup.repeat}: {name}")
            async with place.fresh() as url:
                result = await alone(job, url=url, text="x" * 75, **arguments)
                found.setdefault(name, []).append(rate_of([result], arguments["number"]))
    for name, values in found.items():
        report.put(name, values)
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    report.ratio("single_ratio_to_raw", "single_rate", "raw_single_rate")
    report.goal("ratio_to_raw", 0.50)
    report.goal("single_ratio_to_raw", 0.70)
    if setup.profile:
        async with place.fresh() as url:
            await alone("publish", url=url, text="x" * 75, number=events, batch=raw.BULK, profile=str(setup.profile))
    return report


async def _all_delivered(place: Place, url: str, events: int) -> None:
    counts = await place.count(url)
    if counts.get("delivered", 0) != events:
        raise BenchFailed(f"of {events} events the table says {counts}")


SCENARIOS: Final[dict[str, Scenario]] = {"drain": drain, "publish": publish}
