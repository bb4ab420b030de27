"""Messages: requests and results on Kafka, for programs that know nothing of Redrive.

The value of a message is the JSON of the event contract, and the key is the row's id: messages about one row stay in
order. It makes no difference who has sent a message: ``event_id`` is the idempotency key of the event that it becomes.
"""

import json
from collections.abc import Callable
from typing import Any

from redrive.apps.evidence.desk import RETRY_COUNT


def key(payload: Any) -> str:
    """Make the key of a message."""
    return str(payload["file_job_row_id"])


def parse_for(type_: str) -> Callable[[Any], tuple[str, Any, Any]]:
    """Make what reads the messages of one topic; they become events of this type."""

    def parse(message: Any) -> tuple[str, Any, Any]:
        payload = json.loads(message.body or b"")
        if not isinstance(payload, dict):
            raise TypeError("the message is no JSON object")
        event_id, job_id, row_id = (payload.get(each) for each in ("event_id", "file_job_id", "file_job_row_id"))
        retry_count = message.header(RETRY_COUNT)
        options = {
            "idempotency_key": event_id, "causation_id": event_id, "correlation_id": job_id,
            "subject": f"file_job_row/{row_id}" if row_id else None,
            "headers": {RETRY_COUNT: retry_count.decode()} if retry_count else None,
        }  # fmt: skip
        return type_, payload, options

    return parse
