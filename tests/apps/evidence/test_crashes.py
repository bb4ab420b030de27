"""Workers and the case API are killed at random while a job is under way: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import N1, N2, RESULT, Desk
from redrive.apps.evidence.settings import Settings
from tests import warm
from tests.apps.evidence.conftest import case, upload_of, web
from tests.servers import free_port
from tests.waiting import until

pytestmark = pytest.mark.lab_short


class Theatre:
    """The processes, and what kills them."""

    def __init__(self, url: str, folder: Path, *, ignores_keys: bool) -> None:
        self.port, self.journal = free_port(), folder / "cases.log"
        self._keys = ["--ignores-keys"] if ignores_keys else []
        self.environment = {
            "REDRIVE_URL": url, "EVIDENCE_CASE_URL": f"http://127.0.0.1:{self.port}", "EVIDENCE_CASE_TIMEOUT": "1s",
            "EVIDENCE_CASE_PROBE": "200ms",
            "EVIDENCE_OBJECTS": str(folder / "objects"), "EVIDENCE_RETRY_DELAY": "300ms",
            "EVIDENCE_SCHEDULER_EVERY": "1s", "EVIDENCE_BATCH_PAUSE_MIN": "0s", "EVIDENCE_BATCH_PAUSE_MAX": "50ms",
        }  # fmt: skip
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = {
            "cases": ["redrive.apps.evidence.fake_cases", "--port", str(self.port), "--journal", str(self.journal),
                      "--transient", "0.1", *self._keys],
        }.get(name, ["redrive.operate.cli", "worker", "evidence", "-c", "10"])  # fmt: skip
        self._running[name] = warm.python(
            ["-m", *command], env=os.environ | self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for name in [*self._running]:
            self.kill(name)

    def attached(self) -> Counter[str]:
        return Counter(self.journal.read_text().split())


async def survived(url: str, folder: Path, *, rows: int, kills: int, ignores_keys: bool, seed: int) -> None:
    dice = random.Random(seed)
    theatre = Theatre(url, folder, ignores_keys=ignores_keys)
    async with Redrive(url, migrate=True):
        pass
    desk = build(Settings.from_env(theatre.environment))
    async with desk.app:
        async with web(desk) as client:
            answer = await client.post(
                "/evidence/jobs",
                content=upload_of(*((case(), [f"{n}-{k}.pdf" for k in range(4)]) for n in range(rows))),
            )
        job_id = answer.json()["file_job_id"]
        try:
            theatre.start("cases")
            await until(theatre.journal.exists)
            theatre.start("one")
            theatre.start("two")
            await until(lambda: bool(theatre.attached()))
            for _ in range(kills):
                await asyncio.sleep(dice.uniform(0.1, 0.7))
                name = dice.choice(("cases", "one", "two"))
                theatre.kill(name)
                theatre.start(name)
            await until(lambda: closed(desk, job_id), 90)
        finally:
            theatre.end()
        await check(desk, job_id, theatre.attached(), rows * 4)


async def closed(desk: Desk, job_id: str) -> bool:
    async with desk.app.transaction() as tx:
        ((*_, n2_sent_at, _, _, _, _, _),) = await desk.tables.ask(tx, "job", job_id)
    return n2_sent_at is not None


async def check(desk: Desk, job_id: str, attached: Counter[str], artifacts: int) -> None:
    table = "evidence.file_job_artifact" if desk.app.dialect == "postgres" else "file_job_artifact"
    async with desk.app.transaction() as tx:
        rows = await tx.fetch(f"select id, attachment_status, attempt_count from {table}")
    outbox = "redrive.outbox" if desk.app.dialect == "postgres" else "redrive_outbox"
    async with desk.app.transaction() as tx:
        sent = dict(await tx.fetch(f"select type, count(*) from {outbox} group by type"))
    assert {id_: n for id_, n in attached.items() if n > 1} == {}, "attached twice"
    assert (sent[N1], sent[N2]) == (1, 1)
    assert len(rows) == artifacts
    ours = {str(id_) for id_, status, _ in rows if status == "ATTACHED"}
    assert ours <= {*attached}, "we say attached, the case does not"
    assert sum(attempts for _, _, attempts in rows) == sent[RESULT], "one result an attempt"
    run = await desk.app.reconcilers.run_here("evidence-rollups", dry_run=True)
    assert (run.missing, run.extra, run.different) == (0, 0, 0)
    async with desk.app.transaction() as tx:
        ((*_, summary, _, _),) = await desk.tables.ask(tx, "job", job_id)
    told = json.loads(summary)
    assert told["total"] == artifacts
    assert told["attached"] == len(ours)
    ends = ("attached", "permanent_failed", "exhausted", "given_up", "unsettled")
    assert sum(told[each] for each in ends) == artifacts


@pytest.mark.req("E7", "E8", "E2")
async def test_killed_at_random_nothing_is_lost_or_doubled(store_url: str, tmp_path: Path) -> None:
    """On the one store with a case API that honours keys, on the other with one that attaches whatever comes."""
    await survived(store_url, tmp_path, rows=30, kills=3, ignores_keys=store_url.startswith("sqlite"), seed=7)


@pytest.mark.lab
@pytest.mark.timeout(1_200)
@pytest.mark.req("E7", "E8")
@pytest.mark.parametrize("ignores_keys", [False, True], ids=["by its key", "by asking first"])
@pytest.mark.parametrize("seed", range(3))
async def test_killed_at_random_for_long(store_url: str, tmp_path: Path, ignores_keys: bool, seed: int) -> None:
    await survived(store_url, tmp_path, rows=1_000, kills=60, ignores_keys=ignores_keys, seed=seed)
