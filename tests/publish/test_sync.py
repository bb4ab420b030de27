"""Publishing from code without an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from redrive import ConfigurationError, PayloadRefused, Redrive, RedriveError


def close(app: Redrive) -> None:
    asyncio.run(app.close())


def listed(url: str) -> list[str]:
    async def look() -> list[str]:
        async with Redrive(url) as app:
            return sorted(event.type for event in await app.events())

    return asyncio.run(look())


def test_a_script_without_an_event_loop_can_publish(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)

    first = app.publish_sync("t", {"n": 1}, retry_key="k")
    again = app.publish_sync("t", {"n": 2}, retry_key="k")
    close(app)

    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert listed(store_url) == ["t"]


def test_many_threads_can_publish_at_once(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)
    barrier = threading.Barrier(8)

    def publish(n: int) -> bool:
        barrier.wait()
        return app.publish_sync(f"t{n}").created

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(publish, range(8)))
    close(app)

    assert answers == [True] * 8
    assert listed(store_url) == [f"t{n}" for n in range(8)]


async def test_a_thread_beside_the_event_loop_can_publish(app: Redrive, store_url: str) -> None:
    published = await asyncio.to_thread(app.publish_sync, "t")

    assert [event.id for event in await app.events()] == [published.id]


def test_what_is_refused_is_refused_here_too(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)

    with pytest.raises(PayloadRefused):
        app.publish_sync("t", "\0")
    app.publish_sync("fine")
    close(app)

    assert listed(store_url) == ["fine"]


def test_a_database_that_cannot_be_used_is_named_each_time_and_leaves_nothing_running(tmp_path: Path) -> None:
    app = Redrive(f"sqlite:///{tmp_path / 'missing' / 'redrive.db'}")
    before = threading.active_count()

    for _ in range(3):
        with pytest.raises(RedriveError, match="does not exist: create"):
            app.publish_sync("t")

    assert threading.active_count() == before
    close(app)


def test_a_database_in_memory_is_not_shared_with_a_thread(tmp_path: Path) -> None:
    app = Redrive("sqlite:///:memory:")

    with pytest.raises(ConfigurationError, match="memory"):
        app.publish_sync("t")

    close(app)


def test_an_app_can_be_used_again_after_it_was_closed(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)
    app.publish_sync("one")
    close(app)
    app.publish_sync("two")
    close(app)

    assert listed(store_url) == ["one", "two"]
