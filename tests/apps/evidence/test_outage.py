"""The case API goes away and comes back: an outage is nobody's attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, Status
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import ATTACH, N1, N2, Desk
from redrive.apps.evidence.fake_cases import FakeCases
from tests.apps.evidence.conftest import bench_with, case, settings_for, upload_of, web
from tests.servers import free_port
from tests.waiting import until
from tests.worker.conftest import working


@asynccontextmanager
async def opened(store_url: str, folder: Path, port: int, **more: Any) -> AsyncIterator[Desk]:
    async with Redrive(store_url, migrate=True):
        pass
    desk = build(settings_for(store_url, folder, port, scheduler_every=1.0, **more))
    async with desk.app:
        yield desk


async def sent(desk: Desk, data: bytes) -> None:
    async with web(desk) as client:
        assert (await client.post("/evidence/jobs", content=data)).status_code == 202


async def count(desk: Desk, type_: str, status: Status) -> int:
    return sum(event.type == type_ and event.status is status for event in await desk.app.events())


@pytest.mark.req("E11")
async def test_while_the_case_api_is_away_requests_wait_and_spend_nothing(store_url: str, tmp_path: Path) -> None:
    port = free_port()
    async with opened(store_url, tmp_path, port) as desk:
        desk.app.dependency("case-api", threshold=3, probe_after="200ms", probe_cap="300ms")
        await sent(desk, upload_of(*((case(), [f"{n}.pdf"]) for n in range(12))))
        async with working(desk.app):
            await until(lambda: shut(desk))
            await until(lambda: blocked(desk))
            async with desk.app.transaction() as tx:
                table = "evidence.file_job_artifact" if desk.app.dialect == "postgres" else "file_job_artifact"
                ((attempts,),) = await tx.fetch(f"select max(attempt_count) from {table}")
            assert attempts == 0

            cases = FakeCases()
            await cases.start(port)
            try:
                await until(lambda: over(desk))
            finally:
                await cases.stop()
        assert {*cases.attached.values()} == {1}
        assert len(cases.attached) == 12
        assert await count(desk, ATTACH, Status.FAILED) == 0


async def shut(desk: Desk) -> bool:
    return any(each.name == "case-api" and each.is_shut for each in await desk.app.dependencies())


async def blocked(desk: Desk) -> bool:
    return await count(desk, ATTACH, Status.BLOCKED) == 12


async def over(desk: Desk) -> bool:
    return await count(desk, N2, Status.DELIVERED) == 1


@pytest.mark.req("E8", "E11")
@pytest.mark.parametrize("fail", [True, False])
async def test_both_notices_are_forced_when_the_case_api_was_never_there(
    store_url: str, tmp_path: Path, fail: bool
) -> None:
    async with bench_with(store_url, tmp_path, n2_leftovers_fail=fail) as bench:
        await bench.cases.stop()
        job_id = await bench.add(upload_of((case(), ["a.pdf", "b.pdf"]), (case(), ["c.pdf"])))
        assert await bench.h.events(N1) == []

        await bench.leap("24h")

        (n1,) = [each.payload for each in await bench.h.events(N1)]
        assert (n1["forced"], n1["total"], n1["not_attempted"], n1["will_retry"]) == (True, 3, 3, 3)
        assert await bench.h.events(N2) == [], "N2 has a day of its own"
        assert (await bench.desk.app.reconcilers.run_here("evidence-notices", dry_run=True)).different == 0

        await bench.leap("24h")

        (n2,) = [each.payload for each in await bench.h.events(N2)]
        assert (n2["forced"], n2["total"], n2["not_attempted"]) == (True, 3, 3)
        assert (n2["given_up"], n2["unsettled"]) == ((3, 0) if fail else (0, 3))
        rows = (await bench.job(job_id))["rows"]
        assert {row["evidence_status"] for row in rows} == {"FAILED" if fail else "PENDING"}
        assert (await bench.desk.app.reconcilers.run_here("evidence-rollups", dry_run=True)).different == 0

        await bench.cases.start(bench.port)
        await bench.leap("1h")
        await bench.leap("1h")
        assert len(bench.cases.attached) == (0 if fail else 3), "given up is given up; what is not is attached"


@pytest.mark.req("E11")
async def test_many_calls_in_a_row_without_an_answer_are_an_outage_too(sqlite_url: str, tmp_path: Path) -> None:
    cases = FakeCases()
    port = await cases.start()
    cases.tell_all(*["503"] * 60)
    try:
        async with opened(sqlite_url, tmp_path, port, outage_calls=5) as desk:
            desk.app.dependency("case-api", threshold=3, probe_after="100ms", probe_cap="200ms")
            await sent(desk, upload_of(*((case(), [f"{n}.pdf"]) for n in range(30))))
            async with working(desk.app, concurrency=4):
                await until(lambda: shut(desk))
                cases._always.clear()
                desk.cases._silent = 0
                await until(lambda: tried(desk))
        assert len(cases.attached) >= 25
    finally:
        await cases.stop()


async def tried(desk: Desk) -> bool:
    return await count(desk, "EVIDENCE_N1", Status.DELIVERED) == 1
