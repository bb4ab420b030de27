"""Fields: what can be asked for, one line each. The rest of the package works off this table."""

from collections.abc import Mapping
from typing import Final

from redrive.event import ErrorClass, Priority, Status
from redrive.selection.documents import Document, Header, Site
from redrive.selection.kinds import Flag, Id, Kind, Number, Presence, Standing, Word
from redrive.selection.phrases import AGE, AGO, AHEAD, AMOUNT, ORDINAL, RANK
from redrive.selection.texts import Correlation, ErrorText, ErrorType, Group, Text
from redrive.selection.times import Ahead, Instant, Span

_PRIORITIES: Final = {each.name.lower(): each.value for each in Priority}

FIELDS: Final[Mapping[str, Kind]] = {
    "type": Text("type", "of {}", noun="type"),
    "status": Standing("status", words=tuple(each.value for each in Status), noun="status"),
    "class": Word("error_class", "as {}", words=tuple(each.value for each in ErrorClass), noun="error class"),
    "error-type": ErrorType("error_type", "with {}", noun="error type"),
    "text": ErrorText("last_error", "saying {}", noun="error text"),
    "group": Group("fingerprint", "in group {}", noun="group"),
    "target": Text("target", "for target {}", noun="target"),
    "queue": Text("queue", "in queue {}", noun="queue"),
    "source": Text("source", "from {}", noun="source"),
    "subject": Text("subject", "about {}", noun="subject"),
    "key": Text("ordering_key", "with ordering key {}", noun="ordering key"),
    "retry-key": Text("retry_key", "with retry key {}", noun="retry key"),
    "idem": Text("idempotency_key", "with idempotency key {}", noun="idempotency key"),
    "corr": Correlation("correlation_id", "correlated to {}", noun="correlation"),
    "cause": Text("causation_id", "caused by {}", noun="cause"),
    "id": Id("id", "with id {}"),
    "batch": Id("batch_id", "in batch {}"),
    "batch-group": Text("batch_group", "in batch group {}", noun="batch group"),
    "payload": Document("payload"),
    "header": Header("headers"),
    "site": Site("headers"),
    "age": Span("created_at", forms=AGE),
    "created": Instant("created_at", "created {}"),
    "failed": Span("ended_at", status=Status.FAILED, forms=AGO),
    "failed-at": Instant("ended_at", status=Status.FAILED),
    "due": Ahead("due_at", status=Status.PENDING, forms=AHEAD),
    "due-at": Instant("due_at", "due {}", status=Status.PENDING),
    "attempts": Number("attempts", noun="attempt", forms=AMOUNT),
    "lost": Number("lost_count", noun="lost attempt", forms=AMOUNT),
    "cycle": Number("cycle", noun="cycle", forms=ORDINAL),
    "generation": Number("generation", noun="generation", forms=ORDINAL),
    "priority": Number("priority", noun="priority", forms=RANK, names=_PRIORITIES),
    "safe": Flag("safe_to_retry", sayings=("unsafe to retry", "safe to retry")),
    "discarded": Presence("deleted_at", sayings=("not discarded", "discarded")),
}
"""Every field, by the name under which it is written; nothing else can be asked for."""

# The columns' own names, for those who have met them in a table or in JSON.
ALIASES: Final[Mapping[str, str]] = {
    "gen": "generation", "error-class": "class", "last-error": "text", "fingerprint": "group", "ordering-key": "key",
    "idempotency-key": "idem", "correlation": "corr", "correlation-id": "corr", "causation": "cause",
    "causation-id": "cause", "batch-id": "batch", "headers": "header", "created-at": "created", "lost-count": "lost",
    "safe-to-retry": "safe",
}  # fmt: skip
