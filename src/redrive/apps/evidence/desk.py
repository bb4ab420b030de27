"""Desk: what all steps of this app share, and the words they use.

ZIP ─► receive ─► expand ─► EVIDENCE_ATTACH ─► attach ─┬─► EVIDENCE_ARTIFACT_RESULT ─► notices ─► N1, N2
                                   ▲                   │
                 EVIDENCE_ATTACH_RETRY ◄── retry ◄─────┘ failed, and worth another attempt
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict
from uuid import UUID

from pydantic import BaseModel

from redrive import Redrive, Work
from redrive.apps.evidence.cases import Cases
from redrive.apps.evidence.settings import Settings
from redrive.apps.evidence.shelf import Shelf
from redrive.apps.evidence.tables import Tables, plain

RECEIVED: Final = "EVIDENCE_FILE_RECEIVED"
ATTACH: Final = "EVIDENCE_ATTACH"
RETRY: Final = "EVIDENCE_ATTACH_RETRY"
RESULT: Final = "EVIDENCE_ARTIFACT_RESULT"
N1: Final = "EVIDENCE_N1"
N2: Final = "EVIDENCE_N2"
REFUSED: Final = "EVIDENCE_FILE_REFUSED"
LOOK: Final = "evidence.job.look"
DEADLINE: Final = "evidence.n2.deadline"
SCHEDULER: Final = "evidence.retries.look"

RETRY_COUNT: Final = "retry_count"
"""The header of a request that says which retry of its row it is; 0 is the first attempt."""

TOPICS: Final = {
    ATTACH: "evidence.attach.requests",
    RETRY: "evidence.failed.requests",
    RESULT: "evidence.attach.results",
}


class ArtifactRef(BaseModel):
    """One artifact of a request."""

    artifact_id: UUID
    s3_key: str


class AttachRequest(BaseModel):
    """``EVIDENCE_ATTACH`` and ``EVIDENCE_ATTACH_RETRY``: all artifacts of one row; the worker filters."""

    event_id: UUID
    event_type: str
    occurred_at: datetime
    file_job_id: UUID
    file_job_row_id: UUID
    case_id: UUID
    artifacts: list[ArtifactRef]
    retry_reason: str | None = None
    schema_version: Literal[1]


class ArtifactResult(TypedDict):
    """``EVIDENCE_ARTIFACT_RESULT``: how one attempt at one artifact ended. Plain: there is one for each artifact."""

    file_job_id: str
    file_job_row_id: str
    case_id: str
    artifact_id: str
    status: Literal["ATTACHED", "FAILED"]
    error_code: str | None
    error_message: str | None
    attempt_count: int
    occurred_at: str
    schema_version: Literal[1]


class Told(BaseModel):
    """What of a result makes somebody look whether a notice is due."""

    file_job_id: UUID
    schema_version: Literal[1] = 1


@dataclass(slots=True)
class Counts:
    """What this process has seen, for Prometheus."""

    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By ``first`` or ``retry``, and ``attached`` or ``failed``."""
    permanent: Counter[str] = field(default_factory=Counter)
    """By error code."""

    def ended(self, attempts_before: int, error_code: str | None, *, permanent: bool) -> None:
        """Count one attempt."""
        self.attempts["retry" if attempts_before else "first", "failed" if error_code else "attached"] += 1
        if error_code and permanent:
            self.permanent[error_code] += 1


@dataclass(frozen=True, slots=True)
class Desk:
    """One of each."""

    app: Redrive
    settings: Settings
    tables: Tables
    shelf: Shelf
    cases: Cases
    counts: Counts = field(default_factory=Counts)

    def handled(self, type_: str) -> str:
        """Under which type an event comes to its handler: its own, or, by way of Kafka, the name of its topic."""
        return TOPICS[type_] if self.settings.kafka else type_

    async def request(
        self, tx: Work, type_: str, job_id: str, rows: Mapping[str, tuple[str, list[tuple[str, str]]]], now: datetime,
        retries: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Publish one event for each row, with all its artifacts, and note which event that is.

        The event's id stands in its payload, too. ``retries``: which retry this is for each row; a header says it.
        """
        drafts: list[Any] = []
        links: list[dict[str, str]] = []
        at = plain(now)
        for row_id, (case_id, artifacts) in rows.items():
            event_id = str(self.app.clock.new_id())
            payload = {
                "event_id": event_id, "event_type": type_, "occurred_at": at, "file_job_id": job_id,
                "file_job_row_id": row_id, "case_id": case_id,
                "artifacts": [{"artifact_id": each, "s3_key": key} for each, key in artifacts],
                **({"retry_reason": "AUTOMATED_RETRY"} if type_ == RETRY else {}), "schema_version": 1,
            }  # fmt: skip
            about = {
                "id": event_id, "subject": f"file_job_row/{row_id}", "correlation_id": job_id,
                "headers": {RETRY_COUNT: str(retries.get(row_id, 0))},
            }  # fmt: skip
            drafts.append((type_, payload, about))
            links.append({"event_id": event_id, "row_id": row_id})
        await tx.publish_many(drafts)
        await self.tables.do(tx, "events_add", job_id, json.dumps(links), type_, now)

    async def tell(self, tx: Work, results: Sequence[tuple[ArtifactResult, str | None]]) -> None:
        """Publish one result for each artifact that was tried, and for each say which event was the cause."""
        drafts: list[Any] = []
        for result, causation_id in results:
            event_id = str(self.app.clock.new_id())
            about = {
                "id": event_id, "subject": f"file_job_artifact/{result['artifact_id']}",
                "correlation_id": result["file_job_id"], "causation_id": causation_id,
            }  # fmt: skip
            drafts.append((RESULT, {"event_id": event_id, "event_type": RESULT, **result}, about))
        if drafts:
            await tx.publish_many(drafts)
