"""Traffic: the routes and intakes of an app, and how it goes on them.

While any worker of the app runs, its brokers are connected as they are needed; with the last worker they are let go.
Every few seconds each route and intake says in the database how it stands, if that has changed: connected or not, why
not, how much has moved. ``redrive transports ls`` reads it, from wherever.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redrive.clock import Clock
from redrive.counts import MOST_NAMES
from redrive.duration import span
from redrive.duty import Duty, Tick
from redrive.errors import ConfigurationError, Refused, StoreUnavailable
from redrive.event import NewEvent
from redrive.instant import instant_of, iso
from redrive.logs import log
from redrive.store.base import Ages, Store
from redrive.transport.base import Broker, Destination, Inlet, Link, LinkState, Mode
from redrive.transport.intake import Intake, Parse
from redrive.transport.letters import DeadLetterRelay
from redrive.transport.relay import QUEUE, RELAY, MessageKey, Relay, Republished, republish

_WRITE_SECONDS: Final = 2.0
_CONFIRM_SECONDS: Final = 30.0
STALE_SECONDS: Final = 120.0
"""A worker that has not said for so long how it stands is not running."""
_FORGET_SECONDS: Final = 60.0
_FORGET_LIMIT: Final = 5_000
_MOST_COPIES: Final = 1_000_000
_MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """How one worker stands with one route or intake; ``unsent`` and ``oldest_at`` are of the route as a whole."""

    name: str
    worker: str | None
    kind: str
    broker: str
    destination: str
    state: str
    since: datetime | None
    error: str
    ok_at: datetime | None
    moved: int
    lag: int | None
    oldest_at: datetime | None
    now: datetime

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, instants as ISO 8601 in UTC."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "now"}
        return {name: iso(value) if isinstance(value, datetime) else value for name, value in values.items()}


class Traffic:
    """What goes out to brokers and comes in from them."""

    def __init__(
        self, ready: Callable[[], Awaitable[Store]], new_events: Callable[..., list[NewEvent]], clock: Clock,
        site: str = "",
    ) -> None:  # fmt: skip
        self.relays: dict[str, Relay] = {}
        self.intakes: dict[str, Intake] = {}
        self._ready = ready
        self._new_events = new_events
        self._clock = clock
        self._site = site
        self._remember = 0.0
        self._users = 0
        self._written: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self._moved: dict[str, int] = {}
        self._forget_at = 0.0

    # Saying what there is

    def relay(
        self, types: tuple[str, ...], to: Destination, *, mode: str = Mode.STRUCTURED, queue: str = QUEUE,
        name: str | None = None, of_dead_letters: bool = False, foreign: bool = False, key: MessageKey | None = None,
    ) -> Relay:  # fmt: skip
        """Add a route."""
        if not types:
            raise ConfigurationError("say which types of events to send: app.relay('order.paid', to=…)")
        try:
            how = Mode(mode)
        except ValueError:
            message = f"mode is {' or '.join(repr(each.value) for each in Mode)}, not {mode!r}"
            raise ConfigurationError(message) from None
        relay = Relay(types, to, mode=how, queue=queue, name=name, key=key)
        if of_dead_letters:
            relay = DeadLetterRelay(types, to, mode=how, queue=queue, name=name, ready=self._ready)
        self._check_broker(to.broker)
        if relay.target in self.relays:
            raise ConfigurationError(
                f"a route to {relay.name!r} is there: name all its types in one app.relay(…), or give this one name='…'"
            )
        relay.use(self._clock, self._site)
        relay.carries_foreign = foreign
        self.relays[relay.target] = relay
        return relay

    def intake(
        self, inlet: Inlet, *, types: Mapping[str, str] | None, parse: Parse | None, batch: int,
        max_backlog: int | None, remember: str | float, identify_by: str = "id",
    ) -> Intake:  # fmt: skip
        """Add an intake."""
        self._check_broker(inlet.broker)
        if batch < 1:
            raise ConfigurationError(f"batch must be at least 1, not {batch}")
        if max_backlog is not None and max_backlog < 1:
            raise ConfigurationError(f"max_backlog must be at least 1, not {max_backlog}; leave it out for no limit")
        if identify_by not in {"id", "position"}:
            raise ConfigurationError(f"identify_by is 'id' or 'position', not {identify_by!r}")
        inlet.broker.use(self._clock)
        intake = Intake(
            inlet, self._ready, self._new_events, self._clock, dict(types or {}), parse, batch, max_backlog,
            site=self._site, identify_by=identify_by,
        )  # fmt: skip
        if intake.target in self.intakes:
            raise ConfigurationError(f"an intake named {inlet.name!r} is there: give this one name='…'")
        self.intakes[intake.target] = intake
        self._remember = max(self._remember, span(remember, "remember"))
        return intake

    def _check_broker(self, broker: Broker) -> None:
        for each in self._brokers():
            if each is not broker and each.name == broker.name:
                raise ConfigurationError(
                    f"two brokers are called {broker.name!r}, and events wait for one by its name: give one name='…'"
                )

    def _brokers(self) -> list[Broker]:
        found = [relay.to.broker for relay in self.relays.values()]
        found += [intake.inlet.broker for intake in self.intakes.values()]
        return list({id(each): each for each in found}.values())

    def open_to_foreign(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        """Leave out the routes that carry only what began at this site: nothing goes back to where it came from."""
        return tuple(each for each in targets if not each.startswith(RELAY) or self._carries_foreign(each))

    def _carries_foreign(self, target: str) -> bool:
        return target in self.relays and self.relays[target].carries_foreign

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the routes have."""
        return tuple(dict.fromkeys(relay.queue for relay in self.relays.values()))

    # What a worker does for it

    def duties(self) -> list[Duty]:
        """List what a worker does beside its turns."""
        if not self.relays and not self.intakes:
            return []
        tell = Duty("transports", self._tell, during=self._open)
        return [tell, *(Duty(f"intake-{each.name}", each.act) for each in self.intakes.values())]

    @asynccontextmanager
    async def _open(self, by: str) -> AsyncIterator[None]:
        """Let go of all connections when the last worker has ended."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                await self._close(by)

    async def _close(self, by: str) -> None:
        for intake in self.intakes.values():
            await intake.close()
        for broker in self._brokers():
            await broker.close()
        self._written.clear()
        try:
            async with (await self._ready()).transaction() as tx:
                await tx.run("transport_gone", worker=by)
        except StoreUnavailable as error:  # what it says will be called old
            log.debug("transport states left behind", worker=by, error=str(error))

    async def _tell(self, by: str) -> Tick:
        news = [values for values in self._states() if self._is_news(values)]
        if news:
            async with (await self._ready()).transaction() as tx:
                for values in news:
                    await tx.run("transport_put", worker=by, **values)
            now = self._clock.monotonic()
            self._written |= {values["name"]: (now, tuple(values.values())) for values in news}
        await self._forget(by)
        return Tick(moved=False, pause=_WRITE_SECONDS)

    def _is_news(self, values: dict[str, Any]) -> bool:
        at, said = self._written.get(values["name"], (0.0, ()))
        return tuple(values.values()) != said or self._clock.monotonic() - at > _CONFIRM_SECONDS

    def _states(self) -> list[dict[str, Any]]:
        states = [
            self._state(relay.target, "relay", relay.to.broker, relay.to.topic, relay.link)
            for relay in self.relays.values()
        ]
        return states + [
            self._state(intake.target, "intake", intake.inlet.broker, intake.name, intake.link)
            for intake in self.intakes.values()
        ]

    def _state(self, name: str, kind: str, broker: Broker, destination: str, link: Link) -> dict[str, Any]:
        if link.state is LinkState.OK and self._moved.get(name) != link.moved:
            self._moved[name], link.ok_at = link.moved, self._clock.now()
        return {
            "name": name, "kind": kind, "broker": broker.name, "destination": destination, "state": link.state.value,
            "since": link.since, "error": (link.error or link.note)[:1_000], "ok_at": link.ok_at, "moved": link.moved,
            "lag": link.lag,
        }  # fmt: skip

    async def _forget(self, by: str) -> None:
        """Let go of messages that no broker brings again."""
        if not self.intakes or self._clock.monotonic() < self._forget_at:
            return
        self._forget_at = self._clock.monotonic() + _FORGET_SECONDS
        gone = await (await self._ready()).purge(Ages(messages=self._remember), by=by, limit=_FORGET_LIMIT)
        if gone.messages == _FORGET_LIMIT:
            self._forget_at = 0.0

    # Looking and acting

    async def standing(self) -> list[Standing]:
        """List the routes and intakes of all workers, and what waits to be sent."""
        store = await self._ready()
        rows = await store.ask("transports")
        unsent = await self.unsent(rows)
        found = [_standing(row, unsent) for row in rows]
        known = {each.name for each in found}
        now = found[0].now if found else self._clock.now()
        for target, row in unsent.items():
            if target not in known:
                broker, _, topic = target.removeprefix(RELAY).partition(":")
                found.append(
                    Standing(
                        target, None, "relay", broker, topic or broker, "not running", None, "", None, 0, row["n"],
                        _instant(row["oldest_at"]), now,
                    )
                )  # fmt: skip
        return found

    async def unsent(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Look what waits to be sent, by target: the first 1,000 of each lane and of each broker that is away."""
        relays = self.relays.values()
        queues = sorted({QUEUE, *(relay.queue for relay in relays)}) if relays else []  # none: all of them
        brokers = sorted({row["broker"] for row in rows} | {relay.to.broker.name for relay in relays})[:MOST_NAMES]
        found = await (await self._ready()).ask("relay_lag", queues=queues, brokers=brokers, limit=_MOST_COUNTED)
        return {row["target"]: row for row in found}

    async def republish(
        self, route: str, *, since: datetime, until: datetime, by: str, reason: str, limit: int = 10_000
    ) -> Republished:
        """Send once more what a route has delivered between two instants.

        For a broker that lost what it had acknowledged. Receivers recognise what they have by its id. Only what
        retention has kept can be sent; oldest first, at most ``limit``, behind live work.
        """
        target = route if route.startswith(RELAY) else RELAY + route
        if since >= until:
            raise Refused(f"the window ends ({until.isoformat()}) before it begins ({since.isoformat()})")
        if not 1 <= limit <= _MOST_COPIES:
            raise Refused(f"limit must be from 1 to {_MOST_COPIES:,}, not {limit:,}")
        relay = self.relays.get(target)
        queue = relay.queue if relay else QUEUE
        return await republish(
            await self._ready(), self._clock.new_id, target, queue, since=since, until=until, limit=limit, by=by,
            reason=reason,
        )  # fmt: skip


def _standing(row: Mapping[str, Any], unsent: Mapping[str, Mapping[str, Any]]) -> Standing:
    now = _instant(row["now"])
    written = _instant(row["written_at"])
    assert now is not None
    assert written is not None
    waits = unsent.get(row["name"])
    stale = (now - written).total_seconds() > STALE_SECONDS
    lag = row["lag"] if row["kind"] == "intake" else waits["n"] if waits else 0
    return Standing(
        name=row["name"], worker=row["worker"], kind=row["kind"], broker=row["broker"],
        destination=row["destination"], state="not running" if stale else row["state"], since=_instant(row["since"]),
        error=row["error"], ok_at=_instant(row["ok_at"]), moved=row["moved_count"], lag=lag,
        oldest_at=_instant(waits["oldest_at"]) if waits else None, now=now,
    )  # fmt: skip


def _instant(value: Any) -> datetime | None:
    return instant_of(value)
