"""Ordering keys in the stores: one event of a key at a time, in order, and nobody forgotten (B6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest

from redrive import Redrive, Status, dependency, ordering
from redrive.clock import VirtualClock
from redrive.event import Settlement
from redrive.settle import settlement_for_blocked
from redrive.store.base import Ages, Finished, Row
from tests.stores.helpers import Hands, failed, found, raw, retried, uuid_of

pytestmark = pytest.mark.promise("order")

SOON = 10.0


async def publish(app: Redrive, *keys: str | None, type_: str = "t") -> list[UUID]:
    return [(await app.publish(type_, n, ordering_key=key)).id for n, key in enumerate(keys)]


async def claimed(hands: Hands) -> list[UUID]:
    return [uuid_of(row) for row in await hands.claim()]


async def claim_soon(hands: Hands) -> list[Row]:
    """Claim until something comes: what commits late is looked for now and then only."""
    async with asyncio.timeout(SOON):
        while not (rows := await hands.claim()):  # noqa: ASYNC110 - a look at the database
            await asyncio.sleep(0.01)
    return rows


async def statuses(app: Redrive, ids: list[UUID]) -> list[str]:
    return [(await found(app, each)).status.value for each in ids]


async def shut(app: Redrive, name: str) -> None:
    """Shut a dependency as failures do, so that somebody may look at once whether it is back."""
    news, circuit = dependency.News(1, 0, 1), dependency.Circuit(threshold=1, probe_after=0.0)
    await dependency.tell(app.store, name, dependency.Kind.DEPENDENCY, news, circuit, lambda: 0.0, by="hands")


async def probed(hands: Hands, name: str, generation: int = 0) -> UUID | None:
    row = await dependency.probe(hands.app.store, name, hands.id, ["t"], ["default"], generation)
    return None if row is None else uuid_of(row)


def passed(row: Row) -> Settlement:
    settlement = failed(row)
    settlement.passed = True
    return settlement


@pytest.mark.req("B6")
async def test_of_one_key_one_event_at_a_time_is_claimed_in_the_order_of_publishing(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a", "b", None, "a", None, "b")

    first = await hands.claim()
    assert [uuid_of(row) for row in first] == [ids[0], ids[2], ids[3], ids[5]]
    assert await statuses(app, ids) == [
        "in_flight", "blocked", "in_flight", "in_flight", "blocked", "in_flight", "blocked",
    ]  # fmt: skip
    assert await hands.claim() == []

    await hands.deliver(*first)
    second = await hands.claim()
    assert [uuid_of(row) for row in second] == [ids[1], ids[6]]
    assert [row[3] for row in second] == [1, 1]  # to wait is no attempt

    await hands.deliver(*second)
    assert await claimed(hands) == [ids[4]]


@pytest.mark.req("B6")
async def test_a_key_is_a_matter_of_one_target(app: Redrive, hands: Hands) -> None:
    one = await publish(app, "a")
    other = await publish(app, "a", type_="u")

    assert await claimed(hands) == one + other


@pytest.mark.req("B6")
async def test_a_retry_keeps_its_place_and_the_others_wait_for_it(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    ids = await publish(app, "a", "a")
    (row,) = await hands.claim()
    await hands.settle(retried(row, 30.0))

    assert await hands.claim() == []
    clock.advance(31)
    (again,) = await hands.claim()
    assert uuid_of(again) == ids[0]
    await hands.put_back(again)
    (again,) = await hands.claim()
    assert uuid_of(again) == ids[0]
    await hands.deliver(again)
    assert await claimed(hands) == ids[1:]


@pytest.mark.req("B6")
async def test_an_event_that_is_due_later_holds_up_those_published_after_it(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    later = await app.publish("t", ordering_key="a", delay="1m")
    after = await publish(app, "a")

    assert await hands.claim() == []
    clock.advance("2m")
    (row,) = await hands.claim()
    assert uuid_of(row) == later.id
    await hands.deliver(row)
    assert await claimed(hands) == after


@pytest.mark.req("B6")
async def test_a_dead_letter_holds_up_its_key_until_it_is_out_of_the_way(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    ids = await publish(app, "a", "a", "b")
    first, other = await hands.claim()
    await hands.settle(failed(first))
    await hands.deliver(other)
    later = await publish(app, "a")

    assert await hands.claim() == []
    assert await statuses(app, [*ids, *later]) == ["failed", "blocked", "delivered", "blocked"]

    await app.discard(ids[0], by="ann", reason="not worth it")
    (second,) = await hands.claim()
    assert uuid_of(second) == ids[1]
    await hands.settle(passed(second))
    assert await claimed(hands) == later


@pytest.mark.req("B6")
@pytest.mark.parametrize(
    "act",
    ["cancel pending", "cancel all pending", "overdue", "handler's transaction"],
)
async def test_whatever_ends_the_head_lets_the_next_go(act: str, app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a")
    (row,) = await hands.claim()
    if act.endswith("pending"):
        await hands.settle(retried(row, 600.0))
    if act.startswith("cancel all"):
        assert await app.cancel_all(ids[:1], by="ann", reason="no need") == ids[:1]
    elif act.startswith("cancel"):
        await app.cancel(ids[0], by="ann", reason="no need")
    elif act == "overdue":
        async with app.store.pulse() as beat:
            assert await beat(hands.id, 30.0, [row])
        (taken,) = await hands.sweep()
        assert (uuid_of(taken), await hands.claim()) == (ids[0], [])
        assert await hands.settle(passed(taken)) == []
    else:
        async with app.store.transaction() as tx:
            assert await tx.deliver(row[0], row[1])

    assert await claimed(hands) == ids[1:]


@pytest.mark.req("B6")
@pytest.mark.parametrize("many", [False, True])
async def test_a_cancelled_event_keeps_its_key_until_its_handler_has_ended(
    many: bool, app: Redrive, hands: Hands
) -> None:
    ids = await publish(app, "a", "a", "a")
    (row,) = await hands.claim()
    if many:
        assert await app.cancel_all(ids[:1], by="ann", reason="no need") == ids[:1]
    else:
        await app.cancel(ids[0], by="ann", reason="no need")

    assert await hands.claim() == []
    await app.cancel(ids[1], by="ann", reason="no need either")
    assert await hands.claim() == []
    line = await app.line("t", "a")
    assert [(each.id, each.status) for each in line] == [(ids[0], "cancelled"), (ids[2], "blocked")]
    async with app.store.transaction() as tx:
        await tx.run("told", ids=[row[0]])
        await tx.run("promote", target="t", ordering_key="a")
    assert await claimed(hands) == ids[2:]


@pytest.mark.req("B6")
async def test_a_key_that_a_cancelled_event_kept_is_free_when_its_session_is_gone(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    ids = await publish(app, "a", "a")
    await hands.claim()
    await app.cancel(ids[0], by="ann", reason="no need")
    clock.advance("1m")
    done: list[int] = []

    @app.handler("t")
    async def handle(payload: int) -> None:
        done.append(payload)

    await app.worker().drain()
    await app.worker().drain()

    assert len(done) == 1


@pytest.mark.req("B6", "H5")
async def test_retention_keeps_a_dead_letter_that_others_wait_behind(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    ids = await publish(app, "a", "a")
    (row,) = await hands.claim()
    await hands.settle(failed(row))
    clock.advance("1h")

    gone = await app.store.purge(Ages(failed=0.0), by="ann", limit=10)
    assert (gone.dead_letters, await hands.claim()) == (0, [])
    await app.release_key("a", by="ann", reason="go on without it")
    gone = await app.store.purge(Ages(failed=0.0), by="ann", limit=10)

    assert (gone.dead_letters, await claimed(hands)) == (1, ids[1:])


@pytest.mark.req("B6")
async def test_one_that_waits_can_be_cancelled_and_the_order_of_the_rest_stays(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a", "a")
    (row,) = await hands.claim()

    await app.cancel(ids[1], by="ann", reason="no need")
    assert await hands.claim() == []
    await hands.deliver(row)

    assert await claimed(hands) == ids[2:]


@pytest.mark.req("B6", "O5")
async def test_a_replayed_head_goes_first_again(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a", "a")
    (row,) = await hands.claim()
    await hands.settle(passed(row))
    (second,) = await hands.claim()
    await app.replay(ids[0], by="ann", reason="mended")

    assert await hands.claim() == []  # the second is under way
    await hands.deliver(second)
    (head,) = await hands.claim()
    assert uuid_of(head) == ids[0]
    await hands.settle(failed(head))
    assert await hands.claim() == []
    assert (await found(app, ids[2])).status is Status.BLOCKED


@pytest.mark.req("B6")
@pytest.mark.parametrize("way", ["retried", "failed", "blocked", "put back", "lost"])
async def test_one_that_waits_for_a_later_one_goes_first_when_that_comes_back(
    way: str, app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    """A replayed head finds its successor in flight; then the successor fails, and must not wait for the head."""
    ids = await publish(app, "a", "a")
    (row,) = await hands.claim()
    await hands.settle(passed(row))
    holder = await Hands.begin(app, lease=5.0)
    (second,) = await holder.claim()
    await app.replay(ids[0], by="ann", reason="mended")
    assert await hands.claim() == []
    if way == "retried":
        await holder.settle(retried(second, 0.0))
    elif way == "failed":
        await holder.settle(failed(second))
    elif way == "blocked":
        await holder.settle(settlement_for_blocked(second, "api"))
    elif way == "put back":
        await holder.put_back(second)
    else:
        clock.advance(6)
        await hands.sweep()

    rows = [row for _ in range(3) for row in await hands.claim()]
    assert [uuid_of(row) for row in rows] == ids[:1]
    await hands.deliver(*rows)
    assert await claimed(hands) == ([] if way in ("failed", "blocked") else ids[1:])
    if way == "blocked":
        assert await dependency.release(app.store, "api", dependency.DEFAULT) == 1
        assert await claimed(hands) == ids[1:]
    await holder.claims.close()


@pytest.mark.req("B6", "W4")
async def test_a_head_that_is_blocked_on_a_dependency_keeps_its_place(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a", "a")
    (head,) = await hands.claim()
    await hands.settle(settlement_for_blocked(head, "api"))

    assert await hands.claim() == []
    assert await statuses(app, ids) == ["blocked", "blocked", "blocked"]
    assert [each.blocked_on for each in await app.line("t", "a")] == ["api", None, None]
    assert await ordering.unstick(app.store, ordering.START) == ordering.START
    assert await hands.claim() == [], "nobody is stuck: the head waits for something"

    assert await dependency.release(app.store, "api", dependency.DEFAULT) == 1
    for each in ids:
        (row,) = await hands.claim()
        assert uuid_of(row) == each
        await hands.deliver(row)


@pytest.mark.req("B6", "W4")
async def test_cancelling_a_head_that_is_blocked_on_a_dependency_lets_the_next_go(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a")
    (head,) = await hands.claim()
    await hands.settle(settlement_for_blocked(head, "api"))
    assert await hands.claim() == []

    await app.cancel(ids[0], by="ann", reason="no need")
    assert await claimed(hands) == ids[1:]


@pytest.mark.req("B6", "W4")
async def test_a_probe_takes_nothing_that_stands_behind_another_of_its_key(app: Redrive, hands: Hands) -> None:
    """A replayed head stands before one that waits for a dependency: first in line, then in flight, then delivered."""
    ids = await publish(app, "a", "a")
    (first,) = await hands.claim()
    await hands.settle(passed(first))
    (second,) = await hands.claim()
    await hands.settle(settlement_for_blocked(second, "api"))
    await shut(app, "api")
    await app.replay(ids[0], by="ann", reason="mended")

    assert await probed(hands, "api") is None, "the head is before it"
    (head,) = await hands.claim()
    assert uuid_of(head) == ids[0]
    assert await probed(hands, "api") is None, "the head is under way"
    await hands.deliver(head)
    assert await probed(hands, "api") == ids[1]


@pytest.mark.req("B6", "W4")
async def test_one_that_is_unblocked_behind_another_of_its_key_waits_for_it(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a")
    (first,) = await hands.claim()
    await hands.settle(passed(first))
    (second,) = await hands.claim()
    await hands.settle(settlement_for_blocked(second, "api"))
    await app.replay(ids[0], by="ann", reason="mended")
    (head,) = await hands.claim()

    assert await dependency.release(app.store, "api", dependency.DEFAULT) == 1
    assert await hands.claim() == []
    await hands.deliver(head)
    assert await claimed(hands) == ids[1:]


@pytest.mark.req("W4")
async def test_a_probe_is_of_the_workers_generation_or_of_none(app: Redrive, hands: Hands, store_url: str) -> None:
    ids = await publish(app, None, None)
    await hands.settle(*(settlement_for_blocked(row, "api") for row in await hands.claim()))
    with raw(store_url) as run:
        run(f"update {{outbox}} set generation = 3 where id = '{ids[0]}'")
    await shut(app, "api")

    assert await probed(hands, "api", 2) == ids[1]
    await dependency.conclude(app.store, "api", ids[1], dependency.DEFAULT, lambda: 0.0, ok=None, by="hands")
    assert await probed(hands, "api", 2) is None
    assert await probed(hands, "api", 3) == ids[0]


@pytest.mark.req("B6")
async def test_a_restored_head_holds_up_its_key_again(app: Redrive, hands: Hands) -> None:
    ids = await publish(app, "a", "a")
    (row,) = await hands.claim()
    await hands.settle(failed(row))
    await app.discard(ids[0], by="ann", reason="not worth it")
    await app.restore(ids[0], by="ann", reason="it is")

    assert await hands.claim() == []
    await app.replay(ids[0], by="ann", reason="mended")
    (head,) = await hands.claim()
    await hands.deliver(head)
    assert await claimed(hands) == ids[1:]


@pytest.mark.req("B6")
async def test_what_a_lost_worker_held_goes_first_again(app: Redrive, hands: Hands, clock: VirtualClock) -> None:
    ids = await publish(app, "a", "a")
    lost = await Hands.begin(app, lease=5.0)
    assert await claimed(lost) == ids[:1]
    clock.advance(6)
    assert await hands.claim() == []

    assert [uuid_of(row) for row in await hands.sweep()] == ids[:1]
    (row,) = await hands.claim()
    assert uuid_of(row) == ids[0]
    await hands.deliver(row)
    assert await claimed(hands) == ids[1:]
    await lost.claims.close()


@pytest.mark.req("B6")
async def test_many_that_wait_do_not_hide_what_is_behind_them(app: Redrive, hands: Hands) -> None:
    await app.publish_many([("t", n, {"ordering_key": "a"}) for n in range(50)])
    free = await app.publish("t", "free")

    turns = [await hands.claims.turn(Finished(), 10) for _ in range(6)]

    assert [turn.more for turn in turns] == [True] * 5 + [False]
    assert [len(turn.claimed) for turn in turns] == [1, 0, 0, 0, 0, 1]
    assert uuid_of(turns[-1].claimed[0]) == free.id


@pytest.mark.req("B6")
async def test_the_database_itself_refuses_two_of_a_key_in_flight(app: Redrive, hands: Hands, store_url: str) -> None:
    await publish(app, "a", "a")
    await hands.claim()

    with raw(store_url) as run, pytest.raises(Exception, match=r"outbox_key_in_flight|ordering_key"):
        run("update {outbox} set status = 'in_flight' where status = 'blocked'")


@pytest.mark.req("B6")
async def test_what_was_left_behind_by_hand_is_found_however_many_keys_there_are(
    app: Redrive, hands: Hands, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "_WALKED", 3)
    ids = await publish(app, *(key for n in range(5) for key in (f"a{n}", f"a{n}")))
    rows = await hands.claim()
    with raw(store_url) as run:  # three heads vanish without a word
        for row in rows[2:]:
            run(f"delete from {{outbox}} where id = '{row[0]}'")
    assert await hands.claim() == []

    walked, rounds = ordering.START, 0
    while rounds == 0 or walked != ordering.START:
        walked, rounds = await ordering.unstick(app.store, walked), rounds + 1

    assert rounds == 2
    assert await claimed(hands) == ids[5::2]


@pytest.mark.req("B6")
async def test_looking_for_what_was_left_behind_waits_for_no_writer(sqlite_url: str) -> None:
    """A worker looks now and then; were that a transaction, a blocked event loop would keep the file locked with it."""
    async with Redrive(sqlite_url) as app:
        await publish(app, "a", "a")
        async with app.store.transaction(), asyncio.timeout(SOON):
            await ordering.unstick(app.store, ordering.START)


# --- what only several connections at once can bring about ----------------------------------------


@pytest.fixture
async def live(postgres_url: str) -> AsyncIterator[Redrive]:
    """An app on PostgreSQL in real time."""
    async with Redrive(postgres_url, migrate=True) as app:
        yield app


@pytest.mark.req("B6", "B5")
async def test_an_earlier_event_that_commits_late_waits_for_the_one_under_way(live: Redrive, postgres_url: str) -> None:
    async with AsyncExitStack() as stack:
        hands = await Hands.begin(live)
        stack.push_async_callback(hands.claims.close)
        caller = await stack.enter_async_context(await psycopg.AsyncConnection.connect(postgres_url))
        early = await live.publish_in(caller, "t", ordering_key="a")
        late = await publish(live, "a", "a")
        (row,) = await hands.claim()
        assert uuid_of(row) == late[0]
        await caller.commit()

        assert await hands.claim() == []
        await hands.deliver(row)
        (head,) = await claim_soon(hands)
        assert uuid_of(head) == early.id
        await hands.deliver(head)
        assert [uuid_of(row) for row in await claim_soon(hands)] == late[1:]


@pytest.mark.req("B6")
async def test_what_is_published_while_the_head_is_ending_is_not_forgotten(live: Redrive, postgres_url: str) -> None:
    """The head ends in a transaction that is open while another claim looks: neither of them can know of the other."""
    async with AsyncExitStack() as stack:
        hands, other = await Hands.begin(live), await Hands.begin(live)
        stack.push_async_callback(hands.claims.close)
        stack.push_async_callback(other.claims.close)
        (first,) = await publish(live, "a")
        (row,) = await hands.claim()
        async with live.store.transaction() as tx:
            assert await tx.deliver(row[0], row[1])
            (second,) = await publish(live, "a")
            async with asyncio.timeout(SOON):
                turn = await other.claims.turn(Finished(), 10)
            assert (list(turn.claimed), turn.held) == ([], True)
            assert await statuses(live, [first, second]) == ["in_flight", "pending"]

        assert await claimed(other) == [second]


@pytest.mark.req("B6")
async def test_a_head_cannot_end_unseen_while_a_claim_blocks_its_successor(live: Redrive, postgres_url: str) -> None:
    async with AsyncExitStack() as stack:
        hands = await Hands.begin(live)
        stack.push_async_callback(hands.claims.close)
        claiming = await asyncpg.connect(postgres_url)
        stack.push_async_callback(claiming.close)
        ids = await publish(live, "a")
        (row,) = await hands.claim()
        ids += await publish(live, "a")
        claim = claiming.transaction()
        await claim.start()
        assert await claiming.fetchval("select redrive.take_turns(array[$1::uuid], null)", ids[1]) == []

        delivering = asyncio.create_task(hands.deliver(row))
        await asyncio.sleep(0.2)
        assert not delivering.done()
        await claim.commit()
        await delivering

        assert await claimed(hands) == ids[1:]


@pytest.mark.req("B6")
async def test_two_claims_that_cannot_see_each_other_do_not_take_two_of_a_key(live: Redrive, postgres_url: str) -> None:
    """The unique index decides, and the loser's turn is tried again: its settlements are written all the same."""
    async with AsyncExitStack() as stack:
        hands = await Hands.begin(live)
        stack.push_async_callback(hands.claims.close)
        rival = await asyncpg.connect(postgres_url)
        stack.push_async_callback(rival.close)
        (done,) = await publish(live, None)
        (finished,) = await hands.claim()
        ids = await publish(live, "a")
        claim = rival.transaction()
        await claim.start()
        taken = await rival.fetchval("select redrive.publish('t', '1', p_ordering_key => 'a')")
        await rival.execute("update redrive.outbox set status = 'in_flight', fence = 1 where id = $1", taken)
        claiming = asyncio.create_task(hands.claims.turn(Finished(delivered=[finished]), 10))
        await asyncio.sleep(0.2)
        assert not claiming.done()
        await claim.commit()

        turn = await claiming
        assert (list(turn.claimed), list(turn.refused), turn.held) == ([], [], True)
        assert await statuses(live, [done, ids[0], UUID(str(taken))]) == ["delivered", "blocked", "in_flight"]


@pytest.mark.req("B6", "W4")
async def test_a_probe_that_cannot_see_a_claim_of_its_key_takes_nothing(live: Redrive, postgres_url: str) -> None:
    async with AsyncExitStack() as stack:
        hands = await Hands.begin(live)
        stack.push_async_callback(hands.claims.close)
        rival = await asyncpg.connect(postgres_url)
        stack.push_async_callback(rival.close)
        ids = await publish(live, "a")
        await hands.settle(settlement_for_blocked((await hands.claim())[0], "api"))
        await shut(live, "api")
        claim = rival.transaction()
        await claim.start()
        taken = await rival.fetchval("select redrive.publish('t', '1', p_ordering_key => 'a')")
        await rival.execute("update redrive.outbox set status = 'in_flight', fence = 1 where id = $1", taken)
        probing = asyncio.create_task(probed(hands, "api"))
        await asyncio.sleep(0.2)
        assert not probing.done()
        await claim.commit()

        assert await probing is None
        assert await statuses(live, [ids[0], UUID(str(taken))]) == ["blocked", "in_flight"]
        assert (await found(live, ids[0])).blocked_on == "api"


@pytest.mark.req("B6")
async def test_two_that_end_at_once_leave_nobody_behind(live: Redrive, postgres_url: str) -> None:
    """The next in line is cancelled in an open transaction while the head is delivered."""
    async with AsyncExitStack() as stack:
        hands = await Hands.begin(live)
        stack.push_async_callback(hands.claims.close)
        operator = await stack.enter_async_context(await psycopg.AsyncConnection.connect(postgres_url))
        ids = await publish(live, "a", "a", "a")
        (row,) = await hands.claim()
        await operator.execute("select redrive.cancel(%s, 'ann', 'no need')", (ids[1],))
        delivering = asyncio.create_task(hands.deliver(row))
        await asyncio.sleep(0.2)
        await operator.commit()
        assert await delivering == []

        assert await claimed(hands) == ids[2:]


@pytest.mark.req("B6", "W9")
async def test_two_who_cancel_each_what_waits_for_the_other_both_come_to_an_end(live: Redrive) -> None:
    """Each cancels the heads of half of the keys, and the second of the other half."""
    hands = await Hands.begin(live)
    for _ in range(5):
        ids = await publish(live, *(f"{n}" for n in range(40) for _ in range(3)))
        running = [row[0] for row in await hands.claim(200)]
        assert len(running) == 40
        heads, seconds, thirds = ids[0::3], ids[1::3], ids[2::3]

        singly = asyncio.gather(*(live.cancel(each, by="cid", reason="no need") for each in thirds[:10]))
        gone = await asyncio.gather(
            live.cancel_all(heads[0::2] + seconds[1::2], by="ann", reason="no need"),
            live.cancel_all(heads[1::2] + seconds[0::2], by="bob", reason="no need"),
        )
        await singly

        left = sorted({*heads, *seconds}.difference(*gone))  # passed over: ask again
        assert await live.cancel_all(left, by="ann", reason="no need") == left
        assert await hands.claim(200) == []  # the handlers of the heads have not ended
        async with live.store.transaction() as tx:
            for freed in await tx.run("told", ids=running):
                await tx.run("promote", **freed)
        rows = await hands.claim(200)
        assert {uuid_of(row) for row in rows} == set(thirds[10:])
        await hands.deliver(*rows)
    await hands.claims.close()


@pytest.mark.req("B6")
async def test_events_published_by_sql_have_their_place_in_the_order(live: Redrive, postgres_url: str) -> None:
    hands = await Hands.begin(live)
    with raw(postgres_url) as run:
        ids: list[Any] = [run("select redrive.publish('t', '1', p_ordering_key => 'a')")[0][0] for _ in range(3)]
    order: list[UUID] = []
    for _ in ids:
        (row,) = await hands.claim()
        order.append(uuid_of(row))
        await hands.deliver(row)
    await hands.claims.close()

    assert order == ids
