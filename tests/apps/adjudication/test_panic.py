"""However an execution dies, it ends as a failed attempt that everybody sees."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import redrive.apps.adjudication
from redrive import EventFilter, Redrive, Status
from tests import warm
from tests.apps.adjudication.conftest import RAILS, System, http, running
from tests.operate.helpers import environment
from tests.waiting import until
from tests.worker.conftest import working

DEATHS = {
    "exit": ("SystemExit", "enough"),
    "panic": ("Panic", "no way out"),
    "gone": ("ProcessDied", "exit code 7"),
    "killed": ("ProcessDied", "SIGKILL"),
    "memory": ("MemoryError", ""),
}


@pytest.fixture
async def isolated(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    """The app as `redrive up adjudication` imports it; child processes find it by that name."""
    monkeypatch.setenv("RAIL_FOLDER", str(tmp_path))
    monkeypatch.setenv("REDRIVE_URL", store_url)
    monkeypatch.setenv("ADJUDICATION_DISPATCH", f"{RAILS}:pay")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent.parent.parent))
    async with Redrive(store_url, migrate=True):
        pass
    app: Redrive = importlib.reload(redrive.apps.adjudication).app
    async with app, http(app) as client:
        yield System(app, client)


@pytest.mark.lab_short
@pytest.mark.req("A5", "A7")
async def test_an_execution_that_dies_in_any_way_is_a_failed_attempt_and_is_re_escalated(isolated: System) -> None:
    for death in DEATHS:
        await isolated.submit(death)
        await isolated.adjudicate(death)
    await isolated.submit("fine")
    await isolated.adjudicate("fine")
    async with working(isolated.app, children=2) as worker:
        await until(lambda: (worker.tally.dead_lettered, worker.tally.delivered) == (len(DEATHS), 1))

    for death, (kind, said) in DEATHS.items():
        event, look = await isolated.execution(death), await isolated.look(death)
        assert (event.status, event.attempts, event.lost_count) == (Status.FAILED, 3, 0), death
        assert kind in str(event.last_error)
        assert said in str(event.last_error)
        assert look["dispute_lifecycle_status"] == "re-escalated"
        assert [(entry["kind"], entry["attempt"]) for entry in look["trail"]] == [
            ("retry-scheduled", 1),
            ("retry-scheduled", 2),
            ("dead-lettered", 3),
        ]
        assert said in look["trail"][-1]["reason"]
    assert (await isolated.look("fine"))["settlement_progression_status"] == "executed"
    assert await isolated.app.events(EventFilter(status=Status.IN_FLIGHT)) == []


@pytest.mark.lab_short
@pytest.mark.req("A7")
async def test_what_a_killed_worker_held_is_taken_over_and_carried_out(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without isolation the whole worker dies; its event is seen as lost, and another worker has it."""
    environ: dict[str, Any] = {"RAIL_FOLDER": str(tmp_path), "ADJUDICATION_DISPATCH": f"{RAILS}:pay"}
    monkeypatch.setenv("RAIL_FOLDER", str(tmp_path))
    async with running(store_url) as system:
        await system.submit("killed")
        await system.adjudicate("killed")
        worker = warm.python(
            ["-m", "tests.apps.adjudication.worker"],
            env=environment(REDRIVE_URL=store_url, **environ),
            stdout=subprocess.DEVNULL,
        )
        await until(lambda: worker.poll() is not None)
        held = await system.execution("killed")
        async with working(system.app, lease="1s"):  # this one only books

            async def is_done() -> bool:
                return bool((await system.look("killed"))["settlement_progression_status"] == "executed")

            await until(is_done)

        event = await system.execution("killed")
        assert held.status is Status.IN_FLIGHT
        assert (event.status, event.lost_count) == (Status.DELIVERED, 1)
        assert "lost" in [entry.kind for entry in await system.app.trail(event.id)]
        assert len(await system.rows("entry")) == 1
