"""Machines: the service that runs them. It has no reduced mode: while the hypervisor is degraded, orders wait."""

from dataclasses import replace

from redrive import Context, Redrive
from redrive.apps.controlplane.resource import Provider, Row
from redrive.apps.controlplane.settings import Settings
from redrive.apps.controlplane.words import Wanted
from redrive.apps.controlplane.world import HYPERVISOR, Thing, World


class Machines(Provider):
    """Makes ``vm-<request>``: defines it, then boots it."""

    kind = "machine"
    system = HYPERVISOR

    def __init__(self, app: Redrive, world: World, settings: Settings) -> None:
        super().__init__(app, world, settings)
        self._undefine = app.compensation(name="machine.undefine")(self._undefined)
        self._halt = app.compensation(name="machine.halt")(self._halted)

    async def make(self, order: Wanted, _row: Row, ctx: Context) -> tuple[Thing, bool]:
        facts = {"size": order.size, "image": order.image, **order.given, "running": True}
        thing = Thing(f"vm-{order.request}", order.request, 0, facts)
        await ctx.step("define", self._put, thing, False, compensate=self._undefine)  # noqa: FBT003 - a step's argument
        await ctx.step("boot", self._put, thing, True, compensate=self._halt)  # noqa: FBT003
        return thing, False

    async def _put(self, thing: Thing, running: bool) -> bool:  # noqa: FBT001 - steps take their arguments in order
        await self.world.put(self.system, replace(thing, facts={**thing.facts, "running": running}))
        return running

    async def _undefined(self, _defined: bool, ctx: Context) -> None:  # noqa: FBT001
        if not await self.is_kept(ctx.correlation_id):
            await self.world.drop_all(self.system, ctx.correlation_id)

    async def _halted(self, _running: bool, ctx: Context) -> None:  # noqa: FBT001
        thing = await self.world.find(self.system, f"vm-{ctx.correlation_id}")
        if thing is not None and not await self.is_kept(ctx.correlation_id):
            await self.world.put(self.system, replace(thing, facts={**thing.facts, "running": False}))
