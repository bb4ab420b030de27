"""Batch: what it costs that events belong together, and how soon the notices come."""

from redrive.app import Redrive
from redrive.batch import FINAL_NOTICE, FIRST_NOTICE
from redrive.operate.cli.bench.drain import worker_rate
from redrive.operate.cli.bench.measure import BenchFailed, Report, Setup, alone, rate_of
from redrive.operate.cli.bench.place import Place, Rows


async def batch(setup: Setup, place: Place) -> Report:
    """Members of one closed batch, to its final notice, beside as many events of no batch."""
    events = setup.events or 100_000
    report = Report("batch", place.store, {"events": events, "repeat": setup.repeat})
    found: dict[str, list[float]] = {}
    for turn in range(setup.repeat):
        say = setup.saying("batch", turn)
        say("without a batch")
        found.setdefault("drain_rate", []).append(await worker_rate(place, events))
        say("in a batch")
        async with place.fresh() as url:
            async with Redrive(url) as app:
                for type_ in (FIRST_NOTICE, FINAL_NOTICE):
                    app.route(type_, type_)
                opened = await app.batches.open("bench")
                await place.fill(url, Rows(events, batch=str(opened.id)))
                await opened.close()
            result = await alone("work_batch", url=url, goal=events)
            counts = await place.count(url)
            if counts != {"delivered": events + 2}:
                raise BenchFailed(f"of {events} events and 2 notices the table says {counts}")
        found.setdefault("rate", []).append(rate_of([result], events))
        for name in ("first_delay", "final_delay"):
            found.setdefault(f"{name}_seconds", []).append(result[name])
    for name in sorted(found, key=lambda name: name != "rate"):
        report.put(name, found[name])
    report.ratio("ratio_to_drain", "rate", "drain_rate")
    report.goal("ratio_to_drain", 0.85)
    report.goal("final_delay_seconds", 1, at_most=True)
    return report
