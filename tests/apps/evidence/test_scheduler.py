"""The retry scheduler: in batches with pauses, one at a time, atomically."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from redrive import ReservationLost
from redrive.apps.evidence import retry
from redrive.apps.evidence.desk import RETRY
from redrive.apps.evidence.settings import Settings
from redrive.clock import VirtualClock
from tests.apps.evidence.conftest import Bench, bench_with, case, upload_of


async def failed(bench: Bench, rows: int, codes: tuple[str, ...] = ("500",)) -> str:
    """Upload rows of one file each whose first attempt fails, and let them come due."""
    cases = [case() for _ in range(rows)]
    for each, place in zip(cases, range(rows), strict=True):
        bench.cases.tell(each, codes[place % len(codes)])
    job_id = await bench.add(upload_of(*((each, [f"{n}.pdf"]) for n, each in enumerate(cases))))
    bench.h.clock.advance("7m")
    return job_id


@pytest.mark.req("E4")
async def test_rows_are_requeued_in_batches_with_pauses(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(_: VirtualClock, seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async with bench_with(store_url, tmp_path, batch_rows=4, batch_pause=(2.0, 5.0)) as bench:
        await failed(bench, 10)
        monkeypatch.setattr(VirtualClock, "sleep", sleep)

        assert await retry.requeue_all(bench.desk) == 10

        pauses = [each for each in waits if each not in (0, 10.0)]  # the lock renews itself every ten seconds
        assert len(pauses) == 3
        assert all(2.0 <= each <= 5.0 for each in pauses)
        ((seconds, last),) = await bench.ask("select duration_seconds, batch_size from evidence_scheduler")
        assert (seconds >= 0, last) == (True, 0)
        assert len(await bench.h.events(RETRY)) == 10


@pytest.mark.req("E4")
def test_a_batch_has_two_hundred_rows_unless_somebody_says_otherwise() -> None:
    settings = Settings()

    assert (settings.batch_rows, settings.batch_pause) == (200, (2.0, 5.0))
    assert [round(each) for each in settings.retry.schedule()] == [300, 600]


@pytest.mark.req("E4")
async def test_only_what_may_succeed_and_has_waited_is_requeued(bench: Bench) -> None:
    await failed(bench, 4, ("500", "422", "403", "503"))

    assert await retry.requeue_all(bench.desk) == 2
    assert await retry.requeue_all(bench.desk) == 0

    statuses = sorted(each[4] for each in (await bench.artifacts()).values())
    assert statuses == ["PERMANENT_FAILED", "PERMANENT_FAILED", "RETRY_SCHEDULED", "RETRY_SCHEDULED"]


@pytest.mark.req("E4")
async def test_marking_and_publishing_are_one_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await failed(bench, 2)

    async def refuse(*_: Any) -> None:
        raise ConnectionError("the process dies before the commit")

    monkeypatch.setattr(type(bench.desk), "request", refuse)
    with pytest.raises(ConnectionError):
        await retry.requeue_all(bench.desk)

    assert {each[4] for each in (await bench.artifacts()).values()} == {"RETRY_FAILED"}
    assert await bench.h.events(RETRY) == []


@pytest.mark.req("E4")
async def test_there_is_one_scheduler_at_a_time_and_a_dead_ones_lock_runs_out(bench: Bench) -> None:
    await failed(bench, 2)
    held = await bench.desk.app.reservations.take(f"lock:{retry.LOCK}", owner="a dead process", ttl="30s")

    assert await retry.requeue_all(bench.desk) == 0
    assert held.token > 0
    bench.h.clock.advance("31s")
    assert await retry.requeue_all(bench.desk) == 2


@pytest.mark.req("E4")
async def test_a_scheduler_that_lost_its_lock_requeues_nothing(bench: Bench) -> None:
    job_id = await failed(bench, 2)

    with pytest.raises(ReservationLost):
        async with bench.desk.app.locks.hold("another", ttl="30s") as lock:
            await lock.reservation.release()  # as if it had run out and another process had it
            await retry._requeue(bench.desk, lock, job_id)

    assert {each[4] for each in (await bench.artifacts()).values()} == {"RETRY_FAILED"}
    assert await bench.h.events(RETRY) == []


@pytest.mark.req("E4")
async def test_an_artifact_that_somebody_has_locked_is_left_for_the_next_look(
    postgres_url: str, tmp_path: Path
) -> None:
    async with bench_with(postgres_url, tmp_path) as bench:
        await failed(bench, 3)
        other = await asyncpg.connect(postgres_url)
        try:
            async with other.transaction():
                await other.execute("select 1 from evidence.file_job_artifact where file_name = '0.pdf' for update")
                assert await asyncio.wait_for(retry.requeue_all(bench.desk), 30) == 2
            assert await retry.requeue_all(bench.desk) == 1
        finally:
            await other.close()


@pytest.mark.req("E4", "E11")
async def test_nothing_is_requeued_while_the_circuit_is_open(bench: Bench) -> None:
    await failed(bench, 2)
    await bench.desk.app.open_dependency("case-api", by="ada", reason="maintenance")

    assert await retry.requeue_all(bench.desk) == 0
    ((opened,),) = await bench.ask("select circuit_open_count from evidence_scheduler")
    assert opened == 1

    await bench.desk.app.close_dependency("case-api", by="ada", reason="done")
    assert await retry.requeue_all(bench.desk) == 2
