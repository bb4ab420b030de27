"""`redrive deps`, `pause` and `resume`, and what doctor and overview say of those who wait."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redrive import Redrive
from tests.operate.helpers import in_app, read, redrive


@pytest.fixture
def shop(store_url: str) -> tuple[str, str]:
    """A shop whose carrier was opened by hand, and an event that waits for it."""

    async def job(app: Redrive) -> str:
        @app.handler("order.paid", needs=["carrier-api", "bank"])
        async def ship(order: dict[str, Any]) -> None: ...

        await app.worker().drain()
        await app.open_dependency("carrier-api", by="ann", reason="they \x1b[31m told us")
        published = await app.publish("order.paid", {"id": 1})
        await app.worker().drain()
        return str(published.id)

    return store_url, in_app(store_url, job)


@pytest.mark.req("W4", "E11")
def test_a_dependency_that_is_shut_is_listed_with_who_waits_and_why(shop: tuple[str, str]) -> None:
    url, event_id = shop

    table = redrive("deps", "ls", "-u", url)
    assert table.code == 0
    first, second = table.out.splitlines()[1:3]
    assert first.split()[:5] == ["carrier-api", "open,", "by", "hand", "1"]
    assert "they \\x1b[31m told us" in first
    assert second.split() == ["bank", "closed"]
    assert max(map(len, table.out.splitlines())) <= 80

    listed = redrive("deps", "ls", "-u", url, "-o", "json").json
    assert [(each["name"], each["state"], each["waiting"], each["by_hand"]) for each in listed] == [
        ("carrier-api", "open", 1, True),
        ("bank", "closed", 0, False),
    ]
    sheet = redrive("deps", "show", "carrier-api", "-u", url).out
    assert re.search(r"waiting\s+1\s", sheet)
    assert "ann" in sheet
    assert redrive("deps", "show", "carrier-api", "-u", url, "-o", "json").json["opened_by"] == "ann"

    assert "waits for carrier-api" in redrive("events", "ls", "-u", url).out
    shown = redrive("events", "show", event_id, "-u", url).out
    assert "blocked" in shown
    assert "carrier-api" in shown
    steps = redrive("events", "timeline", event_id, "-u", url, "-o", "json").json["steps"]
    assert steps[-1]["what"] == "blocked on carrier-api (not run); no attempt was spent"


def test_a_circuit_is_closed_and_opened_by_hand(shop: tuple[str, str]) -> None:
    url, _ = shop

    assert redrive("deps", "close", "carrier-api", "-u", url).code == 2
    closed = redrive("deps", "close", "carrier-api", "-r", "back", "-u", url)
    assert (closed.code, closed.out) == (0, "✓ carrier-api closed; 1 event waits\n")
    assert redrive("deps", "close", "carrier-api", "-r", "again", "-u", url).code == 4
    degraded = redrive("deps", "open", "bank", "--degraded", "-r", "slow", "-u", url, "-o", "json").json
    assert (degraded["state"], degraded["by_hand"]) == ("degraded", True)
    kinds = [entry["kind"] for entry in redrive("audit", "ls", "-u", url, "-o", "json").json]
    assert {"dependency-opened", "dependency-degraded", "dependency-closed"} <= set(kinds)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("deps", "open", "carier", "-r", "typo"), 4, "no dependency is called 'carier'"),
        (("deps", "close", "carier", "-r", "typo"), 4, "known are bank, carrier-api"),
        (("deps", "show", "carier"), 3, "redrive deps ls"),
        (("deps", "open", "bank", "-r", " "), 2, "say why"),
        (("pause", "-r", "nothing named"), 4, "say what to pause"),
        (("pause", "a", "--queue", "b", "-r", "both"), 4, "say what to pause"),
        (("pause", "order.*"), 2, "say why"),
        (("pause", "", "-r", "empty"), 4, "no type or queue"),
        (("pause", "*.paid", "-r", "odd"), 4, "order.* all that begin so"),
        (("resume", "order.paid", "-r", "go"), 4, "is not paused"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    shop: tuple[str, str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = redrive(*arguments, "-u", shop[0])

    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err


def test_a_type_and_a_queue_are_paused_and_resumed(shop: tuple[str, str]) -> None:
    url, _ = shop

    assert redrive("pause", "mail.*", "-r", "audit", "--by", "ann", "-u", url).out == "✓ hold:mail.* paused\n"
    assert redrive("pause", "--queue", "slow", "-r", "audit", "-u", url).out == "✓ queue:slow paused\n"
    assert "by ann: audit" in redrive("pause", "mail.*", "-r", "me too", "-u", url).err
    listed = redrive("deps", "ls", "-u", url).out
    assert listed.count("paused") == 2

    async def job(app: Redrive) -> str:
        @app.handler("mail.due")
        async def send(mail: dict[str, Any]) -> None: ...

        published = await app.publish("mail.due", {})
        await app.worker().drain()
        return str(published.id)

    event_id = in_app(url, job)
    assert read(url, event_id).blocked_on == "hold:mail.*"
    assert redrive("resume", "mail.*", "-r", "done", "-u", url).out == "✓ hold:mail.* resumed; 1 event waits\n"
    assert redrive("resume", "--queue", "slow", "-r", "done", "-u", url).out == "✓ queue:slow resumed\n"
    in_app(url, job)
    assert str(read(url, event_id).status) == "delivered"
    assert "mail" not in redrive("deps", "ls", "-u", url).out, "holds that are over are left out"
    assert "hold:mail.*" in redrive("deps", "ls", "--all", "-u", url).out


def test_doctor_says_what_is_shut(shop: tuple[str, str]) -> None:
    url, _ = shop

    checks = {check["name"]: check for check in redrive("doctor", "-u", url, "-o", "json").json}
    assert checks["dependencies"]["health"] == "warning"
    assert "carrier-api" in checks["dependencies"]["what"]
    assert "waiting: 1" in checks["dependencies"]["what"]

    async def long_ago(app: Redrive) -> None:
        postgres = app.store.name == "postgres"
        table, earlier = (
            ("redrive.dependency", "interval '2 hours'") if postgres else ("redrive_dependency", "7200000000")
        )
        async with app.store.transaction() as tx:
            await tx.execute(f"update {table} set opened_at = opened_at - {earlier} where name = 'carrier-api'")

    in_app(url, long_ago)
    assert redrive("doctor", "-u", url).code == 1
    redrive("deps", "close", "carrier-api", "-r", "back", "-u", url)
    checks = {check["name"]: check for check in redrive("doctor", "-u", url, "-o", "json").json}
    assert (checks["dependencies"]["health"], checks["dependencies"]["what"]) == ("ok", "none is shut; coming back: 1")


def test_nothing_is_known_at_first(store_url: str) -> None:
    redrive("migrate", "-u", store_url)

    assert redrive("deps", "ls", "-u", store_url).out.startswith("None is known yet")
    assert redrive("deps", "ls", "-u", store_url, "-o", "json").json == []
