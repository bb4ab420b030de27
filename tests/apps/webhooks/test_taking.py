"""A message is stored once, answered when it is durable, and handled in the background."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from redrive import Status
from redrive.apps.webhooks import Source
from redrive.apps.webhooks.keep import body_of
from tests.apps.webhooks.conftest import HERE, SECRET, SHOP, Open, desk, receiver, signed

OPEN = Source("open", "none", (), (f"{HERE}:take",), is_open=True)


@pytest.mark.req("H1")
async def test_a_message_is_stored_answered_and_then_handled(receiving: Open) -> None:
    async with receiving() as shop:
        answer = await shop.send({"order": 7}, message_id="msg_7")

        assert (answer.status_code, answer.json()["duplicate"]) == (202, False)
        (event,) = await shop.events()
        assert (str(event.id), event.status, event.payload) == (answer.json()["event"], Status.PENDING, {"order": 7})
        assert (event.subject, event.source, event.idempotency_key) == ("msg_7", "webhooks/shop", "shop#msg_7")
        assert event.headers["content-type"] == "application/json"
        assert "webhook-signature" not in event.headers
        assert desk.seen == []
        await shop.app.worker().drain()
        assert desk.seen == [{"order": 7}]


@pytest.mark.req("H6")
async def test_a_message_that_comes_again_is_stored_once_even_when_it_was_handled(receiving: Open) -> None:
    async with receiving() as shop:
        first = await shop.send({"order": 7}, message_id="msg_7")
        second = await shop.send({"order": 7}, message_id="msg_7")
        await shop.app.worker().drain()
        third = await shop.send({"order": 7}, message_id="msg_7")
        other = await shop.send({"order": 7}, message_id="msg_8")
        await shop.app.worker().drain()

        assert [each.status_code for each in (first, second, third, other)] == [202, 200, 200, 202]
        assert third.json() == {"stored": True, "duplicate": True}
        assert len(await shop.events()) == len(desk.seen) == 2


@pytest.mark.req("H6")
async def test_fifty_at_once_of_one_id_through_two_processes_are_one_event(store_url: str) -> None:
    async with receiver(store_url) as one, receiver(store_url) as two:
        sent = [each.send({"n": n % 5}, message_id=f"msg_{n % 5}") for n in range(50) for each in (one, two)]
        answers = await asyncio.gather(*sent)

        assert sorted({each.status_code for each in answers}) == [200, 202]
        assert sum(each.status_code == 202 for each in answers) == 5
        assert len(await one.events()) == 5


async def test_the_ids_of_one_source_are_not_those_of_another(receiving: Open) -> None:
    other = Source("other", "standard", (SECRET,), (f"{HERE}:take",))
    async with receiving(SHOP, other) as shop:
        answers = [await shop.send({}, source=each, message_id="msg_1") for each in ("shop", "other")]

        assert [each.status_code for each in answers] == [202, 202]


async def test_a_message_without_an_id_is_stored_each_time(receiving: Open) -> None:
    async with receiving(OPEN) as shop:
        answers = [await shop.post(b"{}", {}, "open") for _ in range(3)]

        assert [each.status_code for each in answers] == [202, 202, 202]
        assert len(await shop.events("webhook.open")) == 3


async def test_messages_that_come_together_share_a_commit_and_each_gets_its_own_answer(receiving: Open) -> None:
    async with receiving() as shop:
        answers = await asyncio.gather(*(shop.send({"n": n}) for n in range(40)))

        stored = {str(event.id): event.payload["n"] for event in await shop.events()}
        assert [stored[each.json()["event"]] for each in answers] == list(range(40))


# --- what bodies look like ---

BODIES = {
    "text": (b"order=7&state=paid", "text"),
    "nothing": (b"", "text"),
    "not UTF-8": (b"\xff\xfe\x00caf\xe9", "base64"),
    "a NUL": (b"a\0b", "base64"),
    "broken JSON": (b'{"order": 7', "text"),
    "NaN": (b'{"amount": NaN}', "text"),
    "an escaped NUL": (b'{"name": "a\\u0000b"}', "text"),
    "a lone surrogate": (b'{"name": "\\ud800"}', "text"),
    "too deep": (b"[" * 150 + b"]" * 150, "text"),
    "far too deep": (b"[" * 100_000 + b"]" * 100_000, "text"),
    "a number without end": (b"1" * 6_000, "text"),
}


@pytest.mark.req("H6")
@pytest.mark.parametrize("kind", BODIES)
async def test_what_is_not_json_is_kept_as_it_came_and_disturbs_nobody(kind: str, receiving: Open) -> None:
    body, form = BODIES[kind]
    async with receiving() as shop:
        odd, *others = await asyncio.gather(shop.post(body, signed(body)), *(shop.send({"n": n}) for n in range(5)))

        assert [each.status_code for each in (odd, *others)] == [202] * 6
        (event,) = [each for each in await shop.events() if str(each.id) == odd.json()["event"]]
        assert event.headers["webhook-raw"] == form
        assert body_of(event.payload, event.headers) == body


@pytest.mark.parametrize("value", [None, 7, "text", [], {"a": {"b": [1.5, True]}}, {"é": "😀\u2028"}, 2**70])
async def test_json_comes_out_as_it_went_in(value: Any, receiving: Open) -> None:
    async with receiving() as shop:
        answer = await shop.send(value)

        (event,) = await shop.events()
        assert answer.status_code == 202
        assert (event.payload, "webhook-raw" in event.headers) == (value, False)


async def test_a_source_may_keep_every_body_as_it_came(receiving: Open) -> None:
    exact = Source("exact", "standard", (SECRET,), (f"{HERE}:take",), keep="raw")
    body = b'{ "order" : 7.0 }\n'
    async with receiving(exact) as shop:
        await shop.post(body, signed(body), "exact")

        (event,) = await shop.events("webhook.exact")
        assert body_of(event.payload, event.headers) == body


# --- other senders ---


@pytest.mark.req("H6")
async def test_github_and_stripe_and_anybody_else_can_be_pointed_at_it(receiving: Open) -> None:
    hub = Source("hub", "github", ("s3cret",), (f"{HERE}:take",))
    pay = Source("pay", "stripe", ("whsec_x",), (f"{HERE}:take",))
    any_ = Source("any", "none", (), (f"{HERE}:take",), id="body:event.id", is_open=True)
    body = json.dumps({"id": "evt_1", "event": {"id": 17}}).encode()
    hub_signature = "sha256=" + hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    async with receiving(hub, pay, any_) as shop:
        stamp = int(shop.app.clock.now().timestamp())
        pay_signature = hmac.new(b"whsec_x", f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        sent = {
            "hub": {"x-hub-signature-256": hub_signature, "x-github-delivery": "d-1", "x-github-event": "push"},
            "pay": {"stripe-signature": f"t={stamp},v1={pay_signature}"},
            "any": {},
        }
        answers = [(await shop.post(body, headers, name)).status_code for name, headers in sent.items() for _ in (1, 2)]
        events = [event for name in sent for event in await shop.events(f"webhook.{name}")]

        assert answers == [202, 200] * 3
        assert [event.subject for event in events] == ["d-1", "evt_1", "17"]
        assert events[0].headers["x-github-event"] == "push"


async def test_an_unsigned_source_is_for_this_machine_unless_it_is_said_otherwise(sqlite_url: str) -> None:
    near = Source("near", "none", (), (f"{HERE}:take",))
    forwarded, page = {"x-forwarded-for": "127.0.0.1"}, {"origin": "http://evil.example"}
    async with receiver(sqlite_url, near, peer="127.0.0.1", host="127.0.0.1:8321") as here:
        assert (await here.post(b"{}", {}, "near")).status_code == 202
        assert (await here.post(b"{}", forwarded, "near")).status_code == 403
        assert (await here.post(b"{}", page, "near")).status_code == 403
    async with receiver(sqlite_url, near, peer="127.0.0.1", host="rebound.example") as rebound:
        assert (await rebound.post(b"{}", {}, "near")).status_code == 403
    async with receiver(sqlite_url, near, host="127.0.0.1") as far:
        assert (await far.post(b"{}", {}, "near")).status_code == 403


# --- forgetting ---


@pytest.mark.req("H6")
async def test_an_id_is_remembered_for_its_time_and_then_forgotten(receiving: Open) -> None:
    from redrive.clock import VirtualClock

    clock = VirtualClock()
    async with receiving(clock=clock, remember_days=2.0) as shop:

        async def send() -> int:
            answer = await shop.send({}, message_id="msg_1", at=clock.now().timestamp())
            return int(answer.status_code)

        answers = [await send()]
        for _ in range(2):
            clock.advance("25h")
            await shop.app.worker().drain()
            answers.append(await send())

        assert answers == [202, 200, 202]


def test_a_body_survives_base64() -> None:
    body = bytes(range(256))
    assert body_of({"base64": base64.b64encode(body).decode()}, {"webhook-raw": "base64"}) == body
