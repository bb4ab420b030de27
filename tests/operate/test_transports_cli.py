"""`redrive transports` and `redrive relay`."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from redrive import Redrive
from tests.operate.helpers import in_app, redrive
from tests.servers import NatsServer

APP = """
import os
from redrive import Redrive
from redrive.transport.nats import Nats

app = Redrive(os.environ["SHOP_URL"], migrate=True)
nats = Nats(os.environ["SHOP_NATS"])
app.relay("order.paid", to=nats.subject(os.environ["SHOP_SUBJECT"], declare=os.environ["SHOP_SUBJECT"]))

@app.handler("order.seen")
async def see(order): ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str, nats_server: NatsServer) -> str:
    """A module with a route; answers its subject."""
    name, subject = f"shop_{secrets.token_hex(4)}", f"S{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SHOP_URL", store_url)
    monkeypatch.setenv("SHOP_NATS", nats_server.url)
    monkeypatch.setenv("SHOP_SUBJECT", subject)
    in_app(store_url, _prepared)
    return f"{name}:{subject}"


async def _prepared(app: Redrive) -> None:
    await app.open()


def _publish(url: str, subject: str) -> None:
    async def job(app: Redrive) -> None:
        app.route("order.paid", f"relay:nats:{subject}", queue="relay")
        await app.publish("order.paid", 1)
        await app.publish("order.seen", 1)

    in_app(url, job)


def test_a_route_is_listed_with_what_waits_sent_by_relay_and_sent_once_more(shop: str, store_url: str) -> None:
    module, subject = shop.split(":")
    _publish(store_url, subject)

    (waiting,) = redrive("transports", "ls", "-u", store_url, "-o", "json").json
    table = redrive("transports", "ls", "-u", store_url)
    relayed = redrive("relay", f"{module}:app", "--drain")
    left = redrive("events", "ls", "-u", store_url, "-o", "json").json

    assert (waiting["name"], waiting["state"], waiting["lag"]) == (f"relay:nats:{subject}", "not running", 1)
    assert waiting["oldest_at"]
    assert f"relay:nats:{subject}" in table.out
    assert relayed.code == 0
    assert {each["type"]: each["status"] for each in left} == {"order.paid": "delivered", "order.seen": "pending"}

    again = redrive(
        "transports", "republish", f"relay:nats:{subject}", "--since", "1h", "--reason", "a disk was lost", "-u",
        store_url,
    )  # fmt: skip
    assert "✓ 1 event of relay:nats:" in again.out
    assert redrive("transports", "ls", "-u", store_url, "-o", "json").json[0]["lag"] == 1
    assert redrive("worker", f"{module}:app", "--drain").code == 0
    assert "None is at work" in redrive("transports", "ls", "-u", store_url).out


def test_what_makes_no_sense_is_refused(store_url: str, shop: str) -> None:
    route = ("transports", "republish", "relay:nats:x", "-u", store_url)

    assert redrive(*route, "--since", "yesterday", "--reason", "r").code == 2
    assert redrive(*route, "--since", "1h", "--until", "2h", "--reason", "r").code == 4
    assert redrive(*route, "--since", "1h").code == 2
