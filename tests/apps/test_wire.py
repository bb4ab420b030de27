"""The client that evidence and webhooks call others with, against servers that answer as they like."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from redrive.apps.wire import KEPT, Broken, Unreachable, Wire

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Talk, **options: Any) -> AsyncIterator[str]:
    """Serve every connection with ``talk``; give the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    async with listening:
        scheme = "https" if "ssl" in options else "http"
        yield f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def wire_to(url: str, *, connections: int = 4, seconds: float = 5.0, **headers: str) -> AsyncIterator[Wire]:
    wire = Wire(url, headers, connections=connections, seconds=seconds)
    try:
        yield wire
    finally:
        await wire.close()


async def request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Read one request: its head, and as much body as it announces."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
    return head, await reader.readexactly(int(lengths[0])) if lengths else b""


def answering(answer: bytes, *, then_close: bool = False) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            writer.write(answer)
            if then_close:
                return

    return talk


@pytest.mark.parametrize(
    ("answer", "then_close", "found"),
    [
        (OK, False, (200, b"ok")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, (204, b"")),
        (b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n1\r\n!\r\n0\r\n\r\n", False, (404, b"no!")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", False, (503, b"busy")),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", True, (200, b"ok")),
        (b"HTTP/1.0 500 Error\r\n\r\nuntil the end", True, (500, b"until the end")),
    ],
    ids=["length", "no body", "chunks", "a note before", "closes", "until the end"],
)  # fmt: skip
async def test_every_way_to_say_where_an_answer_ends_is_understood(
    answer: bytes, then_close: bool, found: tuple[int, bytes]
) -> None:
    async with server(answering(answer, then_close=then_close)) as url, wire_to(url) as wire:
        assert await wire("POST", "/x", {}, b"hello") == found
        assert await wire("POST", "/x", {}, b"again") == found


async def test_a_connection_is_used_again_and_there_are_never_more_than_said() -> None:
    made = busy = most = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made, busy, most
        made += 1
        while True:
            await request(reader)
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.001)
            busy -= 1
            writer.write(OK)

    async with server(talk) as url, wire_to(url, connections=3) as wire:
        await asyncio.gather(*(wire("POST", "/x", {}, b"a body") for _ in range(20)))

    assert made == most == 3


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    async with server(answering(OK, then_close=True)) as url, wire_to(url) as wire:
        for _ in range(3):
            assert (await wire("POST", "/x", {}, b""))[0] == 200
            for connection in [*wire._open]:
                await connection.lost


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"hello\r\n\r\n"])
async def test_what_is_no_whole_answer_is_a_broken_connection(answer: bytes) -> None:
    async with server(answering(answer, then_close=True)) as url, wire_to(url) as wire:
        with pytest.raises(Broken):
            await wire("POST", "/x", {}, b"hello")


async def test_nobody_there_is_unreachable() -> None:
    async with server(answering(OK)) as url:
        pass
    async with wire_to(url) as wire:
        with pytest.raises(Unreachable):
            await wire("GET", "/x", {})


async def test_an_answer_that_comes_too_late_is_given_to_nobody_else() -> None:
    let_go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request(reader)
        if "/slow" in head:
            await let_go.wait()
            writer.write(OK.replace(b"200 OK", b"201 Created"))
        writer.write(OK)

    async with server(talk) as url, wire_to(url, connections=1, seconds=0.1) as wire:
        with pytest.raises(TimeoutError):
            await wire("POST", "/slow", {}, b"hello")
        let_go.set()
        assert await wire("POST", "/quick", {}, b"hello") == (200, b"ok")


async def test_the_limit_of_a_call_begins_with_its_turn() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            await asyncio.sleep(0.4)
            writer.write(OK)

    async with server(talk) as url, wire_to(url, connections=1, seconds=1.0) as wire:
        answers = await asyncio.gather(*(wire("GET", "/x", {}) for _ in range(3)))

    assert answers == [(200, b"ok")] * 3


async def test_an_answer_that_nobody_asked_for_ends_its_connection() -> None:
    async with server(answering(OK + OK)) as url, wire_to(url, connections=1) as wire:
        assert await wire("GET", "/x", {}) == (200, b"ok")
        assert await wire("GET", "/x", {}) == (200, b"ok")


async def test_a_body_is_sent_in_pieces_and_not_to_its_end_when_nobody_wants_the_rest() -> None:
    got: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while "/taken" in (await request(reader))[0]:
            while size := int(await reader.readline(), 16):
                got.append(await reader.readexactly(size))
                await reader.readline()
            await reader.readline()
            writer.write(OK)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 100_000
            yield b""
            await asyncio.sleep(0)

    async with server(talk) as url, wire_to(url) as wire:
        assert (await wire("POST", "/taken", {}, lambda: pieces(20)))[0] == 200
        assert (await wire("POST", "/refused", {}, lambda: pieces(100_000)))[0] == 413

    assert b"".join(got) == b"x" * 2_000_000


async def test_of_a_long_answer_only_the_beginning_is_kept() -> None:
    async with (
        server(answering(b"HTTP/1.1 500 Error\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 100_000)) as url,
        wire_to(url) as wire,
    ):
        assert await wire("GET", "/x", {}) == (500, b"x" * KEPT)


async def test_a_request_says_whom_it_is_for_and_who_we_are() -> None:
    heads = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await request(reader))[0])
        writer.write(OK)

    async with server(talk) as url:
        place = url.removeprefix("http://")
        async with wire_to(f"http://me:s%40y@{place}/a b/?key=1", Always="yes") as wire:
            await wire("GET", "", {"Name": "café"})
        async with wire_to(url) as wire:
            await wire("POST", "", {}, b"")

    first, second = (head.split("\r\n") for head in heads)
    assert first[0] == "GET /a%20b/?key=1 HTTP/1.1"
    assert {f"Host: {place}", "Authorization: Basic bWU6c0B5", "Always: yes", "Name: café"} <= {*first}
    assert second[0] == "POST / HTTP/1.1"
    assert "Content-Length: 0" in second


async def test_a_line_break_in_a_header_is_refused() -> None:
    async with server(answering(OK)) as url, wire_to(url) as wire:
        with pytest.raises(ValueError, match="line break"):
            await wire("GET", "/x", {"Name": "a\r\nEvil: yes"})


async def test_a_call_that_waits_while_the_wire_is_closed_is_told_so() -> None:
    asked = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await request(reader)
        asked.set()
        await reader.read()

    async with server(talk) as url, wire_to(url) as wire:
        call = asyncio.create_task(wire("GET", "/x", {}))
        await asked.wait()
        await wire.close()
        with pytest.raises(Broken):
            await call


async def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async with server(answering(OK), ssl=context) as url:
        async with wire_to(url) as wire:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await wire("POST", "/x", {}, b"hello")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with wire_to(url) as wire:
            assert await wire("POST", "/x", {}, b"hello") == (200, b"ok")


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    plain = serialization.NoEncryption()
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return folder / "certificate.pem", folder / "key.pem"


def test_a_wire_that_was_closed_serves_the_next_event_loop() -> None:
    """An app may be opened again, in another loop: in scripts and tests each ``asyncio.run`` is one."""
    wires: list[Wire] = []

    async def crowd() -> list[tuple[int, bytes]]:
        async with server(answering(OK)) as url:
            wire = Wire(url, {}, connections=1, seconds=5.0)
            wires.append(wire)
            if len(wires) > 1:  # the one of the loop before, to the server of this one
                wire = wires[0]
                wire._port = int(url.rpartition(":")[2])
            answers = await asyncio.gather(*(wire("GET", "/", {}) for _ in range(3)))
            await wire.close()
            return answers

    assert asyncio.run(crowd()) == asyncio.run(crowd()) == [(200, b"ok")] * 3
