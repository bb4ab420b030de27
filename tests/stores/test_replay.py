"""Replay: in place, atomic, with its history, by exactly one operator (O5, O6, O12)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from redrive import Event, FailureCycle, Redrive, Refused, Status
from redrive.clock import SystemClock, VirtualClock
from redrive.event import HISTORY_LIMIT
from redrive.store.base import EVENT_COLUMNS
from tests.stores.helpers import Hands, failed, found, kinds, raw, retried, uuid_of


@pytest.mark.req("O5", "W5")
async def test_a_replay_keeps_the_cycle_clears_the_failure_and_leaves_the_identity(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish(
        "t", {"n": 1}, subject="order/1", idempotency_key="i1", retry_key="k1", correlation_id="c1",
        causation_id="e0", headers={"a": "b"}, source="shop", generation=3, priority=2,
    )  # fmt: skip
    await hands.settle(retried(await hands.claim_one(), 5.0, "first"))
    clock.advance(5)
    await hands.settle(failed(await hands.claim_one(), "second"))
    dead = await found(app, published.id)
    clock.advance(60)

    await app.replay(published.id, by="ann", reason="mended", generation=4)
    event = await found(app, published.id)

    assert dead.first_failed_at == clock.now() - timedelta(seconds=65)
    cycle = FailureCycle(
        cycle=0, attempts=2, lost_count=0, first_failed_at=dead.first_failed_at, failed_at=dead.ended_at,
        last_error="second", error_class="broken", error_type="builtins.OSError", fingerprint="f1", generation=3,
        replayed_at=clock.now(), replayed_by="ann", reason="mended",
    )  # fmt: skip
    assert event == replace(
        dead, status=Status.PENDING, due_at=clock.now(), attempts=0, cycle=1, generation=4, first_failed_at=None,
        last_error=None, error_class=None, error_type=None, safe_to_retry=None, fingerprint=None, ended_at=None,
        failure_history=(cycle,),
    )  # fmt: skip
    assert await kinds(app, published.id) == ["retry-scheduled", "dead-lettered", "replayed"]
    entry = (await app.trail(published.id))[-1]
    assert (entry.actor, entry.source, entry.chain, entry.at) == ("ann", "shop", "operator", clock.now())
    assert {**entry.facts, "redrive": None} == {
        "reason": "mended", "generation": 4, "cycle": 1, "redrive": None, "from_start": False,
    }  # fmt: skip


@pytest.mark.req("O5")
async def test_a_replay_without_a_generation_leaves_it_when_no_worker_serves_another(
    app: Redrive, hands: Hands
) -> None:
    dead = await hands.dead_letter(generation=7)
    await app.store.end_session(hands.id)

    await app.replay(dead, by="ann", reason="mended")

    assert (await found(app, dead)).generation == 7
    assert (await app.trail(dead))[-1].facts["generation"] == 7


@pytest.mark.req("O5")
async def test_a_replayed_event_counts_its_losses_anew(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    published = await app.publish("t")
    await hands.claim_one()
    await app.store.end_session(hands.id)
    other = await Hands.begin(app)
    await other.sweep()
    await other.settle(failed(await other.claim_one()))

    await app.replay(published.id, by="ann", reason="mended")
    event = await found(app, published.id)

    assert (event.lost_count, event.failure_history[0].lost_count) == (0, 1)
    await other.claims.close()


@pytest.mark.req("O12", "O5")
async def test_the_history_keeps_the_last_twenty_cycles_and_counts_the_rest(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    dead = await hands.dead_letter(error="boom 0")
    for cycle in range(HISTORY_LIMIT + 5):
        await app.replay(dead, by=f"ann {cycle}", reason="once more")
        clock.advance(1)
        await hands.settle(failed(await hands.claim_one(), f"boom {cycle + 1}"))

    event = await found(app, dead)

    assert HISTORY_LIMIT == 20
    assert [kept.cycle for kept in event.failure_history] == list(range(5, 25))
    assert [kept.last_error for kept in event.failure_history] == [f"boom {n}" for n in range(5, 25)]
    assert [kept.replayed_by for kept in event.failure_history] == [f"ann {n}" for n in range(5, 25)]
    assert (event.cycle, event.dropped_cycles) == (25, 5)


@pytest.mark.req("O12")
async def test_a_cycle_written_by_a_later_version_is_read_and_kept(store_url: str, app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter()
    later = json.dumps([{"cycle": 0, "attempts": 2, "mood": "gloomy"}])
    with raw(store_url) as run:
        run("update {outbox} set cycle = 1, failure_history = '" + later + "'")

        await app.replay(dead, by="ann", reason="mended")
        first, second = (await found(app, dead)).failure_history
        ((stored,),) = run("select failure_history from {outbox}")

    assert (first.attempts, first.replayed_by) == (2, None)
    assert (second.cycle, second.replayed_by) == (1, "ann")
    assert (stored if isinstance(stored, list) else json.loads(stored))[0]["mood"] == "gloomy"


@pytest.mark.req("O5", "W6")
async def test_of_three_operators_at_once_exactly_one_wins(store_url: str, app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter()
    apps = [Redrive(store_url, clock=VirtualClock(seed=n)) for n in range(3)]
    for each in apps:
        await each.open()

    answers = await asyncio.gather(
        *(each.replay(dead, by=f"op {n}", reason="mended") for n, each in enumerate(apps)), return_exceptions=True
    )

    assert [type(answer) for answer in answers if answer is not None] == [Refused, Refused]
    event = await found(app, dead)
    winner = answers.index(None)
    assert (event.cycle, [kept.replayed_by for kept in event.failure_history]) == (1, [f"op {winner}"])
    assert (await kinds(app, dead)).count("replayed") == 1
    for each in apps:
        await each.close()


@pytest.mark.req("O5", "A3")
async def test_a_replay_is_refused_while_another_event_has_its_retry_key(app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter(retry_key="receipt-1")
    live = await app.publish("t", retry_key="receipt-1")
    before, told_before = await found(app, dead), await kinds(app, dead)

    with pytest.raises(Refused) as refusal:
        await app.replay(dead, by="ann", reason="mended")

    assert str(refusal.value) == (f"event {dead} cannot be replayed: another event with its retry key is under way")
    assert await found(app, dead) == before
    assert await kinds(app, dead) == told_before
    await hands.deliver(await hands.claim_one())
    await app.replay(dead, by="ann", reason="now it is free")
    assert (await found(app, dead)).status is Status.PENDING
    assert live.created


@pytest.mark.req("W6")
async def test_no_restart_replays_anything(store_url: str, app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    dead = await hands.dead_letter()
    before = await found(app, dead)
    clock.advance("30d")

    async with Redrive(store_url, clock=clock, migrate=True) as again:
        other = await Hands.begin(again)
        swept, claimed = await other.sweep(), await other.claim()
        await other.claims.close()

    assert (swept, claimed) == ([], [])
    assert await found(app, dead) == before


# --- from psql --------------------------------------------------------------------------------------


def comparable(event: Event) -> dict[str, Any]:
    """Everything but what two events never share: who they are and when it was."""
    shown = event.to_json()
    for name in ("id", "idempotency_key", "created_at", "due_at", "session_id", "next_retry_at"):
        shown.pop(name)
    for cycle in shown["failure_history"]:
        for name in ("first_failed_at", "failed_at", "replayed_at"):
            assert cycle.pop(name) is not None
    return shown


@pytest.mark.req("O6")
async def test_a_replay_from_psql_leaves_the_same_row_and_the_same_trail_as_one_from_python(
    postgres_url: str,
) -> None:
    async with Redrive(postgres_url, clock=SystemClock(), migrate=True) as app:
        hands = await Hands.begin(app)
        one, two = [await hands.dead_letter(payload={"n": 1}, source="shop", generation=1) for _ in range(2)]

        await app.replay(one, by="sql-direct", reason="outbox_replay", generation=5)
        with psycopg.connect(postgres_url) as psql:
            psql.execute("select redrive.outbox_replay(%s, %s, %s)", (two, 5, "sql-direct"))

        assert comparable(await found(app, one)) == comparable(await found(app, two))
        from_python, from_psql = [(await app.trail(each))[-1] for each in (one, two)]
        assert {**from_python.facts, "redrive": ""} == {**from_psql.facts, "redrive": ""}
        for name in ("chain", "kind", "source", "actor"):
            assert getattr(from_python, name) == getattr(from_psql, name)
        assert (await app.verify_trail()).sound
        assert len(await hands.claim()) == 2
        await hands.claims.close()


@pytest.mark.req("O6")
async def test_the_function_has_the_signature_that_operators_were_promised(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True):
        with raw(postgres_url) as run:
            ((signature,),) = run(
                "select pg_get_function_identity_arguments(oid) from pg_proc where proname = 'outbox_replay'"
            )

    assert signature == "event_id uuid, p_new_generation bigint, p_replayed_by text"


@pytest.mark.req("O6")
@pytest.mark.parametrize("status", ["pending", "in_flight", "delivered", "discarded", "cancelled"])
async def test_psql_is_told_why_a_replay_is_refused(status: str, postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        hands = await Hands.begin(app)
        event_id = (await app.publish("t")).id
        if status == "cancelled":
            await app.cancel(event_id, by="ann", reason="wrong")
        elif status != "pending":
            row = await hands.claim_one()
            if status == "delivered":
                await hands.deliver(row)
            elif status == "discarded":
                await hands.settle(failed(row))
                await app.discard(event_id, by="ann", reason="noise")
        before = await found(app, event_id)

        with pytest.raises(Refused) as from_python:
            await app.replay(event_id, by="ann", reason="mended")
        with psycopg.connect(postgres_url) as psql, pytest.raises(psycopg.Error) as from_psql:
            psql.execute("select redrive.outbox_replay(%s, 1, 'ann')", (event_id,))

        assert str(from_python.value) in str(from_psql.value)
        assert from_psql.value.sqlstate == "RD409"
        assert await found(app, event_id) == before
        await hands.claims.close()


@pytest.mark.req("O6")
async def test_psql_must_name_the_event_and_the_operator(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        hands = await Hands.begin(app)
        dead = await hands.dead_letter()
        errors = []
        with psycopg.connect(postgres_url, autocommit=True) as psql:
            for event_id, by in ((dead, ""), (dead, " "), (dead, None), (UUID(int=7), "ann")):
                with pytest.raises(psycopg.Error) as error:
                    psql.execute("select redrive.outbox_replay(%s, 1, %s)", (event_id, by))
                errors.append(error.value.sqlstate)

        assert errors == ["RD400", "RD400", "RD400", "RD404"]
        assert (await found(app, dead)).status is Status.FAILED
        await hands.claims.close()


@pytest.mark.req("O6", "O12")
async def test_the_history_is_bounded_for_psql_too(postgres_url: str) -> None:
    async with Redrive(postgres_url, clock=VirtualClock(), migrate=True) as app:
        hands = await Hands.begin(app)
        dead = await hands.dead_letter(error="boom 0")
        with psycopg.connect(postgres_url, autocommit=True) as psql:
            for cycle in range(23):
                psql.execute("update redrive.outbox set status = 'failed', last_error = %s", (f"boom {cycle}",))
                psql.execute("select redrive.outbox_replay(%s, 1, 'ann')", (dead,))

        event = await found(app, dead)

        assert [kept.last_error for kept in event.failure_history] == [f"boom {n}" for n in range(3, 23)]
        assert event.dropped_cycles == 3
        await hands.claims.close()


async def test_two_operators_in_psql_cannot_replay_the_same_event_twice(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        hands = await Hands.begin(app)
        dead = await hands.dead_letter()
        with psycopg.connect(postgres_url) as first, psycopg.connect(postgres_url) as second:
            first.execute("select redrive.outbox_replay(%s, 1, 'ann')", (dead,))
            waiting = asyncio.create_task(
                asyncio.to_thread(second.execute, "select redrive.outbox_replay(%s, 2, 'bob')", (dead,))
            )
            await asyncio.sleep(0.1)
            blocked = not waiting.done()
            first.commit()

            with pytest.raises(psycopg.Error, match="is pending: only a dead letter"):
                await waiting

        event = await found(app, dead)
        assert blocked
        assert (event.generation, len(event.failure_history)) == (1, 1)
        await hands.claims.close()


def test_the_columns_of_an_event_are_those_of_the_read_view() -> None:
    assert tuple(Event.__dataclass_fields__) == (*EVENT_COLUMNS, "unreadable")  # said of a row, not stored in it


@pytest.mark.req("O5", "O8", "B6")
async def test_a_replay_of_what_has_had_its_effect_ends_it_as_delivered_and_frees_its_key(
    app: Redrive, hands: Hands
) -> None:
    made = await app.batches.open("import")
    first = await app.publish("t", ordering_key="k", batch=made)
    second = await app.publish("t", ordering_key="k")
    await made.close()
    (row,) = await hands.claim()
    async with app.store.transaction() as tx:  # as ctx.once_in does; then the attempt fails
        await tx.mark_handled("t", str(first.id), first.id)
    await hands.settle(failed(row))
    assert await hands.claim() == []

    await app.replay(first.id, by="ann", reason="its effect is there")

    ended = await found(app, first.id)
    assert (ended.status, ended.cycle, (await app.group("f1")).dead_count) == (Status.DELIVERED, 0, 0)
    assert [uuid_of(each) for each in await hands.claim()] == [second.id]
    assert (await app.batches.get(made.id)).final is not None
    last = (await app.trail(first.id))[-1]
    assert (last.kind, last.actor, last.facts["already_handled"]) == ("replayed", "ann", True)
    with pytest.raises(Refused, match="is delivered: only a dead letter"):
        await app.replay(first.id, by="ann", reason="again")


@pytest.mark.req("O5")
async def test_an_edited_payload_is_no_reason_to_end_what_has_had_its_effect(app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter("t")
    async with app.store.transaction() as tx:
        await tx.mark_handled("t", str(dead), dead)

    with pytest.raises(Refused, match="already handled"):
        await app.replay(dead, payload={"n": 2}, by="ann", reason="typo")
    with pytest.raises(Refused):
        await app.replay(dead, cycle=7, by="ann", reason="somebody else was faster")

    assert (await found(app, dead)).status is Status.FAILED
