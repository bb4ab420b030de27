"""A process that is measured: told what to do on its first line, ready, started by ``go``, its result on the last line.

Every measurement runs in a process of its own, raw loops and workers alike, so that none inherits the heap, the
connections or the threads of another.
"""

import asyncio
import cProfile
import io
import json
import logging
import pstats
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog

from redrive import group
from redrive.app import Redrive
from redrive.batch import FINAL_NOTICE, FIRST_NOTICE
from redrive.context import Context
from redrive.errors import Taken
from redrive.operate import metrics, views
from redrive.operate.cli.bench import drift, raw
from redrive.operate.cli.bench.console import console_pages
from redrive.operate.cli.bench.consoles import serve_consoles, watch_consoles
from redrive.operate.cli.bench.http import publish_http, serve_http
from redrive.operate.cli.bench.measure import Slots
from redrive.operate.cli.bench.place import TYPE
from redrive.operate.cli.bench.webhooks import send_webhooks, serve_webhooks
from redrive.policy import RetryPolicy
from redrive.redrive import Release
from redrive.selection import parse
from redrive.store.base import EventFilter

Result = dict[str, Any]
Job = Callable[..., Coroutine[Any, Any, Result]]

_LOOK_SECONDS: Final = 0.01
_SETTLE_SECONDS: Final = 0.5
_SPACING: Final = (0.03, 0.08)
_FLOW_AHEAD: Final = 5_000
_NOTE_SECONDS: Final = 0.5
_SCRAPE_SECONDS: Final = 1.0
_TOP: Final = 25
_SELECTIONS: Final = (
    "", "status:failed", "status:pending", "status:in_flight", "status:failed type:bench.event.7",
    "status:failed type:bench.*", "status:failed class:missing", "status:failed payload.currency:C7",
    'status:failed text:"preloaded 19"', 'status:failed text:"no such thing"', "status:failed payload.currency:none",
    "status:failed age>1h", "corr:corr-777", "status:cancelled", "type:none", 'text:"no such thing"',
)  # fmt: skip
_WAITS: Final = ("acquire", "poll", "get' of '_queue", "time.sleep")
_WORTH_SHOWING: Final = 0.1  # seconds of its own that a thread must have used


class Failing(Exception):
    """What a storm is made of."""


async def work(
    go: Callable[[], None],
    *,
    url: str,
    goal: int,
    concurrency: int = 100,
    failures: int = 0,
    slots: tuple[str, int, int] | None = None,
    scrape: bool = False,
) -> Result:
    """Run a worker until this many events have been delivered, by all processes together."""
    delivered = 0
    shared = Slots(*slots) if slots else None
    app = Redrive(url, retry=RetryPolicy(max_attempts=failures + 2, base_delay=0, jitter="none"))

    async def noop(_payload: Any) -> None:
        nonlocal delivered
        delivered += 1
        if delivered == goal:
            worker.stop()

    async def stumble(payload: Any, context: Context) -> None:
        if context.attempt <= failures:
            raise Failing
        await noop(payload)

    app.handler(TYPE, brake=False)(stumble if failures else noop)  # a storm is meant to go on
    async with app:
        worker = app.worker(concurrency=concurrency)
        go()
        watching = asyncio.create_task(_stop_together(shared, lambda: delivered, goal, worker.stop))
        scraping = asyncio.create_task(_scrape(app, scrape=scrape))
        began = time.monotonic()
        await worker.run()
        ended = time.monotonic()
        watching.cancel()
        scraping.cancel()
        if shared is not None:
            shared.tell(delivered)  # or the others wait for what was delivered since the last look
    return {"count": delivered, "began": began, "ended": ended}


async def work_batch(go: Callable[[], None], *, url: str, goal: int) -> Result:
    """Run a worker until the final notice of a batch has come; say how long after the last member each came."""
    delivered, last = 0, 0.0
    came: dict[str, float] = {}
    app = Redrive(url)

    @app.handler(TYPE)
    async def noop(_payload: Any) -> None:
        nonlocal delivered, last
        delivered += 1
        last = time.monotonic()

    @app.handler(FIRST_NOTICE)
    @app.handler(FINAL_NOTICE)
    async def noted(payload: dict[str, Any]) -> None:
        came[payload["kind"]] = time.monotonic()
        if payload["delivered"] != goal:
            raise ValueError(f"a notice counts {payload['delivered']} of {goal} events")
        if len(came) == len(("first", "final")):
            worker.stop()

    async with app:
        worker = app.worker()
        go()
        began = time.monotonic()
        await worker.run()
    delays = {f"{kind}_delay": at - last for kind, at in came.items()}
    return {"count": delivered, "began": began, "ended": max(last, *came.values()), **delays}


async def _stop_together(shared: Slots | None, mine: Callable[[], int], goal: int, stop: Callable[[], None]) -> None:
    if shared is None:
        return
    while shared.tell(mine()) < goal:  # noqa: ASYNC110 - an Event does not reach another process
        await asyncio.sleep(_LOOK_SECONDS)
    stop()


async def _scrape(app: Redrive, *, scrape: bool) -> None:
    """Ask for the metrics as often as a very curious Prometheus."""
    while scrape:
        await metrics.metrics_text(app)
        await asyncio.sleep(_SCRAPE_SECONDS)


async def scrapes(go: Callable[[], None], *, url: str, samples: int) -> Result:
    """Note how long a scrape takes that has to ask the database, in milliseconds; by source, too."""
    times: dict[str, list[float]] = {}
    async with Redrive(url) as app:
        go()
        for turn in range(samples + 1):
            began = time.monotonic()
            await metrics.written_anew(app)
            name = "scrape" if turn else "first scrape"  # the first looks for every kind of matter, as none is known
            times.setdefault(name, []).append((time.monotonic() - began) * 1e3)
        for _ in range(samples):
            for source in metrics.SOURCES:
                began = time.monotonic()
                await source(app)
                times.setdefault(source.__name__.strip("_"), []).append((time.monotonic() - began) * 1e3)
    return {"count": samples, "times": times}


async def raw_drain(go: Callable[[], None], *, url: str) -> Result:
    """Drain with the bare driver."""
    drain = raw.drain_sqlite if url.startswith("sqlite") else raw.drain_postgres
    go()
    began = time.monotonic()
    count = await drain(url)
    return {"count": count, "began": began, "ended": time.monotonic()}


async def publish(go: Callable[[], None], *, url: str, number: int, text: str, batch: int) -> Result:
    """Publish through redrive: many at once, or one by one."""
    app = Redrive(url)
    async with app:
        await app.publish(TYPE, {"n": 0, "text": text})  # opens the connection
        go()
        began = time.monotonic()
        if batch == 1:
            for n in range(number):
                await app.publish(TYPE, {"n": n, "text": text})
        else:
            for first in range(0, number, batch):
                several = range(first, min(first + batch, number))
                await app.publish_many((TYPE, {"n": n, "text": text}) for n in several)
        ended = time.monotonic()
    return {"count": number, "began": began, "ended": ended}


async def raw_publish(
    go: Callable[[], None], *, url: str, number: int, text: str, batch: int, copy: bool = False
) -> Result:
    """Insert the same rows with the bare driver."""
    insert = raw.publish_sqlite if url.startswith("sqlite") else raw.publish_postgres
    if copy:
        insert = raw.copy_postgres
    go()
    began = time.monotonic()
    await insert(url, number, text, batch)
    return {"count": number, "began": began, "ended": time.monotonic()}


async def idle(go: Callable[[], None], *, url: str, seconds: float, schedules: int = 0, every: float = 0.0) -> Result:
    """Run a worker that has nothing to do but what schedules bring; count what it uses once it has settled down."""
    app = Redrive(url)
    app.handler(TYPE)(raw.noop)
    for n in range(schedules):  # spread evenly
        app.schedules.add(f"schedule-{n}", TYPE, {"n": n}, every=every, offset=every * n / schedules)
    async with app:
        worker = app.worker()
        await app.schedules.declare(app.store, "bench")
        go()
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(min(2.0, seconds))
        began, used = time.monotonic(), _cpu_seconds()
        await asyncio.sleep(seconds)
        ended, used = time.monotonic(), _cpu_seconds() - used
        worker.stop()
        await running
    return {"count": 0, "began": began, "ended": ended, "used": used}


async def reserve(
    go: Callable[[], None], *, url: str, takes: int, resources: int, owner: str, at_once: int, release: bool
) -> Result:
    """Take resources one after the other, several at once; give each back, or keep what was won."""
    won: list[str] = []
    rest = iter(range(takes))
    async with Redrive(url) as app:
        await app.reservations.ls()
        go()
        began = time.monotonic()

        async def contend() -> None:
            for n in rest:
                try:
                    held = await app.reservations.take(f"{n % resources}", owner=owner, ttl="1h")
                except Taken:
                    continue
                won.append(held.resource)
                if release:
                    await held.release()

        await asyncio.gather(*(contend() for _ in range(at_once)))
        ended = time.monotonic()
    return {"count": takes, "began": began, "ended": ended, "won": won}


async def pick_up(
    go: Callable[[], None], *, url: str, goal: int, publishes: bool, redrive_rate: float | None = None
) -> Result:
    """Run an idle worker and note when each event reaches its handler; publish them here too, if told to."""
    started: dict[int, float] = {}
    redriven = 0
    app = Redrive(url)

    @app.handler(TYPE)
    async def note(payload: dict[str, Any], context: Context) -> None:
        nonlocal redriven
        if context.cycle:
            redriven += 1
            return
        started[payload["n"]] = time.monotonic()
        if len(started) == goal:
            worker.stop()

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(_SETTLE_SECONDS)
        if redrive_rate is not None:
            await _start_redrive(app, Release(rate=redrive_rate))
            await asyncio.sleep(_SETTLE_SECONDS)
        go()
        published = await _publish_spaced(app, goal) if publishes else []
        await running
    return {"count": len(started), "started": list(started.items()), "published": published, "redriven": redriven}


async def _start_redrive(app: Redrive, release: Release) -> UUID:
    planned = await app.plan("status:failed", by="bench")
    return (await app.start(planned.redrive.token, by="bench", reason="to be measured", release=release)).id


async def redrive_all(go: Callable[[], None], *, url: str) -> Result:
    """Redrive every dead letter at full speed, until the redrive says that all have ended."""
    app = Redrive(url)
    app.handler(TYPE)(raw.noop)
    async with app:
        planned = await app.plan("status:failed", by="bench")
        worker = app.worker()
        go()
        began = time.monotonic()
        started = await app.start(planned.redrive.token, by="bench", reason="to be measured")
        running = asyncio.create_task(worker.run())
        while (standing := await app.redriving(started.id)).state == "running":  # noqa: ASYNC110 - others change it
            await asyncio.sleep(_LOOK_SECONDS)
        ended = time.monotonic()
        worker.stop()
        await running
    return {"count": standing.delivered, "began": began, "ended": ended}


async def regroup(go: Callable[[], None], *, url: str) -> Result:
    """Count the groups of rows that were written past the workers."""
    async with Redrive(url) as app:
        go()
        return {"count": len(await group.rebuild(app.store))}


async def plan(go: Callable[[], None], *, url: str) -> Result:
    """Plan a redrive of every dead letter."""
    async with Redrive(url) as app:
        go()
        began = time.monotonic()
        planned = await app.plan("status:failed", by="bench")
        return {"count": planned.redrive.ready, "began": began, "ended": time.monotonic()}


async def look(go: Callable[[], None], *, url: str, samples: int) -> Result:
    """Ask for pages as an operator does, and note how long each takes, in milliseconds."""
    pages: dict[str, list[float]] = {}
    async with Redrive(url) as app:
        groups = await app.groups()
        largest = max(groups, key=lambda each: each.dead_count)
        looks: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "overview": partial(views.overview, app),
            "groups": app.groups,
            "one group with its skew": partial(views.group_story, app, largest),
        }
        for selection in (*_SELECTIONS, f"status:failed group:{largest.fingerprint}"):
            looks[selection] = partial(app.page, views.narrowed(app, EventFilter(), parse(selection)))
        looks.update(await console_pages(app, largest))
        go()
        for _ in range(samples):
            for name, ask in looks.items():
                began = time.monotonic()
                await ask()
                pages.setdefault(name, []).append((time.monotonic() - began) * 1e3)
    return {"count": samples, "pages": pages}


async def publish_spaced(go: Callable[[], None], *, url: str, goal: int) -> Result:
    """Publish lone events from a process that does not handle them."""
    async with Redrive(url) as app:
        app.route(TYPE, TYPE)
        go()
        published = await _publish_spaced(app, goal)
    return {"count": goal, "published": published}


async def _publish_spaced(app: Redrive, number: int) -> list[tuple[int, float, float]]:
    published = []
    for n in range(number):
        await asyncio.sleep(random.uniform(*_SPACING))
        called = time.monotonic()
        await app.publish(TYPE, {"n": n, "text": "x" * 75})
        published.append((n, called, time.monotonic()))
    return published


async def publish_flow(go: Callable[[], None], *, url: str, seconds: float, slots: tuple[str, int, int]) -> Result:
    """Publish as fast as the other side delivers, never far ahead of it."""
    published = 0
    shared = Slots(*slots)
    async with Redrive(url) as app:
        go()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if 2 * published - shared.tell(published) > _FLOW_AHEAD:
                await asyncio.sleep(0.002)
                continue
            await app.publish_many((TYPE, {"n": n, "text": "x" * 75}) for n in range(raw.BATCH))
            published += raw.BATCH
    return {"count": published}


async def work_flow(
    go: Callable[[], None], *, url: str, seconds: float, slots: tuple[str, int, int], bare: bool
) -> Result:
    """Deliver what flows in, with a worker or with the raw loop, and note the total twice a second."""
    delivered = 0
    shared = Slots(*slots)
    timeline: list[tuple[float, int]] = []

    async def noop(_payload: Any) -> None:
        nonlocal delivered
        delivered += 1

    async def watch() -> None:
        until = time.monotonic() + seconds
        note_at = 0.0
        while (now := time.monotonic()) < until:
            shared.tell(delivered)
            if now >= note_at:
                timeline.append((now, delivered))
                note_at = now + _NOTE_SECONDS
            await asyncio.sleep(0.002)
        timeline.append((time.monotonic(), delivered))

    if bare:
        go()
        watching = asyncio.create_task(watch())
        flow = raw.flow_sqlite if url.startswith("sqlite") else raw.flow_postgres
        await flow(url, noop, watching.done)
    else:
        app = Redrive(url)
        app.handler(TYPE)(noop)
        async with app:
            worker = app.worker()
            go()
            watching = asyncio.create_task(watch())
            watching.add_done_callback(lambda _: worker.stop())
            await worker.run()
    await watching
    return {"count": delivered, "timeline": timeline}


JOBS: Final[dict[str, Job]] = {
    "scrapes": scrapes,
    "redrive_all": redrive_all,
    "regroup": regroup,
    "reconcile": drift.run_once,
    "plan": plan,
    "look": look,
    "work": work,
    "work_batch": work_batch,
    "raw_drain": raw_drain,
    "publish": publish,
    "raw_publish": raw_publish,
    "serve_http": serve_http,
    "publish_http": publish_http,
    "serve_consoles": serve_consoles,
    "watch_consoles": watch_consoles,
    "serve_webhooks": serve_webhooks,
    "send_webhooks": send_webhooks,
    "idle": idle,
    "reserve": reserve,
    "pick_up": pick_up,
    "publish_spaced": publish_spaced,
    "publish_flow": publish_flow,
    "work_flow": work_flow,
}


def main() -> None:
    """Do one job."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    order = json.loads(sys.stdin.readline())
    profile = order.pop("profile", None)
    job = JOBS[order.pop("job")]
    profiles = _watched_threads() if profile else {}
    cpu = 0.0

    def go() -> None:
        nonlocal cpu
        print("ready", flush=True)
        sys.stdin.readline()
        cpu = _cpu_seconds()

    if profile:
        profiles["main"] = cProfile.Profile()
        with profiles["main"]:
            result = asyncio.run(job(go, **order))
        Path(profile).write_text(_tops(profiles), encoding="utf-8")
    else:
        result = asyncio.run(job(go, **order))
    result["cpu_seconds"] = _cpu_seconds() - cpu
    result["peak_rss_mb"] = _peak_rss_mb()
    print(json.dumps(result), flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_rss_mb() -> float:
    """Ask Linux for our own peak; the ``ru_maxrss`` of a child begins with its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


def _watched_threads() -> dict[str, cProfile.Profile]:
    """Profile every thread on its own: cProfile sees only the one that started it."""
    profiles: dict[str, cProfile.Profile] = {}
    run = threading.Thread.run

    def watched(thread: threading.Thread) -> None:
        profiles[thread.name] = cProfile.Profile()
        profiles[thread.name].runcall(run, thread)

    threading.Thread.run = watched  # type: ignore[assignment, method-assign]
    return profiles


def _tops(profiles: dict[str, cProfile.Profile]) -> str:
    text = io.StringIO()
    for thread, profile in reversed(profiles.items()):  # the main thread is the last to come in
        stats = pstats.Stats(profile, stream=text)
        functions = stats.get_stats_profile().func_profiles
        own = sum(found.tottime for name, found in functions.items() if not any(word in name for word in _WAITS))
        if thread == "main" or own > _WORTH_SHOWING:
            print(f"=== thread {thread}: {own:.2f} s of its own", file=text)
            stats.strip_dirs().sort_stats("tottime").print_stats(_TOP)
    return text.getvalue()


if __name__ == "__main__":
    main()
