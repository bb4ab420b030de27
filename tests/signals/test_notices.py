"""People are told once of each matter, by a real HTTP service, and nobody's work depends on it."""

from __future__ import annotations

import asyncio
import json

import pytest

from redrive import DependencyUnavailable, EventFilter, Redrive, Release, Status, TerminalHandlerError
from redrive.errors import ConfigurationError
from redrive.group import describe
from redrive.notice import NOTICE
from tests.signals.conftest import Inbox
from tests.waiting import until
from tests.worker.conftest import FAST, working


def titles(inbox: Inbox) -> list[str]:
    return [json.loads(body)["title"].removeprefix("Redrive: ") for _, _, body in inbox.requests]


@pytest.fixture
def telling(app: Redrive, inbox: Inbox) -> Redrive:
    app.notices(f"json://127.0.0.1:{inbox.port}/hook")
    return app


def failing(app: Redrive, *types: str) -> set[str]:
    """Register handlers that fail until their type is mended."""
    mended: set[str] = set()

    def register(type_: str) -> None:
        @app.handler(type_)
        async def ship(order: int) -> None:
            if type_ not in mended:
                raise TerminalHandlerError(f"{type_} cannot be done")

    for type_ in types:
        register(type_)
    return mended


@pytest.mark.req("O7")
async def test_a_new_failure_is_told_once_however_many_events_it_hits(telling: Redrive, inbox: Inbox) -> None:
    failing(telling, "order.paid")
    for order in range(20):
        await telling.publish("order.paid", order)

    await telling.worker().drain()
    await telling.publish("order.paid", 21)
    await telling.worker().drain()

    assert titles(inbox) == ["A new failure in order.paid"]
    body = json.loads(inbox.requests[0][2])
    assert "order.paid cannot be done" in body["message"]
    assert "redrive groups show" in body["message"]


async def test_workers_that_look_at_the_same_time_tell_once(store_url: str, inbox: Inbox) -> None:
    apps = []
    for _ in range(4):
        app = Redrive(store_url, retry=FAST, migrate=True)
        app.notices(f"json://127.0.0.1:{inbox.port}/hook")
        failing(app, "order.paid")
        apps.append(await app.open())
    await apps[0].publish("order.paid", 1)

    await apps[0].worker(queues=["default"]).drain()
    await asyncio.gather(*(app._notices._look("somebody") for app in apps for _ in range(3)))
    await apps[0].worker().drain()
    notices = [event for event in await apps[0].events() if event.type == NOTICE]
    for app in apps:
        await app.close()

    assert len(notices) == 1
    assert titles(inbox) == ["A new failure in order.paid"]


async def test_a_notice_tells_no_secret_of_the_event_that_failed(telling: Redrive, inbox: Inbox) -> None:
    @telling.handler("order.paid")
    async def charge(order: dict[str, str]) -> None:
        raise TerminalHandlerError(f"the bank refuses {order['card']}")

    await telling.publish("order.paid", {"card": "4111 1111 1111"})
    await telling.worker().drain()

    (notice,) = [json.loads(body)["message"] for _, _, body in inbox.requests]
    assert "the bank refuses •••" in notice
    assert "4111" not in notice


async def test_a_failure_that_comes_back_is_told_again(telling: Redrive, inbox: Inbox) -> None:
    mended = failing(telling, "order.paid")
    await telling.publish("order.paid", 1)
    await telling.worker().drain()
    mended.add("order.paid")
    plan = await telling.plan("type:order.paid", by="ada")
    await telling.start(plan.redrive.token, by="ada", reason="mended")
    await telling.worker().drain()
    mended.clear()
    await telling.publish("order.paid", 2)
    await telling.worker().drain()

    assert titles(inbox) == ["A new failure in order.paid", "A failure that was resolved is back in order.paid"]


async def test_a_muted_group_stays_quiet(telling: Redrive, inbox: Inbox) -> None:
    mended = failing(telling, "order.paid")
    await telling.publish("order.paid", 1)
    await telling.worker().drain()
    (group,) = await telling.groups()
    mended.add("order.paid")
    plan = await telling.plan("type:order.paid", by="ada")
    await telling.start(plan.redrive.token, by="ada", reason="mended")
    await telling.worker().drain()
    until_later = telling.clock.now().replace(year=telling.clock.now().year + 1)
    await describe(telling.store, group.fingerprint, by="ada", muted_until=until_later)
    mended.clear()
    await telling.publish("order.paid", 2)
    await telling.worker().drain()

    assert (await telling.group(group.fingerprint)).state == "regressed"
    assert titles(inbox) == ["A new failure in order.paid"]


async def test_a_redrive_that_halts_is_told(telling: Redrive, inbox: Inbox) -> None:
    failing(telling, "order.paid")
    for order in range(3):
        await telling.publish("order.paid", order)
    await telling.worker().drain()
    plan = await telling.plan("type:order.paid", by="ada")
    await telling.start(plan.redrive.token, by="ada", reason="try one", release=Release(ramp=(1,)))
    await telling.worker().drain()

    assert titles(inbox) == ["A new failure in order.paid", "A redrive has halted"]
    assert "2 were not touched" in json.loads(inbox.requests[1][2])["message"]


async def test_a_dependency_is_told_when_it_goes_and_when_it_is_back(telling: Redrive, inbox: Inbox) -> None:
    down = True

    @telling.handler("order.paid", needs=["carrier"])
    async def ship(order: int) -> None:
        if down:
            raise DependencyUnavailable("carrier")

    telling.dependency("carrier", threshold=2, probe_after=0.05, probe_cap=0.1)
    for order in range(5):
        await telling.publish("order.paid", order)
    async with working(telling, poll=0.05):
        await until(lambda: "carrier is down" in titles(inbox))
        down = False
        await until(lambda: "carrier works again" in titles(inbox))

    assert titles(inbox) == ["carrier is down", "carrier works again"]


async def test_many_matters_at_once_are_one_notice(telling: Redrive, inbox: Inbox) -> None:
    types = [f"order.{number}" for number in range(30)]
    failing(telling, *types)
    for type_ in types:
        await telling.publish(type_, 1)

    await telling.worker().drain()

    assert titles(inbox) == ["30 matters need attention"]
    assert "and 10 more" in json.loads(inbox.requests[0][2])["message"]


async def test_there_are_so_many_notices_an_hour(app: Redrive, inbox: Inbox) -> None:
    app.notices(f"json://127.0.0.1:{inbox.port}/hook", most_an_hour=2)
    failing(app, "a", "b", "c", "d")
    for type_ in "abcd":
        await app.publish(type_, 1)
        await app.worker().drain()

    assert titles(inbox) == ["A new failure in a", "A new failure in b"]


async def test_a_notice_that_cannot_be_sent_is_retried_and_breaks_nothing(telling: Redrive, inbox: Inbox) -> None:
    failing(telling, "order.paid")

    @telling.handler("order.shipped")
    async def end(order: int) -> None: ...

    await telling.set_policy(f"{NOTICE}*", by="ada", reason="a test cannot wait", base_delay="10ms", max_delay="20ms")
    inbox.status = 500
    await telling.publish("order.paid", 1)
    async with working(telling, poll=0.05):
        await until(lambda: len(inbox.requests) >= 2)
        published = await telling.publish("order.shipped", 1)
        delivered = EventFilter(status=Status.DELIVERED, type="order.shipped")
        await until(lambda: _any(telling, delivered))
        inbox.status = 200
        await until(lambda: _any(telling, EventFilter(status=Status.DELIVERED, type=NOTICE)))

    assert published.created
    assert set(titles(inbox)) == {"A new failure in order.paid"}


async def _any(app: Redrive, wanted: EventFilter) -> bool:
    return bool(await app.events(wanted))


async def test_a_notice_that_became_a_dead_letter_is_no_new_matter(telling: Redrive, inbox: Inbox) -> None:
    failing(telling, "order.paid")
    await telling.set_policy(f"{NOTICE}*", by="ada", reason="a test cannot wait", max_attempts=1)
    inbox.status = 500
    await telling.publish("order.paid", 1)
    await telling.worker().drain()
    await telling.worker().drain()

    dead = await telling.events(EventFilter(status=Status.FAILED))
    assert sorted(event.type for event in dead) == ["order.paid", NOTICE]
    assert len(inbox.requests) == 1
    assert str(inbox.port) not in str([event.to_json() for event in dead])  # an address may hold a secret


async def test_only_what_was_asked_for_is_told(app: Redrive, inbox: Inbox) -> None:
    app.notices(f"json://127.0.0.1:{inbox.port}/hook", on=("redrive-halted",))
    failing(app, "order.paid")
    await app.publish("order.paid", 1)
    await app.worker().drain()

    assert inbox.requests == []


async def test_each_address_has_retries_of_its_own(app: Redrive, inbox: Inbox) -> None:
    app.notices(f"json://127.0.0.1:{inbox.port}/hook", "json://127.0.0.1:9/nobody")
    failing(app, "order.paid")
    await app.publish("order.paid", 1)
    await app.worker().drain()

    ended = {event.target: event.status for event in await app.events(EventFilter(type=NOTICE))}
    assert ended == {f"{NOTICE}:1": Status.DELIVERED, f"{NOTICE}:2": Status.PENDING}
    assert len(inbox.requests) == 1


async def test_addresses_may_come_from_the_environment(
    app: Redrive, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_NOTICES", f"json://127.0.0.1:{inbox.port}/one json://127.0.0.1:{inbox.port}/two")
    failing(app, "order.paid")
    await app.publish("order.paid", 1)
    await app.worker().drain()

    assert sorted(path for path, _, _ in inbox.requests) == ["/one", "/two"]


def test_what_cannot_be_is_refused_without_a_secret_in_the_message(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)

    with pytest.raises(ConfigurationError, match="REDRIVE_NOTICES"):
        app.notices()
    with pytest.raises(ConfigurationError, match="group-new"):
        app.notices("json://127.0.0.1", on=("everything",))
    with pytest.raises(ConfigurationError) as refused:
        app.notices("slakc://secret-token")
    assert "secret" not in str(refused.value)
    app.notices("json://127.0.0.1")
    with pytest.raises(ConfigurationError, match="one call"):
        app.notices("json://127.0.0.1")
