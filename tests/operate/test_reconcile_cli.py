"""`redrive reconcile`: running, looking, ignoring."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from tests.operate.helpers import ended, environment, redrive, start
from tests.reconcile.helpers import Carts

APP = """
from redrive import Redrive

app = Redrive("{url}")
actual = {{"b": 2, "c": 3}}


async def converge(key, desired, actual_):
    if desired is None:
        del actual[key]
    else:
        actual[key] = desired


def broken():
    raise RuntimeError("the warehouse says no")


app.reconcilers.add("carts", desired=lambda: {{"a": 1, "b": 2}}, actual=lambda: actual, converge=converge)
app.reconcilers.add("broken", desired=broken, actual=dict, converge=converge)
"""


async def drifted(url: str) -> None:
    async with Redrive(url, migrate=True) as app:
        Carts({"a": 1}, {"b": {"items": 2}}).add_to(app)
        await app.reconcilers.run_here("carts", by="ada")


@pytest.fixture
def url(store_url: str) -> str:
    asyncio.run(drifted(store_url))
    return store_url


@pytest.mark.req("W7", "W10")
def test_an_operator_sees_reconcilers_their_runs_and_their_findings(url: str) -> None:
    (listed,) = redrive("reconcile", "ls", "-o", "json", "-u", url).json
    (ran,) = redrive("reconcile", "runs", "carts", "-o", "json", "-u", url).json
    found = redrive("reconcile", "findings", "-o", "jsonl", "-u", url).lines

    assert (listed["name"], listed["state"], listed["open_count"]) == ("carts", "done", 2)
    assert (ran["missing"], ran["extra"], ran["published"], ran["started_by"]) == (1, 1, 2, "ada")
    assert {(each["key"], each["kind"], each["event_status"]) for each in found} == {
        ("a", "missing", "pending"), ("b", "extra", "pending"),
    }  # fmt: skip
    shown = redrive("reconcile", "show", ran["id"][:20], "-u", url)
    assert "1 missing, 1 extra, 0 different" in shown.out
    assert '{"items": 2}' in shown.out
    for command in ("ls", "runs", "findings"):
        assert "carts" in redrive("reconcile", command, "-u", url).out


def test_a_finding_may_be_ignored_with_a_reason(url: str) -> None:
    first = redrive("reconcile", "findings", "-o", "json", "-u", url).json[0]

    silent = redrive("reconcile", "ignore", first["id"], "-u", url)
    done = redrive("reconcile", "ignore", first["id"], "--reason", "a test cart", "--by", "ann", "-u", url)
    again = redrive("reconcile", "ignore", first["id"], "--reason", "a test cart", "-u", url)

    assert (silent.code, done.code, again.code) == (2, 0, 4)
    (ignored,) = redrive("reconcile", "findings", "--state", "ignored", "-o", "json", "-u", url).json
    assert (ignored["id"], ignored["note"], ignored["noted_by"]) == (first["id"], "a test cart", "ann")
    assert redrive("reconcile", "findings", "--recurring", "-u", url).out == "No finding is open.\n"


def test_what_is_not_there_is_said(url: str) -> None:
    assert redrive("reconcile", "show", "0000", "-u", url).code == 3
    assert redrive("reconcile", "ignore", "0000", "--reason", "x", "-u", url).code == 3
    unknown = redrive("reconcile", "cats", "-u", url)
    assert (unknown.code, "no worker has a reconciler 'cats'" in unknown.err) == (3, True)


def test_a_run_is_asked_for_once_and_waits_for_a_worker(url: str) -> None:
    first = redrive("reconcile", "carts", "-u", url)
    again = redrive("reconcile", "run", "carts", "-u", url)

    assert (first.code, again.code) == (0, 0)
    assert "asked for\n" in first.err
    assert "No worker has it now" in first.err
    assert "is asked for already" in again.err


def _app(folder: Path, url: str) -> None:
    (folder / "shop.py").write_text(APP.format(url=url), encoding="utf-8")


def _ended(folder: Path, *arguments: str) -> Any:
    return ended(start(*arguments, cwd=folder, env=environment()))


@pytest.mark.req("W7", "W10")
def test_an_app_is_reconciled_here_and_a_dry_run_changes_nothing(sqlite_url: str, empty_folder: Path) -> None:
    _app(empty_folder, sqlite_url)
    redrive("migrate", "-u", sqlite_url)

    dry = _ended(empty_folder, "reconcile", "carts", "--app", "shop:app", "--dry-run", "-o", "json")
    assert (dry.code, dry.json["missing"], dry.json["extra"], dry.json["published"]) == (0, 1, 1, 0)
    assert redrive("reconcile", "findings", "-o", "json", "-u", sqlite_url).json == []

    real = _ended(empty_folder, "reconcile", "carts", "--app", "shop:app")
    assert (real.code, "2 events published" in real.out) == (0, True)
    broken = _ended(empty_folder, "reconcile", "broken", "--app", "shop:app")
    assert (broken.code, "the warehouse says no" in broken.err) == (1, True)
    unknown = _ended(empty_folder, "reconcile", "cats", "--app", "shop:app")
    assert (unknown.code, "there is broken, carts" in unknown.err) == (3, True)


def test_wait_shows_what_the_workers_found(sqlite_url: str, empty_folder: Path) -> None:
    _app(empty_folder, sqlite_url)
    redrive("migrate", "-u", sqlite_url)
    worker = start("worker", "shop:app", cwd=empty_folder, env=environment())
    try:
        asking = ("reconcile", "carts", "--wait", "-o", "json", "-u", sqlite_url)
        while (waited := _ended(empty_folder, *asking)).code == 3:
            assert worker.poll() is None  # it has not begun yet
    finally:
        worker.terminate()
        ended(worker)

    assert (waited.code, waited.json["state"], waited.json["compared"]) == (0, "done", 3)
