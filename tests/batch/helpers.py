"""A depot whose parcels do what their payload says, and whose notices are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redrive import (
    BatchReport,
    Context,
    EventFilter,
    PrerequisiteMissing,
    Redrive,
    Rejected,
    RetryPolicy,
)
from redrive.batch import FINAL_NOTICE, FIRST_NOTICE, Batch

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)


@dataclass(slots=True)
class Depot:
    """An app with a handler that can be mended, and what it was told."""

    app: Redrive
    told: list[BatchReport] = field(default_factory=list)
    mended: bool = False

    def kinds(self) -> list[str]:
        return [each.kind for each in self.told]

    async def drain(self) -> None:
        await self.app.worker().drain()


def equip(app: Redrive) -> Depot:
    """Register the handlers."""
    depot = Depot(app)

    @app.handler("parcel")
    async def carry(payload: dict[str, Any], ctx: Context) -> None:
        if payload.get("refused") and not depot.mended:
            raise Rejected("the recipient refuses it\nand says why at length")
        if ctx.attempt <= payload.get("fails", 0):
            raise PrerequisiteMissing("not on the shelf yet")
        if payload.get("inside"):
            async with ctx.transaction():
                pass

    @app.handler(FIRST_NOTICE)
    @app.handler(FINAL_NOTICE)
    async def note(payload: dict[str, Any]) -> None:
        depot.told.append(BatchReport.from_json(payload))

    return depot


@asynccontextmanager
async def depot_on(url: str) -> AsyncIterator[Depot]:
    async with Redrive(url, retry=FAST, migrate=True, source="depot") as app:
        yield equip(app)


async def notices(app: Redrive, batch: Batch) -> list[str]:
    """List the kinds of the notices there are of a batch, in order."""
    found = [
        event
        for type_ in (FIRST_NOTICE, FINAL_NOTICE)
        for event in await app.events(EventFilter(type=type_, limit=1_000))
        if event.payload["batch_id"] == str(batch.id)
    ]
    return [event.payload["kind"] for event in sorted(found, key=lambda event: event.created_at)]
