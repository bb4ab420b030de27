"""Scarce: what a reservation costs, alone and fought over; and what schedules cost a worker that is idle otherwise."""

from typing import Final

from redrive.operate.cli.bench.measure import BenchFailed, Child, Report, Setup, alone, rate_of, together
from redrive.operate.cli.bench.place import Place

_RESOURCES: Final = 100
_CONTENDERS: Final = 10_000
_AT_ONCE: Final = 25
_PROCESSES: Final = 4
_SCHEDULES: Final = 1_000
_EVERY_SECONDS: Final = 600.0  # 1.7 ticks a second, of a thousand
_MOST_CPU_PERCENT: Final = 1.0


async def reserve(setup: Setup, place: Place) -> Report:
    """Take and release alone; and 10,000 contenders in four processes for 100 resources: there must be 100 winners."""
    contenders = max(setup.events or _CONTENDERS, _PROCESSES)
    resources = max(1, contenders // (_CONTENDERS // _RESOURCES))
    settings = {"contenders": contenders, "resources": resources, "processes": _PROCESSES, "repeat": setup.repeat}
    report = Report("reserve", place.store, settings)
    free, contended = [], []
    for turn in range(setup.repeat):
        say = setup.saying("reserve", turn)
        say("alone")
        takes = max(1, contenders // 5)
        common = {"at_once": _AT_ONCE}
        async with place.fresh() as url:
            result = await alone("reserve", url=url, takes=takes, resources=takes, owner="one", release=True, **common)
        free.append(rate_of([result], takes))
        say("fought over")
        each = contenders // _PROCESSES
        async with place.fresh() as url:
            results = await together(
                *(
                    Child("reserve", url=url, takes=each, resources=resources, owner=f"p{n}", release=False, **common)
                    for n in range(_PROCESSES)
                )
            )
        won = [resource for result in results for resource in result["won"]]
        if len(won) != min(resources, each) or len(set(won)) != len(won):
            raise BenchFailed(f"{len(won)} winners of {resources} resources")
        contended.append(rate_of(results, each * _PROCESSES))
    report.put("take_and_release_rate", free)
    report.put("contended_rate", contended)
    report.figures["winners"] = resources
    return report


async def schedules(setup: Setup, place: Place) -> Report:
    """CPU that 1,000 schedules, due one after the other within ten minutes, add to an idle worker."""
    seconds, number = setup.seconds or 20.0, setup.events or _SCHEDULES
    settings = {"schedules": number, "every_seconds": _EVERY_SECONDS, "seconds": seconds, "repeat": setup.repeat}
    report = Report("schedules", place.store, settings)
    without: list[float] = []
    with_them: list[float] = []
    added: list[float] = []
    for turn in range(setup.repeat):
        for label, count in (("without", 0), ("with", number)):
            setup.saying("schedules", turn)(label)
            async with place.fresh() as url:
                result = await alone("idle", url=url, seconds=seconds, schedules=count, every=_EVERY_SECONDS)
            percent = result["used"] / (result["ended"] - result["began"]) * 100
            (with_them if count else without).append(percent)
        added.append(max(0.0, with_them[-1] - without[-1]))
    report.put("idle_cpu_percent", without)
    report.put("cpu_percent", with_them)
    report.put("added_cpu_percent", added)
    report.goal("added_cpu_percent", _MOST_CPU_PERCENT, at_most=True)
    return report
