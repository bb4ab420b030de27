"""The front: clear answers, whatever is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from redrive.apps.controlplane.wiring import ControlPlane
from redrive.operate.web import redrive_asgi
from tests.apps.controlplane.helpers import assert_sound, site


def _client(app: ControlPlane, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=redrive_asgi(app))
    return httpx.AsyncClient(transport=transport, base_url="http://site.test/controlplane", **options)


@pytest.fixture
async def client(app: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    async with _client(app) as client:
        yield client


async def test_a_request_is_made_looked_at_and_given_back(app: ControlPlane, client: httpx.AsyncClient) -> None:
    made = await client.post("/requests", json={"owner": "ada", "size": "medium", "volume_gb": 5})
    assert (made.status_code, made.json()["state"]) == (202, "PROVISIONING")
    await app.worker().drain()

    seen = (await client.get(made.headers["location"])).json()
    assert (seen["state"], seen["needs_a_person"], seen["task"]["state"]) == ("READY", None, "done")
    assert [event["type"] for event in seen["task"]["events"]] == [
        f"{kind}.{said}" for kind in ("address", "volume", "machine") for said in ("wanted", "made")
    ]

    said = {"by": "ada", "reason": "over"}
    given_back = await client.request("DELETE", f"/requests/{seen['id']}", json=said)
    assert (given_back.status_code, given_back.json()["state"]) == (202, "UNDOING")
    await app.worker().drain()
    listed = (await client.get("/requests", params={"state": "RELEASED"})).json()["requests"]
    assert [each["id"] for each in listed] == [seen["id"]]
    again = await client.request("DELETE", f"/requests/{seen['id']}", json=said)
    assert (again.status_code, again.json()["error"]) == (409, "the request is RELEASED: there is nothing to cancel")
    await assert_sound(app)


async def test_the_same_key_is_answered_with_the_same_request(client: httpx.AsyncClient) -> None:
    answers = [
        await client.post("/requests", json={"owner": "ada"}, headers={"Idempotency-Key": "order-7"}) for _ in range(2)
    ]

    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"]


@pytest.mark.req("W3")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "owner: Field required"),
        ({"owner": "ada", "size": "huge"}, "size: there is no size 'huge': there are small, medium, large"),
        ({"owner": "ada", "volume_gb": 501}, "volume_gb: Input should be less than or equal to 500"),
        ({"owner": "ada", "site": "atlantis"}, "there is no site 'atlantis': there is here"),
        ({"owner": "ada", "colour": "red"}, "colour: Extra inputs are not permitted"),
    ],
)
async def test_what_policy_does_not_allow_is_refused_at_the_door(
    client: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    answer = await client.post("/requests", json=body)

    assert (answer.status_code, answer.json()) == (422, {"error": said})


async def test_what_is_not_there_or_not_understood_is_said(client: httpx.AsyncClient) -> None:
    said = {"by": "ada", "reason": "over"}
    missing = await client.get("/requests/019a8c1e")
    no_such = await client.request("DELETE", "/requests/019a8c1e", json=said)
    no_reason = await client.request("DELETE", "/requests/019a8c1e", json={"by": "ada"})
    no_json = await client.post("/requests", content=b"{")
    too_long = await client.post("/requests", content=b" " * 20_000)
    no_state = await client.get("/requests", params={"state": "LOST"})

    assert (missing.status_code, missing.json()) == (404, {"error": "there is no request '019a8c1e'"})
    assert (no_such.status_code, no_reason.status_code) == (404, 422)
    assert (no_json.status_code, too_long.status_code, no_state.status_code) == (422, 413, 400)


async def test_with_a_token_nobody_comes_in_without_it(sqlite_url: str, tmp_path: Path) -> None:
    async with site(sqlite_url, tmp_path / "world.db", token="s3cret") as app:
        for shown, status in (
            ({}, 401),
            ({"Authorization": "Bearer no"}, 401),
            ({"Authorization": "Bearer s3cret"}, 200),
        ):
            async with _client(app, headers=shown) as client:
                assert (await client.get("/requests")).status_code == status
