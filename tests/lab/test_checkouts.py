"""Checkouts: the same code in another folder, in an archive, installed, or started in another way, fails the same."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from redrive import Redrive, redrive

ORDERS = '''
"""Handlers, and a program that lets each of them fail."""

import asyncio
import json
import os

import carrier
from redrive import Redrive, RetryPolicy
from shop import labels

app = Redrive(os.environ["SHOP_URL"], retry=RetryPolicy(max_attempts=1), migrate=True)


class NoStock(Exception):
    """A class of the module that may have been started."""


class Stock:
    def take(self) -> None:
        raise NoStock("none left")


@app.handler("order.packed")
async def pack(payload) -> None:
    [Stock().take() for _ in range(2)]


@app.handler("order.labelled")
def label(payload) -> None:
    labels.draw(payload)


@app.handler("order.sent")
async def send(payload) -> None:
    carrier.book(payload)


@app.handler("order.read")
async def read(payload) -> None:
    json.loads("{")


async def work() -> None:
    async with app:
        if not await app.events():
            await app.publish_many([(type_, {}) for type_ in app.handlers])
        await app.worker().drain()
        print(json.dumps({each.type: each.fingerprint for each in await app.events()}))


if __name__ == "__main__":
    asyncio.run(work())
'''
LABELS = "def draw(payload):\n    return payload['address']\n"
CARRIER = "def post():\n    raise ValueError('no parcel')\n\n\ndef book(payload):\n    post()\n"
IMPORTED = ("-c", "import asyncio, shop.orders; asyncio.run(shop.orders.work())")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the shop is, where its library is, and how it is started."""

    home: str
    words: tuple[str, ...] = IMPORTED
    library: str = "venv/lib/python3/site-packages"
    is_zipped: bool = False


DEPLOYMENTS = {
    "in one folder": Deployment("releases/1f3a"),
    "in another folder": Deployment("releases/77c0/src"),
    "among the libraries": Deployment("venv/lib/python3/site-packages"),
    "in an archive": Deployment("shop.zip", is_zipped=True),
    "as a module": Deployment("releases/1f3a", ("-m", "shop.orders")),
    "as a script": Deployment("releases/1f3a", ("releases/1f3a/shop/orders.py",)),
    "with a library elsewhere": Deployment("releases/1f3a", library="opt/site-packages"),
}


def run(tmp_path: Path, deployment: Deployment, url: str) -> dict[str, str]:
    """Put the shop there, start it, and read the fingerprints of what failed."""
    folder = tmp_path / ("unzipped" if deployment.is_zipped else deployment.home)
    library = tmp_path / deployment.library
    for path, text in (
        (folder / "shop/__init__.py", ""), (folder / "shop/orders.py", ORDERS), (folder / "shop/labels.py", LABELS),
        (library / "carrier.py", CARRIER),
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if deployment.is_zipped:
        shutil.make_archive(str(tmp_path / "shop"), "zip", folder)
    paths = (tmp_path / deployment.home, library, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment = {**os.environ, "SHOP_URL": url, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, *deployment.words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.req("W2")
@pytest.mark.parametrize("name", list(DEPLOYMENTS)[1:])
def test_the_same_fault_has_one_fingerprint_wherever_the_code_is(tmp_path: Path, name: str) -> None:
    there = run(tmp_path, DEPLOYMENTS[name], f"sqlite:///{tmp_path}/there.db")
    here = run(tmp_path, DEPLOYMENTS["in one folder"], f"sqlite:///{tmp_path}/here.db")

    assert there == here
    assert len(set(here.values())) == len(here) == 4


@pytest.mark.req("B1")
@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_deployment_to_another_folder_leaves_groups_and_gates_as_they_are(
    tmp_path: Path, store_url: str, version: str
) -> None:
    before = await asyncio.to_thread(run, tmp_path, DEPLOYMENTS["in one folder"], store_url)
    async with Redrive(store_url) as app:
        await renamed(app, version)
        plan = await app.plan("status:failed", by="ada", unsafe=True)
        running = await app.start(plan.redrive.token, by="ada", reason="deployed")
        await redrive.tick(app.store, chain="test")

        after = await asyncio.to_thread(run, tmp_path, DEPLOYMENTS["in another folder"], store_url)

        await redrive.tick(app.store, chain="test")
        told = await app.redriving(running.id)
        assert after == before
        assert (told.failed_same, told.failed_other) == (4, 0)


async def renamed(app: Redrive, version: str) -> None:
    """Give the failures the fingerprints of another version."""
    name = "redrive." if app.store.name == "postgres" else "redrive_"
    async with app.store.transaction() as tx:
        for table in ("outbox", "failure_group"):
            await tx.execute(f"update {name}{table} set fingerprint = '{version}:' || substr(fingerprint, 3)")
