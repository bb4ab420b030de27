"""One rich story, told by one process that may be killed at any point of it, and told again until it ends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from redrive import Redrive, Refused
from redrive.redrive import Release
from tests.lab.simulation.disk import Dead, Disk, Line
from tests.lab.simulation.loop import LANE, Call, Loop
from tests.lab.simulation.points import AWAIT, COMMIT, EFFECT, STATEMENT, Point, Told
from tests.lab.simulation.process import ANSWER, AWAITING, BEFORE, OUTSIDE, Process, Unseen
from tests.lab.simulation.scenario import app_of
from tests.lab.simulation.store import LoopHeartbeat
from tests.lab.simulation.world import World

STORY: list[tuple[str, str, list[str], dict[str, Any]]] = [
    ("lab.keyed", "first", ["fail"], {"ordering_key": "a"}),
    ("lab.keyed", "second", [], {"ordering_key": "a"}),
    ("lab.keyed", "third", [], {"ordering_key": "a"}),
    ("lab.plain", "parent", ["child"], {}),
    ("lab.hooked", "dead", ["fail", "fatal"], {}),
    ("lab.passing", "thrice", ["fail"] * 5, {}),
    ("lab.stepped", "undone", ["fail", "fatal"], {}),
    ("lab.needy", "waits", ["dep"], {}),
    ("lab.plain", "called off", [], {"delay": 60.0}),
]
"""Type, name, what its attempts do, and how it is published."""
CALLED_OFF = "called off"


class Mortal(Process):
    """A process that counts what it does, and dies at one point of it."""

    def __init__(self, world: World, name: str, dies: Point | None, *, listens: bool) -> None:
        super().__init__(world, name, [(dies.number, BEFORE)] if dies is not None and dies.kind == STATEMENT else [])
        self.counted: Counter[str] = Counter()
        self.told = Told(self.counted, defaultdict(list))
        self._dies = dies
        self._listens = listens
        if listens:
            self.alert_at = 0  # to hear of every statement

    def about_to(self, sql: str, line: Line) -> BaseException | None:
        if not self._listens:
            return super().about_to(sql, line)
        self._note(Point(STATEMENT, self.statements))
        return None

    def _note(self, point: Point) -> None:
        place = self.counted[COMMIT], self.counted[EFFECT], round(self.world.loop.now * 1_000)
        self.told.places[place].append(point)

    def _is_last(self, kind: str) -> bool:
        self.counted[kind] += 1
        return self._dies == (kind, self.counted[kind])

    def did(self, sql: str, answer: sqlite3.Cursor) -> None:
        if sql == "commit" and self._is_last(COMMIT):
            answer.close()
            self.kill(ANSWER)
            raise Dead(self.name)

    def acts_outside(self, key: str) -> None:
        super().acts_outside(key)
        if self._is_last(EFFECT):
            self.kill(OUTSIDE)
            raise Dead(self.name)

    def goes_on(self) -> bool:
        """Count an await; false: it was the last."""
        if self._is_last(AWAIT):
            self.kill(AWAITING)
        if self._listens:
            self._note(Point(AWAIT, self.counted[AWAIT]))
        return not self.is_dead


class CountingLoop(Loop):
    """Asks a process before each of its callbacks whether it still lives."""

    def _run(self, call: Call) -> None:
        owner = call._context[LANE].owner
        if not isinstance(owner, Mortal) or owner.goes_on():
            super()._run(call)


class Scripted(World):
    """A world in which nothing goes wrong but what it is told."""

    max_lost = 3  # two crashes bury nothing
    lease = 1.0  # those who come after a crash wait for its end
    runs_on = CountingLoop

    def __init__(
        self,
        disk: Disk,
        crashes: Sequence[Point] = (),
        *,
        rests: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(disk, 0, say=say)
        self.told = Told(Counter(), defaultdict(list))
        """Of the last telling."""
        self.intents = []
        self._crashes = crashes
        self._rests = rests

    async def _live(self) -> None:
        for crash in (*self._crashes, None):
            ended = asyncio.Event()
            process = Mortal(self, "s", crash, listens=not self._crashes)
            process.when_killed = lambda: self.died(ended)  # noqa: B023 - it is awaited here
            self._living.append(process)
            process.start(lambda me: self._alive(me, lambda _: self._tell(me, ended)))  # noqa: B023 - it is awaited here
            await ended.wait()
            self.told = process.told
            self.told.counted[STATEMENT] = process.statements
            if process in self._living:
                self._living.remove(process)
            await asyncio.sleep(0.3)
        if self._seconds_to_next() is not None:
            await self._end()
        self._expect()

    def died(self, ended: asyncio.Event) -> None:
        """Hear of a crash; what was begun is rolled back by now."""
        ended.set()

    async def _tell(self, process: Process, ended: asyncio.Event) -> None:
        app = app_of(process)
        await app.open()
        worker = self._worker(app, process)
        worker.heart = LoopHeartbeat
        worker.presence = Unseen()
        process.worker = worker
        running = asyncio.create_task(worker.run())
        await _publish_all(app, self)
        await _publish_batch(app)
        await self._until(
            "select 1 from redrive_outbox where status in ('in_flight', 'pending') and idempotency_key <> ?"
        )
        await _call_off(app, self)
        await _redrive(app)
        await self._until(
            "select 1 from redrive_outbox where status in ('in_flight', 'pending') and idempotency_key <> ?"
        )
        if self._rests:
            await asyncio.sleep(2 * self.lease)
        worker.stop()
        await running
        await app.close()
        ended.set()

    async def _until(self, left: str) -> None:
        """Wait until nothing is left that moves by itself."""
        while self.disk.query(left, (CALLED_OFF,)):  # noqa: ASYNC110 - nobody else knows
            await asyncio.sleep(0.1)

    def _expect(self) -> None:
        """The story has one end, however often it was told."""
        effects = dict(self.disk.query("select key, count(*) from lab_effect group by key"))
        for _, name, _, _ in STORY:
            if effects.get(name, 0) != (name != CALLED_OFF):
                self.found.add("lost", f"{name!r} had its effect {effects.get(name, 0)} times")
        for key, times in self.outside.items():
            if times > 1 + len(self._crashes):
                self.found.add("duplicate", f"{key} was done {times} times, with {len(self._crashes)} crashes")
        if not self.disk.query("select 1 from redrive_batch where final_at is not null"):
            self.found.add("notice error", "no batch has said that it is done")
        if self._crashes:
            return  # what attempts do goes by their number, and a crash has used some up
        if not self.disk.query("select 1 from redrive_outbox where type = 'redrive.compensate'"):
            self.found.add("lost", "what was done in steps was not undone")
        if self.disk.query("select count(*) from redrive_session where name = 's'") != [(1,)]:
            self.found.add("double claim", "a worker lost its lease though it was well")


async def _publish_all(app: Redrive, world: World) -> None:
    for type_, name, plan, options in STORY:
        if world.disk.query("select 1 from redrive_outbox where idempotency_key = ?", (name,)):
            continue  # another may have been killed before it heard the answer
        made = await app.publish(type_, {"n": name, "plan": plan}, idempotency_key=name, retry_key=name, **options)
        world.said.append({"what": "publish", "answer": "ok", "ids": [str(made.id)]})


async def _publish_batch(app: Redrive) -> None:
    batch = await app.batches.open("story")
    await batch.add("lab.plain", {"n": "member", "plan": ["fail", "fail"]}, idempotency_key=f"{batch.id}/1")
    await batch.add("lab.plain", {"n": "member", "plan": []}, idempotency_key=f"{batch.id}/2", delay=0.15)
    await batch.close()


async def _call_off(app: Redrive, world: World) -> None:
    for (event_id,) in world.disk.query(
        "select id from redrive_outbox where idempotency_key = ? and status = 'pending'", (CALLED_OFF,)
    ):
        await app.cancel(UUID(event_id), by="ann", reason="not wanted")


async def _redrive(app: Redrive) -> None:
    plan = await app.plan("type:lab.*", by="ann", unsafe=True)
    try:
        await app.start(plan.redrive.token, by="ann", reason="mended", release=Release(max_in_flight=1))
    except Refused:
        return  # nothing of it was left, after an earlier telling
    while (await app.redriving(plan.redrive.id)).state == "running":  # noqa: ASYNC110 - as people do
        await asyncio.sleep(0.2)


def tell(
    disk: Disk, crashes: Sequence[Point] = (), *, rests: bool = False, say: Callable[[str], None] | None = None
) -> Scripted:
    """Tell the story with these crashes; the world says what was found. ``rests``: longer than a lease, at its end."""
    disk.empty()
    world = Scripted(disk, crashes, rests=rests, say=say)
    world.run()
    return world
