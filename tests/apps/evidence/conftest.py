"""The evidence app with a case API of its own, on each store, at a time that the test sets."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4, uuid5

import httpx
import pytest

from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import Desk
from redrive.apps.evidence.fake_cases import FakeCases
from redrive.apps.evidence.settings import Settings
from redrive.testing import Harness, Ran

PDF = b"%PDF-1.7 something"


def packed(table: str | bytes | None, files: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        if table is not None:
            archive.writestr("evidence.csv", table)
        for name, data in files.items() if isinstance(files, Mapping) else files:
            archive.writestr(name, data)
    return sink.getvalue()


def upload_of(*rows: tuple[str, list[str]], **files: bytes) -> bytes:
    """Pack a ZIP whose CSV has these rows; files that are not given are small PDFs."""
    table = "case_id,files\n" + "".join(f"{case},{';'.join(names)}\n" for case, names in rows)
    return packed(table, {name: files.get(name, PDF) for _, names in rows for name in names})


def case() -> str:
    return str(uuid4())


def settings_for(url: str, folder: Path, port: int, **more: Any) -> Settings:
    fast = {"case_timeout": 30.0, "batch_pause": (0.0, 0.0), "outage_calls": 1_000, "reconcile_every": 1e7}
    return Settings(url=url, objects=str(folder), case_url=f"http://127.0.0.1:{port}", **{**fast, **more})


@dataclass(slots=True)
class Bench:
    """The app under test."""

    desk: Desk
    cases: FakeCases
    h: Harness
    port: int

    async def upload(self, data: bytes, **headers: str) -> httpx.Response:
        async with web(self.desk) as client:
            return await client.post("/evidence/jobs", content=data, headers=headers)

    async def add(self, data: bytes) -> str:
        """Upload, and have it expanded and tried once."""
        answer = await self.upload(data)
        assert answer.status_code == 202, answer.text
        await self.h.run_due()
        return str(answer.json()["file_job_id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        async with web(self.desk) as client:
            return dict((await client.get(f"/evidence/jobs/{job_id}")).json())

    async def ask(self, sql: str) -> list[Any]:
        """Ask the tables; names as on SQLite."""
        async with self.desk.app.transaction() as tx:
            return await tx.fetch(self.named(sql))

    async def write(self, sql: str) -> None:
        async with self.desk.app.transaction() as tx:
            await tx.execute(self.named(sql))

    def named(self, sql: str) -> str:
        if self.desk.app.dialect == "sqlite":
            return sql
        sql = re.sub(r"\b(file_job(?:_artifact|_row|_event)?)\b", r"evidence.\1", sql)
        return sql.replace("evidence_scheduler", "evidence.scheduler")

    async def artifacts(self) -> dict[str, tuple[Any, ...]]:
        """Attachment status, error, attempts, retries, retry status of each artifact, by file name."""
        rows = await self.ask(
            "select file_name, attachment_status, attachment_error_code, attempt_count, retry_count, retry_status"
            " from file_job_artifact"
        )
        return {row[0]: tuple(row[1:]) for row in rows}

    async def retry(self) -> Ran:
        """Let what failed come due, and be tried again."""
        return await self.leap("13m")

    async def leap(self, span: str | float) -> Ran:
        """Let time pass in one step, without a worker; then let the scheduler look."""
        self.h.clock.advance(span)
        return await self.h.advance(31)

    def artifact_id(self, job_id: str, line: int, name: str) -> str:
        return str(uuid5(uuid5(UUID(job_id), str(line)), name))


@asynccontextmanager
async def web(desk: Desk, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of what the app serves, from this machine."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    site = Starlette(routes=[Mount(path, app) for path, app in desk.app.mounts.items()])
    transport = httpx.ASGITransport(app=site, client=options.pop("client", ("127.0.0.1", 1)))
    async with httpx.AsyncClient(transport=transport, base_url=options.pop("base_url", "http://localhost")) as client:
        yield client


@asynccontextmanager
async def bench_with(store_url: str, folder: Path, **more: Any) -> AsyncIterator[Bench]:
    cases = FakeCases(honours_keys=more.pop("honours_keys", True))
    port = await cases.start()
    desk = build(settings_for(store_url, folder, port, **more))
    try:
        async with Harness(desk.app, url=store_url) as harness:
            yield Bench(desk, cases, harness, port)
    finally:
        await cases.stop()


@pytest.fixture
async def bench(store_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_with(store_url, tmp_path / "objects") as made:
        yield made
