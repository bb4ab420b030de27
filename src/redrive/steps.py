"""Steps: what a handler has finished is kept, so that the next attempt goes on where the last one stopped.

A step's result is written under the fence of the lease, in a transaction of its own, as soon as its function has
returned. A retry, another worker, a replay find it and do not run the function again. What nobody can take away is the
gap between the function's end and that write: a worker that dies in it leaves a step that runs once more. Its ``key``
stays the same, for the other side to recognise it by.

A step may name its compensation. When the event ends without being delivered, the store publishes the compensations of
its steps, the last one first (migration ``0004_steps``).
"""

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID

from redrive.errors import ConfigurationError, LeaseLost, PayloadInvalid, StepMisused, StepPending
from redrive.event import NewEvent
from redrive.instant import instant_of, iso
from redrive.payload import DEFAULT_LIMITS, Decoder, Limits, check_text, decode, encode
from redrive.store.base import CYCLE, FENCE, ID, Row, Store

COMPENSATE_ON: Final = ("cancelled", "deadline", "dead_letter")
DEFAULT_COMPENSATE_ON: Final = ("cancelled", "deadline")
"""A dead letter waits for somebody to look, who may replay it: undoing it must be asked for."""

_NAME_LIMIT: Final = 255
_inside: Final[ContextVar[str | None]] = ContextVar("redrive_step", default=None)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step's function is told when one of its parameters is annotated with this.

    ``key`` is the same for every run of the step, on any worker and in any replay; only a replay from the start has
    another. Give it to whatever the function calls, so that a second run is recognised there.
    """

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a step: the target of its event, when it is wanted, and whether it can undo what may not have been.

    ``in_doubt``: it takes ``None`` for a result, so it is also run for a step that began and whose end nobody knows.
    """

    target: str
    on: tuple[str, ...]
    in_doubt: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that runs now, or has nothing left to do: ``kept`` is the result of an earlier attempt."""

    step: Step
    cycle: int
    position: int
    compensation: Compensation | None
    since: float
    kept: str | None = None


class Steps:
    """The steps of one attempt. Loaded with the first one; events without steps cost nothing."""

    def __init__(self, store: Store, row: Row, limits: Limits = DEFAULT_LIMITS, *, shadow: bool = False) -> None:
        self._store = store
        self._row = row
        self._limits = limits
        self._shadow = shadow
        self._loading = asyncio.Lock()
        self._kept: dict[str, dict[str, Any]] | None = None
        self._from = 0
        self._last = 0
        self._names: set[str] = set()

    async def begin(self, name: str, compensation: Compensation | None) -> Begun:
        """Find the kept result of a step, or begin it."""
        self._take_name(name)
        known = await self._load()
        if name not in known:
            self._last += 1
        found = known.get(name) or {"cycle": self._row[CYCLE], "position": self._last, "result": None}
        now = self._store.clock.monotonic()
        begun = Begun(self._step(name), found["cycle"], found["position"], compensation, now, found["result"])
        if begun.kept is not None:
            return begun
        if self._shadow:
            raise StepPending(f"step {name!r} has not been done yet, and reaches outside: a shadow goes no further")
        if compensation is not None and compensation.in_doubt:
            await self._write(begun, "started", None)
        return begun

    async def finish(self, begun: Begun, value: Any, decoder: Decoder[Any], follow_ups: Sequence[NewEvent] = ()) -> Any:
        """Keep what the function returned, with what it published; answer it as every later attempt will see it."""
        text = encode(value, self._limits, f"the result of step {begun.step.name!r}")
        result = read_result(begun.step.name, text, decoder)
        await self._write(begun, "done", text, follow_ups)
        return result

    def _take_name(self, name: str) -> None:
        check_text(name, "the name of a step", _NAME_LIMIT)
        outer = _inside.get()
        if outer is not None:
            raise StepMisused(f"step {name!r} is inside step {outer!r}: a step is done or not done, call them in a row")
        if not name.strip():
            raise StepMisused("a step needs a name: it is how the next attempt recognises it")
        if name in self._names:
            raise StepMisused(f"step {name!r} was called twice in one attempt: give each its own name")
        self._names.add(name)

    async def _load(self) -> dict[str, dict[str, Any]]:
        async with self._loading:  # steps may run side by side
            if self._kept is None:
                rows = await self._store.ask("steps_kept", id=self._row[ID])
                stands = [row for row in rows if row["fence"] == self._row[FENCE]]
                if not self._shadow and not any(row["status"] == "in_flight" for row in stands):
                    raise LeaseLost(f"event {self._row[ID]} is no longer ours: the step was not begun")
                self._from = rows[0]["steps_from"] if rows else 0
                self._kept = {row["name"]: row for row in rows if row["name"] is not None}
                self._last = max((row["position"] for row in self._kept.values()), default=0)
        return self._kept

    def _step(self, name: str) -> Step:
        key = f"{self._row[ID]}/{name}"
        # What was undone must not be answered by the other side as done already.
        return Step(name, f"{key}/{self._from}" if self._from else key)

    async def _write(self, begun: Begun, state: str, result: str | None, follow_ups: Sequence[NewEvent] = ()) -> None:
        undo = begun.compensation
        clock = self._store.clock
        values: dict[str, Any] = {
            "id": UUID(str(self._row[ID])), "fence": self._row[FENCE], "cycle": begun.cycle, "name": begun.step.name,
            "position": begun.position, "state": state, "key": begun.step.key, "result": result,
            "compensation": undo.target if undo else None, "compensation_id": clock.new_id() if undo else None,
            "compensate_on": ",".join(undo.on) if undo else "", "seconds": max(0.0, clock.monotonic() - begun.since),
        }  # fmt: skip
        async with self._store.transaction() as tx:
            written = await tx.run("step_write", **values)
            if written and follow_ups:
                await tx.publish(follow_ups)
            if not written and undo is not None and state == "done":
                # Cancelled while the function ran: its effect came too late for the compensations, so it gets its own.
                await tx.run("step_late", now_cycle=self._row[CYCLE], **values)
        if not written:
            raise LeaseLost(f"event {self._row[ID]} is no longer ours: step {begun.step.name!r} was not kept")


# --- looking ---


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step as it is kept. ``forgotten``: of a cycle before the event was replayed from the start.

    ``state`` is ``started`` (its end is not known), ``done``, ``compensating``, ``compensated`` or ``skipped`` (its
    compensation was cancelled).
    """

    name: str
    cycle: int
    state: str
    key: str
    result: Any
    compensation: str | None
    compensation_id: UUID | None
    forgotten: bool
    started_at: datetime
    ended_at: datetime | None

    @property
    def is_to_undo(self) -> bool:
        """Whether it counts, has an effect that a compensation would undo, and none has."""
        return not self.forgotten and self.compensation_id is not None and self.state in ("started", "done")

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        at = {name: None if shown[name] is None else iso(shown[name]) for name in ("started_at", "ended_at")}
        undone_by = None if self.compensation_id is None else str(self.compensation_id)
        return {**shown, **at, "compensation_id": undone_by}


async def steps_of(store: Store, event_id: UUID) -> list[StepRecord]:
    """Read what an event has done, in order, forgotten steps of earlier cycles included."""
    return [_record(row) for row in await store.ask("steps", id=event_id)]


def _record(row: Mapping[str, Any]) -> StepRecord:
    values = {**{each.name: row[each.name] for each in fields(StepRecord)}, "result": None}
    for name in ("started_at", "ended_at"):
        values[name] = instant_of(values[name])
    with suppress(PayloadInvalid):  # a step's result is kept by us; a row may be written by anybody
        values["result"] = None if row["result"] is None else decode(row["result"])
    values["compensation_id"] = None if row["compensation_id"] is None else UUID(str(row["compensation_id"]))
    values["forgotten"] = bool(row["forgotten"])
    return StepRecord(**values)


# --- functions ---


@dataclass(frozen=True, slots=True)
class Shape:
    """How to call a step's function, and what it returns."""

    call: Callable[..., Any]
    is_async: bool
    decoder: Decoder[Any]


def shape_of(function: Callable[..., Any], arguments: tuple[Any, ...], step: Step) -> Shape:
    """Read off a function what it wants to be given and what it returns."""
    bare = function
    while isinstance(bare, partial):
        bare = bare.func
    if not inspect.isroutine(bare) and callable(bare):
        bare = type(bare).__call__
    try:
        hints = typing.get_type_hints(bare)
        decoder = decoder_of(hints.pop("return", Any))
    except (NameError, TypeError, ConfigurationError) as error:
        raise StepMisused(f"the annotations of step {step.name!r} cannot be read: {error}") from error
    wanted = {name: step for name, hint in hints.items() if hint is Step}
    return Shape(partial(function, *arguments, **wanted), inspect.iscoroutinefunction(bare), decoder)


def decoder_of(annotation: Any) -> Decoder[Any]:
    """Make the reader of a return type, once."""
    try:
        return _known_decoder(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return Decoder(annotation)


@lru_cache(maxsize=1_024)
def _known_decoder(annotation: Any) -> Decoder[Any]:
    return Decoder(annotation)


def read_result(name: str, text: str, decoder: Decoder[Any]) -> Any:
    """Turn a kept result into the type its function returns."""
    try:
        return decoder(text)
    except PayloadInvalid as error:
        said = str(error).removeprefix("payload ")
        raise PayloadInvalid(
            f"the result of step {name!r} {said}. Return what its annotation says; "
            "if the code has changed since it was kept, replay the event from the start"
        ) from error


def running_step() -> str | None:
    """Name the step whose function is running, if one is."""
    return _inside.get()


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Mark that a step's function is running, so that another step in it can be refused."""
    token = _inside.set(name)
    try:
        yield
    finally:
        _inside.reset(token)
