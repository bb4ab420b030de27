"""What is not taken is answered clearly, counted where an operator sees it, and fills nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive.apps.webhooks import Settings, Source, webhooks
from redrive.operate.web import redrive_asgi
from tests.apps.webhooks.conftest import HERE, SECRET, SHOP, Open, Receiver, receiver, signed
from tests.web.conftest import browser
from tests.web.serving import served

BODY = b'{"order": 7}'


async def refused(shop: Receiver, body: Any, headers: dict[str, str], source: str = "shop") -> tuple[int, str]:
    answer = await shop.post(body, headers, source)
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == answer.status_code
    return answer.status_code, told["title"]


@pytest.mark.req("H6")
async def test_each_kind_of_bad_input_has_its_answer_its_count_and_no_event(receiving: Open) -> None:
    later = Source("later", "standard", (SECRET,), (f"{HERE}:take",), id="header:x-id")
    async with receiving(SHOP, later, max_bytes=1_000) as shop:
        now = shop.app.clock.now().timestamp()
        good = signed(BODY)

        answers = [
            await refused(shop, b'{"order": 8}', good),
            await refused(shop, BODY, signed(BODY, at=now - 301)),
            await refused(shop, BODY, signed(BODY, at=now + 310)),
            await refused(shop, BODY, {}),
            await refused(shop, b"x" * 1_001, signed(b"x" * 1_001)),
            await refused(shop, BODY, good, "nobody"),
            await refused(shop, BODY, signed(BODY, message_id="m" * 256)),
            await refused(shop, BODY, good, "later"),
        ]

        assert answers == [
            (401, "signature"), (401, "timestamp"), (401, "timestamp"), (400, "headers"), (413, "too-large"),
            (404, "unknown-source"), (400, "headers"), (400, "headers"),
        ]  # fmt: skip
        assert await shop.refused() == {
            ("shop", "signature"): 1, ("shop", "timestamp"): 2, ("shop", "headers"): 2, ("shop", "too-large"): 1,
            ("", "unknown-source"): 1, ("later", "headers"): 1,
        }  # fmt: skip
        assert await shop.app.events() == []
        assert (await shop.send({"order": 7})).status_code == 202


@pytest.mark.req("H6")
async def test_no_flood_of_rubbish_fills_the_store(receiving: Open) -> None:
    async with receiving() as shop:
        for n in range(20):
            await asyncio.gather(*(shop.post(BODY, {}, f"guess-{n}-{m}") for m in range(20)))
        await asyncio.gather(*(shop.post(BODY, {}) for _ in range(100)))

        assert await shop.refused() == {("", "unknown-source"): 400, ("shop", "headers"): 100}
        assert await shop.app.events() == []


async def test_somebody_on_this_machine_sees_what_was_refused_and_nobody_else(store_url: str) -> None:
    async with receiver(store_url, peer="127.0.0.1", host="localhost:8321") as shop:
        await shop.post(BODY, {})
        await shop.refused()
        seen = (await shop.client.get("/hooks/")).json()

    assert [(each["source"], each["verify"]) for each in seen["sources"]] == [("shop", "standard")]
    (row,) = seen["refused"]
    assert (row["source"], row["reason"], row["count"], row["last_peer"]) == ("shop", "headers", 1, "127.0.0.1")
    assert "webhook-signature" in row["last_detail"]
    assert SECRET not in json.dumps(seen)
    async with receiver(store_url) as far:
        assert (await far.client.get("/hooks/")).status_code == 404


async def test_webhooks_are_posted(receiving: Open) -> None:
    async with receiving() as shop:
        answer = await shop.client.put("/hooks/shop", content=BODY, headers=signed(BODY))

        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


# --- over a real socket ---


async def said(address: str, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes as they are, and read the answer to its end."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    return answer


def head(length: int | None, source: str = "shop") -> bytes:
    body = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST /hooks/{source} HTTP/1.1\r\nHost: hooks.test\r\n{body}\r\n\r\n".encode()


@pytest.fixture
async def address(sqlite_url: str) -> AsyncIterator[str]:
    async with (
        receiver(sqlite_url, max_bytes=1_000, body_seconds=0.2) as shop,
        served(redrive_asgi(shop.app)) as address,
    ):
        yield address


@pytest.mark.req("H6")
async def test_a_body_that_does_not_come_is_not_waited_for(address: str) -> None:
    answer = await said(address, head(100), b"{")

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not come within 0.2 s" in answer


@pytest.mark.req("H6")
async def test_a_large_body_is_refused_by_what_is_said_of_it(address: str) -> None:
    answer = await said(address, head(10_000_000))  # of which nothing is sent

    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.req("H6")
async def test_a_large_body_of_unsaid_length_is_refused_when_it_has_come_so_far(address: str) -> None:
    chunk = b"400\r\n" + b"x" * 0x400 + b"\r\n"

    answer = await said(address, head(None), chunk)

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_sender_who_leaves_leaves_nothing(sqlite_url: str) -> None:
    async with receiver(sqlite_url) as shop, served(redrive_asgi(shop.app)) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head(100) + b"{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

        assert (await shop.send({"order": 7})).status_code == 202
        assert len(await shop.events()) == 1
        assert await shop.refused() == {}


async def test_while_the_store_is_away_the_sender_is_told_to_come_again(tmp_path: Path) -> None:
    app = webhooks(Settings((SHOP,), f"sqlite:///{tmp_path}"))  # a folder is no database
    async with browser(redrive_asgi(app)) as client:
        away = await client.post("/hooks/shop", content=BODY, headers=signed(BODY))

    assert (away.status_code, away.json()["title"], away.headers["retry-after"]) == (503, "store-unavailable", "2")
    assert str(tmp_path) not in away.text


async def test_what_nobody_foresaw_is_told_without_its_text(sqlite_url: str) -> None:
    async with receiver(sqlite_url) as shop:
        async with shop.app.transaction() as tx:
            await tx.execute("drop table webhooks_seen")
        broken = await shop.send({"order": 7})

    assert (broken.status_code, broken.json()["title"]) == (500, "unexpected")
    assert "webhooks_seen" not in broken.text
