"""Four services with a database each, over a real NATS: one request, one view."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest

from redrive.apps.controlplane.streams import declare
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import SERVICES, State
from redrive.apps.controlplane.world import HYPERVISOR
from redrive.operate.task import Progress, task
from tests.apps.controlplane.helpers import ask, assert_sound, comes_to, found, site
from tests.operate.helpers import redrive
from tests.servers import NatsServer
from tests.waiting import until
from tests.worker.conftest import working


@pytest.fixture
async def services(tmp_path: Path, postgres_url: str, nats_server: NatsServer) -> AsyncIterator[list[ControlPlane]]:
    """The services of a site, three on SQLite and one on PostgreSQL."""
    name = f"s{secrets.token_hex(4)}"
    await declare(name, nats_server.url)
    async with AsyncExitStack() as stack:
        apps = []
        for each in SERVICES:
            url = postgres_url if each == "addresses" else f"sqlite:///{tmp_path}/{each}.db"
            made = site(url, tmp_path / "world.db", each, site=name, nats=nats_server.url, stalled="1s")
            apps.append(await stack.enter_async_context(made))
        yield apps


@pytest.mark.req("W11")
async def test_a_request_that_four_services_work_on_is_seen_as_one(services: list[ControlPlane]) -> None:
    front = services[0]
    assert front.requests is not None
    async with AsyncExitStack() as stack:
        for app in services:
            await stack.enter_async_context(working(app))
        request = await comes_to(front, await ask(front), State.READY)
        await until(lambda: _is_done(services, request.id))
        seen = await task(services, request.id)
        alone = await task([front], request.id)

        refused = await comes_to(front, await ask(front, image="windows-95"), State.REJECTED)
        judged = await task(services, refused.id)
        await front.requests.cancel(request.id, by="ada", reason="over")
        await comes_to(front, request, State.RELEASED)

    told = [event.event.type for event in seen.events if event.event.target.startswith("relay:")]
    assert told == [f"{kind}.{said}" for kind in ("address", "volume", "machine") for said in ("wanted", "made")]
    assert {event.event.source for event in seen.events} == set(SERVICES)
    assert [event.depth for event in seen.events] == list(range(12))
    assert (seen.state, len(seen.events), len(alone.events)) == (Progress.DONE, 12, 6)
    assert judged.sentence.startswith("Needs a person: 1 dead letter of machine.wanted")
    await assert_sound(*services)
    others = [part for app in services[1:] for part in ("--also", app.url)]
    shown = await asyncio.to_thread(redrive, "task", request.id, "-u", front.url, *others, "-o", "json")
    assert {event["source"] for event in shown.json["events"]} == set(SERVICES)


async def _is_done(apps: list[ControlPlane], request_id: str) -> bool:
    return (await task(apps, request_id)).state is Progress.DONE


@pytest.mark.req("W7", "W12")
async def test_what_the_broker_has_lost_is_sent_again_and_has_its_effect_once(
    services: list[ControlPlane], nats_server: NatsServer
) -> None:
    front, broker = services[0], await nats.connect(nats_server.url)
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(working(front))
            request = await ask(front)

            async def sent() -> bool:
                return (await broker.jsm().stream_info(front.site.upper())).state.messages == 1

            await until(sent)
            await broker.jsm().purge_stream(front.site.upper())  # acknowledged, and lost
            for app in services[1:]:
                await stack.enter_async_context(working(app))

            async def moves() -> bool:
                await front.reconcilers.run_here("requests")
                return (await found(front, request)).state is State.READY

            await until(moves)
    finally:
        await broker.close()

    assert len(await front.world.seen(HYPERVISOR)) == 1
    await assert_sound(*services)
