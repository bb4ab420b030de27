"""`redrive serve`, `redrive up` and `redrive token`."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.operate.helpers import Result, ended, environment, redrive, start
from tests.waiting import wait_until

LISTENS = re.compile(r"(http://\S+)")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    return folder


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if (match := LISTENS.search(line)) is not None:
            return match[1]
    raise AssertionError("".join(told))


def stopped(process: subprocess.Popen[str]) -> Result:
    process.send_signal(signal.SIGTERM)
    return ended(process)


def test_a_token_is_made_listed_and_revoked(store_url: str) -> None:
    redrive("migrate", "--url", store_url)

    made = redrive("token", "create", "ada", "--role", "operator", "--expires", "7d", "--url", store_url)
    listed = redrive("token", "ls", "-o", "json", "--url", store_url)
    gone = redrive("token", "revoke", "ada", "--url", store_url)
    again = redrive("token", "revoke", "ada", "--url", store_url)
    unknown = redrive("token", "revoke", "bob", "--url", store_url)
    vague = redrive("token", "revoke", "0", "--url", store_url)
    trail = redrive("audit", "ls", "-o", "json", "--url", store_url)

    assert made.out.startswith("rdv_")
    assert "shown this once" in made.err
    assert [(each["name"], each["role"], each["state"]) for each in listed.json] == [("ada", "operator", "live")]
    assert made.out.strip() not in listed.out
    assert "revoked" in gone.out
    assert (again.code, unknown.code, vague.code) == (4, 3, 3)
    assert [each["kind"] for each in trail.json] == ["token-revoked", "token-created"]


@pytest.mark.parametrize("expires", ["never", "0s", "20000d"])
def test_a_token_expires(sqlite_url: str, expires: str) -> None:
    redrive("migrate", "--url", sqlite_url)

    assert redrive("token", "create", "ada", "--expires", expires, "--url", sqlite_url).code in (1, 2)


def test_serve_answers_until_it_is_told_to_stop(store_url: str, tmp_path: Path) -> None:
    redrive("migrate", "--url", store_url)
    secret = redrive("token", "create", "ada", "--url", store_url).out.strip()
    process = start("serve", store_url, "--port", "0", cwd=tmp_path)
    address = address_of(process)

    seen = httpx.get(f"{address}/api/v1/overview", headers={"Authorization": f"Bearer {secret}"})
    unseen = httpx.get(f"{address}/api/v1/overview")
    result = stopped(process)

    assert (seen.status_code, unseen.status_code) == (200, 401)
    assert "server" not in seen.headers
    assert result.code == 0
    assert "✓ stopped" in result.err


def test_serve_shows_everything_to_this_machine_when_told_so(sqlite_url: str, tmp_path: Path) -> None:
    redrive("migrate", "--url", sqlite_url)
    process = start("serve", sqlite_url, "--port", "0", "--open", cwd=tmp_path)
    address = address_of(process)

    seen = httpx.get(f"{address}/api/v1/overview")
    acted = httpx.post(f"{address}/api/v1/events", json={"type": "a"}, headers={"Sec-Fetch-Site": "same-origin"})
    stopped(process)

    assert (seen.status_code, acted.status_code) == (200, 403)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_serve_does_not_open_a_door_that_nobody_guards(sqlite_url: str, host: str) -> None:
    redrive("migrate", "--url", sqlite_url)

    bare = redrive("serve", sqlite_url, "--host", host, "--port", "0")
    opened = redrive("serve", sqlite_url, "--host", host, "--port", "0", "--open")

    assert (bare.code, opened.code) == (4, 4)
    assert "redrive token create" in bare.err
    assert "--open" in opened.err


def test_serve_opens_a_door_that_tokens_guard(sqlite_url: str, tmp_path: Path) -> None:
    redrive("migrate", "--url", sqlite_url)
    redrive("token", "create", "ada", "--url", sqlite_url)
    process = start("serve", sqlite_url, "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    address = address_of(process)

    answer = httpx.get(address.replace("0.0.0.0", "127.0.0.1") + "/api/v1/overview")
    result = stopped(process)

    assert answer.status_code == 401
    assert result.code == 0


def test_serve_says_what_is_wrong(sqlite_url: str) -> None:
    missing = redrive("serve", "sqlite:///nothing.db")
    redrive("migrate", "--url", sqlite_url)
    taken = redrive("serve", sqlite_url, "--host", "192.0.2.1", "--trust-proxy", "10.0.0.0/8")
    network = redrive("serve", sqlite_url, "--trust-proxy", "everybody")

    assert "there is no file" in missing.err
    assert "cannot listen" in taken.err
    assert "10.0.0.0/8" in network.err
    assert {missing.code, taken.code, network.code} == {1}


def test_up_works_and_serves(store_url: str, empty_folder: Path) -> None:
    (empty_folder / "shop.py").write_text(
        "import os\nfrom redrive import Redrive\n\napp = Redrive(os.environ['SHOP_URL'], migrate=True)\n\n\n"
        "@app.handler('order.paid')\nasync def ship(order: dict) -> None: ...\n"
    )
    redrive("migrate", "--url", store_url)
    secret = redrive("token", "create", "ada", "--role", "operator", "--url", store_url).out.strip()
    process = start("up", "shop:app", "--port", "0", cwd=empty_folder, env=environment(SHOP_URL=store_url))
    address = address_of(process)

    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {secret}"}) as client:
        new = client.post("/api/v1/events", json={"type": "order.paid", "payload": {"id": 1}}).json()
        wait_until(lambda: client.get(f"/api/v1/events/{new['id']}").json()["status"] == "delivered")
    result = stopped(process)

    assert result.code == 0
