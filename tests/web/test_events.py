"""Events over HTTP: looking, with secrets hidden, and acting, with a name and a reason."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive import Redrive, Status
from redrive.operate.auth import Role
from tests.web.conftest import Site

SECRET = "4111111111111111"


# --- looking ---


@pytest.mark.req("A2", "W10")
async def test_an_event_shows_its_retry_state_and_how_it_failed(site: Site) -> None:
    async with site.client(Role.VIEWER) as client:
        shown = (await client.get(f"/api/v1/events/{site.dead}")).json()

    assert (shown["status"], shown["retry_key"], shown["attempt_count"]) == ("failed", "order-2", 1)
    assert (shown["correlation_id"], shown["error_class"], shown["is_dead_letter"]) == ("basket-7", "rejected", True)
    assert "next_retry_at" in shown


async def test_events_are_listed_by_a_selection_a_page_at_a_time(site: Site) -> None:
    more = [await site.app.publish("order.paid", {"n": n}, delay="1h") for n in range(5)]
    seen: list[str] = []
    async with site.client(Role.VIEWER) as client:
        cursor = None
        for _ in range(10):
            query: dict[str, Any] = {"selection": "type:order.paid status:pending", "limit": 2}
            query |= {"cursor": cursor} if cursor else {}
            page = (await client.get("/api/v1/events", params=query)).json()
            seen += [each["id"] for each in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break

    assert seen == [str(each.id) for each in reversed(more)] + [site.waiting]


async def test_a_list_does_not_carry_payloads(site: Site) -> None:
    async with site.client(Role.VIEWER) as client:
        page = (await client.get("/api/v1/dead-letters")).json()

    assert [each["id"] for each in page["items"]] == [site.dead]
    assert not {"payload", "headers", "failure_history", "last_error"} & page["items"][0].keys()
    assert page["items"][0]["error"].startswith("redrive.errors.TerminalHandlerError: no such product")


async def test_a_bent_cursor_is_refused(site: Site) -> None:
    for _ in range(3):
        await site.app.publish("order.paid", {}, delay="1h")
    async with site.client(Role.VIEWER) as client:
        cursor = (await client.get("/api/v1/events", params={"limit": 2})).json()["next"]
        assert (await client.get("/api/v1/events", params={"limit": 2, "cursor": cursor})).status_code == 200
        bent = [
            cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
            for place in range(len(cursor))
        ]
        bent += ["x", "", "é", cursor + "A", cursor[:-1], "A" * 1_000, "AAAAAAAA"]
        answers = {each: await client.get("/api/v1/events", params={"limit": 2, "cursor": each}) for each in bent}
        other = await client.get("/api/v1/events", params={"cursor": cursor, "selection": "type:x"})
        elsewhere = await client.get("/api/v1/redrives", params={"cursor": cursor})

    assert {each: answer.status_code for each, answer in answers.items()} == dict.fromkeys(bent, 400)
    assert {answer.json()["type"] for answer in answers.values()} == {"urn:redrive:problem:bad-cursor"}
    assert (other.status_code, elsewhere.status_code) == (400, 400)


@pytest.mark.parametrize("place", ["", "/timeline", "/steps", "/trail"])
async def test_an_unknown_id_is_not_found(sqlite_site: Site, place: str) -> None:
    async with sqlite_site.client(Role.VIEWER) as client:
        answers = [await client.get(f"/api/v1/events/{each}{place}") for each in (uuid4(), "zz", "ffffffff")]

    assert [each.status_code for each in answers] == [404, 404, 404]
    assert answers[0].headers["content-type"] == "application/problem+json"


async def test_a_mistake_in_a_selection_is_pointed_at(sqlite_site: Site) -> None:
    async with sqlite_site.client(Role.VIEWER) as client:
        answer = await client.get("/api/v1/events", params={"selection": "type:order.* colour:red"})

    assert answer.status_code == 422
    assert answer.json()["position"] == 13


@pytest.mark.req("W10")
async def test_the_story_of_an_event_can_be_read(site: Site) -> None:
    async with site.client(Role.VIEWER) as client:
        story = (await client.get(f"/api/v1/events/{site.dead}/timeline")).json()["items"]
        trail = (await client.get(f"/api/v1/events/{site.dead}/trail")).json()["items"]

    assert [each["kind"] for each in story] == ["published", "dead-lettered"]
    assert [each["kind"] for each in trail] == ["dead-lettered"]


# --- secrets ---


async def test_no_route_for_looking_tells_a_secret(site: Site) -> None:
    group = (await site.app.groups())[0].fingerprint
    of_event = [f"/events/{site.dead}{place}" for place in ("", "/timeline", "/steps", "/trail")]
    of_group = ["/groups", f"/groups/{group}", f"/groups/{group}/explain"]
    paths = ["/events", "/dead-letters", *of_event, *of_group, "/keys", "/overview", "/audit"]
    async with site.client(Role.ADMIN) as client:
        told = {path: (await client.get(f"/api/v1{path}")) for path in paths}
        tried = await client.post(f"/api/v1/events/{site.dead}/shadow", json={})
        planned = await client.post("/api/v1/redrives", json={"selection": "type:order.bad"})

    assert {path: answer.status_code for path, answer in told.items()} == dict.fromkeys(paths, 200)
    texts = [*(answer.text for answer in told.values()), tried.text, planned.text]
    assert [text for text in texts if SECRET in text or "abcdefgh12345" in text] == []
    event = told[f"/events/{site.dead}"].json()
    assert event["payload"] == {"id": 2, "card": "•••", "note": "plain"}
    assert event["headers"] == {"Authorization": "•••", "lane": "7"}
    assert "card •••" in event["last_error"]


async def test_what_is_hidden_cannot_be_searched_for(site: Site) -> None:
    asked = {"selection": "payload.card:4*"}
    async with site.client(Role.VIEWER) as client:
        looked = await client.get("/api/v1/events", params=asked)
        header = await client.get("/api/v1/dead-letters", params={"selection": "header.Authorization:B*"})
        by_text = await client.get("/api/v1/dead-letters", params={"selection": "text:41111"})
        by_word = await client.get("/api/v1/dead-letters", params={"selection": 'text:"no such product"'})
    async with site.client(Role.AGENT) as client:
        planned = await client.post("/api/v1/redrives", json=asked)
    async with site.client(Role.OPERATOR) as client:
        found = await client.get("/api/v1/events", params=asked)

    assert (looked.status_code, header.status_code, planned.status_code) == (403, 403, 403)
    assert by_text.json()["items"] == []
    assert [each["id"] for each in by_word.json()["items"]] == [site.dead]
    assert [each["id"] for each in found.json()["items"]] == [site.dead]


async def test_revealing_is_on_the_trail(site: Site) -> None:
    async with site.client(Role.OPERATOR) as client:
        silent = await client.post(f"/api/v1/events/{site.dead}/reveal", json={"reason": " "})
        shown = await client.post(f"/api/v1/events/{site.dead}/reveal", json={"reason": "ticket 7"})

    entry = (await site.app.trail(UUID(site.dead)))[-1]
    assert silent.status_code == 422
    assert shown.json()["payload"]["card"] == SECRET
    assert (entry.kind, entry.actor, entry.facts) == ("revealed", "operator-1", {"reason": "ticket 7"})


async def test_an_app_says_itself_what_is_secret(sqlite_url: str) -> None:
    from tests.web.conftest import made

    async with Redrive(sqlite_url, mask=["note"]) as app:
        site = await made(app)
        async with site.client(Role.VIEWER) as client:
            shown = (await client.get(f"/api/v1/events/{site.dead}")).json()

    assert shown["payload"] == {"id": 2, "card": SECRET, "note": "•••"}


# --- acting ---


@pytest.mark.req("W6", "O11")
async def test_a_replay_has_a_name_and_a_reason(site: Site) -> None:
    async with site.client(Role.AGENT) as client:
        unsaid = await client.post(f"/api/v1/events/{site.dead}/replay", json={})
        done = await client.post(f"/api/v1/events/{site.dead}/replay", json={"reason": "carrier is back"})
        again = await client.post(f"/api/v1/events/{site.dead}/replay", json={"reason": "carrier is back"})

    event = await site.app.event(UUID(site.dead))
    assert event is not None
    assert (unsaid.status_code, done.status_code, again.status_code) == (422, 200, 409)
    assert unsaid.json()["errors"][0]["pointer"] == "/reason"
    assert (event.status, event.failure_history[-1].replayed_by) == (Status.PENDING, "agent:agent-1")
    assert "pending" in again.json()["detail"]


async def test_an_event_is_discarded_and_restored_and_another_called_off(site: Site) -> None:
    why = {"reason": "a test order"}
    async with site.client() as client:
        discarded = await client.post(f"/api/v1/events/{site.dead}/discard", json=why)
        twice = await client.post(f"/api/v1/events/{site.dead}/discard", json=why)
        restored = await client.post(f"/api/v1/events/{site.dead}/restore", json=why)
        cancelled = await client.post(f"/api/v1/events/{site.waiting}/cancel", json=why)

    assert [each.status_code for each in (discarded, twice, restored, cancelled)] == [200, 409, 200, 200]
    event = await site.app.event(UUID(site.waiting))
    assert event is not None
    assert (event.status, event.cancelled_by) == (Status.CANCELLED, "operator-1")


async def test_many_are_discarded_only_when_the_caller_has_seen_how_many(site: Site) -> None:
    what = {"selection": "type:order.bad", "reason": "test orders"}
    async with site.client() as client:
        wrong = await client.post("/api/v1/discard", json={**what, "count": 5})
        right = await client.post("/api/v1/discard", json={**what, "count": 1})
        back = await client.post("/api/v1/restore", json={**what, "count": 1})

    assert wrong.status_code == 409
    assert "1 dead letter" in wrong.json()["detail"]
    assert right.json()["done"] == 1
    assert back.json()["done"] == 1


async def test_an_edit_needs_the_state_that_was_edited(site: Site) -> None:
    path = f"/api/v1/events/{site.dead}"
    edit = {"reason": "mend it", "set": {"payload.mended": True}}
    async with site.client() as client:
        etag = (await client.get(path)).headers["etag"]
        blind = await client.post(f"{path}/edit", json=edit)
        stale = await client.post(f"{path}/edit", json=edit, headers={"If-Match": '"0.0.failed.0"'})
        done = await client.post(f"{path}/edit", json=edit, headers={"If-Match": etag})
    await site.app.worker().drain()

    event = await site.app.event(UUID(site.dead))
    assert event is not None
    assert (blind.status_code, stale.status_code, done.status_code) == (428, 412, 200)
    assert done.json()["changes"] == [{"field": "payload.mended", "after": True}]
    assert (event.status, event.payload["card"]) == (Status.DELIVERED, SECRET)


async def test_a_hidden_value_that_an_editor_leaves_alone_stays(site: Site) -> None:
    path = f"/api/v1/events/{site.dead}"
    async with site.client() as client:
        shown = await client.get(path)
        payload = {**shown.json()["payload"], "mended": True}
        done = await client.post(
            f"{path}/edit", json={"reason": "mend", "payload": payload}, headers={"If-Match": shown.headers["etag"]}
        )

    event = await site.app.event(UUID(site.dead))
    assert event is not None
    assert done.status_code == 200
    assert event.payload == {"id": 2, "card": SECRET, "note": "plain", "mended": True}


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        ({}, 422),
        ({"set": {"id": 1}}, 409),
        ({"set": {"payload.a": 1}, "payload": {}}, 422),
        ({"unset": ["payload.nothing"]}, 422),
        ({"set": {"nonsense": 1}}, 422),
        ({"payload": {"a": float("1e400")}}, 422),
    ],
)
async def test_an_edit_that_makes_no_sense_changes_nothing(
    sqlite_site: Site, edit: dict[str, object], status: int
) -> None:
    path = f"/api/v1/events/{sqlite_site.dead}"
    import json

    async with sqlite_site.client() as client:
        etag = (await client.get(path)).headers["etag"]
        headers = {"If-Match": etag, "Content-Type": "application/json"}
        answer = await client.post(f"{path}/edit", content=json.dumps({"reason": "x", **edit}), headers=headers)
        after = (await client.get(path)).headers["etag"]

    assert answer.status_code == status
    assert after == etag


@pytest.mark.req("B9")
async def test_a_shadow_says_how_it_would_end(site: Site) -> None:
    async with site.client(Role.AGENT) as client:
        tried = await client.post(f"/api/v1/events/{site.dead}/shadow", json={})
        forced = await client.post(f"/api/v1/events/{site.dead}/shadow", json={"force": True})

    assert tried.json()["would"] == "fail"
    assert forced.status_code == 403


@pytest.mark.req("A7")
@pytest.mark.parametrize("payload", ['{"n": 1, "n": 2}', "1e400", "0.12345678901234567890123"])
async def test_an_edit_whose_payload_would_change_is_refused(site: Site, payload: str) -> None:
    path = f"/api/v1/events/{site.dead}"
    async with site.client(Role.OPERATOR) as client:
        etag = (await client.get(path)).headers["etag"]
        body = f'{{"reason": "mend it", "payload": {payload}}}'
        headers = {"If-Match": etag, "Content-Type": "application/json"}
        answer = await client.post(f"{path}/edit", content=body, headers=headers)

    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert "the JSON has the" in answer.json()["detail"]
