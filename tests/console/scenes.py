"""Scenes: a shop after a quiet day, a busy one, and in an outage. The pictures of the documentation show them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from redrive import Context, PrerequisiteMissing, Redrive, Rejected, RetryPolicy
from redrive.clock import VirtualClock
from redrive.redrive import Release
from redrive.store.base import Session

CITIES = ["Lisbon", "Kyoto", "Oslo", "Lima", "Turin", "Ghent", "Quito", "Porto"]
RATES = {"EUR": 1.0, "USD": 1.08, "GBP": 0.85}
F = TypeVar("F", bound=Callable[..., Any])


def of_the_shop(function: F) -> F:
    """Have tracebacks name a file of the shop: pictures shall not depend on where they were drawn."""
    function.__code__ = function.__code__.replace(co_filename="shop/handlers.py")
    return function


class World:
    """What the shop cannot change."""

    def __init__(self) -> None:
        self.carrier_is_down = False
        self.knows_yen = False  # all of it; half of the fix leaves some customers out
        self.ledger_is_behind = False
        self.mended: set[str] = set()


def shop(url: str, world: World, clock: VirtualClock | None = None) -> Redrive:
    """Make the app of the shop."""
    app = Redrive(url, source="shop", retry=RetryPolicy(max_attempts=4, base_delay="20s", max_delay="2h"), clock=clock)
    app.dependency("carrier-api", threshold=3, probe_after="5m", probe_cap="15m")

    _by_the_way(app, world)

    @app.handler("order.paid", needs=["carrier-api"], timeout="30s")
    @of_the_shop
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        if order["city"] == "Atlantis":
            raise Rejected(f"the carrier does not deliver to {order['city']}")
        if world.carrier_is_down:
            raise ConnectionError("carrier-api: 503 Service Unavailable")
        await ctx.publish("mail.requested", {"to": order["customer"], "about": f"order {order['order']}"})

    @app.handler("payment.captured", retry=RetryPolicy(max_attempts=1))
    @of_the_shop
    async def book(payment: dict[str, Any]) -> None:
        _converted(payment, knows_yen=world.knows_yen)

    @app.handler("invoice.requested", retry=RetryPolicy(max_attempts=2, base_delay="30s"))
    @of_the_shop
    async def invoice(wanted: dict[str, Any]) -> None:
        if wanted["amount"].count(",") > 0:
            raise ValueError(f"{wanted['amount']} is not an amount")

    @app.handler("ledger.entry", retry=RetryPolicy(max_attempts=2, base_delay="1m"))
    @of_the_shop
    async def enter(entry: dict[str, Any]) -> None:
        if world.ledger_is_behind:
            raise PrerequisiteMissing(f"account {entry['account']} has not been opened yet")

    @app.handler("mail.requested", concurrency=8, rate="200/s")
    @of_the_shop
    async def mail(wanted: dict[str, Any]) -> None: ...

    return app


def _by_the_way(app: Redrive, world: World) -> None:
    """Add what is not about orders: rows of imports, and carts that drift, one of them again and again."""

    @app.handler("row.imported", retry=RetryPolicy(max_attempts=2, base_delay="30s"))
    @of_the_shop
    async def take_in(row: dict[str, Any], ctx: Context) -> None:
        if row["amount"].count(",") > 0 or (row["row"] % 9 == 0 and ctx.attempt == 1):
            raise ValueError(f"{row['amount']} is not an amount")

    def wanted() -> dict[str, Any]:
        return {f"cart-{each}": {"items": each % 5 + 1, "total": each * 7 % 200} for each in range(400)}

    def kept() -> dict[str, Any]:
        drifted = {"cart-12": {"items": 1, "total": 84}, "cart-77": None, "cart-177": None, "cart-3k": {"items": 2}}
        found = wanted() | {key: value for key, value in drifted.items() if key not in world.mended}
        return {key: value for key, value in found.items() if value is not None}

    async def converge(key: str, desired: Any, actual: Any) -> None:
        if key != "cart-12":
            world.mended.add(key)

    app.reconcilers.add("carts", desired=wanted, actual=kept, converge=converge, every="5h")


@of_the_shop
def _converted(payment: dict[str, Any], *, knows_yen: bool) -> float:
    amount: float = payment["amount"]
    if payment["currency"] == "JPY" and knows_yen and payment["customer"]["id"] % 13:
        return amount / 160
    return amount / RATES[payment["currency"]]


async def fill(url: str, scene: str) -> None:
    """Fill an empty database with a day of the shop."""
    clock = VirtualClock(start=datetime.now(UTC) - timedelta(hours=25))
    world, dice = World(), random.Random(7)
    async with shop(url, world, clock) as app:
        if scene == "empty":
            return
        await _day(app, clock, world, dice, is_outage=scene == "outage")
        await _beside(app, is_outage=scene == "outage")
        for number in range(2):
            session = Session(
                app.clock.new_id(), f"shop-{number + 1}", f"node-{number + 1}", 4_000 + number, ("default",),
                tuple(app.handlers), 100, 0,
            )  # fmt: skip
            await app.store.begin_session(session, 86_400.0)


async def _day(app: Redrive, clock: VirtualClock, world: World, dice: random.Random, *, is_outage: bool) -> None:
    number = 1_000
    for step in range(24 * 6):
        hours_left = (24 * 6 - step) / 6
        world.ledger_is_behind = 9 < hours_left < 10
        for _ in range(_pace(step, dice)):
            number += 1
            await _order(app, number, dice, has_yen=hours_left < 4)
        await app.worker().drain()
        clock.advance("10m")
        if 7.9 < hours_left < 8.1:
            await _redrive_ledger(app)
    await _imports(app, clock)
    if is_outage:
        await _outage(app, clock, world, dice, number)
    else:
        await _evening(app, clock, world, dice, number)
    clock.set(datetime.now(UTC))
    await app.worker().drain()


def _pace(step: int, dice: random.Random) -> int:
    return 3 + dice.randrange(5) + (6 if 60 < step % 144 < 120 else 0)


async def _order(app: Redrive, number: int, dice: random.Random, *, has_yen: bool) -> None:
    currency = "JPY" if has_yen and dice.random() < 0.3 else dice.choice(["EUR", "EUR", "USD", "GBP"])
    city = "Atlantis" if dice.random() < 0.012 else dice.choice(CITIES)
    basket = f"basket-{number}"
    paid = await app.publish(
        "order.paid", {"order": number, "customer": f"c{number % 97}@example.org", "city": city, "total": number % 400},
        subject=f"order/{number}", ordering_key=f"customer-{number % 97}", correlation_id=basket,
    )  # fmt: skip
    await app.publish(
        "payment.captured",
        {"order": number, "amount": 19.9 + number % 80, "currency": currency, "card": f"4111 1111 1111 {number}",
         "customer": {"id": number % 97, "country": "JP" if currency == "JPY" else "DE"}},
        subject=f"order/{number}", causation_id=str(paid.id), headers={"authorization": "Bearer s3cr3t-t0ken-value"},
        correlation_id=basket,
    )  # fmt: skip
    if dice.random() < 0.5:
        amount = f"1.{number % 900:03d},00" if dice.random() < 0.06 else f"{number % 900}.50"
        await app.publish(
            "invoice.requested", {"order": number, "amount": amount}, causation_id=str(paid.id), correlation_id=basket
        )
    await app.publish(
        "ledger.entry",
        {"account": f"A-{number % 31}", "order": number},
        causation_id=str(paid.id),
        correlation_id=basket,
    )


async def _redrive_ledger(app: Redrive) -> None:
    plan = await app.plan("type:ledger.entry", by="grace")
    if not plan.redrive.ready:
        return
    release = Release(ramp=(1, 5, 25), halt_at=0.1)
    await app.start(plan.redrive.token, by="grace", reason="the accounts are open now", release=release)
    await app.worker().drain()


async def _evening(app: Redrive, clock: VirtualClock, world: World, dice: random.Random, number: int) -> None:
    """Half a fix halts on its ramp; the last half hour is lively, and some wait for their next try."""
    clock.set(datetime.now(UTC) - timedelta(minutes=50))
    world.knows_yen = True
    plan = await app.plan("type:payment.captured class:broken", by="ada")
    await app.start(
        plan.redrive.token, by="ada", reason="knows yen now (we hope)", release=Release(ramp=(1, 5, 25, 100))
    )
    await app.worker().drain()
    world.knows_yen = False
    for each in await app.groups():
        if each.error_class == "rejected":
            await _describe(app, each.fingerprint)
    await _lively(app, clock, dice, number, fails=0.06)
    await app.set_policy("payment.*", by="grace", reason="the bank asked for less", rate="50/s", max_attempts=3)


async def _describe(app: Redrive, fingerprint: str) -> None:
    from redrive.operate import actions

    found = await app.group(fingerprint)
    await actions.describe(app, found, by="grace", owner="logistics", note="They will not ship there; refund instead.")


async def _outage(app: Redrive, clock: VirtualClock, world: World, dice: random.Random, number: int) -> None:
    await _lively(app, clock, dice, number, fails=0.03, since=30, until=14)
    world.carrier_is_down = True
    await _lively(app, clock, dice, number + 2_000, fails=0.03, since=14)
    await app.hold("invoice.requested", by="grace", reason="the tax office changes its form tonight")


async def _lively(
    app: Redrive,
    clock: VirtualClock,
    dice: random.Random,
    number: int,
    *,
    fails: float,
    since: int = 30,
    until: int = 0,
) -> None:
    for minute in range(since, until, -1):
        clock.set(datetime.now(UTC) - timedelta(minutes=minute))
        for _ in range(6 + dice.randrange(7) + (30 - minute) // 4):
            number += 1
            await _order(app, number, dice, has_yen=dice.random() < fails * 4)
        for later in ("40m", "70m", "2h", "5h", "9h"):
            if dice.random() < 0.3:
                await app.publish("mail.requested", {"to": "late@example.org", "about": "a reminder"}, delay=later)
        await app.worker().drain()


async def _imports(app: Redrive, clock: VirtualClock) -> None:
    """Two imports that are done, and one that is not."""
    for name, rows in (("import 2031-03-01", 180), ("import 2031-03-02", 240)):
        async with await app.batches.open(name, deadline="6h") as batch:
            for row in range(1, rows + 1):
                amount = f"{row}.50" if row % 31 else f"1.{row:03d},00"
                await batch.add("row.imported", {"row": row, "amount": amount}, group=f"file-{row % 6 + 1}")
        await app.worker().drain()
        clock.advance("1m")
        await app.worker().drain()
    late = await app.batches.open("import 2031-03-03", deadline="5h", leftovers="fail")
    for row in range(60):
        await late.add("ledger.entry", {"account": f"A-{row}", "order": row}, group=f"file-{row % 4 + 1}")
    await app.worker().drain()
    for row in range(25):
        await late.add("mail.requested", {"to": f"c{row}@example.org"}, group="mails", delay="80m")


async def _beside(app: Redrive, *, is_outage: bool) -> None:
    """What goes on beside the orders: things by the clock, carts that drift, brokers, seats."""
    await app.schedules.set("nightly report", "report.due", {"for": "finance"}, cron="0 3 * * *", tz="Europe/Lisbon",
                            by="grace", reason="as every year")  # fmt: skip
    await app.schedules.set("exchange rates", "rates.due", every="15m", by="grace", reason="the bank asked for it")
    await app.schedules.set("stock count", "stock.due", cron="30 6 * * 1", by="grace", reason="mondays")
    await app.schedules.pause("stock count", by="ada", reason="the warehouse moves")
    for number, item in enumerate(("forklift/3", "seat/12A", "lock:ledger-close")):
        await app.reservations.take(item, owner=f"order {1_200 + number}", ttl="8m", facts={"for": f"c{number}"})
    await app.reconcilers.run_here("carts", by="grace")
    await app.worker().drain()
    async with app.store.transaction() as tx:
        for values in _brokers(app, is_outage=is_outage):
            await tx.run("transport_put", worker="shop-1", **values)
    for order in range(14 if is_outage else 3):
        (event,) = app.new_events("order.shipped", {"order": order})
        event.target, event.queue = "relay:events:orders", "relay"
        async with app.store.transaction() as tx:
            await tx.publish([event])


def _brokers(app: Redrive, *, is_outage: bool) -> list[dict[str, Any]]:
    now = app.clock.now()
    state, error = ("unreachable", "no broker answers: connection refused (kafka-2:9092)") if is_outage else ("ok", "")
    since = now - timedelta(minutes=11 if is_outage else 900)
    relay = {"name": "relay:events:orders", "kind": "relay", "broker": "events", "destination": "orders",
             "state": state, "since": since, "error": error, "ok_at": since, "moved": 18_204, "lag": None}  # fmt: skip
    mails = {**relay, "name": "relay:events:mails", "destination": "mails", "state": "ok", "error": "", "moved": 7_311}
    intake = {**relay, "name": "intake:payments", "kind": "intake", "broker": "bank", "destination": "payments",
              "state": "ok", "error": "", "moved": 9_950, "lag": 2, "since": now - timedelta(hours=15)}  # fmt: skip
    return [relay, mails, intake]


async def newest(app: Redrive, selection: str) -> UUID:
    """Find the newest event that a selection means."""
    from redrive.operate import views

    (found, *_) = await views.selected(app, selection, limit=1)
    return found.id
