"""What cannot be done stands in quarantine with its history, until a person sends it round again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from redrive import EventFilter, Status
from redrive.apps.controlplane.request import Request
from redrive.apps.controlplane.wiring import ControlPlane
from redrive.apps.controlplane.words import State
from redrive.apps.controlplane.world import HYPERVISOR, Fault
from redrive.operate.web import redrive_asgi
from tests.apps.controlplane.helpers import ask, assert_sound, comes_to, drained, events_of, found, site
from tests.operate.helpers import redrive
from tests.waiting import until
from tests.worker.conftest import working


async def _stuck(app: ControlPlane) -> Request:
    """A request whose machine the hypervisor will not give up."""
    assert app.requests is not None
    request = await drained(app, await ask(app))
    await app.world.tell(Fault(HYPERVISOR, "broken"))
    await app.requests.cancel(request.id, by="ada", reason="over")
    async with working(app):

        async def in_quarantine() -> bool:
            return [event.status for event in await events_of(app, request, "machine.unwanted")] == [Status.FAILED]

        await until(in_quarantine)
    return await found(app, request)


@pytest.mark.req("W5")
async def test_a_dead_letter_keeps_its_identity_its_request_its_cause_and_its_history(app: ControlPlane) -> None:
    request = await drained(app, await ask(app, image="windows-95"))

    (letter,) = await app.events(EventFilter(status=Status.FAILED))
    (cause,) = await events_of(app, request, "volume.made")
    assert (letter.type, letter.subject) == ("machine.wanted", f"machine/{request.id}")
    assert (letter.correlation_id, letter.causation_id) == (request.id, str(cause.id))
    assert (letter.error_class, letter.attempts) == ("rejected", 1)

    await app.replay(letter.id, by="ada", reason="perhaps they have it now")
    after = await drained(app, request)
    (again,) = [event for event in await events_of(app, request, "machine.wanted") if event.id == letter.id]
    (cycle,) = again.failure_history
    assert (again.correlation_id, again.causation_id) == (request.id, str(cause.id))
    assert (cycle.error_class, cycle.attempts) == ("rejected", 1)
    assert (again.status, after.state) == (Status.DELIVERED, State.REJECTED)  # nothing was made: it was called off
    await assert_sound(app)


@pytest.mark.req("W6")
async def test_only_a_person_replays_and_then_the_saga_goes_on_where_it_stood(store_url: str, tmp_path: Path) -> None:
    async with site(store_url, tmp_path / "world.db") as app:
        request = await _stuck(app)
        assert request.state is State.UNDOING
        await app.world.heal()

    async with site(store_url, tmp_path / "world.db") as app:  # a restart replays nothing
        await app.worker().drain()
        (letter,) = await events_of(app, request, "machine.unwanted")
        assert (letter.status, letter.attempts, letter.cycle) == (Status.FAILED, 3, 0)

        await app.replay(letter.id, by="ada", reason="the hypervisor was mended")
        after = await drained(app, request)
        (letter,) = await events_of(app, request, "machine.unwanted")
        replayed = [entry for entry in await app.trail(letter.id) if entry.kind == "replayed"]

        assert after.state is State.RELEASED
        assert letter.correlation_id == request.id
        assert [(entry.actor, entry.facts["reason"]) for entry in replayed] == [("ada", "the hypervisor was mended")]
        await assert_sound(app)


@pytest.mark.req("W10")
async def test_api_command_line_and_request_say_that_a_person_must_act_and_what_comes_next(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with site(sqlite_url, tmp_path / "world.db") as app:
        request = await _stuck(app)
        (letter,) = await events_of(app, request, "machine.unwanted")
        transport = httpx.ASGITransport(app=redrive_asgi(app, open_for_viewing=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            seen = (await client.get(f"/controlplane/requests/{request.id}")).json()
            matters = (await client.get("/api/v1/attention")).json()
            page = (await client.get("/")).text

    listed = await asyncio.to_thread(redrive, "attention", "-u", sqlite_url)
    shown = await asyncio.to_thread(redrive, "task", request.id, "-u", sqlite_url)
    assert f"redrive replay {letter.id}" in seen["needs_a_person"]
    assert seen["task"]["state"] == "needs a person"
    assert "machine.unwanted" in str(matters)
    assert "machine.unwanted" in page
    assert "machine.unwanted" in listed.out
    assert shown.out.startswith("Needs a person: 1 dead letter of machine.unwanted")


@pytest.mark.req("W10")
async def test_an_operator_sees_retries_failures_and_what_reconciling_did(app: ControlPlane) -> None:
    async with working(app):
        request = await comes_to(app, await ask(app), State.READY)
    await app.world.destroy(HYPERVISOR, str(request.machine))
    await app.reconcilers.run_here("machines", by="ada")
    await app.worker().drain()

    (run,) = await app.reconcilers.runs("machines")
    (finding,) = await app.reconcilers.findings("machines")
    assert (run.missing, run.published) == (1, 1)
    assert finding.key == request.machine
    await assert_sound(app)
