"""Drain: how fast events that are due go through no-op handlers."""

from typing import Final

from redrive.operate.cli.bench import peers, raw
from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, alone, rate_of, together, workers
from redrive.operate.cli.bench.place import Place, Rows

_EVENTS_OF_A_KEY: Final = 10


async def drain(setup: Setup, place: Place) -> Report:
    """No-op handlers: a worker beside the raw claim-and-settle loop and, if asked, beside the peers."""
    events = setup.events or 100_000
    settings = {"events": events, "repeat": setup.repeat, "processes": setup.processes, "raw_batch": raw.BATCH}
    report = Report("drain", place.store, settings)
    found: dict[str, list[float]] = {}
    chosen = peers.present(place.store, report) if setup.peers else []
    for turn in range(setup.repeat):
        say = setup.saying("drain", turn)
        say("raw loop")
        found.setdefault("raw_rate", []).append(await raw_rate(place, events, setup.processes))
        say("redrive")
        async with place.fresh(Rows(events)) as url:
            results = await workers(setup.processes, goal=events, url=url)
            await all_delivered(place, url, events)
        found.setdefault("rate", []).append(rate_of(results, events))
        cpu = sum(result["cpu_seconds"] for result in results)
        found.setdefault("cpu_us_per_event", []).append(cpu / events * 1e6)
        found.setdefault("peak_rss_mb", []).append(max(result["peak_rss_mb"] for result in results))
        for peer in chosen:
            say(peer.name)
            rate = await peer.drain(place, events, setup.processes)
            found.setdefault(f"{peer.key}_rate", []).append(rate)
    for name in sorted(found, key=lambda name: name != "rate"):
        report.put(name, found[name])
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    report.goal("ratio_to_raw", 0.40 if place.store == "postgres" else 0.25)
    for peer in chosen:
        report.ratio(f"ratio_to_{peer.key}", "rate", f"{peer.key}_rate")
        report.goal(f"ratio_to_{peer.key}", peer.wanted)
    if setup.profile:
        async with place.fresh(Rows(events)) as url:
            await alone("work", url=url, goal=events, profile=str(setup.profile))
    return report


async def keys(setup: Setup, place: Place) -> Report:
    """Events with ordering keys, ten of each, beside as many without."""
    events = setup.events or 100_000
    settings = {"events": events, "keys": max(1, events // _EVENTS_OF_A_KEY), "repeat": setup.repeat}
    report = Report("keys", place.store, settings | {"processes": setup.processes})
    found: dict[str, list[float]] = {"rate": [], "drain_rate": []}
    for turn in range(setup.repeat):
        for name, number in (("drain_rate", 0), ("rate", settings["keys"])):
            setup.saying("keys", turn)("with keys" if number else "without keys")
            async with place.fresh(Rows(events, keys=number)) as url:
                results = await workers(setup.processes, goal=events, url=url)
                await all_delivered(place, url, events)
            found[name].append(rate_of(results, events))
    for name, rates in found.items():
        report.put(name, rates)
    report.ratio("ratio_to_drain", "rate", "drain_rate")
    report.goal("ratio_to_drain", 0.5)
    return report


async def raw_rate(place: Place, events: int, processes: int = 1) -> float:
    """Drain a fresh table with the raw loop."""
    async with place.fresh(Rows(events)) as url:
        results = await together(*(Child("raw_drain", url=url) for _ in range(processes)))
        await all_delivered(place, url, events)
    return rate_of(results, events)


async def worker_rate(place: Place, events: int) -> float:
    """Drain a fresh table with one worker."""
    async with place.fresh(Rows(events)) as url:
        result = await alone("work", url=url, goal=events)
        await all_delivered(place, url, events)
    return rate_of([result], events)


async def all_delivered(place: Place, url: str, events: int) -> None:
    """Believe the table, not the counter."""
    counts = await place.count(url)
    if counts.get("delivered", 0) != events:
        raise BenchFailed(f"of {events} events the table says {counts}")
