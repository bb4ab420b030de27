"""Poison: payloads and handlers made to hurt. Both stores agree on each, and the healthy events beside get through."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from redrive import EventFilter, Redrive, RedriveError, Status
from redrive.clock import VirtualClock
from redrive.store.base import PAYLOAD
from tests.lab.record import Record
from tests.stores.helpers import Hands, failed, found
from tests.waiting import until
from tests.worker.conftest import working

# --- payloads ---


class Words(str):
    """Text that claims to be empty."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0


def _cyclic() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


NAUGHTY: dict[str, Any] = {
    "nothing": None,
    "empty text": "",
    "empty object": {},
    "a NUL": "a\0b",
    "an escaped NUL": "\\u0000",
    "a lone surrogate": "\ud800",
    "the other half": {"a": ["\udfff"]},
    "not a number": math.nan,
    "infinite": [math.inf],
    "minus nothing": -0.0,
    "above a double": 2**53 + 1,
    "a huge whole number": 10**4_000,
    "a whole number nobody reads": 10**5_000,
    "a tiny number": 5e-324,
    "deep": json.loads("[" * 60 + "]" * 60),
    "too deep": json.loads("[" * 300 + "]" * 300),
    "fifty megabytes": "x" * 50_000_000,
    "a key that is a number": {1: "a"},
    "keys that become one": {1: "a", "1": "b"},
    "a key that is nothing": {None: 1},
    "a date": datetime(2030, 1, 1, tzinfo=UTC),
    "a date without a zone": datetime(2030, 1, 1),  # noqa: DTZ001
    "a decimal": Decimal("0.1000000000000000000000001"),
    "a decimal that is none": Decimal("NaN"),
    "bytes": b"plain",
    "bytes that are no text": b"\xff\xfe",
    "a set": {1},
    "a range": range(3),
    "an object": object(),
    "a class": dict,
    "a cycle": _cyclic(),
    "text of its own kind": Words("seen"),
    "a truth of its own kind": type("Flag", (int,), {"__bool__": lambda self: False})(1),
    "composed": "é",
    "decomposed": "e\u0301",
    "two keys that look alike": {"é": 1, "e\u0301": 2},
    "right to left": "\u202eabc\u202c \u05d0\u05d1 \u0627",
    "joined": "👩\u200d👩\u200d👧 \ufeff\u200b",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f\u0085\u2028\uffff",
    "SQL": "'; drop table redrive_outbox; --",
    "templates": "{{7*7}} {0.__class__} %s %n ${jndi:ldap://x} $(id) `id`",
    "a prototype": {"__proto__": {"x": 1}, "constructor": 1},
    "many keys": {str(n): n for n in range(20_000)},
    "a million nothings": [None] * 200_000,
    "a long key": {"k" * 100_000: 1},
}


class Pair:
    """Both stores, and hands on each."""

    def __init__(self, *urls: str) -> None:
        self.apps = [Redrive(url, clock=VirtualClock(), migrate=True) for url in urls]
        self.hands: list[Hands] = []

    async def __aenter__(self) -> Self:
        for app in self.apps:
            await app.open()
            self.hands.append(await Hands.begin(app))
        return self

    async def __aexit__(self, *_error: object) -> None:
        for hands in self.hands:
            await hands.claims.close()
        for app in self.apps:
            await app.close()

    async def fates(self, payload: Any) -> list[str]:
        """Send it through each store; tell what comes out, or who refuses it and why."""
        return [await self._fate(hands, payload) for hands in self.hands]

    async def _fate(self, hands: Hands, payload: Any) -> str:
        """Publish it, claim it, bury it, look at it, replay it, claim it again, deliver it."""
        app = hands.app
        try:
            published = await app.publish("lab.poison", payload, subject="x")
        except RedriveError as error:
            assert await app.store.counts() in ({}, {("lab.poison", "delivered"): self._done(app)})
            return f"{type(error).__name__}: {error}"
        row = await hands.claim_one()
        assert await hands.settle(failed(row)) == []
        seen = [json.loads(row[PAYLOAD]), (await found(app, published.id)).payload]
        json.dumps((await found(app, published.id)).to_json())
        await app.replay(published.id, by="ann", reason="again")
        row = await hands.claim_one()
        seen.append(json.loads(row[PAYLOAD]))
        assert await hands.deliver(row) == []
        self._count[app] = self._done(app) + 1
        told = {repr(each) for each in seen}
        assert len(told) == 1, "it does not come back the same each time"
        return told.pop()

    _count: dict[Redrive, int] = {}  # noqa: RUF012 - a small book of how many went through

    def _done(self, app: Redrive) -> int:
        return self._count.get(app, 0)


@pytest.mark.promise("poison", "one-semantics")
@pytest.mark.req("A7")
async def test_a_naughty_payload_comes_back_or_is_refused_the_same_on_both_stores(
    sqlite_url: str, postgres_url: str, record: Callable[..., Record]
) -> None:
    run = record("poison", "both")
    async with Pair(sqlite_url, postgres_url) as pair:
        for name, payload in NAUGHTY.items():
            one, two = await pair.fates(payload)
            run.cases += 1
            run.reached["refused" if one.startswith("PayloadRefused: ") else "accepted"] += 1
            assert one == two, name
            if isinstance(payload, str | int | float | list | dict) and not one.startswith("PayloadRefused"):
                plain = json.loads(json.dumps(payload))
                assert one == repr(plain), name

    assert run.reached["refused"] > 10
    assert run.reached["accepted"] > 15


texts = st.text(max_size=30) | st.text(st.characters(), max_size=30)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.integers(-(2**70), 2**70)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5), max_leaves=15
)


def throw(pair: Pair, loop: asyncio.AbstractEventLoop, run: Record, *, cases: int, seed: int) -> None:
    """Send arbitrary values through both stores."""

    @seeded(seed)
    @settings(max_examples=cases, database=None, suppress_health_check=list(HealthCheck))
    @given(payload=anything)
    def check(payload: Any) -> None:
        one, two = loop.run_until_complete(pair.fates(payload))
        run.cases += 1
        run.reached["refused" if one.startswith("PayloadRefused: ") else "accepted"] += 1
        assert one == two
        assert one.startswith("PayloadRefused: ") or one == repr(payload)

    check()


@pytest.mark.promise("poison", "one-semantics")
@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=[pytest.mark.lab, pytest.mark.timeout(0)])])
def test_any_value_comes_back_or_is_refused_the_same_on_both_stores(
    form: str, sqlite_url: str, postgres_url: str, record: Callable[..., Record], seed: int, budget: float
) -> None:
    run, loop = record("poison", "both"), asyncio.new_event_loop()
    pair = Pair(sqlite_url, postgres_url)
    loop.run_until_complete(pair.__aenter__())
    end, turn = time.monotonic() + budget, 0
    try:
        while turn == 0 or (form == "long" and time.monotonic() < end and run.cases < 100_000):
            throw(pair, loop, run, cases=60 if form == "short" else 1_000, seed=seed + turn)
            turn += 1
    finally:
        loop.run_until_complete(pair.__aexit__())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


# --- handlers ---

SHOP = """
import asyncio, concurrent.futures, gc, os, signal, sys, threading, time
from redrive import Redrive, RetryPolicy

app = Redrive({url!r}, retry=RetryPolicy(max_attempts=2, base_delay=0.01, max_delay=0.02), migrate=True)
seen = []


def poison(name, **options):
    return app.handler("lab." + name, brake=False, **options)


@app.handler("lab.healthy", brake=False)
async def healthy(payload: int) -> None:
    seen.append(payload)


@app.handler("lab.waiting", brake=False)
async def waiting(payload: int) -> None:
    await asyncio.sleep(0.01)
    seen.append(payload)


@poison("exits", isolation="process")
def exits(payload):
    os._exit(7)


@poison("kills", isolation="process")
def kills(payload):
    os.kill(os.getpid(), signal.SIGKILL)


@poison("eats", isolation="process")
def eats(payload):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    hoard = []
    while True:
        hoard.append(bytearray(1 << 26))


@poison("closes", isolation="process")
def closes(payload):
    os.closerange(0, 64)


@poison("blocks")
async def blocks(payload):
    time.sleep(0.3)
    raise RuntimeError("after having kept everybody waiting")


class Mute(Exception):
    def __str__(self):
        raise self

    __repr__ = __str__


class Cunning(Exception):
    args = __cause__ = __context__ = __notes__ = __traceback__ = __class__ = property(lambda self: 1 / 0)


class Odd(BaseException):
    pass


Odd.__module__ = None
Odd.__qualname__ = "\\ud800\\0" * 100


@poison("mute")
async def mute(payload):
    raise Mute


@poison("mute.thread")
def mute_thread(payload):
    raise Mute


@poison("cunning")
async def cunning(payload):
    raise Cunning


@poison("cunning.cause")
async def cunning_cause(payload):
    raise ExceptionGroup("one of them", [ValueError("plain"), Cunning()]) from Cunning()


@poison("cunning.apart", isolation="process")
def cunning_apart(payload):
    raise Cunning


@poison("odd")
async def odd(payload):
    raise Odd("\\ud800\\0" * 100_000)


@poison("odd.thread")
def odd_thread(payload):
    raise Odd


@poison("cyclic")
async def cyclic(payload):
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    one.__context__, two.__context__ = two, one
    raise one


@poison("group")
async def group(payload):
    raise BaseExceptionGroup("many", [Mute(), Odd(), ExceptionGroup("more", [Mute() for _ in range(500)])])


@poison("deep.cause")
async def deep_cause(payload):
    error = ValueError(0)
    for n in range(20_000):
        following = ValueError(n)
        following.__cause__ = error
        error = following
    raise error


@poison("recursion")
async def recursion(payload):
    await recursion(payload)


@poison("cancels.itself")
async def cancels_itself(payload):
    asyncio.current_task().cancel()
    await asyncio.sleep(1)


@poison("stops.iteration")
async def stops_iteration(payload):
    raise StopAsyncIteration


# --- these end well, whatever else they do ---


class Garbage:
    def __del__(self):
        raise RuntimeError("in __del__")

    __repr__ = __str__ = __bool__ = __eq__ = __len__ = lambda self, *_: 1 / 0
    __hash__ = None


@poison("returns")
async def returns(payload):
    return Garbage.__new__(type("Calm", (Garbage,), {{"__del__": lambda self: None}}))


@poison("returns.coroutine")
def returns_future(payload):
    return concurrent.futures.Future()


@poison("threads")
async def threads(payload):
    threading.Thread(target=lambda: time.sleep(0.5), daemon=True).start()


@poison("executor")
async def executor(payload):
    asyncio.get_running_loop().set_exception_handler(None)
    asyncio.get_running_loop().slow_callback_duration = 0
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    asyncio.ensure_future(asyncio.sleep(0.01))


@poison("collects")
async def collects(payload):
    gc.collect()
    sys.setswitchinterval(0.005)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
"""

FAIL = (
    "exits", "kills", "eats", "closes", "blocks", "mute", "mute.thread", "cunning", "cunning.cause", "cunning.apart",
    "odd", "odd.thread", "cyclic", "group", "deep.cause", "recursion", "cancels.itself", "stops.iteration",
)  # fmt: skip
END_WELL = ("returns", "returns.coroutine", "threads", "executor", "collects")
HEALTHY = 200


@pytest.fixture
def shop(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An app in a module that a child can import."""
    name = f"poisoned_{os.getpid()}_{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(url=store_url))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    sys.modules.pop(name)


@pytest.mark.promise("poison", "ends-named", "bounded")
@pytest.mark.req("A7", "W9")
async def test_the_healthy_are_delivered_beside_handlers_of_every_bad_kind(
    shop: ModuleType, record: Callable[..., Record]
) -> None:
    app: Redrive = shop.app
    run = record("poison", app.store.name)
    async with app:
        await app.publish_many([("lab.healthy", n) for n in range(HEALTHY // 2)])
        await app.publish_many([(f"lab.{name}", 1) for name in (*FAIL, *END_WELL)])
        await app.publish_many([("lab.healthy", n) for n in range(HEALTHY // 2, HEALTHY)])
        async with working(app, concurrency=12, children=2) as worker:
            await until(lambda: len(shop.seen) >= HEALTHY)
            await until(lambda: worker.tally.dead_lettered >= len(FAIL))
            await until(lambda: worker.tally.delivered >= HEALTHY + len(END_WELL))
            await asyncio.to_thread(time.sleep, 0)
        events = await app.events(EventFilter(limit=1_000))

    run.cases += len(FAIL) + len(END_WELL)
    by_type = {event.type.removeprefix("lab."): event for event in events if event.type != "lab.healthy"}
    assert sorted(shop.seen) == list(range(HEALTHY))
    for name in FAIL:
        event = by_type[name]
        assert (event.status, event.attempts) == (Status.FAILED, 2), name
        assert event.last_error, name
        assert event.error_class, name
        run.faults[name] += 1
    assert {by_type[name].status for name in END_WELL} == {Status.DELIVERED}


STREAM = 5_000
ONE_IN = 100  # is poison
# One that keeps the whole event loop waiting slows its worker by definition; what eats memory needs a second of a core.
BESIDE = tuple(name for name in FAIL if name not in ("blocks", "eats"))


async def pace(shop: ModuleType, *, poisoned: bool) -> float:
    """Deliver a stream of healthy events, with or without poison among them; say how many a second."""
    app: Redrive = shop.app
    shop.seen.clear()
    poison = cycle(BESIDE)
    for start in range(0, STREAM, ONE_IN):
        healthy = [("lab.waiting", n) for n in range(start, start + ONE_IN)]
        await app.publish_many([*healthy, *([(f"lab.{next(poison)}", 1)] if poisoned else [])])
    async with working(app, concurrency=16, children=2) as worker:
        await until(lambda: shop.seen)
        began = time.monotonic()
        await until(lambda: len(shop.seen) >= STREAM, 120)
        took = time.monotonic() - began
        await until(lambda: worker.tally.dead_lettered >= (STREAM // ONE_IN if poisoned else 0), 120)
    assert sorted(shop.seen) == list(range(STREAM))
    return STREAM / took


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise("poison")
async def test_the_healthy_keep_their_speed_beside_poison(shop: ModuleType, record: Callable[..., Record]) -> None:
    run = record("poison", shop.app.store.name)
    kept = []
    async with shop.app:
        for _ in range(5):
            alone = await pace(shop, poisoned=False)
            kept.append(await pace(shop, poisoned=True) / alone)
            run.cases += 2 * STREAM
            run.faults["poison in a stream"] += STREAM // ONE_IN
    run.figures["speed kept beside poison"] = round(sorted(kept)[2], 2)
