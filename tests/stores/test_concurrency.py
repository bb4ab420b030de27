"""Several claimers at once: no event is claimed twice, none is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.store.base import Finished, Row
from tests.stores.helpers import Hands, output_of, start_python, uuid_of

pytestmark = pytest.mark.promise("fence")

EVENTS = 10_000
CLAIMERS = 4


async def claim_all(url: str, barrier: asyncio.Barrier) -> list[str]:
    """Claim and deliver until nothing is left, as a worker of its own: store, session and connection."""
    taken: list[str] = []
    async with Redrive(url, clock=SystemClock()) as app:
        hands = await Hands.begin(app)
        await barrier.wait()
        finished: list[Row] = []
        while True:
            turn = await hands.claims.turn(Finished(delivered=finished), 100)
            assert list(turn.refused) == []
            finished = list(turn.claimed)
            taken += [str(uuid_of(row)) for row in finished]
            if not finished:
                break
        await hands.claims.close()
    return taken


@pytest.mark.req("B4")
async def test_four_claimers_share_ten_thousand_events_without_taking_one_twice(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        published = await app.publish_many(("t", n) for n in range(EVENTS))
        barrier = asyncio.Barrier(CLAIMERS)

        taken = await asyncio.gather(*(claim_all(store_url, barrier) for _ in range(CLAIMERS)))

        counts = await app.store.counts()
    times = Counter(each for one in taken for each in one)
    assert set(times) == {str(each.id) for each in published}
    assert set(times.values()) == {1}
    assert counts == {("t", "delivered"): EVENTS}


CLAIMER = """
import asyncio, sys
from redrive import Redrive
from redrive.store.base import Finished
from tests.stores.helpers import Hands, uuid_of

async def main():
    async with Redrive(sys.argv[1]) as app:
        hands = await Hands.begin(app)
        print("ready", flush=True)
        sys.stdin.readline()
        finished, taken = [], []
        while True:
            turn = await hands.claims.turn(Finished(delivered=finished), 50)
            assert not turn.refused
            finished = list(turn.claimed)
            taken += [str(uuid_of(row)) for row in finished]
            if not finished:
                break
        await hands.claims.close()
    print(*taken, sep="\\n")

asyncio.run(main())
"""


@pytest.mark.req("B4")
async def test_processes_share_one_database_without_taking_an_event_twice(store_url: str) -> None:
    events = 2_000
    async with Redrive(store_url, migrate=True) as app:
        processes = [start_python(CLAIMER, store_url) for _ in range(CLAIMERS)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        published = await app.publish_many(("t", n) for n in range(events))
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

        taken = [output_of(process).split() for process in processes]

    times = Counter(each for one in taken for each in one)
    assert set(times) == {str(each.id) for each in published}
    assert set(times.values()) == {1}
    assert sum(bool(one) for one in taken) > 1


async def test_sweepers_at_once_return_each_event_once(store_url: str) -> None:
    events = 1_000
    async with Redrive(store_url, migrate=True) as app:
        lost = await Hands.begin(app)
        await app.publish_many(("t", n) for n in range(events))
        await lost.claim(events)
        await lost.claims.close()
        await app.store.end_session(lost.id)
        apps = [Redrive(store_url) for _ in range(CLAIMERS)]
        sweepers = [await Hands.begin(await each.open()) for each in apps]

        async def sweep(hands: Hands) -> list[str]:
            taken: list[str] = []
            while rows := await hands.sweep(limit=50):
                taken += [str(uuid_of(row)) for row in rows]
            return taken

        taken = await asyncio.gather(*map(sweep, sweepers))
        left = [await hands.sweep() for hands in sweepers]
        claimed = await sweepers[0].claim(events)

        times = Counter(each for one in taken for each in one)
        assert (len(times), set(times.values())) == (events, {1})
        assert left == [[]] * CLAIMERS
        assert len(claimed) == events
        await sweepers[0].claims.close()
        for each in apps:
            await each.close()
        assert (await app.verify_trail()).sound


async def test_writers_of_one_chain_keep_it_whole(store_url: str) -> None:
    """Operators act at once from several places; the chain they share has neither gaps nor forks."""
    async with Redrive(store_url, migrate=True) as app:
        ids = [(await app.publish("t", n)).id for n in range(60)]
        apps = [Redrive(store_url) for _ in range(3)]
        for each in apps:
            await each.open()

        await asyncio.gather(
            *(apps[n % 3].cancel(event_id, by=f"op {n % 3}", reason="wrong") for n, event_id in enumerate(ids))
        )
        verdict = await app.verify_trail()

        assert (verdict.sound, verdict.entries) == (True, 60)
        assert verdict.heads["operator"][0] == 60
        for each in apps:
            await each.close()


async def test_readers_do_not_wait_for_a_writer(store_url: str, tmp_path: Path) -> None:
    async with Redrive(store_url, migrate=True) as app:
        await app.publish("t")
        async with app.store.transaction() as transaction, asyncio.timeout(30):
            await transaction.publish(app.new_events("t"))
            seen = [len(await app.events()), await app.store.counts(), (await app.verify_trail()).sound]

    assert seen == [1, {("t", "pending"): 1}, True]
