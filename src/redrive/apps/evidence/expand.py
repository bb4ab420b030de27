"""Expand: a received ZIP becomes rows, artifacts and one request for each row.

The whole upload is checked first. Then files are put on the shelf, and when these are on disk their rows are written,
some hundred a transaction, each with its request: attaching begins while a thread unpacks the rest. Ids follow from
the job and the line, so that an attempt after a crash goes on where the last one stopped. An upload that cannot be used
is ``FAILED_VALIDATION`` with its reason.

Next: ``attach``.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid5

from redrive import Context, Work
from redrive.apps.evidence.desk import ATTACH, DEADLINE, LOOK, N1, RECEIVED, REFUSED, ArtifactResult, Desk
from redrive.apps.evidence.tables import plain
from redrive.apps.evidence.unpack import BadUpload, File, Line, unpack

_AT_ONCE: Final = 200


def register(desk: Desk) -> None:
    """Add the handler."""

    @desk.app.handler(RECEIVED, effects="outside")
    async def expand(payload: dict[str, Any], ctx: Context) -> None:
        await _expand(desk, str(payload["file_job_id"]), ctx)


async def _expand(desk: Desk, job_id: str, ctx: Context) -> None:
    async with desk.app.transaction() as tx:
        ((_, _, _, zip_key, status, *_),) = await desk.tables.ask(tx, "job", job_id)
    if status != "RECEIVED":
        return
    try:
        async with desk.shelf.local(zip_key) as path:
            lines, files = await _written(desk, path, job_id)
    except BadUpload as bad:
        await _refuse(desk, job_id, bad, ctx)
        return
    async with ctx.transaction() as tx:
        now = desk.app.clock.now()
        await desk.tables.ask(tx, "job_expanded", job_id, lines, files, now)
        await tx.publish(LOOK, {"file_job_id": job_id}, correlation_id=job_id)
        due = now + timedelta(seconds=desk.settings.n1_after)
        await tx.publish(DEADLINE, {"file_job_id": job_id, "notice": N1}, due_at=due, correlation_id=job_id)


async def _written(desk: Desk, path: Path, job_id: str) -> tuple[int, int]:
    """Write all lines; a thread unpacks the next ones meanwhile. Return how many lines and files there are."""
    parts = unpack(path, desk.settings.limits, f"jobs/{job_id}/files", desk.shelf.put)
    lines = files = 0
    ahead = asyncio.create_task(asyncio.to_thread(_part, desk, parts))
    try:
        while part := await ahead:
            ahead = asyncio.create_task(asyncio.to_thread(_part, desk, parts))
            lines += len(part)
            files += sum(len(line.files) for line in part)
            for start in range(0, len(part), _AT_ONCE):
                async with desk.app.transaction() as tx:
                    await desk.tables.by_index(tx)
                    await _write(desk, tx, job_id, part[start : start + _AT_ONCE], desk.app.clock.now())
    finally:
        await asyncio.wait([ahead])  # a thread cannot be stopped, and the ZIP may be gone after this
    return lines, files


def _part(desk: Desk, parts: Iterator[list[Line]]) -> list[Line]:
    """Unpack some lines, and have their files on disk."""
    part = next(parts, [])
    if part:
        desk.shelf.settle()
    return part


async def _refuse(desk: Desk, job_id: str, bad: BadUpload, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        message = str(bad)[:2_000]
        if await desk.tables.ask(tx, "job_refuse", job_id, bad.code, message, desk.app.clock.now()):
            refused = {"file_job_id": job_id, "error_code": bad.code, "error_message": message, "schema_version": 1}
            await tx.publish(REFUSED, refused, correlation_id=job_id, subject=f"file_job/{job_id}")


async def _write(desk: Desk, tx: Work, job_id: str, lines: Sequence[Line], now: datetime) -> None:
    """Write some rows that are not there yet, with their artifacts, their requests, and results of unusable files."""
    job = UUID(job_id)
    by_id = {str(uuid5(job, str(line.line))): line for line in lines}
    rows = [
        {"id": row_id, "line": line.line, "case_id": line.case_id, "error_code": line.error_code,
         "error_message": line.error_message}
        for row_id, line in by_id.items()
    ]  # fmt: skip
    new = {str(row[0]) for row in await desk.tables.ask(tx, "rows_add", job_id, json.dumps(rows), now)}
    artifacts: list[dict[str, Any]] = []
    requests: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for row_id, line in by_id.items():
        if row_id not in new or not line.files:
            continue
        row = UUID(row_id)
        made = [_artifact(row, line.case_id, file) for file in line.files]
        artifacts += made
        if not all(each["error_code"] for each in made):
            assert line.case_id is not None
            requests[row_id] = line.case_id, [(each["id"], each["s3_key"]) for each in made]
    if not artifacts:
        return
    await desk.tables.do(tx, "artifacts_add", job_id, json.dumps(artifacts), now)
    await desk.tables.do(tx, "roll_up", job_id, desk.tables.ids({each["row_id"] for each in artifacts}), now)
    await desk.request(tx, ATTACH, job_id, requests, now)
    unusable = [each for each in artifacts if each["error_code"]]
    await desk.tell(tx, [(_result(job_id, each, plain(now)), None) for each in unusable])
    for each in unusable:
        desk.counts.ended(0, each["error_code"], permanent=True)


def _artifact(row_id: UUID, case_id: str | None, file: File) -> dict[str, Any]:
    return {
        "id": str(uuid5(row_id, file.name)), "row_id": str(row_id), "case_id": case_id, "file_name": file.name,
        "file_type": file.type, "file_size_bytes": file.size, "s3_key": file.key, "error_code": file.error_code,
        "error_message": file.error_message,
    }  # fmt: skip


def _result(job_id: str, artifact: dict[str, Any], at: str) -> ArtifactResult:
    return {
        "file_job_id": job_id, "file_job_row_id": artifact["row_id"], "case_id": artifact["case_id"],
        "artifact_id": artifact["id"], "status": "FAILED", "error_code": artifact["error_code"],
        "error_message": artifact["error_message"], "attempt_count": 1, "occurred_at": at, "schema_version": 1,
    }  # fmt: skip
