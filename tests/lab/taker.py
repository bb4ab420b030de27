"""The taker: a worker of the lab whose events come from a broker, each with one effect in its transaction."""

from __future__ import annotations

import random
from typing import Any

from redrive import Context, PrerequisiteMissing, Redrive, Work
from redrive.transport.kafka import Kafka
from redrive.transport.nats import Nats
from tests.lab.checker import EFFECTS
from tests.lab.hand import POLICY, serve
from tests.lab.ledger import Ledger

LINES = "create table if not exists lab_line (key text primary key, n bigint not null)"
"""How far each ordering key has come."""


class Shed:
    """The handlers: what comes alone, and what comes in order."""

    def __init__(self, app: Redrive, ledger: Ledger) -> None:
        self._ledger = ledger
        self._mark = "?" if app.dialect == "sqlite" else "$"
        app.when_open(self.tables)
        app.handler("lab.came")(self.came)
        app.handler("lab.line")(self.line)

    async def tables(self, tx: Work) -> None:
        await tx.execute(EFFECTS)
        await tx.execute(LINES)

    async def came(self, _payload: dict[str, Any], ctx: Context) -> None:
        _stumble(ctx)
        async with ctx.transaction() as tx:
            await self._effect(tx, ctx)

    async def line(self, payload: dict[str, Any], ctx: Context) -> None:
        _stumble(ctx)
        async with ctx.transaction() as tx:
            one, two = f"{self._mark}1", f"{self._mark}2"
            on = f"insert into lab_line values ({one}, {two}) on conflict (key) do update set n = excluded.n"
            if not await tx.execute(f"{on} where lab_line.n < excluded.n", ctx.ordering_key, payload["n"]):
                self._ledger.note("order", "fail", key=ctx.ordering_key, n=payload["n"])
            await self._effect(tx, ctx)

    async def _effect(self, tx: Work, ctx: Context) -> None:
        values = ", ".join(f"{self._mark}{number}" for number in (1, 2, 3))
        text = f"insert into lab_effect (key, event_id, fence) values ({values})"
        await tx.execute(text, ctx.idempotency_key, str(ctx.id), ctx.fence)


def _stumble(ctx: Context) -> None:
    if random.Random(f"{ctx.id}/{ctx.fence}").random() < 0.02:
        raise PrerequisiteMissing("not yet")


async def take(url: str, ledger: Ledger, options: dict[str, Any]) -> None:
    """Take in and work until SIGTERM; then write down what became of the messages."""
    app = Redrive(url, source="lab", retry=POLICY, migrate=True)
    Shed(app, ledger)
    where, name = options["where"], options["name"]
    if options["broker"] == "nats":
        app.intake(Nats(where).stream(name, durable="lab"), batch=options["batch"])
    else:
        kafka = Kafka(where, settings={"session.timeout.ms": 6_000})
        app.intake(kafka.topic(name, group=f"lab-{name}", start=options["start"]), batch=options["batch"])
    (intake,) = app.traffic.intakes.values()
    await serve(app, {"lease": "5s", "concurrency": 16})
    ledger.note("taken", "ok", **intake.taken)
