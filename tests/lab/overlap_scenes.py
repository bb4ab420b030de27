"""The scenes of the overlaps: what stands there, and who does what to it; one scene for each thing beside the walk.

A verb is done by a player, who has an app and a session of his own. ``things`` are what the scene was laid with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redrive import Redrive, Status, batch, dependency, finding, redrive
from redrive.dependency import Circuit, News
from redrive.event import Outcome, Settlement
from redrive.finding import Tally
from redrive.group import describe
from redrive.payload import Decoder
from redrive.rate import Rate
from redrive.redrive import Release
from redrive.spool import Difference
from redrive.steps import Begun, Compensation, Steps
from redrive.store.base import FENCE, ID, IDEMPOTENCY_KEY, TARGET
from redrive.throttle import Throttle, Throttles
from tests.stores.helpers import LANES, Hands

BY: Any = {"by": "ann", "reason": "why"}
LONG = 5.0


@dataclass(slots=True)
class Player:
    """One of the two."""

    name: str
    app: Redrive
    hands: Hands
    things: dict[str, Any] = field(default_factory=dict)


Verb = Callable[[Player], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Scene:
    """How it is laid, by one player, and what can be done in it."""

    lay: Callable[[Player], Awaitable[None]]
    verbs: dict[str, Verb]
    passes: float = 0.0
    """Seconds between the laying and what is done."""
    yields: tuple[str, ...] = ()
    """Who may find that somebody else is at it, do nothing, answer False, and come again."""
    kept: tuple[tuple[str, str], ...] = ()
    """What was wrong once: a deadlock, or a trail that told what had been before."""


def settled(status: Status, which: str, **options: Any) -> Verb:
    """End an attempt in this way."""

    async def settle(player: Player) -> Any:
        row = player.things[which]
        given = {"delay": None, "fingerprint": "f1", **options}
        settlement = Settlement(
            row[ID], row[FENCE], status, Outcome.FAILED, given["delay"], "boom", "broken", "E", True,
            given["fingerprint"], 5, blocked_on=given.get("blocked_on"),
        )  # fmt: skip
        return len(await player.hands.settle(settlement))

    return settle


def delivered(which: str) -> Verb:
    async def deliver(player: Player) -> Any:
        return len(await player.hands.deliver(player.things[which]))

    return deliver


def put_back(which: str) -> Verb:
    async def put(player: Player) -> Any:
        return len(await player.hands.put_back(player.things[which], LONG))

    return put


def handled(which: str) -> Verb:
    """Do what a handler does in its transaction."""

    async def handle(player: Player) -> Any:
        row = player.things[which]
        async with player.app.store.transaction() as tx:
            is_first = await tx.mark_handled(row[TARGET], row[IDEMPOTENCY_KEY], row[ID])
            return is_first, await tx.deliver(row[ID], row[FENCE])

    return handle


def operated(verb: str, which: str, **options: Any) -> Verb:
    async def operate(player: Player) -> Any:
        row = player.things[which]
        await getattr(player.app, verb)(row[ID], **BY, **options)

    return operate


async def swept(player: Player) -> Any:
    return len(await player.hands.sweep())


async def claimed(player: Player, *names: str) -> None:
    """Claim as many events as there are names, and call them so in the order of their publishing."""
    rows = sorted(await player.hands.claim(len(names)), key=lambda row: str(row[ID]))
    player.things.update(zip(names, rows, strict=True))


# --- batches ----------------------------------------------------------------------------------------


async def lay_batches(player: Player) -> None:
    """One open, with a dead letter and two in flight; one closed, with two in flight; one that is overdue."""
    batches, things = player.app.batches, player.things
    told: Any = {"first_notice": "first", "final_notice": "final"}
    things["open"] = await batches.open("open", **told)
    for name in ("one", "two", "dead"):
        await things["open"].add(name)
    things["closed"] = await batches.open("closed", **told)
    for name in ("four", "five"):
        await things["closed"].add(name)
    await things["closed"].close()
    things["late"] = await batches.open("late", deadline="1m", **told)
    await things["late"].add("six")
    await things["late"].close()
    await claimed(player, "one", "two", "dead", "four", "five", "six")
    await settled(Status.FAILED, "dead")(player)


def closed(which: str, *, by_hand: bool = False) -> Verb:
    async def close(player: Player) -> Any:
        found = await player.app.batches.get(player.things[which].id)
        if by_hand:
            return (await player.app.batches.close(found.id, **BY)).state
        return await found.close()

    return close


def forced(which: str) -> Verb:
    async def force(player: Player) -> Any:
        return (await player.app.batches.force(player.things[which].id, **BY)).state

    return force


async def added(player: Player) -> Any:
    found = await player.app.batches.get(player.things["open"].id)
    return (await found.add("more")).created


async def tended(player: Player) -> Any:
    return (await player.app.batches._tend("worker")).moved


async def repaired(player: Player) -> Any:
    ids = [player.things[name].id for name in ("open", "closed", "late")]
    return len(await batch.repair(player.app.store, ids))


BATCHES = Scene(
    lay_batches,
    {
        "deliver one": delivered("one"),
        "bury two": settled(Status.FAILED, "two"),
        "cancel two": operated("cancel", "two"),
        "retry one": settled(Status.PENDING, "one", delay=LONG),
        "deliver four": delivered("four"),
        "deliver five": delivered("five"),
        "handle four": handled("four"),
        "bury four": settled(Status.FAILED, "four"),
        "bury five": settled(Status.FAILED, "five"),
        "retry four": settled(Status.PENDING, "four", delay=LONG),
        "retry five": settled(Status.PENDING, "five", delay=LONG),
        "block five": settled(Status.BLOCKED, "five", blocked_on="api"),
        "put five back": put_back("five"),
        "cancel five": operated("cancel", "five"),
        "deliver six": delivered("six"),
        "bury six": settled(Status.FAILED, "six"),
        "replay dead": operated("replay", "dead"),
        "discard dead": operated("discard", "dead"),
        "close": closed("open"),
        "close by hand": closed("open", by_hand=True),
        "force open": forced("open"),
        "force closed": forced("closed"),
        "force late": forced("late"),
        "add": added,
        "tend": tended,
        "repair": repaired,
    },
    passes=61.0,
    kept=(("force closed", "cancel five"), ("cancel five", "force closed"), ("close by hand", "cancel two")),
)


# --- reservations -----------------------------------------------------------------------------------


async def lay_reservations(player: Player) -> None:
    """One that is held, one that has run out, one that was given back; one that nobody ever had is "new"."""
    reservations, things = player.app.reservations, player.things
    things["held"] = (await reservations.take("held", owner="ann", ttl="1h")).token
    things["over"] = (await reservations.take("over", owner="ann", ttl="1s")).token
    back = await reservations.take("back", owner="ann", ttl="1h")
    things["back"] = back.token
    await back.release()


def taken(resource: str) -> Verb:
    async def take(player: Player) -> Any:
        return (await player.app.reservations.take(resource, owner=player.name, ttl="1m")).token

    return take


def by_token(verb: str, resource: str, *arguments: Any) -> Verb:
    async def act(player: Player) -> Any:
        await getattr(player.app.reservations.by_token(resource, player.things[resource]), verb)(*arguments)

    return act


def released(resource: str) -> Verb:
    async def release(player: Player) -> Any:
        return (await player.app.reservations.release(resource, **BY)).token

    return release


RESERVATIONS = Scene(
    lay_reservations,
    {
        **{f"take {name}": taken(name) for name in ("held", "over", "back", "new")},
        **{f"renew {name}": by_token("renew", name, "2h") for name in ("held", "over", "back")},
        **{f"release {name}": by_token("release", name) for name in ("held", "over")},
        **{f"take {name} away": released(name) for name in ("held", "over")},
    },
    passes=5.0,
)


# --- schedules --------------------------------------------------------------------------------------


async def lay_schedules(player: Player) -> None:
    """One that is due, one that is paused, and one that each app declares in its own way."""
    schedules = player.app.schedules
    await schedules.set("due", "report", every="10m", **BY)
    await schedules.set("paused", "report", every="10m", **BY)
    await schedules.set("declared", "report", every="1h", **BY)
    await schedules.pause("paused", **BY)


def scheduled(verb: str, *arguments: Any, **options: Any) -> Verb:
    async def act(player: Player) -> Any:
        await getattr(player.app.schedules, verb)(*arguments, **BY, **options)

    return act


async def ticked(player: Player) -> Any:
    return (await player.app.schedules.tick(player.app.store, set())).moved


async def declared(player: Player) -> Any:
    """Begin as a worker does."""
    if not player.app.schedules._declared:
        player.app.schedules.add("declared", "report", {"by": player.name}, every="30m")
        player.app.schedules.add("fresh", "report", {"by": player.name}, every="30m")
    await player.app.schedules.declare(player.app.store, player.name)


SCHEDULES = Scene(
    lay_schedules,
    {
        "tick": ticked,
        "declare": declared,
        "run": scheduled("run_now", "due"),
        "set due": scheduled("set", "due", "report", {"n": 1}, every="10m"),
        "set due otherwise": scheduled("set", "due", "report", every="1h"),
        "set fresh": scheduled("set", "fresh", "report", {"n": 2}, every="1h"),
        "set new": scheduled("set", "new", "report", every="10m"),
        "set paused": scheduled("set", "paused", "report", every="1h"),
        **{
            f"{verb} {name}": scheduled(verb, name)
            for verb in ("pause", "resume", "remove")
            for name in ("due", "paused")
        },
    },
    passes=900.0,
    yields=("tick",),
    kept=(
        ("declare", "set fresh"),
        ("declare", "declare"),
        ("set due", "remove due"),
        ("set due", "set due otherwise"),
        ("pause due", "remove due"),
        ("resume paused", "set paused"),
    ),
)


# --- limits -----------------------------------------------------------------------------------------

TWO = Throttle(concurrency=2, rate=Rate.parse("10/s"))


async def lay_limits(player: Player) -> None:
    """A target with two places, one of them taken by a session that lives, and two events that wait.

    ``loosen`` is left out: it passes over what others are moving, and comes again.
    """
    for _ in range(3):
        await player.app.publish("t")
    await claimed(player, "running", "waits", "waits too")
    throttles = _throttles(player, "running", "waits", "waits too")
    admitted = await throttles.admit("t", player.hands.id, 1)
    assert (len(admitted.running), len(admitted.waiting)) == (1, 2)
    for _ in range(2):
        await player.app.publish("t")
    await claimed(player, "came", "came too")


def _throttles(player: Player, *names: str) -> Throttles:
    made = Throttles(player.app.store, player.app.clock, ["t"], LANES)
    made.limit({"t": TWO}, {})
    for name in names:
        made.arrive(player.things[name])
    return made


def admitted(*names: str, hands: int = 5) -> Verb:
    async def admit(player: Player) -> Any:
        found = await _throttles(player, *names).admit("t", player.hands.id, hands)
        return len(found.running), len(found.taken), len(found.waiting)

    return admit


LIMITS = Scene(
    lay_limits,
    {
        "admit came": admitted("came"),
        "admit came too": admitted("came too"),
        "admit both": admitted("came", "came too"),
        "take": admitted(),
        "take one": admitted(hands=1),
        "sweep": swept,
        "cancel waits": operated("cancel", "waits"),
        "cancel came": operated("cancel", "came"),
        "deliver running": delivered("running"),
        "put came back": put_back("came"),
    },
)


# --- steps ------------------------------------------------------------------------------------------

UNDO = Compensation("undo", ("cancelled", "deadline", "dead_letter"), in_doubt=True)


async def lay_steps(player: Player) -> None:
    """Two events: one has done a step, and both are in the middle of one."""
    for _ in range(2):
        await player.app.publish("saga")
    await claimed(player, "first", "second")
    await _finish(player, "first", await _begun(player, "first", "a"))
    player.things["first begun"] = await _begun(player, "first", "b")
    player.things["second begun"] = await _begun(player, "second", "b")


async def _begun(player: Player, which: str, name: str) -> Begun:
    return await Steps(player.app.store, player.things[which]).begin(name, UNDO)


async def _finish(player: Player, which: str, begun: Begun) -> Any:
    steps = Steps(player.app.store, player.things[which])
    return await steps.finish(begun, begun.step.name, Decoder(str))


def finished(which: str) -> Verb:
    """Keep the step that is under way; its beginning was a transaction of its own."""

    async def finish(player: Player) -> Any:
        return await _finish(player, which, player.things[f"{which} begun"])

    return finish


STEPS = Scene(
    lay_steps,
    {
        "b of first": finished("first"),
        "b of second": finished("second"),
        "cancel first": operated("cancel", "first"),
        "cancel second": operated("cancel", "second"),
        "deliver first": delivered("first"),
        "handle first": handled("first"),
        "bury first": settled(Status.FAILED, "first"),
        "bury second": settled(Status.FAILED, "second"),
        "retry first": settled(Status.PENDING, "first", delay=LONG),
        "sweep": swept,
        "put second back": put_back("second"),
    },
)


# --- dependencies, policies, groups, reconcilers ----------------------------------------------------

CIRCUIT = Circuit(threshold=2)


async def lay_states(player: Player) -> None:
    """A dependency that is open with one who waits for it, one that has failed once, a hold, a policy, a group."""
    app, things = player.app, player.things
    for _ in range(3):
        await app.publish("t")
    await claimed(player, "waits", "dead", "held")
    await settled(Status.BLOCKED, "waits", blocked_on="down")(player)
    await settled(Status.FAILED, "dead")(player)
    await app.open_dependency("down", **BY)
    await told("shaky")(player)
    await app.hold("held.*", **BY)
    await app.set_policy("t", max_attempts=3, **BY)
    run = await finding.begin(app.store, app.clock.new_id(), "carts", by="ann")
    things["run"] = run
    await _found(player, "stays", "goes")
    (things["finding"], *_) = sorted(each.id for each in await finding.findings(app.store, name="carts"))


async def _found(player: Player, *keys: str) -> None:
    async with player.app.store.transaction() as tx:
        await finding.hold(tx, player.things["run"])
        differences = [Difference(key, "missing", "1", "2") for key in keys]
        ids = [player.app.clock.new_id() for _ in keys]
        await finding.seen(tx, player.things["run"], differences, ids)


def found(*keys: str) -> Verb:
    async def see(player: Player) -> None:
        await _found(player, *keys)

    return see


def told(name: str) -> Verb:
    async def tell(player: Player) -> Any:
        news = News(failed=1)
        kind = dependency.kind_of(name)
        this = await dependency.tell(player.app.store, name, kind, news, CIRCUIT, lambda: 0.5, by=player.name)
        return this.state.value

    return tell


async def probed(player: Player) -> Any:
    store, session = player.app.store, player.hands.id
    return await dependency.probe(store, "down", session, ["t"], ["default"], 0) is not None


async def let_go(player: Player) -> Any:
    return await dependency.release(player.app.store, "down", CIRCUIT)


def concluded(*, ok: bool | None) -> Verb:
    async def conclude(player: Player) -> Any:
        event = player.things["waits"][ID]
        await dependency.conclude(player.app.store, "down", event, CIRCUIT, lambda: 0.5, ok=ok, by=player.name)

    return conclude


def acted(verb: str, *arguments: Any, **options: Any) -> Verb:
    async def act(player: Player) -> Any:
        await getattr(player.app, verb)(*arguments, **BY, **options)

    return act


def described(**said: Any) -> Verb:
    async def say(player: Player) -> Any:
        return (await describe(player.app.store, "f1", by=player.name, **said)).state

    return say


async def ignored(player: Player) -> Any:
    return (await finding.ignore(player.app.store, str(player.things["finding"]), **BY)).state


async def healed(player: Player) -> Any:
    return await finding.heal(player.app.store, player.things["run"])


async def ended(player: Player) -> Any:
    await finding.end(player.app.store, player.things["run"], Tally())


async def converged(player: Player) -> Any:
    await finding.converged(player.app.store, [player.things["finding"]], agree=True)


async def begun(player: Player) -> Any:
    await finding.begin(player.app.store, player.app.clock.new_id(), "carts", by=player.name)


STATES = Scene(
    lay_states,
    {
        "tell down": told("down"),
        "tell shaky": told("shaky"),
        "tell new": told("new"),
        "probe": probed,
        "let go": let_go,
        "probe passed": concluded(ok=True),
        "probe failed": concluded(ok=False),
        "open shaky": acted("open_dependency", "shaky"),
        "open down": acted("open_dependency", "down"),
        "close down": acted("close_dependency", "down"),
        "close shaky": acted("close_dependency", "shaky"),
        "hold": acted("hold", "held.*"),
        "hold another": acted("hold", "new.*"),
        "lift": acted("lift", "held.*"),
        "set policy": acted("set_policy", "t", base_delay="2s"),
        "set another": acted("set_policy", "u", max_attempts=9),
        "set it anew": acted("set_policy", "t", max_attempts=5),
        "clear policy": acted("clear_policy", "t"),
        "resolve": described(state="resolved"),
        "note": described(note="known", owner="bob"),
        "replay dead": operated("replay", "dead"),
        "bury held": settled(Status.FAILED, "held"),
        "cancel waits": operated("cancel", "waits"),
        "see again": found("stays"),
        "see new": found("new", "goes"),
        "ignore": ignored,
        "heal": healed,
        "end run": ended,
        "converged": converged,
        "begin run": begun,
    },
    passes=1.0,
)

# --- plans, edits and keys --------------------------------------------------------------------------


async def lay_plans(player: Player) -> None:
    """Two dead letters with a plan, one of them with a proposed edit, and a key whose dead head holds up another."""
    app, things = player.app, player.things
    for name in ("one", "two"):
        await app.publish(name)
    for _ in range(2):
        await app.publish("keyed", ordering_key="k")
    await claimed(player, "one", "two", "head")
    for name in ("one", "two", "head"):
        await settled(Status.FAILED, name)(player)
    things["plan"] = (await app.plan("status:failed", by="ann", unsafe=True)).redrive
    things["edit"] = await app.propose(things["one"][ID], {"n": 1}, **BY)


def started(*, above: int | None) -> Verb:
    async def start(player: Player) -> Any:
        player.app.approval_above = above
        return (await player.app.start(player.things["plan"].token, **BY)).state

    return start


def approved(which: str) -> Verb:
    async def approve(player: Player) -> Any:
        return (await player.app.approve(player.things[which].id, by=player.name)).state

    return approve


def stopped(verb: str, which: str) -> Verb:
    async def stop(player: Player) -> Any:
        return (await getattr(player.app, verb)(player.things[which].id, **BY)).state

    return stop


def edited(which: str) -> Verb:
    async def edit(player: Player) -> Any:
        player.app.approval_above = None
        await player.app.replay(player.things[which][ID], payload={"by": player.name}, **BY)

    return edit


async def proposed(player: Player) -> Any:
    return (await player.app.propose(player.things["two"][ID], {"n": 2}, **BY)).state


PLANS = Scene(
    lay_plans,
    {
        "start": started(above=None),
        "start if approved": started(above=0),
        "approve plan": approved("plan"),
        "approve edit": approved("edit"),
        "abort plan": stopped("abort", "plan"),
        "abort edit": stopped("abort", "edit"),
        "propose": proposed,
        "edit one": edited("one"),
        "edit two": edited("two"),
        **{
            f"{verb} {which}": operated(verb, which)
            for verb in ("replay", "discard")
            for which in ("one", "two", "head")
        },
        "release key": acted("release_key", "k", target="keyed"),
        "skip key": acted("skip_key", "k", target="keyed"),
    },
    kept=(
        ("release key", "release key"),
        ("release key", "skip key"),
        ("skip key", "release key"),
        ("propose", "replay two"),
    ),
)

# --- redrives that end ------------------------------------------------------------------------------


ENDING = ("gone", "left")


async def lay_ends(player: Player) -> None:
    """A redrive that has brought the last dead letter of a group through; another of the group was discarded."""
    app = player.app
    for name in ("through", "gone", "left"):
        await app.publish(name)
    await claimed(player, "through", "gone", "left")
    for name in ("through", "gone"):
        await settled(Status.FAILED, name)(player)
    await settled(Status.FAILED, "left", fingerprint="f2")(player)
    await app.discard(player.things["gone"][ID], **BY)
    plan = await app.plan("status:failed", by="ann", unsafe=True)
    player.things["plan"] = await app.start(plan.redrive.token, release=Release(max_in_flight=1), **BY)
    await carried_on(player)
    await claimed(player, "through")
    await delivered("through")(player)
    async with app.store.transaction() as tx:
        await tx.note_outcomes(player.things["plan"].id)


async def carried_on(player: Player) -> Any:
    redrive_id = player.things["plan"].id
    async with player.app.store.transaction() as tx:
        if not await tx.run("redrive_lock", id=redrive_id):
            return False
        await redrive._carry_on(tx, redrive_id, "lab")
        return (await redrive.get_in(tx, redrive_id)).state


ENDS = Scene(
    lay_ends,
    {
        "pause": stopped("pause", "plan"),
        "abort": stopped("abort", "plan"),
        "carry on": carried_on,
        **{f"{verb} {which}": operated(verb, which) for verb in ("restore", "discard", "replay") for which in ENDING},
        "resolve": described(state="resolved"),
    },
    yields=("carry on",),
    kept=(("abort", "restore gone"),),
)

SCENES = {
    "batches": BATCHES, "reservations": RESERVATIONS, "schedules": SCHEDULES, "limits": LIMITS, "steps": STEPS,
    "states": STATES, "plans": PLANS,
    "ends": ENDS,
}  # fmt: skip
