"""Rows: whatever anybody has written into an event, it ends no worker, and everybody who looks goes on looking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive import EventFilter, Redrive, RetryPolicy, Status
from redrive.operate.auth import Role, Tokens
from redrive.operate.web import redrive_asgi

from redrive.operate.console.shell import SCREENS  # isort: skip
from tests.agents.shop import agent, ask
from tests.lab.odd_rows import odd_rows, write
from tests.lab.record import Record
from tests.operate.helpers import redrive
from tests.web.conftest import browser

HEALTHY = 20


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(store_url, migrate=True, retry=RetryPolicy(max_attempts=1)) as app:
        yield app


@pytest.mark.promise("poison", "ends-named", "one-semantics")
@pytest.mark.req("A7")
@pytest.mark.parametrize("typed", [False, True], ids=["plain with hooks", "typed without"])
async def test_a_worker_delivers_what_can_be_read_and_buries_the_rest(
    app: Redrive, store_url: str, typed: bool, record: Callable[..., Record]
) -> None:
    run = record("poison", app.dialect)
    seen: list[Any] = []
    told: list[Any] = []

    async def note(letter: Any, _tx: Any) -> None:
        told.append((letter.id, letter.payload))

    async def plain(payload: Any) -> None:
        seen.append(payload)

    async def in_type(payload: dict[str, Any] | list[Any] | int) -> None:
        seen.append(payload)

    for type_ in ("odd", "healthy"):
        app.handler(type_, brake=False, on_dead_letter=None if typed else note)(in_type if typed else plain)
    if not typed:  # with hooks and listeners a dead letter takes another way through the worker
        app.handler("redrive.event.failed")(_nothing)

    ids = write(app, store_url, "pending")
    await app.publish_many([("healthy", n) for n in range(HEALTHY)])

    await app.worker().drain()

    events = {name: await app.event(each) for name, each in ids.items()}
    left = {name: event.status for name, event in events.items() if event and event.status is Status.PENDING}
    dead = {name: event for name, event in events.items() if event and event.status is Status.FAILED}
    assert sorted(each for each in seen if type(each) is int) == list(range(HEALTHY))
    assert left == {}
    assert {event.error_class for event in dead.values()} == {"invalid"}
    assert all(
        "cannot be read" in str(event.last_error) or "payload " in str(event.last_error) for event in dead.values()
    )
    assert {"five thousand nines", "three thousand lists", "a NUL escape", "headers in a list"} <= dead.keys()
    assert len(told) == (0 if typed else len(dead))
    run.cases += len(ids)
    run.reached["buried"] += len(dead)


@pytest.mark.promise("poison", "one-semantics")
@pytest.mark.req("A7")
async def test_everybody_who_looks_sees_the_odd_rows_and_all_the_others(
    app: Redrive, store_url: str, record: Callable[..., Record]
) -> None:
    run = record("poison", app.dialect)
    app.handler("odd", effects="inside")(_nothing)
    healthy = [each.id for each in await app.publish_many([("healthy", {"n": n}) for n in range(3)])]
    ids = {
        **write(app, store_url, "failed"),
        **{f"{name}, live": each for name, each in write(app, store_url, "pending").items()},
    }

    listed = await app.events(EventFilter(limit=1_000))
    one_by_one = [await app.event(each) for each in ids.values()]
    paged = await _paged(app)

    assert {event.id for event in listed} == {*ids.values(), *healthy} == paged
    unreadable = {event.id: event.unreadable for event in listed if event.unreadable}
    assert {event.unreadable for event in one_by_one if event is not None} == {*unreadable.values(), None}
    assert unreadable[ids["five thousand nines"]] == "payload holds an integer of more than 4,300 digits"
    assert unreadable[ids["headers in a list"]] == "headers is not an object of strings"
    assert not any(event.unreadable for event in listed if event.id in healthy)

    token = (await Tokens(app).create("ann", Role.OPERATOR, by="test"))[1]
    async with browser(redrive_asgi(app), headers={"Authorization": f"Bearer {token}"}) as client:
        places = ["/api/v1/events?limit=100", "/api/v1/dead-letters?limit=100", "/api/v1/groups", "/api/v1/attention"]
        places += [f"/api/v1/events/{each}" for each in ids.values()]
        answers = {place: (await client.get(place)).status_code for place in places}
        shown = {"Accept": "text/html"}
        pages = [screen.path for screens in SCREENS.values() for screen in screens]
        pages += [f"/events/{each}" for each in ids.values()]
        answers |= {place: (await client.get(place, headers=shown)).status_code for place in pages}
    assert {place: code for place, code in answers.items() if code != 200} == {}

    async with agent(app) as client_:
        page = await ask(client_, "list_dlq_events", selection="type:odd", limit=50)
        assert len(page["events"]) > 10
        for each in ids.values():
            await client_.call_tool("get_dlq_event_detail", {"event_id": str(each)})

    for arguments in (
        ["events", "ls", "-n", "500"],
        ["dlq", "ls", "-n", "500"],
        ["dlq", "export"],
        ["groups", "ls"],
        ["attention"],
    ):
        ended = await asyncio.to_thread(redrive, *arguments, env={"REDRIVE_URL": store_url})
        assert ended.code in (0, 1), (arguments, ended.err)
        run.cases += 1
        if arguments[1:] == ["ls", "-n", "500"]:
            assert "unreadable: " in ended.out
    for each in ids.values():
        ended = await asyncio.to_thread(redrive, "events", "show", str(each), env={"REDRIVE_URL": store_url})
        assert ended.code == 0, ended.err
    run.cases += len(places) + len(pages) + 2 * len(ids)
    assert len(odd_rows(app.dialect)) * 2 == len(ids)


async def _nothing(_payload: Any) -> None: ...


async def _paged(app: Redrive) -> set[Any]:
    found: set[Any] = set()
    page = await app.page(EventFilter(limit=7))
    while True:
        found |= {event.id for event in page.events}
        if page.before is None:
            return found
        page = await app.page(EventFilter(limit=7, before=page.before))
