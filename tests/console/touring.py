"""The demo's console and its tour, served, with one dead letter that nobody can deliver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from redrive import Redrive
from redrive.operate.auth import Role, Tokens
from redrive.operate.demo import way_in
from redrive.operate.demo.shop import NOWHERE, TABLES, World, shop
from redrive.operate.demo.tour import YOU, Tour
from tests.console.site import Served, served

PACE = 0.2


@contextmanager
def touring(url: str) -> Iterator[tuple[Served, Tour]]:
    """Lead through the tour until the block ends."""
    made: list[Tour] = []

    async def prepare(app: Redrive, web: FastAPI) -> None:
        async with app.store.transaction() as tx:
            for table in TABLES:
                await tx.execute(table)
        await app.publish("order.paid", {"id": 1, "customer": "Ada", "city": NOWHERE, "total": "9.90"})
        await app.worker().drain()
        _token, secret = await Tokens(app).create(YOU, Role.OPERATOR, by="test")
        made.append(Tour(url, app, secret, PACE))
        way_in.lead(web, made[0])

    with served(lambda: shop(url, World(), release=3, pace=PACE), prepare) as site:
        going_on = made[0].going_on()
        site.call(going_on.__aenter__)
        try:
            yield site, made[0]
        finally:
            site.call(going_on.__aexit__, None, None, None)
