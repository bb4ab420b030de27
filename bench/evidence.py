"""Measure the evidence app: one ZIP of many artifacts, a tenth of whose first calls fail, against a local case API.

    python bench/evidence.py --store postgres --artifacts 100000 --processes 2

Everything runs on this machine: the case API is one process, the workers are others, and the database is the third.
The clock starts when the upload is answered and stops when the notices are sent. Retries come due at once, and the
scheduler does not pause between its batches: what is measured is the work, not the waiting.
"""

import argparse
import asyncio
import io
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from run import private_postgres

from redrive import Redrive
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import RECEIVED, Desk
from redrive.apps.evidence.settings import Settings
from redrive.operate.cli.bench.place import Place, place_for

WORKER = ["-m", "redrive.operate.cli", "worker", "evidence"]


def archive(artifacts: int, a_row: int) -> bytes:
    """Pack small files, some to a row; every row has a case of its own."""
    sink, table = io.BytesIO(), io.StringIO("")
    table.write("case_id,files\n")
    with zipfile.ZipFile(sink, "w") as packed:
        for row in range(artifacts // a_row):
            names = [f"{row}/{place}.txt" for place in range(a_row)]
            table.write(f"{uuid4()},{';'.join(names)}\n")
            for name in names:
                packed.writestr(name, f"evidence {name} ".encode() * 20)
        packed.writestr("evidence.csv", table.getvalue())
    return sink.getvalue()


def _stat(pid: str | int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []


def cpu_seconds(*pids: int) -> float:
    """Sum what processes of Linux, and children of theirs that have ended, have spent."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in pids) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Name a process and its children."""
    others = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
    return [pid, *(other for other in others if _stat(other)[1:2] == [str(pid)])]


async def postmaster(desk: Desk) -> int | None:
    """Find the database's first process; ``None`` when there is none on this machine."""
    if desk.app.dialect != "postgres":
        return None
    async with desk.app.transaction() as tx:
        ((backend,),) = await tx.fetch("select pg_backend_pid()")
    found = _stat(backend)
    return int(found[1]) if found else None


async def upload(desk: Desk, data: bytes) -> str:
    """Do what the upload does."""
    job_id = str(uuid4())
    key = f"jobs/{job_id}/source.zip"
    desk.shelf.put(key, io.BytesIO(data))
    async with desk.app.transaction() as tx:
        await desk.tables.ask(tx, "job_add", job_id, "bench.zip", len(data), key, None, desk.app.clock.now())
        await tx.publish(RECEIVED, {"file_job_id": job_id}, correlation_id=job_id)
    return job_id


async def watched(desk: Desk, job_id: str, began: float) -> dict[str, float]:
    """Wait for the notices; return when each part was over."""
    marks: dict[str, float] = {}
    while "n2" not in marks:
        await asyncio.sleep(0.25)
        async with desk.app.transaction() as tx:
            (job,) = await desk.tables.ask(tx, "job", job_id)
        now = time.monotonic() - began
        reached = {"expanded": job[4] != "RECEIVED", "n1": job[9] is not None, "n2": job[10] is not None}
        for name in (name for name, is_over in reached.items() if is_over):
            marks.setdefault(name, now)
        if job[4] == "FAILED_VALIDATION":
            raise SystemExit(job[6])
    return marks


def started(command: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a process of ours."""
    return subprocess.Popen(  # noqa: S603 - our own commands
        [sys.executable, *command], env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip


async def measure(arguments: argparse.Namespace, url: str, folder: Path) -> None:
    """Run it once."""
    journal = folder / "cases.log"
    server = started(
        ["-m", "redrive.apps.evidence.fake_cases", "--port", "0", "--journal", str(journal), "--transient", "0.1"]
    )
    assert server.stdout is not None
    case_url = server.stdout.readline().split()[-1]
    environment = {
        "REDRIVE_URL": url, "EVIDENCE_CASE_URL": case_url, "EVIDENCE_OBJECTS": str(folder / "objects"),
        "EVIDENCE_RETRY_DELAY": "1s", "EVIDENCE_SCHEDULER_EVERY": "1s", "EVIDENCE_BATCH_PAUSE_MIN": "0s",
        "EVIDENCE_BATCH_PAUSE_MAX": "0s",
    }  # fmt: skip
    desk = build(Settings.from_env(environment))
    async with Redrive(url, migrate=True):
        pass
    async with desk.app:
        job_id = await upload(desk, archive(arguments.artifacts, arguments.a_row))
        database = await postmaster(desk)
        before = 0.0 if database is None else cpu_seconds(*family(database))
        began = time.monotonic()
        workers = [
            started([*WORKER, "-c", str(arguments.concurrency)], **environment) for _ in range(arguments.processes)
        ]
        try:
            marks = await watched(desk, job_id, began)
            spent = {
                "workers": cpu_seconds(*(each.pid for each in workers)), "case API": cpu_seconds(server.pid),
                "database": 0.0 if database is None else cpu_seconds(*family(database)) - before,
            }  # fmt: skip
        finally:
            for each in [*workers, server]:
                each.terminate()
            for each in [*workers, server]:
                each.wait()
        async with desk.app.transaction() as tx:
            (job,) = await desk.tables.ask(tx, "job", job_id)
    attached = journal.read_text().split()
    assert len(attached) == len(set(attached)) == arguments.artifacts, "each artifact is attached once"
    report(arguments, marks, spent, str(job[13]))


def report(arguments: argparse.Namespace, marks: dict[str, float], spent: dict[str, float], summary: str) -> None:
    """Print what came out."""
    artifacts = arguments.artifacts
    print(f"{artifacts:,} artifacts, {arguments.a_row} a row, {arguments.processes} workers, {arguments.store}")
    print(f"  expanded after {marks['expanded']:6.1f} s")
    print(f"  N1 after       {marks['n1']:6.1f} s   {artifacts / marks['n1']:8,.0f} artifacts/s, all of it")
    print(f"  N2 after       {marks['n2']:6.1f} s   {artifacts / marks['n2']:8,.0f} artifacts/s, retries included")
    each = {part: 1_000 * seconds / artifacts for part, seconds in spent.items()}
    parts = ", ".join(f"{part} {milliseconds:.3f}" for part, milliseconds in each.items())
    print(f"  CPU            {sum(each.values()):6.3f} ms an artifact: {parts}")
    print(f"  {summary[:200]}")


async def at(place: Place, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure on a fresh database."""
    async with place.fresh() as url:
        await measure(arguments, url, folder)


def main(arguments: argparse.Namespace) -> None:
    """Make a place, and measure there."""
    with ExitStack() as stack:
        server = stack.enter_context(private_postgres()) if arguments.store == "postgres" else None
        place = stack.enter_context(place_for(arguments.store, server, None))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder))
        asyncio.run(at(place, arguments, Path(folder)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", default="postgres", choices=["sqlite", "postgres"])
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument("--a-row", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=None)
    main(parser.parse_args())
