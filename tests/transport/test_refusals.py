"""Brokers that are away, refuse us, or refuse a message."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from uuid import UUID

import pytest

from redrive import ConfigurationError, Redrive, Status
from redrive.transport.nats import Nats
from redrive.transport.traffic import Standing
from tests.conftest import Run
from tests.servers import NatsServer, running_nats
from tests.transport.conftest import Stream
from tests.waiting import until
from tests.worker.conftest import found, working

RULES = """
max_payload: 4096
accounts {
  SHOP {
    jetstream: enabled
    users: [
      { user: shop, password: right }
      { user: narrow, password: right, permissions: { publish: { allow: ["orders.open", "$JS.API.>"] } } }
    ]
  }
}
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def strict_nats(run: Run) -> Iterator[NatsServer]:
    """A server with passwords, permissions and a small limit."""
    with running_nats(RULES) as server:
        run.backends["NATS"] = server.version
        yield server


def _state(app: Redrive) -> str:
    (relay,) = app.traffic.relays.values()
    return relay.link.state.value


async def test_with_a_broker_that_is_away_publishing_goes_on_and_events_wait_without_spending_attempts(
    app: Redrive,
) -> None:
    app.relay("order.paid", to=Nats(f"nats://127.0.0.1:{_free_port()}").subject("orders.paid"))

    async with working(app):
        published = [(await app.publish("order.paid", n)).id for n in range(6)]
        await until(lambda: _state(app) == "unreachable")
        await until(lambda: _blocked(app, published, "nats"))
        (standing,) = await _told(app)

    assert {(await found(app, each)).attempts for each in published} == {0}
    assert standing.state == "unreachable"
    assert "cannot be reached" in standing.error
    assert standing.lag == 6
    assert standing.oldest_at is not None


async def _blocked(app: Redrive, published: list[UUID], on: str) -> bool:
    return all([(await found(app, each)).blocked_on == on for each in published])


async def _told(app: Redrive) -> list[Standing]:
    await until(lambda: _said(app))
    return await app.traffic.standing()


async def _said(app: Redrive) -> bool:
    standing = await app.traffic.standing()
    return bool(standing) and standing[0].state not in ("idle", "connecting", "not running")


async def test_a_broker_that_comes_later_gets_everything(app: Redrive, own_nats: NatsServer) -> None:
    own_nats.kill()
    app.dependency("nats", probe_after=0.2, probe_cap=0.2)
    app.relay("order.paid", to=Nats(own_nats.url).subject("orders.paid", declare="ORDERS"))
    published = [(await app.publish("order.paid", n)).id for n in range(10)]

    async with working(app):
        await until(lambda: _state(app) == "unreachable")
        await asyncio.to_thread(own_nats.start)
        await until(lambda: _all_delivered(app, published))

    assert _state(app) == "ok"


async def _all_delivered(app: Redrive, published: list[UUID]) -> bool:
    return all([(await found(app, each)).status is Status.DELIVERED for each in published])


async def test_wrong_credentials_block_events_and_say_so(app: Redrive, strict_nats: NatsServer) -> None:
    broker = Nats(strict_nats.url, user="shop", password="wrong")
    app.dependency("nats", probe_after=0.2, probe_cap=0.2)
    app.relay("order.paid", to=broker.subject("orders.paid"))

    async with working(app):
        published = [(await app.publish("order.paid", n)).id for n in range(6)]
        await until(lambda: _blocked(app, published, "nats"))
        # The server hangs up behind its refusal: now and then that is all that is seen, until the next probe.
        await until(lambda: _says(app, published, "refuses our credentials"))

    assert broker.name == "nats"
    assert {(await found(app, each)).attempts for each in published} == {0}


async def _says(app: Redrive, published: list[UUID], text: str) -> bool:
    return any([text in str((await found(app, each)).last_error) for each in published])


async def test_a_message_too_large_is_a_dead_letter_with_that_reason(app: Redrive, strict_nats: NatsServer) -> None:
    broker = Nats(strict_nats.url, user="shop", password="right")
    app.relay("order.paid", to=broker.subject("large.paid", declare="LARGE"))

    large = await app.publish("order.paid", "x" * 5_000)
    small = await app.publish("order.paid", "x")
    await app.worker().drain()

    event = await found(app, large.id)
    assert event.status is Status.FAILED
    assert event.attempts == 1
    assert event.error_type == "redrive.errors.MessageTooLarge"
    assert "4,096" in str(event.last_error)
    assert (await found(app, small.id)).status is Status.DELIVERED


async def test_a_subject_no_stream_takes_is_a_dead_letter_with_that_reason(app: Redrive, stream: Stream) -> None:
    app.relay("order.paid", to=Nats(stream.url).subject("nobody.listens"))

    event_id = (await app.publish("order.paid", 1)).id
    await app.worker().drain()

    event = await found(app, event_id)
    assert event.status is Status.FAILED
    assert event.error_type == "redrive.errors.TopicMissing"
    assert "no stream of nats takes the subject 'nobody.listens'" in str(event.last_error)


async def test_a_subject_we_may_not_send_to_is_a_dead_letter_with_that_reason(
    app: Redrive, strict_nats: NatsServer
) -> None:
    broker = Nats(strict_nats.url, user="narrow", password="right")
    app.relay("order.paid", to=broker.subject("orders.closed"))

    event_id = (await app.publish("order.paid", 1)).id
    await app.worker().drain()

    event = await found(app, event_id)
    assert event.status is Status.FAILED
    assert event.error_type == "redrive.errors.BrokerRefused"
    assert "does not allow us to send to 'orders.closed'" in str(event.last_error)


async def test_a_broker_that_falls_silent_is_given_up_and_gets_the_message_later_once(
    app: Redrive, own_nats: NatsServer
) -> None:
    app.dependency("nats", probe_after=0.2, probe_cap=0.2)
    broker = Nats(own_nats.url, ack_timeout="300ms")
    app.relay("order.paid", to=broker.subject("orders.paid", declare="ORDERS"))
    await app.publish("order.paid", 0)
    async with working(app):
        await until(lambda: _state(app) == "ok")
        own_nats.pause()
        event_id = (await app.publish("order.paid", 1)).id
        await until(lambda: _state(app) == "unreachable")
        own_nats.resume()
        await until(lambda: _all_delivered(app, [event_id]))

    line = await broker.line()
    info = await line.client.jsm().stream_info("ORDERS")
    await broker.close()
    assert info.state.messages == 2


@pytest.mark.parametrize("subject", ["", "orders paid", "orders.*", "orders.>", ".orders", "orders."])
def test_a_subject_that_cannot_be_sent_to_is_refused_at_once(subject: str) -> None:
    with pytest.raises(ConfigurationError, match="no subject to send to"):
        Nats().subject(subject)


def test_two_brokers_of_one_name_are_refused(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    app.relay("a", to=Nats().subject("a"))

    with pytest.raises(ConfigurationError, match="two brokers are called 'nats'"):
        app.relay("b", to=Nats("nats://elsewhere:4222").subject("b"))
    with pytest.raises(ConfigurationError, match="mode is 'structured' or 'binary'"):
        app.relay("c", to=Nats(name="other").subject("c"), mode="text")  # type: ignore[arg-type]
