"""Reconcile: compare what should be with what is, and bring the difference to an end.

    run        an event of its own: reads `desired` and `actual`; their errors have attempts and a dead letter
    finding    one row a key that differs, written down together with ...
    converge   ... one event for that key, which calls `converge`; while it is under way there is no second one

It is level-based: what counts is the difference as it stands now. A converge event carries no orders: it reads its
finding when it runs, with the values that the latest run has seen, and does nothing when the difference is gone.
Nothing is published before both sides were read to their end and every value was found fit to be compared.
"""

import asyncio
import contextvars
import inspect
import json
import typing
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from redrive import check, finding
from redrive.classify import Rule
from redrive.counts import Counts
from redrive.deliver import Handler, handler_from
from redrive.dependency import check_needs
from redrive.duration import span
from redrive.errors import ConfigurationError, LeaseLost, Refused, StoreUnavailable
from redrive.event import NewEvent, Published
from redrive.finding import Begun, Finding, ReconcileRun, Standing, Tally
from redrive.logs import log
from redrive.payload import Decoder, Limits, check_name
from redrive.policy import RetryPolicy
from redrive.publish import NAME_LIMIT
from redrive.replay import check_actor, check_reason
from redrive.spool import CHUNK, Difference, Side, Spool, canonical, same
from redrive.store.base import Store

Function = Callable[..., Any]

OWN: Final = "redrive:"
"""How the names of the engine's own reconcilers begin."""

_RUN: Final = "redrive.reconcile."
_TO_RUN: Final = "reconcile:"
_CONVERGE: Final = "redrive.converge."
_TO_CONVERGE: Final = "converge:"
_VALUES: Final = 3  # key, desired, actual


def run_name(name: str) -> str:
    """Name the target of a reconciler's runs; the schedule that brings them has the same name."""
    return _TO_RUN + name


@dataclass(frozen=True, slots=True)
class Reconciler:
    """What was said about one when it was added."""

    name: str
    desired: Function
    actual: Function
    converge: Function
    look: Function | None
    every: float | None
    queue: str
    takes_context: bool
    decoders: tuple[Decoder[Any], Decoder[Any]]
    correlate: Callable[[str, Any, Any], str | None] | None = None

    @property
    def run_type(self) -> str:
        return _RUN + self.name

    @property
    def run_target(self) -> str:
        return _TO_RUN + self.name

    @property
    def converge_type(self) -> str:
        return _CONVERGE + self.name

    @property
    def converge_target(self) -> str:
        return _TO_CONVERGE + self.name


class Reconcilers:
    """The reconcilers of an app: ``app.reconcilers``."""

    def __init__(
        self,
        ready: Callable[[], Awaitable[Store]],
        new_events: Callable[..., list[NewEvent]],
        limits: Limits,
        rules: Sequence[Rule],
        register: Callable[[Handler], None],
        schedule: Callable[..., None],
        counts: Counts,
    ) -> None:
        self._ready = ready
        self._new_events = new_events
        self._limits = limits
        self._rules = rules
        self._register = register
        self._schedule = schedule
        self._counts = counts
        self._known: dict[str, Reconciler] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    # Saying what there is

    def add(
        self,
        name: str,
        *,
        desired: Function,
        actual: Function,
        converge: Function,
        look: Function | None = None,
        every: str | float | timedelta | None = None,
        retry: RetryPolicy | None = None,
        timeout: str | float | timedelta | None = None,
        converge_timeout: str | float | timedelta | None = None,
        needs: Sequence[str] = (),
        queue: str = "default",
        correlate: Callable[[str, Any, Any], str | None] | None = None,
    ) -> None:
        """Add a reconciler: keep what ``actual`` gives equal to what ``desired`` gives.

        Both give a mapping, or pairs of a key and a value: returned, yielded, or yielded asynchronously; a side that
        yields may be as large as it likes. A key is a text, a whole number or a UUID; a value is whatever a payload may
        be. ``def`` functions run in a thread. ``converge(key, desired, actual)``, with the context as a fourth if it
        takes one, is called for each key that differs, with nothing for a side that does not have it. ``look(key)``
        gives both sides of one key as they are at that moment; with it nothing is done about what agrees by then.
        ``retry`` and ``needs`` hold for the run and for converging, ``timeout`` for each attempt at a run,
        ``converge_timeout`` for each call of ``converge``. ``every``: how often a run begins by itself.
        ``correlate(key, desired, actual)`` returns the correlation id of the task that a difference belongs to; without
        it, or for ``None``, that is the id of the run.
        """
        check_name(name, "name", NAME_LIMIT - len(_RUN))
        check_name(queue, "queue", NAME_LIMIT)
        check.maybe(retry, check.a, "retry", RetryPolicy, "a RetryPolicy like RetryPolicy(max_attempts=3)")
        if name in self._known or name.startswith(OWN):
            what = (
                f"names beginning with {OWN} are the engine's own" if name.startswith(OWN) else "there is one already"
            )
            raise ConfigurationError(f"a reconciler cannot be named {name!r}: {what}")
        _check_parameters(name, "desired", desired, 0)
        _check_parameters(name, "actual", actual, 0)
        if look is not None:
            _check_parameters(name, "look", look, 1)
        takes_context = _check_parameters(name, "converge", converge, _VALUES, _VALUES + 1) > _VALUES
        seconds = None if every is None else span(every, "every")
        check.maybe(timeout, span, "timeout")
        check.maybe(converge_timeout, span, "converge_timeout")
        check.maybe(correlate, check.function, "correlate", "a function of (key, desired, actual)")
        this = Reconciler(
            name, desired, actual, converge, look, seconds, queue, takes_context, _decoders(converge), correlate
        )
        common: dict[str, Any] = {
            "retry": retry, "rules": self._rules, "on_dead_letter": None, "effects": "outside",
            "needs": check_needs(needs, f"the reconciler {name!r}"),
        }  # fmt: skip
        self._register(
            handler_from(
                self._runner(this),
                types=(this.run_type,),
                target=this.run_target,
                timeout=timeout,
                brake=False,
                **common,
            )
        )
        self._register(
            handler_from(
                self._converger(this), types=(this.converge_type,), target=this.converge_target,
                timeout=converge_timeout, **common,
            )
        )  # fmt: skip
        self._known[name] = this
        if seconds is not None:
            payload = {"dry_run": False, "by": "schedule"}
            self._schedule(
                this.run_target, this.run_type, payload, every=seconds, retry_key=this.run_target, queue=queue
            )

    def _get(self, name: str) -> Reconciler:
        if name not in self._known:
            known = ", ".join(sorted(self._known)) or "none"
            raise Refused(f"no reconciler is called {name!r} here: there is {known}")
        return self._known[name]

    # Running

    async def run(self, name: str, *, dry_run: bool = False, by: str | None = None) -> Published:
        """Ask the workers for a run. While one is asked for or under way, that one is returned.

        ``dry_run``: only say what differs. With a name in ``by`` the request is on the trail.
        """
        return await self.ask(name, queue=self._get(name).queue, dry_run=dry_run, by=by)

    async def ask(
        self, name: str, *, queue: str = "default", dry_run: bool = False, by: str | None = None
    ) -> Published:
        """Ask for a run of a reconciler that another process may have: ``run`` for one that is not known here."""
        store = await self._ready()
        who = None if by is None else check_actor(by, "run")
        target = _TO_RUN + name
        payload = {"dry_run": dry_run, "by": who or "app"}
        key = target + (":dry" if dry_run else "")
        (event,) = self._new_events(_RUN + name, payload, subject=name, retry_key=key, queue=queue)
        event.target = target
        async with store.transaction() as tx:
            (published,) = await tx.publish([event])
            if who is not None:
                facts = {"reconciler": name, "dry_run": dry_run, "created": published.created}
                await tx.note("reconcile-requested", who, facts, published.id)
        return published

    async def run_here(self, name: str, *, dry_run: bool = False, by: str | None = None) -> ReconcileRun:
        """Run at once, in this process, and return what was found. Converging is left to the workers."""
        this = self._get(name)
        store = await self._ready()
        who = None if by is None else check_actor(by, "run")
        run_id = store.clock.new_id()
        if who is not None:
            async with store.transaction() as tx:
                facts = {"reconciler": name, "dry_run": dry_run, "run": str(run_id)}
                await tx.note("reconcile-requested", who, facts)
        run = await finding.begin(store, run_id, name, by=who or "app", dry_run=dry_run)
        await self._compare(store, this, run, dry_run=dry_run)
        return await finding.run_of(store, str(run_id))

    def _runner(self, this: Reconciler) -> Function:
        async def compare(payload: Any, ctx: Any) -> None:
            asked = payload if isinstance(payload, Mapping) else {}
            store = await self._ready()
            dry_run = bool(asked.get("dry_run"))
            run = await finding.begin(
                store, ctx.id, this.name, by=str(asked.get("by") or "app"), dry_run=dry_run, event_id=ctx.id,
                fence=ctx.fence,
            )  # fmt: skip
            await self._compare(store, this, run, dry_run=dry_run)

        return compare

    async def _compare(self, store: Store, this: Reconciler, run: Begun, *, dry_run: bool) -> None:
        tally = Tally()
        try:
            async with _Desk(self._limits) as desk:
                await desk.read("desired", this.desired)
                await desk.read("actual", this.actual)
                tally.compared = await desk.do(desk.spool.compared)
                pages = desk.spool.differences()
                while (found := await desk.do(next, pages, None)) is not None:
                    tally.count(found)
                    if not dry_run:
                        await self._record(store, this, run, found, tally)
            if not dry_run:
                tally.healed = await finding.heal(store, run)
            await finding.end(store, run, tally)
        except BaseException as error:
            self._counts.reconciled[this.name, "failed"] += 1
            with suppress(StoreUnavailable, LeaseLost):
                await finding.end(store, run, tally, error)
            raise
        self._counts.reconciled[this.name, "done"] += 1
        log.info(
            "reconciled", reconciler=this.name, run=str(run.id), compared=tally.compared, missing=tally.missing,
            extra=tally.extra, different=tally.different, published=tally.published, dry_run=dry_run,
        )  # fmt: skip

    async def _record(
        self, store: Store, this: Reconciler, run: Begun, found: Sequence[Difference], tally: Tally
    ) -> None:
        """Write some findings down, and publish an event for each that has none, all or nothing.

        One whose event waits, runs or is a dead letter has that one: it reads the finding when it runs.
        """
        by_key = {each.key: each for each in sorted(found, key=lambda each: each.key)}
        ids = [store.clock.new_id() for _ in by_key]
        async with store.transaction() as tx:
            await finding.hold(tx, run)
            rows = [row for row in await finding.seen(tx, run, [*by_key.values()], ids) if row["state"] == "open"]
            asked = [str(row["event_id"]) for row in rows if row["event_id"] is not None]
            standing = {str(row["id"]) for row in await tx.run("events_standing", ids=asked)} if asked else set()
            due = [row for row in rows if str(row["event_id"]) not in standing]
            published = (
                await tx.publish([self._event(this, run, row, by_key[row["key"]]) for row in due]) if due else []
            )
            answers = [
                {"id": str(row["id"]), "event_id": str(each.id)} for row, each in zip(due, published, strict=True)
            ]
            if answers:
                await tx.run("findings_answered", answers=json.dumps(answers))
        created = sum(each.created for each in published)
        tally.published += created
        tally.coalesced += len(rows) - created

    def _event(self, this: Reconciler, run: Begun, row: Mapping[str, Any], found: Difference) -> NewEvent:
        task = None
        if this.correlate is not None:
            sides = [None if text is None else json.loads(text) for text in (found.desired, found.actual)]
            task = this.correlate(found.key, *sides)
        (event,) = self._new_events(
            this.converge_type, None, subject=found.key, retry_key=found.key, queue=this.queue,
            correlation_id=task or run.id, causation_id=run.id,
        )  # fmt: skip
        about = json.dumps({"key": found.key, "kind": found.kind, "finding": str(row["id"])}, ensure_ascii=False)
        # The values are JSON text already, and within limits of their own.
        event.payload = f'{about[:-1]}, "desired": {found.desired or "null"}, "actual": {found.actual or "null"}}}'
        return event

    # Converging

    def _converger(self, this: Reconciler) -> Function:
        async def converge(payload: Any, ctx: Any) -> None:
            store = await self._ready()
            row = await finding.row_of(store, UUID(str(payload["finding"])))
            if row is None or row["state"] != "open":
                return  # the difference is gone, or may stay
            finding_id, sides = UUID(str(row["id"])), (row["desired"], row["actual"])
            if this.look is None:
                values = [None if text is None else read(text) for text, read in zip(sides, this.decoders, strict=True)]
            else:
                values = _both(this.name, await _called(ctx, this.look, row["key"]))
                if same(*map(canonical, values)):
                    await finding.converged(store, [finding_id], agree=True)
                    return
            await _called(ctx, this.converge, row["key"], *values, *([ctx] if this.takes_context else []))
            await finding.converged(store, [finding_id])

        return converge

    # Looking and acting

    async def standing(self) -> list[Standing]:
        """List the reconcilers that were ever at work on this database, the engine's own among them."""
        return await finding.reconcilers(await self._ready())

    async def runs(self, name: str | None = None, *, limit: int = 50) -> list[ReconcileRun]:
        """List runs, the latest first."""
        return await finding.runs(await self._ready(), name=name, limit=limit)

    async def get_run(self, run_id: UUID | str) -> ReconcileRun:
        """Read one run, by its id or a beginning of it."""
        return await finding.run_of(await self._ready(), str(run_id))

    async def findings(
        self, name: str | None = None, *, state: str | None = "open", run_id: UUID | None = None, limit: int = 100
    ) -> list[Finding]:
        """List findings, the latest first: open ones, or those of another state (``None``: all), or of a run."""
        return await finding.findings(await self._ready(), name=name, state=state, run_id=run_id, limit=limit)

    async def recurring(self, name: str | None = None, *, limit: int = 100) -> list[Finding]:
        """List open findings that have come back three times, or that five runs have seen: a person must look."""
        return await finding.recurring(await self._ready(), name=name, limit=limit)

    async def ignore(self, finding_id: UUID | str, *, by: str, reason: str) -> Finding:
        """Say that a difference may stay. When it is gone and comes back, it is a finding again."""
        who, why = check_actor(by, "ignore"), check_reason(reason, "ignore")
        return await finding.ignore(await self._ready(), str(finding_id), by=who, reason=why)


class _Desk:
    """One thread for all that blocks in a run, and the spool in it: what a side opens there, it finds there again."""

    def __init__(self, limits: Limits) -> None:
        self.spool = Spool(limits)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redrive-reconcile")
        self._stop = Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.submit(self.spool.close)  # behind what is still running: a thread cannot be stopped
        self._thread.shutdown(wait=False)

    async def do(self, call: Function, *arguments: Any) -> Any:
        """Run something in the thread."""
        run = partial(contextvars.copy_context().run, _outcome, call, arguments)
        is_value, outcome = await asyncio.get_running_loop().run_in_executor(self._thread, run)
        if is_value:
            return outcome
        raise outcome

    async def read(self, side: Side, function: Function) -> None:
        """Read one side to its end."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            given = function()
        else:
            given = await self.do(function)
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, AsyncIterable):
            await self._read_slowly(side, given)
        else:
            await self.do(self.spool.fill, side, given, self._stop)

    async def _read_slowly(self, side: Side, pairs: AsyncIterable[Any]) -> None:
        chunk: list[Any] = []
        async with aclosing(pairs) if inspect.isasyncgen(pairs) else _Nothing():
            async for pair in pairs:
                chunk.append(pair)
                if len(chunk) == CHUNK:
                    await self.do(self.spool.put, side, chunk)
                    chunk = []
        await self.do(self.spool.put, side, chunk)


class _Nothing:
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...


async def _called(ctx: Any, function: Function, *arguments: Any) -> Any:
    """Call what the user gave: on the loop, or in a thread of the worker."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    value = await ctx._in_thread(partial(function, *arguments))  # noqa: SLF001 - two parts of one engine
    return await value if inspect.isawaitable(value) else value


def _both(name: str, given: Any) -> list[Any]:
    """Read what ``look`` gave."""
    try:
        desired, actual = given
    except (TypeError, ValueError):
        raise ConfigurationError(f"look of reconciler {name!r} must give a pair: desired, actual") from None
    return [desired, actual]


def _outcome(call: Function, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    # Returned instead of raised: a StopIteration or SystemExit must not pass through the executor's machinery.
    try:
        return True, call(*arguments)
    except BaseException as error:  # noqa: BLE001 - any shape of failure is the function's failure
        return False, error


def _check_parameters(name: str, what: str, function: Any, least: int, most: int | None = None) -> int:
    """Refuse what cannot be called with so many values; return how many it is called with."""
    if not callable(function):
        raise ConfigurationError(f"{what} of reconciler {name!r} must be a function, not {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return least
    for count in range(most or least, least - 1, -1):
        with suppress(TypeError):
            signature.bind(*range(count))
            return count
    values = {0: "no arguments", 1: "(key)"}.get(least, "(key, desired, actual) or (key, desired, actual, ctx)")
    raise ConfigurationError(f"{what} of reconciler {name!r} must take {values}")


def _decoders(converge: Function) -> tuple[Decoder[Any], Decoder[Any]]:
    """Read off the signature as what the values shall come."""
    with suppress(TypeError, ValueError, NameError):
        hints = typing.get_type_hints(converge)
        names = [*inspect.signature(converge).parameters][1:_VALUES]
        first, second = (Decoder(hints.get(name, Any)) for name in names)
        return first, second
    return Decoder(), Decoder()
