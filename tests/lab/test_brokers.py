"""Brokers: every message comes one to five times, late and in any order, while the broker and the way to it break.

Each key has one event and one effect, and what is in order at the broker stays so.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.conftest import REQUIRE_ALL, Run, fresh_database
from tests.kafka_server import KafkaServer, OwnKafka
from tests.lab import ledger
from tests.lab.brokers import CHUNK, KafkaSide, NatsSide, Side, chunks, deliveries
from tests.lab.checker import Finding, check, query
from tests.lab.crew import Crew, crew_on
from tests.lab.hand import MAX_ATTEMPTS
from tests.lab.proxy import Proxy
from tests.lab.record import Record
from tests.servers import Postgres, ServerUnavailable, running_nats

PROMISES = ("durable", "effect-once", "order", "not-stuck", "trail")
Fresh = tuple[str, Callable[[int], AbstractContextManager[str]]]

SHORT = {
    "nats-sqlite": (1_200, ("half open", "cut")),
    "nats-postgres": (1_200, ("killed", "half open")),
    "kafka-sqlite": (400, ("killed", "cut")),
    "latest-kafka-sqlite": (400, ("takers killed", "cut")),
}
LONG = (
    "killed", "killed", "cut", "half open", "parted", "silent", "swallowed", "takers killed", "takers killed",
    "taker stopped",
)  # fmt: skip
PAST_THE_LEASE = 17.0
"""An intake of NATS holds a lease of 15 seconds."""
_STUCK_SECONDS = 90.0  # an answer to a join that was lost is waited for a minute


@pytest.fixture(params=["nats-sqlite", "nats-postgres", "kafka-sqlite", "kafka-postgres"])
def pair(request: pytest.FixtureRequest) -> str:
    """Say which broker and which store it is."""
    return str(request.param)


@pytest.fixture
def fresh(pair: str, request: pytest.FixtureRequest, tmp_path: Path) -> Fresh:
    """Say which store it is, and how to have an empty one."""
    if pair.endswith("postgres"):
        server: Postgres = request.getfixturevalue("postgres_server")
        return "postgres", lambda _round: fresh_database(server)

    @contextmanager
    def file(number: int) -> Iterator[str]:
        place = tmp_path / f"round-{number}.db"
        yield f"sqlite:///{place}"
        for each in tmp_path.glob(f"{place.name}*"):
            each.unlink()

    return "sqlite", file


@pytest.fixture
def side(pair: str, request: pytest.FixtureRequest, run: Run) -> Iterator[Side]:
    """Have a broker that may be killed, and a proxy before it."""
    if pair.startswith("nats"):
        yield from _nats(run)
        return
    server: KafkaServer = request.getfixturevalue("kafka_server")
    if not isinstance(server, OwnKafka):
        pytest.skip("the Kafka of REDRIVE_TEST_KAFKA is not ours to kill")
    proxy = Proxy("127.0.0.1", server.behind_port)
    proxy.port = server.before_port
    for side in _before(proxy, lambda: KafkaSide(server, proxy)):
        side.start = "latest" if pair.startswith("latest") else "earliest"
        yield side


def _nats(run: Run) -> Iterator[Side]:
    try:
        with running_nats() as server:
            run.backends["NATS"] = server.version
            proxy = Proxy("127.0.0.1", int(server.url.rpartition(":")[2]))
            yield from _before(proxy, lambda: NatsSide(server, proxy))
    except ServerUnavailable as error:
        run.missing["NATS"] = str(error)
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
        pytest.skip(f"no NATS: {error}")


def _before(proxy: Proxy, made: Callable[[], Side]) -> Iterator[Side]:
    proxy.open()
    try:
        side = made()
        try:
            yield side
        finally:
            side.close()
    finally:
        proxy.close()


@pytest.mark.req("W12", "E3")
@pytest.mark.promise(*PROMISES)
@pytest.mark.parametrize("pair", SHORT, indirect=True)
def test_copies_that_come_late_and_in_any_order_have_one_effect_each(
    pair: str, side: Side, fresh: Fresh, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    store, database = fresh
    run, dice = record("brokers", f"{store}, {side.broker}"), random.Random(seed)
    keys, faults = SHORT[pair]
    with database(0) as url:
        Round(side, url, tmp_path / "crew", dice, run, takers=1).carry(keys, faults)
    assert run.reached["duplicates"] > 2 * keys
    assert run.reached["lost the broker"] or "kafka" in pair  # its driver connects again by itself


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise(*PROMISES)
def test_a_million_deliveries(
    side: Side, fresh: Fresh, tmp_path: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    store, database = fresh
    run, dice = record("brokers", f"{store}, {side.broker}"), random.Random(seed)
    began, rounds = time.monotonic(), 0
    while not rounds or (time.monotonic() < began + budget and not run.violations):
        rounds += 1
        faults = dice.choices(LONG, k=6)
        with database(rounds) as url:
            Round(side, url, tmp_path / f"crew-{rounds}", dice, run, takers=2).carry(10_000, faults)
        run.figures["deliveries per second"] = round(run.figures["deliveries"] / (time.monotonic() - began))
    assert run.reached["duplicates"]


class Round:
    """One database, one stream or topic; everything is sent, taken in and looked at."""

    def __init__(self, side: Side, url: str, folder: Path, dice: random.Random, run: Record, *, takers: int) -> None:
        self._side = side
        self._url = url
        self._folder = folder
        self._dice = dice
        self._run = run
        self._takers = takers
        self._name = f"lab{dice.getrandbits(40):x}"

    def carry(self, keys: int, faults: tuple[str, ...] | list[str]) -> None:
        self._side.make(self._name)
        with crew_on(self._url, self._folder) as crew:
            for _ in range(self._takers):
                crew.start(
                    "taker", broker=self._side.broker, where=self._side.where, name=self._name, batch=100,
                    start=self._side.start,
                )  # fmt: skip
            if self._side.start == "latest":  # what is sent before that is not for this group
                assert waited(lambda: self._count("{}intake_beginning") > 0, _STUCK_SECONDS), "the group did not begin"
            self._send(crew, keys, faults)
            is_over = self._finish(keys)
            crew.end("taker")
            found = self._look(crew, keys, is_over=is_over)
            said = crew.said()
        self._note(keys)
        self._side.remove()
        self._run.violations += found.violations
        assert not found.violations, f"{found}\n{said}"

    # While it goes on

    def _send(self, crew: Crew, keys: int, faults: tuple[str, ...] | list[str]) -> None:
        """Send everything; now and then something happens, when something has come in since the last time."""
        every = 4 * keys // CHUNK // (len(faults) + 1)
        left, sent, seen = list(faults), set[int](), 0
        with ThreadPoolExecutor(1) as pool:  # a server ends with the thread that started it, so it is not this one
            for number, chunk in enumerate(chunks(deliveries(keys, self._dice))):
                is_time = bool(number and number % every == 0 and left)
                if is_time:
                    seen = self._grown(seen, len(sent))
                if is_time and left[0] == "half open":  # before and not meanwhile
                    self._happen(crew, left.pop(0))
                    is_time = False
                sending = pool.submit(self._side.send, chunk)
                if is_time:
                    self._happen(crew, left.pop(0), sending)
                sending.result()
                sent.update(chunk)
        assert not left, f"all was sent before {left}"

    def _grown(self, seen: int, sent: int) -> int:
        """Wait until something new has come in, or all of it has."""

        def has_grown() -> bool:
            return self._count("{}intake_seen") > min(seen, sent - 1)

        assert waited(has_grown, _STUCK_SECONDS), f"nothing came in after {seen} of {sent}"
        return self._count("{}intake_seen")

    def _happen(self, crew: Crew, fault: str, sending: Future[None] | None = None) -> None:
        self._run.faults[fault] += 1
        side = self._side
        if fault == "takers killed":
            self._kill_all(crew, sending)
        elif fault == "taker stopped":
            victim = self._dice.choice(crew.of("taker"))
            crew.stop(victim)
            time.sleep(PAST_THE_LEASE)
            crew.go_on(victim)
        else:
            {
                "killed": side.is_killed, "cut": side.is_cut, "half open": side.is_half_open, "parted": side.is_parted,
                "silent": side.is_silent, "swallowed": side.is_swallowed,
            }[fault]()  # fmt: skip

    def _kill_all(self, crew: Crew, sending: Future[None] | None) -> None:
        """Hold them until there is much to take in, and kill them in the midst of it."""
        victims = crew.of("taker")
        for each in victims:
            crew.stop(each)
        if sending is not None:
            sending.result()
        for each in victims:
            crew.go_on(each)
        time.sleep(self._dice.uniform(0.0, 0.1))
        for each in victims:
            crew.kill(each)
        for each in victims:
            crew.start("taker", **each.options)

    # Afterwards

    def _finish(self, keys: int) -> bool:
        """Wait until all is done; say whether it is, or nothing has moved for too long."""
        before, since = (0, 0), time.monotonic()
        while (now := (self._side.left(), self._count("lab_effect"))) != (0, keys):
            if now != before:
                before, since = now, time.monotonic()
            if time.monotonic() - since > _STUCK_SECONDS:
                return False
            time.sleep(0.1)
        return True

    def _count(self, table: str) -> int:
        try:
            (row,) = query(self._url, f"select count(*) as n from {table}")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, sqlite3.OperationalError):
            return 0  # the taker has not made it yet
        return int(row["n"])

    def _look(self, crew: Crew, keys: int, *, is_over: bool) -> Finding:
        found = check(self._url, crew.ledger, max_attempts=MAX_ATTEMPTS)
        (row,) = query(self._url, "select count(distinct key) as n from lab_effect")
        counts = {
            "effects": row["n"], "events": self._count("{}outbox where type in ('lab.came', 'lab.line')"),
            "messages remembered": self._count("{}intake_seen"),
        }  # fmt: skip
        for what, number in counts.items():
            if number != keys:
                found.add("lost" if number < keys else "duplicate", f"{keys:,} keys, and {number:,} {what}")
        if not is_over:
            found.add("stuck", f"{self._side.left()} messages are left, and nothing has moved for {_STUCK_SECONDS:g} s")
        stored = duplicates = 0
        for line in ledger.lines(crew.ledger):
            if line["what"] == "order":
                found.add("out of order", f"{line['n']} of {line['key']} came after a later one")
            elif line["what"] == "ended":
                found.add("ended", f"{line['role']}: {line['error']}")
            elif line["what"] == "taken":
                stored, duplicates = stored + line["stored"], duplicates + line["duplicate"]
        if not crew.killed and stored != keys:
            found.add("duplicate", f"{keys:,} keys, and the intakes say that they stored {stored:,}")
        self._run.reached["duplicates"] += duplicates
        self._run.reached["brought again"] += max(0, stored + duplicates - self._side.held())
        self._reached(crew)
        return found

    def _reached(self, crew: Crew) -> None:
        path = crew.folder / "said"
        said = path.read_text(errors="replace") if path.exists() else ""
        self._run.reached["lost the broker"] += said.count("intake waits for its broker")
        self._run.reached["set back"] += said.count("delivered to somebody else")

    def _note(self, keys: int) -> None:
        self._run.cases += keys
        for what, number in (("keys", keys), ("deliveries", self._side.held())):
            self._run.figures[what] = self._run.figures.get(what, 0) + number


def waited(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for something; say whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
