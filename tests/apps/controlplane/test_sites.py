"""Two sites over real NATS servers: each works alone, and a request for the other arrives once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.errors import Error as NatsError

from redrive import EventFilter, Status
from redrive.apps.controlplane.streams import declare
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State
from redrive.apps.controlplane.world import HYPERVISOR, Fault
from redrive.operate.task import Progress, task
from tests.apps.controlplane.helpers import ask, assert_sound, comes_to, found, quiet, reconciled, site, state_of
from tests.apps.controlplane.worker import LEASE, start
from tests.conftest import REQUIRE_ALL, Run
from tests.servers import NatsServer, ServerUnavailable, free_port, running_nats
from tests.sites.conftest import Line
from tests.waiting import until
from tests.worker.conftest import working

PATIENCE = 60.0


@dataclass(slots=True)
class Two:
    """Berlin on SQLite, Paris on PostgreSQL, and the line between their NATS servers."""

    berlin: ControlPlane
    paris: ControlPlane
    line: Line
    servers: tuple[NatsServer, NatsServer]
    world: Path


@pytest.fixture(scope="module")
def servers(run: Run) -> Iterator[tuple[NatsServer, NatsServer, int, int]]:
    """A hub, and a leaf that finds it through another port."""
    hub_port, line_port = free_port(), free_port()
    hub = f'server_name: berlin\nleafnodes {{ listen: "127.0.0.1:{hub_port}", no_advertise: true }}'
    remote = f'remotes: [{{ url: "nats-leaf://127.0.0.1:{line_port}" }}]'
    leaf = f"server_name: paris\nleafnodes {{ reconnect: 1, {remote} }}\nping_interval: 1s\nping_max: 2"
    try:
        with running_nats(hub, "berlin") as berlin, running_nats(leaf, "paris") as paris:
            run.backends["NATS"] = berlin.version
            yield berlin, paris, line_port, hub_port
    except ServerUnavailable as error:
        run.missing["NATS"] = str(error)
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
        pytest.skip(f"no NATS: {error}")


@pytest.fixture
async def two(
    servers: tuple[NatsServer, NatsServer, int, int], sqlite_url: str, postgres_url: str, tmp_path: Path
) -> AsyncIterator[Two]:
    hub, leaf, line_port, hub_port = servers
    line = Line(line_port, hub_port)
    await line.lay()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(line.take_up)
        for server, here, there in ((hub, "berlin", "paris"), (leaf, "paris", "berlin")):
            await until(lambda server=server, there=there: _reaches(server, there), PATIENCE)  # type: ignore[misc]
            await declare(here, server.url, [there])
        said = {"stalled": "2s", "deadline": "1h", "hold": "3s"}
        berlin = site(sqlite_url, tmp_path / "b.db", site="berlin", peers=["paris"], nats=hub.url, **said)
        paris = site(postgres_url, tmp_path / "p.db", site="paris", peers=["berlin"], nats=leaf.url, **said)
        for app in (berlin, paris):
            app.dependency("nats", probe_after=0.3, probe_cap=0.6)
            await stack.enter_async_context(app)
        yield Two(berlin, paris, line, (hub, leaf), tmp_path / "p.db")


async def _reaches(server: NatsServer, other: str) -> bool:
    client = await nats.connect(server.url)
    try:
        await client.request(f"$JS.{other}.API.INFO", timeout=1)
    except NatsError:
        return False
    finally:
        await client.close()
    return True


@pytest.mark.req("W11", "W12")
async def test_a_request_for_the_other_site_is_made_there_and_followed_from_here(two: Two) -> None:
    assert two.berlin.requests is not None
    async with working(two.berlin), working(two.paris):
        request = await ask(two.berlin, site="paris")
        assert request.state is State.FORWARDED
        ready = await comes_to(two.berlin, request, State.READY, PATIENCE)
        at_paris = await found(two.paris, request)
        seen = await task([two.berlin, two.paris], request.id)
        assert await two.berlin.world.seen(HYPERVISOR) == []
        (machine,) = await two.paris.world.seen(HYPERVISOR)

        await two.berlin.requests.cancel(request.id, by="ada", reason="over")
        released = await comes_to(two.berlin, request, State.RELEASED, PATIENCE)
        await until(lambda: quiet(two.paris))

    assert (ready.address, ready.machine) == (at_paris.address, machine.name)
    assert {event.site for event in seen.events} == {"berlin", "paris"}
    assert seen.state in (Progress.DONE, Progress.RUNNING)
    assert (released.cancelled_by, released.reason) == ("ada", "over")
    await assert_sound(two.berlin)
    await assert_sound(two.paris)


@pytest.mark.req("W12")
async def test_a_partition_delays_requests_for_the_other_site_and_no_others(two: Two) -> None:
    async with working(two.berlin), working(two.paris):
        two.line.cut()
        away = [await ask(two.berlin, site="paris") for _ in range(5)]
        back = [await ask(two.paris, site="berlin") for _ in range(5)]
        near = [await ask(app) for app in (two.berlin, two.paris) for _ in range(3)]
        for n, request in enumerate(near):
            await comes_to(two.berlin if n < 3 else two.paris, request, State.READY)
        assert {await state_of(two.berlin, request) for request in away} == {State.FORWARDED}
        alone = await task([two.berlin], away[0].id)
        assert (alone.state, alone.sentence.partition(":")[0]) == (Progress.SENT, "Sent, not confirmed")
        await two.berlin.reconcilers.run_here("requests")  # asking again in the meantime makes nothing twice

        two.line.heal()
        two.line.delay = 0.05
        for request in away:
            await comes_to(two.berlin, request, State.READY, PATIENCE)
        for request in back:
            await comes_to(two.paris, request, State.READY, PATIENCE)
        await until(lambda: quiet(two.paris))
        await until(lambda: quiet(two.berlin))

    assert (await task([two.berlin], away[0].id)).state is Progress.DONE, "the other site has answered"
    assert len(await two.paris.world.seen(HYPERVISOR)) == 8
    assert len(await two.berlin.world.seen(HYPERVISOR)) == 8
    await assert_sound(two.berlin)
    await assert_sound(two.paris)


@pytest.mark.req("W12")
async def test_messages_that_come_again_or_late_change_nothing(two: Two) -> None:
    assert two.berlin.requests is not None
    client = await nats.connect(two.servers[0].url)
    async with working(two.berlin), working(two.paris):
        request = await ask(two.berlin, site="paris")
        await comes_to(two.berlin, request, State.READY, PATIENCE)
        await two.berlin.requests.cancel(request.id, by="ada", reason="over")
        await comes_to(two.berlin, request, State.RELEASED, PATIENCE)
        first = (await client.jsm().stream_info("BERLIN")).state.last_seq - 1
        sent = await client.jsm().get_msg("BERLIN", first)  # the request, long after it was given back
        headers = {**(sent.headers or {}), "Nats-Msg-Id": "another"}
        await client.jetstream().publish("berlin.out", sent.data or b"", headers=headers)
        (intake,) = two.paris.traffic.intakes.values()
        await until(lambda: intake.taken["duplicate"] >= 1, PATIENCE)

        old = {"request": request.id, "home": "berlin", "version": 1, "state": "PROVISIONING", "facts": {}}
        await two.berlin.publish("request.moved", old, correlation_id=request.id)
        late = {"request": request.id, "name": f"vm-{request.id}"}
        await two.paris.publish("machine.made", late, correlation_id=request.id)
        await until(lambda: quiet(two.berlin))
        await until(lambda: quiet(two.paris))
    await client.close()

    assert await state_of(two.berlin, request) is State.RELEASED
    assert await state_of(two.paris, request) is State.RELEASED
    await assert_sound(two.paris)


@pytest.mark.lab_short
@pytest.mark.req("W12")
async def test_when_the_worker_of_a_site_is_killed_another_goes_on(two: Two) -> None:
    await two.paris.world.tell(Fault(HYPERVISOR, "slow", seconds=2.0))
    first = start(two.paris.url, two.world, "paris", two.servers[1].url, ["berlin"])
    try:
        async with working(two.berlin):
            requests = [await ask(two.berlin, site="paris") for _ in range(10)]

            async def under_way() -> bool:
                orders = await two.paris.events(EventFilter(type="machine.wanted"))
                return any(order.status is Status.IN_FLIGHT for order in orders)

            await until(under_way, PATIENCE)
            first.kill()
            await asyncio.to_thread(first.wait)
            was_under_way = await under_way()
            await two.paris.world.heal()
            async with working(two.paris, lease=LEASE):
                for request in requests:
                    await comes_to(two.berlin, request, State.READY, PATIENCE)
                await until(lambda: quiet(two.paris))
    finally:
        first.kill()
        await asyncio.to_thread(first.wait)
    await reconciled(two.paris)

    assert was_under_way  # it was killed in the middle of something
    assert len(await two.paris.world.seen(HYPERVISOR)) == 10
    await assert_sound(two.paris)
