"""Letters: dead letters to a broker, for tools that look for them there.

The lifecycle event of a dead letter says which event it is; what travels is that event, or the raw message that could
not be read, with headers that say where it came from and why it failed. The words are those of Kafka Connect, which
many tools read, and on Kafka those of Spring beside them. The dead letter itself stays where it is: a broker's copy is
for looking, a replay is asked for here.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

from redrive.context import Context
from redrive.event import Event
from redrive.payload import decode, encode
from redrive.store.base import Store
from redrive.transport.base import Destination, Headers, Message, Mode
from redrive.transport.envelope import (
    CAUSATION,
    CORRELATION,
    IDEMPOTENCY_KEY,
    PARTITION_KEY,
    CloudEvent,
    percent,
    write,
)
from redrive.transport.intake import POSITION_HEADER, RAW, TOPIC_HEADER, message_of
from redrive.transport.relay import Relay

_MOST_SAID: Final = 1_000


class DeadLetterRelay(Relay):
    """A route for what stands in quarantine."""

    def __init__(
        self, types: tuple[str, ...], to: Destination, *, mode: Mode, queue: str, name: str | None,
        ready: Callable[[], Awaitable[Store]],
    ) -> None:  # fmt: skip
        super().__init__(types, to, mode=mode, queue=queue, name=name)
        self._ready = ready

    async def composed(self, data: str, ctx: Context) -> Message:
        letter = decode(data)
        event = await (await self._ready()).event(UUID(letter["event_id"]))
        if event is None:  # purged meanwhile: what is known of it goes
            return await super().composed(data, ctx)
        message = self._original(event, str(ctx.id))
        return message._replace(
            headers=(*message.headers, *_headers(event, letter, self.to.broker.prefix)), id=str(ctx.id)
        )

    def _original(self, event: Event, message_id: str) -> Message:
        if event.type == RAW:
            raw = message_of(event.payload)
            kept = tuple(each for each in raw.headers if not each[0].lower().startswith("nats-"))
            return raw._replace(topic=self.to.topic, headers=kept)
        said = CloudEvent(
            id=str(event.id),
            type=event.type,
            source=event.source,
            subject=event.subject,
            time=event.created_at.isoformat(),
            extensions={
                CORRELATION: event.correlation_id,
                CAUSATION: event.causation_id,
                PARTITION_KEY: event.ordering_key,
                IDEMPOTENCY_KEY: event.idempotency_key,
            },
            headers=event.headers,
        )
        return write(said, encode(event.payload), self.to.topic, self.mode, self.to.broker.prefix, message_id)


def _headers(event: Event, letter: dict[str, Any], prefix: str) -> Headers:
    raw = event.payload if event.type == RAW else {}
    topic = raw.get("topic") or event.headers.get(TOPIC_HEADER)
    partition, offset = _place(raw.get("position") or event.headers.get(POSITION_HEADER) or "")
    error_type, error = letter.get("error_type"), str(letter.get("last_error") or "").partition("\n")[0]
    said = {
        "__connect.errors.topic": topic,
        "__connect.errors.partition": partition,
        "__connect.errors.offset": offset,
        "__connect.errors.exception.class.name": error_type,
        "__connect.errors.exception.message": error,
        "redrive-event-id": str(event.id),
        "redrive-target": event.target,
        "redrive-attempts": str(letter.get("attempts", 0)),
    }
    if prefix == "ce-":
        return tuple((name, percent(value[:_MOST_SAID])) for name, value in said.items() if value)
    said |= {
        "kafka_dlt-original-topic": topic,
        "kafka_dlt-exception-fqcn": error_type,
        "kafka_dlt-exception-message": error,
    }
    plain = tuple((name, value[:_MOST_SAID].encode()) for name, value in said.items() if value)
    return plain + _spring_numbers(partition, offset)


def _spring_numbers(partition: str | None, offset: str | None) -> Headers:
    """Write numbers as Java does: 4 and 8 bytes."""
    if partition is None or offset is None or not (partition.isdecimal() and offset.isdecimal()):
        return ()
    return (
        ("kafka_dlt-original-partition", int(partition).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", int(offset).to_bytes(8, "big")),
    )


def _place(position: str) -> tuple[str | None, str | None]:
    """Read a partition and an offset off a position: ``orders/3/1042``, or ``ORDERS:1042``, which has no partitions."""
    if position.count("/") >= 2:  # noqa: PLR2004 - topic, partition, offset
        return position.rsplit("/", 2)[1], position.rsplit("/", 2)[2]
    return ("0", position.rpartition(":")[2]) if ":" in position else (None, None)
