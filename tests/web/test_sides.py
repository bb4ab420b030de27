"""Transports and whole tasks over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import Redrive
from redrive.operate.auth import Role
from redrive.operate.web import redrive_asgi
from tests.web.conftest import Site, browser


async def test_routes_are_listed_with_what_waits_and_a_window_is_sent_again(site: Site) -> None:
    route, now = "relay:bus:orders", site.app.clock.now()
    site.app.route("order.shipped", route, queue="relay")
    await site.app.publish("order.shipped", {"order": 7})
    window = {"route": route, "since": "2030-01-01T00:00:00Z", "until": "2030-01-01T01:00:00Z", "reason": "lost"}
    async with site.client() as client:
        (waiting,) = (await client.get("/api/v1/transports")).json()["items"]
        async with site.app.store.transaction() as tx:
            await tx.run(
                "transport_put", worker="w-1", name=route, kind="relay", broker="bus", destination="orders",
                state="refused", since=now, error="password=hunter22 is wrong", ok_at=None, moved=3, lag=None,
            )  # fmt: skip
        (refused,) = (await client.get("/api/v1/transports")).json()["items"]
        sent = await client.post("/api/v1/transports/republish", json=window)
        turned = await client.post("/api/v1/transports/republish", json={**window, "until": "2029-01-01T00:00:00Z"})
        naive = await client.post("/api/v1/transports/republish", json={**window, "since": "2030-01-01T00:00:00"})
    async with site.client(Role.VIEWER) as viewer:
        forbidden = await viewer.post("/api/v1/transports/republish", json=window)

    assert (waiting["name"], waiting["state"], waiting["lag"]) == (route, "not running", 1)
    assert (refused["state"], refused["moved"], refused["worker"]) == ("refused", 3, "w-1")
    assert "hunter22" not in refused["error"]
    assert (sent.status_code, sent.json()["copies"]) == (200, 0)
    assert [each.status_code for each in (turned, naive, forbidden)] == [409, 422, 403]


@pytest.mark.req("W11")
async def test_a_task_is_told_whole_also_from_another_database_and_without_secrets(site: Site, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    async with Redrive(other, source="billing", migrate=True) as billing:
        await billing.publish("bill.sent", {}, correlation_id="basket-7")
    silent = f"sqlite:///{tmp_path / 'nowhere.db'}"
    shown = {"Authorization": f"Bearer {site.tokens[Role.VIEWER]}"}
    async with site.client() as client, browser(redrive_asgi(site.app, also=[other, silent]), headers=shown) as wide:
        here = (await client.get("/api/v1/tasks/basket-7")).json()
        both = (await wide.get("/api/v1/tasks/basket-7")).json()
        page = await wide.get("/tasks", params={"id": "basket-7"})
        unknown = await client.get("/api/v1/tasks/basket/8")

    assert [each["type"] for each in here["events"]] == ["order.bad"]
    assert here["state"] == "needs a person"
    assert "4111111111111111" not in str(here) + str(both) + page.text
    assert {(each["type"], each["source"]) for each in both["events"]} >= {("bill.sent", "billing")}
    assert list(both["silent"]) == ["nowhere"]
    assert "<b>bill.sent</b>" in page.text  # nothing here to go to
    assert "nowhere" in page.text
    assert unknown.status_code == 404
