"""Relay: a handler whose work is to send.

An event of a routed type is delivered when the broker has acknowledged its message, and not before. Everything else is
what happens to any event: retries, a circuit on the broker's name, order by key, dead letters. The answer of a broker
may be lost after it has taken the message; the next attempt carries the same message id, by which brokers that remember
ids recognise it, and the same CloudEvents id, by which receivers do.

A broker that lost what it had acknowledged is helped by ``republish``: copies of what was delivered in a window of time
go round once more, each with the CloudEvents id of the original and a message id of its own.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive import tracing
from redrive.clock import Clock
from redrive.context import Context
from redrive.errors import BrokerRefused, DependencyUnavailable
from redrive.event import NewEvent, Priority
from redrive.instant import iso
from redrive.payload import Decoder, decode
from redrive.store.base import (
    CAUSATION_ID,
    CORRELATION_ID,
    HEADERS,
    ID,
    ORDERING_KEY,
    SOURCE,
    SUBJECT,
    TYPE,
    Store,
)
from redrive.store.base import IDEMPOTENCY_KEY as KEY
from redrive.transport.base import OURS, Destination, Link, LinkState, Message, Mode
from redrive.transport.envelope import (
    CAUSATION,
    CORRELATION,
    IDEMPOTENCY_KEY,
    PARTITION_KEY,
    SITE,
    CloudEvent,
    write,
)

RELAY: Final = "relay:"
QUEUE: Final = "relay"
ORIGINAL: Final = f"{OURS}original"
"""The header of a copy that names the event it repeats."""

MessageKey = Callable[[Any], str | None]
"""Makes the key of a message from the payload of its event."""

_COPY: Final = "republish:"
_PAGE: Final = 1_000


class Verbatim(Decoder[str]):
    """Hands the stored text on as it is: it becomes a part of the message."""

    @property
    def takes_anything(self) -> bool:
        return True

    def __call__(self, text: str | bytes) -> str:
        return text if isinstance(text, str) else text.decode()


class Relay:
    """One route: from types of events to a destination."""

    def __init__(
        self, types: tuple[str, ...], to: Destination, *, mode: Mode, queue: str, name: str | None,
        key: "MessageKey | None" = None,
    ) -> None:  # fmt: skip
        self.types = types
        self.to = to
        self.mode = mode
        self.key = key
        self.queue = queue
        self.name = name or to.name
        self.target = RELAY + self.name
        self.link = Link()
        self.site = ""
        self.carries_foreign = False
        self._clock: Clock | None = None

    def use(self, clock: Clock, site: str = "") -> None:
        """Take the app's clock, and the name of its site."""
        self._clock = clock
        self.site = site
        self.to.broker.use(clock)

    async def send(self, data: str, ctx: Context) -> None:
        """Send one event; it is delivered when this returns."""
        assert self._clock is not None
        try:
            await self.to.broker.send(await self.composed(data, ctx))
        except BrokerRefused as error:
            self.link.turn(LinkState.REFUSED, self._clock, str(error))
            raise
        except DependencyUnavailable as error:
            state = self.to.broker.link.state
            at_fault = LinkState.UNREACHABLE if state is LinkState.OK else state
            self.link.turn(at_fault, self._clock, error.message)
            raise
        self.link.moved += 1
        if self.link.state is not LinkState.OK:
            self.link.turn(LinkState.OK, self._clock)

    async def composed(self, data: str, ctx: Context) -> Message:
        """Write the message of an event."""
        row = ctx.row
        message_id = str(row[ID])
        headers = tracing.carried({} if row[HEADERS] == "{}" else decode(row[HEADERS]))
        event = CloudEvent(
            id=headers.get(ORIGINAL) or message_id,
            type=row[TYPE],
            source=row[SOURCE],
            subject=row[SUBJECT],
            time=ctx.created_at.isoformat(),
            extensions={
                CORRELATION: row[CORRELATION_ID] or message_id,
                CAUSATION: row[CAUSATION_ID],
                PARTITION_KEY: row[ORDERING_KEY] if self.key is None else self.key(decode(data)),
                IDEMPOTENCY_KEY: row[KEY],
                SITE: self.site,  # for rows that were written past us; a header has precedence
            },
            headers=headers,
        )
        return write(event, data, self.to.topic, self.mode, self.to.broker.prefix, message_id)


@dataclass(frozen=True, slots=True)
class Republished:
    """What came of it: how many copies were made, and whether the limit left some out."""

    target: str
    copies: int
    more: bool


async def republish(
    store: Store, new_id: Callable[[], UUID], target: str, queue: str, *, since: datetime, until: datetime, limit: int,
    by: str, reason: str,
) -> Republished:  # fmt: skip
    """Send once more what a route delivered between two instants, oldest first, as far as retention has kept it.

    A page is one transaction. While a copy of an event is under way no second one is made, so that whoever asks twice
    gets no more than was asked for.
    """
    made, after = 0, UUID(int=0)
    while made < limit:
        page = min(_PAGE, limit - made)
        rows = await store.ask(
            "republishable", target=target, since=since, until=until, after=after, limit=page, copies=f"{_COPY}%"
        )
        if not rows:
            return Republished(target, made, more=False)
        copies = [_copy(row, new_id(), queue) for row in rows]
        async with store.transaction() as tx:
            published = await tx.publish(copies)
            facts = {
                "reason": reason, "target": target, "since": iso(since), "until": iso(until),
                "first": str(rows[0]["id"]), "last": str(rows[-1]["id"]), "events": len(rows),
            }  # fmt: skip
            await tx.note("republished", by, facts)
        made += sum(each.created for each in published)
        after = UUID(str(rows[-1]["id"]))
        if len(rows) < page:
            return Republished(target, made, more=False)
    return Republished(target, made, more=True)


def _copy(row: dict[str, Any], copy_id: UUID, queue: str) -> NewEvent:
    headers = {**decode(row["headers"]), ORIGINAL: str(row["id"])}
    return NewEvent(
        id=copy_id, type=row["type"], source=row["source"], target=row["target"], subject=row["subject"],
        payload=row["payload"], headers=json.dumps(headers, ensure_ascii=False), idempotency_key=row["idempotency_key"],
        retry_key=f"{_COPY}{row['id']}", correlation_id=row["correlation_id"] or str(row["id"]),
        causation_id=row["causation_id"], ordering_key=row["ordering_key"], queue=queue,
        priority=Priority.REDRIVEN, generation=row["generation"],
    )  # fmt: skip
