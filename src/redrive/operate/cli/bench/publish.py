"""Publish: how fast events go in, many at once and one by one."""

from typing import Any

from redrive.operate.cli.bench import raw
from redrive.operate.cli.bench.measure import BenchFailed, Report, Setup, alone, rate_of
from redrive.operate.cli.bench.place import Place, filler

_SINGLE = 5_000


async def publish(setup: Setup, place: Place) -> Report:
    """Bulk and single publish beside raw inserts into the same table with the same indexes."""
    events = setup.events or 100_000
    single = min(events, _SINGLE)
    settings = {"events": events, "single_events": single, "repeat": setup.repeat, "batch": raw.BULK}
    report = Report("publish", place.store, settings)
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "raw_rate": ("raw_publish", {"number": events, "batch": raw.BULK}),
        "rate": ("publish", {"number": events, "batch": raw.BULK}),
        "raw_single_rate": ("raw_publish", {"number": single, "batch": 1}),
        "single_rate": ("publish", {"number": single, "batch": 1}),
    }
    if place.store == "postgres":
        ways["raw_copy_rate"] = ("raw_publish", {"number": events, "batch": raw.BULK, "copy": True})
    found: dict[str, list[float]] = {name: [] for name in ways}
    text = filler(100)
    for turn in range(setup.repeat):
        say = setup.saying("publish", turn)
        for name, (job, arguments) in ways.items():
            say(name.replace("_", " "))
            async with place.fresh() as url:
                result = await alone(job, url=url, text=text, **arguments)
                stored = (await place.count(url)).get("pending", 0)
            if stored < arguments["number"]:
                raise BenchFailed(f"{name}: {stored} of {arguments['number']} rows were stored")
            found[name].append(rate_of([result], arguments["number"]))
    for name in ("rate", "raw_rate", "single_rate", "raw_single_rate", "raw_copy_rate"):
        if name in found:
            report.put(name, found[name])
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    report.ratio("single_ratio_to_raw", "single_rate", "raw_single_rate")
    report.goal("ratio_to_raw", 0.50)
    report.goal("single_ratio_to_raw", 0.70)
    if setup.profile:
        async with place.fresh() as url:
            await alone("publish", url=url, text=text, number=events, batch=raw.BULK, profile=str(setup.profile))
        async with place.fresh() as url:
            path = setup.profile.with_name(f"{setup.profile.stem}-single{setup.profile.suffix}")
            await alone("publish", url=url, text=text, number=single, batch=1, profile=str(path))
    return report
