"""Publishing from code without an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE

import pytest

from redrive import ConfigurationError, PayloadRefused, Redrive, RedriveError
from tests import warm


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


def run(script: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a script that forks; return how it ended, and what it wrote."""
    with warm.python([str(script), *arguments], stdout=PIPE, stderr=PIPE, text=True) as process:
        said, errors = process.communicate(timeout=120)
    return process.returncode, said, errors


FORKS = """
import os, signal, sys, threading
from redrive import Redrive

app = Redrive(sys.argv[1], migrate=True)
app.publish_sync("parent")
others = [threading.Thread(target=lambda: [app.publish_sync("beside") for _ in range(10)]) for _ in range(2)]
for each in others:
    each.start()
children = []
for n in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(40)  # a child that hangs ends, and fails
        app.publish_sync("child")
        app.publish_sync("child")
        sys.exit(0)  # as a server ends: everything that was inherited is torn down
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0, "a child failed"
for each in others:
    each.join()
app.publish_sync("parent")
"""


@pytest.mark.req("O9")
def test_a_forked_child_publishes_with_connections_of_its_own(store_url: str, tmp_path: Path) -> None:
    """As gunicorn --preload does: the app is made, and used, before the workers are forked."""
    script = tmp_path / "forks.py"
    script.write_text(FORKS, encoding="utf-8")

    code, _, errors = run(script, store_url)

    assert code == 0, errors
    assert "ignored" not in errors
    assert listed(store_url) == ["beside"] * 20 + ["child"] * 6 + ["parent"] * 2


OPEN = """
import asyncio, os, signal, sys
from redrive import ConfigurationError, Redrive

app = Redrive(sys.argv[1], migrate=True)

async def in_child():
    async with app:
        await app.publish("child")

def child():
    signal.alarm(40)
    try:
        app.publish_sync("child")
        asyncio.run(in_child())
    except ConfigurationError as error:
        print(error, flush=True)
        return 3
    return 0

async def parent():
    await app.open()
    await asyncio.gather(*[app.publish("parent") for _ in range(3)])
    forked = os.fork()
    if forked == 0:  # as multiprocessing does: it never comes back to the event loop of its parent
        os._exit(child())
    for _ in range(3):
        await app.publish("parent")
    ended = (await asyncio.to_thread(os.waitpid, forked, 0))[1]
    await app.publish("parent")
    await app.close()
    return os.waitstatus_to_exitcode(ended)

sys.exit(asyncio.run(parent()))
"""


@pytest.mark.req("O9")
def test_a_child_of_an_app_that_is_open_has_its_own_connections_or_is_told(store_url: str, tmp_path: Path) -> None:
    script = tmp_path / "open.py"
    script.write_text(OPEN, encoding="utf-8")

    code, said, errors = run(script, store_url)

    if store_url.startswith("sqlite"):  # it would take the locks of its parent for its own
        assert code == 3, errors
        assert "close the app before the fork" in said
        assert listed(store_url) == ["parent"] * 7
    else:
        assert code == 0, errors
        assert listed(store_url) == ["child"] * 2 + ["parent"] * 7
