"""Two sites exchange events over real NATS servers: what is published at one has its effect once at the other."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Context, EventFilter, Redrive, Status
from redrive.operate.task import Progress, task
from redrive.operate.views import selected
from redrive.transport.envelope import SITE_HEADER
from redrive.transport.nats import Nats
from tests import warm
from tests.servers import NatsServer
from tests.sites.conftest import Site, Sites
from tests.sites.worker import LEASE, booking
from tests.waiting import until
from tests.worker.conftest import working

Came = dict[str, list[int]]


def _joined(site: Site, came: Came) -> Redrive:
    """An app that sends ``<site>.sent``, and notes what comes from the other one."""
    app = site.app(f"{site.name}.sent")

    @app.handler(f"{site.other}.sent")
    async def note(order: dict[str, Any]) -> None:
        came[order["key"]].append(order["n"])

    return app


@asynccontextmanager
async def _both(sites: Sites, berlin_got: Came, paris_got: Came) -> AsyncIterator[tuple[Redrive, Redrive]]:
    berlin, paris = _joined(sites.berlin, berlin_got), _joined(sites.paris, paris_got)
    async with berlin, paris, working(berlin), working(paris):
        yield berlin, paris


async def _publish(app: Redrive, first: int, count: int) -> None:
    await app.publish_many(
        [
            (f"{app.site}.sent", {"key": f"k{n % 5}", "n": n}, {"ordering_key": f"k{n % 5}"})
            for n in range(first, first + count)
        ]
    )


def _has(came: Came, count: int) -> Callable[[], bool]:
    return lambda: sum(len(each) for each in came.values()) >= count


def _once_and_in_order(came: Came, count: int) -> bool:
    return {key: sorted(set(each)) for key, each in came.items()} == came and _has(came, count)()


@pytest.mark.lab_short
@pytest.mark.req("W12")
async def test_a_partition_delays_and_neither_loses_doubles_nor_reorders(sites: Sites) -> None:
    berlin_got: Came = defaultdict(list)
    paris_got: Came = defaultdict(list)
    async with _both(sites, berlin_got, paris_got) as (berlin, paris):
        await _publish(berlin, 0, 20)
        await _publish(paris, 0, 20)
        await until(_has(paris_got, 20))
        await until(_has(berlin_got, 20))

        sites.line.cut()
        await _publish(berlin, 20, 30)
        await _publish(paris, 20, 30)
        await until(lambda: _sent(berlin, 50))  # both work on: each has its own broker
        await until(lambda: _sent(paris, 50))
        assert not _has(paris_got, 21)()

        sites.line.heal()
        await until(_has(paris_got, 50))
        await until(_has(berlin_got, 50))

    assert _once_and_in_order(berlin_got, 50)
    assert _once_and_in_order(paris_got, 50)
    assert await sites.berlin.held("BERLIN") == 50  # nothing came back to where it began
    assert await sites.paris.held("PARIS") == 50


async def _sent(app: Redrive, count: int) -> bool:
    rows = await app.events(EventFilter(target=f"relay:nats:{app.site}.events", limit=500))
    return sum(row.status.value == "delivered" for row in rows) == count


@pytest.mark.lab_short
@pytest.mark.req("W12")
async def test_a_line_that_is_slow_and_falls_silent_delays_and_loses_nothing(sites: Sites) -> None:
    berlin_got: Came = defaultdict(list)
    paris_got: Came = defaultdict(list)
    async with _both(sites, berlin_got, paris_got) as (berlin, paris):
        sites.line.delay = 0.05
        await _publish(berlin, 0, 10)
        await until(_has(paris_got, 10))

        sites.line.stall()
        await _publish(berlin, 10, 20)
        await _publish(paris, 0, 20)
        await until(lambda: _sent(berlin, 30))
        await until(lambda: _sent(paris, 20))
        assert not _has(paris_got, 11)()
        sites.line.heal()

        await until(_has(paris_got, 30))
        await until(_has(berlin_got, 20))

    assert _once_and_in_order(berlin_got, 20)
    assert _once_and_in_order(paris_got, 30)


@pytest.mark.req("W12")
async def test_a_message_that_comes_again_after_the_brokers_window_is_recognised_here(sites: Sites) -> None:
    berlin_got: Came = defaultdict(list)
    paris_got: Came = defaultdict(list)
    async with _both(sites, berlin_got, paris_got) as (berlin, paris):
        await _publish(berlin, 0, 1)
        await until(_has(paris_got, 1))
        sent = await sites.berlin.client.jsm().get_msg("BERLIN", 1)

        async def taken_again() -> bool:
            ack = await sites.berlin.client.jetstream().publish("berlin.events", sent.data or b"", headers=sent.headers)
            return not ack.duplicate

        await until(taken_again)  # the broker has forgotten its id
        await until(taken_again)
        await _publish(berlin, 1, 1)
        await until(_has(paris_got, 2))
        (intake,) = paris.traffic.intakes.values()
        assert intake.taken["duplicate"] == 2

    assert paris_got == {"k0": [0], "k1": [1]}


@pytest.mark.req("W11", "W12")
async def test_a_task_goes_from_site_to_site_and_is_seen_as_one(sites: Sites) -> None:
    berlin, paris = sites.berlin.app("order.placed", "order.billed"), sites.paris.app("order.placed", "order.billed")
    handled: list[tuple[str, str]] = []

    @paris.handler("order.placed")
    async def bill(order: dict[str, Any], ctx: Context) -> None:
        handled.append(("paris", "order.placed"))
        await ctx.publish("order.billed", order)

    @berlin.handler("order.billed")
    async def close(order: dict[str, Any]) -> None:
        handled.append(("berlin", "order.billed"))

    async with berlin, paris, working(berlin):
        placed = str((await berlin.publish("order.placed", {"id": 7})).id)
        await until(lambda: _sent(berlin, 1))
        under_way = await task([berlin, paris], placed)
        async with working(paris):
            await until(lambda: len(handled) == 2)
            await until(lambda: _is_done([berlin, paris], placed))
        found = await task([berlin, paris], placed)
        at_paris = await selected(paris, "site:berlin")
        of_paris = await selected(berlin, "site:paris")

    assert under_way.state is Progress.SENT
    assert [str(each.event.id) for each in under_way.unseen] == [placed]
    assert handled == [("paris", "order.placed"), ("berlin", "order.billed")]
    assert [(each.depth, each.event.target, each.site) for each in found.events] == [
        (0, "relay:nats:berlin.events", "berlin"),
        (1, "order.placed", "berlin"),
        (2, "relay:nats:paris.events", "paris"),
        (3, "order.billed", "paris"),
    ]
    assert [event.type for event in at_paris] == ["order.placed"]
    assert [event.type for event in of_paris] == ["order.billed"]
    assert await sites.berlin.held("BERLIN") == 1
    assert await sites.paris.held("PARIS") == 1


async def _is_done(apps: list[Redrive | str], correlation_id: str) -> bool:
    return (await task(apps, correlation_id)).state is Progress.DONE


@pytest.mark.lab_short
@pytest.mark.req("W12")
async def test_another_worker_of_the_site_takes_over_from_one_that_was_killed(sites: Sites) -> None:
    berlin = sites.berlin.app("stock.changed")
    here = booking(sites.paris.url, sites.paris.server.url)
    here.route("stock.booked", "stock.booked")
    root = Path(__file__).parents[2]
    async with berlin, here, working(berlin):
        command = ["-m", "tests.sites.worker", sites.paris.url, sites.paris.server.url]
        first = await asyncio.to_thread(warm.python, command, cwd=root)
        try:
            await berlin.publish_many([("stock.changed", {"n": n}) for n in range(40)])
            await until(lambda: _booked(here, 8))
            await until(lambda: _has_in_flight(here))  # it is killed in the middle of something
        finally:
            first.kill()
            await asyncio.to_thread(first.wait)
        await berlin.publish_many([("stock.changed", {"n": n}) for n in range(40, 60)])
        async with working(here, lease=LEASE):
            await until(lambda: _booked(here, 60))
        booked = await here.events(EventFilter(type="stock.booked", limit=500))

    assert sorted(event.payload["n"] for event in booked) == list(range(60))


async def _booked(app: Redrive, count: int) -> bool:
    return len(await app.events(EventFilter(type="stock.booked", limit=500))) >= count


async def _has_in_flight(app: Redrive) -> bool:
    return bool(await app.events(EventFilter(type="stock.changed", status=Status.IN_FLIGHT, limit=1)))


async def test_a_route_for_foreign_events_carries_them_too(sqlite_url: str) -> None:
    app = Redrive(sqlite_url, site="paris")
    broker = Nats("nats://127.0.0.1:1")
    app.relay("order.placed", to=broker.subject("paris.events"))
    app.relay("order.placed", to=broker.subject("paris.all"), foreign=True)

    own = app.new_events("order.placed", 1)
    foreign = app.new_events("order.placed", 1, headers={SITE_HEADER: "berlin"})

    assert [row.target for row in own] == ["relay:nats:paris.events", "relay:nats:paris.all"]
    assert [row.target for row in foreign] == ["relay:nats:paris.all"]


async def test_without_a_handler_a_foreign_event_waits_where_it_can_be_seen(sqlite_url: str) -> None:
    app = Redrive(sqlite_url, site="paris")
    app.relay("order.placed", to=Nats("nats://127.0.0.1:1").subject("paris.events"))

    (row,) = app.new_events("order.placed", 1, headers={SITE_HEADER: "berlin"})

    assert (row.target, row.queue) == ("order.placed", "default")


@pytest.mark.req("W12")
async def test_what_a_site_sent_itself_is_no_news_and_what_its_other_services_sent_is(
    store_url: str, tmp_path: Path, nats_server: NatsServer
) -> None:
    name = f"ALL{secrets.token_hex(4)}"
    came: list[str] = []

    def joined(url: str, service: str) -> Redrive:
        app = Redrive(url, site="berlin", source=service, migrate=True)
        broker = Nats(nats_server.url)
        if service == "shop":
            app.relay("order.placed", to=broker.subject(f"{name}.events", declare=name))
        app.intake(broker.stream(name, durable=service))

        @app.handler("order.placed")
        async def note(_order: int) -> None:
            came.append(service)

        return app

    shop, billing = joined(store_url, "shop"), joined(f"sqlite:///{tmp_path}/billing.db", "billing")
    async with shop, billing, working(shop), working(billing):
        await shop.publish("order.placed", 7)
        (intake,) = shop.traffic.intakes.values()
        await until(lambda: intake.link.moved == 1)  # it came back
        await until(lambda: "billing" in came)
        (stored,) = await billing.events()
        at_shop = await shop.events()

    assert sorted(came) == ["billing", "shop"]
    assert stored.headers[SITE_HEADER] == "berlin"
    assert sorted(event.target for event in at_shop) == ["order.placed", f"relay:nats:{name}.events"]
