"""A shop whose carrier can be mended, and what must be true of every redrive at every moment."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from redrive import Context, Redrive, Rejected, group, redrive
from redrive.duty import Tick
from redrive.redrive import Release
from tests.waiting import PATIENCE_SECONDS, until

_STATUS_OF = {"delivered": "delivered", "failed_same": "failed", "failed_other": "failed"}


class Shop:
    """A handler that can be mended."""

    def __init__(self, app: Redrive) -> None:
        self.app = app
        self.broken: bool | str = True
        self.calls = 0

        @app.handler("order.paid")
        async def ship(payload: Any, ctx: Context) -> None:
            self.calls += 1
            if self.broken is True or payload.get("always"):
                raise Rejected("carrier says no")
            if self.broken == "otherwise":
                raise KeyError("something else")

    async def bury(self, number: int, **payload: Any) -> None:
        await self.app.publish_many([("order.paid", {"n": n, **payload}) for n in range(number)])
        await self.app.worker().drain()

    async def plan(self, **options: Any) -> redrive.Plan:
        return await redrive.plan(
            self.app.store, self.app.clock.new_id(), selection="type:order.paid", sentence="all of order.paid",
            clauses=["and type = 'order.paid'"], values={}, by="ada", unsafe=True, **options,
        )  # fmt: skip

    async def start(self, plan: redrive.Plan, generation: int | None = None, **options: Any) -> redrive.Redriving:
        return await redrive.start(
            self.app.store, plan.redrive.token, by="ada", reason="fixed", release=Release(**options),
            generation=generation, approval_above=None,
        )  # fmt: skip

    async def over(
        self, running: redrive.Redriving, *states: str, seconds: float = PATIENCE_SECONDS
    ) -> redrive.Redriving:
        async def reached() -> bool:
            return (await redrive.get(self.app.store, running.id)).state in states

        await until(reached, seconds)
        return await redrive.get(self.app.store, running.id)

    async def tick(self) -> Tick:
        return await redrive.tick(self.app.store, chain="test")


async def items(app: Redrive, redrive_id: UUID) -> list[dict[str, Any]]:
    """Read all members of a redrive."""
    return await app.store.ask("redrive_items", id=redrive_id, after=0, limit=100_000)


async def outbox(app: Redrive) -> dict[str, tuple[Any, ...]]:
    """Read every column of every event."""
    table = "redrive.outbox" if app.store.name == "postgres" else "redrive_outbox"
    async with app.store.transaction() as tx:
        rows = await tx.fetch(f"select id, o.* from {table} o")
    return {str(row[0]): tuple(row)[1:] for row in rows}


async def sound(app: Redrive, redrive_id: UUID) -> redrive.Redriving:
    """Prove that counters, members, events, groups and the trail of a redrive tell the same story."""
    standing = await redrive.get(app.store, redrive_id)
    members = await items(app, redrive_id)
    states = Counter(each["state"] for each in members)
    went = [each for each in members if each["released_at"] is not None]

    assert (standing.delivered, standing.failed_same, standing.failed_other, standing.skipped) == tuple(
        states[name] for name in ("delivered", "failed_same", "failed_other", "skipped")
    )
    assert (standing.released, standing.outstanding) == (len(went), states["released"])
    assert (standing.total, standing.untouched) == (len(members), states["ready"])
    for each in members:
        event = await app.event(UUID(str(each["event_id"])))
        assert event is not None
        replays = [entry for entry in await app.trail(event.id) if entry.kind == "replayed"]
        ours = [entry for entry in replays if entry.facts["redrive"] == str(redrive_id)]
        assert len(ours) == (each["released_at"] is not None), (each, ours)
        assert len(replays) == len({entry.facts["cycle"] for entry in replays}) == event.cycle
        if each["state"] in _STATUS_OF:
            assert (event.status, event.cycle) == (_STATUS_OF[each["state"]], each["cycle"] + 1)
        if each["state"] == "ready":
            assert (event.status, event.cycle) == ("failed", each["cycle"])
    assert await group.miscounts(app.store) == []
    assert (await app.verify_trail()).sound
    return standing
