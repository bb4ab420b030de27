"""Attach: bring the artifacts of one row to their case.

    gate      under a row lock: attached, given-up and claimed artifacts are skipped; the others are claimed
    calls     each artifact by itself, its id as the idempotency key; if anybody may have called before, ask first
    settle    outcomes, roll-up and one result an artifact, in one transaction

Rows that come together share the transactions of gate and settle: a commit costs more than a row. An outcome is taken
only for the number of attempts that it began with, so the same attempt is never written twice; an event that comes
again finds nothing left to do. A duplicate of a request that is being worked on finds its artifacts claimed and leaves
them to the holder. A claim lasts as long as the handler may run. A worker that dies between the calls and the settling
leaves its claims: its event comes back and may go on, anybody else may once they have expired, and both ask the case
what it has before they attach anything. A failed artifact is a state of its own, not a failed event. Only when
the case API is away as a whole does the event fail, and waits for the circuit; that spends no artifact's attempt.

Next: ``retry`` for what failed, ``notices`` for the results.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self
from uuid import UUID

from pydantic import ValidationError

from redrive import Context, DeadLetter, Gather, Rejected, Work
from redrive.apps.evidence.cases import ATTACHED, DEPENDENCY, Answer
from redrive.apps.evidence.desk import ATTACH, RETRY, ArtifactResult, AttachRequest, Desk
from redrive.apps.evidence.shelf import Content
from redrive.apps.evidence.tables import plain

_AT_ONCE: Final = 100
_SAID_LIMIT: Final = 350


@dataclass(frozen=True, slots=True)
class Artifact:
    """What the gate let through."""

    id: str
    s3_key: str
    file_name: str
    file_type: str | None
    size: int | None
    case_id: str
    attempt_count: int
    ask_first: bool


def register(desk: Desk) -> None:
    """Add the handlers of both requests."""
    gate, settle = gate_of(desk), settle_of(desk)

    async def attach(request: AttachRequest, ctx: Context) -> None:
        await _attach(desk, gate, settle, request, ctx)

    async def give_up(dead: DeadLetter, tx: Work) -> None:
        await _give_up(desk, dead, tx)

    for type_ in (ATTACH, RETRY):
        desk.app.handler(
            desk.handled(type_), needs=[DEPENDENCY], effects="outside", on_dead_letter=give_up,
            timeout=desk.settings.claim,
        )(attach)  # fmt: skip


async def _attach(desk: Desk, gate: "Gate", settle: "Settle", request: AttachRequest, ctx: Context) -> None:
    passage = Passage.of(request, ctx.id)
    wanted = await gate(passage)
    if wanted is None:
        raise Rejected(f"the file job {passage.job_id} has no row {passage.row_id} with artifacts")
    if not wanted:
        return
    contents = await desk.shelf.fetch([each.s3_key for each in wanted])
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(_call(desk, *pair)) for pair in zip(wanted, contents, strict=True)]
    ended = Ended(passage, [(artifact, call.result()) for artifact, call in zip(wanted, calls, strict=True)])
    for artifact, answer in await settle(ended):
        last = not desk.settings.retry.should_retry(artifact.attempt_count + 1)
        desk.counts.ended(artifact.attempt_count, answer.error_code, permanent=answer.is_permanent or last)


@dataclass(frozen=True, slots=True)
class Passage:
    """Who wants to call for which row."""

    job_id: str
    row_id: str
    event_id: str
    """The event whose handler calls: it holds the claims."""
    request_id: str = ""
    """The ``event_id`` of the request, if there is one; from Kafka it comes as another event."""
    event_type: str = ""
    artifacts: frozenset[str] | None = None
    """The artifacts that the request names; ``None`` for all."""

    @classmethod
    def of(cls, request: AttachRequest, event_id: UUID) -> Self:
        """Read a request."""
        return cls(
            str(request.file_job_id), str(request.file_job_row_id), str(event_id), str(request.event_id),
            request.event_type, frozenset(str(each.artifact_id) for each in request.artifacts),
        )  # fmt: skip

    def wants(self, artifact_id: str, tried: int, status: str, retry_status: str, *, is_new: bool) -> bool:
        """Decide whether an artifact is to be tried: it never was, or somebody has asked for a retry.

        The scheduler asks by ``RETRY_SCHEDULED``. A request that this app has not published asks by itself, for
        whatever may still succeed.
        """
        if status == "ATTACHED" or retry_status == "PERMANENT_FAILED":
            return False
        if self.artifacts is not None and artifact_id not in self.artifacts:
            return False
        asked = ("RETRY_SCHEDULED", "RETRYING", *(("RETRY_FAILED",) if is_new and self.event_type == RETRY else ()))
        return tried == 0 or retry_status in asked


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of the artifacts of a row."""

    passage: Passage
    answers: "Answers"


Answers = list[tuple[Artifact, Answer]]
Gate = Gather[Passage, list[Artifact] | None]
Settle = Gather[Ended, Answers]


def gate_of(desk: Desk) -> Gate:
    """Let rows through. Once a passage is answered, its artifacts are claimed."""

    async def let_through(passages: Sequence[Passage]) -> list[list[Artifact] | None]:
        async with desk.app.transaction() as tx:
            await desk.tables.by_index(tx)
            return await through(desk, tx, passages)

    return Gather(let_through, most=_AT_ONCE)


async def through(desk: Desk, tx: Work, passages: Sequence[Passage]) -> list[list[Artifact] | None]:
    """Claim, for each passage, the artifacts that are to be tried and that nobody else has claimed.

    ``None``: there is no such row.
    """
    tables, now = desk.tables, desk.app.clock.now()
    by_row: dict[str, list[Passage]] = {}
    for each in passages:
        by_row.setdefault(each.row_id, []).append(each)
    known = await _known(desk, tx, passages)
    wanted: dict[Passage, list[Artifact]] = {}
    jobs = tables.ids({each.job_id for each in passages})
    for row in await tables.ask(tx, "gate", jobs, tables.ids(by_row), now):
        row_id, id_, key, name, type_, size, case_id, tried, status, retry_status, holder, is_claimed = row
        is_free = True
        for each in by_row[str(row_id)]:
            mine = wanted.setdefault(each, [])
            if not is_free or (is_claimed and str(holder) != each.event_id):
                continue
            if each.wants(str(id_), tried, status, retry_status, is_new=each.request_id not in known):
                ask_first = bool(tried) or holder is not None
                mine.append(Artifact(str(id_), key, name, type_, size, str(case_id), tried, ask_first))
                is_free = False
    claims = [{"id": each.id, "event_id": passage.event_id} for passage, some in wanted.items() for each in some]
    if claims:
        await tables.do(tx, "claim", json.dumps(claims), now, now + timedelta(seconds=desk.settings.claim))
        await _remember(desk, tx, [each for each, some in wanted.items() if some], known)
    return [wanted.get(each) for each in passages]


async def _known(desk: Desk, tx: Work, passages: Sequence[Passage]) -> dict[str, str]:
    """Find the requests that are written down already, and the event that carried each; those without an id are."""
    ids = desk.tables.ids({each.request_id for each in passages if each.request_id})
    rows = await desk.tables.ask(tx, "requests_known", ids)
    return {"": "", **{str(id_): str(carried_by or id_) for id_, carried_by in rows}}


async def _remember(desk: Desk, tx: Work, passages: Sequence[Passage], known: Mapping[str, str]) -> None:
    """Write down requests that are new, and which event carried a request to its handler."""
    news = {
        each.request_id: {
            "event_id": each.request_id, "job_id": each.job_id, "row_id": each.row_id, "event_type": each.event_type,
            "carried_by": None if each.event_id == each.request_id else each.event_id,
        }
        for each in passages
        if each.request_id and known.get(each.request_id) != each.event_id
    }  # fmt: skip
    if news:
        await desk.tables.do(tx, "requests_seen", json.dumps([*news.values()]), desk.app.clock.now())


async def _call(desk: Desk, artifact: Artifact, found: tuple[int, Content] | None) -> Answer:
    """Try one artifact. Somebody who may have called before us may have attached it: look there first."""
    if artifact.ask_first:
        answer = await desk.cases.is_attached(artifact.case_id, artifact.id)
        if answer is not None:
            return answer
    if found is None:
        return Answer("S3_NOT_FOUND", f"there is no object {artifact.s3_key}")
    size, content = found
    if artifact.size is not None and size != artifact.size:
        return Answer("CORRUPTED_FILE", f"it has {size} bytes, and had {artifact.size} when it was unpacked")
    return await desk.cases.attach(artifact.case_id, artifact.id, artifact.file_name, artifact.file_type, content)


def settle_of(desk: Desk) -> Settle:
    """Write outcomes down; each answer is what nobody else had written."""

    async def settle(ends: Sequence[Ended]) -> list[Answers]:
        async with desk.app.transaction() as tx:
            await desk.tables.by_index(tx)
            return await _settle(desk, tx, ends)

    return Gather(settle, most=_AT_ONCE)


async def _settle(desk: Desk, tx: Work, ends: Sequence[Ended]) -> list[Answers]:
    by_job: dict[str, list[Ended]] = {}
    for each in ends:
        by_job.setdefault(each.passage.job_id, []).append(each)
    written: set[str] = set()
    now = desk.app.clock.now()
    for job_id, of_job in by_job.items():
        outcomes = [outcome for each in of_job for outcome in _outcomes(desk, each)]
        rows = desk.tables.ids({each.passage.row_id for each in of_job})
        await desk.tables.ask(tx, "lock_rows", rows)  # so that roll-ups of one row see each other's artifacts
        written |= {str(row[0]) for row in await desk.tables.ask(tx, "outcomes", job_id, json.dumps(outcomes), now)}
        await desk.tables.do(tx, "roll_up", job_id, rows, now)
    new = [[(artifact, answer) for artifact, answer in each.answers if artifact.id in written] for each in ends]
    pairs = [(each.passage, *pair) for each, answers in zip(ends, new, strict=True) for pair in answers]
    at = plain(now)
    await desk.tell(tx, [(_result(*pair, at), pair[0].event_id) for pair in pairs])
    return new


def _outcomes(desk: Desk, ended: Ended) -> list[dict[str, Any]]:
    dice = desk.app.clock.random()  # one for the row: its artifacts come due together, as they are requeued together
    return [_outcome(artifact, answer, desk.settings.retry, dice) for artifact, answer in ended.answers]


def _outcome(artifact: Artifact, answer: Answer, policy: Any, dice: float) -> dict[str, Any]:
    attempts = artifact.attempt_count + 1
    outcome: dict[str, Any] = {
        "id": artifact.id, "attempt_count": artifact.attempt_count, "error_code": answer.error_code,
        "error_message": answer.message, "wait_seconds": None,
    }  # fmt: skip
    if answer is ATTACHED or answer.error_code is None:
        outcome["retry_status"] = "RETRY_SUCCESS" if artifact.attempt_count else "PENDING"
    elif answer.is_permanent or not policy.should_retry(attempts):
        outcome["retry_status"] = "PERMANENT_FAILED"
    else:
        outcome["retry_status"] = "RETRY_FAILED"
        outcome["wait_seconds"] = policy.delay_for(attempts, lambda: dice)
    return outcome


def _result(passage: Passage, artifact: Artifact, answer: Answer, at: str) -> ArtifactResult:
    return {
        "file_job_id": passage.job_id, "file_job_row_id": passage.row_id, "case_id": artifact.case_id,
        "artifact_id": artifact.id, "status": "FAILED" if answer.error_code else "ATTACHED",
        "error_code": answer.error_code, "error_message": answer.message,
        "attempt_count": artifact.attempt_count + 1, "occurred_at": at, "schema_version": 1,
    }  # fmt: skip


async def call_off(desk: Desk, passage: Passage, by: str, reason: str) -> None:
    """Give up, for good, what the request of a row would have tried; a person has called it off."""
    async with desk.app.transaction() as tx:
        said = f"the request was called off by {by}: {reason}"[:_SAID_LIMIT]
        await _end(desk, tx, passage, Answer("SYSTEM_ERROR", said, called_off=True))


async def _give_up(desk: Desk, dead: DeadLetter, tx: Work) -> None:
    """Write a failed attempt down for what a dead letter leaves behind, so that the scheduler takes it from there."""
    try:
        request = AttachRequest.model_validate(dead.payload)
    except ValidationError:  # it asked for nothing that could be found
        return
    said = dead.last_error.splitlines()[0]
    answer = Answer("SYSTEM_ERROR", f"the request became a dead letter: {said}"[:_SAID_LIMIT])
    await _end(desk, tx, Passage.of(request, dead.id), answer)


async def _end(desk: Desk, tx: Work, passage: Passage, answer: Answer) -> None:
    """Write the same answer down for all that a request would have tried."""
    if wanted := (await through(desk, tx, [passage]))[0]:
        await _settle(desk, tx, [Ended(passage, [(each, answer) for each in wanted])])
