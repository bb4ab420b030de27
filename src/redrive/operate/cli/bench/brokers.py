"""Relay and intake beside the bare client of the broker: the same messages, in the same run.

The bare publisher keeps as many messages under way as the relay has slots; its messages are written before the clock
starts, while the relay writes its own. The bare consumer fetches in batches, commits each to redrive's own table with
the raw statement, then acknowledges. A rig is what a broker has to bring along.
"""

import asyncio
import os
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from redrive.app import Redrive
from redrive.clock import SystemClock
from redrive.errors import ConfigurationError
from redrive.operate.cli.bench import raw
from redrive.operate.cli.bench.drain import worker_rate
from redrive.operate.cli.bench.kafka_rig import kafka_rig
from redrive.operate.cli.bench.measure import BenchFailed, Report, Setup
from redrive.operate.cli.bench.place import TYPE, Place, filler, path_of
from redrive.transport.base import Destination, Inlet, Message, Mode
from redrive.transport.envelope import CloudEvent, write

_SLOTS: Final = 300
_BATCH: Final = 500
_PAUSE: Final = 0.02
_MOST_WAITED: Final = 300.0

Commit = Callable[[list[bytes]], Awaitable[None]]


class Rig(Protocol):
    """One broker, with us and without us."""

    name: str

    def out(self, name: str) -> Destination: ...
    def inlet(self, name: str) -> Inlet: ...
    async def bare_publish(self, name: str, messages: list[Message], under_way: int) -> float:
        """Return the seconds it took to send them and hear of each."""

    async def bare_take(self, name: str, number: int, commit: Commit, batch: int) -> None: ...


@dataclass(slots=True)
class NatsRig:
    """NATS JetStream, with nats-py."""

    url: str
    name: str = "nats"
    _broker: Any = field(default=None)

    def __post_init__(self) -> None:
        from redrive.transport.nats import Nats  # noqa: PLC0415 - an optional driver

        self._broker = Nats(self.url)

    def out(self, name: str) -> Destination:
        return self._broker.subject(f"{name}.out", declare=name)  # type: ignore[no-any-return]

    def inlet(self, name: str) -> Inlet:
        return self._broker.stream(name, durable="bench", subject=f"{name}.out", declare=True)  # type: ignore[no-any-return]

    async def bare_publish(self, name: str, messages: list[Message], under_way: int) -> float:
        import nats  # noqa: PLC0415 - as above

        client = await nats.connect(self.url)
        try:
            await client.jsm().add_stream(name=name, subjects=[f"{name}.out"])
            stream = client.jetstream(publish_async_max_pending=under_way)
            written = [
                (each.body or b"", {key: value.decode() for key, value in each.headers} | {"Nats-Msg-Id": each.id})
                for each in messages
            ]
            subject, answers = f"{name}.out", []
            began = time.perf_counter()
            for body, headers in written:
                answers.append(await stream.publish_async(subject, body, headers=headers))
            await asyncio.gather(*answers)
            return time.perf_counter() - began
        finally:
            await client.close()

    async def bare_take(self, name: str, number: int, commit: Commit, batch: int) -> None:
        import nats  # noqa: PLC0415 - as above

        client = await nats.connect(self.url)
        try:
            pull = await client.jetstream().pull_subscribe(f"{name}.out", "bare")
            taken = 0
            while taken < number:
                messages = await pull.fetch(batch)
                await commit([message.data for message in messages])
                for message in messages:
                    await message.ack()
                taken += len(messages)
        finally:
            await client.close()


@contextmanager
def rig(broker: str) -> Iterator[Rig]:
    """Find the broker."""
    if broker not in _RIGS:
        raise ConfigurationError(f"there is no broker {broker!r}: use --broker nats or --broker kafka")
    with _RIGS[broker]() as found:
        yield found


@contextmanager
def nats_rig() -> Iterator[NatsRig]:
    """Find the server: the one that REDRIVE_TEST_NATS points at."""
    if not (url := os.environ.get("REDRIVE_TEST_NATS")):
        raise ConfigurationError(
            "say which NATS to use: REDRIVE_TEST_NATS=nats://host:4222. In a source checkout `make bench` starts a "
            "private one"
        )
    yield NatsRig(url)


_RIGS: Final[dict[str, Callable[[], AbstractContextManager[Rig]]]] = {"nats": nats_rig, "kafka": kafka_rig}


async def relay(setup: Setup, place: Place) -> Report:
    """Events to a broker, each acknowledged, beside a bare pipelined publisher; and how long one takes."""
    events = setup.events or 20_000
    report = Report("relay", place.store, {"events": events, "repeat": setup.repeat, "slots": _SLOTS})
    report.settings["broker"] = setup.broker
    found: dict[str, list[float]] = {"rate": [], "bare_rate": [], "drain_rate": [], "p50_ms": [], "p99_ms": []}
    with rig(setup.broker) as broker:
        for turn in range(setup.repeat):
            say = setup.saying("relay", turn)
            say("bare publisher")
            found["bare_rate"].append(events / await broker.bare_publish(f"BARE{turn}", _messages(events), _SLOTS))
            say("drain")
            found["drain_rate"].append(await worker_rate(place, events))
            async with place.fresh() as url, Redrive(url, source="bench", migrate=True) as app:
                app.relay(TYPE, to=broker.out(f"OUT{turn}"))
                say("redrive")
                found["rate"].append(await _relay_rate(app, events))
                say("one at a time")
                waits = await _latencies(app, max(3, min(200, events // 100)))
            found["p50_ms"].append(statistics.median(waits))
            found["p99_ms"].append(sorted(waits)[int(len(waits) * 0.99)])
    for name, values in found.items():
        report.put(name, values)
    report.ratio("ratio_to_bare", "rate", "bare_rate")
    report.goal("ratio_to_bare", 0.5)
    report.ratio("ratio_to_drain", "rate", "drain_rate")
    report.goal("ratio_to_drain", 0.5)
    report.goal("p50_ms", 25.0, at_most=True)
    return report


def _messages(number: int) -> list[Message]:
    """Write the messages that a relay would send."""
    text, clock = filler(100), SystemClock()
    made = []
    for n in range(number):
        event_id = str(clock.new_id())
        said = {"correlationid": event_id, "idempotencykey": event_id}
        event = CloudEvent(event_id, TYPE, "bench", time="2030-01-01T00:00:00+00:00", extensions=said)
        made.append(write(event, f'{{"n":{n},"text":"{text}"}}', "bare", Mode.STRUCTURED, "ce-", event_id))
    return made


async def _fill(app: Redrive, events: int) -> None:
    text = filler(100)
    for first in range(0, events, 1_000):
        numbers = range(first, min(first + 1_000, events))
        await app.publish_many([(TYPE, {"n": n, "text": text}) for n in numbers])


async def _relay_rate(app: Redrive, events: int) -> float:
    await _fill(app, events)
    began = time.perf_counter()
    tally = await app.worker(concurrency=_SLOTS).drain()
    seconds = time.perf_counter() - began
    if tally.delivered != events:
        raise BenchFailed(f"of {events} events {tally.delivered} were acknowledged")
    return events / seconds


async def _latencies(app: Redrive, number: int) -> list[float]:
    """Measure from the commit of the publish to the broker's acknowledgement, in milliseconds."""
    (route,) = app.traffic.relays.values()
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    waits = []
    try:
        for n in range(number + 1):
            sent = route.link.moved
            await app.publish(TYPE, {"n": n})
            began = time.perf_counter()
            while route.link.moved == sent:
                await asyncio.sleep(0.0002)
                if time.perf_counter() - began > _MOST_WAITED:
                    raise BenchFailed("an event was not sent")
            waits.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(_PAUSE)
    finally:
        worker.stop()
        await running
    return waits[1:]  # the first one connects


async def intake(setup: Setup, place: Place) -> Report:
    """Messages from a broker, stored before acknowledged, beside a bare consumer that commits to the same store."""
    events = setup.events or 20_000
    settings = {"events": events, "repeat": setup.repeat, "batch": _BATCH, "broker": setup.broker}
    report = Report("intake", place.store, settings)
    found: dict[str, list[float]] = {"rate": [], "bare_rate": []}
    with rig(setup.broker) as broker:
        for turn in range(setup.repeat):
            say, name = setup.saying("intake", turn), f"IN{turn}"
            await broker.bare_publish(name, _messages(events), _SLOTS)
            say("bare consumer")
            async with place.fresh() as url:
                found["bare_rate"].append(events / await _timed(_bare_take(broker, name, events, url)))
            say("redrive")
            async with place.fresh() as url, Redrive(url, migrate=True) as app:
                app.intake(broker.inlet(name), batch=_BATCH)
                found["rate"].append(events / await _timed(_take(app, events)))
    for key, values in found.items():
        report.put(key, values)
    report.ratio("ratio_to_bare", "rate", "bare_rate")
    report.goal("ratio_to_bare", 0.5)
    return report


async def _timed(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _take(app: Redrive, events: int) -> None:
    (taking,) = app.traffic.intakes.values()
    while taking.link.moved < events:
        if not (await taking.act("bench")).moved and taking.link.error:
            raise BenchFailed(taking.link.error)
    await taking.close()
    await taking.inlet.broker.close()
    (row,) = await app.store.ask("intake_backlog", limit=events + 1)
    if row["n"] != events:
        raise BenchFailed(f"of {events} messages the table has {row['n']}")


async def _bare_take(broker: Rig, name: str, events: int, url: str) -> None:
    await (_take_sqlite if url.startswith("sqlite") else _take_postgres)(broker, name, events, url)


async def _take_sqlite(broker: Rig, name: str, events: int, url: str) -> None:
    clock = SystemClock()
    connection = sqlite3.connect(path_of(url), isolation_level=None)
    connection.execute("pragma synchronous=full")

    async def commit(bodies: list[bytes]) -> None:
        now = time.time_ns() // 1_000
        ids = [str(clock.new_id()) for _ in bodies]
        rows = [(id_, TYPE, TYPE, id_, body.decode(), now, now) for id_, body in zip(ids, bodies, strict=True)]
        connection.execute("begin immediate")
        connection.executemany(raw._SQLITE_INSERT, rows)  # noqa: SLF001 - the raw statement of this package
        connection.execute("commit")

    await broker.bare_take(name, events, commit, _BATCH)
    connection.close()


async def _take_postgres(broker: Rig, name: str, events: int, url: str) -> None:
    import asyncpg  # noqa: PLC0415 - an optional driver

    clock = SystemClock()
    connection = await asyncpg.connect(url)
    statement = await connection.prepare(raw._POSTGRES_BULK)  # noqa: SLF001 - the raw statement of this package

    async def commit(bodies: list[bytes]) -> None:
        await statement.fetch([clock.new_id() for _ in bodies], TYPE, [body.decode() for body in bodies])

    await broker.bare_take(name, events, commit, _BATCH)
    await connection.close()
