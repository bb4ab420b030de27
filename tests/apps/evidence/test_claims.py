"""Duplicate requests: an artifact that is being attached is claimed, so that nobody else calls meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from redrive import Redrive, Status
from redrive.apps.evidence.attach import Passage, through
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import ATTACH, N2, Desk
from redrive.apps.evidence.fake_cases import FakeCases
from tests.apps.evidence.conftest import Bench, case, settings_for, upload_of, web
from tests.waiting import until
from tests.worker.conftest import working


@asynccontextmanager
async def two(store_url: str, folder: Path, cases: FakeCases) -> AsyncIterator[tuple[Desk, Desk]]:
    """The app in two processes, as far as it can tell: nothing is shared but the database."""
    async with Redrive(store_url, migrate=True):
        pass
    settings = settings_for(store_url, folder, await cases.start())
    one, other = build(settings), build(settings)
    try:
        async with one.app, other.app:
            yield one, other
    finally:
        await cases.stop()


async def delivered(desk: Desk, type_: str) -> int:
    return sum(each.type == type_ and each.status is Status.DELIVERED for each in await desk.app.events())


@pytest.mark.req("E7")
async def test_duplicate_requests_call_the_case_api_once(store_url: str, tmp_path: Path) -> None:
    cases = FakeCases(honours_keys=False)
    async with two(store_url, tmp_path, cases) as (one, other):
        async with web(one) as client:
            await client.post("/evidence/jobs", content=upload_of((case(), ["a.pdf"])))
        async with working(one.app):
            cases.hold()
            await until(lambda: cases.calls["POST"] == 1)
            (first,) = [each for each in await one.app.events() if each.type == ATTACH]
            await one.app.publish_many([(ATTACH, first.payload)] * 4)
            async with working(other.app):
                await until(lambda: _four(one))
                assert cases.calls == {"POST": 1}
                cases.release()
                await until(lambda: _closed(one))

    assert cases.calls == {"POST": 1}
    assert {*cases.attached.values()} == {1}


async def _four(desk: Desk) -> bool:
    return await delivered(desk, ATTACH) == 4


async def _closed(desk: Desk) -> bool:
    return await delivered(desk, N2) == 1


@pytest.mark.req("E7")
async def test_duplicates_that_come_together_share_one_claim(bench: Bench) -> None:
    await bench.upload(upload_of((case(), ["a.pdf", "b.pdf"])))
    bench.h.fail_next(1, ConnectionError("later"), target=ATTACH)
    await bench.h.run_due()
    (first,) = await bench.h.events(ATTACH)

    await bench.desk.app.publish_many([(ATTACH, first.payload)] * 4)
    await bench.h.advance("1m")

    assert bench.cases.calls == {"POST": 2}
    assert (await bench.artifacts())["a.pdf"] == ("ATTACHED", None, 1, 0, "PENDING")


@pytest.mark.req("E7")
async def test_a_claim_is_its_holders_until_it_runs_out(bench: Bench) -> None:
    await bench.upload(upload_of((case(), ["a.pdf"])))
    bench.h.fail_next(1, ConnectionError("later"), target=ATTACH)
    await bench.h.run_due()
    (request,) = await bench.h.events(ATTACH)
    job_id, row_id = request.payload["file_job_id"], request.payload["file_job_row_id"]
    mine, theirs = (Passage(job_id, row_id, str(bench.desk.app.clock.new_id())) for _ in range(2))

    async def claimed(passage: Passage) -> list[bool]:
        """Claim; say of each artifact whether the case must be asked first."""
        async with bench.desk.app.transaction() as tx:
            return [each.ask_first for each in (await through(bench.desk, tx, [passage]))[0] or ()]

    assert await claimed(mine) == [False]
    assert await claimed(theirs) == [], "somebody else is calling"
    assert await claimed(mine) == [True], "the holder comes back after a crash"
    bench.h.clock.advance(bench.desk.settings.claim + 1)
    assert await claimed(theirs) == [True], "the holder never came back"
    assert await claimed(mine) == []
