"""A second submission with a live key returns the existing event, under any race (A3)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from redrive import EventFilter, Redrive, Status
from tests.stores.helpers import Hands, failed, output_of, retried, start_python

# On SQLite the second writer waits for the file itself.
ON_POSTGRES = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


@pytest.mark.req("A3")
async def test_fifty_submissions_at_once_make_one_event(store_url: str, app: Redrive) -> None:
    apps = [Redrive(store_url) for _ in range(3)]
    for each in apps:
        await each.open()

    answers = await asyncio.gather(*(apps[n % 3].publish("t", n, retry_key="receipt-1:approved") for n in range(50)))

    assert len({answer.id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    (event,) = await app.events()
    assert event.payload == next(n for n, answer in enumerate(answers) if answer.created)
    for each in apps:
        await each.close()


SUBMIT = """
import asyncio, json, sys
from redrive import Redrive

async def main():
    async with Redrive(sys.argv[1]) as app:
        print("ready", flush=True)
        sys.stdin.readline()
        answers = []
        for key in range(20):
            made = await asyncio.gather(*(app.publish("t", n, retry_key=f"receipt-{key}") for n in range(5)))
            answers += [[key, str(each.id), each.created] for each in made]
    print(json.dumps(answers))

asyncio.run(main())
"""


@pytest.mark.req("A3")
async def test_processes_that_submit_the_same_keys_at_once_make_one_event_each(store_url: str, app: Redrive) -> None:
    processes = [start_python(SUBMIT, store_url) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    answers = [answer for process in processes for answer in json.loads(output_of(process))]

    by_key: dict[int, list[tuple[str, bool]]] = {}
    for key, event_id, created in answers:
        by_key.setdefault(key, []).append((event_id, created))
    assert len(by_key) == 20
    for made in by_key.values():
        assert len({event_id for event_id, _ in made}) == 1
        assert sum(created for _, created in made) == 1
    assert await app.store.counts() == {("t", "pending"): 20}


@pytest.mark.req("A3")
async def test_a_key_is_taken_while_its_event_is_pending_running_or_scheduled(app: Redrive) -> None:
    hands = await Hands.begin(app)
    first = await app.publish("t", retry_key="k")
    pending = await app.publish("t", retry_key="k")
    row = await hands.claim_one()
    running = await app.publish("t", retry_key="k")
    await hands.settle(retried(row, 600.0))
    scheduled = await app.publish("t", retry_key="k")

    assert {each.id for each in (pending, running, scheduled)} == {first.id}
    assert not any(each.created for each in (pending, running, scheduled))
    assert len(await app.events()) == 1
    assert await hands.claim() == []
    await hands.claims.close()


@pytest.mark.req("A3")
@pytest.mark.parametrize("end", ["delivered", "failed", "cancelled"])
async def test_a_key_is_free_again_once_its_event_has_ended(end: str, app: Redrive) -> None:
    hands = await Hands.begin(app)
    first = await app.publish("t", retry_key="k")
    if end == "cancelled":
        await app.cancel(first.id, by="ann", reason="wrong")
    else:
        row = await hands.claim_one()
        await (hands.deliver(row) if end == "delivered" else hands.settle(failed(row)))

    second = await app.publish("t", retry_key="k")

    assert second.created
    assert second.id != first.id
    assert len(await app.events(EventFilter(retry_key="k"))) == 2
    await hands.claims.close()


@pytest.mark.req("A3")
async def test_a_key_belongs_to_one_target(app: Redrive) -> None:
    app.route("order.placed", "mail", "stock")

    first = await app.publish("order.placed", retry_key="k")
    again = await app.publish("order.placed", retry_key="k")
    other = await app.publish("order.cancelled", retry_key="k")

    assert (again.id, again.created) == (first.id, False)
    assert other.created
    assert await app.store.counts() == {("order.placed", "pending"): 2, ("order.cancelled", "pending"): 1}


@pytest.mark.req("A3")
async def test_within_one_publish_the_first_of_each_key_wins(app: Redrive) -> None:
    drafts: list[Any] = [("t", n, {"retry_key": f"k{n % 3}"}) for n in range(9)]

    published = await app.publish_many([*drafts, ("t", "free"), ("t", "free")])

    assert [each.created for each in published] == [True] * 3 + [False] * 6 + [True] * 2
    assert len({each.id for each in published}) == 5
    assert len(await app.events()) == 5


@pytest.mark.req("A3")
@ON_POSTGRES
async def test_a_key_that_was_rolled_back_is_free_for_whoever_waited(store_url: str, app: Redrive) -> None:
    with psycopg.connect(store_url) as caller:
        given_up = app.publish_in_sync(caller, "t", retry_key="k")
        waiting = asyncio.create_task(app.publish("t", retry_key="k"))
        await asyncio.sleep(0.2)
        blocked = not waiting.done()
        caller.rollback()

        published = await waiting

    assert blocked
    assert published.created
    assert published.id != given_up.id


def from_sql(url: str, key: str) -> Any:
    with psycopg.connect(url, autocommit=True) as psql:
        return psql.execute("select redrive.publish('t', '1', p_retry_key => %s)", (key,)).fetchone()


@pytest.mark.req("A3")
@ON_POSTGRES
async def test_a_key_that_was_committed_meanwhile_is_answered_to_whoever_waited(store_url: str, app: Redrive) -> None:
    with psycopg.connect(store_url) as caller, psycopg.connect(store_url) as second:
        first = app.publish_in_sync(caller, "t", retry_key="k")
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(app.publish("t", retry_key="k")),
            asyncio.create_task(app.publish_many([("t", 1), ("t", 2, {"retry_key": "k"}), ("t", 3)])),
            asyncio.create_task(asyncio.to_thread(app.publish_in_sync, second, "t", retry_key="k")),
            asyncio.create_task(asyncio.to_thread(from_sql, store_url, "k")),
        ]
        await asyncio.sleep(0.2)
        blocked = not any(task.done() for task in waiting)
        caller.commit()

        alone, many, in_sync, in_sql = await asyncio.gather(*waiting)

    assert blocked
    assert (alone.id, alone.created) == (first.id, False)
    assert [each.created for each in many] == [True, False, True]
    assert (in_sync.id, in_sync.created) == (first.id, False)
    assert in_sql == (first.id,)


@pytest.mark.req("A3")
async def test_keys_that_end_and_begin_at_once_never_have_two_live_events(store_url: str, app: Redrive) -> None:
    hands = await Hands.begin(app)
    created: list[str] = []
    going = True

    async def submit() -> None:
        while going:
            answer = await app.publish("t", retry_key="k")
            if answer.created:
                created.append(str(answer.id))

    async def work() -> None:
        for _ in range(60):
            await hands.deliver(*await hands.claim())

    submitting = [asyncio.create_task(submit()) for _ in range(4)]
    await work()
    going = False
    await asyncio.gather(*submitting)
    counts = await app.store.counts()

    assert len(created) == len(set(created)) == sum(counts.values())
    assert counts.get(("t", "pending"), 0) <= 1
    assert counts[("t", "delivered")] > 5
    assert await app.events(EventFilter(status=Status.IN_FLIGHT)) == []
    await hands.claims.close()
