"""From the store to a function, a URL or a broker; with the curve, the dead letters and the clean-up promised."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from standardwebhooks.webhooks import Webhook

from redrive import EventFilter, Retention, RetryPolicy, Status
from redrive.apps.webhooks import Source
from redrive.clock import VirtualClock
from redrive.operate.web import redrive_asgi
from tests.apps.webhooks.conftest import HERE, SECRET, SHOP, Open, Receiver, desk, receiver, signed
from tests.servers import NatsServer
from tests.web.serving import served

# --- the curve and the end ---


@pytest.mark.req("H2")
async def test_a_failure_counts_and_comes_back_after_base_times_two_to_the_attempts(receiving: Open) -> None:
    clock = VirtualClock()
    async with receiving(clock=clock) as shop:
        desk.failures = 99
        await shop.send({"order": 7}, at=clock.now().timestamp())
        for attempts, wait in enumerate((10, 20, 40, 80), 1):
            failed_at = clock.now()
            await shop.app.worker().drain()

            (event,) = await shop.events()
            assert (event.status, event.attempts) == (Status.PENDING, attempts)
            assert event.due_at == failed_at + timedelta(seconds=wait)
            assert event.last_error is not None
            assert "the shelf is full" in event.last_error
            clock.advance(wait - 0.001)
            await shop.app.worker().drain()
            assert (await shop.events())[0].attempts == attempts
            clock.advance(0.001)
        await shop.app.worker().drain()

        (event,) = await shop.events()
        assert (event.status, event.attempts) == (Status.FAILED, 5)
        assert desk.seen == []


@pytest.mark.req("H2")
async def test_the_limit_holds_when_everything_fails_at_once(receiving: Open) -> None:
    desk.failures = 999
    now = RetryPolicy.stepwise("0s", "0s", 2)
    async with receiving(retry=now) as shop:
        await asyncio.gather(*(shop.send({"n": n}) for n in range(60)))
        await shop.app.worker().drain()

        assert {(event.status, event.attempts) for event in await shop.events()} == {(Status.FAILED, 2)}


@pytest.mark.req("H5")
async def test_dead_letters_are_found_and_only_their_time_to_live_removes_them(receiving: Open) -> None:
    clock = VirtualClock()
    kept = Retention.of(delivered="1d", failed="10d")
    async with receiving(clock=clock, retry=RetryPolicy.stepwise(attempts=1), retention=kept) as shop:
        desk.failures = 1
        await shop.send({"order": 1}, at=clock.now().timestamp())
        await shop.app.worker().drain()
        await shop.send({"order": 2}, at=clock.now().timestamp())
        await shop.app.worker().drain()

        async def standing() -> list[tuple[Status, int]]:
            dead = await shop.app.events(EventFilter(type="webhook.shop", status=Status.FAILED))
            assert [each.is_dead_letter for each in dead] == [True] * len(dead)
            return sorted((each.status, each.payload["order"]) for each in await shop.events())

        assert await standing() == [(Status.DELIVERED, 2), (Status.FAILED, 1)]
        clock.advance("9d")
        await cleaned(shop)
        assert await standing() == [(Status.FAILED, 1)]
        clock.advance("2d")
        await cleaned(shop)
        assert await standing() == []


async def test_a_dead_letter_is_replayed_and_stays_one_message(receiving: Open) -> None:
    async with receiving(retry=RetryPolicy.stepwise(attempts=1)) as shop:
        desk.failures = 1
        await shop.send({"order": 7}, message_id="msg_7")
        await shop.app.worker().drain()
        (dead,) = await shop.events()
        again = await shop.send({"order": 7}, message_id="msg_7")
        assert (again.status_code, dead.status) == (200, Status.FAILED)

        await shop.app.replay(dead.id, by="test", reason="the shelf was emptied")
        await shop.app.worker().drain()

        assert desk.seen == [{"order": 7}]


async def cleaned(shop: Receiver) -> None:
    """Do what workers do every now and then."""
    await shop.app.store.purge(shop.app.retention.ages, by="test", limit=100)


# --- to a URL ---


@dataclass(slots=True)
class Downstream:
    """A receiver of somebody else, which answers what it is told to."""

    answers: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@asynccontextmanager
async def downstream() -> AsyncIterator[tuple[Downstream, str]]:
    found, web = Downstream(), FastAPI()
    web.state.changes = _Quiet()

    @web.post("/in")
    async def take(request: Request) -> Response:
        found.got.append((dict(request.headers), await request.body()))
        return Response("said so", found.answers.pop(0) if found.answers else 200)

    async with served(web) as address:
        yield found, f"{address}/in"


class _Quiet:
    def stop(self) -> None: ...


def forwarding(url: str, **options: Any) -> Source:
    return Source("shop", "standard", (SECRET,), (url,), **options)


async def test_a_message_is_sent_on_under_its_id_and_signed_anew(receiving: Open) -> None:
    own = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"
    async with downstream() as (other, url), receiving(forwarding(url, sign=own)) as shop:
        other.answers = [500]
        await shop.send({"order": 7, "name": "é"}, message_id="msg_7")
        await shop.app.worker().drain()
        (event,) = await shop.events()
        assert (event.status, event.attempts) == (Status.PENDING, 1)
        assert "answered 500: said so" in (event.last_error or "")

    async with (
        downstream() as (other, url),
        receiving(forwarding(url, sign=own), retry=RetryPolicy.stepwise("0s", "0s")) as shop,
    ):
        other.answers = [500]
        await shop.send({"order": 7, "name": "é"}, message_id="msg_8")
        await shop.app.worker().drain()

        ids = [headers["webhook-id"] for headers, _ in other.got]
        headers, body = other.got[-1]
        assert ids == ["msg_8", "msg_8"]
        assert Webhook(own).verify(body, headers) == {"order": 7, "name": "é"}


@pytest.mark.parametrize(("status", "expected"), [(204, Status.DELIVERED), (422, Status.FAILED), (301, Status.FAILED)])
async def test_an_answer_is_an_end_if_permanent_failures_are_not_retried(
    status: int, expected: Status, sqlite_url: str
) -> None:
    async with downstream() as (other, url), receiver(sqlite_url, forwarding(url), retry_every=False) as shop:
        other.answers = [status]
        await shop.send({"order": 7})
        await shop.app.worker().drain()

        (event,) = await shop.events()
        assert (event.status, event.attempts) == (expected, 1)


@pytest.mark.req("H2")
async def test_an_answer_that_is_no_success_is_tried_again_up_to_the_limit(sqlite_url: str) -> None:
    now = RetryPolicy.stepwise("0s", "0s", 3)
    async with downstream() as (other, url), receiver(sqlite_url, forwarding(url), retry=now) as shop:
        other.answers = [422, 422, 422]
        await shop.send({"order": 7})
        await shop.app.worker().drain()

        (event,) = await shop.events()
        assert (event.status, event.attempts, len(other.got)) == (Status.FAILED, 3, 3)


async def test_while_the_other_side_is_away_messages_wait_and_spend_nothing(receiving: Open) -> None:
    async with receiving(forwarding("http://127.0.0.1:9/in")) as shop:
        for n in range(8):
            await shop.send({"order": n})
        await shop.app.worker(concurrency=1).drain()

        events = await shop.events()
        assert {event.attempts for event in events} == {0}
        assert {event.status for event in events} == {Status.PENDING, Status.BLOCKED}
        assert {event.blocked_on for event in events if event.status is Status.BLOCKED} == {"127.0.0.1-9"}


async def test_what_is_not_json_is_sent_on_as_it_came(sqlite_url: str) -> None:
    body = b"\xff\x00 raw"
    async with downstream() as (other, url), receiver(sqlite_url, forwarding(url)) as shop:
        await shop.post(body, {**signed(body), "content-type": "application/octet-stream"})
        await shop.app.worker().drain()

        (headers, sent) = other.got[0]
        assert (sent, headers["content-type"]) == (body, "application/octet-stream")


# --- to several, and to a broker ---


async def test_each_destination_has_its_own_fate(receiving: Open) -> None:
    async with (
        downstream() as (other, url),
        receiving(Source("shop", "standard", (SECRET,), (f"{HERE}:take", url)), retry_every=False) as shop,
    ):
        other.answers = [422]
        await shop.send({"order": 7})
        await shop.app.worker().drain()

        fates = {event.target: event.status for event in await shop.events()}
        host = url.removeprefix("http://").partition(":")[0]
        assert fates == {"webhook.shop": Status.DELIVERED, f"webhook.shop:{host}/in": Status.FAILED}


async def test_a_message_goes_to_a_broker_as_a_cloud_event(sqlite_url: str, nats_server: NatsServer) -> None:
    import nats

    address = nats_server.url.removeprefix("nats://")
    client = await nats.connect(nats_server.url)
    try:
        await client.jetstream().add_stream(name="HOOKS", subjects=["hooks.shop"])
        source = Source("shop", "standard", (SECRET,), (f"nats://{address}/hooks.shop", f"{HERE}:take"))
        async with receiver(sqlite_url, source) as shop:
            await shop.send({"order": 7}, message_id="msg_7")
            await shop.app.worker().drain()
        message = await client.jetstream().get_last_msg("HOOKS", "hooks.shop")
        await client.jetstream().delete_stream("HOOKS")
    finally:
        await client.close()

    told = json.loads(message.data or b"")
    assert (told["type"], told["subject"], told["data"]) == ("webhook.shop", "msg_7", {"order": 7})
    assert desk.seen == [{"order": 7}]


async def test_the_console_and_the_api_are_beside_it(sqlite_url: str) -> None:
    async with receiver(sqlite_url, SHOP) as shop:
        assert (await shop.client.get("/api/v1/events")).status_code == 401
        assert redrive_asgi(shop.app).title == "Redrive"
