"""Drift: what it takes to compare two large sets that hardly differ."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from redrive.app import Redrive
from redrive.operate.cli.bench.measure import BenchFailed, Report, Setup, alone
from redrive.operate.cli.bench.place import Place

_ONE_IN: Final = 1_000


async def reconcile(setup: Setup, place: Place) -> Report:
    """Reconcile a million keys of which one in a thousand differs, from the first key read to the last event stored."""
    keys = setup.events or 1_000_000
    report = Report("reconcile", place.store, {"keys": keys, "repeat": setup.repeat})
    found: dict[str, list[float]] = {"seconds": [], "cpu_seconds": [], "peak_rss_mb": []}
    for turn in range(setup.repeat):
        setup.saying("reconcile", turn)(f"{keys:,} keys")
        async with place.fresh() as url:
            result = await alone("reconcile", url=url, keys=keys)
        if result["published"] != -(-keys // _ONE_IN):
            raise BenchFailed(f"{result['published']} events were published for one difference in {_ONE_IN}")
        found["seconds"].append(result["ended"] - result["began"])
        for name in ("cpu_seconds", "peak_rss_mb"):
            found[name].append(result[name])
    for name, values in found.items():
        report.put(name, values)
    report.goal("seconds", 60, at_most=True)
    report.goal("peak_rss_mb", 300, at_most=True)
    return report


async def run_once(go: Callable[[], None], *, url: str, keys: int) -> dict[str, Any]:
    """Run a reconciler whose sides are made up as they are read."""
    app = Redrive(url)

    def desired() -> Iterator[tuple[str, Any]]:
        return ((f"cart-{n:08d}", {"owner": f"user-{n % 1_000}", "items": n % 50, "total": n}) for n in range(keys))

    def actual() -> Iterator[tuple[str, Any]]:
        for n in range(keys):
            total = n + (n % _ONE_IN == 0)
            yield f"cart-{n:08d}", {"total": total, "items": n % 50, "owner": f"user-{n % 1_000}"}

    async def converge(_key: str, _desired: Any, _actual: Any) -> None:
        """Leave it to nobody: only the run is measured."""

    app.reconcilers.add("carts", desired=desired, actual=actual, converge=converge)
    async with app:
        go()
        began = time.monotonic()
        run = await app.reconcilers.run_here("carts")
        return {"published": run.published, "began": began, "ended": time.monotonic()}
