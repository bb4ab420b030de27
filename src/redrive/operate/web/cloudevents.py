"""CloudEvents 1.0 over HTTP: structured, binary and in batches, read into what ``publish`` takes.

``source`` and ``id`` together name an event, so a second one with both, sent while the first is live, is that event.
``correlationid``, ``causationid``, ``partitionkey`` and ``idempotencykey`` have a place of ours; other attributes are
kept as headers. The headers of the request itself are its sender's, and are not kept.
"""

from collections.abc import Mapping
from typing import Any, Final

from redrive.errors import Unparsable
from redrive.inbox import Draft
from redrive.operate.web.problems import INVALID, Problem
from redrive.transport import envelope
from redrive.transport.base import Message
from redrive.transport.envelope import BATCH, STRUCTURED, CloudEvent
from redrive.transport.intake import key_of, options_of

__all__ = ("BATCH", "MOST", "STRUCTURED", "is_binary", "read")

PREFIX: Final = "ce-"
MOST: Final = 1_000
_TYPE: Final = "content-type"


def is_binary(headers: Mapping[str, str]) -> bool:
    """Say whether the attributes are in the headers."""
    return f"{PREFIX}specversion" in headers


def read(kind: str, headers: Mapping[str, str], body: bytes) -> list[Draft]:
    """Read the events of a request."""
    try:
        if kind == BATCH:
            return [_draft(*each) for each in envelope.read_batch(body, MOST)]
        found = envelope.read(Message("", body, _headers(headers)), PREFIX)
    except Unparsable as error:
        fault = {"in": "body", "pointer": error.at or "/", "detail": str(error)}
        raise Problem(INVALID, str(error), errors=[fault]) from None
    assert found is not None  # it has the headers or the type of one
    return [_draft(*found)]


def _headers(headers: Mapping[str, str]) -> tuple[tuple[str, bytes], ...]:
    """Take those that are about the event, as the bytes they came as."""
    return tuple(
        (name, value.encode("latin-1", "replace"))
        for name, value in headers.items()
        if name.lower().startswith(PREFIX) or name.lower() == _TYPE
    )


def _draft(event: CloudEvent, data: Any) -> Draft:
    options = options_of(event)
    options["retry_key"] = key_of(event)
    if event.time:
        options["headers"] = {**event.headers, "time": event.time}
    return event.type, data, options
