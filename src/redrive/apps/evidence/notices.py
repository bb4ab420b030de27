"""Notices: N1 when every artifact of a job has had one attempt, N2 when nothing can change any more.

Every result makes somebody look, after it was committed: so whoever looks last sees everything. A notice is an event,
published by the transaction that sets ``n1_sent_at`` or ``n2_sent_at``; the row can be set once, so there is one of
each under any race and any crash. Both are forced by time: N1 some time after the job was unpacked, if the case API has
been away since then, and N2 some time after N1.
"""

import asyncio
import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog

from redrive import Context, Work
from redrive.apps.evidence.desk import DEADLINE, LOOK, N1, N2, REFUSED, RESULT, Desk, Told
from redrive.apps.evidence.tables import instant, plain

log = structlog.get_logger("redrive.apps.evidence")

_MOST_NAMED: Final = 1_000
_ENDS: Final = ("attached", "permanent_failed", "exhausted", "given_up", "unsettled")
"""An artifact that failed for good has had an error that no retry helps, or all its attempts, or no more time."""
_FOR_GOOD: Final = ("DATA", "AUTH")


def register(desk: Desk) -> "Gate":
    """Add the handlers."""
    gate = Gate(desk)

    @desk.app.handler(desk.handled(RESULT), effects="inside")
    async def told(result: Told) -> None:
        await gate.look(str(result.file_job_id))

    @desk.app.handler(LOOK, effects="inside")
    async def look(payload: dict[str, Any]) -> None:
        await gate.look(str(payload["file_job_id"]))

    @desk.app.handler(DEADLINE, effects="inside")
    async def overdue(payload: dict[str, Any]) -> None:
        await gate.force(str(payload["file_job_id"]), str(payload.get("notice", N2)))

    async def notify(notice: dict[str, Any], ctx: Context) -> None:
        log.info("evidence notice", notice=ctx.type, file_job_id=notice["file_job_id"])
        if desk.settings.notice_url:
            await desk.cases.tell(desk.settings.notice_url, ctx.idempotency_key, {"type": ctx.type, **notice})

    for type_ in (N1, N2, REFUSED):
        desk.app.handler(type_, effects="outside")(notify)
    return gate


class Gate:
    """Looks whether a notice is due. Those who ask while somebody looks share the next look."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._next: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def look(self, job_id: str) -> None:
        """Return after a look that began after this call."""
        task = self._next.get(job_id)
        if task is None:
            task = self._next[job_id] = asyncio.create_task(self._turn(job_id))
        await asyncio.shield(task)

    async def _turn(self, job_id: str) -> None:
        turn = self._turns.setdefault(job_id, asyncio.Lock())
        async with turn:
            del self._next[job_id]  # who comes from now on may know of something that this look does not see
            await self._look(job_id)
        if job_id not in self._next:
            self._turns.pop(job_id, None)

    async def _look(self, job_id: str) -> None:
        async with self._desk.app.transaction() as tx:
            found = await self._desk.tables.ask(tx, "standing", job_id)
            if not found:
                return
            status, n1_sent_at, _, untried, waiting = found[0]
            if status != "PROCESSING" or untried:
                return
            if n1_sent_at is None:
                await self._n1(tx, job_id, forced=False)
            if not waiting:
                await self._n2(tx, job_id, forced=False)

    async def force(self, job_id: str, notice: str) -> None:
        """Send a notice with the present state, if it was not sent."""
        given_up: Counter[str] = Counter()
        async with self._desk.app.transaction() as tx:
            found = await self._desk.tables.ask(tx, "standing", job_id)
            if not found or found[0][0] != "PROCESSING":
                return
            _, _, _, untried, waiting = found[0]
            if notice == N1:
                await self._n1(tx, job_id, forced=bool(untried))
            else:
                given_up = await self._n2(tx, job_id, forced=bool(untried or waiting))
        self._desk.counts.permanent.update(given_up)

    async def _n1(self, tx: Work, job_id: str, *, forced: bool) -> None:
        desk, now = self._desk, self._desk.app.clock.now()
        if not await desk.tables.ask(tx, "take_n1", job_id, now):
            return
        summary = await self._summary(tx, job_id)
        due = now + timedelta(seconds=desk.settings.n2_after)
        summary |= {"forced": forced, "will_retry": summary.pop("unsettled"), "retried_until": plain(due)}
        await self._send(tx, N1, job_id, summary, now)
        await desk.tables.do(tx, "keep_n1", job_id, json.dumps(summary))
        await tx.publish(DEADLINE, {"file_job_id": job_id, "notice": N2}, due_at=due, correlation_id=job_id)

    async def _n2(self, tx: Work, job_id: str, *, forced: bool) -> Counter[str]:
        """Send N2; return the errors of artifacts that were given up for it."""
        desk, now = self._desk, self._desk.app.clock.now()
        taken = await desk.tables.ask(tx, "take_n2", job_id, now, forced)
        if not taken:
            return Counter()
        given_up = await self._give_up(tx, job_id, now) if forced and desk.settings.n2_leftovers_fail else Counter()
        n1_sent_at = instant(taken[0][0])
        assert n1_sent_at is not None
        summary = await self._summary(tx, job_id)
        summary |= {"forced": forced, "seconds_since_n1": (now - n1_sent_at).total_seconds()}
        await self._send(tx, N2, job_id, summary, now)
        await desk.tables.do(tx, "keep_n2", job_id, json.dumps(summary))
        return given_up

    async def _give_up(self, tx: Work, job_id: str, now: datetime) -> Counter[str]:
        """Let artifacts that could still be tried fail for good; return their errors."""
        tables = self._desk.tables
        left = await tables.ask(tx, "leftovers", job_id, now)
        if left:
            await tables.do(tx, "roll_up", job_id, tables.ids({str(row[0]) for row in left}), now)
        return Counter(str(row[1]) for row in left)

    async def _send(self, tx: Work, type_: str, job_id: str, summary: dict[str, Any], now: datetime) -> None:
        notice = {"file_job_id": job_id, "sent_at": now, **summary, "schema_version": 1}
        key = f"{type_}:{job_id}"
        await tx.publish(type_, notice, subject=f"file_job/{job_id}", correlation_id=job_id, idempotency_key=key)

    async def _summary(self, tx: Work, job_id: str) -> dict[str, Any]:
        """Count what became of the artifacts; every one of them is in exactly one of the five numbers."""
        desk = self._desk
        ends: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        recovered = not_tried = 0
        for row in await desk.tables.ask(tx, "summary", job_id, desk.settings.retry.max_attempts):
            status, retry_status, code, category, retried, used_up, untried, n = row
            not_tried += n if untried else 0
            if status == "ATTACHED":
                ends["attached"] += n
                recovered += n if retried else 0
                continue
            if code is not None:
                errors[code] += n
            settled = "permanent_failed" if category in _FOR_GOOD and code else "exhausted" if used_up else "given_up"
            ends[settled if retry_status == "PERMANENT_FAILED" else "unsettled"] += n
        named = await self._desk.tables.ask(tx, "cannot_retry", job_id, _MOST_NAMED)
        bad = await self._desk.tables.ask(tx, "bad_rows", job_id, _MOST_NAMED)
        return {
            "total": ends.total(),
            **{name: ends[name] for name in _ENDS},
            "not_attempted": not_tried,
            "recovered_by_retry": recovered,
            "by_error": dict(sorted(errors.items())),
            "cannot_retry": [
                {"artifact_id": str(id_), "case_id": str(case_id), "file_name": name, "error_code": code, "why": why}
                for id_, case_id, name, code, why in named
            ],
            "refused_rows": [{"line": line, "error_code": code, "why": why} for line, code, why in bad],
        }


def job_of(text: str) -> str | None:
    """Read the id of a job; ``None`` for what is none."""
    try:
        return str(UUID(text))
    except ValueError:
        return None
