"""What runs in the simulation: handlers of every kind, producers who do not know whether they were heard, operators.

What an attempt does follows from the payload: a word for each claim of the event, and ``ok`` when they are used up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from redrive import (
    Context,
    DependencyUnavailable,
    Redrive,
    Refused,
    Rejected,
    RetryPolicy,
    Step,
    StoreUnavailable,
)
from redrive.clock import VirtualClock
from redrive.errors import LeaseLost, NotFound, RedriveError, StoreFull
from redrive.redrive import Release
from tests.lab.simulation.process import Process, chance, current
from tests.lab.simulation.store import SimStore

MAX_ATTEMPTS = 3
RETRY = RetryPolicy(max_attempts=MAX_ATTEMPTS, base_delay=0.2, max_delay=1.0, jitter=0.5)
LEASE = 2.0
WORDS = ("fail", "fail", "fatal", "fatal", "dep", "slow", "child", "hold", "break", "late", "deaf", "reserve")
THROTTLED = "lab.throttled"
TYPES = (
    "lab.plain", "lab.plain", "lab.timed", "lab.keyed", "lab.keyed", "lab.passing", "lab.stepped", "lab.needy",
    "lab.hooked", THROTTLED,
)  # fmt: skip
EFFECT = "insert into lab_effect (key, event_id, fence) values (?, ?, ?)"
NOTE = "insert into lab_note (event_id, kind, attempts) values (?, ?, ?)"

book = Redrive("sqlite:///nowhere.db", retry=RETRY, clock=VirtualClock())
"""The handlers, registered once: reading their signatures takes longer than a seed may."""

book.dependency("db", threshold=2, window=5, probe_after=0.3, probe_cap=1.0, release_rate=100)


async def told_dead(letter: Any, tx: Any) -> None:
    await tx.execute(NOTE, str(letter.id), "dead-lettered", letter.attempts)


async def told_retry(retry: Any, tx: Any) -> None:
    await tx.execute(NOTE, str(retry.id), "retry-scheduled", retry.attempts)


@book.handler("lab.plain")
@book.handler("lab.timed", timeout=0.8)
@book.handler("lab.keyed")
@book.handler("lab.passing", on_failed="pass", brake=False)
@book.handler("lab.needy", needs=("db",))
@book.handler("lab.hooked", on_dead_letter=told_dead, on_retry=told_retry)
@book.handler(THROTTLED, concurrency=1)
async def work(payload: Any, ctx: Context) -> None:
    process, word = current(), begin(payload, ctx)
    with process.world.at_work(process, ctx.target, is_deaf=word == "deaf"):
        await before(word)
        await have_effect(word, payload, ctx)


@book.compensation(name="undo")
async def undo(result: str | None, ctx: Context) -> None:
    process = current()
    process.world.note(process, f"undoes {result}")
    await process.clock.sleep(0.05)
    if process.world.undoing_fails and ctx.fence == 1 and ctx.id.int % 3 == 0:
        raise Rejected("simulated: cannot be undone")
    process.acts_outside(ctx.idempotency_key)


async def do_step(name: str, step: Step) -> str:
    process = current()
    await process.clock.sleep(0.1 * process.world.dice.random())
    process.acts_outside(step.key)
    return name


@book.handler("lab.stepped", timeout=3.0, compensate_on=("cancelled", "deadline", "dead_letter"))
async def work_in_steps(payload: Any, ctx: Context) -> None:
    word = begin(payload, ctx)
    await ctx.step("one", do_step, "one", compensate=undo)
    await before(word)
    await ctx.step("two", do_step, "two", compensate=undo)
    await have_effect(word, payload, ctx)


@book.handler("redrive.batch.first_notice")
@book.handler("redrive.batch.final_notice")
async def take_notice(payload: Any, ctx: Context) -> None:
    current().world.reached["notice taken"] += 1


def begin(payload: Any, ctx: Context) -> str:
    process = current()
    plan = payload["plan"]
    word = plan[ctx.fence - 1] if ctx.fence <= len(plan) else "ok"
    process.world.note(process, f"runs {payload['n']} under {ctx.fence}: {word}")
    return str(word)


async def before(word: str) -> None:
    process = current()
    dice = process.world.dice
    if chance(dice, 0.5):
        await process.clock.sleep(0.3 * dice.random())
    if word == "fail":
        raise ConnectionError("simulated: try again")
    if word == "fatal":
        raise Rejected("simulated: never")
    if word == "dep":
        raise DependencyUnavailable("db")
    if word == "slow":
        await process.clock.sleep(1.0 + 3.0 * dice.random())
    if word == "deaf":
        await _deafly(process)
    if word == "reserve":
        with suppress(Refused):
            await reserve(process.app, process)


async def _deafly(process: Process) -> None:
    """Wait, whatever anybody says."""
    until = process.clock.monotonic() + 7.0
    while (left := until - process.clock.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await process.clock.sleep(left)


async def have_effect(word: str, payload: Any, ctx: Context) -> None:
    try:
        await _have_effect(word, payload, ctx)
    except LeaseLost:
        current().world.reached["stale settle refused"] += 1
        raise


async def _have_effect(word: str, payload: Any, ctx: Context) -> None:
    process = current()
    async with ctx.transaction() as tx:
        await tx.execute(EFFECT, ctx.idempotency_key, str(ctx.id), ctx.fence)
        if word == "child":
            name = f"{ctx.idempotency_key}.child"
            await tx.publish("lab.plain", {"n": name, "plan": []}, idempotency_key=name)
        if word == "hold":
            await process.clock.sleep(0.4)
        if word == "break":
            raise ConnectionError("simulated: in the middle of the transaction")
    if word == "late":
        raise ConnectionError("simulated: after the transaction")


_FREE = {target: handler for target, handler in book._handlers.items() if target != THROTTLED}


def app_of(process: Process) -> Redrive:
    """Make the app of a process: the handlers of the book on a store of its own."""
    app = Redrive(f"sqlite:///{process.world.disk.path}", retry=RETRY, clock=process.clock, migrate=False)
    app._store = SimStore(process)
    app._handlers = book._handlers if process.world.is_throttled else _FREE  # or it would ask for permits in vain
    app._targets = book._targets
    app._circuits = book._circuits
    process.app = app
    return app


# --- producers ---


class Intent:
    """Something that a producer wants to be published, and what it knows of that."""

    def __init__(self, number: int, type_: str, payload: Any, options: dict[str, Any]) -> None:
        self.number = number
        self.type = type_
        self.payload = payload
        self.options = options
        self.answer = "new"
        self.batch = False


def drafted(dice: random.Random, number: int) -> Intent:
    """Make up an event."""
    type_ = dice.choice(TYPES)
    plan = [dice.choice(WORDS) for _ in range(dice.choice((0, 0, 0, 1, 1, 2, 4)))]
    payload = {"n": str(number), "plan": plan}
    options: dict[str, Any] = {"idempotency_key": f"k{number}", "priority": dice.choice((0, 1, 1, 2))}
    if chance(dice, 0.5):
        options["retry_key"] = f"r{number}"
    if type_ in ("lab.keyed", "lab.passing"):
        options["ordering_key"] = dice.choice("ab")
    if chance(dice, 0.25):
        options["delay"] = 2.0 * dice.random()
    if chance(dice, 0.1):
        options["deadline"] = 0.5 + 3.0 * dice.random()
    return Intent(number, type_, payload, options)


async def produce(process: Process) -> None:
    """Publish what has not been acknowledged; whoever comes after a crash does it again, by the same keys."""
    world, dice = process.world, process.world.dice
    app = app_of(process)
    await app.open()
    if world.with_batch and not world.batch_done:
        await _produce_batch(app, process)
    for intent in world.intents:
        if intent.answer == "ok" or (intent.answer == "unknown" and "retry_key" not in intent.options):
            continue
        await process.clock.sleep(0.25 * dice.random())
        await _publish(app, process, intent)
        if chance(dice, 0.1):
            await _publish(app, process, intent)  # the same once more: its retry key or its idempotency key meets it
            world.reached["published twice"] += 1
    await app.close()


async def _publish(app: Redrive, process: Process, intent: Intent) -> None:
    world = process.world
    for _ in range(4):
        was, intent.answer = intent.answer, "unknown"
        try:
            published = await app.publish(intent.type, intent.payload, **intent.options)
        except StoreFull:
            intent.answer = was if was in ("ok", "unknown") else "fail"
            await process.clock.sleep(0.2)
        except StoreUnavailable:
            if "retry_key" not in intent.options:
                return
            await process.clock.sleep(0.2)
        else:
            intent.answer = "ok"
            world.said.append({"what": "publish", "answer": "ok", "ids": [str(published.id)]})
            return


async def _produce_batch(app: Redrive, process: Process) -> None:
    """Open a batch, fill and close it; after a crash somewhere in between another is opened."""
    world, dice = process.world, process.world.dice
    try:
        batch = await app.batches.open("lab", deadline=None if chance(dice, 0.5) else 1.0 + 2.0 * dice.random())
        for place in range(3):
            plan = [dice.choice(WORDS) for _ in range(dice.choice((0, 0, 1, 3)))]
            key = f"{batch.id}/{place}"
            delay = 4.0 if chance(dice, 0.15) else 0.0
            await batch.add("lab.plain", {"n": f"b{place}", "plan": plan}, idempotency_key=key, delay=delay)
            await process.clock.sleep(0.1 * dice.random())
        await batch.close()
    except RedriveError:
        return
    world.batch_done = True


# --- operators ---


def operating(acts: Sequence[Callable[[Redrive, Process], Any]]) -> Callable[[Process], Any]:
    """Make somebody who does something to something, over and over, as people do."""

    async def operate(process: Process) -> None:
        world, dice = process.world, process.world.dice
        app = app_of(process)
        await app.open()
        for _ in range(dice.randrange(2, 9)):
            await process.clock.sleep(0.9 * dice.random())
            act = dice.choice(acts)
            try:
                await act(app, process)
            except (Refused, NotFound):
                world.reached["operator refused"] += 1
            except RedriveError as error:
                world.note(process, f"could not: {type(error).__name__}")
            else:
                world.acts[act.__name__] += 1
                world.note(process, f"did {act.__name__}")
        await app.close()

    return operate


def _some(process: Process, where: str) -> UUID:
    rows = process.world.disk.query(f"select id from redrive_outbox where {where} order by id")
    if not rows:
        raise NotFound("nothing of the kind")
    return UUID(process.world.dice.choice(rows)[0])


async def cancel(app: Redrive, process: Process) -> None:
    await app.cancel(_some(process, "true"), by="ann", reason="wrong")


async def cancel_running(app: Redrive, process: Process) -> None:
    await app.cancel(_some(process, "status = 'in_flight'"), by="ann", reason="wrong")


async def replay(app: Redrive, process: Process) -> None:
    await app.replay(
        _some(process, "status = 'failed'"), by="ann", reason="again", from_start=chance(process.world.dice, 0.3)
    )


async def edit(app: Redrive, process: Process) -> None:
    event_id = _some(process, "status = 'failed'")
    event = await app.event(event_id)
    assert event is not None
    await app.replay(event_id, by="ann", reason="mended", payload={"n": "edited", "plan": []}, cycle=event.cycle)


async def discard(app: Redrive, process: Process) -> None:
    await app.discard(_some(process, "status = 'failed'"), by="ann", reason="of no use")


async def restore(app: Redrive, process: Process) -> None:
    await app.restore(_some(process, "deleted_at is not null"), by="ann", reason="of use")


async def redrive(app: Redrive, process: Process) -> None:
    """Plan, start, and perhaps pause and abort or go on."""
    dice = process.world.dice
    plan = await app.plan("type:lab.*", by="ann", unsafe=True)
    await process.clock.sleep(0.3 * dice.random())
    rate = dice.choice((None, 1.0, 2.0))
    ramp = dice.choice(((), (), (1, 2)))
    going = await app.start(
        plan.redrive.token,
        by="ann",
        reason="mended",
        release=Release(rate=rate, max_in_flight=dice.choice((1, 50)), ramp=ramp),
    )
    await process.clock.sleep(0.2 + 0.8 * dice.random())
    match dice.randrange(4):
        case 0:
            await app.pause(going.id, by="ann", reason="wait")
            await process.clock.sleep(0.5 * dice.random())
            await app.resume(going.id, by="bob")
        case 1 | 2:
            await app.abort(going.id, by="ann", reason="enough")


async def release_key(app: Redrive, process: Process) -> None:
    await app.release_key(process.world.dice.choice("ab"), by="ann", reason="let them pass", target="lab.keyed")


async def skip_key(app: Redrive, process: Process) -> None:
    await app.skip_key(process.world.dice.choice("ab"), by="ann", reason="go on", target="lab.keyed")


async def open_dependency(app: Redrive, process: Process) -> None:
    await app.open_dependency("db", by="ann", reason="maintenance")


async def close_dependency(app: Redrive, process: Process) -> None:
    await app.close_dependency("db", by="ann", reason="it is back")


async def hold(app: Redrive, process: Process) -> None:
    await app.hold(process.world.dice.choice(("lab.plain", "lab.keyed", "lab.*")), by="ann", reason="stop it")


async def lift(app: Redrive, process: Process) -> None:
    await app.lift(process.world.dice.choice(("lab.plain", "lab.keyed", "lab.*")), by="ann", reason="go on")


async def reserve(app: Redrive, process: Process) -> None:
    dice = process.world.dice
    held = await app.reservations.take("crane", owner=process.name, ttl=0.2 + dice.random())
    await process.clock.sleep(0.6 * dice.random())
    await held.release()


ACTS: list[Callable[[Redrive, Process], Any]] = [
    cancel, cancel_running, replay, replay, edit, discard, restore, redrive, redrive, redrive, release_key, skip_key,
    open_dependency, close_dependency, hold, lift, reserve,
]  # fmt: skip
operate = operating(ACTS)


async def make_peace(app: Redrive, process: Process) -> None:
    """Take back whatever operators have stopped, so that all that can end does."""
    for each in await app.dependencies():
        if each.kind == "hold" and each.state != "closed":
            kind, _, what = each.name.partition(":")
            await app.lift(**{"queue" if kind == "queue" else "type_": what}, by="ann", reason="the end")
        elif each.kind == "dependency" and each.by_hand:
            with suppress(Refused):
                await app.close_dependency(each.name, by="ann", reason="the end")
    for going in await app.redrivings():
        if going.state in ("paused", "halted"):
            await app.resume(going.id, by="bob")
