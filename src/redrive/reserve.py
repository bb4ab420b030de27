"""Reserve: one winner for a scarce thing, decided when it is written.

A reservation is held by a token until it runs out, is released, or is renewed. Every take of a resource gets a higher
token than all before, so that whatever is written in the name of a token can be refused when another has come: by
``guard`` in the transaction of the write, in Python or in your own SQL. Nobody watches over anything: what a dead
holder has left runs out by itself, by the database's clock.

Next: ``lock`` keeps one for as long as a block of code runs.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypeVar

from redrive import caller
from redrive.clock import Clock
from redrive.duration import parse_duration, span
from redrive.errors import BadDuration, ConfigurationError, Refused, ReservationLost, Taken
from redrive.instant import from_micros, instant_of, iso, to_micros
from redrive.payload import check_text, check_whole, encode
from redrive.store.base import Store
from redrive.store.sql import Statement, load

Span = str | float | timedelta
T = TypeVar("T")

RESOURCE_LIMIT: Final = 512
OWNER_LIMIT: Final = 255

_LOOK_SECONDS: Final = (0.05, 0.25)  # who waits looks again so soon, by chance
_REASON_LIMIT: Final = 2_000
_LEAST_SECONDS: Final = 0.1  # shorter, and it has run out before the answer is back
_COLUMNS: Final = ("resource", "token", "owner", "facts", "taken_at", "renewed_at", "until", "released_at", "now")


@dataclass(slots=True, eq=False)
class Reservation:
    """Who holds a resource, by which token, until when. ``until`` follows your own renewals."""

    resource: str
    token: int
    owner: str
    facts: Any
    taken_at: datetime
    renewed_at: datetime
    until: datetime
    released_at: datetime | None
    is_held: bool
    """Whether it was held when this was read."""
    _of: "Reservations" = field(repr=False)
    _asked_at: float = field(default=0.0, repr=False)

    @property
    def asked_at(self) -> float:
        """When the question was asked that this is the answer to: its time runs from then at the earliest."""
        return self._asked_at

    async def renew(self, ttl: Span) -> None:
        """Hold it for so long from now; ``ReservationLost`` when it is no longer yours."""
        await self._renew(await self._of.ready(), _ttl(ttl))

    async def release(self) -> None:
        """Give it back; ``ReservationLost`` when it is no longer yours."""
        await self._release(await self._of.ready())

    async def guard(self, connection: Any) -> None:
        """Make the transaction of your own connection stand or fall with this reservation.

        Raises ``ReservationLost`` unless it is held now; from here to the end of the transaction nobody can take it.
        """
        self._judge(await caller.run(connection, *self._guarding(connection)))

    def renew_sync(self, ttl: Span) -> None:
        """``renew`` for code without an event loop."""
        seconds = _ttl(ttl)
        self._of.beside(lambda store: self._renew(store, seconds))

    def release_sync(self) -> None:
        """``release`` for code without an event loop."""
        self._of.beside(self._release)

    def guard_sync(self, connection: Any) -> None:
        """``guard`` for code without an event loop: sqlite3, psycopg, SQLAlchemy, Django."""
        self._judge(caller.run_sync(connection, *self._guarding(connection)))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, instants as ISO 8601 in UTC."""
        values = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        return {name: iso(value) if isinstance(value, datetime) else value for name, value in values.items()}

    async def _renew(self, store: Store, seconds: float) -> None:
        asked_at = store.clock.monotonic()
        self.until = await self._change(store, "reservation_renew", "until", ttl=seconds)
        self._asked_at, self.is_held = asked_at, True

    async def _release(self, store: Store) -> None:
        self.released_at = await self._change(store, "reservation_release", "released_at")
        self.is_held = False

    async def _change(self, store: Store, verb: str, column: str, **values: Any) -> datetime:
        rows = await store.write(verb, resource=self.resource, token=self.token, **values)
        if rows:
            return _instant(rows[0][column])
        raise _lost(
            self.resource, self.token, _read(await store.ask("reservation_get", resource=self.resource), self._of)
        )

    def _guarding(self, connection: Any) -> tuple[Statement, dict[str, Any]]:
        return self._of.call(connection, "reservation_guard", resource=self.resource)

    def _judge(self, rows: Sequence[Any]) -> None:
        standing = _read([_named(row) for row in rows], self._of)
        if standing is None or standing.token != self.token or not standing.is_held:
            raise _lost(self.resource, self.token, standing)


class Beside(Protocol):
    """How code without an event loop gets at the store."""

    def __call__(self, job: Callable[[Store], Awaitable[T]], /) -> T: ...


class Reservations:
    """``app.reservations``: take scarce things, and see who holds them."""

    def __init__(
        self,
        ready: Callable[[], Awaitable[Store]],
        clock: Callable[[], Clock],
        beside: Beside,
        store: Callable[[], Store],
    ) -> None:
        self.ready = ready
        self.beside = beside
        self._clock = clock
        self._store = store

    # Taking

    async def take(
        self, resource: str, *, owner: str, ttl: Span = "30s", wait: Span | None = None, facts: Any = None
    ) -> Reservation:
        """Take a resource for a time; ``Taken`` when somebody holds it, or still does after ``wait``.

        ``facts``: what others shall know of it, as JSON.
        """
        wanted = _wanted(resource, owner, ttl, facts)
        return await self._take(await self.ready(), wanted, _patience(wait))

    def take_sync(
        self, resource: str, *, owner: str, ttl: Span = "30s", wait: Span | None = None, facts: Any = None
    ) -> Reservation:
        """``take`` for code without an event loop."""
        wanted, patience = _wanted(resource, owner, ttl, facts), _patience(wait)
        return self.beside(lambda store: self._take(store, wanted, patience))

    async def take_in(
        self, connection: Any, resource: str, *, owner: str, ttl: Span = "30s", facts: Any = None
    ) -> Reservation:
        """Take a resource in the transaction of your own connection: it stands or falls with that."""
        wanted = _wanted(resource, owner, ttl, facts)
        rows = await caller.run(connection, *self.call(connection, "reservation_take", **wanted))
        if rows:
            return _reservation(_named(rows[0]), self)
        held = await caller.run(connection, *self.call(connection, "reservation_get", resource=resource))
        raise _taken(resource, _read([_named(row) for row in held], self))

    def take_in_sync(
        self, connection: Any, resource: str, *, owner: str, ttl: Span = "30s", facts: Any = None
    ) -> Reservation:
        """``take_in`` for code without an event loop: sqlite3, psycopg, SQLAlchemy, Django."""
        wanted = _wanted(resource, owner, ttl, facts)
        rows = caller.run_sync(connection, *self.call(connection, "reservation_take", **wanted))
        if rows:
            return _reservation(_named(rows[0]), self)
        held = caller.run_sync(connection, *self.call(connection, "reservation_get", resource=resource))
        raise _taken(resource, _read([_named(row) for row in held], self))

    async def _take(self, store: Store, wanted: Mapping[str, Any], patience: float) -> Reservation:
        waited = 0.0
        while True:
            asked_at = store.clock.monotonic()
            held = _read(await store.ask("reservation_get", resource=wanted["resource"]), self)
            if held is None or not held.is_held:  # who only looks keeps nobody from writing
                rows = await store.write("reservation_take", **wanted)
                if rows:
                    return _reservation(rows[0], self, asked_at)
                held = _read(await store.ask("reservation_get", resource=wanted["resource"]), self)
            if waited >= patience:
                raise _taken(wanted["resource"], held)
            low, high = _LOOK_SECONDS
            pause = min(patience - waited, low + (high - low) * store.clock.random())
            await store.clock.sleep(pause)
            waited += pause

    def by_token(self, resource: str, token: int) -> Reservation:
        """Speak for a token that was taken elsewhere, to renew, release or guard by it. Nothing is asked yet."""
        _name(resource)
        never = from_micros(0)
        return Reservation(
            resource, check_whole(token, "token"), "", None, never, never, never, None, is_held=False, _of=self
        )

    def call(self, connection: Any, verb: str, **values: Any) -> tuple[Statement, dict[str, Any]]:
        """Say what to run on the caller's own connection."""
        spoken = caller.dialect(connection)
        caller.admit(self._store(), connection, "a reservation")
        now = to_micros(self._clock().now()) if spoken == "sqlite" else self._clock().database_now()
        return load(spoken, verb, self._store().schema), {**values, "now": now}

    # Looking and acting

    async def get(self, resource: str) -> Reservation | None:
        """Read how a resource stands; nothing when nobody ever took it."""
        return _read(await (await self.ready()).ask("reservation_get", resource=resource), self)

    async def ls(self, *, everything: bool = False, after: str = "", limit: int = 100) -> list[Reservation]:
        """List what is held now, by name; with ``everything`` also what was."""
        rows = await (await self.ready()).ask("reservations", everything=everything, after=after, limit=limit)
        return [_reservation(row, self) for row in rows]

    async def release(self, resource: str, *, by: str, reason: str) -> Reservation:
        """Take a resource away from its holder, whose token is worth nothing from then on."""
        who, why = _said(by), _said(reason, "reason")
        async with (await self.ready()).transaction() as tx:
            held = _read(await tx.run("reservation_get", resource=resource), self)
            if held is None or not held.is_held:
                raise Refused(f"nobody holds {resource[:80]!r}: `redrive reservations ls` lists what is held")
            if not await tx.run("reservation_release", resource=resource, token=held.token):
                raise Refused(f"{resource[:80]!r} has changed hands meanwhile: look at it again")
            facts = {"reason": why, "resource": resource, "owner": held.owner, "token": held.token}
            await tx.note("reservation-released", who, facts)
        return held


# --- what is asked for ---


def _wanted(resource: str, owner: str, ttl: Span, facts: Any) -> dict[str, Any]:
    if not check_text(owner, "owner", OWNER_LIMIT).strip():
        raise ConfigurationError("say who takes it: owner=… is what others will be told")
    text = None if facts is None else encode(facts)
    return {"resource": _name(resource), "owner": owner, "ttl": _ttl(ttl), "facts": text}


def _name(resource: str) -> str:
    if not check_text(resource, "resource", RESOURCE_LIMIT).strip():
        raise ConfigurationError("a reservation needs a resource: a name like 'seat/12A'")
    return resource


def _ttl(ttl: Span) -> float:
    seconds = span(ttl, "ttl")
    if seconds < _LEAST_SECONDS:
        raise BadDuration("ttl must be at least 100ms: a shorter one has run out before you hear of it")
    return seconds


def _patience(wait: Span | None) -> float:
    return 0.0 if wait is None else parse_duration(wait)


def _said(text: str, what: Literal["by", "reason"] = "by") -> str:
    """Refuse an act without a name or a reason."""
    if not text.strip():
        raise Refused("say who does it: by=…" if what == "by" else "say why: reason=… is kept on the trail")
    return check_text(text, what, OWNER_LIMIT if what == "by" else _REASON_LIMIT)


# --- what is answered ---


def _taken(resource: str, held: Reservation | None) -> Taken:
    if held is None or not held.is_held:
        return Taken(f"{resource!r} is being taken, or its last holder is still writing: try again", resource=resource)
    said = f"{resource!r} is held by {held.owner} until {iso(held.until)} (token {held.token}): wait=… waits for it"
    return Taken(said, resource=resource, owner=held.owner, until=held.until)


def _lost(resource: str, token: int, standing: Reservation | None) -> ReservationLost:
    if standing is None:
        return ReservationLost(f"nobody ever reserved {resource!r}: take it first")
    if token > standing.token:
        return ReservationLost(f"token {token} is not one of {resource!r}, whose latest is {standing.token}")
    if token < standing.token:
        when = f"by {standing.owner} at {iso(standing.taken_at)}"
        said = f"{resource!r} was taken over with token {standing.token} {when}: token {token} may write nothing more"
        return ReservationLost(said)
    if standing.released_at is not None:
        return ReservationLost(f"{resource!r} was released at {iso(standing.released_at)}: take it again")
    return ReservationLost(f"{resource!r} ran out at {iso(standing.until)}: take it again, and renew it in time")


def _read(rows: Sequence[Mapping[str, Any]], of: Reservations) -> Reservation | None:
    return _reservation(rows[0], of) if rows else None


def _reservation(row: Mapping[str, Any], of: Reservations, asked_at: float = 0.0) -> Reservation:
    values = {name: _at(row[name]) for name in ("taken_at", "renewed_at", "until", "released_at")}
    is_held = "now" not in row or (values["released_at"] is None and row["until"] > row["now"])
    facts = None if row["facts"] is None else json.loads(row["facts"])
    return Reservation(
        row["resource"], row["token"], row["owner"], facts, **values, is_held=is_held, _of=of, _asked_at=asked_at
    )


def _named(row: Sequence[Any]) -> dict[str, Any]:
    """Name the columns of a row that came by a driver of the caller; a take answers no time."""
    return dict(zip(_COLUMNS, row, strict=False))


def _instant(value: Any) -> datetime:
    return instant_of(value)


def _at(value: Any) -> Any:
    return None if value is None else _instant(value)
