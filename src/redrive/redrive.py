"""The redrive: many replays as one durable operation.

    plan     a selection is resolved once; the members are frozen, and why one may not go is said before anything moves
    start    needs the plan's token and a reason; the set can only shrink
    release  in stages of a ramp, at a rate, or within a number in flight; all halt when members fail again
    outcome  per member: delivered, failed the same, failed otherwise, skipped; done means ended, not sent

Members of one ordering key go in the order of its line, each when the one before it has ended: see
``0016_hardening.sql``. Everything is in the database, and the workers carry it on, a tick at a time, whoever finds it
free: there is no leader to lose. Pause, resume and abort at any time; what was not released is what it was.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.duty import Tick
from redrive.errors import ConfigurationError, LockHeld, NeedsApproval, Refused, StoreUnavailable
from redrive.event import Priority
from redrive.instant import instant_of
from redrive.logs import log
from redrive.store.base import Store, Transaction

PLAN_KEPT_SECONDS: Final = 86_400.0
CHUNK: Final = 1_000
DEFAULT_IN_FLIGHT: Final = 5_000
REPLAY_BUDGET: Final = 50
DIGEST_SHOWN: Final = 12
BUSY_SECONDS: Final = 0.1
_NAMED: Final = 5
_MANY: Final = 100  # went at once: the workers may be waiting for more
IDLE_SECONDS: Final = 0.5
_PAGE: Final = 100  # payloads may be large
_PLAN_CHUNK: Final = 10_000
_MOST_PARTS: Final = 50
JUDGED: Final = 20  # members that ended before the gate judges: one unlucky event of two must not halt a million
_WINDOW: Final = 1_000  # outcomes that are judged together: what went well long ago says nothing about now
_GROWTH: Final = 10  # for each member that was delivered so many may be under way


@dataclass(frozen=True, slots=True)
class Release:
    """How fast the members of a redrive are released, and at which share of failures it halts (None: never)."""

    rate: float | None = None
    max_in_flight: int = DEFAULT_IN_FLIGHT
    ramp: tuple[int, ...] = ()
    halt_at: float | None = 0.1

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
        if self.halt_at is not None and not 0 <= self.halt_at <= 1:
            raise ConfigurationError(
                f"halt_at is a share of failures from 0 to 1 (10% is 0.1), or None to never halt, not {self.halt_at:g}"
            )


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
    edited: bool
    rate: float | None
    max_in_flight: int
    ramp: tuple[int, ...]
    halt_at: float | None
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
    judged_delivered: int
    judged_same: int
    judged_other: int
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
    def untouched(self) -> int:
        """Members that were ready and have not been released: they are what they were."""
        return self.ready - self.ended - self.outstanding

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
    by: str, targets: Sequence[str] = (), readers: Mapping[str, Callable[[str], object]] | None = None,
    unsafe: bool = False, progress: Callable[[int], None] | None = None,
) -> Plan:  # fmt: skip
    """Freeze a set of dead letters and say what would become of each; ``readers`` are what the targets can read.

    The set is what it was at one moment, but it is written down a chunk at a time, so that a million members keep
    nobody from working meanwhile.
    """
    async with store.transaction() as tx:
        written = await tx.run(
            "redrive_plan", id=redrive_id, selection=selection, sentence=sentence, by=by, keep=PLAN_KEPT_SECONDS
        )
    common = {
        **values, "id": redrive_id, "until": written[0]["planned_at"], "targets": list(targets), "unsafe": unsafe,
        "budget": REPLAY_BUDGET,
    }  # fmt: skip
    draft = _Draft()
    while True:
        async with store.transaction() as tx:
            await tx.run(
                "redrive_members", clauses, after=draft.last, position=draft.total, limit=_PLAN_CHUNK, **common
            )
            await _set_unfit_apart(tx, redrive_id, draft.total, readers or {})
            if await tx.run("redrive_has_keys", id=redrive_id, after=draft.total):
                await tx.run("redrive_keyed", id=redrive_id, after=draft.total)
            added = draft.take(
                await tx.run("redrive_eligibility", id=redrive_id, after=draft.total),
                await tx.run("redrive_digest", id=redrive_id, after=draft.total),
            )
        if progress is not None:
            progress(draft.total)
        if added < _PLAN_CHUNK:
            break
    await _line_up(store, redrive_id, draft)
    fingerprints = sorted(draft.groups)
    async with store.transaction() as tx:
        members = [draft.groups[each]["n"] for each in fingerprints]
        await tx.run("redrive_groups", id=redrive_id, fingerprints=fingerprints, members=members)
        await tx.run(
            "redrive_planned", id=redrive_id, digest=draft.digest.hexdigest(), total=draft.total, ready=draft.ready
        )
        facts = {"redrive": str(redrive_id), "events": draft.ready, "selection": selection}
        await tx.note("redrive-planned", by, facts)
        known = await tx.run("redrive_parts", fingerprints=draft.largest)
        planned = await get_in(tx, redrive_id)
    return Plan(planned, draft.ineligible, draft.parts(known))


async def _line_up(store: Store, redrive_id: UUID, draft: "_Draft") -> None:
    """Put the members with ordering keys in the order of their lines, when all are there, some lines at a time."""
    after = ""
    while True:
        async with store.transaction() as tx:
            last = await tx.run("redrive_lines", id=redrive_id, after=after, limit=_PLAN_CHUNK)
            if not last:
                return
            lines = {"id": redrive_id, "after": after, "until": last[0]["line"]}
            draft.leave_out(len(await tx.run("redrive_behind", **lines)), "behind a failed head of its ordering key")
            await tx.run("redrive_line", **lines)
        after = last[0]["line"]


class _Draft:
    """A plan while its members are written down: what they are so far."""

    def __init__(self) -> None:
        self.total = 0
        self.ready = 0
        self.last = UUID(int=0)
        self.ineligible: dict[str, int] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.digest = hashlib.sha256()

    def take(self, counts: Sequence[Mapping[str, Any]], text: Sequence[Mapping[str, Any]]) -> int:
        """Take in the next members; return how many there were."""
        added: int = sum(row["n"] for row in counts)
        if not added:
            return 0
        members = text[0]["members"]
        self.digest.update(members.encode() + b",")
        self.last = UUID(members.rpartition(",")[2].partition(":")[0])
        self.total += added
        for row in counts:
            if row["state"] == "ready":
                self.ready += row["n"]
            else:
                self.ineligible[row["reason"]] = self.ineligible.get(row["reason"], 0) + row["n"]
            if row["fingerprint"] is not None:
                self._count(self.groups.setdefault(row["fingerprint"], {"n": 0, "oldest": None, "newest": None}), row)
        return added

    def leave_out(self, count: int, why: str) -> None:
        """Take back that some members were ready."""
        if count:
            self.ready -= count
            self.ineligible[why] = self.ineligible.get(why, 0) + count

    @staticmethod
    def _count(group: dict[str, Any], row: Mapping[str, Any]) -> None:
        group["n"] += row["n"]
        ends = [_at(end) for end in (group["oldest"], group["newest"], row["oldest"], row["newest"]) if end is not None]
        if ends:
            group["oldest"], group["newest"] = min(ends), max(ends)

    @property
    def largest(self) -> list[str]:
        return sorted(self.groups, key=lambda each: (-self.groups[each]["n"], each))[:_MOST_PARTS]

    def parts(self, known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Say what the members are, the largest groups first."""
        what = {row["fingerprint"]: row for row in known}
        return [{**what[each], **self.groups[each]} for each in self.largest if each in what]


async def _set_unfit_apart(
    tx: Transaction, redrive_id: UUID, after: int, readers: Mapping[str, Callable[[str], object]]
) -> None:
    """Find the members after a position whose payload today's handler could not read, a page at a time."""
    while readers:
        page = await tx.run("redrive_payloads", id=redrive_id, after=after, targets=sorted(readers), limit=_PAGE)
        # In a thread: reading a page can take long, and the event loop has other work.
        unfit = await asyncio.to_thread(_unfit, page, readers)
        if unfit:
            await tx.run("redrive_unfit", id=redrive_id, positions=unfit)
        if len(page) < _PAGE:
            return
        after = page[-1]["position"]


def _unfit(page: Sequence[Mapping[str, Any]], readers: Mapping[str, Callable[[str], object]]) -> list[int]:
    found = []
    for row in page:
        try:
            readers[row["target"]](row["payload"])
        except Exception:  # noqa: BLE001 - whatever a stranger's validator raises, the handler would not get to run
            found.append(row["position"])
    return found


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
    repeat_steps: bool = False,
) -> Redriving:
    """Let a planned redrive go. Needs the token of the plan as it was shown."""
    release.check()
    redrive_id, digest = _read(token)
    async with store.transaction() as tx:
        planned = await get_in(tx, redrive_id)
        _check_start(planned, digest, await _approval_limit(tx, approval_above))
        if from_start and not repeat_steps:
            await _refuse_repeating(tx, redrive_id)
        values: dict[str, Any] = {
            "id": redrive_id, "digest": planned.digest, "by": by, "reason": reason, "generation": generation,
            "rate": release.rate, "max_in_flight": release.max_in_flight, "ramp": list(release.ramp),
            "halt_at": 1.0 if release.halt_at is None else release.halt_at, "gated": release.halt_at is not None,
            "from_start": from_start,
        }  # fmt: skip
        if not await tx.run("redrive_start", **values):
            raise Refused(f"redrive {redrive_id} cannot be started any more: plan it again")
        facts = {"redrive": str(redrive_id), "reason": reason, "events": planned.ready, "what": planned.sentence}
        await tx.note("redrive-started", by, facts)
        return await get_in(tx, redrive_id)


async def approval_limit(store: Store, own: int | None) -> int | None:
    """Say above how many events a second person is needed, if at all."""
    return _stricter(own, await store.ask("setting_get", name="approval_above"))


async def _approval_limit(tx: Transaction, own: int | None) -> int | None:
    return _stricter(own, await tx.run("setting_get", name="approval_above"))


def _stricter(own: int | None, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Take the stricter of what the database says for everybody and what this app says."""
    limits = [own, json.loads(rows[0]["value"]) if rows else None]
    return min((each for each in limits if each is not None), default=None)


async def _refuse_repeating(tx: Transaction, redrive_id: UUID) -> None:
    """Refuse to forget steps that have an effect which nobody has undone."""
    rows = await tx.run("redrive_not_undone", id=redrive_id, limit=_NAMED + 1)
    if rows:
        named = ", ".join(str(row["event_id"]) for row in rows[:_NAMED]) + (", …" if len(rows) > _NAMED else "")
        raise Refused(
            f"events of this plan have finished steps that were not undone ({named}): from the start they would run "
            "again. Start it without from_start to continue after them, or say repeat_steps (--repeat-steps) if they "
            "may run twice"
        )


def _check_start(planned: Redriving, digest: str, approval_above: int | None) -> None:
    if not digest or not planned.digest.startswith(digest):
        raise Refused("this token is not of this plan: use the token that `plan` printed, or plan again")
    if planned.edited and planned.state == "planned":
        raise NeedsApproval(
            f"an edited payload goes when somebody else than {planned.planned_by} approves it: "
            f"`redrive redrives approve {planned.id}`"
        )
    if planned.state == "planning":
        raise Refused(f"redrive {planned.id} is still being planned; if whoever planned it is gone, plan again")
    if planned.state != "planned":
        raise Refused(f"redrive {planned.id} is {planned.state} already, started by {planned.started_by}")
    if planned.expires_at <= planned.now:
        raise Refused(f"the plan expired at {planned.expires_at:%Y-%m-%d %H:%M} UTC: plan again")
    if planned.ready == 0:
        raise Refused("nothing in this plan is ready to go")
    if approval_above is not None and planned.ready > approval_above and planned.approved_by is None:
        raise NeedsApproval(
            f"{planned.ready} events are more than the {approval_above} that need no second person: "
            f"somebody else approves first (`redrive redrives approve {planned.id}`)"
        )


def check_second_person(planned: Redriving, by: str) -> None:
    """Refuse an approval by whoever planned it."""
    if planned.planned_by == by:
        raise Refused(f"{by} planned this redrive: the approval must come from somebody else")


async def approve(store: Store, redrive_id: UUID, *, by: str) -> Redriving:
    """Agree with a plan as a second person."""
    async with store.transaction() as tx:
        planned = await get_in(tx, redrive_id)
        check_second_person(planned, by)
        if not await tx.run("redrive_approve", id=redrive_id, by=by):
            raise Refused(f"redrive {redrive_id} is {planned.state}: only a plan can be approved")
        await tx.note("redrive-approved", by, {"redrive": str(redrive_id), "events": planned.ready})
        return await get_in(tx, redrive_id)


async def stop(store: Store, redrive_id: UUID, *, to: str, by: str, reason: str) -> Redriving:
    """Pause or abort. What was not released stays what it was."""
    async with store.transaction() as tx:
        is_stopped = await tx.run("redrive_stop", id=redrive_id, to=to, by=by, reason=reason)
        standing = await get_in(tx, redrive_id)  # only now: a tick that we have waited for may have released some
        if not is_stopped:
            raise Refused(f"redrive {redrive_id} is {standing.state}: it cannot be {to}")
        if to == "aborted" and standing.outstanding == 0:
            await tx.run("redrive_resolve", id=redrive_id, by=by)
        if standing.edited:
            await tx.run("revision_drop", id=redrive_id)
        facts = {"redrive": str(redrive_id), "reason": reason, "released": standing.released}
        await tx.note(f"redrive-{to}", by, facts)  # last: everybody takes the lock of the trail after all others
        return await get_in(tx, redrive_id)


async def resume(store: Store, redrive_id: UUID, *, by: str) -> Redriving:
    """Go on after a pause or a halt; a halted ramp goes on with its next stage, and what comes then is judged anew."""
    async with store.transaction() as tx:
        await tx.run("redrive_take", id=redrive_id)  # a tick may be halting it this moment
        standing = await get_in(tx, redrive_id)
        if not await tx.run("redrive_resume", id=redrive_id):
            raise Refused(f"redrive {redrive_id} is {standing.state}: only a paused or halted one can be resumed")
        await tx.note("redrive-resumed", by, {"redrive": str(redrive_id), "was": standing.state})
        return await get_in(tx, redrive_id)


async def get(store: Store, redrive_id: UUID) -> Redriving:
    """Read one redrive as it stands."""
    async with store.transaction() as tx:
        return await get_in(tx, redrive_id)


async def tick(store: Store, *, chain: str) -> Tick:
    """Carry on every redrive that can move and that nobody else is carrying on."""
    ready = await movable(store)
    moved = hurry = False
    for redrive_id, surely in ready.items():
        try:
            async with store.transaction() as tx:
                if await tx.run("redrive_lock", id=redrive_id):
                    gone = await _carry_on(tx, redrive_id, chain)
                    moved = moved or surely or bool(gone)
                    # what was skipped costs nothing: neither of the rate nor of the ramp
                    hurry = hurry or len(gone) >= _MANY or any(why for _, why in gone)
        except LockHeld as error:  # somebody has one of its rows: the others go on
            log.debug("redrive postponed", redrive=str(redrive_id), error=str(error))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one that is broken must not hold up the others
            log.error("redrive could not be carried on", redrive=str(redrive_id), error=repr(error)[:500])
    return Tick(moved, 0.0 if hurry else BUSY_SECONDS if ready else IDLE_SECONDS)


async def movable(store: Store) -> dict[UUID, bool]:
    """Find the redrives that can move, and whether they surely do; in any order, so that workers do not queue up."""
    dice = store.clock.random
    rows = await store.ask("redrive_running", part=dice(), turn=dice())
    found = {UUID(str(row["id"])): bool(row["surely"]) for row in rows}
    return {each: found[each] for each in sorted(found, key=lambda _: dice())}


async def _carry_on(tx: Transaction, redrive_id: UUID, chain: str) -> Sequence[tuple[UUID, str | None]]:
    """Note what has ended, open or close the gate, let the next members go; return those, and why one was skipped."""
    await tx.note_outcomes(redrive_id)
    standing = await get_in(tx, redrive_id)
    if standing.state != "running":  # stopped: what had been released still comes to its outcome
        if standing.state == "aborted" and standing.outstanding == 0:
            await tx.run("redrive_resolve", id=redrive_id, by=standing.started_by)
        return ()
    in_stage = await _stage(tx, standing) if standing.stage < len(standing.ramp) else None
    if in_stage is not None and sum(in_stage.values()) >= standing.ramp[standing.stage]:
        if standing.outstanding == 0:
            await _end_stage(tx, standing, in_stage)
        return ()
    if in_stage is None and await _halted(tx, standing):
        return ()
    room = min(_room(standing, in_stage), await _metered(tx, standing))
    if room > 0:
        released = await tx.release(
            redrive_id, limit=min(room, CHUNK), stage=None if in_stage is None else standing.stage,
            priority=Priority.REDRIVEN.value, chain=chain,
        )  # fmt: skip
        if released:
            return released
    if standing.outstanding == 0 and await tx.run("redrive_done", id=redrive_id):
        await tx.run("redrive_resolve", id=redrive_id, by=standing.started_by)
    return ()


async def _stage(tx: Transaction, standing: Redriving) -> dict[str, int]:
    """Count the members of this stage: those it has released. A skipped one does not count; another takes its place."""
    rows = await tx.run("redrive_stage", id=standing.id, stage=standing.stage)
    return {row["state"]: row["n"] for row in rows if row["state"] != "skipped"}


async def _end_stage(tx: Transaction, standing: Redriving, in_stage: Mapping[str, int]) -> None:
    """Judge a stage of the ramp whose members have all ended: go on to the next, or halt."""
    same, other = in_stage.get("failed_same", 0), in_stage.get("failed_other", 0)
    tried = same + other + in_stage.get("delivered", 0)
    limit, here = standing.halt_at, f"stage {standing.stage + 1}"
    if limit is not None and same:
        await _halt(tx, standing, f"the same failure came back {same} of {tried} times in {here}")
    elif limit is not None and tried and other / tried > limit:
        await _halt(tx, standing, f"{other} of {tried} failed in {here}, more than {limit:.0%}")
    else:
        await tx.run("redrive_next_stage", id=standing.id, stage=standing.stage + 1)


async def _halted(tx: Transaction, standing: Redriving) -> bool:
    """Judge the latest outcomes of a redrive without a ramp, or after it: halt when too many of them are failures.

    The last members have nothing to wait for: a redrive that has released all of them ends.
    """
    same = standing.failed_same - standing.judged_same
    failed = same + standing.failed_other - standing.judged_other
    tried = failed + standing.delivered - standing.judged_delivered
    limit = standing.halt_at
    if limit is None or not standing.untouched or tried < (JUDGED if limit else 1):
        return False
    if failed / tried > limit:
        what = f"the same failure came back {same} of {tried} times" if same else f"{failed} of {tried} failed"
        await _halt(tx, standing, f"{what}, more than {limit:.0%}")
        return True
    if tried >= _WINDOW:
        await tx.run("redrive_next_stage", id=standing.id, stage=standing.stage)
    return False


async def _halt(tx: Transaction, standing: Redriving, why: str) -> None:
    await tx.run("redrive_stop", id=standing.id, to="halted", by="gate", reason=why)
    await tx.note("redrive-halted", "gate", {"redrive": str(standing.id), "reason": why})


def _room(standing: Redriving, in_stage: Mapping[str, int] | None) -> int:
    """How many more there is room for: in flight, and in this stage of the ramp.

    Without a rate or a stage to hold it back, a redrive that may halt begins with a few: the gate judges members that
    have ended, and until then everything would be released.
    """
    room = standing.max_in_flight
    if in_stage is None and standing.rate is None and standing.halt_at is not None:
        room = min(room, max(JUDGED, _GROWTH * standing.delivered))
    room -= standing.outstanding
    if in_stage is not None:
        room = min(room, standing.ramp[standing.stage] - sum(in_stage.values()))
    return room


async def _metered(tx: Transaction, standing: Redriving) -> int:
    """How many more the rate allows now: at most those of one second, however long nobody was there to release."""
    if standing.rate is None or standing.metered_from is None:
        return CHUNK
    elapsed = (standing.now - standing.metered_from).total_seconds()
    allowed = math.floor(elapsed * standing.rate) + 1 - (standing.released - standing.metered_count)
    burst = math.ceil(standing.rate)
    if allowed > burst or elapsed < 0:  # the workers were away, or the server's clock was set back
        await tx.run("redrive_meter", id=standing.id)
        return burst if allowed > burst else 0
    return allowed


async def get_in(tx: Transaction, redrive_id: UUID) -> Redriving:
    """Read one redrive inside a transaction."""
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
    values["edited"] = bool(row["edited"])
    values["halt_at"] = row["halt_at"] if row["gated"] else None
    values["ramp"] = tuple(json.loads(row["ramp"]) if isinstance(row["ramp"], str) else row["ramp"])
    return Redriving(**values)


def _at(value: Any) -> Any:
    return instant_of(value)


def _read(token: str) -> tuple[UUID, str]:
    head, _, digest = token.partition(":")
    try:
        return UUID(head), digest
    except ValueError as error:
        raise Refused(f"{token!r} is not a token: it looks like {UUID(int=0)}:0123456789ab") from error
