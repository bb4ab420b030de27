"""Many consoles that are told of a change at once get one page together, and nobody gets another's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive.clock import VirtualClock
from redrive.operate.auth import Role
from redrive.operate.web.shared import KEPT_SECONDS, Shared
from tests.web.conftest import Site, browser

LIVE = {"X-Live": "1", "Accept": "text/html"}


class Pages:
    """An app that counts how often it is asked, and how many pages it has told."""

    def __init__(self) -> None:
        self.made = 0
        self.told = 0
        self.clock = VirtualClock()
        self.shared = Shared(self, self.clock, lambda: self.told)

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.made += 1
        mine = self.made
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": str(mine).encode()})

    async def ask(self, path: str = "/", peer: str = "203.0.113.7", **headers: str) -> str:
        async with browser(self.shared, peer, headers=headers) as client:
            return (await client.get(path)).text


async def test_those_who_ask_at_once_get_one_page() -> None:
    pages = Pages()
    told = await asyncio.gather(*(pages.ask(**LIVE, **{"User-Agent": f"browser {n}"}) for n in range(20)))
    assert set(told) == {"1"}
    assert await pages.ask(**LIVE) == "1"
    pages.clock.advance(KEPT_SECONDS + 0.1)
    assert await pages.ask(**LIVE) == "2"


async def test_a_page_is_made_anew_after_a_change() -> None:
    pages = Pages()
    before = asyncio.create_task(pages.ask(**LIVE))
    await asyncio.sleep(0.005)
    pages.told += 1
    assert await pages.ask(**LIVE) == "2"
    assert await before == "1"


@pytest.mark.parametrize("other", [{"Cookie": "redrive=b"}, {"Authorization": "Bearer b"}, {"X-Remote-User": "b"}])
async def test_whoever_says_anything_else_about_himself_gets_a_page_of_his_own(other: dict[str, str]) -> None:
    pages = Pages()
    assert {await pages.ask(**LIVE), await pages.ask(**LIVE, **other), await pages.ask(peer="::1", **LIVE)} == {*"123"}
    assert await pages.ask("/?q=1", **LIVE) == "4"


async def test_nothing_else_is_shared() -> None:
    pages = Pages()
    assert [await pages.ask(), await pages.ask(), await pages.ask("/api/v1/changes", **LIVE)] == [*"123"]
    assert await pages.ask("/api/v1/changes", **LIVE) == "4"


async def test_one_who_leaves_does_not_take_the_page_from_the_others() -> None:
    pages = Pages()
    asked = [asyncio.create_task(pages.ask(**LIVE)) for _ in range(3)]
    await asyncio.sleep(0.005)
    asked[0].cancel()
    assert await asyncio.gather(*asked[1:]) == ["1", "1"]


async def test_a_live_page_needs_its_permission_like_any_other(sqlite_site: Site) -> None:
    async with sqlite_site.client(headers=LIVE) as operator, sqlite_site.client(None, headers=LIVE) as nobody:
        allowed = await operator.get("/events", headers=LIVE)
        refused = await nobody.get("/events", headers=LIVE)
    async with sqlite_site.client(Role.VIEWER) as viewer:
        plain = await viewer.get("/events", headers=LIVE)
    assert (allowed.status_code, plain.status_code) == (200, 200)
    assert refused.status_code in {303, 401}
    assert allowed.text != plain.text
