"""Every route of the console."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from redrive.operate.console import (
    attention,
    batches,
    events,
    failures,
    overview,
    reconcilers,
    record,
    redrives,
    repair,
    reservations,
    running,
    schedules,
    tasks,
    transports,
    waiting,
)

ROUTERS: Final[Sequence[APIRouter]] = tuple(
    each.router
    for each in (
        overview, attention, failures, events, repair, redrives, batches, tasks, waiting, reservations, running,
        transports, schedules, reconcilers, record,
    )
)  # fmt: skip
