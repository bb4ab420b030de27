from __future__ import annotations

import json

from redrive import Redrive
from redrive.transport.nats import Nats
from tests.transport.conftest import Stream
from tests.worker.conftest import until, working


async def test_an_event_is_delivered_when_the_broker_has_acknowledged_it(app: Redrive, stream: Stream) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", to=nats.subject(f"{stream.subject}.paid"))

    event = await app.publish("order.paid", {"order": 7}, ordering_key="7")
    tally = await app.worker().drain()

    assert tally.delivered == 1
    (message,) = await stream.messages()
    body = json.loads(message.data)
    assert body["id"] == str(event.id)
    assert body["data"] == {"order": 7}
    assert body["source"] == "shop"
    assert body["partitionkey"] == "7"


async def test_what_goes_out_comes_in_once(app: Redrive, stream: Stream) -> None:
    nats = Nats(stream.url)
    app.relay("order.paid", to=nats.subject(f"{stream.subject}.paid"))
    app.intake(nats.stream(stream.name, durable="back"), types={"order.paid": "order.came"})
    came = []

    @app.handler("order.came")
    async def take(order: dict[str, int]) -> None:
        came.append(order["n"])

    await app.publish_many([("order.paid", {"n": n}, {"ordering_key": "k"}) for n in range(50)])
    async with working(app):
        await until(lambda: len(came) >= 50)

    assert came == list(range(50))
