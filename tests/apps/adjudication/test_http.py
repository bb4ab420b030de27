"""The HTTP side: what is refused, and how that is said."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from redrive import EventFilter, Status
from tests.apps.adjudication.conftest import System, running

RECEIPT = {"transaction_receipt_id": "r-1", "buyer": "bo", "seller": "sal", "amount_minor": 1_000, "currency": "EUR"}


def is_problem(said: httpx.Response, status: int, name: str) -> bool:
    return (
        said.status_code == status
        and said.headers["content-type"] == "application/problem+json"
        and said.json()["type"] == f"urn:redrive:adjudication:{name}"
    )


async def test_a_receipt_submitted_twice_is_kept_once_and_another_under_its_id_is_refused(system: System) -> None:
    said = await asyncio.gather(*(system.http.post("/receipts", json=RECEIPT) for _ in range(10)))
    other = await system.http.post("/receipts", json={**RECEIPT, "amount_minor": 2_000})

    assert sorted(answer.status_code for answer in said) == [200] * 9 + [201]
    assert is_problem(other, 409, "conflict")
    assert await system.rows("receipt", "transaction_receipt_id, amount_minor") == [("r-1", 1_000)]


async def test_a_conflicting_second_outcome_is_refused_and_the_first_goes_on(system: System) -> None:
    await system.submit("r-1")
    await system.adjudicate("r-1", "split", seller_minor=300)
    conflicts = [
        await system.adjudicate("r-1", "release"),
        await system.adjudicate("r-1", "split", seller_minor=301),
    ]
    await system.app.worker().drain()
    late = await system.adjudicate("r-1", "refund")

    assert all(is_problem(said, 409, "conflict") for said in (*conflicts, late))
    assert "split (300 of 1000 to the seller), by judy" in late.json()["detail"]
    assert [event.status for event in await system.app.events()] == [Status.DELIVERED]
    assert await system.rows("entry", "party, amount_minor") == [("buyer", 700), ("seller", 300)]


async def test_of_two_contradicting_decisions_at_once_one_wins(system: System) -> None:
    await system.submit("r-1")
    said = await asyncio.gather(*(system.adjudicate("r-1", each) for each in ("release", "refund") * 10))
    await system.app.worker().drain()

    won = (await system.look("r-1"))["escrow_adjudication"]
    assert {answer.json().get("escrow_adjudication", "conflict") for answer in said} == {won, "conflict"}
    assert [answer.status_code for answer in said].count(409) == 10
    assert len(await system.app.events()) == 1
    assert len(await system.rows("entry")) == 1


async def test_a_decision_about_an_unknown_receipt_is_kept_where_operators_look(system: System) -> None:
    said = [await system.adjudicate("nobody-1") for _ in range(3)]
    await system.app.worker().drain()
    again = await system.adjudicate("nobody-1")

    assert all(is_problem(each, 404, "unknown-receipt") and each.json()["kept"] for each in (*said, again))
    (letter,) = await system.app.events(EventFilter(status=Status.FAILED))
    assert str(letter.id) == again.json()["event_id"]
    assert (letter.error_class, letter.correlation_id) == ("missing", "nobody-1")
    assert letter.payload["decision"]["outcome"] == "release"
    assert await system.rows("receipt") == []


async def test_a_decision_that_came_before_its_receipt_is_carried_out_by_a_replay(system: System) -> None:
    event_id = (await system.adjudicate("r-1", "refund")).json()["event_id"]
    await system.app.worker().drain()
    await system.submit("r-1")
    (letter,) = await system.app.events(EventFilter(status=Status.FAILED))
    await system.app.replay(letter.id, by="olga", reason="the receipt has come")
    await system.app.worker().drain()

    assert str(letter.id) == event_id
    assert (await system.look("r-1"))["settlement_progression_status"] == "executed"


async def test_unknown_receipts_are_kept_up_to_a_limit(store_url: str) -> None:
    async with running(store_url, ADJUDICATION_UNKNOWN_KEPT="3") as system:
        said = [await system.adjudicate(f"nobody-{n}") for n in range(5)]
        await system.app.worker().drain()
        more = await system.adjudicate("nobody-9")
        (letter, *_) = await system.app.events(EventFilter(status=Status.FAILED))
        await system.app.discard(letter.id, by="olga", reason="no such receipt")
        room = await system.adjudicate("nobody-9")

        assert [each.json()["kept"] for each in said] == [True, True, True, False, False]
        assert (more.json()["kept"], room.json()["kept"]) == (False, True)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/receipts", {**RECEIPT, "amount_minor": 0}, 422),
        ("/receipts", {**RECEIPT, "amount_minor": "12"}, 422),
        ("/receipts", {**RECEIPT, "currency": "euro"}, 422),
        ("/receipts", {**RECEIPT, "transaction_receipt_id": "a:b"}, 422),
        ("/receipts", {**RECEIPT, "more": 1}, 422),
        ("/receipts", "x" * 20_000, 413),
        ("/receipts/known/adjudication", {"outcome": "burn", "by": "judy"}, 422),
        ("/receipts/known/adjudication", {"outcome": "split", "by": "judy"}, 422),
        ("/receipts/known/adjudication", {"outcome": "split", "by": "judy", "seller_minor": 1_000}, 422),
        ("/receipts/known/adjudication", {"outcome": "release", "by": "judy", "seller_minor": 5}, 422),
        ("/receipts/known/adjudication", {"outcome": "release"}, 422),
        ("/receipts/a:b/adjudication", {"outcome": "release", "by": "judy"}, 422),
        ("/elsewhere", {}, 404),
    ],
)
async def test_what_does_not_fit_is_refused_with_its_reason(system: System, path: str, body: Any, status: int) -> None:
    await system.submit("known")
    said = await system.http.post(path, json=body)

    assert said.status_code == status
    assert said.headers["content-type"] == "application/problem+json"
    assert said.json()["detail"]
    assert await system.app.events() == []
    assert (await system.look("known"))["escrow_adjudication"] is None


async def test_only_json_is_taken(system: System) -> None:
    said = await system.http.post("/receipts", content=b"{}", headers={"content-type": "text/plain"})

    assert said.status_code == 415


async def test_the_receipts_that_wait_for_people_are_listed_in_pages(system: System) -> None:
    for n in range(55):
        await system.submit(f"r-{n:02}")
    await system.adjudicate("r-00")
    first = (await system.http.get("/receipts", params={"status": "in-escrow"})).json()
    second = (await system.http.get("/receipts", params={"status": "in-escrow", "after": first["after"]})).json()

    ids = [receipt["transaction_receipt_id"] for receipt in (*first["receipts"], *second["receipts"])]
    assert ids == [f"r-{n:02}" for n in range(1, 55)]
    assert second["after"] is None
    assert (await system.http.get("/receipts")).json() == {"receipts": [], "after": None}
    assert (await system.http.get("/receipts", params={"status": "odd"})).status_code == 422


async def test_with_a_token_nobody_gets_in_without_it(sqlite_url: str) -> None:
    async with running(sqlite_url, ADJUDICATION_TOKEN="s3cret") as system:
        refused = [
            await system.http.get("/receipts", headers=headers)
            for headers in ({}, {b"Authorization": b"Bearer wrong"}, {b"Authorization": b"Bearer s3cret\xe9"})
        ]
        let_in = await system.http.get("/receipts", headers={"Authorization": "Bearer s3cret"})

        assert all(is_problem(said, 401, "not-signed-in") for said in refused)
        assert let_in.status_code == 200


@pytest.mark.parametrize("address", ["192.0.2.7", "testclient"])
async def test_without_a_token_only_this_machine_is_answered(sqlite_url: str, address: str) -> None:
    async with running(sqlite_url) as system:
        transport = httpx.ASGITransport(app=system.app.mounts["/adjudication"], client=(address, 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://adjudication") as stranger:
            said = await stranger.get("/receipts")

        assert is_problem(said, 403, "forbidden")
