"""The stage: lets things happen to the shop, and asks the store what came of them."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive.app import Redrive
from redrive.event import LIVE, ErrorClass, Event, NewEvent, Outcome, Status, TrailEntry
from redrive.group import Group
from redrive.instant import EPOCH
from redrive.operate import views
from redrive.operate.demo.crew import Crew
from redrive.operate.demo.shop import BANK, CARRIER, CARRIER_API, NOWHERE, TABLES, World
from redrive.operate.views import Standing
from redrive.redrive import Redriving, Release
from redrive.store.base import EventFilter

SECONDS: Final = 40.0
OPERATOR: Final = "demo:operator"

_ORDERS: Final = 48
_FIRST_ORDER: Final = 1001
_CUSTOMERS: Final = ("Ada", "Ben", "Chloé", "Dmitri", "Eva", "Farid", "Grete", "Hiro")
_CITIES: Final = ("Bern", "Lyon", "Oslo", "Porto", "Gdańsk", "Graz", "Cork", "Turin")
_TO_NOWHERE: Final = 9  # which order goes where no carrier goes
# Whose invoice has an amount that release 1 cannot read; release 2 cannot read two of them either.
_POISONED: Final = {4: "12,50", 8: "1.250,00", 12: "7,90", 16: "42,00", 20: "1.310,00", 24: "9,90"}
_ROLLED_BACK: Final = (15, 30)  # which customers leave the till in the middle
_FROM_MARKETPLACE: Final = 24
_BATCH: Final = "marketplace"
_LOOK_SECONDS: Final = 0.2
_FEED: Final = 200
# When things happen, as parts of the whole.
_MARKETPLACE, _LAST_ORDER = 0.30, 0.62
_RELEASE_2, _REDRIVE_2, _RELEASE_3, _REDRIVE_3 = 0.50, 0.58, 0.72, 0.80
_RAMP: Final = (1, 2)
_PATIENCE_SECONDS: Final = 10.0


class _LeftTheTill(Exception):
    """The customer's own transaction fails: the order and its events are rolled back together."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Somebody the shop relies on ails for a while."""

    who: str
    begins: float
    ends: float
    first: str
    last: str


_TROUBLES: Final = (
    Trouble(BANK, 0.04, 0.17, "the bank is slow to confirm payments", "the bank is quick again"),
    Trouble(CARRIER, 0.18, 0.38, "the carrier stops answering: 503", "the carrier answers again"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence of the feed, at so many seconds."""

    at: float
    text: str
    style: str = ""


@dataclass(slots=True)
class Look:
    """What the store says at one moment."""

    now: datetime
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    retries: list[Event] = field(default_factory=list)
    dead: list[Event] = field(default_factory=list)
    redrive: Redriving | None = None
    circuit: Standing | None = None
    effects: int = 0
    keys: int = 0

    def of(self, *statuses: Status) -> int:
        """Count events in these statuses; without any, all."""
        return sum(count for (_, status), count in self.counts.items() if not statuses or status in statuses)


@dataclass(frozen=True, slots=True)
class Summary:
    """What was seen, read from the store at the end."""

    url: str
    seconds: float
    published: int
    delivered: int
    dead_letters: int
    pending: int
    retries: int
    recovered_by_retry: int
    most_attempts: int
    waited: int
    replayed: int
    recovered_by_replay: int
    redrives: int
    redrives_halted: int
    spared: int
    duplicates: int
    effects: int
    distinct_keys: int
    orders: int
    orders_rolled_back: int
    trail_entries: int
    dead_letter: str
    recovered: str
    invariants: dict[str, bool]

    @property
    def holds(self) -> bool:
        return all(self.invariants.values())

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {name: getattr(self, name) for name in self.__slots__} | {"holds": self.holds}


class Stage:
    """One run of the demo."""

    def __init__(self, url: str, seconds: float, on_line: Callable[[Line], None] = lambda _line: None) -> None:
        self.url = url
        self.seconds = seconds
        self.world = World()
        self.feed: deque[Line] = deque(maxlen=_FEED)
        self.look = Look(EPOCH)
        self._on_line = on_line
        self._pace = seconds / SECONDS
        self._crew = Crew(url, self.world, release=1, pace=self._pace)
        self._clock = self._app.clock
        self._began = 0.0
        self._stored = 0
        self._left_the_till = 0
        self._heard: dict[str, int] = {}
        self._names: dict[UUID, str] = {}
        self._troubled: dict[UUID, str] = {}
        self._redrives: list[Redriving] = []
        self._spared = True
        self._told: set[str] = set()

    @property
    def _app(self) -> Redrive:
        return self._crew.app

    @property
    def elapsed(self) -> float:
        return self._clock.monotonic() - self._began

    def now(self) -> datetime:
        """Tell the time."""
        return self._clock.now()

    async def play(self) -> Summary:
        """Let everything happen; return what came of it."""
        self._began = self._clock.monotonic()
        await self._open()
        looking = asyncio.create_task(self._keep_looking(), name="demo-look")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._customers())
                group.create_task(self._marketplace())
                for trouble in _TROUBLES:
                    group.create_task(self._trouble(trouble))
                group.create_task(self._team())
            await self._until_quiet()
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            await self._crew.stop()
            try:
                self.look = await self._look()
                summary = await self._sum_up()
            finally:
                await self._crew.close()
        return summary

    def say(self, text: str, style: str = "") -> None:
        """Add a sentence to the feed."""
        line = Line(self.elapsed, text, style)
        self.feed.append(line)
        self._on_line(line)

    # What happens

    async def _open(self) -> None:
        await self._app.open()
        async with self._app.store.transaction() as tx:
            for table in TABLES:
                await tx.execute(table)
        self.say("the shop opens: release 1, one worker", "bold")
        self._crew.start()

    async def _at(self, part: float) -> None:
        await self._clock.sleep(max(0.0, part * self.seconds - self.elapsed))

    async def _customers(self) -> None:
        for place in range(_ORDERS):
            await self._at(place / _ORDERS * _LAST_ORDER)
            with suppress(_LeftTheTill):
                await self._order(place)
        self.say("the last customer has left")

    async def _order(self, place: int) -> None:
        """Store the order and its events in one transaction: both are there, or neither."""
        number, total = _FIRST_ORDER + place, f"{19 + place * 7 % 90}.90"
        who, city = _CUSTOMERS[place % len(_CUSTOMERS)], _CITIES[place % len(_CITIES)]
        if place == _TO_NOWHERE:
            city = NOWHERE
        events = self._paid(number, who, city, total)
        payment = {"order": number, "amount": total}
        key = f"payment-{number}"
        events += self._app.new_events("payment.captured", payment, idempotency_key=key)
        if place % 4 == 0:
            amount = _POISONED.get(place, total)
            events += self._app.new_events("invoice.requested", {"order": number, "amount": amount})
        if place in _ROLLED_BACK:
            self.say(f"order {number}: rolled back, {who} left the till", "dim")
        await self._store([(number, who, total)], events, rolled_back=place in _ROLLED_BACK)
        self.say(f"order {number}: {who}, {city}, € {total}", "dim")
        if place % 5 == 0:  # the payment provider's webhook comes twice
            self._stored += 1
            await self._app.publish("payment.captured", payment, idempotency_key=key)
            self.say(f"payment of {number} is announced twice", "dim")

    async def _marketplace(self) -> None:
        """Bring many orders in one go: so many wait for the carrier that one sees how they come back."""
        await self._at(_MARKETPLACE)
        first = _FIRST_ORDER + _ORDERS
        orders = [(number, "marketplace", "25.00") for number in range(first, first + _FROM_MARKETPLACE)]
        async with await self._app.batches.open(_BATCH) as batch:
            events = [
                each for number, who, total in orders for each in self._paid(number, who, _CITIES[0], total, batch.id)
            ]
            await self._store(orders, events)
        self.say(f"a marketplace sends {len(orders)} orders at once", "bold")

    def _paid(self, number: int, who: str, city: str, total: str, batch: UUID | None = None) -> list[NewEvent]:
        order = {"id": number, "customer": who, "city": city, "total": total}
        return self._app.new_events("order.paid", order, batch=batch)

    async def _store(
        self, orders: list[tuple[int, str, str]], events: list[NewEvent], *, rolled_back: bool = False
    ) -> None:
        async with self._app.store.transaction() as tx:
            for order in orders:
                await tx.execute("insert into shop_order (id, customer, total) values (?, ?, ?)", *order)
            await tx.publish(events)
            if rolled_back:
                self._left_the_till += 1
                raise _LeftTheTill
        self._stored += len(events)

    async def _trouble(self, trouble: Trouble) -> None:
        await self._at(trouble.begins)
        self.world.ailing.add(trouble.who)
        self.say(trouble.first, "bold red")
        await self._at(trouble.ends)
        self.world.ailing.remove(trouble.who)
        self.say(trouble.last, "bold green")

    async def _team(self) -> None:
        await self._at(_RELEASE_2)
        await self._release(2)
        await self._at(_REDRIVE_2)
        await self._redrive("release 2 reads amounts with a comma")
        await self._at(_RELEASE_3)
        await self._release(3)
        await self._at(_REDRIVE_3)
        for halted in [each for each in self._redrives if each.state == "halted"]:
            await self._app.abort(halted.id, by=OPERATOR, reason="release 2 was half a fix")
        await self._redrive("release 3 reads 1.250,00, too")

    async def _redrive(self, reason: str) -> None:
        """Send the dead letters of one cause round again as an operator would: look, plan, go up a ramp."""
        app = self._app
        group = await self._cause()
        if group is None:
            return
        self.say(f"group {group.short}: {group.dead_count} dead, one cause", "bold cyan")
        plan = (await app.plan(f"group:{group.short}", by=OPERATOR)).redrive
        first, then = _RAMP
        self.say(f"plan: {plan.ready} of {plan.total} can go; first {first}, then {then}", "bold cyan")
        standing = await app.start(plan.token, by=OPERATOR, reason=reason, release=Release(ramp=_RAMP))
        standing = await self._watched(standing)
        self._redrives.append(standing)
        if standing.state == "halted":
            self.say(f"redrive halts: {standing.stop_reason}", "bold red")
            self.say(f"redrive: the other {standing.untouched} are not touched", "bold")
            self._spared = self._spared and await self._untouched(standing)
        else:
            self.say(f"redrive {standing.state}: {standing.delivered} of {standing.ready} delivered", "bold green")

    async def _cause(self) -> Group | None:
        """Find what the invoices died of."""
        return next((each for each in await self._app.groups() if each.target == "invoice.requested"), None)

    async def _watched(self, standing: Redriving) -> Redriving:
        """Wait until it is done or halted; tell of every stage that went well."""
        until = self.elapsed + _PATIENCE_SECONDS
        while standing.state == "running" and self.elapsed < until:
            await self._clock.sleep(_LOOK_SECONDS * min(1.0, self._pace))
            before, standing = standing, await self._app.redriving(standing.id)
            if standing.stage > before.stage:
                self.say(f"redrive: stage {standing.stage} of {len(_RAMP)} went well", "cyan")
        return standing

    async def _untouched(self, halted: Redriving) -> bool:
        """Say whether those that were not released are what they were."""
        left = [each.event_id async for each in views.items(self._app, halted.id) if each.state == "ready"]
        events = [await self._app.event(each) for each in left]
        return len(left) == halted.untouched and all(
            each is not None and each.status is Status.FAILED and each.cycle == 0 for each in events
        )

    async def _release(self, number: int) -> None:
        self.say(f"release {number} goes out, the worker drains", "bold")
        await self._crew.deploy(number)
        self.say(f"release {number} is at work", "bold")

    async def _until_quiet(self) -> None:
        """Wait until every event has ended, and for the time that was announced."""
        until = self.seconds + _PATIENCE_SECONDS
        while self.elapsed < self.seconds or (self.look.of(*LIVE) and self.elapsed < until):
            await self._clock.sleep(_LOOK_SECONDS * min(1.0, self._pace))

    # What the store says

    async def _keep_looking(self) -> None:
        while True:
            before, self.look = self.look.circuit, await self._look()
            if before is not None and self.look.circuit is not None:
                self._tell_of_circuit(before, self.look.circuit)
            await self._listen()
            await self._tell_of_batch()
            await self._clock.sleep(_LOOK_SECONDS * min(1.0, self._pace))

    async def _look(self) -> Look:
        app = self._app
        pending = await app.events(EventFilter(status=Status.PENDING, limit=500))
        async with app.store.transaction() as tx:
            ((effects, keys),) = await tx.fetch("select count(*), count(distinct what || ' ' || key) from shop_effect")
        return Look(
            now=app.clock.now(),
            counts=await app.store.counts(),
            retries=sorted((each for each in pending if each.next_retry_at), key=lambda each: each.due_at),
            dead=await app.events(EventFilter(status=Status.FAILED)),
            redrive=next(iter(await app.redrivings(limit=1)), None),
            circuit=next((each for each in await views.dependencies(app) if each.of.name == CARRIER_API), None),
            effects=effects,
            keys=keys,
        )

    def _tell_of_circuit(self, before: Standing, after: Standing) -> None:
        old, new, back = before.of, after.of, before.waiting - after.waiting
        if new.is_shut and not old.is_shut:
            self.say(f"circuit opens: {new.reason}", "bold magenta")
        elif new.is_shut and new.openings > old.openings:
            self.say(f"probe fails: {after.waiting} wait, spend nothing", "magenta")
        elif old.is_shut and not new.is_shut:
            self.say("probe succeeds: the circuit closes", "bold green")
        if not new.is_shut and back > 0:
            self.say(f"circuit closed: {back} back, {after.waiting} wait", "green")

    async def _tell_of_batch(self) -> None:
        for batch in await self._app.batches.ls(name=_BATCH, limit=1):
            for said in (batch.first, batch.final):
                if said is not None and said.kind not in self._told:
                    self._told.add(said.kind)
                    what = "every order was tried" if said.kind == "first" else "nothing can move any more"
                    self.say(f"batch {batch.name}: {what}, {said.delivered} of {said.total} delivered", "bold cyan")

    async def _listen(self) -> None:
        """Turn what is new on the trail into sentences, and notice those that made it after all."""
        news = [entry async for entry in self._app.store.trail() if entry.seq > self._heard.get(entry.chain, 0)]
        for entry in sorted(news, key=lambda each: each.at):
            self._heard[entry.chain] = max(entry.seq, self._heard.get(entry.chain, 0))
            if entry.event_id is not None:
                await self._tell(entry, entry.event_id)
        for event_id, name in list(self._troubled.items()):
            event = await self._app.event(event_id)
            if event is not None and event.status is Status.DELIVERED:
                del self._troubled[event_id]
                after = "after the replay" if event.cycle else f"at try {event.attempts}"
                self.say(f"{name}: delivered {after}", "green")

    async def _tell(self, entry: TrailEntry, event_id: UUID) -> None:
        event = await self._app.event(event_id)
        if event is None:
            return
        name, facts = self._name(event), entry.facts
        if entry.kind == "retry-scheduled":
            self._troubled[event_id] = name
            wait = datetime.fromisoformat(facts["next_retry_at"]) - entry.at
            tried = "no try spent" if facts["outcome"] == Outcome.DEFERRED else f"try {facts['attempt']} ✗"
            self.say(f"{name}: {tried}, next in {wait.total_seconds():.1f} s", "yellow")
        elif entry.kind == "dead-lettered":
            self.say(f"{name}: dead letter ({facts['error_class']})", "bold red")
        elif entry.kind == "replayed":
            self._troubled[event_id] = name

    def _name(self, event: Event) -> str:
        if event.id not in self._names:
            number = event.payload.get("id") or event.payload.get("order")
            what = {"order.paid": "order", "payment.captured": "receipt", "invoice.requested": "invoice"}
            self._names[event.id] = f"{what.get(event.type, event.type)} {number}"
        return self._names[event.id]

    name = _name

    # Summing up

    async def _sum_up(self) -> Summary:
        app, look = self._app, self.look
        events = [event async for event in views.pages(app, EventFilter())]
        async with app.store.transaction() as tx:
            ((orders,),) = await tx.fetch("select count(*) from shop_order")
        verdict = await app.verify_trail()
        trail = [entry async for entry in app.store.trail()]
        free = [entry for entry in trail if entry.kind == "blocked" or entry.facts.get("outcome") == Outcome.DEFERRED]
        kinds = Counter(entry.kind for entry in trail) - Counter(entry.kind for entry in free)
        waited = [event for event in events if event.id in {entry.event_id for entry in free}]
        delivered = [event for event in events if event.status is Status.DELIVERED]
        by_replay = [event for event in delivered if event.cycle]
        by_retry = [event for event in delivered if event.attempts > 1]
        done_keys = {(event.target, event.idempotency_key) for event in delivered}
        live = look.of(*LIVE)
        halted = [each for each in self._redrives if each.state == "halted"]
        paid = sum(event.type == "order.paid" for event in events)
        sums = [each.final and each.final.delivered for each in await app.batches.ls(name=_BATCH)]
        return Summary(
            url=self.url,
            seconds=round(self.elapsed, 1),
            published=len(events),
            delivered=len(delivered),
            dead_letters=len(look.dead),
            pending=live,
            retries=kinds["retry-scheduled"],
            recovered_by_retry=len(by_retry),
            most_attempts=max((event.attempts for event in events), default=0),
            waited=len(waited),
            replayed=kinds["replayed"],
            recovered_by_replay=len(by_replay),
            redrives=len(self._redrives),
            redrives_halted=len(halted),
            spared=sum(each.untouched for each in halted),
            duplicates=len(delivered) - len(done_keys),
            effects=look.effects,
            distinct_keys=look.keys,
            orders=orders,
            orders_rolled_back=self._left_the_till,
            trail_entries=verdict.entries,
            dead_letter=str(look.dead[0].id) if look.dead else "",
            recovered=str(by_replay[0].id) if by_replay else "",
            invariants={
                "everything published is in the store": self._stored == len(events) == look.of(),
                "published = delivered + dead letters + pending": (
                    len(events) == len(delivered) + len(look.dead) + live
                ),
                "no effect happened twice": look.effects == look.keys,
                "every delivery had its effect": look.keys == len(done_keys),
                "an order that was rolled back left no event": paid == orders,
                "the outage made no dead letter": all(
                    event.error_class != ErrorClass.DEPENDENCY_UNAVAILABLE for event in look.dead
                ),
                "all who waited for the carrier were delivered or rejected by it, with one attempt spent": all(
                    event.attempts == 1 and (event.status is Status.DELIVERED or event in look.dead) for event in waited
                ),
                "what a halted redrive had not released was untouched": self._spared,
                "the bug's dead letters were all brought through": await self._cause() is None,
                "the marketplace's batch was told of when its last order was delivered": sums == [_FROM_MARKETPLACE],
                "the trail is unbroken": verdict.sound,
            },
        )
