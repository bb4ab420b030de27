"""`redrive attention`: whatever stands still is on the list, and leaves it when one does what the list says."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from redrive import (
    Context,
    DeadLetter,
    Event,
    Matter,
    Redrive,
    Refused,
    Rejected,
    Release,
    RetryPolicy,
    Status,
    Step,
    Urgency,
    Work,
)
from redrive.attention import SHOWN, SOURCES
from redrive.operate import actions, views
from redrive.store.base import EventFilter, Finished, Session
from redrive.store.sql import migrations
from tests.operate.helpers import ended, environment, in_app, redrive, start
from tests.waiting import until, wait_until
from tests.worker.conftest import working

SHOP = """
import os
from redrive import Redrive
app = Redrive(os.environ["REDRIVE_URL"])

@app.handler("order")
async def ship(payload: object) -> None: ...
"""
ONCE = RetryPolicy(max_attempts=1)
HOURS = 7_200


class Shop:
    """Handlers that fail for as long as they are broken."""

    def __init__(self, url: str) -> None:
        self.app = app = Redrive(url, migrate=True, retry=ONCE)
        self.broken = True
        app.dependency("carrier", threshold=1, probe_after="1h", probe_cap="1h")

        async def hook(letter: DeadLetter, work: Work) -> None:
            raise OSError("no evidence")

        @app.handler("order", brake=False)
        async def ship(payload: Any) -> None:
            self.fail(ValueError("no such product"))

        @app.handler("order.told", on_dead_letter=hook, brake=False)
        async def tell(payload: Any) -> None:
            self.fail(ValueError("no such product"))

        @app.handler("parcel", needs=["carrier"])
        async def send(payload: Any) -> None:
            self.fail(ConnectionError("carrier is down"))

        @app.handler("mail")
        async def mail(payload: Any) -> None: ...

        @app.compensation(retry=ONCE)
        async def undo(key: str) -> None:
            self.fail(ValueError("cannot undo"))

        async def do(step: Step) -> str:
            return step.key

        @app.handler("saga", compensate_on=["dead_letter"], brake=False)
        async def saga(payload: Any, ctx: Context) -> None:
            await ctx.step("do", do, compensate=undo)
            self.fail(ValueError("saga"))

        async def undone(key: str, desired: Any, actual: Any) -> None: ...

        app.reconcilers.add("carts", desired=lambda: {"a": 1}, actual=dict, converge=undone)

    def fail(self, error: Exception) -> None:
        if self.broken:
            raise error

    async def drain(self) -> None:
        await self.app.worker(queues=["default", "slow"]).drain()

    async def die(self, *types: str) -> None:
        """Publish and let them fail."""
        for type_ in types:
            await self.app.publish(type_, 1)
        await self.drain()

    async def age(self, table: str, *columns: str, seconds: int = HOURS) -> None:
        """Let a table be older."""
        postgres = self.app.store.name == "postgres"
        earlier = f"- interval '{seconds} seconds'" if postgres else f"- {seconds * 1_000_000}"
        name = f"redrive{'.' if postgres else '_'}{table}"
        async with self.app.store.transaction() as tx:
            await tx.execute(f"update {name} set {', '.join(f'{each} = {each} {earlier}' for each in columns)}")

    async def someone_works(self, *targets: str, queues: Sequence[str] = ("default",), lease: float = 3_600) -> None:
        """Have a session of a worker elsewhere."""
        session = Session(self.app.clock.new_id(), "other", "elsewhere", 1, tuple(queues), targets, 1)
        await self.app.store.begin_session(session, lease)


# --- everything that can stand still ---


async def dead_letters(shop: Shop) -> None:
    await shop.die("order", "order")


async def no_group(shop: Shop) -> None:
    await shop.die("order")
    name = "redrive." if shop.app.store.name == "postgres" else "redrive_"
    async with shop.app.store.transaction() as tx:
        await tx.execute(f"update {name}outbox set fingerprint = null")
        await tx.execute(f"update {name}failure_group set dead_count = 0")


async def muted(shop: Shop) -> None:
    await shop.die("order")
    (group,) = await shop.app.groups()
    await actions.describe(shop.app, group, by="ann", muted_for=3_600)


async def held_key(shop: Shop) -> None:
    for number in range(3):
        await shop.app.publish("order", number, ordering_key="it's -7")
    await shop.drain()


async def failed_compensation(shop: Shop) -> None:
    await shop.die("saga")


async def discarded_compensation(shop: Shop) -> None:
    await shop.die("saga")
    for each in await shop.app.events(EventFilter(type="redrive.compensate")):
        await shop.app.discard(each.id, by="ann", reason="seen to")


async def halted(shop: Shop) -> None:
    await shop.die("order", "order")
    plan = await shop.app.plan("type:order", by="ann")
    await shop.app.start(plan.redrive.token, by="ann", reason="mended", release=Release(ramp=(1,)))
    await shop.drain()


async def paused(shop: Shop) -> None:
    await shop.die("order")
    plan = await shop.app.plan("type:order", by="ann")
    await shop.app.start(plan.redrive.token, by="ann", reason="mended")
    await shop.app.pause(plan.redrive.id, by="ann", reason="lunch")
    assert kinds(await shop.app.attention()) == ["dead-letters"]  # a short pause is nobody's business
    await shop.age("redrive", "stopped_at")


async def left_planning(shop: Shop) -> None:
    values: dict[str, Any] = {"selection": "type:order", "sentence": "dead letters", "by": "ann", "keep": 86_400.0}
    async with shop.app.store.transaction() as tx:
        await tx.run("redrive_plan", id=shop.app.clock.new_id(), **values)
    assert await shop.app.attention() == []  # it may be being written right now
    await shop.age("redrive", "planned_at")


async def unapproved(shop: Shop) -> None:
    await shop.die("order", "order")
    await actions.set_approval(shop.app, 1, by="ann", reason="policy 7")
    await shop.app.plan("type:order", by="ann")


async def failed_hook(shop: Shop) -> None:
    await shop.die("order.told")


async def type_held(shop: Shop) -> None:
    shop.broken = False
    await shop.app.hold("order", by="ann", reason="audit")
    await shop.die("order", "order")
    assert await shop.app.attention() == []
    await shop.age("dependency", "opened_at")


async def queue_held(shop: Shop) -> None:
    await shop.app.hold(queue="slow", by="ann", reason="audit")
    await shop.app.publish("order", 1, queue="slow")
    await shop.age("dependency", "opened_at")


async def opened_by_hand(shop: Shop) -> None:
    shop.broken = False
    await shop.die("parcel")
    await shop.app.open_dependency("carrier", by="ann", reason="they said so")
    await shop.die("parcel")
    await shop.age("dependency", "opened_at")


async def long_outage(shop: Shop) -> None:
    await shop.die("parcel")
    assert await shop.app.attention() == []
    await shop.age("dependency", "opened_at")


async def brake_open(shop: Shop) -> None:
    @shop.app.handler("import")
    async def take(payload: Any) -> None:
        if shop.broken:
            raise KeyError("a bad deploy")

    await shop.die(*["import"] * 40)


async def generation_unserved(shop: Shop) -> None:
    await shop.app.publish("order", 1, generation=3)
    await shop.app.publish("order", 1, generation=3, priority=2)
    assert await shop.app.attention() == []  # a deploy may be under way
    await shop.age("outbox", "due_at")


async def queue_unserved(shop: Shop) -> None:
    await shop.someone_works("order")
    await shop.app.publish("order", 1, queue="slow")
    await shop.age("outbox", "due_at")


async def target_unserved(shop: Shop) -> None:
    await shop.someone_works("mail")
    await shop.app.publish("mail", 1)
    await shop.app.publish("order", 1)
    await shop.age("outbox", "created_at")


async def limit_of_nobody(shop: Shop) -> None:
    """Wait for a permit of a limited handler; then its workers are gone."""
    limited = Redrive(shop.app.url, retry=ONCE)

    @limited.handler("order", rate="1/h")
    async def ship(payload: Any) -> None: ...

    async with limited:
        await limited.publish_many([("order", 1), ("order", 2)])
        await limited.worker().drain()
    await shop.someone_works("mail")


async def no_worker(shop: Shop) -> None:
    await shop.app.publish("order", 1)
    await shop.app.publish("order", 2, delay="5h")
    assert await shop.app.attention() == []
    await shop.age("outbox", "due_at")


async def worker_gone(shop: Shop) -> None:
    """An event is in flight, and nobody is left who would take it back."""
    await shop.app.publish("order", 1)
    async with Redrive(shop.app.url) as other:
        session = Session(other.clock.new_id(), "w", "h", 1, ("default",), ("order",), 1)
        await other.store.begin_session(session, 30.0)
        claims = other.store.claims(session.id, [("default", 1, 0)], actor="w")
        assert len((await claims.turn(Finished(), 1)).claimed) == 1
        await claims.close()
    assert await shop.app.attention() == []
    await shop.age("session", "lease_until")


async def redrive_without_workers(shop: Shop) -> None:
    await shop.die("order")
    plan = await shop.app.plan("type:order", by="ann")
    await shop.app.start(plan.redrive.token, by="ann", reason="mended")
    await shop.age("session", "lease_until", "ended_at")


async def keeps_coming_back(shop: Shop) -> None:
    for _ in range(5):
        assert await shop.app.attention() == []
        await shop.app.reconcilers.run("carts")
        await shop.drain()


@dataclass(frozen=True)
class Case:
    """A standing, what the list says of it, and what it says each time one has done what it said."""

    stand: Callable[[Shop], Awaitable[None]]
    covers: str
    kind: str
    rounds: list[list[tuple[str, int]]] = field(default_factory=list)


DEAD = [("dead-letters", 1)]
CASES = [
    Case(dead_letters, "failed", "dead-letters", [[("dead-letters", 2)]]),
    Case(no_group, "failed", "dead-letters", [DEAD]),
    Case(muted, "failed", "dead-letters", [DEAD, DEAD]),
    Case(held_key, "blocked", "key", [[("key", 2), *DEAD]]),
    Case(failed_compensation, "failed", "compensation", [[("compensation", 1), *DEAD], DEAD]),
    Case(
        discarded_compensation, "failed", "compensation",
        [[("compensation", 1), *DEAD], [("compensation", 1), *DEAD], DEAD],
    ),
    Case(halted, "redrive halted", "redrive", [[("redrive", 2), ("dead-letters", 2)], DEAD]),
    Case(paused, "redrive paused", "redrive", [[("redrive", 1), *DEAD]]),
    Case(left_planning, "redrive planning", "redrive", [[("redrive", 0)]]),
    Case(
        unapproved, "redrive planned", "redrive",
        [[("redrive", 2), ("dead-letters", 2)], [("redrive", 2), ("dead-letters", 2)]],
    ),
    Case(failed_hook, "failed", "hook", [[*DEAD, ("hook", 1)]]),
    Case(type_held, "blocked", "hold", [[("hold", 2)]]),
    Case(queue_held, "pending", "hold", [[("hold", 1)]]),
    Case(opened_by_hand, "blocked", "hold", [[("hold", 1)]]),
    Case(long_outage, "blocked", "dependency", [[("dependency", 1)]]),
    Case(brake_open, "blocked", "dependency", [[("dependency", 21), ("dead-letters", 19)], [("dead-letters", 19)]]),
    Case(generation_unserved, "pending", "unserved", [[("unserved", 2)]]),
    Case(queue_unserved, "pending", "unserved", [[("unserved", 1)]]),
    Case(target_unserved, "pending", "unserved", [[("unserved", 1)]]),
    Case(limit_of_nobody, "blocked", "unserved", [[("unserved", 1)]]),
    Case(keeps_coming_back, "delivered", "finding", [[("finding", 1)]]),
    Case(no_worker, "pending", "worker", [[("worker", 1)]]),
    Case(worker_gone, "in_flight", "worker", [[("worker", 1)]]),
    Case(redrive_without_workers, "redrive running", "worker", [[("worker", 1), *DEAD]]),
]  # fmt: skip


def kinds(found: Sequence[Matter]) -> list[str]:
    return [each.kind for each in found]


def looked(url: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = redrive("attention", "-o", "json", "-u", url).json
    return told


def follow(url: str, command: str, shop: Shop) -> None:
    """Do literally what the list says; a plan says itself how it goes on, and a worker works until all is done."""
    words = shlex.split(command)[1:]
    if words[0] in ("run", "worker"):
        words = ["shop:app" if each == "APP" else each for each in words]
        process = start(*words, cwd=Path.cwd(), env=environment(REDRIVE_URL=url, REDRIVE_LOG="error"))
        if words[0] == "run":
            asyncio.run(_work(shop, lambda: process.poll() is not None))
            assert ended(process).code == 0
            return
        try:
            wait_until(lambda: not looked(url) and not in_app(url, waiting))
        finally:
            process.send_signal(signal.SIGTERM)
            assert ended(process).code == 0
        return
    done = redrive(*words, env={"REDRIVE_URL": url})
    assert done.code == 0, done.err
    if words[0] == "plan":
        (started,) = re.findall(r'redrive run \S+ --reason "…"', done.out + done.err)
        follow(url, started, shop)


async def waiting(app: Redrive) -> list[Event]:
    """List what a worker of the shop would take now."""
    found = await app.events(EventFilter(status=Status.PENDING))
    return [each for each in found if each.target == "order" and each.due_at <= app.clock.now()]


async def _work(shop: Shop, over: Callable[[], bool]) -> None:
    async with shop.app, working(shop.app, queues=["default", "slow"]):
        await until(over)


async def _do(shop: Shop, work: Callable[[Shop], Awaitable[None]]) -> None:
    async with shop.app:
        await work(shop)


@pytest.mark.req("W10", "W5", "B6")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stand.__name__)
def test_what_stands_still_is_listed_until_one_has_done_what_the_list_says(
    store_url: str, case: Case, empty_folder: Path
) -> None:
    (empty_folder / "shop.py").write_text(SHOP)
    shop = Shop(store_url)
    asyncio.run(_do(shop, case.stand))
    shop.broken = False

    for expected in case.rounds:
        found = looked(store_url)
        assert [(each["kind"], each["count"]) for each in found] == expected
        first = next((each for each in found if each["kind"] == case.kind), found[0])
        if first["look"] != "redrive doctor":
            seen = redrive(*shlex.split(first["look"])[1:], env={"REDRIVE_URL": store_url})
            assert seen.code == 0, seen.err
        follow(store_url, first["act"], shop)
        if not first["act"].startswith("redrive worker"):
            asyncio.run(_do(shop, Shop.drain))

    assert looked(store_url) == []
    assert redrive("attention", "-u", store_url).out == "Nothing waits for a person.\n"


MOVES_BY_ITSELF = {"delivered", "cancelled", "redrive done", "redrive aborted"}  # or is over


@pytest.mark.req("W10")
def test_every_state_is_over_or_has_somebody_who_leaves_it() -> None:
    (listed,) = re.findall(
        r"create table redrive_redrive \(.*?state in \((.*?)\)", migrations("sqlite")[1][2], re.DOTALL
    )
    states = {f"redrive {each}" for each in re.findall(r"'(\w+)'", listed)} | {each.value for each in Status}

    assert states == {case.covers for case in CASES} | MOVES_BY_ITSELF
    assert {case.kind for case in CASES} == set(SOURCES)


# --- the command ---


@pytest.mark.req("W10")
def test_scripts_may_ask_whether_somebody_must_act(store_url: str) -> None:
    shop = Shop(store_url)
    asyncio.run(_do(shop, Shop.drain))
    calm = redrive("attention", "--exit-code", "-u", store_url)
    asyncio.run(_do(shop, muted))
    quiet = redrive("attention", "--exit-code", "-u", store_url)
    asyncio.run(_do(shop, failed_compensation))
    plain, asked = redrive("attention", "-u", store_url), redrive("attention", "--exit-code", "-u", store_url)

    assert (calm.code, calm.out) == (0, "Nothing waits for a person.\n")
    assert (quiet.code, "1 muted group" in quiet.out) == (0, True)  # somebody has said that it can wait
    assert (plain.code, asked.code) == (0, 5)


@pytest.mark.req("W10")
def test_the_list_says_why_since_when_and_what_to_do_next(store_url: str) -> None:
    shop = Shop(store_url)
    asyncio.run(_do(shop, held_key))

    table = redrive("attention", "-u", store_url, env={"COLUMNS": "200"})
    lines = redrive("attention", "-o", "jsonl", "-u", store_url).lines
    only = redrive("attention", "-k", "key", "-k", "worker", "-o", "json", "-u", store_url).json
    unknown = redrive("attention", "-k", "keys", "-u", store_url)

    head = lines[0]["act"].split()[2]
    assert [(each["kind"], each["urgency"]) for each in lines] == [("key", "now"), ("dead-letters", "soon")]
    assert "2 events wait behind a dead letter of order with the ordering key it's -7" in table.out
    assert re.search(r"■ key +it's -7 of order +for [\d.]+ s", table.out)
    assert f'then  redrive replay {head} --reason "…"' in table.out
    assert [each["kind"] for each in only] == ["key"]
    assert unknown.code == 2


async def test_an_app_is_asked_in_python(store_url: str) -> None:
    shop = Shop(store_url)
    async with shop.app as app:
        await shop.die("order")

        (matter,) = await app.attention()
        (told,) = await views.needs_a_person(app)
        overview = await views.overview(app)
        none = await app.attention(kinds=["key"])
        with pytest.raises(Refused, match="dead-letters, hook"):
            await app.attention(kinds=["nonsense"])

    assert (matter.urgency, matter.count, matter.how_many) == (Urgency.SOON, 1, "1")
    assert (matter.since or app.clock.now()) <= app.clock.now()
    assert told == matter.sentence
    assert overview["needs_a_person"] == [matter.sentence]
    assert "no such product" in matter.sentence
    assert none == []
    json.dumps(matter.to_json())


def test_a_stranger_cannot_smuggle_a_command_into_what_is_to_be_typed(sqlite_url: str) -> None:
    odd = "--help; rm -rf $HOME `id`\x1b[2J"

    async def hold_up(shop: Shop) -> None:
        await shop.app.publish_many([("order", n, {"ordering_key": odd}) for n in range(2)])
        await shop.drain()

    asyncio.run(_do(Shop(sqlite_url), hold_up))
    look = looked(sqlite_url)[0]["look"]

    assert shlex.split(look)[-1] == odd
    assert redrive(*shlex.split(look)[1:], env={"REDRIVE_URL": sqlite_url}).code == 0
    assert "\x1b" not in redrive("attention", "-u", sqlite_url).out


async def test_of_many_the_list_names_some_and_counts_the_others(store_url: str) -> None:
    shop = Shop(store_url)
    async with shop.app as app:
        drafts = [("order", n, {"ordering_key": f"k-{n // 2}"}) for n in range(2 * SHOWN + 10)]
        await app.publish_many(drafts)  # type: ignore[arg-type]
        await shop.drain()

        found = await app.attention(kinds=["key"])

    assert len(found) == SHOWN + 1
    assert (found[-1].what, found[-1].count) == ("the others", 5)
    assert found[-1].sentence == "5 more ordering keys are held up by a dead letter."


@pytest.mark.req("A6")
async def test_a_hook_that_worked_the_next_time_is_no_matter(store_url: str) -> None:
    app = Redrive(store_url, migrate=True, retry=ONCE)
    fails = True

    async def hook(letter: DeadLetter, work: Work) -> None:
        if fails:
            raise OSError("no evidence")

    @app.handler("order", on_dead_letter=hook)
    async def ship(payload: Any) -> None:
        raise Rejected("no")

    async with app:
        published = await app.publish("order", 1)
        await app.worker().drain()
        before = await app.attention(kinds=["hook"])
        fails = False
        await app.replay(published.id, by="ann", reason="the hook is mended")
        await app.worker().drain()

        assert (kinds(before), await app.attention(kinds=["hook"])) == (["hook"], [])
