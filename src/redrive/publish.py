"""Publish: put events in.

A publish names a type and a payload; it becomes one row for every target of that type, each with a retry state of its
own and all with the same idempotency key and correlation. Whatever cannot be stored exactly is refused here, before
anything is written, with an error that names the field and the limit.

Next: a worker's ``claim``.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from redrive import check
from redrive.clock import Clock
from redrive.duration import span
from redrive.errors import ConfigurationError, PayloadRefused
from redrive.event import NewEvent, Options, Priority
from redrive.payload import Limits, check_name, check_text, check_whole, encode, encode_headers

NAME_LIMIT: Final = 255
KEY_LIMIT: Final = 512
PLAIN_OPTIONS: Final = 2  # source and generation, which the app always says
_YEARS: Final = range(1970, 9_001)
_PRIORITIES: Final = tuple(Priority)
_NO_HEADERS: Final = encode_headers(None)


def new_events(
    clock: Clock, limits: Limits, targets: Sequence[str], type_: str, payload: Any, options: Options
) -> list[NewEvent]:
    """Make the rows of one publish: one for each target."""
    _name(type_, "type")
    text = encode(payload, limits)
    ids = [clock.new_id() for _ in targets]
    common = _common(options, clock) if len(options) > PLAIN_OPTIONS or len(ids) > 1 else {}
    if (given := _given_id(options.get("id"))) is not None:
        ids[0] = given
    key = common.pop("idempotency_key", None) or str(ids[0])
    if len(ids) > 1:  # else each row would begin a conversation of its own
        common["correlation_id"] = common["correlation_id"] or str(ids[0])
    source = options.get("source", "")
    if source != "":
        _name(source, "source")
    generation = check_whole(options.get("generation", 0), "generation")
    return [
        NewEvent(new_id, type_, source, target, None, text, _NO_HEADERS, key, generation=generation)
        if not common
        else NewEvent(new_id, type_, source, target, payload=text, idempotency_key=key, generation=generation, **common)
        for new_id, target in zip(ids, targets, strict=True)
    ]


def _common(options: Options, clock: Clock) -> dict[str, Any]:
    """Check what was said and bring it into the form in which it is stored."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        message = f"publish has no option {', '.join(sorted(unknown))}: there are {', '.join(Options.__annotations__)}"
        raise ConfigurationError(message)
    due_at = _instant(options.get("due_at"), "due_at", "delay=")
    priority = options.get("priority", Priority.NORMAL)
    if type(priority) is bool or priority not in _PRIORITIES:
        message = (
            f"priority must be one of {', '.join(f'{p.value} ({p.name.lower()})' for p in Priority)}, "
            f"not {check.shown(priority)}"
        )
        raise ConfigurationError(message)
    return {
        "subject": _optional(options.get("subject"), "subject", KEY_LIMIT),
        "headers": encode_headers(options.get("headers")),
        "idempotency_key": _key(options.get("idempotency_key"), "idempotency_key"),
        "retry_key": _key(options.get("retry_key"), "retry_key"),
        "correlation_id": _optional(options.get("correlation_id"), "correlation_id", NAME_LIMIT),
        "causation_id": _optional(options.get("causation_id"), "causation_id", NAME_LIMIT),
        "ordering_key": _key(options.get("ordering_key"), "ordering_key"),
        "queue": check_name(options.get("queue", "default"), "queue", NAME_LIMIT),
        "priority": int(priority),
        "delay_seconds": check.seconds(options.get("delay", 0.0), "delay"),
        "due_at": due_at,
        **_deadline(options.get("deadline"), clock),
        **_batch(options),
    }


def _given_id(value: object) -> UUID | None:
    """Read the id that the publisher has chosen for the first row."""
    if value is None or isinstance(value, UUID):
        return value
    try:
        return UUID(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(f"id takes a UUID, not {check.shown(value)}: use app.clock.new_id()") from None


def _batch(options: Options) -> dict[str, Any]:
    """Read which batch an event is added to, and in which group of it."""
    batch, group = options.get("batch"), options.get("batch_group")
    if batch is None:
        if group is not None:
            raise ConfigurationError(f"batch_group={check.shown(group)} needs a batch: say batch= too")
        return {}
    named: Any = batch if isinstance(batch, UUID | str) else getattr(batch, "id", batch)
    try:
        batch_id = named if isinstance(named, UUID) else UUID(named)
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            f"batch={check.shown(named)} is not the id of a batch: pass the batch itself"
        ) from None
    return {"batch_id": batch_id, "batch_group": _optional(group, "batch_group", KEY_LIMIT)}


def _instant(at: object, name: str, instead: str) -> datetime | None:
    if at is None:
        return None
    if not isinstance(at, datetime):
        message = f"{name} must be a datetime, not {type(at).__qualname__}; for a span use {instead}"
        raise ConfigurationError(message)
    if at.utcoffset() is None:
        message = f"{name} must know its time zone: use datetime.now(UTC) + timedelta(…), or {instead}"
        raise ConfigurationError(message)
    if at.year not in _YEARS:  # far from where instants end, so that a delay and a time zone can be added
        message = f"{name} must lie between the years {_YEARS.start} and {_YEARS[-1]}, not {at.year}"
        raise ConfigurationError(message)
    return at


def _deadline(deadline: object, clock: Clock) -> dict[str, Any]:
    """Read a deadline: an instant, or a span from the publish on."""
    if deadline is None:
        return {}
    if isinstance(deadline, datetime):
        at = _instant(deadline, "deadline", "a span like deadline='1h'")
        if deadline <= clock.now():
            message = f"the deadline {deadline.isoformat()} has passed already: the event could never be handled"
            raise ConfigurationError(message)
        return {"deadline_at": at}
    return {"deadline_seconds": span(deadline, "deadline")}


def _name(value: str, field: str) -> str:
    return _known_name(value, field) if type(value) is str else check_name(value, field, NAME_LIMIT)


@lru_cache(maxsize=4_096)  # types and sources are few and come again with every event
def _known_name(value: str, field: str) -> str:
    return check_name(value, field, NAME_LIMIT)


def _key(value: object, field: str) -> str | None:
    """Read a key: an empty one, most often of a variable that was not set, would be shared by all events."""
    if value == "":
        raise PayloadRefused(f"{field} must not be empty: leave it out for none", field=field)
    return _optional(value, field, KEY_LIMIT)


def _optional(value: object, field: str, limit: int) -> str | None:
    if value is None:
        return None
    return check_text(str(value) if isinstance(value, UUID) else value, field, limit)  # type: ignore[arg-type]
