"""Addresses: the service of a scarce pool. Who gets which one is decided when it is written, and by nothing else.

reserve    a reservation with a token, in one transaction with the look whether the address is free
announce   the fabric is told, with the token; it refuses a token lower than the one it knows
keep       the reservation is guarded in the commit that gives the address away: a process that slept through its
           time writes nothing, and begins anew with another address
"""

from contextlib import suppress
from typing import Final
from zlib import crc32

from redrive import Context, PrerequisiteMissing, Redrive, Reservation, ReservationLost, Taken, Work
from redrive.apps.controlplane.resource import Provider, Row
from redrive.apps.controlplane.settings import Settings
from redrive.apps.controlplane.words import Wanted
from redrive.apps.controlplane.world import FABRIC, Thing, World

_LOOKED_AT: Final = 16


class Addresses(Provider):
    """Gives away the addresses of the pool."""

    kind = "address"
    system = FABRIC

    def __init__(self, app: Redrive, world: World, settings: Settings) -> None:
        super().__init__(app, world, settings)
        self._withdraw = app.compensation(name="address.withdraw")(self._withdrawn)
        self._size = len(settings.addresses())
        app.when_open(self._fill)

    async def make(self, order: Wanted, row: Row, ctx: Context) -> tuple[Thing, bool]:
        held = await self._reserve(order.request, row.name)
        thing = Thing(_address(held), order.request, held.token)
        # Another reservation is another step: the fabric must know the token by which the address is kept.
        await ctx.step(f"announce {thing.name} by {held.token}", self._announced, thing, compensate=self._withdraw)
        return thing, False

    async def keep(self, tx: Work, thing: Thing) -> None:
        await self.app.reservations.by_token(_resource(thing.name), thing.token).guard(tx.connection)
        update = "update controlplane.address set request = $2, token = $3 where address = $1 and request is null"
        if not await tx.execute(self.sql(update), thing.name, thing.request, thing.token):
            raise PrerequisiteMissing(f"{thing.name} is no longer free")

    async def let_go(self, tx: Work, request: str) -> None:
        update = "update controlplane.address set request = null, token = null where request = $1"
        await tx.execute(self.sql(update), request)

    async def afterwards(self, thing: Thing) -> None:
        with suppress(ReservationLost):  # else it runs out by itself
            await self.app.reservations.by_token(_resource(thing.name), thing.token).release()

    # Reserving

    async def _reserve(self, request: str, before: str | None) -> Reservation:
        """Reserve a free address: the one that an earlier attempt had, or another."""
        if before is not None and (held := await self._held(before, request)) is not None:
            return held
        note = "update controlplane.resource set name = $3 where kind = $1 and request = $2 and state = 'MAKING'"
        async with self.app.transaction() as tx:
            for address in await self._free(tx, request):
                held = await self._take(tx, address, request)
                if held is not None:
                    await tx.execute(self.sql(note), self.kind, request, address)
                    return held
        raise PrerequisiteMissing(f"no address of {self.settings.pool} is free")

    async def _held(self, address: str, request: str) -> Reservation | None:
        """Go on with the reservation of an attempt that has ended; this one alone may still write."""
        known = await self.app.reservations.get(_resource(address))
        if known is None or not known.is_held or known.owner != request:
            return None
        await known.renew(self.settings.hold)
        return known

    async def _take(self, tx: Work, address: str, request: str) -> Reservation | None:
        reservations, resource = self.app.reservations, _resource(address)
        try:
            held = await reservations.take_in(tx.connection, resource, owner=request, ttl=self.settings.hold)
        except Taken:
            return None
        # Taken first, looked then: whoever had it before us has committed by now.
        still = "select 1 from controlplane.address where address = $1 and request is null"
        return held if await tx.fetch(self.sql(still), address) else None

    async def _free(self, tx: Work, request: str) -> list[str]:
        """List some free addresses; each request begins to look elsewhere, so that few meet."""
        query = """select address from controlplane.address where request is null and {} and address not in (
                select name from controlplane.resource where kind = 'address' and state = 'MAKING' and name is not null)
            order by position limit $2"""
        start = crc32(request.encode()) % self._size
        rows = await tx.fetch(self.sql(query.format("position >= $1")), start, _LOOKED_AT)
        rows += await tx.fetch(self.sql(query.format("position < $1")), start, _LOOKED_AT)
        return [row[0] for row in rows]

    async def _announced(self, thing: Thing) -> str:
        await self.world.put(self.system, thing)
        return thing.name

    async def _withdrawn(self, _address: str, ctx: Context) -> None:
        if not await self.is_kept(ctx.correlation_id):
            await self.world.drop_all(self.system, ctx.correlation_id)

    async def _fill(self, tx: Work) -> None:
        """Put the addresses of the pool into the table that are not there."""
        known = {row[0] for row in await tx.fetch(self.sql("select address from controlplane.address"))}
        insert = "insert into controlplane.address (address, position) values ($1, $2) on conflict do nothing"
        for position, address in enumerate(self.settings.addresses()):
            if address not in known:
                await tx.execute(self.sql(insert), address, position)


def _resource(address: str) -> str:
    return f"address/{address}"


def _address(held: Reservation) -> str:
    return held.resource.removeprefix("address/")
