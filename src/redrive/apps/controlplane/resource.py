"""Resource: what the services for addresses, volumes and machines have in common.

    wanted     a row MAKING, the thing itself in steps, then in one commit: the row ACTIVE, what belongs to it, `made`
    unwanted   the row GONE, whatever was under way called off, the thing destroyed, then `gone`

GONE is final, so that an order that comes late, comes again or is replayed makes nothing. An order that ends as a dead
letter leaves GONE behind too, and tells why (`failed`); its finished steps are undone, the last one first. What all of
that misses (a process that was killed between two calls, a thing that somebody destroyed) the reconciler puts right.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from redrive import (
    ConfigurationError,
    Context,
    DeadLetter,
    EventFilter,
    EventNotFound,
    Redrive,
    Refused,
    Status,
    Work,
)
from redrive.apps.controlplane import words
from redrive.apps.controlplane.settings import Settings
from redrive.apps.controlplane.tables import Sql
from redrive.apps.controlplane.words import Failed, Gone, Made, Unwanted, Wanted
from redrive.apps.controlplane.world import Thing, World

MAKING: Final = "MAKING"
ACTIVE: Final = "ACTIVE"
GONE: Final = "GONE"

_LIVE: Final = (Status.PENDING, Status.IN_FLIGHT, Status.BLOCKED)
_COLUMNS: Final = "request, state, owner, volume_gb, name, token, facts, reduced"
_ERROR_SHOWN: Final = 500


class _CalledOff(Exception):
    """The thing became unwanted while it was being made."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a service has made of a request. ``facts``: the shape that the thing should have."""

    request: str
    state: str
    owner: str
    volume_gb: int
    name: str | None
    token: int
    facts: str
    reduced: bool

    @property
    def thing(self) -> Thing:
        if self.name is None:
            raise ConfigurationError(f"nothing was made of {self.request}")
        return Thing(self.name, self.request, self.token, json.loads(self.facts))


class Provider:
    """A service that makes one kind of thing."""

    kind: ClassVar[str]
    system: ClassVar[str]
    degraded: ClassVar[Literal["block", "proceed"]] = "block"

    def __init__(self, app: Redrive, world: World, settings: Settings) -> None:
        self.app = app
        self.world = world
        self.settings = settings
        self.sql = Sql(app)
        app.dependency(self.system, **settings.circuit)
        app.handler(
            words.wanted(self.kind), retry=settings.retry, timeout=settings.timeout, needs=[self.system],
            degraded=self.degraded, on_dead_letter=self._give_up, effects="outside",
            compensate_on=("cancelled", "deadline", "dead_letter"),
        )(self.make_known)  # fmt: skip
        # It does not declare its need: what is under way is called off although the system is down.
        undone = app.handler(
            words.unwanted(self.kind), retry=settings.retry, timeout=settings.timeout, effects="outside"
        )
        undone(self.make_gone)
        app.reconcilers.add(
            words.OWNER_OF[self.kind], desired=self.desired, actual=self.actual, look=self.look, converge=self.converge,
            every=settings.reconcile, retry=settings.retry, needs=[self.system], converge_timeout=settings.timeout,
            correlate=_request_of,
        )  # fmt: skip

    # What each service says for itself

    async def admit(self, tx: Work, order: Wanted) -> None:
        """Raise when policy forbids it."""

    async def make(self, order: Wanted, row: Row, ctx: Context, /) -> tuple[Thing, bool]:
        """Make the thing, in steps; say what it should look like, and whether it is less than that for now."""
        raise NotImplementedError

    async def keep(self, tx: Work, thing: Thing) -> None:
        """Write down what else must hold in the commit that makes the thing known."""

    async def let_go(self, tx: Work, request: str) -> None:
        """Give back what else there is, in the commit that says it is gone."""

    async def afterwards(self, thing: Thing) -> None:
        """Tidy up when the thing is known, or called off; it may not come to that."""

    # Wanted

    async def make_known(self, order: Wanted, ctx: Context) -> None:
        """Make a thing, and tell that it is there."""
        row = await self._begin(order)
        if row.state == GONE:
            return  # called off before it began, or tried again after it was undone
        if row.state == ACTIVE:
            async with ctx.transaction() as tx:
                await self._tell(tx, row)
            return
        thing, reduced = await self.make(order, row, ctx)
        try:
            async with ctx.transaction() as tx:
                await self._settle(tx, thing, reduced=reduced)
        except _CalledOff:
            await self.world.drop_all(self.system, order.request)
        await self.afterwards(thing)

    async def _begin(self, order: Wanted) -> Row:
        insert = f"""insert into controlplane.resource (kind, {_COLUMNS})
            values ($1, $2, 'MAKING', $3, $4, null, 0, '{{}}', false) on conflict do nothing"""
        values = (order.request, order.owner, order.volume_gb)
        async with self.app.transaction() as tx:
            if await tx.execute(self.sql(insert), self.kind, *values):
                await self.admit(tx, order)
            row = await self.row(tx, order.request)
            assert row is not None
            return row

    async def _settle(self, tx: Work, thing: Thing, *, reduced: bool) -> None:
        """Make it ACTIVE and tell so; if somebody else has done so, tell it again."""
        update = """update controlplane.resource set state = 'ACTIVE', name = $3, token = $4, facts = $5, reduced = $6
            where kind = $1 and request = $2 and state = 'MAKING'"""
        facts = json.dumps(thing.facts)
        values = (self.kind, thing.request, thing.name, thing.token, facts, reduced)
        if await tx.execute(self.sql(update), *values):
            await self.keep(tx, thing)
        row = await self.row(tx, thing.request)
        if row is None or row.state == GONE:
            raise _CalledOff
        await self._tell(tx, row)

    async def _tell(self, tx: Work, row: Row) -> None:
        told = Made(request=row.request, name=row.thing.name, reduced=row.reduced)
        await tx.publish(words.made(self.kind), told, subject=self.subject(row.request))

    async def _give_up(self, letter: DeadLetter, tx: Work) -> None:
        """Tell that it cannot be made; in the transaction that makes the order a dead letter."""
        request = letter.correlation_id or str(letter.id)
        if await self._entomb(tx, request, over="making"):
            told = Failed(
                request=request, operation=letter.target, resource=letter.subject or self.subject(request),
                error_class=letter.error_class, error=_first_line(letter), safe_to_retry=letter.safe_to_retry,
            )  # fmt: skip
            await tx.publish(words.failed(self.kind), told, subject=self.subject(request))

    # Unwanted

    async def make_gone(self, order: Unwanted, ctx: Context) -> None:
        """Call off what is under way, destroy what there is, and tell that nothing is left."""
        # First: an order that probes a system that is down would find its thing gone, and be delivered for that. Nobody
        # would read who called it off, and the system would be taken for well.
        await self._call_off(order)
        async with self.app.transaction() as tx:
            await self._entomb(tx, order.request, over="anything")
        await self.world.drop_all(self.system, order.request)
        async with ctx.transaction() as tx:
            await self.let_go(tx, order.request)
            await tx.publish(words.gone(self.kind), Gone(request=order.request), subject=self.subject(order.request))

    async def _call_off(self, order: Unwanted) -> None:
        wanted = words.wanted(self.kind)
        for event in await self.app.events(EventFilter(type=wanted, correlation_id=order.request)):
            if event.target == wanted and event.status in _LIVE:
                with suppress(Refused, EventNotFound):  # it has ended meanwhile, and found itself called off
                    await self.app.cancel(event.id, by=order.by, reason=order.reason)

    async def _entomb(self, tx: Work, request: str, *, over: Literal["nothing", "making", "anything"]) -> bool:
        """Let nothing be made of a request any more, whatever there is of it by now; answer whether that is so."""
        otherwise = {
            "nothing": "do nothing",
            "making": "do update set state = 'GONE' where controlplane.resource.state <> 'ACTIVE'",
            "anything": "do update set state = 'GONE'",
        }
        insert = f"""insert into controlplane.resource (kind, {_COLUMNS})
            values ($1, $2, 'GONE', '', 0, null, 0, '{{}}', false) on conflict (kind, request) {otherwise[over]}"""
        return bool(await tx.execute(self.sql(insert), self.kind, request))

    async def is_kept(self, request: str) -> bool:
        """Tell whether the thing is there for good: an order that came twice undoes nothing of what the first made."""
        async with self.app.transaction() as tx:
            row = await self.row(tx, request)
        return row is not None and row.state == ACTIVE

    # Reconciling

    async def desired(self) -> dict[str, Any]:
        """Say what there should be, by name."""
        query = f"select {_COLUMNS} from controlplane.resource where kind = $1 and state = 'ACTIVE'"
        async with self.app.transaction() as tx:
            rows = [Row(*row) for row in await tx.fetch(self.sql(query), self.kind)]
        return {row.thing.name: _shape(row.thing) for row in rows}

    async def actual(self) -> dict[str, Any]:
        """Say what there is, but for what is being made."""
        query = "select request from controlplane.resource where kind = $1 and state = 'MAKING'"
        things = await self.world.things(self.system)
        async with self.app.transaction() as tx:
            making = {row[0] for row in await tx.fetch(self.sql(query), self.kind)}
        return {thing.name: _shape(thing) for thing in things if thing.request not in making}

    async def look(self, name: str) -> tuple[Any, Any]:
        """Look at both sides of one thing, as they are now."""
        thing = await self.world.find(self.system, name)
        async with self.app.transaction() as tx:
            row = await self.named(tx, name)
            of_thing = await self.row(tx, thing.request) if thing is not None else None
        if of_thing is not None and of_thing.state == MAKING:
            return None, None
        return row and _shape(row.thing), thing and _shape(thing)

    async def converge(self, name: str, desired: Any, actual: Any, ctx: Context) -> None:
        """Make what should be there, destroy what should not."""
        if desired is None:
            await self._clear_away(name, str(actual["request"]))
            return
        async with self.app.transaction() as tx:
            row = await self.named(tx, name)
        if row is None:
            return
        await self.world.put(self.system, row.thing)
        await self._whole_again(row, ctx)

    async def _clear_away(self, name: str, request: str) -> None:
        """Destroy what belongs to nobody; from here on nobody can begin to make it."""
        async with self.app.transaction() as tx:
            await self._entomb(tx, request, over="nothing")
            row = await self.row(tx, request)
        if row is not None and (row.state == GONE or (row.state == ACTIVE and row.name != name)):
            await self.world.drop(self.system, name, request)

    async def _whole_again(self, row: Row, ctx: Context) -> None:
        """Tell that a thing is no longer less than it should be; if it has become unwanted, destroy it again."""
        update = """update controlplane.resource set reduced = false
            where kind = $1 and request = $2 and state = 'ACTIVE'"""
        async with self.app.transaction() as tx:
            still = await tx.execute(self.sql(update), self.kind, row.request)
        if not still:
            await self.world.drop_all(self.system, row.request)
        elif row.reduced:
            told = Made(request=row.request, name=row.thing.name)
            subject = self.subject(row.request)
            await ctx.publish(words.made(self.kind), told, subject=subject, correlation_id=row.request)

    # Reading

    async def row(self, tx: Work, request: str) -> Row | None:
        query = f"select {_COLUMNS} from controlplane.resource where kind = $1 and request = $2"
        rows = await tx.fetch(self.sql(query), self.kind, request)
        return Row(*rows[0]) if rows else None

    async def named(self, tx: Work, name: str) -> Row | None:
        """Find what should be there by this name."""
        query = f"select {_COLUMNS} from controlplane.resource where kind = $1 and name = $2 and state = 'ACTIVE'"
        rows = await tx.fetch(self.sql(query), self.kind, name)
        return Row(*rows[0]) if rows else None

    def subject(self, request: str) -> str:
        return f"{self.kind}/{request}"


def _first_line(letter: DeadLetter) -> str:
    said = letter.last_error.removeprefix(f"{letter.error_type}: ")
    return said.partition("\n")[0][:_ERROR_SHOWN]


def _request_of(_name: str, desired: Any, actual: Any) -> str:
    """Say of which request a thing is: what is done about it belongs to the request's task."""
    return str((desired or actual)["request"])


def _shape(thing: Thing) -> Mapping[str, Any]:
    return {"request": thing.request, **thing.facts}
