"""Intake: messages become events; stored first, acknowledged then.

A batch is read, and put into the store in one transaction: which messages are new (``intake_seen``, by source and id),
and their events. Only after its commit is the broker told. Whoever dies in between gets the batch again, and finds it
there. While the store is full, away, or has too much waiting, nothing is fetched; what was fetched is kept in the hand.

A message that cannot be read is an event too: raw, with its position, of the target ``intake:<name>``, whose handler
reads it again. It fails for good and stands in quarantine, until it is replayed after the fix.
"""

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from redrive.classify import classify
from redrive.clock import Clock
from redrive.context import Context
from redrive.duty import Tick
from redrive.errors import (
    BrokerRefused,
    ConfigurationError,
    DependencyUnavailable,
    PayloadRefused,
    StoreUnavailable,
    Unparsable,
)
from redrive.event import ErrorClass, NewEvent, Options
from redrive.logs import log
from redrive.payload import Limits, check_text
from redrive.policy import RetryPolicy
from redrive.publish import KEY_LIMIT, new_events
from redrive.store.base import Store, Transaction
from redrive.transport.base import OURS, Beginning, Inlet, Link, LinkState, Message, Received, Subscription
from redrive.transport.envelope import (
    CAUSATION,
    CORRELATION,
    IDEMPOTENCY_KEY,
    PARTITION_KEY,
    SITE_HEADER,
    STRUCTURED,
    TRACING,
    CloudEvent,
    read,
    read_json,
)

INTAKE: Final = "intake:"
RAW: Final = "redrive.intake.raw"
"""The type of a message that could not be read."""

OUTCOMES: Final = ("stored", "duplicate", "reused", "echo", "refused")
"""What becomes of messages. Reused: dropped, because its id was seen, though at another position."""

ID_HEADER: Final = f"{OURS}id"
TOPIC_HEADER: Final = f"{OURS}topic"
POSITION_HEADER: Final = f"{OURS}position"

Draft = tuple[str, Any] | tuple[str, Any, Options]
Parse = Callable[[Message], Draft]
"""Makes a type, a payload and options of a message; raises ``Unparsable`` when it cannot."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LINGER: Final = 1.0
_LEASE_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0


class _NotOurs(Exception):
    """Another process has this intake now."""


@dataclass(slots=True)
class _Taken:
    """One message, ready for the store."""

    source: str
    id: str
    rows: list[NewEvent]
    received: Received
    is_own: bool = False
    """It says that it began at this site."""
    is_named: bool = False
    """It is known by an id that the broker carries beside it: senders may use one again, for another message."""


@dataclass(frozen=True, slots=True)
class _Beginnings:
    """Keeps in the store where consumer groups began."""

    store: Store

    async def begun(self, name: str) -> Beginning | None:
        return next(map(_beginning, await self.store.ask("intake_begun", name=name)), None)

    async def begin(self, name: str, beginning: Beginning) -> Beginning:
        async with self.store.transaction() as tx:
            await tx.run(
                "intake_begin", name=name, topic_id=beginning.topic_id, positions=json.dumps(beginning.positions)
            )
            (row,) = await tx.run("intake_begun", name=name)
        return _beginning(row)


def _beginning(row: Mapping[str, Any]) -> Beginning:
    positions = json.loads(row["positions"])
    return Beginning(row["topic_id"], {int(partition): offset for partition, offset in positions.items()})


@dataclass(slots=True)
class Intake:
    """One inlet, and what becomes of what comes in."""

    inlet: Inlet
    ready: Callable[[], Awaitable[Store]]
    new_events: Callable[..., list[NewEvent]]
    clock: Clock
    types: Mapping[str, str] = field(default_factory=dict)
    parse: Parse | None = None
    batch: int = 500
    max_backlog: int | None = None
    queue: str = "default"
    site: str = ""
    identify_by: str = "id"
    link: Link = field(default_factory=Link)
    taken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    """Messages by what became of them."""
    _holder: str = ""
    _is_held: bool = False
    _is_busy: bool = False
    _is_eager: bool = True
    _hand: list[Received] = field(default_factory=list)
    _subscription: Subscription | None = None
    _room: int = 0
    _lag_at: float = 0.0
    _pause: float = _FIRST_PAUSE

    @property
    def name(self) -> str:
        return self.inlet.name

    @property
    def target(self) -> str:
        return INTAKE + self.inlet.name

    # One round

    async def act(self, by: str) -> Tick:
        """Fetch, store, acknowledge."""
        if self._is_busy:  # another worker of this process is at it
            return Tick(moved=False, pause=_LOOK_SECONDS)
        self._is_busy = True
        try:
            return await self._round(by)
        finally:
            self._is_busy = False

    async def _round(self, by: str) -> Tick:
        try:
            store = await self.ready()
            if await self._is_too_much(store):
                return await self._paused(f"{self.max_backlog:,} events or more are waiting")
            moved = await self._move(store, by)
        except StoreUnavailable as error:
            return await self._paused(str(error))
        except _NotOurs:
            await self._let_go()
            return Tick(moved=False, pause=_LEASE_SECONDS / 3)
        except BrokerRefused as error:
            return await self._broken(LinkState.REFUSED, str(error))
        except DependencyUnavailable as error:
            state = self.inlet.broker.link.state
            return await self._broken(state if state is LinkState.REFUSED else LinkState.UNREACHABLE, error.message)
        except Exception as error:
            self._turn(LinkState.PAUSED, f"internal error, trying again: {error!r}"[:1_000])
            raise
        self._pause = _FIRST_PAUSE
        self._is_eager = moved
        return Tick(moved, 0.0)

    async def _move(self, store: Store, by: str) -> bool:
        subscription = self._subscription or await self._subscribe(store, by)
        self._stand()
        if not self._hand:
            # After something has moved there may be more: look without waiting, so that a drain comes to its end.
            self._hand = await subscription.fetch(self.batch, 0.0 if self._is_eager else _LINGER)
        batch = self._hand
        if batch:
            await self._store(store, batch)
            self.link.moved += len(batch)
            self._room -= len(batch)
            self._hand = []
            await subscription.acknowledge(batch)
        elif self.inlet.is_exclusive:
            await self._renew(store)
        if self.clock.monotonic() >= self._lag_at:
            self._lag_at = self.clock.monotonic() + 5 * _LOOK_SECONDS
            self.link.lag = await subscription.lag()
        return bool(batch)

    def _stand(self) -> None:
        """Stand as the broker does: some drivers stay subscribed while it is away."""
        link = self.inlet.broker.link
        away = link.state in {LinkState.UNREACHABLE, LinkState.REFUSED}
        if self._turn(link.state if away else LinkState.OK, link.error) and away:
            log.warning("intake waits for its broker", intake=self.name, state=link.state.value, why=link.error)

    async def _subscribe(self, store: Store, by: str) -> Subscription:
        if self.inlet.is_exclusive:
            await self._renew(store)
        if self.link.state is LinkState.IDLE:
            self._turn(LinkState.CONNECTING)
        self._subscription = await self.inlet.subscribe(_Beginnings(store))
        log.info("intake open", worker=by, intake=self.name)
        return self._subscription

    async def _renew(self, store: Store) -> None:
        async with store.transaction() as tx:
            await self._hold_lease(tx)

    async def _hold_lease(self, tx: Transaction) -> None:
        self._holder = self._holder or str(self.clock.new_id())
        held = await tx.run("intake_lease", name=self.name, holder=self._holder, seconds=_LEASE_SECONDS)
        self._is_held = bool(held)
        if not held:
            raise _NotOurs

    # Storing

    async def _store(self, store: Store, batch: Sequence[Received]) -> None:
        taken = [self._read(each) for each in batch]
        try:
            await self._put(store, taken)
        except (StoreUnavailable, _NotOurs):
            raise
        except Exception as error:  # noqa: BLE001 - one message the database chokes on must not stop the others
            _raise_if_away(error)
            log.error("batch not stored, taking its messages one by one", intake=self.name, error=repr(error)[:500])
            for each in taken:
                await self._put_alone(store, each)

    async def _put_alone(self, store: Store, taken: _Taken) -> None:
        try:
            await self._put(store, [taken])
        except (StoreUnavailable, _NotOurs):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            _raise_if_away(error)
            await self._put(store, [self._raw(taken.received, f"the database refused it: {error!r}"[:1_000])])

    async def _put(self, store: Store, taken: Sequence[_Taken]) -> None:
        async with store.transaction() as tx:
            if self.inlet.is_exclusive:
                await self._hold_lease(tx)
            became = await self._put_in(tx, taken)
        self._count(became)

    def _count(self, became: Mapping[str, int]) -> None:
        """Count what has been committed."""
        for outcome, number in became.items():
            self.taken[outcome] += number
        if reused := self.taken["reused"]:
            self.link.note = f"{reused:,} dropped: ids that were used before (identify_by='position' takes them)"

    async def _put_in(self, tx: Transaction, taken: Sequence[_Taken]) -> dict[str, int]:
        """Store what is new, in the order in which it came; say how many became what."""
        first: dict[tuple[str, str], _Taken] = {}
        for each in taken:
            first.setdefault((each.source, each.id), each)
        asked = [
            (source, message_id, str(each.rows[0].id), _place(each.received))
            for (source, message_id), each in first.items()
        ]
        rows = await tx.run("intake_take", rows=json.dumps(asked))
        new = {(row["source"], row["message_id"]) for row in rows}
        echoes = await self._echoes(tx, [each for key, each in first.items() if key in new and each.is_own])
        kept = [each for key, each in first.items() if key in new - echoes]
        if kept:
            await tx.publish([row for each in kept for row in each.rows])
        refused = sum(each.rows[0].type == RAW for each in kept)
        again = [each for each in taken if (key := (each.source, each.id)) not in new or first[key] is not each]
        reused = await self._reused(tx, [each for each in again if each.is_named])
        return {
            "stored": len(kept) - refused, "refused": refused, "echo": len(echoes), "reused": reused,
            "duplicate": len(taken) - len(new) - reused,
        }  # fmt: skip

    async def _reused(self, tx: Transaction, named: Sequence[_Taken]) -> int:
        """Count messages that were dropped because an earlier one has their id, though they are no repetition of it."""
        if not named:
            return 0
        rows = await tx.run("intake_positions", rows=json.dumps([(each.source, each.id) for each in named]))
        stood = {(row["source"], row["message_id"]): row["position"] for row in rows if row["position"]}
        dropped = [
            each for each in named if (key := (each.source, each.id)) in stood and stood[key] != _place(each.received)
        ]
        if dropped:
            log.warning(
                "messages dropped: their ids were used before", intake=self.name, number=len(dropped),
                position=dropped[0].received.position, id=dropped[0].id[:200],
            )  # fmt: skip
        return len(dropped)

    async def _echoes(self, tx: Transaction, own: Sequence[_Taken]) -> set[tuple[str, str]]:
        """Find what this database sent itself: a stream of all sites brings it back, and it would go round for ever.

        Another service of the site is no echo, hence the look at the ids.
        """
        ids = [each.id for each in own if _UUID.fullmatch(each.id)]
        rows = await tx.run("events_known", ids=json.dumps(ids)) if ids else []
        known = {str(row["id"]) for row in rows}
        return {(each.source, each.id) for each in own if each.id in known}

    # Reading

    def _read(self, received: Received) -> _Taken:
        try:
            return self._parsed(received)
        except Unparsable as error:
            log.warning("message kept raw", intake=self.name, position=received.position, reason=str(error)[:500])
            return self._raw(received, str(error))

    def _parsed(self, received: Received) -> _Taken:
        """Make events of a message, or say why it cannot be done."""
        message = received.message
        try:
            if self.parse is not None:
                return self._by_hand(self.parse, received)
            if (found := read(message, self.inlet.broker.prefix)) is not None:
                event, data = found
                message_id = check_text(event.id, "id", KEY_LIMIT)
                options = options_of(event)
                options["headers"] = {**event.headers, **_where(received, event.id)}
                rows = self._events(self.types.get(event.type, event.type), data, options)
                is_own = bool(self.site) and event.headers.get(SITE_HEADER) == self.site
                return _Taken(event.source, message_id, rows, received, is_own)
            if (type_ := self.types.get(message.topic)) is not None:
                options = Options(
                    source=received.source, headers=_trace(message) | _where(received, self._id(received))
                )
                rows = self._events(type_, read_json(message.body), options)
                return _Taken(received.source, self._id(received), rows, received, is_named=self._is_named(received))
        except Unparsable:
            raise
        except (PayloadRefused, ConfigurationError) as error:
            raise Unparsable(str(error)) from error
        except Exception as error:  # whatever is wrong with a message, or with what a parser returned: it is kept
            raise Unparsable(f"reading it raised {error!r}"[:1_000]) from error
        raise Unparsable(
            f"no CloudEvent: neither a header {self.inlet.broker.prefix}specversion nor a content-type {STRUCTURED}; "
            f"say types={{{message.topic!r}: '<type>'}} for plain JSON, or parse=… for anything else"
        )

    def _by_hand(self, parse: Parse, received: Received) -> _Taken:
        try:
            type_, payload, *said = parse(received.message)
        except Unparsable:
            raise
        except Exception as error:  # whatever a stranger's code raises, the message is kept
            raise Unparsable(f"parse raised {error!r}"[:1_000]) from error
        message_id = self._id(received)
        # A copy: a parser may return the same dict for every message.
        options = Options(source=received.source) | (said[0] if said else Options())
        headers = _trace(received.message) | dict(options.get("headers") or {}) | _where(received, message_id)
        rows = self._events(type_, payload, options | Options(headers=headers))
        return _Taken(received.source, message_id, rows, received, is_named=self._is_named(received))

    def _is_named(self, received: Received) -> bool:
        return self.identify_by == "id" and bool(received.message.id)

    def _id(self, received: Received) -> str:
        """Find what to recognise a message by that is no CloudEvent: its id, or its position when it has none."""
        if not self._is_named(received):
            return _place(received)
        return check_text(received.message.id, "the message id", KEY_LIMIT) or _place(received)

    def _events(self, type_: str, payload: Any, options: Options) -> list[NewEvent]:
        return self.new_events(type_, payload, **options)

    def _raw(self, received: Received, reason: str) -> _Taken:
        message = received.message
        payload = {
            "reason": _storable(reason),
            "position": received.position,
            "at": None if received.at is None else received.at.isoformat(),
            "source": received.source,
            "topic": _storable(message.topic),
            "id": _storable(message.id),
            "key": _base(message.key),
            "headers": [[_storable(name), _base(value)] for name, value in message.headers],
            "body": _base(message.body),
        }
        wide = Limits(max_bytes=2**31)  # a message too large to be an event must be kept all the same
        options = Options(source=received.source[:255], queue=self.queue)
        rows = new_events(self.clock, wide, (self.target,), RAW, payload, options)
        return _Taken(received.source, f"raw:{_place(received)}", rows, received)

    async def again(self, raw: dict[str, Any], _ctx: Context) -> None:
        """Read a message again that could not be read: the handler of the intake's target."""
        at = None if raw["at"] is None else datetime.fromisoformat(raw["at"])
        taken = self._parsed(Received(message_of(raw), raw["position"], raw["source"], at))
        async with (await self.ready()).transaction() as tx:
            became = await self._put_in(tx, [taken])
        self._count(became)

    # Waiting

    async def _is_too_much(self, store: Store) -> bool:
        """Count what waits, whenever as much has come in as there was room for: a batch too much at most."""
        if self.max_backlog is None:
            return False
        if self._room <= 0:
            (row,) = await store.ask("intake_backlog", limit=self.max_backlog + 1)
            self._room = self.max_backlog - row["n"]
        return self._room <= 0

    async def _paused(self, why: str) -> Tick:
        if self._turn(LinkState.PAUSED, why):
            log.warning("intake paused", intake=self.name, why=why)
        if self._subscription is not None:
            try:
                await self._subscription.hold()
            except (DependencyUnavailable, BrokerRefused):
                await self._let_go()
        return Tick(moved=False, pause=_LOOK_SECONDS)

    async def _broken(self, state: LinkState, why: str) -> Tick:
        if self._turn(state, why):
            log.warning("intake waits for its broker", intake=self.name, state=state.value, why=why)
        await self._let_go()
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return Tick(moved=False, pause=pause)

    def _turn(self, state: LinkState, error: str = "") -> bool:
        return self.link.turn(state, self.clock, error)

    async def _let_go(self) -> None:
        """Forget what is not stored: the broker will bring it again."""
        subscription, self._subscription, self._hand = self._subscription, None, []
        if subscription is not None:
            await subscription.close()

    async def close(self) -> None:
        """End the subscription, and let another process take over at once."""
        await self._let_go()
        self._is_eager = True
        holder, self._holder = self._holder, ""
        if holder and self._is_held:
            try:
                async with (await self.ready()).transaction() as tx:
                    await tx.run("intake_release", name=self.name, holder=holder)
            except StoreUnavailable as error:  # it will run out by itself
                log.debug("intake not given up", intake=self.name, error=str(error))
        self._is_held = False
        self.link.turn(LinkState.IDLE, self.clock)


def message_of(raw: Mapping[str, Any]) -> Message:
    """Put a message together again that was kept raw."""
    headers = tuple((name, _unbase(value) or b"") for name, value in raw["headers"])
    return Message(raw["topic"], _unbase(raw["body"]), headers, _unbase(raw["key"]), raw["id"])


def _raise_if_away(error: Exception) -> None:
    """Tell a database that does not answer, or is full, from one that refuses what it was given."""
    if classify(error, RetryPolicy()).error_class in (ErrorClass.DEPENDENCY_UNAVAILABLE, ErrorClass.TIMED_OUT):
        raise StoreUnavailable(str(error) or type(error).__name__) from error


def options_of(event: CloudEvent) -> Options:
    """Say what was said of a CloudEvent in the words of a publish."""
    said = event.extensions
    return Options(
        source=event.source,
        subject=event.subject,
        correlation_id=said.get(CORRELATION),
        causation_id=said.get(CAUSATION),
        ordering_key=said.get(PARTITION_KEY),
        idempotency_key=said.get(IDEMPOTENCY_KEY) or key_of(event),
        headers={**event.headers},
    )


def key_of(event: CloudEvent) -> str:
    """Name a CloudEvent: by its source and its id together."""
    key = f"{event.source}#{event.id}"
    return key if len(key) <= KEY_LIMIT else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def _place(received: Received) -> str:
    """Say where it stood, and when it came there: a stream that is made anew counts from the beginning."""
    return received.position if received.at is None else f"{received.position}@{received.at.isoformat()}"


def _trace(message: Message) -> dict[str, str]:
    """Take up the trace that whoever sent it has said beside it."""
    said = {name: message.header(name) for name in TRACING}
    return {name: _storable(value.decode(errors="replace")) for name, value in said.items() if value}


def _where(received: Received, message_id: str) -> dict[str, str]:
    return {ID_HEADER: message_id, TOPIC_HEADER: received.message.topic, POSITION_HEADER: received.position}


def _storable(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _base(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _unbase(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
