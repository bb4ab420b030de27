"""Dead letters at a broker."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from redrive import ConfigurationError, Redrive, Rejected
from redrive.transport.nats import Nats
from tests.transport.conftest import Stream


@pytest.mark.req("W5")
async def test_a_dead_letter_goes_to_a_broker_with_where_it_came_from_and_why_it_failed(
    app: Redrive, stream: Stream
) -> None:
    nats = Nats(stream.url)
    app.intake(nats.stream(stream.name, durable="shop", subject=f"{stream.subject}.in"))
    app.relay(to=nats.subject(f"{stream.subject}.dead"), dead_letters=True)

    @app.handler("order.came")
    async def refuse(order: dict[str, int]) -> None:
        raise Rejected("no such café")

    document = {"specversion": "1.0", "id": "e-1", "type": "order.came", "source": "/shop", "data": {"n": 1}}
    await stream.put(json.dumps(document).encode(), {"content-type": "application/cloudevents+json"})
    await stream.put(b"\xff what", {"content-type": "text/odd", "Nats-Msg-Id": "odd-1"})
    await app.worker().drain()

    letters = [message for message in await stream.messages() if message.subject.endswith(".dead")]
    by_offset = {message.headers["__connect.errors.offset"]: message for message in letters}
    refused, raw = by_offset["1"], by_offset["2"]
    assert len(letters) == 2
    assert json.loads(refused.data)["data"] == {"n": 1}
    assert refused.headers["__connect.errors.topic"] == f"{stream.subject}.in"
    assert refused.headers["__connect.errors.partition"] == "0"
    assert refused.headers["__connect.errors.exception.class.name"] == "redrive.errors.Rejected"
    assert "no such café" in unquote(refused.headers["__connect.errors.exception.message"])
    assert refused.headers["redrive-attempts"] == "1"
    assert raw.data == b"\xff what"
    assert raw.headers["content-type"] == "text/odd"
    assert raw.headers["__connect.errors.exception.class.name"] == "redrive.errors.Unparsable"


def test_a_route_for_dead_letters_has_no_types(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)

    with pytest.raises(ConfigurationError, match="leave the types out"):
        app.relay("order.paid", to=Nats().subject("dead"), dead_letters=True)
    with pytest.raises(ConfigurationError, match="say which types"):
        app.relay(to=Nats().subject("dead"))
