"""A database with one of everything, for the experiments that come from outside: HTTP, the command line, security.

Whatever a name of ours says is secret holds a canary, and errors quote it: ``CANARY`` must be seen nowhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from redrive import Context, Redrive, RetryPolicy, TerminalHandlerError
from redrive.operate import actions
from redrive.operate.auth import Role, Tokens

CANARY = "canary-7f3c9e21"
_HOUR = RetryPolicy(base_delay="1h", max_delay="1h", jitter="none")


@dataclass(frozen=True, slots=True)
class Known:
    """What is in it, by which somebody who knows it would ask."""

    url: str
    events: dict[str, str]
    groups: tuple[str, ...]
    redrives: tuple[str, ...]
    plan: str  # the token of one that was not started
    batch: str
    run: str
    finding: str
    tokens: dict[Role, str] = field(repr=False)
    schedule: str = "nightly"
    resource: str = "seat/12A"
    key: str = "customer-7"
    target: str = "order.bad"
    dependency: str = "carrier-api"
    correlation: str = "basket-7"
    reconciler: str = "carts"


def with_handlers(app: Redrive) -> Redrive:
    """Register a handler for each fate."""

    @app.handler("order.paid", effects="inside")
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        async def label() -> dict[str, str]:
            return {"number": "L1", "api_key": CANARY}

        await ctx.step("label", label)

    @app.handler("order.bad", effects="inside")
    async def refuse(order: dict[str, Any], ctx: Context) -> None:
        if order.get("mended"):
            return
        raise TerminalHandlerError(f"no such product: card {order.get('card')}, password={CANARY}")

    @app.handler("order.lost", needs=["carrier-api"])
    async def lose(order: dict[str, Any]) -> None:
        raise LookupError(f"the carrier does not know {order.get('card')}")

    @app.handler("order.flaky", retry=_HOUR)
    async def stumble(order: dict[str, Any]) -> None:
        raise ConnectionError(f"carrier: 503 for token={CANARY}")

    async def converge(key: str, desired: Any, actual: Any) -> None: ...

    app.reconcilers.add("carts", desired=lambda: {"a": {"card": CANARY}}, actual=dict, converge=converge, every="1h")
    return app


async def filled(app: Redrive) -> Known:
    """Put one of everything into an empty database. The app is open, and has its handlers."""
    events = await _events(app)
    await app.worker().drain()
    await app.discard(events["discarded"], by="ada", reason="a test order")
    run = await app.reconcilers.run_here("carts", by="ada")
    (finding,) = await app.reconcilers.findings("carts")
    batch = await app.batches.open("import", deadline="1h")
    await batch.add("order.bad", {"card": CANARY}, group="file-2")
    await batch.add("order.paid", {"id": 9}, group="file-1")
    await app.worker().drain()
    await app.schedules.set(
        "nightly",
        "order.paid",
        {"id": 7, "card": CANARY},
        every="1h",
        by="ada",
        reason="ledger",
        headers={"Authorization": f"Bearer {CANARY}"},
    )
    await app.reservations.take("seat/12A", owner="ada", ttl="1h", facts={"card": CANARY})
    await app.open_dependency("carrier-api", by="ada", reason=f"it says password={CANARY}")
    await app.publish("order.lost", {"id": 8})
    await app.hold("order.slow", by="ada", reason="not today")
    await app.set_policy("order.flaky", by="ada", reason="patience", max_attempts=7)
    redrives, plan = await _redrives(app, events)
    groups = await app.groups()
    await actions.describe(app, groups[0], by="ada", owner="ada", note="looked at")
    async with app.store.transaction() as tx:
        await tx.run(
            "transport_put", worker="w1", name="relay:orders", kind="relay", broker="nats", destination="orders",
            state="refused", since=app.clock.now(), error=f"password={CANARY} is wrong", ok_at=None, moved=3, lag=None,
        )  # fmt: skip
    tokens = Tokens(app)
    secrets = {role: (await tokens.create(f"{role}-1", role, by="ada"))[1] for role in Role}
    return Known(
        app.url, {name: str(each) for name, each in events.items()}, tuple(each.fingerprint for each in groups),
        redrives, plan, str(batch.id), str(run.id), str(finding.id), secrets,
    )  # fmt: skip


async def _events(app: Redrive) -> dict[str, Any]:
    def order(number: int, **more: Any) -> dict[str, Any]:
        return {"id": number, "card": CANARY, "note": "plain", "lines": [{"sku": "lamp", "iban": CANARY}], **more}

    headers = {"Authorization": f"Bearer {CANARY}", "lane": "7"}
    made = {
        "delivered": await app.publish("order.paid", order(1), subject="order 1", correlation_id="basket-7"),
        "dead": await app.publish("order.bad", order(2), retry_key="order-2", headers=headers, subject="order 2",
                                  correlation_id="basket-7"),
        "lost": await app.publish("order.lost", order(3), correlation_id="basket-7"),
        "retrying": await app.publish("order.flaky", order(4)),
        "waiting": await app.publish("order.paid", order(5), delay="1h"),
        "discarded": await app.publish("order.bad", order(6)),
        "edited": await app.publish("order.bad", order(10)),
        "head": await app.publish("order.bad", order(11), ordering_key="customer-7"),
        "behind": await app.publish("order.bad", order(12), ordering_key="customer-7"),
    }  # fmt: skip
    return {name: each.id for name, each in made.items()}


async def _redrives(app: Redrive, events: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Plan one, start and pause another, and have an edit wait for somebody else."""
    started = await app.plan("type:order.lost", by="ada", unsafe=True)
    await app.start(started.redrive.token, by="ada", reason="the carrier is back")
    await app.pause(started.redrive.id, by="ada", reason="lunch")
    planned = await app.plan("type:order.bad", by="ada", unsafe=True)
    await actions.set_approval(app, 100, by="ada", reason="two pairs of eyes")
    edited = await app.event(events["edited"])
    assert edited is not None
    payload = {**edited.payload, "mended": True, "card": CANARY + "-new"}
    await actions.replay(app, [edited], by="ada", reason="mended", payloads={edited.id: payload})
    standing = await app.redrivings(limit=10)
    return tuple(str(each.id) for each in standing), planned.redrive.token


def fill(url: str) -> Known:
    """Do it from outside of an event loop."""

    async def job() -> Known:
        async with with_handlers(Redrive(url, migrate=True, retry=RetryPolicy(max_attempts=1))) as app:
            return await filled(app)

    return asyncio.run(job())
