"""The case API goes away and comes back: an outage is nobody's attempt. And the bytes in a bucket."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, Status
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import ATTACH, N2, Desk
from redrive.apps.evidence.fake_cases import FakeCases
from redrive.apps.evidence.shelf import Bucket, Folder
from tests.apps.evidence.conftest import case, settings_for, upload_of, web
from tests.servers import free_port
from tests.worker.conftest import until, working


@asynccontextmanager
async def opened(store_url: str, folder: Path, port: int, **more: Any) -> AsyncIterator[Desk]:
    async with Redrive(store_url, migrate=True):
        pass
    desk = build(settings_for(store_url, folder, port, scheduler_every=0.2, **more))
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


# --- where the bytes are ---


class _S3(asyncio.Protocol):
    """Just so much of S3 that an object can be put and got."""

    objects: dict[str, bytes]

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.buffer = objects, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self.buffer[:end].decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            stop = end + 4 + int(headers.get("content-length", 0))
            if len(self.buffer) < stop:
                return
            body, self.buffer = self.buffer[end + 4 : stop], self.buffer[stop:]
            method, path, _ = first.split(" ")
            self.answer(method, path.partition("?")[0], body)

    def answer(self, method: str, path: str, body: bytes) -> None:
        if method == "PUT":
            self.objects[path] = body
        found = self.objects.get(path)
        code, said = ("200 OK", found if method == "GET" else b"") if found is not None else ("404 Not Found", b"")
        head = f'HTTP/1.1 {code}\r\nETag: "e"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
        self.transport.write(f"{head}Content-Length: {len(said or b'')}\r\n\r\n".encode() + (said or b""))


async def test_a_bucket_keeps_files_as_a_folder_does(tmp_path: Path) -> None:
    objects: dict[str, bytes] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _S3(objects), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bucket = Bucket(
        "s3://evidence/prefix", endpoint=f"http://127.0.0.1:{port}", region="eu-central-1", access_key_id="a",
        secret_access_key="b", client_options={"allow_http": True},
    )  # fmt: skip
    try:
        for shelf in (bucket, Folder(tmp_path)):
            large = bytes(range(256)) * 8_000
            await asyncio.to_thread(shelf.put, "jobs/1/a.pdf", io.BytesIO(b"small"))
            await asyncio.to_thread(shelf.put, "jobs/1/b.pdf", io.BytesIO(large))

            small, big, missing = await shelf.fetch(["jobs/1/a.pdf", "jobs/1/b.pdf", "jobs/1/c.pdf"])

            assert small == (5, b"small")
            assert missing is None
            assert big is not None
            assert big[0] == len(large)
            assert callable(big[1])
            assert b"".join([piece async for piece in big[1]()]) == large
            async with shelf.local("jobs/1/b.pdf") as path:
                assert await asyncio.to_thread(path.read_bytes) == large
        assert len(objects) == 2
    finally:
        server.close()
        await server.wait_closed()
