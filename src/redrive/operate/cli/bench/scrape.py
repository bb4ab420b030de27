"""Scrape: what it costs to be asked for metrics, and what the counting costs the events."""

import statistics
from typing import Final

from redrive.operate.cli.bench.drain import all_delivered
from redrive.operate.cli.bench.measure import Report, Setup, alone, rate_of, rounded, samples_of
from redrive.operate.cli.bench.place import Place, Rows

_GROUPS: Final = 200
_SAMPLES: Final = 60
_DRAINED: Final = 100_000


async def metrics(setup: Setup, place: Place) -> Report:
    """Scrape among 5 M rows with 1 M dead letters; a drain scraped every second beside one that is not."""
    rows = setup.events or 5_000_000
    dead, waiting, drained = max(1, rows // 5), max(1, rows // 10), min(rows, _DRAINED)
    samples = samples_of(rows, _SAMPLES)
    settings = {
        "rows": rows, "dead_letters": dead, "drained": drained, "samples": samples, "repeat": setup.repeat,
    }  # fmt: skip
    report = Report("metrics", place.store, settings)
    kinds = (
        Rows(max(1, rows * 6 // 10), status="delivered", groups=_GROUPS),
        Rows(dead, status="failed", groups=_GROUPS),
        Rows(waiting, groups=_GROUPS),
        Rows(waiting, status="blocked", groups=_GROUPS),
    )
    setup.say(f"metrics: writing {rows:,} rows")
    async with place.fresh(*kinds) as url:
        await alone("regroup", url=url)
        setup.say("metrics: scraping")
        found = await alone("scrapes", url=url, samples=samples)
    for name, times in found["times"].items():
        report.table.append({
            "source": name,
            "p50_ms": rounded(statistics.median(times)),
            "p95_ms": rounded(statistics.quantiles(times, n=20)[18] if len(times) > 1 else times[0]),
        })  # fmt: skip
    report.figures["scrape_p95_ms"] = next(row["p95_ms"] for row in report.table if row["source"] == "scrape")
    report.goal("scrape_p95_ms", 50, at_most=True)
    rates: dict[str, list[float]] = {"scraped_rate": [], "rate": []}
    for turn in range(setup.repeat):
        for name in rates if turn % 2 else reversed(rates):
            setup.saying("metrics", turn)("drain, scraped" if name == "scraped_rate" else "drain")
            async with place.fresh(Rows(drained)) as url:
                result = await alone("work", url=url, goal=drained, scrape=name == "scraped_rate")
                await all_delivered(place, url, drained)
            rates[name].append(rate_of([result], drained))
    for name, values in rates.items():
        report.put(name, values)
    report.ratio("ratio_to_unscraped", "scraped_rate", "rate")
    report.goal("ratio_to_unscraped", 0.97)
    return report
