"""Bytes are kept in a folder or in a bucket, and found again in the same way."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive import ConfigurationError
from redrive.apps.evidence.shelf import Bucket, Folder, shelf_for


def test_a_bucket_keeps_files_as_a_folder_does(tmp_path: Path) -> None:
    # The library keeps threads of its own for as long as the process lives: hence another process.
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_place_that_is_neither_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="EVIDENCE_OBJECTS"):
        shelf_for("ftp://somewhere")


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


async def checked(folder: Path) -> None:
    objects: dict[str, bytes] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _S3(objects), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bucket = Bucket(
        "s3://evidence/prefix", endpoint=f"http://127.0.0.1:{port}", region="eu-central-1", access_key_id="a",
        secret_access_key="b", client_options={"allow_http": True},
    )  # fmt: skip
    try:
        for shelf in (bucket, Folder(folder)):
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


if __name__ == "__main__":
    asyncio.run(checked(Path(sys.argv[1])))
