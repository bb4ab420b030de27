"""Volumes: the service that keeps data. While storage is degraded it makes one copy, and adds the second later."""

from dataclasses import replace
from typing import Final

from redrive import Context, PolicyViolation, Redrive, Work
from redrive.apps.controlplane.resource import Provider, Row
from redrive.apps.controlplane.settings import Settings
from redrive.apps.controlplane.words import Wanted
from redrive.apps.controlplane.world import STORAGE, Thing, World

COPIES: Final = 2


class Volumes(Provider):
    """Makes ``vol-<request>``."""

    kind = "volume"
    system = STORAGE
    degraded = "proceed"

    def __init__(self, app: Redrive, world: World, settings: Settings) -> None:
        super().__init__(app, world, settings)
        self._destroy = app.compensation(name="volume.destroy")(self._destroyed)

    async def admit(self, tx: Work, order: Wanted) -> None:
        """Hold an owner to the quota; orders of one owner are looked at one after the other."""
        alone = "insert into controlplane.owner values ($1) on conflict (owner) do update set owner = excluded.owner"
        await tx.execute(self.sql(alone), order.owner)
        query = "select volume_gb from controlplane.resource where kind = $1 and owner = $2 and state <> 'GONE'"
        held = sum(row[0] for row in await tx.fetch(self.sql(query), self.kind, order.owner))
        if held > self.settings.quota_gb:
            more = f"{held - order.volume_gb} GB and asks for {order.volume_gb} more"
            raise PolicyViolation(f"{order.owner} has {more}: the quota is {self.settings.quota_gb} GB")

    async def make(self, order: Wanted, _row: Row, ctx: Context) -> tuple[Thing, bool]:
        thing = Thing(f"vol-{order.request}", order.request, 0, {"gb": order.volume_gb, "copies": COPIES})
        reduced = self.system in ctx.degraded
        copies = 1 if reduced else COPIES
        copies = await ctx.step("create", self._created, thing, copies, compensate=self._destroy)
        return thing, copies < COPIES

    async def _created(self, thing: Thing, copies: int) -> int:
        less = replace(thing, facts={**thing.facts, "copies": copies})
        await self.world.put(self.system, less, reduced=copies < COPIES)
        return copies

    async def _destroyed(self, _copies: int, ctx: Context) -> None:
        if not await self.is_kept(ctx.correlation_id):
            await self.world.drop_all(self.system, ctx.correlation_id)
