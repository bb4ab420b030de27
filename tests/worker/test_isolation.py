"""Handlers in child processes: killed when their time is over, and allowed to die."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redrive import Redrive, RetryPolicy, Status
from redrive.errors import ConfigurationError
from tests.waiting import until
from tests.worker.conftest import working

pytestmark = pytest.mark.promise("poison")

SHOP = """
import asyncio, ctypes, os, signal, sys, threading, time
from redrive import Context, PolicyViolation, Redrive, RetryPolicy

app = Redrive({url!r}, retry=RetryPolicy(max_attempts=2, base_delay=0.01, max_delay=0.02), migrate=True)


def handler(type_, **options):
    return app.handler(type_, isolation="process", **options)


@handler("pid")
def pid(payload: dict) -> None:
    with open(payload["file"], "a") as out:
        print(os.getpid(), file=out)


@handler("pid.async")
async def pid_async(payload: dict, ctx: Context) -> None:
    with open(payload["file"], "a") as out:
        print(os.getpid(), ctx.id, ctx.attempt, ctx.headers["h"], ctx.cancelled, file=out)


@handler("die")
def die(payload: dict) -> None:
    if "code" in payload:
        os._exit(payload["code"])
    os.kill(os.getpid(), payload["signal"])
    time.sleep(60)


@handler("segfault")
def segfault(payload: dict) -> None:
    ctypes.string_at(0)


@handler("hang", timeout="300ms")
def hang(payload: dict) -> None:
    with open(payload["file"], "a") as out:
        print(os.getpid(), file=out)
    while True:
        pass


@handler("hang.deaf", timeout="300ms")
async def hang_deaf(payload: dict) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


@handler("sleep")
def sleep(payload: dict) -> None:
    with open(payload["file"], "a") as out:
        print(os.getpid(), file=out)
    time.sleep(60)


def _broken(payload):
    raise PolicyViolation("never") if payload == "terminal" else ZeroDivisionError("by nought")


@handler("broken.apart")
def broken_apart(payload):
    _broken(payload)


@app.handler("broken.here")
def broken_here(payload):
    _broken(payload)


class Strange(Exception):
    def __init__(self, a, b):
        super().__init__(f"{{a}} and {{b}}")


@handler("strange")
async def strange(payload):
    raise Strange("one", "two")


@handler("last.words")
def last_words(payload):
    # Ends at once when the answer has been given.
    write = asyncio.StreamWriter.write

    def write_and_end(writer, data):
        write(writer, data)
        os._exit(0)

    asyncio.StreamWriter.write = write_and_end


@handler("exit")
def leave(payload):
    sys.exit("enough")


@handler("tx")
async def tx(payload: dict, ctx: Context) -> None:
    async with ctx.transaction() as work:
        await work.execute("insert into ledger values (1)")
        await work.publish("follow.up", {{"of": str(ctx.id)}})
    if payload.get("then") == "die":
        os.kill(os.getpid(), signal.SIGKILL)


@handler("tx.sync")
def tx_sync(payload: dict, ctx: Context) -> None:
    with ctx.transaction() as work:
        work.execute("insert into ledger values (1)")
    ctx.publish_sync("follow.up", {{"of": str(ctx.id)}})


@handler("tx.killed")
async def tx_killed(payload: dict, ctx: Context) -> None:
    async with ctx.transaction() as work:
        await work.execute("insert into ledger values (1)")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def shop(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An app in a module that a child can import, as yours is."""
    name = f"shop_{os.getpid()}_{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(url=store_url))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    sys.modules.pop(name)


@pytest.fixture
async def app(shop: ModuleType) -> AsyncIterator[Redrive]:
    app: Redrive = shop.app
    async with app:
        yield app


def pids(file: Path) -> list[int]:
    return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").is_dir() else True


async def status_of(app: Redrive, event_id: Any) -> Status:
    event = await app.event(event_id)
    assert event is not None
    return event.status


@pytest.mark.req("W9")
async def test_an_isolated_handler_runs_in_a_child_that_is_used_again_and_ends_with_the_worker(
    app: Redrive, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    for _ in range(5):
        await app.publish("pid", {"file": str(file)})
    published = await app.publish("pid.async", {"file": str(file)}, headers={"h": "v"})

    tally = await app.worker(children=1).drain()

    assert tally.delivered == 6
    assert len(set(pids(file))) == 1
    assert os.getpid() not in pids(file)
    assert f" {published.id} 1 v False" in file.read_text()
    assert not is_alive(pids(file)[0])


@pytest.mark.req("A7", "W9")
@pytest.mark.parametrize(
    ("type_", "payload", "said"),
    [
        ("segfault", {}, "the child process died with signal 11 (SIGSEGV)"),
        ("die", {"signal": signal.SIGKILL}, "the child process died with signal 9 (SIGKILL)"),
        ("die", {"code": 3}, "the child process ended with exit code 3"),
    ],
)
async def test_a_handler_that_kills_its_process_is_counted_and_ends_as_a_dead_letter(
    app: Redrive, type_: str, payload: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Nothing but its own event is touched: the neighbour is delivered, the worker goes on."""
    poison = await app.publish(type_, payload)
    neighbour = await app.publish("pid", {"file": str(tmp_path / "pids")})

    async with working(app, children=2) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)
        await until(lambda: worker.tally.delivered == 1)

    event = await app.event(poison.id)
    assert event is not None
    assert (event.status, event.attempts, event.lost_count) == (Status.FAILED, 2, 0)
    assert (event.error_class, event.safe_to_retry) == ("worker_lost", False)
    assert said in str(event.last_error)
    outcomes = [entry.facts["outcome"] for entry in await app.trail(poison.id)]
    assert outcomes == ["lost", "lost"]
    assert await status_of(app, neighbour.id) is Status.DELIVERED


@pytest.mark.req("W9")
@pytest.mark.parametrize("type_", ["hang", "hang.deaf"])
async def test_a_child_that_neither_ends_nor_listens_is_killed_on_timeout(
    app: Redrive, type_: str, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    published = await app.publish(type_, {"file": str(file)})

    tally = await app.worker(children=1).drain()
    await asyncio.sleep(0.05)  # the retry's own due time
    tally = await app.worker(children=1).drain()

    event = await app.event(published.id)
    assert event is not None
    assert tally.left_behind == 0
    assert (event.status, event.attempts, event.error_class) == (Status.FAILED, 2, "timed_out")
    assert "took longer than its timeout of 300ms" in str(event.last_error)
    assert not any(is_alive(pid) for pid in pids(file))


@pytest.mark.req("W9")
async def test_a_child_is_killed_when_its_event_is_called_off(app: Redrive, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    published = await app.publish("sleep", {"file": str(file)})
    async with working(app, children=1) as worker:
        await until(lambda: bool(pids(file)))
        await app.cancel(published.id, by="ann", reason="not wanted any more")
        await until(lambda: worker.tally.cancelled == 1)

    assert not is_alive(pids(file)[0])
    assert await status_of(app, published.id) is Status.CANCELLED


@pytest.mark.req("W9")
async def test_a_stopping_worker_kills_its_children_and_hands_their_events_back(app: Redrive, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    published = await app.publish("sleep", {"file": str(file)})
    async with working(app, children=1, drain="100ms"):
        await until(lambda: bool(pids(file)))

    event = await app.event(published.id)
    assert event is not None
    assert (event.status, event.attempts) == (Status.PENDING, 0)
    assert not is_alive(pids(file)[0])


@pytest.mark.req("W9", "W2")
async def test_a_failure_in_a_child_is_told_as_if_it_had_happened_here(app: Redrive) -> None:
    """Class, type, message, place and whether it is terminal come from where the traceback was."""
    here, apart = [await app.publish(f"broken.{where}", "terminal") for where in ("here", "apart")]
    retried = await app.publish("broken.apart", "transient")

    await app.worker(children=1).drain()

    one, two, three = [await app.event(each.id) for each in (here, apart, retried)]
    assert one is not None
    assert two is not None
    assert three is not None
    assert (one.status, one.error_class, one.error_type) == (Status.FAILED, "invalid", "redrive.errors.PolicyViolation")
    assert (two.status, two.error_class, two.error_type) == (one.status, one.error_class, one.error_type)
    assert (
        str(two.last_error).replace("broken_apart", "broken_here").split(", line")[0]
        == str(one.last_error).split(", line")[0]
    )
    assert "in _broken" in str(two.last_error)
    assert "child.py" not in str(two.last_error)
    assert three.attempts == 2 or three.status is Status.PENDING
    assert (three.error_class, three.error_type) == ("broken", "ZeroDivisionError")


async def test_the_same_fault_in_children_has_one_fingerprint(app: Redrive) -> None:
    for _ in range(2):
        await app.publish("broken.apart", "terminal")

    await app.worker(children=2).drain()

    assert len({event.fingerprint for event in await app.events()}) == 1


@pytest.mark.req("A7")
@pytest.mark.parametrize(("type_", "said"), [("strange", "Strange: one and two"), ("exit", "SystemExit: enough")])
async def test_what_cannot_travel_as_an_exception_is_described(app: Redrive, type_: str, said: str) -> None:
    published = await app.publish(type_)

    await app.worker(children=1).drain()

    event = await app.event(published.id)
    assert event is not None
    assert event.attempts >= 1
    assert event.error_class == "broken"
    assert said in str(event.last_error)


@pytest.mark.req("O8", "W9")
@pytest.mark.parametrize("type_", ["tx", "tx.sync"])
async def test_a_transaction_in_a_child_settles_the_event_once(app: Redrive, type_: str) -> None:
    await ledger(app)
    published = await app.publish(type_, {})

    tally = await app.worker(children=1).drain()

    assert (tally.delivered, tally.leases_lost) == (1, 0)
    assert await status_of(app, published.id) is Status.DELIVERED
    assert await booked(app) == 1
    (follow,) = [event for event in await app.events() if event.type == "follow.up"]
    assert (follow.causation_id, follow.payload) == (str(published.id), {"of": str(published.id)})


@pytest.mark.req("A7")
async def test_a_child_that_ends_between_two_events_is_replaced(app: Redrive) -> None:
    """The answer it gave before counts; only an event that it was given too late to see has failed."""
    for _ in range(5):
        await app.publish("last.words")
        tally = await app.worker(children=1).drain()
        assert tally.delivered == 1

    assert {(event.status, event.attempts) for event in await app.events()} == {(Status.DELIVERED, 1)}


@pytest.mark.req("A7", "O8")
async def test_a_child_that_dies_after_its_commit_has_delivered(app: Redrive) -> None:
    """The attempt looks lost from here; the database knows better, and one answer stands."""
    await ledger(app)
    published = await app.publish("tx", {"then": "die"})

    await app.worker(children=1).drain()

    assert await status_of(app, published.id) is Status.DELIVERED
    assert await booked(app) == 1


@pytest.mark.req("A7", "O8")
async def test_a_child_that_dies_in_its_transaction_has_done_nothing(app: Redrive) -> None:
    await ledger(app)
    published = await app.publish("tx.killed", {})

    async with working(app, children=1) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)

    assert await status_of(app, published.id) is Status.FAILED
    assert await booked(app) == 0


async def ledger(app: Redrive) -> None:
    async with app.store.transaction() as tx:
        await tx.execute("create table ledger (one integer)")


async def booked(app: Redrive) -> int:
    async with app.store.transaction() as tx:
        return len(await tx.fetch("select one from ledger"))


@pytest.mark.req("A7")
async def test_children_end_with_a_worker_that_is_killed(sqlite_url: str, tmp_path: Path) -> None:
    """Even in the middle of a handler that never looks up."""
    file = tmp_path / "pids"
    (tmp_path / "lone.py").write_text(SHOP.format(url=sqlite_url))
    async with Redrive(sqlite_url) as publisher:
        await publisher.publish("sleep", {"file": str(file)})
    code = """
        import asyncio, lone
        async def work():
            async with lone.app:
                await lone.app.worker().run()
        asyncio.run(work())
    """
    worker = subprocess.Popen(  # noqa: ASYNC220 - it is there before anything waits
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    try:
        await until(lambda: bool(pids(file)))
    finally:
        worker.kill()
        worker.wait()

    await until(lambda: not is_alive(pids(file)[0]))


@pytest.mark.promise("not-stuck")
@pytest.mark.req("A7")
async def test_those_that_wait_for_a_child_keep_nobody_else_waiting(shop: ModuleType, tmp_path: Path) -> None:
    """However many there are: two are in the hands of a worker with one child, the others wait in the database."""
    app: Redrive = shop.app
    done: list[int] = []

    @app.handler("healthy")
    async def healthy(payload: int) -> None:
        done.append(payload)

    async with app:
        await app.publish_many([("sleep", {"file": str(tmp_path / "sleepers")}) for _ in range(30)])
        await app.publish_many([("healthy", n) for n in range(30)])
        async with working(app, concurrency=4, children=1) as worker:
            await until(lambda: len(done) == 30)
            assert worker.tally.delivered <= 30  # no sleeper was needed for that
            waiting = await app.store.counts()
            worker.stop(at_once=True)

    assert sum(waiting.values()) == 60
    assert worker.tally.throttled >= 28


@pytest.mark.req("A7")
async def test_a_module_that_a_child_cannot_import_stops_the_worker_at_its_start(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"fickle_{os.getpid()}"
    source = f"""
        import os
        from redrive import Redrive
        if os.environ.get("FICKLE") == "1":
            raise RuntimeError("not twice")
        app = Redrive({sqlite_url!r})
        @app.handler("x", isolation="process")
        def x(payload): ...
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    app: Redrive = importlib.import_module(name).app
    monkeypatch.setenv("FICKLE", "1")
    async with app:
        published = await app.publish("x")
        with pytest.raises(ConfigurationError, match="not twice"):
            await app.worker(children=1).run()
        event = await app.event(published.id)

    assert event is not None
    assert (event.status, event.attempts) == (Status.PENDING, 0)
    sys.modules.pop(name)


def module_level(payload: Any) -> None: ...


def test_a_handler_that_a_child_cannot_find_is_refused_when_it_is_registered() -> None:
    app = Redrive("sqlite:///unused.db", retry=RetryPolicy())

    def inside(payload: Any) -> None: ...

    def script(payload: Any) -> None: ...

    script.__qualname__, script.__module__ = "script", "__main__"
    refused = ((inside, "inside a function"), (lambda _: None, "has no name"), (script, "the script itself"))
    for function, why in refused:
        with pytest.raises(ConfigurationError, match=why):
            app.handler("x", isolation="process")(function)
    with pytest.raises(ConfigurationError, match="isolation takes 'process' or None, not 'thread'"):
        app.handler("x", isolation="thread")(module_level)  # type: ignore[arg-type]


async def test_an_app_that_a_child_cannot_find_is_refused_when_a_worker_is_made(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    app.handler("x", isolation="process")(module_level)
    async with app:
        with pytest.raises(ConfigurationError, match="keep it in a variable of a module"):
            app.worker()

    plain = Redrive(sqlite_url)
    async with plain:
        for number in (0, -1):
            with pytest.raises(
                ConfigurationError, match=f"children takes a whole number, from 1 to 100,000, not {number}"
            ):
                plain.worker(children=number)
