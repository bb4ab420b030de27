"""Settings: what holds for everybody who works on a database, whatever their own app says.

They are few, and kept in the database because the command line and other processes open it without the app.
Every change has a name and a reason, and is on the trail.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redrive.instant import instant_of
from redrive.store.base import Store

APPROVAL_ABOVE: Final = "approval_above"
AGENTS_ABOVE: Final = "agents_above"
AGENTS_ALONE: Final = 10
"""How many events a redrive may have that an agent starts alone, while nobody has said otherwise."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, who set it, and when."""

    name: str
    value: Any
    set_by: str
    set_at: datetime


async def get(store: Store, name: str) -> Setting | None:
    """Read one; nothing when nobody ever set it."""
    rows = await store.ask("setting_get", name=name)
    return _setting(name, rows[0]) if rows else None


async def put(store: Store, name: str, value: Any, *, by: str, reason: str) -> Setting:
    """Set one; from the commit on it holds for everybody."""
    async with store.transaction() as tx:
        before = await tx.run("setting_get", name=name)
        was = json.loads(before[0]["value"]) if before else None
        await tx.run("setting_set", name=name, value=json.dumps(value), by=by)
        await tx.note("setting-changed", by, {"reason": reason, "setting": name, "was": was, "is": value})
        (row,) = await tx.run("setting_get", name=name)
    return _setting(name, row)


def _setting(name: str, row: Mapping[str, Any]) -> Setting:
    at = row["set_at"]
    return Setting(name, json.loads(row["value"]), row["set_by"], instant_of(at))
