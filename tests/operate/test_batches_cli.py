"""`redrive batches`: what an operator sees of batches, and does to them."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Redrive, Rejected
from tests.operate.helpers import in_app, redrive


async def imported(url: str) -> str:
    """Import three rows of which one fails; another waits, in a batch that is open."""
    app = Redrive(url, migrate=True)

    @app.handler("row")
    async def take(payload: int) -> None:
        if payload == 2:
            raise Rejected("no such \x1b[31m account")

    async with app:
        async with await app.batches.open("monday") as batch:
            await batch.add_many([("row", n, {"batch_group": f"page {n % 2}"}) for n in range(3)])
        tuesday = await app.batches.open("tuesday")
        await tuesday.add("row", 1, delay="1h")
        await app.worker().drain()
        return str(tuesday.id)


@pytest.mark.req("W10", "E8")
def test_batches_are_listed_shown_closed_and_forced(store_url: str) -> None:
    tuesday = asyncio.run(imported(store_url))

    listed = redrive("batches", "ls", "-o", "json", "-u", store_url).json
    assert [(each["name"], each["state"], each["total"], each["live"]) for each in listed] == [
        ("tuesday", "open", 1, 1), ("monday", "done", 3, 0),
    ]  # fmt: skip
    assert "monday" in redrive("batches", "ls", "-u", store_url).out
    assert [
        each["name"] for each in redrive("batches", "ls", "--unfinished", "-o", "jsonl", "-u", store_url).lines
    ] == ["tuesday"]

    shown = redrive("batches", "show", "monday", "-u", store_url)
    assert "2 of 3 delivered" in shown.out
    assert "account" in shown.out
    assert "\x1b" not in shown.out
    (failure,) = redrive("batches", "show", "monday", "-o", "json", "-u", store_url).json["final"]["failures"]
    assert failure["error_class"] == "rejected"
    groups = redrive("batches", "groups", "monday", "-o", "json", "-u", store_url).json
    assert [(each["name"], each["state"]) for each in groups] == [("page 0", "partly"), ("page 1", "complete")]
    assert redrive("batches", "groups", "monday", "-u", store_url).out.count("page") == 2

    beginning = tuesday[:-1]
    assert redrive("batches", "close", beginning, "-u", store_url).code == 2
    closed = redrive("batches", "close", beginning, "--reason", "all are in", "--by", "ann", "-u", store_url)
    assert (closed.code, "is closed" in closed.err) == (0, True)
    assert redrive("batches", "close", beginning, "--reason", "again", "-u", store_url).code == 4
    forced = redrive("batches", "force", beginning, "--reason", "nobody waits", "--by", "bob", "-u", store_url)
    assert (forced.code, "1 event left" in forced.err) == (0, True)
    assert redrive("batches", "force", beginning, "--reason", "again", "-u", store_url).code == 4
    assert redrive("batches", "show", "wednesday", "-u", store_url).code == 3

    async def trail(app: Redrive) -> list[tuple[str, str, str]]:
        kinds = ("batch-closed", "batch-forced")
        return [(e.kind, e.actor, e.facts["reason"]) async for e in app.store.trail() if e.kind in kinds]

    assert in_app(store_url, trail) == [
        ("batch-closed", "ann", "all are in"), ("batch-forced", "bob", "nobody waits"),
    ]  # fmt: skip


@pytest.mark.req("W10")
def test_events_are_found_by_their_batch_and_group(store_url: str) -> None:
    asyncio.run(imported(store_url))
    monday = redrive("batches", "show", "monday", "-o", "json", "-u", store_url).json["id"]

    found = redrive("events", "ls", f"batch:{monday}", "-o", "json", "-u", store_url).json
    some = redrive("events", "ls", f'batch:{monday} batch-group:"page 0"', "-o", "json", "-u", store_url).json

    assert len(found) == 3
    assert f"{monday}  page" in redrive("events", "show", found[0]["id"], "-u", store_url).out
    assert {each["batch_id"] for each in found} == {monday}
    assert sorted(each["payload"] for each in some) == [0, 2]
