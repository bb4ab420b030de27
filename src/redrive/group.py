"""Groups: dead letters with one cause.

A group is a fingerprint: target, error class, the chain of exception types and the places in the project's own code
(modules and functions, without folders and line numbers). It is counted in the transaction that makes or moves a dead
letter, and it has a life: new, ongoing, resolved when its last dead letter was brought through, regressed when the
failure comes back after that.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.errors import Refused
from redrive.event import Event
from redrive.instant import instant_of, iso
from redrive.store.base import Store

_MOST_FIELDS: Final = 200
_MOST_VALUE: Final = 80
_STRIKING: Final = 0.3


@dataclass(frozen=True, slots=True)
class Group:
    """A cause, and how many dead letters it has."""

    fingerprint: str
    target: str
    type: str
    error_class: str
    error_type: str
    title: str
    state: str
    dead_count: int
    total_count: int
    first_seen_at: datetime
    last_seen_at: datetime
    first_generation: int
    last_generation: int
    sample_event_id: UUID
    owner: str | None
    note: str | None
    muted_until: datetime | None
    resolved_at: datetime | None
    resolved_by: str | None

    @property
    def short(self) -> str:
        """The fingerprint without its version, as people type it."""
        return self.fingerprint.partition(":")[2][:8]

    def is_muted(self, now: datetime) -> bool:
        """Say whether it may be quiet."""
        return self.muted_until is not None and self.muted_until > now

    @property
    def why(self) -> str:
        """What its members have in common."""
        return (
            f"all failed in {self.target} with {self.error_type or 'no exception'} ({self.error_class}), "
            "raised through the same places of the project's code; messages, values and line numbers do not count"
        )


@dataclass(frozen=True, slots=True)
class Skew:
    """A field whose value sets the dead letters of a group apart from delivered events of the same type."""

    field: str
    value: str
    among_dead: float
    among_delivered: float


@dataclass(frozen=True, slots=True)
class Miscount:
    """A group whose count is not that of its dead letters; without a count it is missing."""

    fingerprint: str
    dead_count: int | None
    counted: int


async def groups(
    store: Store, *, everything: bool = False, state: str | None = None, limit: int = 100, after: Group | None = None
) -> list[Group]:
    """List groups, the latest failure first; without ``everything`` only those with dead letters."""
    rows = await store.ask(
        "groups", all=everything, state=state, limit=limit, after=None if after is None else after.fingerprint,
        seen_before=None if after is None else after.last_seen_at,
    )  # fmt: skip
    return [_group(row) for row in rows]


async def find(store: Store, fingerprint: str) -> Group:
    """Find a group by its fingerprint or a beginning of it."""
    return _one(await store.ask("group", fingerprint=_bare(fingerprint)), fingerprint)


def _bare(fingerprint: str) -> str:
    return fingerprint.rpartition(":")[2]


def _one(rows: Sequence[Mapping[str, Any]], fingerprint: str) -> Group:
    if not rows:
        raise Refused(f"there is no group {fingerprint!r}: `redrive groups ls --all` lists them")
    if len(rows) > 1 and rows[0]["fingerprint"] != fingerprint:
        raise Refused(f"{fingerprint!r} is the beginning of several groups: give more of it")
    return _group(rows[0])


async def describe(
    store: Store, fingerprint: str, *, by: str, owner: str | None = None, note: str | None = None,
    muted_until: datetime | None = None, state: str | None = None,
) -> Group:  # fmt: skip
    """Say who looks after a group, what is known of it, that it may be quiet for a while, or that it is resolved."""
    group = await find(store, fingerprint)
    async with store.transaction() as tx:
        await tx.run(
            "group_set",
            fingerprint=group.fingerprint,
            owner=owner,
            note=note,
            muted_until=muted_until,
            state=state,
            by=by,
        )
        said = {"owner": owner, "note": note, "muted_until": muted_until and iso(muted_until), "state": state}
        facts = {name: value for name, value in said.items() if value is not None}
        await tx.note("group-described", by, {"group": group.fingerprint, **facts})
        return _one(await tx.run("group", fingerprint=_bare(group.fingerprint)), group.fingerprint)


async def miscounts(store: Store) -> list[Miscount]:
    """Compare every group with its dead letters; what is returned differs. Changes nothing."""
    return [Miscount(**row) for row in await store.ask("groups_check")]


async def rebuild(store: Store) -> dict[str, int]:
    """Count every group anew from the events, the missing ones too; what is returned was wrong, with its right count.

    Who makes or moves a dead letter meanwhile waits for the end of it.
    """
    async with store.transaction() as tx:
        await tx.run("groups_lock")
        mended = [*await tx.run("groups_rebuild"), *await tx.run("groups_restore")]
    return {row["fingerprint"]: row["dead_count"] for row in mended}


def skew(dead: Sequence[Event], delivered: Sequence[Event], most: int = 10) -> list[Skew]:
    """Find the payload fields and headers that set the dead letters apart, the most striking first."""
    if not dead:
        return []
    among_dead, among_delivered = _counted(dead), _counted(delivered)
    found = []
    for (field, value), count in among_dead.items():
        share = count / len(dead)
        other = among_delivered[field, value] / len(delivered) if delivered else 0.0
        if count > 1 and share - other >= _STRIKING:
            found.append(Skew(field, value, share, other))
    return sorted(found, key=lambda each: (each.among_delivered - each.among_dead, each.field))[:most]


def _counted(events: Sequence[Event]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for event in events:
        seen = {(f"header.{name}", value) for name, value in event.headers.items()}
        seen.update(_leaves("payload", event.payload))
        counts.update(list(seen)[:_MOST_FIELDS])
    return counts


def _leaves(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < 8:  # noqa: PLR2004 - deeper fields explain nothing to a person
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner, depth + 1)
    elif isinstance(value, list):
        yield (f"{path}.length", str(len(value)))
    else:
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        yield (path, text[:_MOST_VALUE])


def _group(row: Mapping[str, Any]) -> Group:
    values = dict(row)
    for name in ("first_seen_at", "last_seen_at", "muted_until", "resolved_at"):
        values[name] = instant_of(values[name])
    values["sample_event_id"] = UUID(str(values["sample_event_id"]))
    return Group(**values)
