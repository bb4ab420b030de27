import asyncio
import multiprocessing
import sys
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from multiprocessing.connection import Connection

import pytest

from redrive.clock import Clock, SystemClock, VirtualClock
from redrive.errors import BadDuration, ConfigurationError

CLOCKS = pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()], ids=["system", "virtual"])


@CLOCKS
def test_ids_are_version_7_and_carry_the_time(clock: Clock) -> None:
    before = int(clock.now().timestamp() * 1000)

    made = clock.new_id()

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert 0 <= (made.int >> 80) - before < 1_000
    assert made == uuid.UUID(str(made))
    assert made.is_safe is uuid.SafeUUID.unknown


@CLOCKS
def test_ids_increase_strictly_within_one_millisecond(clock: Clock) -> None:
    made = [clock.new_id() for _ in range(20_000)]

    assert all(a < b for a, b in pairwise(made))


def test_virtual_time_does_not_drift_from_its_own_seconds() -> None:
    """A store carries time on by the monotonic clock: a microsecond of difference is another due time."""
    clock = VirtualClock()
    began = clock.now()
    for _ in range(300):
        clock.advance(1 / 3_000_000)
        clock.advance(1 / 3)

    assert clock.now() - began == timedelta(seconds=clock.monotonic())


def test_ids_increase_when_time_steps_back() -> None:
    clock = VirtualClock()
    before = clock.new_id()

    clock.set(clock.now() - timedelta(days=1))

    assert clock.new_id() > before


def test_ids_that_run_over_borrow_the_next_millisecond() -> None:
    clock = VirtualClock()
    before = clock.new_id()
    clock._ids._last |= (1 << 62) - 1  # as after a thousand million ids in one millisecond

    borrowed, following = clock.new_id(), clock.new_id()

    assert before < borrowed < following
    assert (borrowed.version, borrowed.variant) == (7, uuid.RFC_4122)
    assert borrowed.int >> 80 == (before.int >> 80) + 1


def test_an_id_cannot_be_counted_up_from_the_one_before() -> None:
    clock = VirtualClock()
    first, second = clock.new_id(), clock.new_id()

    assert second.int - first.int > 1


def test_threads_never_get_the_same_id() -> None:
    clock = SystemClock()
    made: list[list[uuid.UUID]] = []

    def take() -> None:
        made.append([clock.new_id() for _ in range(5_000)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change at nearly every step
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert len({each for batch in made for each in batch}) == 20_000
    assert all(batch == sorted(batch) for batch in made)


def _throw(clock: SystemClock, out: Connection) -> None:
    out.send([clock.random() for _ in range(4)])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_throws_dice_of_its_own() -> None:
    clock = SystemClock()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_throw, args=(clock, there))

    child.start()
    assert here.poll(30)
    thrown = here.recv()
    child.join(30)
    here.close()
    there.close()
    child.close()

    assert thrown != [clock.random() for _ in range(4)]


def test_virtual_clocks_with_one_seed_agree_and_with_another_differ() -> None:
    one, same, other = VirtualClock(seed=7), VirtualClock(seed=7), VirtualClock(seed=8)

    thrown = [(clock.new_id(), clock.random()) for clock in (one, same, other)]

    assert thrown[0] == thrown[1] != thrown[2]


def test_virtual_time_passes_only_when_told() -> None:
    start = datetime(2031, 5, 1, tzinfo=UTC)
    clock = VirtualClock(start)

    asyncio.run(clock.sleep(3_600))
    clock.pause(3_600)
    assert (clock.now(), clock.monotonic()) == (start, 0.0)

    clock.advance("5m")
    clock.advance(0.25)
    assert clock.now() - start == timedelta(minutes=5, milliseconds=250)
    assert clock.monotonic() == pytest.approx(300.25)
    assert clock.database_now() == clock.now()


def test_setting_the_virtual_wall_clock_lets_no_time_pass() -> None:
    clock = VirtualClock()

    clock.set(datetime(2020, 1, 1, tzinfo=UTC))

    assert clock.now() == datetime(2020, 1, 1, tzinfo=UTC)
    assert clock.monotonic() == 0.0


def test_a_virtual_clock_refuses_what_is_no_time() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        VirtualClock(datetime(2030, 1, 1))  # noqa: DTZ001 - the point of the test
    with pytest.raises(BadDuration):
        VirtualClock().advance(-1)


def test_virtual_sleep_lets_other_tasks_run() -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async def main() -> None:
        task = asyncio.create_task(other())
        await VirtualClock().sleep(1_000)
        ran.append("sleeper")
        await task

    asyncio.run(main())

    assert ran == ["other", "sleeper"]


def test_the_system_clock_leaves_due_times_to_the_database() -> None:
    clock = SystemClock()
    earlier = clock.monotonic()

    clock.pause(0.01)
    asyncio.run(clock.sleep(0.01))

    assert clock.monotonic() - earlier >= 0.019
    assert clock.database_now() is None
    assert clock.now().tzinfo is UTC
    assert abs(clock.now().timestamp() - time.time()) < 5


@CLOCKS
def test_dice_fall_between_zero_and_one(clock: Clock) -> None:
    thrown = [clock.random() for _ in range(1_000)]

    assert all(0.0 <= each < 1.0 for each in thrown)
    assert len(set(thrown)) > 900
