"""Operations: what people, schedules and agents may ask of an app, and do to its events.

Looking changes nothing. Whatever acts says who and why, and both are on the trail. The CLI, the HTTP API, the console
and the MCP tools are built on this.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, Unpack
from uuid import UUID

from redrive import dependency, group, ordering, override, redrive, replay, revision
from redrive.attention import Matter, attention
from redrive.clock import Clock
from redrive.dependency import Dependency
from redrive.errors import EventNotFound, NeedsApproval, PayloadInvalid, Refused
from redrive.event import Event, NewEvent, Options, TrailEntry
from redrive.group import Group
from redrive.ordering import HeldKey, InLine
from redrive.override import Override
from redrive.payload import Limits, check_whole, encode
from redrive.policy import RetryPolicy
from redrive.redrive import Plan, Redriving, Release
from redrive.registry import Registry
from redrive.replay import check_actor, check_reason
from redrive.revision import Revision
from redrive.selection import dead_letters, parse
from redrive.shadow import Shadow, shadow
from redrive.steps import StepRecord, steps_of
from redrive.store import listing
from redrive.store.base import EventFilter, Store
from redrive.store.listing import Page
from redrive.trail import Verdict, verify

UNCHANGED: Final = object()


class Operations(Registry, ABC):
    """The part of an app that is asked, and acts."""

    clock: Clock
    limits: Limits
    retry: RetryPolicy
    approval_above: int | None

    @abstractmethod
    async def _ready(self) -> Store:
        """Open the app if it is not open, and give its store."""

    @abstractmethod
    def new_events(self, type_: str, payload: Any = None, **options: Unpack[Options]) -> list[NewEvent]:
        """Make the rows of one publish without storing them."""

    # Looking and acting

    async def event(self, event_id: UUID) -> Event | None:
        """Read one event."""
        store = await self._ready()
        return await store.event(event_id)

    async def events(self, wanted: EventFilter | None = None) -> list[Event]:
        """List events, newest first."""
        store = await self._ready()
        return await listing.events(store, wanted or EventFilter())

    async def page(self, wanted: EventFilter | None = None) -> Page:
        """List some events, newest first, in a time that does not grow with the table; the page says where to go on.

        It may hold fewer than asked for, even none, and yet not be the last: then more rows are to be looked at.
        """
        store = await self._ready()
        return await listing.page(store, wanted or EventFilter())

    async def trail(self, event_id: UUID) -> list[TrailEntry]:
        """Everything that was recorded of one event."""
        store = await self._ready()
        return [entry async for entry in store.trail(event_id)]

    async def steps(self, event_id: UUID) -> list[StepRecord]:
        """Everything that one event has done in steps, in order."""
        store = await self._ready()
        return await steps_of(store, event_id)

    async def verify_trail(self, noted: dict[str, tuple[int, str]] | None = None) -> Verdict:
        """Check every chain of the trail."""
        store = await self._ready()
        return await verify(store.trail(), noted or {})

    async def replay(
        self, event_id: UUID, *, by: str, reason: str, generation: int | None = None, payload: Any = UNCHANGED,
        cycle: int | None = None, from_start: bool = False, repeat_steps: bool = False,
    ) -> None:  # fmt: skip
        """Send a dead letter round again.

        It goes on after the steps it has finished; ``from_start`` forgets them, and is refused when one of them has a
        compensation that has not run, unless ``repeat_steps`` says that it may happen twice. One whose steps were
        undone starts anew; while they are being undone it is refused. One whose effect is there is ended as delivered.
        With ``payload`` it goes with an edited one: checked against today's handler, the original kept as a revision.
        Identity (id, keys, correlation, causation) cannot be edited. With the ``cycle`` of the event that you have seen
        it is refused when somebody else has replayed it since. Where redrives need approval, an edit does: propose it.
        """
        store = await self._ready()
        if payload is not UNCHANGED and await redrive.approval_limit(store, self.approval_above) is not None:
            raise NeedsApproval("an edited payload needs a second person here: app.propose(…), and somebody approves")
        if from_start and not repeat_steps:
            await self._refuse_repeating(event_id)
        text = None if payload is UNCHANGED else (await self._edited(event_id, payload))[1]
        await replay.replay(
            store,
            event_id,
            by=by,
            reason=reason,
            generation=generation,
            payload=text,
            cycle=cycle,
            from_start=from_start,
        )

    async def propose(
        self, event_id: UUID, payload: Any, *, by: str, reason: str, generation: int | None = None,
        cycle: int | None = None, from_start: bool = False, repeat_steps: bool = False,
    ) -> Redriving:  # fmt: skip
        """Propose to replay a dead letter with an edited payload: it goes when somebody else approves."""
        store = await self._ready()
        if generation is not None:
            check_whole(generation, "generation")
        who, why = check_actor(by, "replay"), check_reason(reason, "replay")
        if from_start and not repeat_steps:
            await self._refuse_repeating(event_id)
        event, text = await self._edited(event_id, payload)
        edit = Revision(event_id, event.cycle if cycle is None else cycle, text)
        return await revision.propose(
            store, self.clock.new_id(), edit, by=who, reason=why, generation=generation, from_start=from_start
        )

    async def _refuse_repeating(self, event_id: UUID) -> None:
        """Refuse to forget steps that have an effect which nobody has undone."""
        names = [each.name for each in await self.steps(event_id) if each.is_to_undo]
        if names:
            raise Refused(
                f"event {event_id} has finished steps that were not undone ({', '.join(names)}): from the start they "
                "would run again. Replay it without from_start to continue after them, or say repeat_steps "
                "(--repeat-steps) if they may run twice"
            )

    async def _edited(self, event_id: UUID, payload: Any) -> tuple[Event, str]:
        store = await self._ready()
        text = encode(payload, self.limits)
        event = await store.event(event_id)
        if event is None:
            raise EventNotFound(f"there is no event {event_id}")
        handler = self._handlers.get(event.target)
        if handler is not None:
            try:
                handler.decoder(text)
            except PayloadInvalid as error:
                raise Refused(f"the edited payload does not fit {handler.name}: {error}") from error
        return event, text

    async def shadow(self, event_id: UUID, *, force: bool = False) -> Shadow:
        """Run the handler on an event in a transaction that is always rolled back; say how it would end."""
        store = await self._ready()
        event = await store.event(event_id)
        if event is None:
            raise EventNotFound(f"there is no event {event_id}")
        handler = self._handlers.get(event.target)
        if handler is None:
            raise Refused(f"nobody here handles {event.target!r}: run this with the app that does")
        return await shadow(handler, event, store, self.new_events, self.retry, handlers=self._handlers, force=force)

    # Redrives and groups

    async def plan(self, selection: str, *, by: str, unsafe: bool = False) -> Plan:
        """Plan a redrive: freeze the dead letters that a selection means, and say what would become of each.

        Nothing moves until ``start`` is called with the plan's token. An app with handlers leaves out what none of them
        would take, or could read.
        """
        store = await self._ready()
        wanted = dead_letters(parse(selection))
        now = self.clock.now()
        clauses, values = wanted.where("postgres" if store.name == "postgres" else "sqlite", now)
        return await redrive.plan(
            store, self.clock.new_id(), selection=wanted.text, sentence=wanted.sentence(now), clauses=clauses,
            values=values, by=check_actor(by, "plan"), targets=sorted(self._handlers), unsafe=unsafe,
            readers={name: each.decoder for name, each in self._handlers.items() if not each.decoder.takes_anything},
        )  # fmt: skip

    async def start(
        self, token: str, *, by: str, reason: str, release: Release | None = None, generation: int | None = None,
        from_start: bool = False, repeat_steps: bool = False,
    ) -> Redriving:  # fmt: skip
        """Start a planned redrive. The workers carry it on; ``redriving`` tells how it goes.

        Its events go on after the steps they have finished; ``from_start`` forgets those, and is refused when one of
        them has a compensation that has not run, unless ``repeat_steps`` says that it may happen twice.
        """
        if generation is not None:
            check_whole(generation, "generation")
        store = await self._ready()
        return await redrive.start(
            store, token, by=check_actor(by, "start"), reason=check_reason(reason, "start"),
            release=release or Release(), generation=generation, approval_above=self.approval_above,
            from_start=from_start, repeat_steps=repeat_steps,
        )  # fmt: skip

    async def redriving(self, redrive_id: UUID) -> Redriving:
        """Read one redrive as it stands."""
        store = await self._ready()
        return await redrive.get(store, redrive_id)

    async def redrivings(self, *, before: UUID | None = None, limit: int = 50) -> list[Redriving]:
        """List redrives, newest first."""
        store = await self._ready()
        rows = await store.ask("redrives", before=None if before is None else str(before), limit=limit)
        return [redrive.redriving_from(row) for row in rows]

    async def approve(self, redrive_id: UUID, *, by: str) -> Redriving:
        """Agree with a plan as a second person. An edited payload goes at once; a plan can then be started."""
        store = await self._ready()
        who = check_actor(by, "approve")
        if (await redrive.get(store, redrive_id)).edited:
            return await revision.approve(store, redrive_id, by=who)
        return await redrive.approve(store, redrive_id, by=who)

    async def pause(self, redrive_id: UUID, *, by: str, reason: str) -> Redriving:
        """Release nothing more until ``resume``."""
        store = await self._ready()
        return await redrive.stop(
            store, redrive_id, to="paused", by=check_actor(by, "pause"), reason=check_reason(reason, "pause")
        )

    async def resume(self, redrive_id: UUID, *, by: str) -> Redriving:
        """Go on after a pause or a halt."""
        store = await self._ready()
        return await redrive.resume(store, redrive_id, by=check_actor(by, "resume"))

    async def abort(self, redrive_id: UUID, *, by: str, reason: str) -> Redriving:
        """End a redrive; what was not released stays what it was."""
        store = await self._ready()
        return await redrive.stop(
            store, redrive_id, to="aborted", by=check_actor(by, "abort"), reason=check_reason(reason, "abort")
        )

    async def groups(self, *, everything: bool = False, state: str | None = None, limit: int = 100) -> list[Group]:
        """List the causes that dead letters have, the latest failure first."""
        store = await self._ready()
        return await group.groups(store, everything=everything, state=state, limit=limit)

    async def group(self, fingerprint: str) -> Group:
        """Find a group by its fingerprint or a beginning of it."""
        store = await self._ready()
        return await group.find(store, fingerprint)

    async def attention(self, *, kinds: Collection[str] = ()) -> list[Matter]:
        """List what will not move by itself, or some kinds of it: why, since when, and what to do next."""
        return await attention(await self._ready(), kinds=kinds, approval_above=self.approval_above)

    # Ordering keys

    async def held_keys(
        self, *, ordering_key: str | None = None, target: str | None = None, after: UUID | None = None, limit: int = 100
    ) -> list[HeldKey]:
        """List the ordering keys that a dead letter holds up, the oldest first."""
        store = await self._ready()
        return await ordering.held_keys(store, ordering_key=ordering_key, target=target, after=after, limit=limit)

    async def line(self, target: str, ordering_key: str, *, limit: int = 50) -> list[InLine]:
        """List the events of one target with an ordering key that have not ended, in their order."""
        store = await self._ready()
        return await ordering.line(store, target, ordering_key, limit=limit)

    async def release_key(self, ordering_key: str, *, by: str, reason: str, target: str | None = None) -> HeldKey:
        """Let the events behind a dead letter go; it stays a dead letter and can be replayed."""
        store = await self._ready()
        who, why = check_actor(by, "release"), check_reason(reason, "release")
        return await ordering.release(store, ordering_key, target=target, by=who, reason=why)

    async def skip_key(self, ordering_key: str, *, by: str, reason: str, target: str | None = None) -> HeldKey:
        """Discard the dead letter that holds up a key, and go on with the next; it can be restored."""
        store = await self._ready()
        who, why = check_actor(by, "skip"), check_reason(reason, "skip")
        held = await ordering.find(store, ordering_key, target)
        if not await replay.mark(
            store, "discard", clauses=("and id = :id", "and not passed"), values={"id": held.head}, by=who, reason=why,
            limit=1,
        ):  # fmt: skip
            raise Refused(ordering.not_held(ordering_key))
        return held

    # Dependencies and holds

    async def dependencies(self) -> list[Dependency]:
        """List what events may wait for: dependencies, brakes and holds."""
        store = await self._ready()
        return await dependency.standing(store)

    async def open_dependency(self, name: str, *, by: str, reason: str, degraded: bool = False) -> Dependency:
        """Let every event that needs a dependency wait until ``close_dependency``; it is not probed meanwhile.

        ``degraded``: those of handlers that can proceed in a reduced mode run.
        """
        store = await self._ready()
        who, why = check_actor(by, "open"), check_reason(reason, "open")
        return await dependency.open_by_hand(store, name, by=who, reason=why, degraded=degraded)

    async def close_dependency(self, name: str, *, by: str, reason: str) -> Dependency:
        """Say that a dependency is back; those who wait come back oldest first, at a bounded, growing rate."""
        store = await self._ready()
        who, why = check_actor(by, "close"), check_reason(reason, "close")
        return await dependency.close_by_hand(store, name, by=who, reason=why)

    async def hold(self, type_: str | None = None, *, queue: str | None = None, by: str, reason: str) -> Dependency:
        """Pause a type (``order.*``: all that begin so) or a queue; workers take notice within a second.

        Events of a paused type are blocked when they would run; from a paused queue nothing is claimed.
        """
        store = await self._ready()
        who, why = check_actor(by, "pause"), check_reason(reason, "pause")
        return await dependency.hold(store, dependency.hold_name(type_, queue), by=who, reason=why)

    async def lift(self, type_: str | None = None, *, queue: str | None = None, by: str, reason: str) -> Dependency:
        """End a hold; those who wait come back oldest first, at a bounded, growing rate."""
        store = await self._ready()
        who, why = check_actor(by, "resume"), check_reason(reason, "resume")
        return await dependency.lift(store, dependency.hold_name(type_, queue), by=who, reason=why)

    # Policies while it runs

    async def set_policy(self, pattern: str, *, by: str, reason: str, **values: Any) -> Override:
        """Say how the handlers that a pattern matches are worked with; workers take notice within seconds.

        The pattern is a target, a type, a beginning (``order.*``) or ``*``; of several that match, the most specific
        one that says something about a value decides on it. Values: ``max_attempts``, ``base_delay``, ``multiplier``,
        ``max_delay``, ``jitter``, ``timeout``, ``concurrency``, ``rate``; ``"none"`` takes one of the last three away.
        What was set for the pattern before and is not named stays.
        """
        who, why = check_actor(by, "set_policy"), check_reason(reason, "set_policy")
        store = await self._ready()
        return await override.put(store, pattern, values, by=who, reason=why)

    async def clear_policy(self, pattern: str, *, by: str, reason: str) -> Override:
        """Take back what was set for a pattern; return what that was."""
        who, why = check_actor(by, "clear_policy"), check_reason(reason, "clear_policy")
        store = await self._ready()
        return await override.clear(store, pattern, by=who, reason=why)

    async def policies(self) -> list[Override]:
        """List what operators have set."""
        store = await self._ready()
        return await override.standing(store)

    async def cancel(self, event_id: UUID, *, by: str, reason: str) -> None:
        """End an event that has not ended; a handler that is running it is told within a second.

        If it finishes first, ``Refused`` says so: there is one answer.
        """
        store = await self._ready()
        await replay.cancel(store, event_id, by=by, reason=reason)

    async def cancel_all(self, event_ids: Sequence[UUID], *, by: str, reason: str) -> list[UUID]:
        """End those of some events that have not ended, in one transaction; return which they were.

        What a worker is settling in the same instant may be left out: ask again.
        """
        store = await self._ready()
        return await replay.cancel_all(store, event_ids, by=by, reason=reason)

    async def discard(self, event_id: UUID, *, by: str, reason: str) -> None:
        """Hide a dead letter; it can be restored."""
        store = await self._ready()
        await replay.discard(store, event_id, by=by, reason=reason)

    async def restore(self, event_id: UUID, *, by: str, reason: str) -> None:
        """Take a discarded dead letter back."""
        store = await self._ready()
        await replay.restore(store, event_id, by=by, reason=reason)
