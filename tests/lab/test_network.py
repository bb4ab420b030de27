"""The network between Redrive and PostgreSQL: slow, cut at any byte, half open, and silent after a COMMIT.

A publisher and a worker speak to the server through a proxy. Whatever happens to a byte, a call says that it was done,
that it failed, or that nobody knows; and what nobody knows is put right by the next try.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from redrive import Context, Redrive, RedriveError, StoreUnavailable
from tests.lab.checker import EFFECTS, check, query
from tests.lab.hand import MAX_ATTEMPTS, POLICY, Answered
from tests.lab.ledger import Ledger, ledger_at, lines
from tests.lab.proxy import How, Proxy, Way, proxy_to
from tests.lab.record import Record
from tests.waiting import until

PROMISES = ("durable", "no-phantom", "effect-once", "fence", "not-stuck")
CALL_SECONDS = 1.0
PARTS, PART = 4, 50
"""The short form: 200 cuts, anywhere in a conversation."""


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    parts = urlsplit(postgres_url)
    with proxy_to(parts.hostname or "", parts.port or 0) as made:
        yield made


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Ledger]:
    with ledger_at(tmp_path / "ledger", is_synced=False) as made:
        yield made


class Line:
    """An app whose every byte goes through the proxy, and a worker of it."""

    def __init__(self, url: str, proxy: Proxy, notes: Ledger) -> None:
        parts = urlsplit(url)
        self.url = url
        self.proxy = proxy
        self.notes = notes
        self.app = Redrive(url.replace(f":{parts.port}", f":{proxy.port}"), source="lab", retry=POLICY, migrate=True)
        self.app.store._call_seconds = CALL_SECONDS  # type: ignore[attr-defined]
        self.number = 0
        self.answers: list[str] = []

        @self.app.handler("lab.work")
        async def work(payload: dict[str, Any], ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute(
                    "insert into lab_effect (key, event_id, fence) values ($1, $2, $3)",
                    ctx.idempotency_key, str(ctx.id), ctx.fence,
                )  # fmt: skip

        @self.app.handler("plain.work")
        async def plain(payload: dict[str, Any], ctx: Context) -> None:
            if ctx.attempt == 1:
                raise LookupError("the first attempt always fails")

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.app:
            async with self.app.transaction() as tx:
                await tx.execute(EFFECTS)
            self.worker = self.app.worker(lease="2s", concurrency=4, poll="100ms", drain="2s")
            task = asyncio.create_task(self.worker.run())
            try:
                yield
                assert not task.done(), "the worker ended by itself"
            finally:
                self.proxy.disarm()
                self.worker.stop()
                await asyncio.wait_for(task, 20)

    async def publish(self, type_: str) -> list[str]:
        """Publish until it is known to be there; each try is written down. Answers every id it may have."""
        self.number += 1
        key, tried = f"{type_} {self.number}", []
        while True:
            rows = self.app.new_events(type_, {}, retry_key=key, idempotency_key=key)
            ids = [str(row.id) for row in rows]
            tried += ids
            self.notes.note("publish", "invoke", ids=ids)
            with Answered(self.notes, "publish", ids):
                published = await self.app.store.publish(rows)
                self.notes.note("publish", "ok", ids=[str(each.id) for each in published])
                return tried
            await asyncio.sleep(0.01)

    async def turn(self) -> None:
        """One conversation: two publishes and claims, an effect in a transaction, a failure, a retry, the settles."""
        tried = await self.publish("lab.work") + await self.publish("plain.work")
        text = "select count(*) as n from {}outbox where cast(id as text) = any(?) and status <> 'delivered'"

        def ended() -> bool:
            return bool(query(self.url, text, (tried,))[0]["n"] == 0)

        await until(ended)

    def look(self, run: Record) -> None:
        """Look at everything there is by now."""
        found = check(self.url, self.notes.path, max_attempts=MAX_ATTEMPTS)
        for line in lines(self.notes.path):
            self_said = line["what"] == "raw"
            if self_said:
                found.add("raw error", line["error"])
            if line["what"] == "publish":
                run.reached[f"publish {line['answer']}"] += 1
        run.violations += found.violations
        assert not found.violations, str(found)


async def cut_at(line: Line, way: Way, byte: int, how: How = "reset") -> None:
    """Cut at a byte, counted from now; when one conversation is shorter than that, in the next."""
    line.proxy.arm(way, byte, how)
    await line.turn()
    while not line.proxy.fired:
        await line.turn()


async def length(line: Line) -> dict[Way, int]:
    """Measure one conversation on connections that are there."""
    long: dict[Way, int] = {"up": 1 << 30, "down": 1 << 30}
    for _ in range(3):
        line.proxy.count()
        await line.turn()
        long = {way: min(long[way], line.proxy.passed[way]) for way in long}
    return long


@pytest.mark.req("O9")
@pytest.mark.promise(*PROMISES)
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_conversation_cut_at_any_byte_is_taken_up_again(
    postgres_url: str, proxy: Proxy, notes: Ledger, part: int, seed: int, record: Callable[..., Record]
) -> None:
    run, dice = record("network", "postgres"), random.Random(seed + part)
    line = Line(postgres_url, proxy, notes)
    async with line.working():
        long = await length(line)
        run.figures |= {f"bytes {way}": float(number) for way, number in long.items()}
        for number in range(PART):
            way: Way = "up" if number % 2 else "down"
            await cut_at(line, way, dice.randrange(long[way]))
            run.faults[f"cut {way}"] += 1
            run.cases += 1
    line.look(run)
    assert run.reached["publish ok"]


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise(*PROMISES)
@pytest.mark.parametrize("way", ["up", "down"])
async def test_every_byte_of_a_conversation(
    postgres_url: str, proxy: Proxy, notes: Ledger, way: Way, budget: float, record: Callable[..., Record]
) -> None:
    """Every byte if the time suffices, else bytes at even distances; then the same with a half-open connection."""
    run, end = record("network", "postgres"), time.monotonic() + budget
    line = Line(postgres_url, proxy, notes)
    async with line.working():
        long = (await length(line))[way]
        began = time.monotonic()
        for byte in range(0, long, max(1, long // 20)):
            await cut_at(line, way, byte)
        share = (time.monotonic() - began) / 20
        step = max(1, int(long * share / max(1.0, end - time.monotonic())) + 1)
        for byte in range(0, long, step):
            await cut_at(line, way, byte)
            run.faults[f"cut {way}"] += 1
            run.cases += 1
        run.figures |= {"bytes": float(long), "step": float(step)}
    line.look(run)
    assert run.reached["publish unknown"]


@pytest.mark.req("O9")
@pytest.mark.promise(*PROMISES)
async def test_a_connection_that_swallows_everything_costs_a_call_and_no_more(
    postgres_url: str, proxy: Proxy, notes: Ledger, seed: int, record: Callable[..., Record]
) -> None:
    run, dice = record("network", "postgres"), random.Random(seed)
    line = Line(postgres_url, proxy, notes)
    async with line.working():
        long = await length(line)
        for way in long:
            began = time.monotonic()
            await cut_at(line, way, dice.randrange(long[way]), "swallow")
            run.faults["half open"] += 1
            assert time.monotonic() - began < 60 * CALL_SECONDS  # the kernel alone would wait for a quarter of an hour
        proxy.swallow_all()
        run.faults["all half open"] += 1
        await line.turn()
        run.cases += 3
    line.look(run)


@pytest.mark.promise(*PROMISES)
async def test_slow_and_reset_connections(
    postgres_url: str, proxy: Proxy, notes: Ledger, record: Callable[..., Record]
) -> None:
    run = record("network", "postgres")
    line = Line(postgres_url, proxy, notes)
    async with line.working():
        proxy.latency = 0.02
        await line.turn()
        proxy.latency = 0.0
        run.faults["slow"] += 1
        for _ in range(5):
            turn = asyncio.create_task(line.turn())
            await asyncio.sleep(0.02)
            proxy.cut_all()
            await turn
            run.faults["reset"] += 1
        run.cases = 6
    line.look(run)


@pytest.mark.req("O8")
@pytest.mark.promise("effect-once", "no-phantom", "fence")
async def test_a_commit_whose_answer_was_lost_is_found_to_be_done(
    postgres_url: str, proxy: Proxy, notes: Ledger, record: Callable[..., Record]
) -> None:
    """The handler hears of an error, its event is delivered all the same, and its effect is there once."""
    run = record("network", "postgres")
    line = Line(postgres_url, proxy, notes)
    async with line.working():
        await line.turn()
        for _ in range(3):
            proxy.lose_answers_to_commit()
            await line.turn()
            run.faults["answer to COMMIT lost"] += proxy.fired
            run.cases += 1
    line.look(run)
    assert run.faults["answer to COMMIT lost"] == 3


@pytest.mark.promise("no-phantom")
async def test_a_transaction_of_yours_whose_commit_got_no_answer_is_called_unknown(
    postgres_url: str, proxy: Proxy, notes: Ledger
) -> None:
    """And not by an error of the driver, which a caller would have to know."""
    line = Line(postgres_url, proxy, notes)
    async with line.app as app:
        proxy.lose_answers_to_commit()
        with pytest.raises(RedriveError) as raised:
            async with app.transaction() as tx:
                published = await tx.publish("lab.work", {})

        assert type(raised.value) is StoreUnavailable
        assert proxy.fired == 1
        assert await app.event(published.id) is not None


@pytest.mark.promise("durable", "no-phantom")
async def test_what_breaks_after_the_commit_does_not_make_a_failure_of_it(
    postgres_url: str, proxy: Proxy, notes: Ledger
) -> None:
    """The connection is put in order behind a commit; when it breaks there, the transaction is done all the same."""
    line = Line(postgres_url, proxy, notes)
    async with line.app as app:
        reset = 0
        for _ in range(2):  # the second time everything is prepared, and takes as many bytes as the third time
            async with app.transaction() as tx:
                proxy.count()
                await tx.publish("lab.work", {})
                reset = len(tx.connection.get_reset_query().encode())

        async with app.transaction() as tx:
            proxy.arm("up", proxy.passed["up"] - reset)
            published = await tx.publish("lab.work", {})

        assert proxy.fired == 1
        assert await app.event(published.id) is not None
