"""A hand of the lab: one real process that works, publishes, migrates or checkpoints, until somebody ends it.

    python -m tests.lab.hand URL LEDGER ROLE [OPTIONS as JSON]

``crew`` starts them with ``python -m tests.lab.hand --nursery FOLDER``: one process that has imported everything and
forks a hand for each order it reads, so that thousands of them cost little more than what they do.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redrive import (
    Context,
    PrerequisiteMissing,
    Redrive,
    RedriveError,
    Rejected,
    RetryPolicy,
    StoreUnavailable,
    Work,
    Worker,
)
from redrive.batch import FINAL_NOTICE, FIRST_NOTICE
from redrive.errors import StoreFull, StoreReadOnly
from redrive.event import NewEvent
from redrive.operate.cli import root as command_line
from tests.lab.checker import EFFECTS
from tests.lab.ledger import Ledger

MAX_ATTEMPTS = 4
POLICY = RetryPolicy(max_attempts=MAX_ATTEMPTS, base_delay=0.02, max_delay=0.2)
ORDER = "create table if not exists lab_order (key text not null, n bigint not null)"
EX_TEMPFAIL = 75
_PR_SET_PDEATHSIG = 1
_BEGUN_SECONDS = 3.0  # a worker that ends by itself after so long, or after it has claimed something, is a finding


# --- what the workers do ----------------------------------------------------------------------------


class Yard:
    """The handlers of the lab: effects in transactions, failures, children, lines in order."""

    def __init__(self, app: Redrive, ledger: Ledger) -> None:
        self._ledger = ledger
        self._mark = "?" if app.store.name == "sqlite" else "$"
        if hasattr(app, "when_open"):  # code of earlier commits runs this too, see test_rolling
            app.when_open(self.tables)
        app.handler("lab.work")(self.work)
        app.handler("lab.child")(self.child)
        app.handler("lab.ordered")(self.ordered)
        app.handler("plain.work")(self.plain)
        app.handler(FIRST_NOTICE)(self.notice)
        app.handler(FINAL_NOTICE)(self.notice)

    async def tables(self, tx: Work) -> None:
        await tx.execute(EFFECTS)
        await tx.execute(ORDER)

    async def work(self, payload: dict[str, Any], ctx: Context) -> None:
        async with self._noted(ctx):
            await self._stumble(payload, ctx)
            async with ctx.transaction() as tx:
                await self._effect(tx, ctx)
                if payload.get("child"):
                    await tx.publish("lab.child", {}, idempotency_key=f"child of {ctx.idempotency_key}")
                if inside := payload.get("inside"):
                    self._ledger.note("inside", "invoke", id=str(ctx.id), fence=ctx.fence, pid=os.getpid())
                    await asyncio.sleep(inside)

    async def child(self, _payload: dict[str, Any], ctx: Context) -> None:
        async with self._noted(ctx), ctx.transaction() as tx:
            await self._effect(tx, ctx)

    async def ordered(self, payload: dict[str, Any], ctx: Context) -> None:
        async with self._noted(ctx):
            await self._stumble(payload, ctx)
            async with ctx.transaction() as tx:
                before = f"select coalesce(max(n), -1) from lab_order where key = {self._mark}1"
                ((last,),) = await tx.fetch(before, ctx.ordering_key)
                if last >= payload["n"]:
                    self._ledger.note("order", "fail", key=ctx.ordering_key, n=payload["n"], after=last)
                added = f"insert into lab_order values ({self._mark}1, {self._mark}2)"
                await tx.execute(added, ctx.ordering_key, payload["n"])
                await self._effect(tx, ctx)

    async def plain(self, payload: dict[str, Any], ctx: Context) -> None:
        """Without a transaction. A slow one that was taken over takes longer and fails: a zombie wakes up beside it."""
        async with self._noted(ctx):
            await self._stumble(payload, ctx)
            is_taken_over = "slow" in payload and ctx.fence % 4 == 3
            await asyncio.sleep(payload.get("slow", 0.0) * (6 if is_taken_over else 1))
            if is_taken_over:
                raise PrerequisiteMissing("not for whoever took it over")

    async def notice(self, _payload: dict[str, Any]) -> None: ...

    async def _effect(self, tx: Work, ctx: Context) -> None:
        values = ", ".join(f"{self._mark}{number}" for number in (1, 2, 3))
        text = f"insert into lab_effect (key, event_id, fence) values ({values})"
        await tx.execute(text, ctx.idempotency_key, str(ctx.id), ctx.fence)

    async def _stumble(self, payload: dict[str, Any], ctx: Context) -> None:
        dice = random.Random(f"{ctx.id}/{ctx.fence}")
        await asyncio.sleep(dice.uniform(0.0, 0.01))
        if payload.get("fate") == "never":
            raise Rejected("this one never works")
        if dice.random() < 0.2:
            raise PrerequisiteMissing("not yet")

    @asynccontextmanager
    async def _noted(self, ctx: Context) -> AsyncIterator[None]:
        """Write down when an attempt begins and how its handler ends."""
        facts = {"id": str(ctx.id), "fence": ctx.fence, "pid": os.getpid()}
        self._ledger.note("attempt", "invoke", at=time.monotonic(), **facts)
        try:
            yield
        except BaseException as error:
            self._ledger.note("attempt", "fail", at=time.monotonic(), error=type(error).__name__, **facts)
            raise
        self._ledger.note("attempt", "ok", at=time.monotonic(), **facts)


def yard(url: str, ledger: Ledger) -> Redrive:
    """Make the app of the lab."""
    app = Redrive(url, source="lab", retry=POLICY, migrate=True)
    Yard(app, ledger)
    return app


async def opened(app: Redrive) -> None:
    """Open it as soon as the database lets us."""
    while True:
        try:
            await app.open()
        except StoreUnavailable:
            await asyncio.sleep(0.05)
        else:
            return


async def work(url: str, ledger: Ledger, options: dict[str, Any]) -> None:
    """Work in the yard until SIGTERM."""
    await serve(yard(url, ledger), options)


async def serve(app: Redrive, options: dict[str, Any]) -> None:
    """Work until SIGTERM. A worker that cannot begin is started again; one that ends later is a finding."""
    over, workers = asyncio.Event(), list[Worker]()

    def end() -> None:
        over.set()
        for each in workers:
            each.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    if call_seconds := options.pop("call_seconds", None):
        app.store._call_seconds = call_seconds  # type: ignore[attr-defined]
    said = {"lease": "1s", "concurrency": 8, "poll": "200ms", "drain": "5s", **options}
    while not over.is_set():
        await opened(app)
        worker = app.worker(**said)
        workers[:] = [worker]
        began = time.monotonic()
        try:
            await worker.run()
        except StoreUnavailable:
            if worker.tally.claimed or time.monotonic() - began > _BEGUN_SECONDS:
                raise
            await asyncio.sleep(0.1)
    await app.close()


# --- what the producers do --------------------------------------------------------------------------


class Producer:
    """Publishes in every way there is, and writes down what it was answered."""

    def __init__(self, app: Redrive, ledger: Ledger, options: dict[str, Any]) -> None:
        self.app = app
        self.ledger = ledger
        self.name = f"{os.getpid()}-{time.time_ns()}"
        self.dice = random.Random(options.get("seed", self.name))
        self.pause = float(options.get("pause", 0.01))
        self.inside = float(options.get("inside", 0.0))
        self.slow = float(options.get("slow", 0.0))
        self.count = 0
        self.lines = [0, 0, 0]
        self.keys: list[str] = []
        self.is_over = False

    async def run(self, most: int | None = None) -> None:
        acts = {self.one: 40, self.keyed: 15, self.ordered: 20, self.again: 5, self.many: 8,
                self.plain: 60 if self.slow else 5, self.batch: 4, self.undone: 3}  # fmt: skip
        while not self.is_over and (most is None or self.count < most):
            (act,) = self.dice.choices([*acts], [*acts.values()])
            await act()
            await asyncio.sleep(self.pause * self.dice.uniform(0.5, 1.5))

    def payload(self) -> dict[str, Any]:
        self.count += 1
        said: dict[str, Any] = {"n": self.count}
        if self.dice.random() < 0.02:
            said["fate"] = "never"
        elif self.dice.random() < 0.15:
            said["child"] = True
        if self.inside and self.dice.random() < 0.3:
            said["inside"] = self.inside
        return said

    def key(self) -> str:
        """Make a key for the payload that was made last; it may come again in another event of the same target."""
        self.keys.append(f"{self.name}-{self.count}")
        return self.keys[-1]

    async def one(self) -> None:
        await self.publish(self.app.new_events("lab.work", self.payload(), idempotency_key=self.key()))

    async def plain(self) -> None:
        payload = {**self.payload(), "slow": self.slow} if self.slow else self.payload()
        await self.publish(self.app.new_events("plain.work", payload))

    async def keyed(self) -> None:
        await self.surely("lab.work", self.payload(), self.key())

    async def ordered(self) -> None:
        line = self.dice.randrange(len(self.lines))
        self.lines[line] += 1
        payload = {**self.payload(), "n": self.lines[line]}
        key = f"line {line} of {self.name}"
        await self.surely("lab.ordered", payload, f"{key}, {self.lines[line]}", ordering_key=key)

    async def again(self) -> None:
        if self.keys:
            await self.publish(
                self.app.new_events("lab.work", self.payload(), idempotency_key=self.dice.choice(self.keys))
            )

    async def many(self) -> None:
        rows = [row for _ in range(5) for row in self.app.new_events("lab.work", self.payload())]
        await self.publish(rows)

    async def surely(self, type_: str, payload: dict[str, Any], key: str, **options: Any) -> None:
        """Publish again until the answer is known; the key makes that harmless."""
        while not self.is_over:
            rows = self.app.new_events(type_, payload, retry_key=key, idempotency_key=key, **options)
            if await self.publish(rows):
                return
            await asyncio.sleep(0.05)

    async def batch(self) -> None:
        """Open, fill and close a batch; what is not known to have been done is left as it is."""
        with self.answered("batch", ()):
            batch = await self.app.batches.open(f"batch of {self.name}")
            rows = [row for _ in range(4) for row in self.app.new_events("lab.work", self.payload(), batch=batch.id)]
            if await self.publish(rows):
                await batch.close()

    async def undone(self) -> None:
        """Publish in a transaction that is rolled back: it has definitely failed."""
        rows = self.app.new_events("lab.work", self.payload())
        ids = [str(row.id) for row in rows]
        with suppress(StoreUnavailable):
            try:
                async with self.app.store.transaction() as tx:
                    await tx.publish(rows)
                    raise LookupError
            except LookupError:
                self.ledger.note("publish", "fail", ids=ids)

    async def publish(self, rows: Sequence[NewEvent]) -> bool:
        """Publish rows whose ids are known before; say whether it was acknowledged."""
        ids = [str(row.id) for row in rows]
        self.ledger.note("publish", "invoke", ids=ids)
        with self.answered("publish", ids):
            published = await self.app.store.publish(rows)
            self.ledger.note("publish", "ok", ids=[str(each.id) for each in published])
            return True
        return False

    @property
    def answered(self) -> Callable[[str, Sequence[str]], Answered]:
        return lambda what, ids: Answered(self.ledger, what, ids)


class Answered:
    """Writes down how a call ended that did not succeed: refused (nothing was written) or unknown."""

    def __init__(self, ledger: Ledger, what: str, ids: Sequence[str]) -> None:
        self._ledger = ledger
        self._what = what
        self._ids = list(ids)

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        is_known = isinstance(error, StoreFull | StoreReadOnly) or not isinstance(error, StoreUnavailable)
        if not isinstance(error, RedriveError):
            self._ledger.note("raw", "fail", what_failed=self._what, error=repr(error)[:300])
            is_known = False
        self._ledger.note(self._what, "fail" if is_known else "unknown", ids=self._ids, error=repr(error)[:300])
        return True


async def produce(url: str, ledger: Ledger, options: dict[str, Any]) -> None:
    """Publish until SIGTERM, or as many as asked for."""
    app = yard(url, ledger)
    if call_seconds := options.get("call_seconds"):
        app.store._call_seconds = call_seconds  # type: ignore[attr-defined]
    producer = Producer(app, ledger, options)

    def end() -> None:
        producer.is_over = True

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    await opened(app)
    await producer.run(options.get("most"))
    await app.close()


# --- who else touches the file ----------------------------------------------------------------------


def migrate(url: str, _ledger: Ledger, _options: dict[str, Any]) -> None:
    """Run `redrive migrate`, the real command."""
    command_line.app(["migrate", "--url", url], prog_name="redrive")


def checkpoint(url: str, _ledger: Ledger, _options: dict[str, Any]) -> None:
    """Move the log into the file, over and over, in every way SQLite has."""
    dice = random.Random()
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=0.2)
    while True:
        with suppress(sqlite3.OperationalError):
            connection.execute(f"pragma wal_checkpoint({dice.choice(['truncate', 'restart', 'full', 'passive'])})")
        time.sleep(dice.uniform(0.0, 0.01))


async def take(url: str, ledger: Ledger, options: dict[str, Any]) -> None:
    """Take in from a broker until SIGTERM; the drivers are imported by those who need them."""
    from tests.lab import taker

    await taker.take(url, ledger, options)


async def bulk(url: str, ledger: Ledger, options: dict[str, Any]) -> None:
    """Take what ``bulk`` has written by the million."""
    from tests.lab.bulk import work as take_all

    await take_all(url, ledger, options)


ROLES: dict[str, Callable[[str, Ledger, dict[str, Any]], Coroutine[Any, Any, None] | None]] = {
    "worker": work,
    "taker": take,
    "bulk": bulk,
    "producer": produce,
    "migrate": migrate,
    "checkpoint": checkpoint,
}


def act(url: str, ledger_path: str, role: str, options: dict[str, Any]) -> int:
    """Be one of them; what was written survives a kill without being synced, the machine itself goes on."""
    ledger = Ledger(ledger_path, is_synced=False)
    try:
        doing = ROLES[role](url, ledger, options)
        if doing is not None:
            asyncio.run(doing)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:
        traceback.print_exc()
        ledger.note("ended", "fail", role=role, pid=os.getpid(), error=repr(error)[:500])
        return 1
    return 0


def nursery(folder: Path) -> None:
    """Read orders, a line of JSON each, fork a hand for each and answer with its id; end with the input."""
    gc.freeze()  # no hand need look through what it has not made itself
    exits = os.open(folder / "exits", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    living: set[int] = set()

    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                living.discard(ended[0])
                os.write(exits, f"{ended[0]} {os.waitstatus_to_exitcode(ended[1])}\n".encode())

    signal.signal(signal.SIGCHLD, reap)
    while order := sys.stdin.buffer.readline():
        said = json.loads(order)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            _begin(folder, parent)
            os._exit(act(said["url"], said["ledger"], said["role"], said["options"]))
        living.add(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _begin(folder: Path, parent: int) -> None:
    """Leave the nursery: its signals, its pipes; and end with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    said = os.open(folder / "said", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for new, old in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(new, old)


if __name__ == "__main__":
    if sys.argv[1] == "--nursery":
        nursery(Path(sys.argv[2]))
    else:
        database, notes, part, *said = sys.argv[1:]
        sys.exit(act(database, notes, part, json.loads(said[0]) if said else {}))
