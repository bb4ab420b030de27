"""Publishing over HTTP: our JSON, CloudEvents, and calls that are made once whatever happens."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from uuid import UUID

import pytest
from cloudevents.v1.conversion import to_binary, to_structured
from cloudevents.v1.http import CloudEvent

from redrive import Event, EventFilter, Status
from redrive.operate.auth import Role
from tests.web.conftest import Site

EVENTS = "/api/v1/events"


async def stored(site: Site, answer: Any) -> Event:
    event = await site.app.event(UUID(answer.json()["id"]))
    assert event is not None
    return event


async def test_an_event_is_durable_when_it_is_answered(site: Site) -> None:
    new = {
        "type": "order.paid", "payload": {"id": 9, "text": "Zoë"}, "subject": "order/9", "source": "shop",
        "retry_key": "order-9", "correlation_id": "basket-9", "headers": {"lane": "7"}, "queue": "slow", "priority": 2,
        "delay": "1h", "ordering_key": "c-9", "idempotency_key": "i-9",
    }  # fmt: skip
    async with site.client(Role.PUBLISHER) as client:
        answer = await client.post(EVENTS, json=new)
        again = await client.post(EVENTS, json=new)

    event = await stored(site, answer)
    assert (answer.status_code, answer.json()["created"]) == (201, True)
    assert answer.headers["location"] == f"{EVENTS}/{event.id}"
    assert (again.status_code, again.json()) == (200, {**answer.json(), "created": False})
    told = {name: getattr(event, name) for name in new if name != "delay"}
    told["headers"].pop("traceparent", None)  # there where another test has set tracing up
    assert told == {name: value for name, value in new.items() if name != "delay"}
    assert event.status is Status.PENDING


@pytest.mark.req("A3")
async def test_publishes_that_come_together_share_a_commit_and_each_gets_its_own_answer(site: Site) -> None:
    async with site.client(Role.PUBLISHER) as client:
        sent = [{"type": "order.paid", "payload": {"n": n}, "retry_key": f"key-{n % 10}"} for n in range(30)]
        answers = await asyncio.gather(*(client.post(EVENTS, json=each) for each in sent))

    ids = [each.json()["id"] for each in answers]
    assert [each.status_code for each in answers].count(201) == len(set(ids)) == 10
    for n, answer in enumerate(answers):
        event = await stored(site, answer)
        assert (event.retry_key, event.payload["n"] % 10) == (f"key-{n % 10}", n % 10)


async def test_a_worker_delivers_what_was_published_over_http(site: Site) -> None:
    async with site.client(Role.PUBLISHER) as client:
        answer = await client.post(EVENTS, json={"type": "order.paid", "payload": {"id": 1}})
    await site.app.worker().drain()

    assert (await stored(site, answer)).status is Status.DELIVERED


async def test_many_are_stored_together_or_not_at_all(site: Site) -> None:
    before = len(await site.app.events(EventFilter(limit=100)))
    async with site.client(Role.PUBLISHER) as client:
        bad = await client.post(EVENTS, json=[{"type": "a"}, {"type": ""}])
        refused = await client.post(EVENTS, json=[{"type": "a"}, {"type": "b", "payload": "\x00"}])
        good = await client.post(
            EVENTS, json=[{"type": "a", "retry_key": "k"}, {"type": "b"}, {"type": "a", "retry_key": "k"}]
        )
        none = await client.post(EVENTS, json=[])

    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/1/type")
    assert refused.status_code == 422
    assert good.status_code == 201
    assert [each["created"] for each in good.json()["items"]] == [True, True, False]
    assert none.json() == {"items": []}
    assert len(await site.app.events(EventFilter(limit=100))) == before + 2


async def test_of_a_type_with_several_handlers_one_answer_is_given_for_each_event(site: Site) -> None:
    site.app.route("order.paid", "mail.receipt")
    async with site.client(Role.PUBLISHER) as client:
        answer = await client.post(EVENTS, json=[{"type": "order.paid"}, {"type": "order.bad"}])

    assert [each["target"] for each in answer.json()["items"]] == ["order.paid", "order.bad"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"null", 422),
        (b'"x"', 422),
        (b'{"type": 7}', 422),
        (b'{"type": ""}', 422),
        (b'{"payload": 1}', 422),
        (b'{"type": "a", "colour": "red"}', 422),
        (b'{"type": "a", "payload": NaN}', 422),
        (b'{"type": "a", "payload": "\\ud800"}', 422),
        (b'{"type": "a", "payload": "\\u0000"}', 422),
        (b'{"type": "a", "delay": "soon"}', 422),
        (b'{"type": "a", "due_at": "2030-01-01T00:00:00"}', 422),
        (b'{"type": "a", "priority": 9}', 422),
        (b'{"type": "a", "headers": {"a": 1}}', 422),
        (b'{"type": "a", "deadline": "0s"}', 422),
        (b'{"type": "a", "payload": ' + b"[" * 100 + b"]" * 100 + b"}", 422),
        (b'{"type": "a", "payload": "' + b"x" * 1_100_000 + b'"}', 422),
        (b"\xff\xfe", 422),
        (b'{"type": "a", "payload": {"n": 1, "n": 2}}', 422),
        (b'{"type": "a", "type": "b"}', 422),
        (b'{"type": "a", "payload": 9007199254740993.5}', 422),
        (b'{"type": "a", "payload": 1e400}', 422),
        (b'[{"type": "a", "payload": ' + b"9" * 5_000 + b"}]", 422),
    ],
)
async def test_what_cannot_be_stored_is_refused_with_a_sentence(sqlite_site: Site, body: bytes, status: int) -> None:
    async with sqlite_site.client(Role.PUBLISHER) as client:
        answer = await client.post(EVENTS, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().get("errors") or answer.json()["detail"]


async def test_another_media_type_is_not_taken(sqlite_site: Site) -> None:
    async with sqlite_site.client(Role.PUBLISHER) as client:
        answers = [
            await client.post(EVENTS, content=b"{}", headers={"Content-Type": kind})
            for kind in ("text/plain", "application/xml", "")
        ]

    assert {each.status_code for each in answers} == {415}


# --- CloudEvents, as the official library writes them ---

ATTRIBUTES = {
    "type": "order.paid", "source": "/shop/7", "id": "a-1", "subject": "order/7", "correlationid": "basket-7",
    "causationid": "c-1", "partitionkey": "customer-7",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}  # fmt: skip


@pytest.mark.parametrize("write", [to_structured, to_binary])
async def test_a_cloud_event_is_stored_with_its_attributes(site: Site, write: Any) -> None:
    headers, body = write(CloudEvent(ATTRIBUTES, {"id": 7, "name": "Zoë"}))
    headers = {"content-type": "application/json", **headers}
    async with site.client(Role.PUBLISHER) as client:
        answer = await client.post(EVENTS, content=body, headers=headers)
        again = await client.post(EVENTS, content=body, headers=headers)

    event = await stored(site, answer)
    assert (answer.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == answer.json()["id"]
    assert (event.type, event.source, event.subject, event.payload) == (
        "order.paid", "/shop/7", "order/7", {"id": 7, "name": "Zoë"},
    )  # fmt: skip
    assert (event.correlation_id, event.causation_id, event.ordering_key) == ("basket-7", "c-1", "customer-7")
    assert event.idempotency_key == "/shop/7#a-1"
    assert event.headers["traceparent"] == ATTRIBUTES["traceparent"]


async def test_a_batch_of_cloud_events_is_stored_together(site: Site) -> None:
    batch = [json.loads(to_structured(CloudEvent({**ATTRIBUTES, "id": f"b-{n}"}, {"n": n}))[1]) for n in range(3)]
    kind = {"Content-Type": "application/cloudevents-batch+json; charset=utf-8"}
    async with site.client(Role.PUBLISHER) as client:
        answer = await client.post(EVENTS, content=json.dumps(batch), headers=kind)
        broken = await client.post(EVENTS, content=json.dumps([*batch, {"specversion": "1.0"}]), headers=kind)

    assert answer.status_code == 201
    assert len(answer.json()["items"]) == 3
    assert (broken.status_code, broken.json()["errors"][0]["pointer"]) == (422, "/3/id")


async def test_data_that_is_no_json_is_kept(site: Site) -> None:
    head = {"ce-specversion": "1.0", "ce-type": "blob", "ce-source": "/a%20b", "ce-id": "1"}
    data = base64.b64encode(b'{"a": 1}').decode()
    structured = {"specversion": "1.0", "type": "blob", "source": "/s", "id": "2", "data_base64": data,
                  "datacontenttype": "application/json"}  # fmt: skip
    async with site.client(Role.PUBLISHER) as client:
        text = await client.post(EVENTS, content="Zoë".encode(), headers={**head, "Content-Type": "text/plain"})
        blob = await client.post(
            EVENTS, content=b"\x00\xff", headers={**head, "ce-id": "3", "Content-Type": "image/png"}
        )
        nothing = await client.post(EVENTS, headers={**head, "ce-id": "4"})
        base = await client.post(
            EVENTS, content=json.dumps(structured), headers={"Content-Type": "application/cloudevents+json"}
        )

    assert ((await stored(site, text)).payload, (await stored(site, text)).source) == ("Zoë", "/a b")
    assert (await stored(site, blob)).payload == {"datacontenttype": "image/png", "data_base64": "AP8="}
    assert (await stored(site, nothing)).payload is None
    assert (await stored(site, base)).payload == {"a": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"specversion": "0.3"}, {"id": ""}, {"type": None}, {"source": 7.5}, {"Odd": "x"}, {"data_base64": "!"},
        {"data": 1, "data_base64": "AAAA"}, {"id": []},
    ],
)  # fmt: skip
async def test_what_is_no_cloud_event_is_refused(sqlite_site: Site, change: dict[str, Any]) -> None:
    event = {"specversion": "1.0", "type": "a", "source": "/s", "id": "1", **change}
    async with sqlite_site.client(Role.PUBLISHER) as client:
        answer = await client.post(
            EVENTS, content=json.dumps(event), headers={"Content-Type": "application/cloudevents+json"}
        )

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"]


# --- once ---


@pytest.mark.req("W6")
async def test_a_call_with_an_idempotency_key_has_its_effect_once(site: Site) -> None:
    headers = {"Idempotency-Key": "k-1"}
    new = {"type": "order.paid", "payload": {"id": 1}}
    async with site.client() as client:
        first = await client.post(EVENTS, json=new, headers=headers)
        second = await client.post(EVENTS, json=new, headers=headers)
        other = await client.post(EVENTS, json={**new, "payload": {"id": 2}}, headers=headers)
        replay = f"/api/v1/events/{site.dead}/replay"
        done = [await client.post(replay, json={"reason": "x"}, headers={"Idempotency-Key": "k-2"}) for _ in range(3)]
    async with site.client(Role.ADMIN) as client:
        mine = await client.post(EVENTS, json=new, headers=headers)

    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json() == first.json()
    assert second.headers["location"] == first.headers["location"]
    assert second.headers["idempotency-replayed"] == "true"
    assert (other.status_code, other.json()["type"]) == (422, "urn:redrive:problem:idempotency-key-reused")
    assert [each.status_code for each in done] == [200, 200, 200]
    assert mine.json()["id"] != first.json()["id"]  # a key belongs to who uses it


async def test_of_calls_at_once_with_one_key_one_has_the_effect(site: Site) -> None:
    headers = {"Idempotency-Key": "race"}
    async with site.client() as client:
        answers = await asyncio.gather(
            *(client.post(EVENTS, json={"type": "race.run"}, headers=headers) for _ in range(20))
        )

    assert {each.status_code for each in answers} <= {201, 409}
    assert 201 in {each.status_code for each in answers}
    assert len(await site.app.events(EventFilter(type="race.run"))) == 1


async def test_a_call_that_was_refused_may_be_made_again_with_its_key(site: Site) -> None:
    headers = {"Idempotency-Key": "k"}
    path = f"/api/v1/events/{site.dead}/restore"
    async with site.client() as client:
        refused = await client.post(path, json={"reason": "x"}, headers=headers)
        await client.post(f"/api/v1/events/{site.dead}/discard", json={"reason": "x"})
        done = await client.post(path, json={"reason": "x"}, headers=headers)

    assert (refused.status_code, done.status_code) == (409, 200)


async def test_a_key_is_free_again_after_a_day_and_when_its_server_died(site: Site) -> None:
    new, headers = {"type": "day.after"}, {"Idempotency-Key": "k"}
    table = "redrive_answer" if site.app.store.name == "sqlite" else "redrive.answer"
    back = "- 61000000" if site.app.store.name == "sqlite" else "- interval '61 s'"
    async with site.client() as client:
        first = await client.post(EVENTS, json=new, headers=headers)
        async with site.app.store.transaction() as tx:
            await tx.execute(f"update {table} set expires_at = begun_at {back}")
        second = await client.post(EVENTS, json=new, headers=headers)
        async with site.app.store.transaction() as tx:
            await tx.execute(f"update {table} set status = null")
        waiting = await client.post(EVENTS, json=new, headers=headers)
        async with site.app.store.transaction() as tx:
            await tx.execute(f"update {table} set begun_at = begun_at {back}")
        third = await client.post(EVENTS, json=new, headers=headers)

    assert [each.status_code for each in (first, second, waiting, third)] == [201, 201, 409, 201]
    assert waiting.headers["retry-after"] == "1"
    assert len({each.json()["id"] for each in (first, second, third)}) == 3


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "é"])
async def test_a_key_that_cannot_be_one_is_refused(sqlite_site: Site, key: str) -> None:
    async with sqlite_site.client() as client:
        answer = await client.post(EVENTS, json={"type": "a"}, headers=[(b"Idempotency-Key", key.encode("latin-1"))])

    assert answer.status_code == 422
