"""The redrive: many replays as one durable operation.

    plan     a selection is resolved once; the members are frozen, and why one may not go is said before anything moves
    start    needs the plan's token and a reason; the set can only shrink
    release  all, by rate, within a number in flight, or by a ramp whose gate halts when the same failure comes back
    outcome  per member: delivered, failed the same, failed otherwise, skipped; done means ended, not sent

Everything is in the database, and the workers carry it on, a tick at a time, whoever finds it free: there is no leader
to lose. Pause, resume and abort at any time; what was not released is what it was.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.errors import ConfigurationError, Refused, StoreUnavailable
from redrive.event import Priority
from redrive.instant import from_micros
from redrive.logs import log
from redrive.store.base import Store, Transaction

PLAN_KEPT_SECONDS: Final = 86_400.0
CHUNK: Final = 500
DEFAULT_IN_FLIGHT: Final = 2_000
REPLAY_BUDGET: Final = 50
DIGEST_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Release:
    """How fast the members of a redrive are let go."""

    rate: float | None = None
    max_in_flight: int = DEFAULT_IN_FLIGHT
    ramp: tuple[int, ...] = ()
    halt_at: float = 0.1

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigurationError(
                f"the rate must be above 0 events a second, not {self.rate:g}: leave it out to go at full speed"
            )
        if self.max_in_flight < 1:
            raise ConfigurationError(f"max_in_flight must be at least 1, not {self.max_in_flight}")
        if any(size < 1 for size in self.ramp):
            raise ConfigurationError(f"every step of the ramp must be at least 1, not {list(self.ramp)}")
        if not 0 <= self.halt_at <= 1:
            raise ConfigurationError(f"halt_at is a share of failures from 0 to 1 (10% is 0.1), not {self.halt_at:g}")


@dataclass(frozen=True, slots=True)
class Redriving:
    """A redrive as it stands."""

    id: UUID
    state: str
    selection: str
    sentence: str
    digest: str
    total: int
    ready: int
    planned_by: str
    planned_at: datetime
    expires_at: datetime
    approved_by: str | None
    started_by: str | None
    started_at: datetime | None
    reason: str | None
    generation: int | None
    from_start: bool
    rate: float | None
    max_in_flight: int
    ramp: tuple[int, ...]
    halt_at: float
    stage: int
    released: int
    outstanding: int
    delivered: int
    failed_same: int
    failed_other: int
    skipped: int
    stopped_by: str | None
    stop_reason: str | None
    ended_at: datetime | None
    metered_from: datetime | None
    metered_count: int
    now: datetime

    @property
    def token(self) -> str:
        """What a start must show: which plan, and that it is this very set."""
        return f"{self.id}:{self.digest[:DIGEST_SHOWN]}"

    @property
    def failed(self) -> int:
        return self.failed_same + self.failed_other

    @property
    def ended(self) -> int:
        """Members with an outcome."""
        return self.delivered + self.failed + self.skipped

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "aborted")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a redrive would do, before it does anything."""

    redrive: Redriving
    ineligible: dict[str, int]
    parts: list[dict[str, Any]] = field(default_factory=list)

    def seconds_at(self, rate: float | None) -> float | None:
        """How long it takes at a rate."""
        return None if rate is None else self.redrive.ready / rate


async def plan(
    store: Store, redrive_id: UUID, *, selection: str, sentence: str, clauses: Sequence[str], values: Mapping[str, Any],
    by: str, targets: Sequence[str] = (), unsafe: bool = False,
) -> Plan:  # fmt: skip
    """Freeze a set of dead letters and say what would become of each."""
    async with store.transaction() as tx:
        await tx.run(
            "redrive_plan", id=redrive_id, selection=selection, sentence=sentence, by=by, keep=PLAN_KEPT_SECONDS
        )
        await tx.run(
            "redrive_members",
            clauses=clauses,
            id=redrive_id,
            targets=list(targets),
            unsafe=unsafe,
            budget=REPLAY_BUDGET,
            **values,
        )
        counts = await tx.run("redrive_eligibility", id=redrive_id)
        members = (await tx.run("redrive_digest", id=redrive_id))[0]
        digest = hashlib.sha256((next(iter(members.values())) or "").encode()).hexdigest()
        ready = sum(row["n"] for row in counts if row["state"] == "ready")
        await tx.run(
            "redrive_planned", id=redrive_id, digest=digest, total=sum(row["n"] for row in counts), ready=ready
        )
        await tx.note("redrive-planned", by, {"redrive": str(redrive_id), "events": ready, "selection": selection})
        parts = await tx.run("redrive_breakdown", id=redrive_id)
        planned = await _get(tx, redrive_id)
    ineligible = {row["reason"]: row["n"] for row in counts if row["state"] == "ineligible"}
    return Plan(
        planned, ineligible, [{**part, "oldest": _at(part["oldest"]), "newest": _at(part["newest"])} for part in parts]
    )


async def start(
    store: Store,
    token: str,
    *,
    by: str,
    reason: str,
    release: Release,
    generation: int | None,
    approval_above: int | None,
    from_start: bool = False,
) -> Redriving:
    """Let a planned redrive go. Needs the token of the plan as it was shown."""
    release.check()
    redrive_id, digest = _read(token)
    async with store.transaction() as tx:
        planned = await _get(tx, redrive_id)
        _check_start(planned, digest, approval_above)
        values: dict[str, Any] = {
            "id": redrive_id, "digest": planned.digest, "by": by, "reason": reason, "generation": generation,
            "rate": release.rate, "max_in_flight": release.max_in_flight, "ramp": list(release.ramp),
            "halt_at": release.halt_at, "from_start": from_start,
        }  # fmt: skip
        if not await tx.run("redrive_start", **values):
            raise Refused(f"redrive {redrive_id} cannot be started any more: plan it again")
        facts = {"redrive": str(redrive_id), "reason": reason, "events": planned.ready, "what": planned.sentence}
        await tx.note("redrive-started", by, facts)
        return await _get(tx, redrive_id)


def _check_start(planned: Redriving, digest: str, approval_above: int | None) -> None:
    if not digest or not planned.digest.startswith(digest):
        raise Refused("this token is not of this plan: use the token that `plan` printed, or plan again")
    if planned.state != "planned":
        raise Refused(f"redrive {planned.id} is {planned.state} already, started by {planned.started_by}")
    if planned.expires_at <= planned.now:
        raise Refused(f"the plan expired at {planned.expires_at:%Y-%m-%d %H:%M} UTC: plan again")
    if planned.ready == 0:
        raise Refused("nothing in this plan is ready to go")
    if approval_above is not None and planned.ready > approval_above and planned.approved_by is None:
        raise Refused(
            f"{planned.ready} events are more than the {approval_above} that need no second person: "
            f"somebody else approves first (`redrive redrives approve {planned.id}`)"
        )


async def approve(store: Store, redrive_id: UUID, *, by: str) -> Redriving:
    """Agree with a plan as a second person."""
    async with store.transaction() as tx:
        planned = await _get(tx, redrive_id)
        if planned.planned_by == by:
            raise Refused(f"{by} planned this redrive: the approval must come from somebody else")
        if not await tx.run("redrive_approve", id=redrive_id, by=by):
            raise Refused(f"redrive {redrive_id} is {planned.state}: only a plan can be approved")
        await tx.note("redrive-approved", by, {"redrive": str(redrive_id), "events": planned.ready})
        return await _get(tx, redrive_id)


async def stop(store: Store, redrive_id: UUID, *, to: str, by: str, reason: str) -> Redriving:
    """Pause or abort. What was not released stays what it was."""
    async with store.transaction() as tx:
        standing = await _get(tx, redrive_id)
        if not await tx.run("redrive_stop", id=redrive_id, to=to, by=by, reason=reason):
            raise Refused(f"redrive {redrive_id} is {standing.state}: it cannot be {to}")
        await tx.note(
            f"redrive-{to}", by, {"redrive": str(redrive_id), "reason": reason, "released": standing.released}
        )
        return await _get(tx, redrive_id)


async def resume(store: Store, redrive_id: UUID, *, by: str) -> Redriving:
    """Go on after a pause or a halt; a halted ramp goes on with its next stage."""
    async with store.transaction() as tx:
        standing = await _get(tx, redrive_id)
        if not await tx.run("redrive_resume", id=redrive_id):
            raise Refused(f"redrive {redrive_id} is {standing.state}: only a paused or halted one can be resumed")
        await tx.note("redrive-resumed", by, {"redrive": str(redrive_id), "was": standing.state})
        return await _get(tx, redrive_id)


async def get(store: Store, redrive_id: UUID) -> Redriving:
    """Read one redrive as it stands."""
    async with store.transaction() as tx:
        return await _get(tx, redrive_id)


async def tick(store: Store, *, chain: str) -> float:
    """Carry on every running redrive that nobody else is carrying on; say in how many seconds to look again."""
    running = [UUID(str(row["id"])) for row in await store.ask("redrive_running")]
    most = 0
    for redrive_id in running:
        try:
            async with store.transaction() as tx:
                if await tx.run("redrive_lock", id=redrive_id):
                    most = max(most, await _carry_on(tx, redrive_id, chain))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one that is broken must not hold up the others
            log.error("redrive could not be carried on", redrive=str(redrive_id), error=repr(error)[:500])
    if most >= CHUNK:
        return 0.0
    return 0.1 if running else 0.5


async def _carry_on(tx: Transaction, redrive_id: UUID, chain: str) -> int:
    """Note what has ended, open or close the gate, let the next members go; return how many went."""
    await tx.note_outcomes(redrive_id)
    standing = await _get(tx, redrive_id)
    if standing.state != "running":  # stopped: what had been released still comes to its outcome
        if standing.state == "aborted" and standing.outstanding == 0:
            await tx.run("redrive_resolve", id=redrive_id, by=standing.started_by)
        return 0
    in_ramp = standing.stage < len(standing.ramp)
    in_stage = await _stage(tx, standing) if in_ramp else {}
    if in_ramp and sum(in_stage.values()) >= standing.ramp[standing.stage]:
        if standing.outstanding == 0:
            await _gate(tx, standing, in_stage)
        return 0
    room = _room(standing, in_stage if in_ramp else None)
    if room > 0:
        released = await tx.release(
            redrive_id, limit=min(room, CHUNK), stage=standing.stage, priority=Priority.REDRIVEN.value, chain=chain
        )
        if released:
            return len(released)
    if standing.outstanding == 0 and await tx.run("redrive_done", id=redrive_id):
        await tx.run("redrive_resolve", id=redrive_id, by=standing.started_by)
    return 0


async def _stage(tx: Transaction, standing: Redriving) -> dict[str, int]:
    return {row["state"]: row["n"] for row in await tx.run("redrive_stage", id=standing.id, stage=standing.stage)}


async def _gate(tx: Transaction, standing: Redriving, in_stage: Mapping[str, int]) -> None:
    """Look at what a stage of the ramp has brought: on to the next, or halt."""
    same, other = in_stage.get("failed_same", 0), in_stage.get("failed_other", 0)
    tried = same + other + in_stage.get("delivered", 0)
    why = None
    if same:
        why = f"the same failure came back {same} of {tried} times in stage {standing.stage + 1}"
    elif tried and other / tried > standing.halt_at:
        why = f"{other} of {tried} failed in stage {standing.stage + 1}, more than {standing.halt_at:.0%}"
    if why is not None:
        await tx.run("redrive_stop", id=standing.id, to="halted", by="gate", reason=why)
        await tx.note("redrive-halted", "gate", {"redrive": str(standing.id), "reason": why})
    else:
        await tx.run("redrive_next_stage", id=standing.id, stage=standing.stage + 1)


def _room(standing: Redriving, in_stage: Mapping[str, int] | None) -> int:
    """How many more may go now."""
    room = standing.max_in_flight - standing.outstanding
    if in_stage is not None:
        room = min(room, standing.ramp[standing.stage] - sum(in_stage.values()))
    if standing.rate is not None and standing.metered_from is not None:
        elapsed = (standing.now - standing.metered_from).total_seconds()
        gone = standing.released + standing.skipped - standing.metered_count
        allowed = math.floor(elapsed * standing.rate) + 1 - gone
        room = min(room, allowed, max(1, math.ceil(standing.rate)))  # a pause of the workers is not made up in a burst
    return room


async def _get(tx: Transaction, redrive_id: UUID) -> Redriving:
    rows = await tx.run("redrive_get", id=redrive_id)
    if not rows:
        raise Refused(f"there is no redrive {redrive_id}: `redrive redrives ls` lists them")
    return redriving_from(rows[0])


def redriving_from(row: Mapping[str, Any]) -> Redriving:
    """Read a row of either store."""
    values = {name: row[name] for name in Redriving.__dataclass_fields__}
    for name in ("planned_at", "expires_at", "started_at", "ended_at", "metered_from", "now"):
        values[name] = _at(values[name])
    values["id"] = UUID(str(row["id"]))
    values["from_start"] = bool(row["from_start"])
    values["ramp"] = tuple(json.loads(row["ramp"]) if isinstance(row["ramp"], str) else row["ramp"])
    return Redriving(**values)


def _at(value: Any) -> datetime | None:
    return from_micros(value) if isinstance(value, int) else value


def _read(token: str) -> tuple[UUID, str]:
    head, _, digest = token.partition(":")
    try:
        return UUID(head), digest
    except ValueError as error:
        raise Refused(f"{token!r} is not a token: it looks like {UUID(int=0)}:0123456789ab") from error
