"""The shop: what a user of redrive would write. Three kinds of events, one dependency, one bug and how it is mended."""

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final

from pydantic import BaseModel

from redrive.app import Redrive
from redrive.context import Context
from redrive.errors import PrerequisiteMissing, Rejected
from redrive.policy import RetryPolicy

TABLES: Final = (
    "create table shop_order (id integer primary key, customer text not null, total text not null)",
    # No unique key on purpose: if anything happened twice, two rows would show it.
    "create table shop_effect (what text not null, key text not null, order_id integer not null)",
)
NOWHERE: Final = "Atlantis"
BANK, CARRIER = "bank", "carrier"
CARRIER_API: Final = "carrier-api"
_READS_COMMAS: Final = 2


@dataclass(slots=True)
class World:
    """What the shop cannot change."""

    ailing: set[str] = field(default_factory=set)
    seconds_per_call: float = 0.02


class Order(BaseModel):
    """An order that was paid."""

    id: int
    customer: str
    city: str
    total: Decimal


class Payment(BaseModel):
    """A payment, as the payment provider tells us, sometimes twice."""

    order: int
    amount: Decimal


class Invoice(BaseModel):
    """What an invoice needs; the amount as it was typed."""

    order: int
    amount: str
    country: str = ""


def read_amount(text: str, release: int) -> Decimal:
    """Read an amount: the first release knows 12.50, the second also 12,50, the third also 1.250,00."""
    plain = text
    if release > _READS_COMMAS and "," in text:
        plain = plain.replace(".", "")
    if release >= _READS_COMMAS:
        plain = plain.replace(",", ".")
    try:
        return Decimal(plain)
    except InvalidOperation:
        raise ValueError(f"{text} is not an amount") from None


def shop(url: str, world: World, *, release: int, pace: float) -> Redrive:
    """Make the shop's app. ``pace`` stretches its waits, so that a longer demo shows the same."""
    waits = RetryPolicy(max_attempts=12, base_delay=0.3 * pace, max_delay=2.4 * pace, jitter=0.2)
    app = Redrive(url, source="shop", retry=waits)

    app.dependency(CARRIER_API, threshold=3, probe_after=1.0 * pace, probe_cap=2.0 * pace)

    @app.handler("order.paid", needs=[CARRIER_API])
    async def ship(order: Order, ctx: Context) -> None:
        await app.clock.sleep(world.seconds_per_call * pace)
        if order.city == NOWHERE:
            raise Rejected(f"the carrier does not deliver to {order.city}")
        if CARRIER in world.ailing:
            raise ConnectionError("carrier: 503 Service Unavailable")
        await _once(ctx, "shipment", order.id)

    @app.handler("payment.captured")
    async def send_receipt(payment: Payment, ctx: Context) -> None:
        if BANK in world.ailing:
            raise PrerequisiteMissing(f"the bank has not confirmed the payment of {payment.order} yet")
        await _once(ctx, "receipt", payment.order)

    @app.handler("invoice.requested", retry=RetryPolicy(max_attempts=1))  # an amount does not get better by waiting
    async def invoice(wanted: Invoice, ctx: Context) -> None:
        read_amount(wanted.amount, release)
        await _once(ctx, "invoice", wanted.order)

    return app


async def _once(ctx: Context, what: str, order_id: int) -> None:
    """Have the effect: in the same commit as its idempotency key and the event's end."""
    async with ctx.transaction() as tx:
        await tx.execute(
            "insert into shop_effect (what, key, order_id) values (?, ?, ?)", what, ctx.idempotency_key, order_id
        )
