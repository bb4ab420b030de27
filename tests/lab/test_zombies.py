"""Zombies: a worker is stopped for longer than its lease, others take over, and it goes on as if nothing had been."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import aftermath, ledger
from tests.lab.checker import query
from tests.lab.crew import Crew, Member, crew_on
from tests.lab.record import Record
from tests.waiting import wait_until

PROMISES = ("fence", "effect-once", "not-stuck", "durable", "trail", "order")
LEASE = 1.0
STATUS = "select status, attempts from {}outbox where cast(id as text) = ?"
AT_ONCE = 4
SHORT = 24
"""Zombies on each store, six times as many as stand still together."""


@pytest.mark.req("B4")
@pytest.mark.promise(*PROMISES)
def test_a_worker_that_was_stopped_past_its_lease_settles_nothing_of_others(
    store_url: str, tmp_path: Path, seed: int, record: Callable[..., Record]
) -> None:
    run = record("zombies", "sqlite" if store_url.startswith("sqlite") else "postgres")
    stopped_again_and_again(store_url, tmp_path / "crew", random.Random(seed), run, zombies=SHORT)
    assert run.reached["swept while stopped"]


@pytest.mark.lab
@pytest.mark.timeout(0)
@pytest.mark.promise(*PROMISES)
def test_hundreds_of_zombies(
    store_url: str, tmp_path: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    run = record("zombies", "sqlite" if store_url.startswith("sqlite") else "postgres")
    stopped_again_and_again(store_url, tmp_path / "crew", random.Random(seed), run, zombies=5_000, budget=budget)
    assert run.reached["swept while stopped"]


def stopped_again_and_again(
    url: str, folder: Path, dice: random.Random, run: Record, *, zombies: int, budget: float = 60.0
) -> None:
    """Stop some workers past their lease, at any moment, and every third time one of them inside a transaction."""
    end, rounds = time.monotonic() + budget, -(-zombies // AT_ONCE)
    with crew_on(url, folder) as crew:
        for _ in range(AT_ONCE + 2):
            crew.start("worker")
        for _ in range(3):
            crew.start("producer", inside=0.05, slow=0.2, pause=0.02)
        tail = aftermath.Tail(crew.ledger)
        for number in range(3 * rounds):
            # On SQLite nobody is swept while somebody stands there with the file in his hands: then once more.
            if number >= rounds and run.reached["swept while stopped"]:
                break
            if number >= 3 and time.monotonic() > end:
                break
            chosen = dice.sample(crew.of("worker"), AT_ONCE)
            tail.skip()
            for each in chosen:
                tail.wait_for("attempt", 20, pid=each.pid)  # it shall have done something since the last time
            if number % 3 == 2:
                tail.wait_for("inside", 20, pid=chosen[0].pid)
                crew.stop(chosen[0])
                run.faults["in a transaction"] += 1
            run.faults["anywhere"] += AT_ONCE - (number % 3 == 2)
            run.cases += AT_ONCE
            stopped(crew, chosen, dice, run)
        aftermath.drain(crew)
        found = aftermath.look(crew, is_bounded=False)
        run.violations += found.violations
        aftermath.note_reached(run, crew)
        note_takeovers(run, crew)
        assert not found.violations, f"{found}\n{crew.said()}"


def stopped(crew: Crew, zombies: list[Member], dice: random.Random, run: Record) -> None:
    """Stop them one after the other, let their leases run out, and let them go on."""
    before = [_swept(crew, each) for each in zombies]
    for each in zombies:
        crew.stop(each)
        time.sleep(dice.uniform(0.0, 0.05))
    time.sleep(dice.uniform(1.6, 2.6) * LEASE)
    try:
        run.reached["swept while stopped"] += sum(
            _swept(crew, each) > swept for each, swept in zip(zombies, before, strict=True)
        )
    finally:
        for each in dice.sample(zombies, len(zombies)):
            crew.go_on(each)


def _swept(crew: Crew, zombie: Member) -> int:
    (row,) = query(
        crew.url, "select count(*) as n from {}session where pid = ? and ended_at is not null", (zombie.pid,)
    )
    return int(row["n"])


def note_takeovers(run: Record, crew: Crew) -> None:
    """Attempts by fence: an event that two processes had in their hands was claimed anew in between."""
    attempts: dict[str, dict[int, int]] = defaultdict(dict)
    for line in ledger.lines(crew.ledger):
        if line["what"] == "attempt" and line["answer"] == "invoke":
            same = attempts[line["id"]].setdefault(line["fence"], line["pid"])
            assert same == line["pid"], f"two processes ran {line['id']} under fence {line['fence']}"
    run.reached["taken over"] += sum(len(set(each.values())) > 1 for each in attempts.values())


@pytest.mark.promise("fence", "effect-once")
def test_what_others_see_while_a_worker_is_stopped_inside_a_transaction(
    store_url: str, tmp_path: Path, record: Callable[..., Record]
) -> None:
    """On PostgreSQL another delivers its event and spends no attempt, on SQLite all wait; the effect is there once."""
    run = record("zombies", "sqlite" if store_url.startswith("sqlite") else "postgres")
    with crew_on(store_url, tmp_path / "crew") as crew:
        first = crew.start("worker")
        wait_until(crew.ledger.exists)
        tail = aftermath.Tail(crew.ledger)
        crew.start("producer", inside=0.3, most=40)
        inside = tail.wait_for("inside", 20)
        assert inside["pid"] == first.pid
        crew.stop(first)
        crew.start("worker", call_seconds=None if store_url.startswith("sqlite") else 1.0)
        began = time.monotonic()
        if store_url.startswith("sqlite"):
            with pytest.raises(AssertionError):
                tail.first_attempt(began, LEASE + 1.5)
            run.reached["everybody waited"] += 1
        else:
            tail.first_attempt(began, 10)
            wait_until(lambda: _swept(crew, first))
            # Its transaction holds the key of the event, until somebody ends it for want of a lease.
            wait_until(lambda: query(store_url, STATUS, (inside["id"],))[0]["status"] == "delivered")
            run.reached["another delivered its event"] += 1
        crew.go_on(first)
        aftermath.drain(crew)
        found = aftermath.look(crew, is_bounded=False)
        run.cases, run.violations = 1, found.violations
        (row,) = query(store_url, STATUS, (inside["id"],))
        assert row["status"] == "delivered"
        stumbled = sum(
            line["what"] == "attempt" and line["id"] == inside["id"] and line.get("error") == "PrerequisiteMissing"
            for line in ledger.lines(crew.ledger)
        )
        assert row["attempts"] <= 1 + stumbled, "the wait for somebody who stands still has spent an attempt"
        assert not found.violations, f"{found}\n{crew.said()}"
