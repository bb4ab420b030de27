"""Groups, redrives, keys, dependencies, policies, the trail: what the command line can do, over HTTP."""

from __future__ import annotations

import pytest

from redrive import Redrive, RetryPolicy, TerminalHandlerError
from redrive.operate.auth import Role
from tests.web.conftest import Site, made

WHY = {"reason": "carrier is back"}


@pytest.mark.req("B1", "W10")
async def test_a_redrive_is_planned_approved_started_and_reported(site: Site) -> None:
    async with site.client(Role.ADMIN) as admin, site.client(Role.OPERATOR) as operator:
        await admin.put("/api/v1/settings", json={"approval_above": 1, "reason": "be careful"})
        await site.app.publish("order.bad", {"mended": False})
        await site.app.worker().drain()
        plan = (await operator.post("/api/v1/redrives", json={"selection": "type:order.bad"})).json()
        start = {"token": plan["token"], "rate": 1000, "ramp": [1], **WHY}
        path = f"/api/v1/redrives/{plan['redrive']['id']}"
        early = await operator.post(f"{path}/start", json=start)
        alone = await operator.post(f"{path}/approve")
        agreed = await admin.post(f"{path}/approve")
        wrong = await operator.post(f"{path}/start", json={**start, "token": plan["redrive"]["id"] + ":000000000000"})
        started = await operator.post(f"{path}/start", json=start)
        paused = await operator.post(f"{path}/pause", json=WHY)
        resumed = await operator.post(f"{path}/resume")
        items = (await operator.get(f"{path}/items", params={"limit": 1})).json()
        rest = (await operator.get(f"{path}/items", params={"limit": 1, "cursor": items["next"]})).json()
        aborted = await operator.post(f"{path}/abort", json=WHY)
        report = (await operator.get(f"{path}/report")).json()
        listed = (await operator.get("/api/v1/redrives")).json()["items"]

    assert plan["ready"] == 2
    assert plan["needs_approval"] is True
    assert [each.status_code for each in (early, alone, agreed, wrong)] == [409, 409, 200, 409]
    assert [each.status_code for each in (started, paused, resumed, aborted)] == [200] * 4
    assert started.json()["started_by"] == "operator-1"
    assert [items["items"][0]["position"], rest["items"][0]["position"]] == [1, 2]
    assert report["redrive"]["state"] == "aborted"
    assert [each["id"] for each in listed] == [plan["redrive"]["id"]]


@pytest.mark.req("B8", "W6")
async def test_an_agent_starts_small_redrives_alone_and_larger_ones_when_a_person_agrees(site: Site) -> None:
    async with site.client(Role.ADMIN) as admin:
        said = await admin.put("/api/v1/settings", json={"agents_above": 1, "reason": "be careful"})
    assert said.json() == {"approval_above": None, "agents_above": 1}
    await site.app.publish("order.bad", {"id": 3})
    await site.app.worker().drain()
    async with site.client(Role.AGENT) as agent, site.client(Role.OPERATOR) as person:
        plan = (await agent.post("/api/v1/redrives", json={"selection": "type:order.bad"})).json()
        path = f"/api/v1/redrives/{plan['redrive']['id']}"
        start = {"token": plan["token"], **WHY}
        alone = await agent.post(f"{path}/start", json=start)
        itself = await agent.post(f"{path}/approve")
        agreed = await person.post(f"{path}/approve")
        started = await agent.post(f"{path}/start", json=start)

    assert alone.status_code == 409
    assert "may start alone" in alone.json()["detail"]
    assert itself.status_code == 403
    assert agreed.status_code == 200
    assert started.json()["started_by"] == "agent:agent-1"


async def test_nothing_to_redrive_is_said(sqlite_site: Site) -> None:
    async with sqlite_site.client() as client:
        answer = await client.post("/api/v1/redrives", json={"selection": "type:nothing"})

    assert answer.status_code == 409
    assert "nothing matched" in answer.json()["detail"]


@pytest.mark.req("B2")
async def test_groups_are_listed_explained_and_described(site: Site) -> None:
    for target in ("order.worse", "order.worst"):
        site.app.handler(target)(_refuse)
        await site.app.publish(target, {})
    await site.app.worker().drain()
    async with site.client() as client:
        first = (await client.get("/api/v1/groups", params={"limit": 2})).json()
        rest = (await client.get("/api/v1/groups", params={"limit": 2, "cursor": first["next"]})).json()
        one = first["items"][0]["fingerprint"]
        explained = (await client.get(f"/api/v1/groups/{one}/explain")).json()
        said = await client.patch(f"/api/v1/groups/{one}", json={"owner": "ada", "note": "known", "muted_seconds": 60})
        nothing = await client.patch(f"/api/v1/groups/{one}", json={})
        resolved = await client.patch(f"/api/v1/groups/{one}", json={"resolved": True})
        unknown = await client.get("/api/v1/groups/ffffffff")

    assert len({each["fingerprint"] for each in (*first["items"], *rest["items"])}) == 3
    assert rest["next"] is None
    assert any("Why they are one group" in each for each in explained["sentences"])
    assert (said.json()["owner"], said.json()["note"]) == ("ada", "known")
    assert (nothing.status_code, unknown.status_code) == (409, 404)
    assert resolved.json()["state"] == "resolved"


async def _refuse(order: dict[str, object]) -> None:
    raise TerminalHandlerError("no")


@pytest.mark.req("B6")
async def test_a_held_key_is_seen_released_and_skipped(site: Site) -> None:
    for key in ("a/b?c", "two"):
        await site.app.publish("order.bad", {}, ordering_key=key)
        await site.app.publish("order.bad", {"mended": True}, ordering_key=key)
    await site.app.worker().drain()
    async with site.client() as client:
        first = (await client.get("/api/v1/keys", params={"limit": 1})).json()
        rest = (await client.get("/api/v1/keys", params={"limit": 1, "cursor": first["next"]})).json()
        line = (await client.get("/api/v1/keys/line", params={"key": "a/b?c", "target": "order.bad"})).json()["items"]
        released = await client.post("/api/v1/keys/release", json={"key": "a/b?c", **WHY})
        again = await client.post("/api/v1/keys/release", json={"key": "a/b?c", **WHY})
        skipped = await client.post("/api/v1/keys/skip", json={"key": "two", **WHY})

    assert [first["items"][0]["ordering_key"], rest["items"][0]["ordering_key"]] == ["a/b?c", "two"]
    assert [each["status"] for each in line] == ["failed", "blocked"]
    assert [each.status_code for each in (released, again, skipped)] == [200, 409, 200]


@pytest.mark.req("W4", "W10")
async def test_dependencies_and_holds_are_opened_and_closed(site: Site) -> None:
    site.app.handler("parcel.sent", needs=["carrier-api"])(_refuse)
    await site.app.worker().drain()
    async with site.client() as client:
        opened = await client.post("/api/v1/dependencies/carrier-api/open", json=WHY)
        listed = (await client.get("/api/v1/dependencies")).json()["items"]
        closed = await client.post("/api/v1/dependencies/carrier-api/close", json=WHY)
        held = await client.post("/api/v1/holds", json={"type": "order.*", **WHY})
        lifted = await client.post("/api/v1/holds/lift", json={"type": "order.*", **WHY})
        neither = await client.post("/api/v1/holds", json=WHY)
        unknown = await client.get("/api/v1/dependencies/nothing")

    assert (opened.json()["state"], opened.json()["opened_by"]) == ("open", "operator-1")
    assert [each["name"] for each in listed] == ["carrier-api"]
    assert (closed.json()["state"], held.json()["kind"], lifted.json()["state"]) == ("closed", "hold", "closed")
    assert (neither.status_code, unknown.status_code) == (409, 404)


@pytest.mark.req("A8")
async def test_policies_are_previewed_set_and_cleared(site: Site) -> None:
    async with site.client() as client:
        preview = await client.post(
            "/api/v1/policies/preview", json={"name": "order.flaky", "values": {"max_attempts": 3, "base_delay": "1s"}}
        )
        done = await client.post(
            "/api/v1/policies", json={"pattern": "order.*", "values": {"max_attempts": 8, "rate": "20/s"}, **WHY}
        )
        effective = (await client.get("/api/v1/policies/effective", params={"name": "order.flaky"})).json()
        bad = await client.post("/api/v1/policies", json={"pattern": "order.*", "values": {"max_attempts": 0}, **WHY})
        listed = (await client.get("/api/v1/policies")).json()["items"]
        cleared = await client.post("/api/v1/policies/clear", json={"pattern": "order.*", **WHY})
        again = await client.post("/api/v1/policies/clear", json={"pattern": "order.*", **WHY})

    assert len(preview.json()["waits"]) == 2
    assert done.json()["set_by"] == "operator-1"
    assert (effective["values"]["max_attempts"], effective["said_by"]["rate"]) == (8, "order.*, set by operator-1")
    assert bad.status_code == 422
    assert [each["pattern"] for each in listed] == ["order.*"]
    assert (cleared.status_code, again.status_code) == (200, 409)


@pytest.mark.req("B7")
async def test_the_trail_is_read_a_page_at_a_time_and_verified(site: Site) -> None:
    async with site.client() as client:
        for _ in range(3):
            await client.post(f"/api/v1/events/{site.dead}/discard", json=WHY)
            await client.post(f"/api/v1/events/{site.dead}/restore", json=WHY)
        first = (await client.get("/api/v1/audit", params={"limit": 4})).json()
        second = (await client.get("/api/v1/audit", params={"limit": 4, "cursor": first["next"]})).json()
        verdict = (await client.post("/api/v1/audit/verify")).json()

    seqs = [each["seq"] for each in (*first["items"], *second["items"])]
    assert seqs == sorted(seqs, reverse=True)
    assert [each["kind"] for each in first["items"]][:2] == ["restored", "discarded"]
    assert {each["actor"] for each in first["items"]} == {"operator-1"}
    assert verdict["sound"] is True


@pytest.mark.req("W10")
async def test_the_overview_says_whether_a_person_must_act(site: Site) -> None:
    await site.app.publish("order.bad", {}, ordering_key="k")
    await site.app.worker().drain()
    async with site.client(Role.VIEWER) as client:
        overview = (await client.get("/api/v1/overview")).json()
        problems = (await client.get("/api/v1/problems")).json()["items"]
        workers = (await client.get("/api/v1/workers")).json()["items"]

    assert overview["failed"] == 2
    assert len(overview["needs_a_person"]) == 1
    assert overview["needs_a_person"][0].startswith("2 dead letters of order.bad")
    assert {"id", "name", "health", "what", "what_to_do"} == problems[0].keys()
    assert workers[0]["is_live"] is False


async def test_what_ended_long_ago_is_purged_by_an_admin(site: Site) -> None:
    async with site.client(Role.ADMIN) as client:
        would = await client.post("/api/v1/purge", json={"older_than": "0s"})
        did = await client.post("/api/v1/purge", json={"older_than": "0s", "dry_run": False})
        again = await client.post("/api/v1/purge", json={"older_than": "0s", "dry_run": False})
        bad = await client.post("/api/v1/purge", json={"older_than": "soon"})

    assert (would.json()["events"], did.json()["events"], again.json()["events"]) == (1, 1, 0)
    assert bad.status_code == 422


async def test_an_app_without_handlers_can_be_served_too(sqlite_url: str) -> None:
    async with Redrive(sqlite_url, retry=RetryPolicy(max_attempts=2)) as app:
        await made(app)
    async with Redrive(sqlite_url) as bare:
        from redrive.operate.auth import Tokens
        from redrive.operate.web import redrive_asgi
        from tests.web.conftest import browser

        _, secret = await Tokens(bare).create("ada", Role.OPERATOR, by="test")
        async with browser(redrive_asgi(bare), headers={"Authorization": f"Bearer {secret}"}) as client:
            policy = await client.get("/api/v1/policies/effective", params={"name": "order.flaky"})
            dead = (await client.get("/api/v1/dead-letters")).json()["items"][0]["id"]
            tried = await client.post(f"/api/v1/events/{dead}/shadow", json={})

    assert policy.json()["said_by"]["max_attempts"] == "default"
    assert tried.status_code == 409


@pytest.mark.req("B1", "W6", "W10")
async def test_an_edit_waits_for_a_second_person_over_http(site: Site) -> None:
    async with site.client(Role.ADMIN) as admin, site.client() as operator, site.client(Role.AGENT) as agent:
        await admin.put("/api/v1/settings", json={"approval_above": 5, **WHY})
        found = await operator.get(f"/api/v1/events/{site.dead}")
        edit = {"set": {"payload.mended": True, "payload.card": "4222222222222222"}, **WHY}
        done = await operator.post(
            f"/api/v1/events/{site.dead}/edit", json=edit, headers={"If-Match": found.headers["etag"]}
        )
        path = f"/api/v1/redrives/{done.json()['waits_for_approval']}"
        shown = (await agent.get(path)).json()
        listed = (await agent.get("/api/v1/redrives")).json()["items"]
        own = await operator.post(f"{path}/approve")
        started = await operator.post(f"{path}/start", json={"token": shown["token"], **WHY})
        approved = await admin.post(f"{path}/approve")
        await site.app.worker().drain()
        after = (await operator.get(f"/api/v1/events/{site.dead}")).json()

    assert (done.status_code, done.json()["done"]) == (200, False)
    assert (shown["state"], shown["edited"], listed[0]["edited"]) == ("planned", True, True)
    assert shown["changes"] == [
        {"field": "payload.card", "before": "•••", "after": "•••"},
        {"field": "payload.mended", "after": True},
    ]
    assert "4222" not in str(shown)
    assert (own.status_code, started.status_code, approved.status_code) == (409, 409, 200)
    assert (approved.json()["approved_by"], approved.json()["started_by"]) == ("admin-1", "operator-1")
    assert (after["status"], after["payload"]["mended"]) == ("delivered", True)
