"""The evidence of retries: nobody changes it, and when it cannot be written everybody hears of it."""

from __future__ import annotations

import pytest
import structlog

from redrive import Status
from redrive.operate.metrics import written_anew
from tests.apps.adjudication.conftest import System
from tests.waiting import until
from tests.worker.conftest import working

CHANGES = [
    "update adjudication.trail set reason = 'nothing happened'",
    "update adjudication.trail set attempt = attempt",
    "delete from adjudication.trail",
    "update adjudication.entry set amount_minor = 1",
    "delete from adjudication.entry",
    "update adjudication.receipt set escrow_adjudication = 'refund'",
    "update adjudication.receipt set escrow_adjudication = null, seller_minor = null",
    "delete from adjudication.receipt where escrow_adjudication is not null",
]


async def failed_and_executed(system: System) -> None:
    for name in ("down-1", "r-1"):
        await system.submit(name)
        await system.adjudicate(name)
    async with working(system.app) as worker:
        await until(lambda: (worker.tally.dead_lettered, worker.tally.delivered) == (1, 1))


@pytest.mark.req("A4", "A5")
async def test_the_database_refuses_to_change_or_forget_what_happened(with_rail: System) -> None:
    await failed_and_executed(with_rail)
    before = [await with_rail.rows(table) for table in ("trail", "entry", "receipt")]

    for change in CHANGES:
        with pytest.raises(Exception, match=r"append-only|stays"):
            await with_rail.act(change)

    assert [await with_rail.rows(table) for table in ("trail", "entry", "receipt")] == before
    assert [len(rows) for rows in before] == [3, 1, 2]


@pytest.mark.req("A4")
async def test_the_trail_cannot_be_emptied_or_replaced_by_the_back_door(with_rail: System) -> None:
    await failed_and_executed(with_rail)
    before = await with_rail.rows("trail")
    seq = before[0][0]
    values = f"({seq}, 'r-1', 'dead-lettered', 'x', 1, 'release', '2026-01-01T00:00:00Z', 'nothing', '2026')"
    columns = "(seq, transaction_receipt_id, kind, event_id, attempt, outcome, dead_lettered_at, reason, recorded_at)"

    if with_rail.app.dialect == "sqlite":
        doors = [f"insert or replace into adjudication.trail {columns} values {values}"]
    else:
        doors = ["truncate adjudication.trail", "truncate adjudication.receipt cascade"]
    for door in doors:
        with pytest.raises(Exception, match="append-only"):
            await with_rail.act(door)

    assert await with_rail.rows("trail") == before


@pytest.mark.req("A4")
async def test_evidence_that_is_not_whole_is_refused(with_rail: System) -> None:
    await failed_and_executed(with_rail)

    with pytest.raises(Exception, match=r"(?i)check"):
        await with_rail.act(
            "insert into adjudication.trail (transaction_receipt_id, kind, event_id, attempt, outcome, recorded_at)"
            " values ('r-1', 'retry-scheduled', 'x', 1, 'release', '2026-01-01T00:00:00Z')"
        )


@pytest.mark.req("A5", "A6")
async def test_evidence_that_cannot_be_written_is_an_error_and_stops_nothing(with_rail: System) -> None:
    """The re-escalation stands without it; log, metric, trail and the list of what needs a person all say so."""
    await with_rail.jam("trail")
    await with_rail.submit("down-1")
    await with_rail.submit("slow-1-a")
    with structlog.testing.capture_logs() as logs:
        await with_rail.adjudicate("down-1")
        await with_rail.adjudicate("slow-1-a")
        async with working(with_rail.app) as worker:
            await until(lambda: (worker.tally.dead_lettered, worker.tally.delivered) == (1, 1))
    look, event = await with_rail.look("down-1"), await with_rail.execution("down-1")
    assert (event.status, event.attempts) == (Status.FAILED, 3)
    assert (look["settlement_progression_status"], look["dispute_lifecycle_status"]) == (
        "dispute-ready",
        "re-escalated",
    )
    assert look["settlement_progression_reason"] == "post-adjudication execution dead-lettered"
    assert (await with_rail.look("slow-1-a"))["settlement_progression_status"] == "executed"
    said = [entry for entry in logs if entry["event"] == "evidence not written"]
    assert sorted((entry["log_level"], entry["hook"]) for entry in said) == [
        ("error", "on_dead_letter"),
        *[("error", "on_retry")] * 3,
    ]
    text = (await written_anew(with_rail.app)).decode()
    assert 'redrive_hook_failures_total{hook="on_retry",target="adjudication.execute"} 3.0' in text
    assert 'redrive_hook_failures_total{hook="on_dead_letter",target="adjudication.execute"} 1.0' in text
    assert {matter.kind for matter in await with_rail.app.attention(kinds=["hook"])} == {"hook"}
    assert len(await with_rail.app.attention(kinds=["hook"])) == 2
    kinds = [entry.kind for entry in await with_rail.app.trail(event.id)]
    assert kinds.count("evidence-failed") == 3
    assert kinds.count("dead-lettered") == 1
