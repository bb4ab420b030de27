"""Locks: one process at a time, and a dead one does not keep it."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from typing import Any

import psycopg
import pytest

from redrive import Redrive, ReservationLost, Taken
from tests.stores.helpers import is_postgres, start_python
from tests.waiting import until

pytestmark = pytest.mark.promise("one-winner")

HOLD = """
import asyncio, sys
from redrive import Redrive

async def main(url):
    async with Redrive(url) as app, app.locks.hold("nightly", ttl="1s", owner="child") as lock:
        print(lock.token, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.req("E4")
async def test_one_holds_it_at_a_time(app: Redrive) -> None:
    inside = most = 0

    async def work() -> int:
        nonlocal inside, most
        async with app.locks.hold("nightly", wait="30s") as lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1
            return lock.token

    tokens = await asyncio.gather(*(work() for _ in range(5)))

    assert most == 1
    assert sorted(tokens) == [1, 2, 3, 4, 5]
    assert await app.reservations.ls() == []


@pytest.mark.req("E4")
async def test_it_is_renewed_for_as_long_as_the_block_runs(app: Redrive) -> None:
    async with app.locks.hold("nightly", ttl="0.6s") as lock:
        first = lock.reservation.until

        async def renewed_past_its_first_end() -> bool:
            standing = await app.reservations.get("lock:nightly")
            assert standing is not None
            assert standing.is_held
            return standing.renewed_at > first

        await until(renewed_past_its_first_end)
        with pytest.raises(Taken):
            async with app.locks.hold("nightly"):
                pytest.fail("two hold it")

    assert not lock.lost.is_set()


@pytest.mark.req("E4")
async def test_a_lock_survives_the_crash_of_its_holder_by_running_out(app: Redrive) -> None:
    child = start_python(HOLD, app.url)
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "1\n"
    with pytest.raises(Taken, match="held by child"):
        async with app.locks.hold("nightly"):
            pytest.fail("two hold it")

    child.send_signal(signal.SIGKILL)
    await asyncio.to_thread(child.wait)

    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    async with app.locks.hold("nightly", wait="20s") as lock:
        assert lock.token == 2


async def test_try_hold_enters_with_nothing_when_somebody_has_it(app: Redrive) -> None:
    async with app.locks.try_hold("nightly") as first, app.locks.try_hold("nightly") as second:
        assert first is not None
        assert second is None
    async with app.locks.try_hold("nightly") as third:
        assert third is not None
        assert third.token == 2


@pytest.mark.req("E4")
async def test_who_loses_it_is_cancelled_and_told_why(app: Redrive) -> None:
    async def work() -> None:
        async with app.locks.hold("nightly", ttl="0.6s"):
            await app.reservations.release("lock:nightly", by="ann", reason="it hangs")
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    with pytest.raises(ReservationLost, match="was released"):
        await task
    assert task.cancelling() == 0


async def test_a_block_that_hears_of_it_too_late_is_told_at_its_end(app: Redrive) -> None:
    with pytest.raises(ReservationLost, match="was released"):
        async with app.locks.hold("nightly", ttl="1h"):
            await app.reservations.release("lock:nightly", by="ann", reason="it hangs")


@pytest.mark.req("E4")
async def test_a_database_out_of_reach_for_too_long_costs_the_lock(app: Redrive) -> None:
    other = Redrive(app.url)
    await other.open()

    async def work() -> None:
        async with other.locks.hold("nightly", ttl="0.6s") as lock:
            await other.store.close()
            await lock.lost.wait()

    with pytest.raises(ReservationLost, match="could not be renewed in time"):
        await asyncio.wait_for(work(), 30)
    await other.close()


async def test_a_cancel_from_outside_stays_a_cancel(app: Redrive) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with app.locks.hold("nightly"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await app.reservations.ls() == []  # released on the way out


async def test_the_blocks_own_error_comes_through(app: Redrive) -> None:
    with pytest.raises(ZeroDivisionError):
        async with app.locks.hold("nightly"):
            raise ZeroDivisionError
    assert await app.reservations.ls() == []


@pytest.mark.req("E4", "W8")
async def test_what_is_written_under_a_lock_that_was_lost_is_refused(app: Redrive) -> None:
    connection: Any = (
        psycopg.connect(app.url) if is_postgres(app.url) else sqlite3.connect(app.url.removeprefix("sqlite:///"))
    )
    try:
        with pytest.raises(ReservationLost):
            async with app.locks.hold("nightly", ttl="1h") as lock:
                await lock.guard(connection)
                connection.rollback()
                await app.reservations.release("lock:nightly", by="ann", reason="it hangs")
                await lock.guard(connection)
    finally:
        connection.close()
