"""`redrive keys`, and what the doctor says of keys and generations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, Rejected, Status
from redrive.store.base import EventFilter
from tests.operate.helpers import redrive


async def held(url: str, *types: str) -> Redrive:
    """Let the first of three events of a key fail, for each type."""
    app = Redrive(url, migrate=True)
    for type_ in types:

        @app.handler(type_)
        async def handle(payload: int) -> None:
            if payload == 0:
                raise Rejected("no such account")

    async with app:
        for type_ in types:
            await app.publish_many([(type_, n, {"ordering_key": "order-7"}) for n in range(3)])
        await app.worker().drain()
    return app


async def statuses(app: Redrive) -> list[str]:
    async with app:
        return sorted(each.status for each in await app.events(EventFilter(discarded=None)))


@pytest.mark.req("B6", "W10")
def test_a_key_that_is_held_up_is_listed_shown_and_released(store_url: str) -> None:
    app = asyncio.run(held(store_url, "t"))

    (listed,) = redrive("keys", "ls", "-o", "json", "-u", store_url).json
    table = redrive("keys", "ls", "-u", store_url)
    line = redrive("keys", "show", "order-7", "-o", "json", "-u", store_url).json
    shown = redrive("keys", "show", "order-7", "--target", "t", "-u", store_url)
    assert (listed["ordering_key"], listed["target"], listed["waiting"]) == ("order-7", "t", 2)
    assert "order-7" in table.out
    assert [(each["id"] == listed["head"], each["status"]) for each in line] == [
        (True, "failed"), (False, "blocked"), (False, "blocked"),
    ]  # fmt: skip
    assert shown.out.count("blocked") == 2

    released = redrive(
        "keys", "release", "order-7", "--reason", "the account is closed", "--by", "ann", "-u", store_url
    )
    assert (released.code, listed["head"] in released.err + released.out) == (0, True)
    assert redrive("keys", "ls", "-o", "json", "-u", store_url).json == []

    async def finish() -> list[Any]:
        async with app:
            await app.worker().drain()
            (dead,) = await app.events(EventFilter(status=Status.FAILED))
            return [(entry.kind, entry.actor, entry.facts.get("reason")) for entry in await app.trail(dead.id)][-1:]

    assert asyncio.run(finish()) == [("key-released", "ann", "the account is closed")]
    assert asyncio.run(statuses(app)) == ["delivered", "delivered", "failed"]


@pytest.mark.req("B6", "W4")
def test_what_an_event_of_a_key_waits_for_is_shown(store_url: str) -> None:
    async def paused() -> list[str]:
        app = Redrive(store_url, migrate=True)
        app.handler("t")(_nothing)
        async with app:
            await app.hold("t", by="ann", reason="audit")
            ids = [str((await app.publish("t", n, ordering_key="order-7")).id) for n in range(2)]
            await app.worker().drain()
        return ids

    head, behind = asyncio.run(paused())

    line = redrive("keys", "show", "order-7", "--target", "t", "-u", store_url).out
    events = redrive("events", "ls", "-u", store_url, env={"COLUMNS": "120"}).out  # two of one millisecond: long ids
    assert "blocked on hold:t" in line
    assert "waits for hold:t" in events
    assert "in line of order-7" in events
    assert "earlier event" not in redrive("events", "timeline", head, "-u", store_url).out
    assert "earlier event" in redrive("events", "timeline", behind, "-u", store_url).out


async def _nothing(payload: int) -> None: ...


@pytest.mark.req("B6")
def test_a_skipped_head_is_discarded_and_the_next_goes(store_url: str) -> None:
    app = asyncio.run(held(store_url, "t"))

    skipped = redrive("keys", "skip", "order-7", "--reason", "duplicate", "-u", store_url)

    assert skipped.code == 0

    async def finish() -> bool:
        async with app:
            await app.worker().drain()
            (dead,) = await app.events(EventFilter(status=Status.FAILED, discarded=True))
            return dead.deleted_at is not None

    assert asyncio.run(finish())
    assert asyncio.run(statuses(app)) == ["delivered", "delivered", "failed"]


@pytest.mark.req("B6")
def test_a_key_of_several_targets_needs_the_target(store_url: str) -> None:
    asyncio.run(held(store_url, "t", "u"))

    refused = redrive("keys", "release", "order-7", "--reason", "x", "-u", store_url)
    done = redrive("keys", "release", "order-7", "--target", "u", "--reason", "x", "-u", store_url)

    assert (refused.code, "several targets (t, u)" in refused.err) == (4, True)
    assert done.code == 0
    assert [each["target"] for each in redrive("keys", "ls", "-o", "json", "-u", store_url).json] == ["t"]


def test_what_cannot_be_done_is_said(sqlite_url: str) -> None:
    asyncio.run(held(sqlite_url, "t"))

    unknown = redrive("keys", "skip", "order-8", "--reason", "x", "-u", sqlite_url)
    no_reason = redrive("keys", "release", "order-7", "-u", sqlite_url)
    no_line = redrive("keys", "show", "order-8", "--target", "t", "-u", sqlite_url)
    whose = redrive("keys", "show", "order-8", "-u", sqlite_url)

    assert (unknown.code, "redrive keys ls" in unknown.err) == (4, True)
    assert no_reason.code == 2
    assert no_line.code == 3
    assert (whose.code, "--target" in whose.err) == (2, True)


@pytest.mark.req("O10", "W10", "B6")
def test_the_doctor_names_generations_nobody_serves_and_keys_that_are_held_up(store_url: str) -> None:
    app = asyncio.run(held(store_url, "t"))

    async def strand() -> None:
        async with app:
            await app.publish("t", 1, generation=3)
            await app.publish("t", 1, generation=3, priority=2)

    asyncio.run(strand())
    checks = {each["name"]: each for each in redrive("doctor", "-o", "json", "-u", store_url).json}

    assert checks["generations"]["health"] == "problem"
    assert "--generation 3" in checks["generations"]["what_to_do"]
    assert "order-7 of t" in checks["ordering keys"]["what"]


APP = """
from redrive import Redrive
app = Redrive({url!r}, migrate=True)

@app.handler("t")
async def handle(payload):
    pass
"""


@pytest.mark.req("O10")
def test_a_worker_can_be_told_which_generation_to_serve(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"served_{store_url[:8].strip(':/')}"  # a module of this name is imported once
    (tmp_path / f"{module}.py").write_text(APP.format(url=store_url))
    monkeypatch.syspath_prepend(str(tmp_path))
    app = Redrive(store_url, migrate=True)

    async def publish() -> None:
        async with app:
            for generation in (0, 3, 4):
                await app.publish("t", generation, generation=generation)

    asyncio.run(publish())
    result = redrive("worker", f"{module}:app", "--generation", "3", "--drain")

    async def pending() -> list[int]:
        async with app:
            return [each.generation for each in await app.events(EventFilter(status=Status.PENDING))]

    assert result.code == 0
    assert asyncio.run(pending()) == [4]
