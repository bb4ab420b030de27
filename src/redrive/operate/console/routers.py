"""Every route of the console."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from redrive.operate.console import events, failures, overview, record, redrives, repair, running, waiting

ROUTERS: Final[Sequence[APIRouter]] = tuple(
    each.router for each in (overview, failures, events, repair, redrives, waiting, running, record)
)
