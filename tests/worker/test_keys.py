"""Ordering keys with real workers: several processes, failures, late commits and kill -9 (B6)."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import textwrap
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from redrive import ConfigurationError, Context, Redrive, Rejected, RetryPolicy, Status
from redrive.store.base import EventFilter
from tests import warm
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = pytest.mark.promise("order")

KEYS, IN_EACH = 8, 15

SCRIPT = """
    import asyncio, os, random, sys
    from redrive import Redrive, RetryPolicy
    url, journal, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    app = Redrive(url, retry=RetryPolicy(max_attempts=50, base_delay=0.01, max_delay=0.03))
    dice = random.Random(seed)
    book = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def note(what, payload, ctx):
        os.write(book, f"{what} {payload['key']} {payload['n']} {ctx.fence}\\n".encode())

    @app.handler("step")
    async def step(payload, ctx):
        note("begin", payload, ctx)
        await asyncio.sleep(dice.random() * 0.01)
        if dice.random() < 0.1:
            note("raise", payload, ctx)
            raise ConnectionError("not this time")
        if dice.random() < 0.3:
            async with ctx.transaction():
                note("done", payload, ctx)
        else:
            note("done", payload, ctx)

    async def main():
        async with app:
            await app.worker(lease="4s", concurrency=20).run()

    asyncio.run(main())
"""


@dataclass
class Journal:
    """What the handlers of all processes wrote down, checked line by line."""

    path: Path
    under_way: dict[str, tuple[int, int]] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    at_once: list[str] = field(default_factory=list)

    def read(self) -> Journal:
        for line in self.path.read_text().splitlines():
            what, key, number, fence = line.split()
            attempt = (int(number), int(fence))
            before = self.under_way.get(key)
            if what == "begin":
                # A killed process leaves an attempt open; the same event may begin again, another one may not.
                if key != "None" and before is not None and before[0] != attempt[0]:
                    self.at_once.append(f"{line}, while {before}")
                self.under_way[key] = attempt
            elif key == "None" or before == attempt:  # not what a worker says whose lease has run out
                self.under_way.pop(key, None)
                if what == "done" and attempt[0] not in self.done[key]:
                    self.done[key].append(attempt[0])
        return self


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


def spawn(folder: Path, url: str, journal: Path, seed: int) -> subprocess.Popen[bytes]:
    script = folder / "worker_with_keys.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return warm.python([str(script), url, str(journal), str(seed)], stderr=subprocess.DEVNULL)


async def publish_in_order(app: Redrive, key: str, dice: random.Random) -> None:
    """Publish the events of one key one after the other, some of them several at once."""
    n = 0
    while n < IN_EACH:
        several = min(dice.choice([1, 1, 2, 5]), IN_EACH - n)
        await app.publish_many(
            [("step", {"key": key, "n": n + k}, {"ordering_key": key, "priority": 1}) for k in range(several)]
        )
        n += several
        await asyncio.sleep(dice.random() * 0.05)


async def publish_late(app: Redrive, key: str, n: int, dice: random.Random) -> None:
    """Publish in a transaction that stays open for a while."""
    async with app.store.transaction() as tx:
        await tx.publish(app.new_events("step", {"key": key, "n": n}, ordering_key=key))
        await asyncio.sleep(dice.random() * (0.3 if app.store.name == "postgres" else 0.005))


@pytest.mark.req("B6", "A7")
async def test_however_processes_fail_a_key_is_in_order_one_at_a_time_and_comes_to_its_end(
    app: Redrive, store_url: str, tmp_path: Path, journal: Path
) -> None:
    dice = random.Random(7)
    processes = [spawn(tmp_path, store_url, journal, seed) for seed in range(3)]
    try:
        publishing: list[Awaitable[Any]] = [publish_in_order(app, f"k{n}", dice) for n in range(KEYS)]
        publishing += [publish_late(app, f"late{n % 3}", n // 3, dice) for n in range(30)]
        publishing += [app.publish_many([("step", {"key": None, "n": n}) for n in range(50)])]
        gathered = asyncio.gather(*publishing)
        await until(lambda: journal.stat().st_size > 2_000)
        processes[0].send_signal(signal.SIGKILL)
        await asyncio.to_thread(processes[0].wait)
        processes.append(spawn(tmp_path, store_url, journal, 9))
        await gathered
        await until(lambda: all_delivered(app, KEYS * IN_EACH + 30 + 50))
    finally:
        for process in processes:
            process.kill()
            await asyncio.to_thread(process.wait)

    found = Journal(journal).read()
    assert found.at_once == []
    assert {key: found.done[key] for key in found.done if key.startswith("k")} == {
        f"k{n}": list(range(IN_EACH)) for n in range(KEYS)
    }
    assert {key: sorted(found.done[key]) for key in found.done if key.startswith("late")} == {
        f"late{n}": list(range(10)) for n in range(3)
    }
    assert sorted(found.done["None"]) == list(range(50))


async def all_delivered(app: Redrive, number: int) -> bool:
    await asyncio.sleep(0.1)
    return await app.store.counts() == {("step", "delivered"): number}


@pytest.mark.req("B6")
async def test_a_dead_letter_holds_up_its_key_and_nothing_else(app: Redrive) -> None:
    seen: list[tuple[str | None, int]] = []

    @app.handler("t")
    async def handle(payload: Any, ctx: Context) -> None:
        if payload == 1 and ctx.ordering_key == "a":
            raise Rejected("not this one")
        seen.append((ctx.ordering_key, payload))

    for n in range(4):
        await app.publish("t", n, ordering_key="a")
        await app.publish("t", n, ordering_key="b")
        await app.publish("t", n)
    await app.worker().drain()

    assert sorted(seen, key=str) == [("a", 0), *(("b", n) for n in range(4)), *((None, n) for n in range(4))]
    assert [n for key, n in seen if key == "b"] == [0, 1, 2, 3]
    assert len(await app.events(EventFilter(status=Status.BLOCKED))) == 2


@pytest.mark.req("B6")
@pytest.mark.parametrize("hook", [False, True])
async def test_on_failed_pass_lets_the_others_go(app: Redrive, *, hook: bool) -> None:
    seen: list[int] = []

    async def told(_letter: Any, _work: Any) -> None:
        return None

    @app.handler("t", on_failed="pass", retry=RetryPolicy(max_attempts=1), on_dead_letter=told if hook else None)
    async def handle(payload: int) -> None:
        if payload == 1:
            raise ValueError("not this one")
        seen.append(payload)

    await app.publish_many([("t", n, {"ordering_key": "a"}) for n in range(4)])
    await app.worker().drain()

    assert seen == [0, 2, 3]
    assert await app.store.counts() == {("t", "delivered"): 3, ("t", "failed"): 1}


@pytest.mark.req("B6", "W9")
@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_head_whose_deadline_passes_lets_the_others_go_and_is_counted(
    app: Redrive, *, begun: bool, hook: bool
) -> None:
    begins: list[int] = []

    async def told(_letter: Any, _work: Any) -> None:
        return None

    @app.handler("t", on_failed="pass", on_dead_letter=told if hook else None)
    async def handle(payload: int) -> None:
        begins.append(payload)
        if payload == 0:
            await asyncio.sleep(60)

    late = ("1s", 0) if begun else ("1ms", "50ms")
    async with working(app) as worker:
        head = await app.publish("t", 0, ordering_key="a", deadline=late[0], delay=late[1])
        await app.publish_many([("t", n, {"ordering_key": "a"}) for n in (1, 2)])
        await until(lambda: worker.tally.delivered == 2)

    dead = await app.event(head.id)
    (group,) = await app.groups()
    assert dead is not None
    assert (dead.status, dead.error_class) == (Status.FAILED, "timed_out")
    assert begins == ([0, 1, 2] if begun else [1, 2])
    assert (group.fingerprint, group.dead_count) == (dead.fingerprint, 1)


@pytest.mark.req("B6", "W9")
@pytest.mark.parametrize("many", [False, True])
async def test_a_running_head_that_is_called_off_lets_the_others_go(app: Redrive, *, many: bool) -> None:
    started = asyncio.Event()
    done: list[int] = []

    @app.handler("t")
    async def handle(payload: int) -> None:
        if payload == 0:
            started.set()
            await asyncio.sleep(60)
        done.append(payload)

    head, *_ = await app.publish_many([("t", n, {"ordering_key": "a"}) for n in range(3)])
    async with working(app, poll="30s") as worker:  # it has to be woken
        await started.wait()
        if many:
            assert await app.cancel_all([head.id], by="ann", reason="no need") == [head.id]
        else:
            await app.cancel(head.id, by="ann", reason="no need")
        await until(lambda: (worker.tally.delivered, worker.tally.cancelled) == (2, 1))

    assert done == [1, 2]
    assert await app.store.counts() == {("t", "delivered"): 2, ("t", "cancelled"): 1}


@pytest.mark.req("B6")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_next_of_a_key_starts_when_the_cancelled_handler_has_ended(app: Redrive, in_thread: bool) -> None:
    """Neither listens: one clears up after it was cancelled, the other runs in a thread that cannot be stopped."""
    started, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    async def slow(payload: int) -> None:
        if payload == 0:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.to_thread(may_end.wait)
                order.append("cleared up")
        order.append(f"done {payload}")

    def threaded(payload: int) -> None:
        if payload == 0:
            started.set()
            may_end.wait()
            order.append("cleared up")
        order.append(f"done {payload}")

    app.handler("t")(threaded if in_thread else slow)
    head, *_ = await app.publish_many([("t", n, {"ordering_key": "a"}) for n in range(2)])
    async with working(app, poll="50ms") as worker:
        await asyncio.to_thread(started.wait)
        await app.cancel(head.id, by="ann", reason="no need")
        await until(lambda: head.id in {UUID(str(each)) for each in worker._told})
        await asyncio.sleep(0.2)
        assert order == []
        may_end.set()
        await until(lambda: "done 1" in order)

    assert order[0] == "cleared up"


@pytest.mark.req("B6")
@pytest.mark.parametrize("kind", ["plain", "transaction", "thread"])
async def test_a_drain_brings_all_of_a_key_in_order(app: Redrive, kind: str) -> None:
    seen: list[int] = []

    async def plain(payload: int) -> None:
        seen.append(payload)

    async def transaction(payload: int, ctx: Context) -> None:
        async with ctx.transaction():
            seen.append(payload)

    def thread(payload: int) -> None:
        seen.append(payload)

    handlers: dict[str, Callable[..., Any]] = {"plain": plain, "transaction": transaction, "thread": thread}
    app.handler("t")(handlers[kind])
    await app.publish_many([("t", n, {"ordering_key": "a"}) for n in range(30)])
    await app.worker().drain()

    assert seen == list(range(30))


@pytest.mark.req("O10")
async def test_while_a_deploy_rolls_each_generation_gets_its_own_events(store_url: str) -> None:
    seen: dict[int, list[int]] = {1: [], 2: []}
    apps = {n: Redrive(store_url, migrate=True, generation=n) for n in seen}

    def remember(n: int) -> None:
        @apps[n].handler("t")
        async def handle(payload: int) -> None:
            seen[n].append(payload)

    for n in apps:
        remember(n)
    async with apps[1], apps[2], working(apps[1]), working(apps[2]):
        for number in range(40):
            await apps[number % 2 + 1].publish("t", number)
            await apps[1].publish("t", 100 + number, generation=0)
        await until(lambda: len(seen[1]) + len(seen[2]) == 80)

    of_their_own = {n: sorted(each for each in seen[n] if each < 100) for n in seen}
    assert of_their_own == {1: list(range(0, 40, 2)), 2: list(range(1, 40, 2))}
    assert sorted(each for n in seen for each in seen[n] if each >= 100) == list(range(100, 140))


@pytest.mark.req("O10")
async def test_a_worker_without_a_generation_leaves_alone_what_has_one(app: Redrive) -> None:
    seen: list[int] = []

    @app.handler("t")
    async def handle(payload: int) -> None:
        seen.append(payload)

    await app.publish("t", 1, generation=3)
    await app.publish("t", 2)
    await app.worker().drain()
    assert seen == [2]

    await app.worker(generation=3).drain()
    assert seen == [2, 1]


@pytest.mark.req("B6")
async def test_a_handler_of_several_types_keeps_the_order_of_a_key_over_all_of_them(app: Redrive) -> None:
    seen: list[tuple[str, str]] = []
    running: set[str] = set()

    @app.handler("order.paid", "order.cancelled", name="order-ledger")
    async def book(payload: dict[str, str], ctx: Context) -> None:
        assert payload["order"] not in running
        running.add(payload["order"])
        await asyncio.sleep(0.005)
        running.remove(payload["order"])
        seen.append((payload["order"], ctx.type))

    for _ in range(3):
        for order in ("7", "8"):
            for type_ in ("order.paid", "order.cancelled"):
                await app.publish(type_, {"order": order}, ordering_key=order)
    async with working(app, concurrency=8):
        await until(lambda: len(seen) == 12)

    for order in ("7", "8"):
        assert [type_ for of, type_ in seen if of == order] == ["order.paid", "order.cancelled"] * 3


async def test_a_dead_letter_holds_up_its_key_over_all_types_of_its_handler(app: Redrive) -> None:
    @app.handler("order.paid", "order.cancelled", name="order-ledger")
    async def book(_payload: Any, ctx: Context) -> None:
        if ctx.type == "order.paid":
            raise Rejected("no such order")

    await app.publish("order.paid", ordering_key="7")
    later = await app.publish("order.cancelled", ordering_key="7")
    await app.worker().drain()

    (held,) = await app.held_keys()
    assert (held.target, held.waiting) == ("order-ledger", 1)
    (waiting,) = await app.events(EventFilter(status=Status.BLOCKED))
    assert waiting.id == later.id


def test_a_handler_of_several_types_needs_a_name() -> None:
    app = Redrive("sqlite:///:memory:")

    with pytest.raises(ConfigurationError, match=r"several types \(order.paid, order.cancelled\) needs a name"):
        app.handler("order.paid", "order.cancelled")


@pytest.mark.req("A8")
async def test_a_policy_for_any_of_its_types_holds_for_a_handler_of_several(app: Redrive) -> None:
    attempts: list[int] = []

    @app.handler("order.paid", "order.cancelled", name="order-ledger")
    async def book(_payload: Any, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ConnectionError("the ledger is away")

    await app.set_policy("order.cancelled", max_attempts=1, by="ann", reason="one is enough")
    await app.publish("order.paid")
    await app.worker().drain()

    assert attempts == [1]
    (event,) = await app.events()
    assert event.status is Status.FAILED
