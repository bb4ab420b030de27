"""Batches, reconcilers, schedules, reservations and what needs a person, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.operate.auth import Role
from tests.web.conftest import Site

WHY = {"reason": "asked for"}


@pytest.mark.req("W10", "E8")
async def test_a_batch_is_seen_closed_and_forced(site: Site) -> None:
    made = await site.app.batches.open("import")
    await made.add("order.paid", {}, group="row-1")
    await made.add("order.paid", {}, group="row-2")
    other = await site.app.batches.open("other")
    async with site.client() as client:
        first = (await client.get("/api/v1/batches", params={"limit": 1})).json()
        rest = (await client.get("/api/v1/batches", params={"limit": 1, "cursor": first["next"]})).json()
        shown = (await client.get(f"/api/v1/batches/{made.id}")).json()
        closed = await client.post(f"/api/v1/batches/{made.id}/close", json=WHY)
        again = await client.post(f"/api/v1/batches/{made.id}/close", json=WHY)
        forced = await client.post(f"/api/v1/batches/{made.id}/force", json=WHY)
        groups = (await client.get(f"/api/v1/batches/{made.id}/groups", params={"limit": 1})).json()
        more = (await client.get(f"/api/v1/batches/{made.id}/groups", params={"cursor": groups["next"]})).json()
        unknown = await client.get("/api/v1/batches/nothing")

    assert [first["items"][0]["name"], rest["items"][0]["name"]] == [other.name, made.name]
    assert (shown["state"], shown["counts"]["pending"], shown["live"]) == ("open", 2, 2)
    assert [each.status_code for each in (closed, again, forced, unknown)] == [200, 409, 200, 404]
    assert [each["name"] for each in (*groups["items"], *more["items"])] == ["row-1", "row-2"]


@pytest.mark.req("E8")
async def test_the_report_of_a_batch_quotes_no_secret_of_its_members(site: Site) -> None:
    async with await site.app.batches.open("import") as made:
        await made.add("order.bad", {"id": 5, "card": "5500005555555559", "cvc": 737})
        await made.add("order.bad", {"id": 6, "card": "340000000000009"})
        gone = await made.add("order.bad", {"id": 7, "card": "card=30000000000004"})
    await site.app.worker().drain()
    table = "redrive_outbox" if site.app.store.name == "sqlite" else "redrive.outbox"
    async with site.app.store.transaction() as tx:
        await tx.execute(f"delete from {table} where id = '{gone.id}'")
    async with site.client(Role.ADMIN) as client:
        shown = (await client.get(f"/api/v1/batches/{made.id}")).json()
        listed = (await client.get("/api/v1/batches")).json()["items"][0]

    reasons = [each["reason"] for each in shown["final"]["failures"]]
    assert len(reasons) == 3
    assert all("no such product: card •••" in each or "card=•••" in each for each in reasons)
    assert not any(secret in str([shown, listed]) for secret in ("5500005555555559", "340000000000009", "0000004"))
    assert listed["final"]["failed"] == 3
    assert listed["final"]["failures"] == []


@pytest.mark.req("W7")
async def test_the_error_of_a_run_quotes_no_secret_of_what_was_compared(site: Site) -> None:
    broken = False

    def desired() -> dict[str, Any]:
        if broken:
            raise ValueError("DE02120300000000202051 with 977 is no account")
        return {"b": {"iban": "DE02500105170137075030"}}

    async def converge(key: str, desired: Any, actual: Any) -> None: ...

    actual = {"a": {"iban": "DE02120300000000202051", "pin": 977}}
    site.app.reconcilers.add("accounts", desired=desired, actual=lambda: actual, converge=converge)
    await site.app.reconcilers.run_here("accounts")
    broken = True
    with pytest.raises(ValueError, match="no account"):
        await site.app.reconcilers.run_here("accounts")
    async with site.client(Role.ADMIN) as client:
        all_, runs, findings = [
            (await client.get(f"/api/v1/reconcilers{place}")).json()["items"] for place in ("", "/runs", "/findings")
        ]

    said = "ValueError: ••• with ••• is no account"
    assert [each["error"] for each in all_ if each["name"] == "accounts"] == [said]
    assert [each["error"] for each in runs] == [said, None]
    assert "DE0" not in str([all_, runs, findings])
    assert {str(each[side]) for each in findings for side in ("desired", "actual")} == {
        "None", "{'iban': '•••'}", "{'iban': '•••', 'pin': '•••'}",
    }  # fmt: skip


@pytest.mark.req("W7", "W10")
async def test_a_run_is_asked_for_and_its_findings_are_seen_without_secrets(site: Site) -> None:
    async def converge(key: str, desired: Any, actual: Any) -> None: ...

    site.app.reconcilers.add("carts", desired=lambda: {"a": {"card": "4111"}}, actual=dict, converge=converge)
    async with site.client() as client:
        asked = await client.post("/api/v1/reconcilers/run", json={"name": "carts"})
        unknown = await client.post("/api/v1/reconcilers/run", json={"name": "nobody"})
        await site.app.worker().drain()
        (run,) = (await client.get("/api/v1/reconcilers/runs", params={"name": "carts"})).json()["items"]
        same = (await client.get(f"/api/v1/reconcilers/runs/{run['id']}")).json()
        (finding,) = (await client.get("/api/v1/reconcilers/findings")).json()["items"]
        ignored = await client.post(f"/api/v1/reconcilers/findings/{finding['id']}/ignore", json=WHY)
        names = [each["name"] for each in (await client.get("/api/v1/reconcilers")).json()["items"]]

    assert (asked.status_code, unknown.status_code, ignored.status_code) == (200, 409, 200)
    assert (run["missing"], same["id"], finding["kind"]) == (1, run["id"], "missing")
    assert "4111" not in str(run) + str(same) + str(finding) + ignored.text
    assert "carts" in names


@pytest.mark.req("W10")
async def test_a_schedule_is_paused_resumed_and_run(site: Site) -> None:
    await site.app.schedules.set("nightly", "order.paid", {}, cron="0 3 * * *", by="ada", reason="test")
    async with site.client() as client:
        (listed,) = (await client.get("/api/v1/schedules")).json()["items"]
        done = [
            await client.post(f"/api/v1/schedules/{act}", json={"name": "nightly", **WHY})
            for act in ("pause", "pause", "resume", "run")
        ]
        unknown = await client.post("/api/v1/schedules/run", json={"name": "daily", **WHY})
    async with site.client(Role.AGENT) as agent:
        forbidden = await agent.post("/api/v1/schedules/run", json={"name": "nightly", **WHY})

    assert listed["name"] == "nightly"
    assert [each.status_code for each in done] == [200, 409, 200, 200]
    assert unknown.status_code in (404, 409)
    assert forbidden.status_code == 403


@pytest.mark.req("W8")
async def test_a_reservation_is_seen_and_taken_away(site: Site) -> None:
    await site.app.reservations.take("seat/12A", owner="ada", ttl="1h", facts={"card": "4111"})
    await site.app.reservations.take("seat/12B", owner="bob", ttl="1h")
    async with site.client() as client:
        first = (await client.get("/api/v1/reservations", params={"limit": 1})).json()
        rest = (await client.get("/api/v1/reservations", params={"limit": 1, "cursor": first["next"]})).json()
        gone = await client.post("/api/v1/reservations/release", json={"resource": "seat/12A", **WHY})
        again = await client.post("/api/v1/reservations/release", json={"resource": "seat/12A", **WHY})

    assert [first["items"][0]["resource"], rest["items"][0]["resource"]] == ["seat/12A", "seat/12B"]
    assert (gone.status_code, again.status_code) == (200, 409)
    assert "4111" not in str(first) + gone.text


@pytest.mark.req("W10")
async def test_what_needs_a_person_and_the_metrics_are_there(site: Site) -> None:
    async with site.client() as client:
        matters = (await client.get("/api/v1/attention")).json()["items"]
        some = (await client.get("/api/v1/attention", params={"kind": "redrive"})).json()["items"]
        odd = await client.get("/api/v1/attention", params={"kind": "weather"})
        metrics = await client.get("/metrics")

    assert {"dead-letters"} <= {each["kind"] for each in matters}
    assert some == []
    assert odd.status_code == 409
    assert metrics.status_code == 200
    assert "redrive_" in metrics.text
