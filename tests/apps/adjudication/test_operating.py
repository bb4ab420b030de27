"""Starting it, tuning it while it runs, and what is said about settings that cannot be used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from redrive import ConfigurationError
from redrive.apps.adjudication import make
from tests.apps.adjudication.conftest import System
from tests.operate.helpers import ended, environment, redrive, start
from tests.waiting import until, wait_until
from tests.web.test_cli import address_of, stopped
from tests.worker.conftest import working


@pytest.mark.req("A8")
async def test_an_operator_tunes_the_retries_while_it_runs_and_that_is_on_record(with_rail: System) -> None:
    async with working(with_rail.app) as worker:
        await with_rail.submit("down-1")
        await with_rail.adjudicate("down-1")
        await until(lambda: worker.tally.dead_lettered == 1)
        words = ["--max-attempts", "5", "--base-delay", "10ms", "--by", "olga", "--reason", "the rail is slow today"]
        url = ["--url", with_rail.app.url]
        done = await asyncio.to_thread(redrive, "policy", "set", "adjudication.execute", *words, *url)
        assert done.code == 0, done.err

        async def is_known() -> bool:
            return worker._handlers["adjudication.execute"].retry.max_attempts == 5  # type: ignore[union-attr]

        await until(is_known)
        await with_rail.submit("slow-4-a")
        await with_rail.adjudicate("slow-4-a")
        await until(lambda: worker.tally.delivered == 1)

    assert (await with_rail.execution("down-1")).attempts == 3
    assert (await with_rail.execution("slow-4-a")).attempts == 5
    assert [entry["attempt"] for entry in (await with_rail.look("slow-4-a"))["trail"]] == [1, 2, 3, 4]
    audit = (await asyncio.to_thread(redrive, "audit", "ls", "-o", "jsonl", *url)).out
    assert "policy-set" in audit
    assert "olga" in audit


def test_up_starts_it_serves_it_and_ends_on_ctrl_c(sqlite_url: str, tmp_path: Path) -> None:
    process = start("up", "adjudication", "--port", "0", cwd=tmp_path, env=environment(REDRIVE_URL=sqlite_url))
    address = address_of(process)
    receipt = {"transaction_receipt_id": "r-1", "buyer": "bo", "seller": "sal", "currency": "EUR", "amount_minor": 5}

    with httpx.Client(base_url=f"{address}/adjudication") as client:
        submitted = client.post("/receipts", json=receipt)
        said = client.post("/receipts/r-1/adjudication", json={"outcome": "release", "by": "judy"})
        wait_until(lambda: client.get("/receipts/r-1").json()["settlement_progression_status"] == "executed")
    result = stopped(process)

    assert (submitted.status_code, said.status_code) == (201, 202)
    assert result.code == 0


def test_a_wrong_name_lists_the_apps_that_exist() -> None:
    said = redrive("up", "adjudicaton")

    assert said.code == 2
    assert "adjudication" in said.err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ADJUDICATION_DISPATCH", "rail", "write module:function"),
        ("ADJUDICATION_DISPATCH", "no_such_module:pay", "cannot be imported"),
        ("ADJUDICATION_DISPATCH", "json:pay", "define pay in json"),
        ("ADJUDICATION_TIMEOUT", "soon", "ADJUDICATION_TIMEOUT"),
        ("ADJUDICATION_ISOLATION", "thread", "'process' or 'none'"),
        ("ADJUDICATION_UNKNOWN_KEPT", "many", "like '200'"),
        ("ADJUDICATION_UNKNOWN_KEPT", "0", "from 1 to 1,000"),
        ("REDRIVE_URL", "mysql://here", "use sqlite"),
    ],
)
def test_a_setting_that_cannot_be_used_is_a_clear_error_at_start(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make({name: value})


def test_up_says_what_is_wrong_with_a_setting(sqlite_url: str, tmp_path: Path) -> None:
    process = start(
        "up", "adjudication", cwd=tmp_path, env=environment(REDRIVE_URL=sqlite_url, ADJUDICATION_TIMEOUT="soon")
    )
    result = ended(process)

    assert result.code == 1
    assert "ADJUDICATION_TIMEOUT" in result.err
    assert not (tmp_path / "adjudication.db").exists()
