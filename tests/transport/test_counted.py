"""What goes out and comes in is counted, for Prometheus."""

from __future__ import annotations

import pytest

from redrive import Redrive
from redrive.transport.nats import Nats
from tests.signals.test_metrics import of, told
from tests.transport.conftest import Stream
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.req("W10")
async def test_messages_are_counted_by_what_became_of_them(app: Redrive, stream: Stream) -> None:
    came: list[int] = []
    nats = Nats(stream.url, name="near")
    subject = f"{stream.subject}.paid"
    app.relay("order.paid", to=nats.subject(subject))
    app.intake(nats.stream(stream.name, durable="b"), types={"order.paid": "order.came"})

    @app.handler("order.came")
    async def take(order: int) -> None:
        came.append(order)

    await app.publish_many([("order.paid", n) for n in range(3)])
    async with working(app):
        await until(lambda: len(came) == 3)
        (first, *_) = await stream.messages()
        await stream.put(first.data, {"content-type": "application/cloudevents+json"})
        await stream.put(b"no event at all")
        (intake,) = app.traffic.intakes.values()
        await until(lambda: intake.taken["refused"] == 1)
        found = await told(app)
        await until(lambda: states(app, "ok"))

    assert found[of("redrive_relay_sent_total", route=f"near:{subject}")] == 3
    assert found[of("redrive_relay_unsent", route=f"near:{subject}")] == 0
    outcomes = {"stored": 3, "duplicate": 1, "reused": 0, "echo": 0, "refused": 1}
    for outcome, number in outcomes.items():
        assert found[of("redrive_intake_messages_total", intake=intake.name, outcome=outcome)] == number, outcome


async def states(app: Redrive, state: str) -> bool:
    """Say whether a worker has written down that route and intake stand so, and that nothing waits."""
    found = await told(app)
    kinds = {
        dict(labels)["kind"]
        for (name, labels), n in found.items()
        if name == "redrive_transport_workers" and dict(labels)["state"] == state and n == 1
    }
    return kinds == {"relay", "intake"} and 0 in [n for (name, _), n in found.items() if name == "redrive_intake_lag"]
