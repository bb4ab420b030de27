"""The life of a receipt: submitted, adjudicated, executed once or handed back to people."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from redrive import EventFilter, RetryPolicy, Status
from redrive.apps.adjudication import make
from tests.apps.adjudication.conftest import System, running
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.parametrize(
    ("outcome", "more", "booked"),
    [
        ("release", {}, [("seller", 1_000)]),
        ("refund", {}, [("buyer", 1_000)]),
        ("split", {"seller_minor": 400}, [("buyer", 600), ("seller", 400)]),
    ],
)
async def test_a_decision_is_carried_out_and_booked(
    system: System, outcome: str, more: dict[str, int], booked: list[tuple[str, int]]
) -> None:
    submitted = await system.submit("r-1")
    said = await system.adjudicate("r-1", outcome, **more)
    await system.app.worker().drain()

    assert (submitted["settlement_progression_status"], submitted["dispute_lifecycle_status"]) == ("in-escrow", "open")
    assert said.status_code == 202
    assert (said.json()["settlement_progression_status"], said.json()["dispute_lifecycle_status"]) == (
        "execution-pending",
        "adjudicated",
    )
    look = await system.look("r-1")
    assert look["escrow_adjudication"] == outcome
    assert (look["settlement_progression_status"], look["dispute_lifecycle_status"]) == ("executed", "closed")
    assert [(entry["party"], entry["amount_minor"]) for entry in look["entries"]] == booked
    assert (look["execution"]["status"], look["trail"]) == ("delivered", [])


@pytest.mark.req("A1")
def test_only_the_execution_has_three_attempts_from_25_ms(sqlite_url: str) -> None:
    app = make({"REDRIVE_URL": sqlite_url})
    policies = {target: handler.retry for target, handler in app.handlers.items()}

    assert policies["adjudication.execute"] == RetryPolicy.quick()
    assert RetryPolicy.quick().schedule() == [0.025, 0.05]
    assert [target for target, policy in policies.items() if policy == RetryPolicy.quick()] == ["adjudication.execute"]


@pytest.mark.req("A1", "A2", "A4", "A5")
async def test_an_execution_that_keeps_failing_is_re_escalated_with_its_evidence(with_rail: System) -> None:
    await with_rail.submit("down-1")
    await with_rail.adjudicate("down-1", "refund", dispatch_reference="case 7")
    async with working(with_rail.app) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)

    look = await with_rail.look("down-1")
    event = await with_rail.execution("down-1")
    assert event.status is Status.FAILED
    assert {name: look[name] for name in look if name.startswith(("settlement_", "dispute_", "escrow_"))} == {
        "escrow_adjudication": "refund",
        "settlement_progression_status": "dispute-ready",
        "settlement_progression_reason_code": "escalate",
        "settlement_progression_reason": "post-adjudication execution dead-lettered",
        "dispute_lifecycle_status": "re-escalated",
    }
    one, two, dead = look["trail"]
    assert {entry["source"] for entry in look["trail"]} == {"post_adjudication_retry"}
    assert {entry["event_id"] for entry in look["trail"]} == {str(event.id)}
    for number, entry in enumerate((one, two), 1):
        assert (entry["kind"], entry["attempt"], entry["outcome"], entry["dispatch_reference"]) == (
            "retry-scheduled",
            number,
            "refund",
            "case 7",
        )
    assert one["next_retry_at"] < two["next_retry_at"] < dead["dead_lettered_at"]
    assert (dead["kind"], dead["attempt"], dead["outcome"]) == ("dead-lettered", 3, "refund")
    assert dead["reason"] == "ConnectionError: the rail is down"
    assert event.ended_at is not None
    assert dead["dead_lettered_at"] == event.ended_at.isoformat().replace("+00:00", "Z")
    assert look["execution"]["retry_key"] == "down-1:refund"
    assert (look["execution"]["attempt_count"], look["entries"]) == (3, [])


@pytest.mark.req("A2")
async def test_while_it_waits_for_a_retry_everybody_sees_when(with_rail: System) -> None:
    await with_rail.app.set_policy("adjudication.execute", by="olga", reason="slowly", base_delay="4m", max_delay="4m")
    await with_rail.submit("down-1")
    await with_rail.adjudicate("down-1")
    await with_rail.app.worker().drain()

    look = await with_rail.look("down-1")
    (event,) = await with_rail.app.events()
    assert (event.retry_key, event.attempt_count) == ("down-1:release", 1)
    assert event.next_retry_at is not None
    assert look["execution"]["next_retry_at"] == event.next_retry_at.isoformat().replace("+00:00", "Z")
    assert look["execution"]["attempt_count"] == 1
    assert look["trail"][0]["next_retry_at"] == look["execution"]["next_retry_at"]


@pytest.mark.req("A5")
async def test_a_replay_after_the_re_escalation_carries_it_out(with_rail: System) -> None:
    await with_rail.submit("slow-3-a")
    await with_rail.adjudicate("slow-3-a")
    async with working(with_rail.app) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)
    event = await with_rail.execution("slow-3-a")
    await with_rail.app.replay(event.id, by="olga", reason="the rail is back")
    await with_rail.app.worker().drain()

    look = await with_rail.look("slow-3-a")
    assert (look["settlement_progression_status"], look["dispute_lifecycle_status"]) == ("executed", "closed")
    assert [entry["kind"] for entry in look["trail"]] == ["retry-scheduled", "retry-scheduled", "dead-lettered"]
    assert look["dispatch_reference"] == "rail/slow-3-a:release"


async def test_the_same_decision_once_more_after_a_dead_letter_is_a_new_execution(with_rail: System) -> None:
    await with_rail.submit("slow-3-a")
    first = (await with_rail.adjudicate("slow-3-a")).json()["execution"]["event_id"]
    async with working(with_rail.app) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)
    again = await with_rail.adjudicate("slow-3-a")
    await with_rail.app.worker().drain()

    assert again.status_code == 202
    assert again.json()["execution"]["event_id"] != first
    assert (await with_rail.look("slow-3-a"))["settlement_progression_status"] == "executed"
    await with_rail.app.replay(UUID(first), by="olga", reason="did not know that it was done")
    assert [each.status for each in await with_rail.app.events(EventFilter(id_prefix=first))] == [Status.DELIVERED]
    assert await with_rail.rows("entry", "party, amount_minor") == [("seller", 1_000)]


@pytest.mark.req("A3")
async def test_fifty_submissions_at_once_are_one_execution(system: System) -> None:
    await system.submit("r-1")
    async with working(system.app) as worker:
        said = await asyncio.gather(*(system.adjudicate("r-1") for _ in range(50)))
        await until(lambda: worker.tally.delivered == 1)

        assert sorted(answer.status_code for answer in said) == [200] * 49 + [202]
        assert len({answer.json()["execution"]["event_id"] for answer in said}) == 1
        assert len(await system.app.events()) == 1
        await until(lambda: worker.tally.delivered == 1)

    assert await system.rows("entry", "party, amount_minor") == [("seller", 1_000)]


@pytest.mark.req("A3")
async def test_a_second_submission_gets_the_execution_that_waits_for_its_retry(with_rail: System) -> None:
    await with_rail.app.set_policy("adjudication.execute", by="olga", reason="slowly", base_delay="4m", max_delay="4m")
    await with_rail.submit("down-1")
    first = await with_rail.adjudicate("down-1")
    await with_rail.app.worker().drain()
    second = await with_rail.adjudicate("down-1")

    assert second.status_code == 200
    assert second.json()["execution"]["event_id"] == first.json()["execution"]["event_id"]
    assert second.json()["execution"]["attempt_count"] == 1
    assert len(await with_rail.app.events()) == 1


@pytest.mark.req("A3")
async def test_a_submission_after_the_execution_dispatches_nothing(system: System) -> None:
    await system.submit("r-1")
    await system.adjudicate("r-1")
    await system.app.worker().drain()
    again = await system.adjudicate("r-1")

    assert (again.status_code, again.json()["execution"]["status"]) == (200, "delivered")
    assert len(await system.app.events()) == 1


@pytest.mark.req("A3", "A5")
async def test_submissions_while_executions_are_buried_end_in_one_of_the_two_states(with_rail: System) -> None:
    """Who submits and who buries take the same locks: neither waits for the other for ever, and none is half done."""
    names = [f"down-{n}" for n in range(8)]
    for name in names:
        await with_rail.submit(name)

    async def insist(name: str) -> None:
        for _ in range(12):
            said = await with_rail.adjudicate(name)
            assert said.status_code in {200, 202}, said.text

    async with working(with_rail.app):
        await asyncio.gather(*map(insist, names))

        async def is_quiet() -> bool:
            return all(event.status is Status.FAILED for event in await with_rail.app.events(EventFilter(limit=500)))

        await until(is_quiet)

    for name in names:
        look = await with_rail.look(name)
        assert (look["settlement_progression_status"], look["execution"]["status"]) == ("dispute-ready", "failed")
        dead = [entry["event_id"] for entry in look["trail"] if entry["kind"] == "dead-lettered"]
        assert len(dead) == len(set(dead)) >= 1
    assert await with_rail.app.attention(kinds=["hook"]) == []


async def test_a_dispatch_that_worked_is_not_repeated_when_the_booking_fails(
    store_url: str, tmp_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAIL_FOLDER", str(tmp_path))
    from tests.apps.adjudication import rails

    async with running(store_url, ADJUDICATION_DISPATCH="tests.apps.adjudication.rails:pay") as system:
        await system.submit("r-1")
        await system.adjudicate("r-1")
        await system.jam("entry")
        async with working(system.app) as worker:
            await until(lambda: worker.tally.dead_lettered == 1)
        await system.mend("entry")
        await system.app.replay((await system.execution("r-1")).id, by="olga", reason="there is room again")
        await system.app.worker().drain()

        assert (await system.look("r-1"))["settlement_progression_status"] == "executed"
        assert rails.calls("r-1:release") == 1
