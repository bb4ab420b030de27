"""Dependencies, holds, policies, groups and findings: what workers and people say of them."""

from __future__ import annotations

from typing import Any

from redrive import Status, dependency, finding
from redrive.dependency import Circuit, News
from redrive.finding import Tally
from redrive.spool import Difference
from redrive.store.base import ID
from tests.lab.overlap.base import (
    BY,
    Player,
    Scene,
    Verb,
    acted,
    claimed,
    described,
    operated,
    settled,
)

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
