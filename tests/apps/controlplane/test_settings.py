"""What the environment says is understood when the app is made, or refused with what to do."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from redrive import ConfigurationError, Redrive
from redrive.apps import controlplane
from redrive.apps.controlplane.settings import from_environment
from redrive.apps.controlplane.wiring import app_from
from redrive.apps.controlplane.words import SERVICES
from redrive.apps.controlplane.world import STORAGE, Fault


def test_without_a_word_it_is_a_whole_site_on_one_file() -> None:
    said = from_environment({})

    assert (said.url, said.nats, said.services, said.settings.site) == (
        "sqlite:///controlplane.db", None, SERVICES, "here",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("POOL", "10.0.0.0/99", "CONTROLPLANE_POOL='10.0.0.0/99' is no network"),
        ("POOL", "10.0.0.0/8", "more than 65,536 addresses"),
        ("DEADLINE", "soon", "CONTROLPLANE_DEADLINE: "),
        ("QUOTA_GB", "-1", "no whole number above 0"),
        ("SAMPLE", "yes", "CONTROLPLANE_SAMPLE is 0 or 1"),
        ("SITE", "new york", "no name of a site"),
        ("PEERS", "paris", "CONTROLPLANE_NATS is missing"),
        ("SERVICES", "volumes", "CONTROLPLANE_NATS is missing"),
        ("SERVICES", "coffee", "takes some of requests"),
        ("FAULTS", "storage=tired", "'storage=tired' is no fault: write SYSTEM=MODE"),
        ("SIET", "berlin", "there is no setting CONTROLPLANE_SIET"),
    ],
)
def test_a_bad_value_is_a_clear_error_at_start(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("'", ".")):
        from_environment({f"CONTROLPLANE_{name}": value})


async def test_it_makes_its_sample_once_and_meets_the_faults_it_was_told(tmp_path: Path) -> None:
    environ = {
        "CONTROLPLANE_URL": f"sqlite:///{tmp_path}/site.db", "CONTROLPLANE_WORLD": f"{tmp_path}/world.db",
        "CONTROLPLANE_SAMPLE": "1", "CONTROLPLANE_FAULTS": "storage=down hypervisor=lose/20",
    }  # fmt: skip
    for _ in range(2):
        async with app_from(environ) as app:
            assert app.requests is not None
            assert len(await app.requests.ls()) == 3
            with pytest.raises(Exception, match="does not answer"):
                await app.world.things(STORAGE)
    assert Fault.parse("hypervisor=lose/20").every == 20


@pytest.mark.parametrize(
    ("services", "targets"),
    [
        ("volumes", {"relay:nats:berlin.requests", "intake:BERLIN/volumes"}),
        ("requests volumes", {
            "relay:nats:berlin.addresses", "relay:nats:berlin.machines", "relay:nats:berlin.out",
            "intake:BERLIN/requests", "intake:BERLIN/volumes", "intake:FROM_PARIS/berlin",
        }),
        (" ".join(SERVICES), {"relay:nats:berlin.out", "intake:FROM_PARIS/berlin"}),
    ],
    ids=["one", "two", "all"],
)  # fmt: skip
def test_what_is_elsewhere_is_reached_through_nats(services: str, targets: set[str], tmp_path: Path) -> None:
    environ = {
        "CONTROLPLANE_SERVICES": services, "CONTROLPLANE_SITE": "berlin", "CONTROLPLANE_PEERS": "paris",
        "CONTROLPLANE_NATS": "nats://127.0.0.1:4222", "CONTROLPLANE_URL": f"sqlite:///{tmp_path}/site.db",
    }  # fmt: skip

    app = app_from(environ)

    assert {target for target in app.handlers if target.startswith(("relay:", "intake:"))} == targets


def test_the_app_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONTROLPLANE_URL", f"sqlite:///{tmp_path}/site.db")
    monkeypatch.setenv("CONTROLPLANE_SITE", "berlin")
    fresh = importlib.reload(controlplane)

    assert isinstance(fresh.app, Redrive)
    assert fresh.app.site == "berlin"
    assert fresh.app is fresh.app
