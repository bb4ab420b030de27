"""Requests: the front, and the saga that makes of a request an address, a volume and a machine.

A request moves in one commit with the order that comes next, so it is never between two steps. An answer that does not
fit where it stands is a repetition, or comes too late: what was made for a request that is not wanted any more is sent
back. When something cannot be made, everything is undone in reverse order, and only then has the request ended.

The reconciler looks after requests that do not move: an order or an answer that was lost is sent again, and one that is
not ready by its deadline is undone.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from redrive import (
    Context,
    EventFilter,
    PrerequisiteMissing,
    Redrive,
    Refused,
    Rejected,
    Status,
    Work,
    parse_duration,
)
from redrive.apps.controlplane import words
from redrive.apps.controlplane.request import Book, Request, instant
from redrive.apps.controlplane.settings import Settings
from redrive.apps.controlplane.words import (
    ANSWERED,
    KINDS,
    CalledOff,
    Failed,
    Forwarded,
    Gone,
    Made,
    Moved,
    State,
    Unwanted,
)

OURS: Final = "controlplane"
SAMPLE: Final = (
    ("ada", "small", 20, "debian-13"), ("ada", "large", 200, "ubuntu-24.04"), ("bob", "medium", 50, "windows-95"),
)  # fmt: skip
LATE: Final = "is late"
STILL: Final = "stands still"
LIVE: Final = (Status.PENDING, Status.IN_FLIGHT, Status.BLOCKED)
_MOST_ASKED: Final = 3
_TOLD: Final = (
    "reason", "error_class", "operation", "resource", "safe_to_retry", "cancelled_by", "address", "volume", "machine",
    "reduced",
)  # fmt: skip
"""What the site where a request was made is told, beside its state."""


class Requests:
    """The service that has the requests of a site."""

    def __init__(self, app: Redrive, settings: Settings) -> None:
        self.app = app
        self.site = settings.site
        self.settings = settings
        self.book = Book(app)
        for kind in KINDS:
            self._hear_of(kind)
        if settings.peers:
            app.handler(words.FORWARDED, effects="inside")(self._on_forwarded)
            app.handler(words.CALLED_OFF, effects="inside")(self._on_called_off)
            app.handler(words.MOVED, effects="inside")(self._on_moved)
        app.reconcilers.add(
            "requests", desired=self._should_move, actual=self._does_not_move, look=self._look, converge=self._push,
            every=settings.reconcile, correlate=lambda request_id, _desired, _actual: request_id,
        )  # fmt: skip

    def _hear_of(self, kind: str) -> None:
        @self.app.handler(words.made(kind), effects="inside")
        async def on_made(told: Made, ctx: Context) -> None:
            await self._on_made(kind, told, ctx)

        @self.app.handler(words.failed(kind), effects="inside")
        async def on_failed(told: Failed, ctx: Context) -> None:
            await self._on_failed(kind, told, ctx)

        @self.app.handler(words.gone(kind), effects="inside")
        async def on_gone(told: Gone, ctx: Context) -> None:
            await self._on_gone(kind, told, ctx)

    # What people do

    async def submit(
        self, *, owner: str, size: str, volume_gb: int, image: str, site: str | None = None, key: str | None = None
    ) -> Request:
        """Accept a request and begin with it, in one commit. With a ``key`` that was there, return that request."""
        wanted = self._request(
            owner=owner, size=size, volume_gb=volume_gb, image=image, site=site or self.site, key=key
        )
        if wanted.site not in (self.site, *self.settings.peers):
            raise Refused(f"there is no site {wanted.site!r}: there is {', '.join((self.site, *self.settings.peers))}")
        async with self.app.transaction() as tx:
            if not await self.book.insert(tx, wanted):
                return (await self.book.where(tx, "key = $1", key))[0]
            await self._order(tx, wanted)
        return wanted

    def _request(self, *, site: str, **asked: Any) -> Request:
        now = self.app.clock.now()
        deadline_at = instant(now + timedelta(seconds=parse_duration(self.settings.deadline)))
        state, step = (State.PROVISIONING, KINDS[0]) if site == self.site else (State.FORWARDED, None)
        return Request(
            id=str(self.app.clock.new_id()), site=site, home=self.site, state=state, step=step, deadline_at=deadline_at,
            created_at=instant(now), changed_at=instant(now), **asked,
        )  # fmt: skip

    async def sample(self, tx: Work) -> None:
        """Make some requests, if there is none."""
        if await self.book.where(tx, "1 = 1 limit 1"):
            return
        for owner, size, volume_gb, image in SAMPLE:
            wanted = self._request(owner=owner, size=size, volume_gb=volume_gb, image=image, site=self.site)
            await self.book.insert(tx, wanted)
            await self._order(tx, wanted)

    async def cancel(self, request_id: str, *, by: str, reason: str) -> Request:
        """Call a request off, or give back what it made; ``Refused`` when it has ended, or is ending."""
        async with self.app.transaction() as tx:
            request = await self.book.locked(tx, request_id)
            if request is None:
                raise LookupError(f"there is no request {request_id}")
            if request.site == self.site:
                return await self._undo(tx, request, by=by, reason=reason)
            if request.has_ended or request.cancelled_by is not None:
                raise Refused(f"the request is {_standing(request)}: there is nothing to cancel")
            # Its version stays: it counts what the other site has told.
            request = await self._write(tx, replace(request, cancelled_by=by, reason=reason), tell=False)
            told = CalledOff(request=request.id, site=request.site, by=by, reason=reason)
            await tx.publish(words.CALLED_OFF, told, **_about(request))
            return request

    async def get(self, request_id: str) -> Request | None:
        async with self.app.transaction() as tx:
            return next(iter(await self.book.where(tx, "id = $1", request_id)), None)

    async def ls(self, *, state: str | None = None, limit: int = 100) -> list[Request]:
        """List requests, the newest first."""
        chosen, values = ("state = $2", (limit, state)) if state else ("1 = 1", (limit,))
        async with self.app.transaction() as tx:
            return await self.book.where(tx, f"{chosen} order by id desc limit $1", *values)

    # What the services answer

    async def _on_made(self, kind: str, told: Made, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            request = await self.book.locked(tx, told.request)
            if request is None:
                await self._send_back(tx, kind, told.request, "nobody knows the request")
            elif request.state is State.PROVISIONING and request.step == kind:
                await self._go_on(tx, request, kind, told)
            elif request.state is State.READY and getattr(request, kind) == told.name:
                await self._write(tx, replace(request, reduced=told.reduced if kind == "volume" else request.reduced))
            elif request.state is State.UNDOING or request.has_ended:
                await self._send_back(tx, kind, request.id, f"it came when the request was {request.state}")

    async def _go_on(self, tx: Work, request: Request, kind: str, told: Made) -> None:
        following = words.after(kind)
        has: dict[str, Any] = {
            kind: told.name,
            "step": following,
            "reduced": request.reduced or told.reduced,
            "asked_count": 0,
        }
        if following is None:
            await self._write(tx, replace(request, state=State.READY, **has))
        else:
            await self._order(tx, await self._write(tx, replace(request, **has)))

    async def _on_failed(self, kind: str, told: Failed, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            request = await self.book.locked(tx, told.request)
            if request is None or request.state is not State.PROVISIONING or request.step != kind:
                return
            outcome = State.REJECTED if told.error_class in ANSWERED else State.FAILED
            blamed = replace(
                request, error_class=told.error_class, operation=told.operation, resource=told.resource,
                safe_to_retry=told.safe_to_retry,
            )  # fmt: skip
            await self._begin_undoing(tx, blamed, outcome, by=OURS, reason=told.error)

    async def _on_gone(self, kind: str, told: Gone, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            request = await self.book.locked(tx, told.request)
            if request is None or request.state is not State.UNDOING or request.step != kind:
                return
            left: dict[str, Any] = {kind: None, "step": words.before(kind), "asked_count": 0}
            if words.before(kind) is not None:
                await self._order(tx, await self._write(tx, replace(request, **left)))
            else:
                assert request.outcome is not None
                await self._write(tx, replace(request, state=request.outcome, outcome=None, **left))

    # Undoing

    async def _undo(self, tx: Work, request: Request, *, by: str, reason: str) -> Request:
        if request.state is State.PROVISIONING:
            called_off = replace(request, cancelled_by=by)
            return await self._begin_undoing(tx, called_off, State.CANCELLED, by=by, reason=reason)
        if request.state is State.READY:
            released = replace(request, step=KINDS[-1], cancelled_by=by)
            return await self._begin_undoing(tx, released, State.RELEASED, by=by, reason=reason)
        raise Refused(f"the request is {_standing(request)}: there is nothing to cancel")

    async def _begin_undoing(self, tx: Work, request: Request, outcome: State, *, by: str, reason: str) -> Request:
        """Take away what there is, beginning with what was made last, or is being made now."""
        undone = replace(request, state=State.UNDOING, outcome=outcome, reason=reason, asked_count=0)
        undone = await self._write(tx, undone)
        await self._order(tx, undone, by=by)
        return undone

    async def _send_back(self, tx: Work, kind: str, request_id: str, reason: str) -> None:
        told = Unwanted(request=request_id, by=OURS, reason=reason)
        await tx.publish(
            words.unwanted(kind), told, subject=f"{kind}/{request_id}", correlation_id=request_id, retry_key=request_id
        )

    async def _order(self, tx: Work, request: Request, *, by: str | None = None) -> None:
        """Publish what has to be done next. While an order is under way, asking again makes no second one."""
        if request.site != self.site:
            told = Forwarded(
                **request.order.model_dump(), site=request.site, home=request.home, deadline=request.deadline_at
            )
            await tx.publish(words.FORWARDED, told, **_about(request))
            return
        assert request.step is not None
        about: Any = {
            "subject": f"{request.step}/{request.id}", "correlation_id": request.id, "retry_key": request.id,
        }  # fmt: skip
        if request.state is State.PROVISIONING:
            deadline = datetime.fromisoformat(request.deadline_at)
            await tx.publish(words.wanted(request.step), request.order, deadline=deadline, **about)
        else:
            who = by or request.cancelled_by or OURS
            undo = Unwanted(request=request.id, by=who, reason=request.reason or "")
            await tx.publish(words.unwanted(request.step), undo, **about)

    # Between sites

    async def _on_forwarded(self, told: Forwarded, ctx: Context) -> None:
        if told.site != self.site:
            return
        now = instant(self.app.clock.now())
        async with ctx.transaction() as tx:
            request = Request(
                id=told.request, site=self.site, home=told.home, owner=told.owner, size=told.size,
                volume_gb=told.volume_gb, image=told.image, state=State.PROVISIONING, deadline_at=told.deadline,
                created_at=now, changed_at=now, step=KINDS[0], version=1,
            )  # fmt: skip
            if await self.book.insert(tx, request):
                await self._order(tx, request)
            known = await self.book.locked(tx, told.request)
            await self._report(tx, known or request)  # also when it is asked again: our answer may be lost

    async def _on_called_off(self, told: CalledOff, ctx: Context) -> None:
        if told.site != self.site:
            return
        async with ctx.transaction() as tx:
            request = await self.book.locked(tx, told.request)
            if request is None:
                raise PrerequisiteMissing(f"request {told.request} has not come yet")
            if request.state in (State.PROVISIONING, State.READY):
                await self._undo(tx, request, by=told.by, reason=told.reason)

    async def _on_moved(self, told: Moved, ctx: Context) -> None:
        if told.home != self.site:
            return
        async with ctx.transaction() as tx:
            request = await self.book.locked(tx, told.request)
            # The same version again is a sign of life.
            if request is not None and request.site != self.site and request.version <= told.version:
                facts: dict[str, Any] = {**told.facts, "version": told.version, "asked_count": 0}
                await self._write(tx, replace(request, state=told.state, **facts), tell=False)

    async def _report(self, tx: Work, request: Request) -> None:
        facts = {name: getattr(request, name) for name in _TOLD}
        told = Moved(request=request.id, home=request.home, version=request.version, state=request.state, facts=facts)
        await tx.publish(words.MOVED, told, **_about(request))

    # Looking after those that do not move

    async def _should_move(self) -> dict[str, str]:
        return {request.id: "moves" for request, _ in await self._stuck()}

    async def _does_not_move(self) -> dict[str, str]:
        return {request.id: why for request, why in await self._stuck()}

    async def _look(self, request_id: str) -> tuple[str | None, str | None]:
        found = [why for _, why in await self._stuck(request_id)]
        return ("moves", found[0]) if found else (None, None)

    async def _stuck(self, only: str | None = None) -> list[tuple[Request, str]]:
        now = self.app.clock.now()
        long_ago = instant(now - timedelta(seconds=parse_duration(self.settings.stalled)))
        stuck = """state in ('FORWARDED', 'PROVISIONING', 'UNDOING')
            and (changed_at < $1 or (state = 'PROVISIONING' and site = $2 and deadline_at < $3))"""
        async with self.app.transaction() as tx:
            values = (long_ago, self.site, instant(now))
            rows = await (
                self.book.where(tx, stuck, *values)
                if only is None
                else self.book.where(tx, f"{stuck} and id = $4", *values, only)
            )
        return [(each, LATE if self._is_late(each) else STILL) for each in rows]

    def _is_late(self, request: Request) -> bool:
        ours = request.site == self.site and request.state is State.PROVISIONING
        return ours and request.deadline_at < instant(self.app.clock.now())

    async def _push(self, request_id: str, _desired: Any, actual: Any) -> None:
        """Undo what is late; send again what was lost."""
        if actual == STILL and await self._is_under_way(request_id):
            return  # it waits for something that is down, or a dead letter stands for it, and a person decides
        async with self.app.transaction() as tx:
            request = await self.book.locked(tx, request_id)
            if request is None or request.has_ended or request.state is State.READY:
                return
            if self._is_late(request):
                late = replace(request, error_class="timed_out", operation=words.wanted(str(request.step)))
                late = replace(late, resource=f"{request.step}/{request.id}", safe_to_retry=True)
                await self._begin_undoing(tx, late, State.FAILED, by=OURS, reason="it was not ready by its deadline")
            elif request.asked_count < _MOST_ASKED:
                await self._write(tx, replace(request, asked_count=request.asked_count + 1), tell=False)
                await self._order(tx, request)
            else:
                raise Rejected(
                    f"request {request.id} is {_standing(request)} since {request.changed_at}, and nobody answers "
                    f"although it was asked {request.asked_count} times: see `redrive task {request.id}`",
                    safe_to_retry=True,
                )

    async def _is_under_way(self, request_id: str) -> bool:
        """Tell whether something of it stands in this database, beside this look; a dead order has given its answer."""
        events = await self.app.events(EventFilter(correlation_id=request_id, limit=200))
        return any(
            event.status in LIVE or (event.is_dead_letter and not event.type.endswith(".wanted"))
            for event in events
            if not event.type.startswith("redrive.")
        )

    async def _write(self, tx: Work, request: Request, *, tell: bool = True) -> Request:
        """Write a request as it stands now, and tell the site where it was made."""
        version = request.version + 1 if tell else request.version
        request = replace(request, version=version, changed_at=instant(self.app.clock.now()))
        await self.book.update(tx, request)
        if tell and request.home != self.site:
            await self._report(tx, request)
        return request


def _about(request: Request) -> Mapping[str, Any]:
    """Say of what is told to another site: of which request it is, and that it comes in order."""
    return {"subject": f"request/{request.id}", "correlation_id": request.id, "ordering_key": request.id}


def _standing(request: Request) -> str:
    return f"{request.state} (its {request.step})" if request.step else str(request.state)
