"""Letters: dead letters on their way from one database to another, one JSON object a line.

A line has everything that makes the event what it is: identity, keys, correlation and causation, payload, the error and
the history of failures, and the steps it has finished, so that a replay elsewhere goes on after them. It comes in as a
dead letter again, counted in its group and on the trail. What is here already is left alone, so that taking the same
lines in twice changes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from redrive.errors import PayloadRefused
from redrive.event import ErrorClass, Event, FailureCycle
from redrive.instant import from_micros, iso, to_micros
from redrive.payload import Limits, decode, encode, encode_headers, parse_strict
from redrive.store.base import Store

MOST_BYTES: Final = 33_554_432  # of one line; ours are far below
_MOST_CYCLES: Final = 20  # as many as a row keeps
_YEARS: Final = range(1970, 9_001)
# What another database held is taken as it is; that database's own limits were for its publishers.
_LIMITS: Final = Limits(max_bytes=2 * MOST_BYTES, max_depth=190)

_Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
_Short = Annotated[str, StringConstraints(max_length=255)]
_Key = Annotated[str, StringConstraints(max_length=512)]
_Int = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Long = Annotated[int, Field(ge=0, le=2**63 - 1)]


class KeptStep(BaseModel):
    """A step of a dead letter as it was written down."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: _Name
    cycle: _Int
    position: _Int
    state: Literal["started", "done", "compensated", "skipped"]
    key: Annotated[str, StringConstraints(max_length=1_024)]
    result: Any = None
    compensation: _Name | None = None
    compensation_id: UUID | None = None
    compensate_on: _Short = ""
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None


class Letter(BaseModel):
    """A dead letter as it was written down; what else a line has is of no use here."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: UUID
    type: _Name
    source: _Short = ""
    target: _Name
    subject: _Key | None = None
    payload: Any
    headers: dict[str, str] = {}
    idempotency_key: _Key
    retry_key: _Key | None = None
    correlation_id: _Short | None = None
    causation_id: _Short | None = None
    ordering_key: _Key | None = None
    queue: _Name = "default"
    priority: Annotated[int, Field(ge=0, le=3)] = 1
    status: Literal["failed"]
    due_at: AwareDatetime
    attempts: _Int = 0
    lost_count: _Int = 0
    deferred_count: _Int = 0
    max_attempts: _Int | None = None
    fence: _Long = 0
    generation: _Long = 0
    cycle: _Int = 0
    degraded: bool = False
    first_failed_at: AwareDatetime | None = None
    last_error: str | None = None
    error_class: ErrorClass | None = None
    error_type: str | None = None
    safe_to_retry: bool | None = None
    fingerprint: _Short | None = None
    failure_history: list[dict[str, Any]] = []
    created_at: AwareDatetime
    ended_at: AwareDatetime
    deleted_at: AwareDatetime | None = None
    deadline_at: AwareDatetime | None = None
    compensation: Literal["done"] | None = None
    steps_from: _Int = 0
    steps: Annotated[list[KeptStep], Field(max_length=10_000)] | None = None
    """None: an export of an earlier version, which did not carry them."""


class BadLetter(ValueError):
    """A line is not a dead letter that could be stored."""


def read(line: bytes) -> dict[str, Any]:
    """Read a line into the row it becomes; what could not be stored exactly is refused here."""
    if len(line) > MOST_BYTES:
        raise BadLetter(f"it has more than {MOST_BYTES:,} bytes")
    try:
        parse_strict(line)  # pydantic's own parser keeps the last of two keys, and the double next to a number
        letter = Letter.model_validate_json(line)
        return _row(letter)
    except ValidationError as error:
        raise BadLetter(_said(error)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadLetter(f"it is no JSON object ({str(error)[:200]})") from None
    except PayloadRefused as error:
        raise BadLetter(str(error)) from None
    except (ValueError, TypeError, AttributeError) as error:  # a cycle of the history that is none
        raise BadLetter(f"its failure_history cannot be read: {error}") from None


def _row(letter: Letter) -> dict[str, Any]:
    fields = Letter.model_fields.keys() - {"status", "steps"}
    row = {name: _plain(getattr(letter, name), name) for name in Letter.model_fields if name in fields}
    cycles = [FailureCycle.from_json(cycle).to_json() for cycle in letter.failure_history[-_MOST_CYCLES:]]
    row |= {
        "payload": encode(letter.payload, _LIMITS),
        "headers": encode_headers(letter.headers),
        "failure_history": encode(cycles, _LIMITS, "failure_history"),
    }
    encode({name: value for name, value in row.items() if isinstance(value, str)}, _LIMITS, "it")  # no NUL anywhere
    row["steps"] = None if letter.steps is None else [_step_row(each, row["id"]) for each in letter.steps]
    return row


def _step_row(step: KeptStep, event_id: str) -> dict[str, Any]:
    row = {name: _plain(getattr(step, name), name) for name in KeptStep.model_fields if name != "result"}
    encode({name: value for name, value in row.items() if isinstance(value, str)}, _LIMITS, "its steps")
    result = None if step.state == "started" else encode(step.result, _LIMITS, f"the result of step {step.name!r}")
    return {**row, "event_id": event_id, "result": result}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, datetime):
        if value.year not in _YEARS:
            raise PayloadRefused(f"{name} must lie between the years {_YEARS.start} and {_YEARS[-1]}", field=name)
        return to_micros(value)
    return str(value) if isinstance(value, UUID) else value


def _said(error: ValidationError) -> str:
    """Say what is wrong with the first fault; never the value, which may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:200]
    if place == "status":
        return "its status is not failed: only dead letters can be taken in"
    if place == "compensation" or place.endswith(".state"):
        return "its compensations have not ended: finish them in the database it comes from, then export it again"
    if first["type"] == "missing":
        return f"it has no {place}: only what `redrive dlq export` wrote as JSON lines can be taken in"
    return f"{place}: {first['msg'][:200]}" if place else f"it is no JSON object ({first['msg'][:200]})"


async def take_in(store: Store, rows: Sequence[Mapping[str, Any]], *, by: str, reason: str) -> int:
    """Store dead letters in one transaction; return how many are new here."""
    in_order = sorted(rows, key=lambda row: str(row["id"]))  # two who take in the same cannot wait for each other
    events = [{name: value for name, value in row.items() if name != "steps"} for row in in_order]
    async with store.transaction() as tx:
        new = await tx.run("dead_letters_import", rows=json.dumps(events, ensure_ascii=False))
        if new:
            known = {str(row["id"]) for row in new}
            steps = {
                row["id"]: row["steps"] or [] for row in in_order if row["id"] in known
            }  # of a line given twice: one
            finished = [step for each in steps.values() for step in each]
            if finished:
                await tx.run("steps_import", rows=json.dumps(finished, ensure_ascii=False))
            facts = {"reason": reason}
            standing = [str(row["id"]) for row in new if row["deleted_at"] is None]
            await tx.run("group_count", ids=standing, is_new=True)  # before the trail: everybody locks in this order
            await tx.record([(UUID(str(row["id"])), "imported", row["source"], by, facts) for row in new])
    return len(new)


async def written(store: Store, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return dead letters as the objects that become lines, with the steps they have finished."""
    steps: dict[str, list[dict[str, Any]]] = {}
    for row in await store.ask("steps_of_events", ids=[str(event.id) for event in events]):
        steps.setdefault(str(row.pop("event_id")), []).append({name: _shown(row[name], name) for name in row})
    return [{**event.to_json(), "steps": steps.get(str(event.id), [])} for event in events]


def _shown(value: Any, name: str) -> Any:
    if value is None:
        return None
    if name.endswith("_at"):
        return iso(from_micros(value) if isinstance(value, int) else value)
    if name == "result":
        return decode(value)
    return str(value) if isinstance(value, UUID) else value


async def known(store: Store, ids: Sequence[str]) -> int:
    """Count how many of these are here already."""
    return len(await store.ask("events_known", ids=list(ids)))
