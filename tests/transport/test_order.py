"""The order of a NATS stream is kept, and nothing of it lost, whoever goes away in the middle of taking from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy, RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from redrive.errors import DependencyUnavailable
from redrive.transport.base import Received, Subscription
from redrive.transport.nats import Nats, NatsStream, _Pull
from tests.transport.conftest import Stream
from tests.waiting import until

pytestmark = [pytest.mark.req("W12"), pytest.mark.promise("order")]


@asynccontextmanager
async def connected(stream: Stream) -> AsyncIterator[Nats]:
    made = Nats(stream.url)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def broker(stream: Stream) -> AsyncIterator[Nats]:
    async with connected(stream) as made:
        yield made


async def put(stream: Stream, numbers: range) -> None:
    for number in numbers:
        await stream.put(str(number).encode())


def numbers_of(batch: list[Received]) -> list[int]:
    return [int(each.message.body or b"") for each in batch]


async def taken(inlet: NatsStream, last: int) -> list[int]:
    """Take as an intake does: again from the first that was not acknowledged, whenever the subscription breaks."""
    found = [-1]
    async with asyncio.timeout(30):
        while found[-1] != last:
            subscription = await inlet.subscribe()
            with suppress(DependencyUnavailable):
                while found[-1] != last:
                    found += await _taken(subscription)
            await subscription.close()
    return found[1:]


async def _taken(subscription: Subscription) -> list[int]:
    batch = await subscription.fetch(10, 5.0)
    await subscription.acknowledge(batch)
    return numbers_of(batch)


async def test_what_the_driver_still_holds_of_a_lost_connection_does_not_overtake_what_was_lost_with_it(
    stream: Stream, broker: Nats
) -> None:
    pull = await broker.stream(stream.name, durable="back").subscribe()
    assert isinstance(pull, _Pull)
    assert await pull.fetch(10, 0.01) == []  # asked for ten
    await put(stream, range(3))
    await until(lambda: len(pull._got) == 3)

    putting = asyncio.create_task(put(stream, range(3, 6)))
    while not pull._subscription.pending_msgs:  # noqa: ASYNC110 - the driver has read it, and not handed it on yet
        await asyncio.sleep(0)
    await pull._line.client._process_op_err(ConnectionResetError("could not write"))  # as its flusher does

    with pytest.raises(DependencyUnavailable):
        await pull.fetch(10, 5.0)
    await putting
    assert await taken(broker.stream(stream.name, durable="back"), last=5) == [*range(6)]


async def test_a_message_that_went_to_a_connection_nobody_listens_to_comes_before_the_later_ones(
    stream: Stream, broker: Nats
) -> None:
    inlet = broker.stream(stream.name, durable="back")
    async with connected(stream) as other:  # half open: the server knows nothing of its end
        gone = await other.stream(stream.name, durable="back").subscribe()
        live = await inlet.subscribe()
        assert await live.fetch(10, 0.01) == []
        assert await gone.fetch(10, 0.01) == []  # the server has its request, which will be answered
        await put(stream, range(8))
        before: list[int] = []
        with pytest.raises(DependencyUnavailable, match="somebody else"):
            while True:
                before += await _taken(live)
        await live.close()
        after = await taken(inlet, last=7)
        assert before == [*range(len(before))]
        assert after == [*range(after[0], 8)]
        assert after[0] <= len(before)


async def test_whoever_takes_over_leaves_no_request_of_the_one_before(stream: Stream, broker: Nats) -> None:
    async with connected(stream) as other:
        gone = await other.stream(stream.name, durable="back").subscribe()
        assert await gone.fetch(10, 0.01) == []

        live = await broker.stream(stream.name, durable="back").subscribe()
        await put(stream, range(4))

        found: list[int] = []
        while len(found) < 4:
            found += await _taken(live)
        assert found == [*range(4)]
        with pytest.raises(DependencyUnavailable, match="Deleted"):
            await gone.fetch(10, 5.0)


@pytest.mark.promise("durable")
@pytest.mark.parametrize("retention", RetentionPolicy)
async def test_a_stream_of_any_retention_loses_nothing_when_its_consumer_is_set_back(
    stream: Stream, broker: Nats, retention: RetentionPolicy
) -> None:
    manager = stream.client.jsm()
    await manager.delete_stream(stream.name)
    await manager.add_stream(StreamConfig(name=stream.name, subjects=[f"{stream.name}.>"], retention=retention))
    async with connected(stream) as other:
        gone = await other.stream(stream.name, durable="back").subscribe()
        await put(stream, range(10))
        first = await gone.fetch(4, 5.0)
        await gone.acknowledge(first[:1])

    assert await taken(broker.stream(stream.name, durable="back"), last=9) == [*range(1, 10)]
    assert [each.name for each in await manager.consumers_info(stream.name)] == ["back"]


@pytest.mark.promise("durable")
@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.INTEREST])
async def test_a_consumer_whose_setting_back_was_broken_off_goes_on_at_its_place(
    stream: Stream, broker: Nats, retention: RetentionPolicy
) -> None:
    manager = stream.client.jsm()
    await manager.delete_stream(stream.name)
    await manager.add_stream(StreamConfig(name=stream.name, subjects=[f"{stream.name}.>"], retention=retention))
    config = ConsumerConfig(
        durable_name="back-stand-in", deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=3
    )
    await manager.add_consumer(stream.name, config)  # the consumer itself was deleted, and whoever did so died
    await put(stream, range(6))

    assert await taken(broker.stream(stream.name, durable="back"), last=5) == [*range(2, 6)]
    with pytest.raises(NotFoundError):
        await manager.consumer_info(stream.name, "back-stand-in")


async def test_a_consumer_that_is_set_back_stays_as_it_was_configured(stream: Stream, broker: Nats) -> None:
    manager = stream.client.jsm()
    config = ConsumerConfig(durable_name="back", filter_subject=f"{stream.name}.in", ack_wait=7.0, description="ours")
    await manager.add_consumer(stream.name, config)
    await put(stream, range(2))
    await stream.put(b"99", subject=f"{stream.name}.other")
    await put(stream, range(2, 4))
    async with connected(stream) as other:
        gone = await other.stream(stream.name, durable="back").subscribe()
        assert numbers_of(await gone.fetch(1, 5.0)) == [0]

    assert await taken(broker.stream(stream.name, durable="back"), last=3) == [*range(4)]
    found = (await manager.consumer_info(stream.name, "back")).config
    assert (found.filter_subject, found.ack_wait, found.description) == (f"{stream.name}.in", 7.0, "ours")
