"""Receive: ZIPs come in over HTTP, and people ask what became of them.

    POST /evidence/jobs           the ZIP is the body; 202 and the job's id once both are kept
    GET  /evidence/jobs           the latest jobs
    GET  /evidence/jobs/{id}      one of them: job, rows, artifacts, and the events of the outbox; ?after=LINE for more

The body is streamed to disk, up to a limit. With EVIDENCE_TOKEN a bearer token is needed; without, only this very
machine may call. An ``Idempotency-Key`` makes a second upload of the same thing answer with the first one's job.
"""

import asyncio
import hmac
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Any, Final
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from redrive.apps.evidence.desk import RECEIVED, Desk
from redrive.apps.evidence.notices import job_of
from redrive.apps.evidence.tables import JOB, LINEAGE, ROW, instant, plain

_HERE: Final = ("127.0.0.1", "::1")
_HERE_NAMED: Final = ("127.0.0.1", "[::1]", "localhost")
_ROWS: Final = 100
_JOBS: Final = 50
_NAME_LIMIT: Final = 255
_ARTIFACT: Final = slice(1, 9)
_EVENT: Final = slice(9, None)
_LINEAGE: Final[tuple[str, ...]] = LINEAGE


def web(desk: Desk) -> Starlette:
    """Make the ASGI app."""
    pages = _Pages(desk)
    routes = [
        Route("/jobs", pages.guarded(pages.upload), methods=["POST"]),
        Route("/jobs", pages.guarded(pages.jobs), methods=["GET"]),
        Route("/jobs/{job_id}", pages.guarded(pages.job), methods=["GET"]),
    ]
    return Starlette(routes=routes)


def _problem(status: int, detail: str) -> Response:
    return JSONResponse({"status": status, "detail": detail}, status, media_type="application/problem+json")


class _Pages:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def guarded(self, page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Let nobody else in."""

        async def guarded(request: Request) -> Response:
            refusal = self._refusal(request)
            return refusal if refusal is not None else await page(request)

        return guarded

    def _refusal(self, request: Request) -> Response | None:
        token = self._desk.settings.token
        if token:
            said = request.headers.get("authorization", "")
            if hmac.compare_digest(said.encode(), f"Bearer {token}".encode()):
                return None
            return _problem(401, "send the token: Authorization: Bearer …")
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        near = request.client is not None and request.client.host in _HERE
        if near and host in _HERE_NAMED and "x-forwarded-for" not in request.headers:
            return None
        return _problem(403, "only this machine may call: set EVIDENCE_TOKEN to let others in")

    async def upload(self, request: Request) -> Response:
        """Keep the ZIP, then the job and its first event in one commit, then answer."""
        name = unquote(request.headers.get("x-file-name", "upload.zip"))[:_NAME_LIMIT]
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _NAME_LIMIT:
            return _problem(400, f"an Idempotency-Key has from 1 to {_NAME_LIMIT} characters")
        with tempfile.TemporaryFile() as file:
            try:
                size = await self._streamed(request, file)
            except ClientDisconnect:
                return _problem(400, "the upload was broken off: send it again")
            if size is None:
                most = self._desk.settings.limits.upload_bytes
                return _problem(413, f"an upload has at most {most:,} bytes: split it")
            if size == 0:
                return _problem(400, "the body is empty: send the ZIP as the body, as curl --data-binary @a.zip does")
            job_id = str(self._desk.app.clock.new_id())
            await asyncio.to_thread(self._keep, f"jobs/{job_id}/source.zip", file)
        job_id = await self._added(job_id, name, size, key)
        return JSONResponse({"file_job_id": job_id}, 202, headers={"Location": f"{request.url.path}/{job_id}"})

    async def _streamed(self, request: Request, file: IO[bytes]) -> int | None:
        """Write the body down; ``None`` as soon as it is too large."""
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._desk.settings.limits.upload_bytes:
                return None
            await asyncio.to_thread(file.write, chunk)
        return size

    def _keep(self, key: str, file: IO[bytes]) -> None:
        file.seek(0)
        self._desk.shelf.put(key, file)
        self._desk.shelf.settle()

    async def _added(self, job_id: str, name: str, size: int, key: str | None) -> str:
        desk = self._desk
        async with desk.app.transaction() as tx:
            values = (job_id, name, size, f"jobs/{job_id}/source.zip", key, desk.app.clock.now())
            if not await desk.tables.ask(tx, "job_add", *values):
                ((there,),) = await desk.tables.ask(tx, "job_by_upload", key)
                return str(there)
            about = {"subject": f"file_job/{job_id}", "correlation_id": job_id}
            await tx.publish(RECEIVED, {"file_job_id": job_id}, **about)  # type: ignore[arg-type]
        return job_id

    async def jobs(self, _request: Request) -> Response:
        async with self._desk.app.transaction() as tx:
            rows = await self._desk.tables.ask(tx, "jobs", _JOBS)
        return JSONResponse({"jobs": [_job(row) for row in rows]})

    async def job(self, request: Request) -> Response:
        """Tell the lineage of a job, a page of rows at a time."""
        job_id, after = job_of(request.path_params["job_id"]), request.query_params.get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < 10):  # noqa: PLR2004 - fits a line number
            return _problem(400, "after is the number of a line")
        tables = self._desk.tables
        async with self._desk.app.transaction() as tx:
            found = [] if job_id is None else await tables.ask(tx, "job", job_id)
            if not found:
                return _problem(404, "there is no such job")
            rows = await tables.ask(tx, "rows_of", job_id, int(after), _ROWS)
            lineage = await tables.ask(tx, "lineage", job_id, tables.ids(str(row[0]) for row in rows))
        told: list[dict[str, Any]] = [_named(ROW, row) | {"artifacts": {}, "events": {}} for row in rows]
        by_id = {each["id"]: each for each in told}
        for row in lineage:
            each = by_id[str(row[0])]
            if row[_ARTIFACT][0] is not None:
                each["artifacts"][str(row[1])] = _named(_LINEAGE[_ARTIFACT], row[_ARTIFACT])
            if row[_EVENT][0] is not None:
                each["events"][str(row[9])] = _named(_LINEAGE[_EVENT], row[_EVENT])
        for each in told:
            each |= {"artifacts": [*each["artifacts"].values()], "events": [*each["events"].values()]}
        next_ = rows[-1][1] if len(rows) == _ROWS else None
        return JSONResponse({**_job(found[0]), "rows": told, "next_after": next_})


def _named(names: Sequence[str], row: Any) -> dict[str, Any]:
    return {
        name: plain(instant(value)) if name.endswith("_at") else plain(value)
        for name, value in zip(names, row, strict=True)
    }


def _job(row: Any) -> dict[str, Any]:
    told = _named(JOB, row)
    summaries = {name: None if told[name] is None else json.loads(told[name]) for name in ("n1_summary", "n2_summary")}
    return told | summaries | {"n2_forced": bool(told["n2_forced"])}
