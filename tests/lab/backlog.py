"""A backlog: what each call costs the database beside more and more events, and how workers take it off.

Most events are due tomorrow or of a queue that nobody serves; some are due, some are dead and redriven slowly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from redrive import EventFilter, Redrive, Release, Status, redrive
from redrive.operate import actions, doctor
from redrive.operate.metrics import written_anew
from redrive.store.base import Ages, Finished, Session
from tests.lab.bulk import EFFECT_EVERY, Mass, bulk_app, fill
from tests.lab.checker import query
from tests.lab.costs import cost
from tests.lab.crew import Crew, crew_on
from tests.lab.flat import POOL_DESCRIPTORS, Watched, judge
from tests.lab.record import Record
from tests.waiting import wait_until

_GROWTH = 1.5
_SLACK = {"sqlite": 20_000, "postgres": 300}  # steps, pages: another level of a tree, a statement planned anew
# Looks that are bounded by how much they walk through or count, not by what they find: judged where that is reached.
# What PostgreSQL takes for the shortest way changes below that, too.
_JUDGED_FROM = {
    "sqlite": dict.fromkeys(("doctor", "dlq ls"), 105_000),
    "postgres": dict.fromkeys(("overview", "doctor", "dlq ls", "attention", "metrics"), 105_000),
}
# It walks through a hundred thousand rows at most, twice, and where the first of those it wants stands is chance.
_WALKED = {("postgres", "doctor"): 250_000}
_HAND = 50
_ROW_BYTES = 600
_DUE = (
    "select count(*) as n from {}outbox where queue = 'default' and status in ('pending', 'in_flight')"
    " and idempotency_key not like '%%-later-%%' and idempotency_key not like '%%-dead-%%'"
)
_DELIVERED = "select count(*) as n from {}outbox where status = 'delivered'"


def _store(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgres"


# --- what a call costs ---


def weighed(url: str, run: Record, *, first: int, number: int) -> None:
    """Compare what each call costs beside some events with what it costs beside many more."""
    _left_alone(url)
    backlog(url, "some", first)
    before = asyncio.run(costs(url))
    backlog(url, "more", number - first)
    after = asyncio.run(costs(url))
    run.cases += 2 * len(before)
    run.figures["backlog"] = number
    unit = "steps" if _store(url) == "sqlite" else "pages"
    grown = {}
    for name, one in before.items():
        run.figures[f"{name}, {unit}"], run.figures[f"{name} later, {unit}"] = one, after[name]
        is_judged = first >= _JUDGED_FROM[_store(url)].get(name, 0)
        if is_judged and after[name] > max(one * _GROWTH + _SLACK[_store(url)], _WALKED.get((_store(url), name), 0)):
            grown[name] = (one, after[name])
    if grown:
        run.violations["grows"] += len(grown)
    assert not grown, f"{unit} grow with the backlog: {grown}"


def _left_alone(url: str) -> None:
    """Let PostgreSQL not tidy up by itself: the pages that it touches would be counted, too."""
    if _store(url) == "postgres":
        with psycopg.connect(url, autocommit=True) as server:
            for (table,) in server.execute("select tablename from pg_tables where schemaname = 'redrive'").fetchall():
                name = sql.Identifier("redrive", table)
                server.execute(sql.SQL("alter table {} set (autovacuum_enabled = off)").format(name))


def backlog(url: str, label: str, number: int) -> None:
    """Add so many events."""
    fill(
        url,
        Mass(f"{label}-later", number * 40 // 100, delay=86_400),
        Mass(f"{label}-other", number * 40 // 100, queue="other"),
        Mass(f"{label}-weighed", 1_000, queue="weighed"),
        Mass(f"{label}-due", max(11_000, number * 10 // 100)),  # more than anybody counts
        Mass(f"{label}-dead", number * 10 // 100, status="failed"),
    )
    asyncio.run(_redriven_slowly(url))


async def _redriven_slowly(url: str) -> None:
    async with bulk_app(url) as app:
        await actions.rebuild_groups(app)
        for earlier in await redrive.movable(app.store):
            await redrive.stop(app.store, earlier, to="aborted", by="ann", reason="one for all")
        plan = await app.plan("", by="ann")
        await app.start(plan.redrive.token, by="ann", reason="slowly", release=Release(rate=1.0))


async def costs(url: str) -> dict[str, int]:
    """Measure each call twice: the first after so much was written tidies up behind the writers."""
    calls: dict[str, Callable[[Redrive], Awaitable[object]]] = {
        "open": _nothing, "claim": _claimed, "publish": _published, "redrive tick": _ticked, "purge": _purged,
        "overview": _overlooked, "doctor": _examined, "dlq ls": _listed, "attention": Redrive.attention,
        "metrics": written_anew,
    }  # fmt: skip
    return {name: min([await cost(url, act), await cost(url, act)]) for name, act in calls.items()}


async def _nothing(_app: Redrive) -> None: ...


async def _claimed(app: Redrive) -> None:
    """Claim and settle three hands full, look for what is next, and sweep: what a worker does all day."""
    worker = app.worker(queues=["weighed"])
    session = Session(uuid4(), "weigher", "here", 1, ("weighed",), ("mass.plain",), _HAND, 0)
    await app.store.begin_session(session, 30.0)
    claims = app.store.claims(session.id, worker.options.lanes(), actor="weigher")
    finished = Finished()
    for _ in range(3):
        turn = await claims.turn(finished, _HAND)
        assert len(turn.claimed) == _HAND
        finished = Finished(delivered=[*turn.claimed])
    await claims.turn(finished, 0)
    await claims.next_due()
    await app.store.sweep(session.id, max_lost=5, limit=500, base_seconds=5.0, actor="weigher")
    await claims.close()
    await app.store.end_session(session.id)


async def _published(app: Redrive) -> None:
    for number in range(20):
        await app.publish("mass.plain", {"n": number}, queue="other")
        await app.publish("mass.plain", {"n": number}, queue="other", retry_key="the one")


async def _ticked(app: Redrive) -> None:
    """Release one: at one a second a tick that comes sooner releases none, and costs less."""
    await asyncio.sleep(1.1)
    await redrive.tick(app.store, chain="weigher")


async def _purged(app: Redrive) -> None:
    """Remove what is older than anything: every worker does so every minute, mostly in vain."""
    years = 10 * 365 * 86_400.0
    await app.store.purge(Ages(ended=years, failed=years, handled=years, messages=years), by="weigher", limit=1_000)


async def _overlooked(app: Redrive) -> None:
    """What waits for a person is on that page, too, and costs more than all the rest: that is `attention`."""
    await app.store.overview()


async def _examined(app: Redrive) -> None:
    assert [check async for check in doctor.look(app)]


async def _listed(app: Redrive) -> None:
    page = await app.page(EventFilter(status=Status.FAILED, limit=_HAND))
    assert len(page.events) == _HAND


# --- how it is taken off ---


def drained(url: str, folder: Path, run: Record, *, rounds: int, number: int) -> None:
    """Let workers take what is due, and retention what was delivered, round by round: nothing grows."""
    keys = int(query(url, f"{_DUE} and type = 'lab.mass'")[0]["n"])
    sizes = []
    with crew_on(url, folder) as crew:
        watched = {each.pid: Watched() for each in (crew.start("bulk"), crew.start("bulk"))}
        for each in range(rounds):
            fill(url, Mass(f"round-{each}", number))
            keys += -(-number // EFFECT_EVERY)
            _take_off(crew, watched, 120 + number / 100)
            asyncio.run(_forgotten(url))
            sizes.append(_size(url))
        crew.end("bulk")
        assert not crew.ended_by_themselves(), crew.said()
    run.cases += rounds
    run.figures["size, MiB"], run.figures["size later, MiB"] = (round(one / 2**20, 1) for one in (sizes[0], sizes[-1]))
    text = "select count(*) as n, count(distinct key) as keys from lab_effect where key not like '%%-dead-%%'"
    (effects,) = query(url, text)
    for name, found in (("duplicate", effects["n"] - effects["keys"]), ("lost", keys - effects["keys"])):
        if found:
            run.violations[name] += found
    assert not run.violations, f"{keys} keys, {effects}"
    kept = (rounds - 1) * number * _ROW_BYTES
    assert sizes[-1] - sizes[0] < kept / 2 + (2 << 20), f"what was delivered and removed still takes room: {sizes}"
    judge(run, watched, descriptors=POOL_DESCRIPTORS)


def _take_off(crew: Crew, watched: dict[int, Watched], seconds: float) -> None:
    end = time.monotonic() + seconds
    while query(crew.url, _DUE)[0]["n"]:
        assert time.monotonic() < end, crew.said()
        time.sleep(0.2)
        for pid, one in watched.items():
            one.look(pid)


async def _forgotten(url: str) -> None:
    """Remove what was delivered, as ``redrive purge`` does; PostgreSQL then gives its room to the next."""
    async with bulk_app(url) as app:
        async for _ in actions.purge(app, older_than=0.0, dead_letters=False, by="ann"):
            pass
    assert query(url, _DELIVERED)[0]["n"] < _HAND  # some were redriven meanwhile
    if _store(url) == "postgres":
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("vacuum redrive.outbox")


def forgotten_by_workers(url: str, folder: Path, run: Record, *, number: int) -> None:
    """Let a worker with a short retention remove by itself what was delivered."""
    fill(url, Mass("old", number, status="delivered", delay=-3_600))
    with crew_on(url, folder) as crew:
        crew.start("bulk", retention="1s")
        began = time.monotonic()
        wait_until(lambda: query(url, _DELIVERED)[0]["n"] < _HAND, 120 + number / 500, crew.said())
        run.figures["retention, s"] = round(time.monotonic() - began, 1)
        crew.end("bulk")


def _size(url: str) -> int:
    if _store(url) == "sqlite":
        (row,) = query(url, "select page_count * page_size as n from pragma_page_count, pragma_page_size")
    else:
        (row,) = query(url, "select pg_total_relation_size('redrive.outbox') as n")
    return int(row["n"])
