"""Findings: what runs of reconcilers have found, and what became of it.

A run is one comparison. A finding is a key that differed: one row, however many runs see it. It is open until a later
run no longer sees the difference (healed), or a person says that it may stay (ignored, until the difference is gone).
One that comes back is open again, and counts how often it did.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.errors import FindingNotFound, LeaseLost, Refused
from redrive.instant import instant_of, iso
from redrive.spool import Difference
from redrive.store.base import Store, Transaction

SAMPLE: Final = 100
"""How many findings a run keeps a copy of."""

_SAMPLE_VALUE: Final = 2_000
_ERROR_SHOWN: Final = 2_000
_HEALED_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Found:
    """A difference, as a run found it; nothing for a value that the side does not have, or that is large."""

    key: str
    kind: str
    desired: Any = None
    actual: Any = None


@dataclass(frozen=True, slots=True)
class ReconcileRun:
    """One comparison of both sides."""

    id: UUID
    name: str
    event_id: UUID | None
    started_by: str
    dry_run: bool
    state: str
    started_at: datetime
    ended_at: datetime | None
    compared: int
    missing: int
    extra: int
    different: int
    published: int
    coalesced: int
    healed: int
    error: str | None
    found: tuple[Found, ...] = ()
    """The first hundred."""

    @property
    def differences(self) -> int:
        return self.missing + self.extra + self.different

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        plain = {each.name: _plain(getattr(self, each.name)) for each in fields(self) if each.name != "found"}
        found = [{"key": each.key, "kind": each.kind, "desired": each.desired, "actual": each.actual}
                 for each in self.found]  # fmt: skip
        return {**plain, "differences": self.differences, "found": found}


@dataclass(frozen=True, slots=True)
class Finding:
    """A key that differed, and what was done about it."""

    id: UUID
    name: str
    key: str
    kind: str
    desired: Any
    actual: Any
    state: str
    first_seen_at: datetime
    last_seen_at: datetime
    seen_count: int
    returned_count: int
    run_id: UUID
    event_id: UUID | None
    converged_at: datetime | None
    healed_at: datetime | None
    note: str | None
    noted_by: str | None
    event_status: str | None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Standing:
    """A reconciler, and how it stands."""

    name: str
    looked_at: datetime | None
    run_id: UUID | None
    state: str | None
    dry_run: bool
    ended_at: datetime | None
    error: str | None
    open_count: int
    ignored_count: int
    recurring_count: int

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(slots=True)
class Tally:
    """What a run has found and done so far."""

    compared: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    published: int = 0
    coalesced: int = 0
    healed: int = 0
    sample: list[dict[str, Any]] = field(default_factory=list)

    def count(self, found: Iterable[Difference]) -> None:
        """Add differences."""
        for each in found:
            setattr(self, each.kind, getattr(self, each.kind) + 1)
            if len(self.sample) < SAMPLE:
                values = {"desired": _sampled(each.desired), "actual": _sampled(each.actual)}
                self.sample.append({"key": each.key, "kind": each.kind, **values})

    def values(self) -> dict[str, Any]:
        """Say it in the words of reconcile_end.sql."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "sample"}
        return {**numbers, "sample": json.dumps(self.sample, ensure_ascii=False)}


@dataclass(frozen=True, slots=True)
class Begun:
    """A run under way: which, since when by the store's clock, and under which lease if an event asked for it."""

    id: UUID
    name: str
    started: Any
    fence: int | None = None


# --- a run writes ---


async def begin(
    store: Store, run_id: UUID, name: str, *, by: str, dry_run: bool = False, event_id: UUID | None = None,
    fence: int | None = None,
) -> Begun:  # fmt: skip
    """Write down that a run has started."""
    async with store.transaction() as tx:
        await tx.run("reconciler_look", name=name, by=by, seconds=0.0)
        (row,) = await tx.run("reconcile_begin", id=run_id, name=name, event_id=event_id, by=by, dry_run=dry_run)
    return Begun(run_id, name, row["started_at"], fence)


async def hold(tx: Transaction, run: Begun) -> None:
    """Let nobody else write findings of this reconciler until the end of the transaction."""
    await tx.run("reconciler_lock", name=run.name)
    if run.fence is not None and not await tx.run("reconcile_ours", id=run.id, fence=run.fence):
        raise LeaseLost(f"run {run.id} is no longer ours: another worker may have begun it anew")


async def seen(tx: Transaction, run: Begun, found: Sequence[Difference], ids: Sequence[UUID]) -> list[dict[str, Any]]:
    """Write differences down; return the findings that stand for them: id, key, state, event_id."""
    rows = [
        {"id": str(new_id), "key": each.key, "kind": each.kind, "desired": each.desired, "actual": each.actual}
        for new_id, each in zip(ids, found, strict=True)
    ]
    return await tx.run("findings_seen", name=run.name, run=run.id, found=json.dumps(rows, ensure_ascii=False))


async def heal(store: Store, run: Begun) -> int:
    """Note that what this run has not seen is no longer there; return how much that was."""
    healed = 0
    while True:
        async with store.transaction() as tx:
            await hold(tx, run)
            gone = await tx.run("findings_heal", name=run.name, run=run.id, started=run.started, limit=_HEALED_AT_ONCE)
        healed += len(gone)
        if len(gone) < _HEALED_AT_ONCE:
            return healed


async def end(store: Store, run: Begun, tally: Tally, error: BaseException | None = None) -> None:
    """Write down how a run ended."""
    said = None if error is None else f"{type(error).__qualname__}: {error}"[:_ERROR_SHOWN].replace("\0", "")
    async with store.transaction() as tx:
        await hold(tx, run)
        state = "done" if error is None else "failed"
        await tx.run("reconcile_end", id=run.id, state=state, error=said, **tally.values())


async def converged(store: Store, ids: Sequence[UUID], *, agree: bool = False) -> None:
    """Note that something was done about findings; ``agree``: both sides were seen to agree."""
    async with store.transaction() as tx:
        await tx.run("findings_converged", ids=[str(each) for each in ids], agree=agree)


# --- people look ---


async def reconcilers(store: Store) -> list[Standing]:
    """List the reconcilers that were ever at work."""
    return [_standing(row) for row in await store.ask("reconcilers")]


async def runs(store: Store, *, name: str | None = None, limit: int = 50) -> list[ReconcileRun]:
    """List runs, the latest first."""
    return [_run(row) for row in await store.ask("reconcile_runs", name=name, id=None, limit=limit)]


async def run_of(store: Store, run_id: str) -> ReconcileRun:
    """Find a run by its id or a beginning of it."""
    rows = await store.ask("reconcile_runs", name=None, id=_beginning(run_id), limit=2)
    if not rows:
        raise FindingNotFound(f"there is no run {run_id}: `redrive reconcile runs` lists them")
    if len(rows) > 1:
        raise Refused(f"{run_id!r} is the beginning of several runs: give more of it")
    return _run(rows[0])


async def findings(
    store: Store, *, name: str | None = None, state: str | None = "open", run_id: UUID | None = None, limit: int = 100
) -> list[Finding]:
    """List findings, the latest first."""
    rows = await store.ask("findings", name=name, state=state, run=run_id, id=None, limit=limit)
    return [_finding(row) for row in rows]


async def recurring(store: Store, *, name: str | None = None, limit: int = 100) -> list[Finding]:
    """List the open findings that keep coming back, or stay whatever is done: a person must look."""
    return [_finding(row) for row in await store.ask("findings_recurring", name=name, limit=limit)]


async def row_of(store: Store, finding_id: UUID) -> dict[str, Any] | None:
    """Read a finding as it is stored, its values as JSON text."""
    rows = await store.ask("finding_get", id=finding_id)
    return rows[0] if rows else None


async def finding_of(store: Store, finding_id: str) -> Finding:
    """Find a finding by its id or a beginning of it."""
    rows = await store.ask("findings", name=None, state=None, run=None, id=_beginning(finding_id), limit=2)
    if not rows:
        raise FindingNotFound(f"there is no finding {finding_id}: `redrive reconcile findings` lists them")
    if len(rows) > 1:
        raise Refused(f"{finding_id!r} is the beginning of several findings: give more of it")
    return _finding(rows[0])


async def ignore(store: Store, finding_id: str, *, by: str, reason: str) -> Finding:
    """Say that a difference may stay; nothing is done about it until it has gone and come back."""
    this = await finding_of(store, finding_id)
    async with store.transaction() as tx:
        if not await tx.run("finding_ignore", id=this.id, by=by, reason=reason):
            raise Refused(f"finding {this.id} is {this.state}: only an open one can be ignored")
        facts = {"reason": reason, "reconciler": this.name, "key": this.key, "finding": str(this.id)}
        await tx.note("finding-ignored", by, facts)
    return await finding_of(store, str(this.id))


# --- rows of either store ---


def _beginning(text: str) -> str:
    """Keep what can begin an id: a wildcard of SQL must not match everything."""
    return "".join(each for each in text.lower() if each in "0123456789abcdef-") or "-"


def _run(row: Mapping[str, Any]) -> ReconcileRun:
    found = tuple(Found(**each) for each in json.loads(row["sample"]))
    values = {name: value for name, value in _read(row).items() if name != "sample"}
    return ReconcileRun(**{**values, "dry_run": bool(row["dry_run"]), "found": found})


def _finding(row: Mapping[str, Any]) -> Finding:
    sides = {side: None if row[side] is None else json.loads(row[side]) for side in ("desired", "actual")}
    return Finding(**{**_read(row), **sides})


def _standing(row: Mapping[str, Any]) -> Standing:
    return Standing(**{**_read(row), "dry_run": bool(row["dry_run"])})


def _read(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row.items()}


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name.endswith("_at"):
        return instant_of(value)
    return UUID(str(value)) if name == "id" or name.endswith("_id") else value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    return str(value) if isinstance(value, UUID) else value


def _sampled(text: str | None) -> Any:
    return None if text is None or len(text) > _SAMPLE_VALUE else json.loads(text)
