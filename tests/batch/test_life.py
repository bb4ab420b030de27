"""The life of a batch: opened, filled, closed, and told of twice."""

from __future__ import annotations

from collections import Counter

import pytest

from redrive import (
    BatchNotFound,
    ConfigurationError,
    Context,
    EventFilter,
    Redrive,
    Refused,
    Status,
    selfcheck,
)
from redrive.store.base import Ages
from tests.batch.helpers import Depot, notices
from tests.stores.helpers import raw
from tests.waiting import until
from tests.worker.conftest import found, working

pytestmark = pytest.mark.promise("notices")


@pytest.mark.req("E8", "E2", "W10")
async def test_both_notices_come_once_with_totals_groups_and_reasons(depot: Depot) -> None:
    made = await depot.app.batches.open("import of Monday")
    await made.add("parcel", {}, group="north", subject="p1")
    await made.add("parcel", {"fails": 1}, group="north", subject="p2")
    await made.add("parcel", {"refused": True}, group="south", subject="p3")
    await made.add_many([("parcel", {}, {"batch_group": "west"}), ("parcel", {"inside": True})])
    await depot.drain()
    assert depot.told == []

    assert await made.close()
    assert not await made.close()
    async with working(depot.app):
        await until(lambda: len(depot.told) == 2)

    assert sorted(depot.kinds()) == ["final", "first"]
    final = next(each for each in depot.told if each.kind == "final")
    assert (final.total, final.delivered, final.failed, final.cancelled, final.leftover) == (5, 4, 1, 0, 0)
    assert (final.recovered, final.by_class, final.forced, final.more) == (1, {"rejected": 1}, False, 0)
    assert final.by_group == {"complete": 2, "failed": 1, "partly": 0}
    (failure,) = final.failures
    assert (failure.subject, failure.group, failure.error_class) == ("p3", "south", "rejected")
    assert failure.reason.endswith("the recipient refuses it")
    look = await made.look()
    assert (look.batch.state, look.batch.final, look.total, look.live, look.recovered) == ("done", final, 5, 0, 1)
    assert (look.counts[Status.DELIVERED], look.counts[Status.FAILED]) == (4, 1)
    assert [(each.name, each.state) for each in await made.groups()] == [
        ("north", "complete"), ("south", "failed"), ("west", "complete"),
    ]  # fmt: skip
    assert [each.name for each in await made.groups(after="north", limit=1)] == ["south"]
    assert await notices(depot.app, made) == ["first", "final"]


@pytest.mark.req("E8")
async def test_the_first_notice_comes_when_all_were_tried_and_the_final_one_after_the_retries(depot: Depot) -> None:
    async with await depot.app.batches.open("import", correlation_id="job-7") as made:
        await made.add_many([("parcel", {"fails": 2}), ("parcel", {})])
    async with working(depot.app):
        await until(lambda: len(depot.told) == 2)

    first, final = depot.told
    assert (first.kind, first.delivered, first.leftover, first.forced) == ("first", 1, 1, False)
    assert first.by_class == {"missing": 1}
    assert (final.kind, final.delivered, final.recovered, final.by_class) == ("final", 2, 1, {})
    told = [each for each in await depot.app.events(EventFilter(correlation_id="job-7")) if "notice" in each.type]
    assert [each.subject for each in told] == ["import", "import"]


@pytest.mark.req("E8")
async def test_a_batch_is_left_open_on_an_error_and_an_empty_one_tells_when_it_is_closed(depot: Depot) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await depot.app.batches.open("broken off") as made:
            raise ZeroDivisionError
    assert (await made.look()).batch.state == "open"

    await made.close()
    await depot.drain()

    assert [(each.kind, each.total) for each in depot.told] == [("first", 0), ("final", 0)]


@pytest.mark.req("E8")
async def test_cancelling_the_last_member_is_an_end_too(depot: Depot) -> None:
    async with await depot.app.batches.open("import") as made:
        one = await made.add("parcel", {}, delay="1h")
    await depot.app.cancel(one.id, by="ada", reason="not needed")
    await depot.drain()

    assert [(each.kind, each.cancelled) for each in depot.told] == [("first", 1), ("final", 1)]


@pytest.mark.req("E8")
async def test_a_member_that_waits_for_a_dependency_was_not_tried(depot: Depot) -> None:
    app = depot.app

    @app.handler("call", needs=["carrier"])
    async def call(_payload: dict[str, str]) -> None: ...

    await depot.drain()  # makes known what its handlers need
    await app.open_dependency("carrier", by="ada", reason="works")
    async with await app.batches.open("calls") as made:
        await made.add("call", {})
    await depot.drain()
    look = await made.look()
    assert (look.counts[Status.BLOCKED], look.untried, depot.told) == (1, 1, [])

    await app.close_dependency("carrier", by="ada", reason="works again")
    async with working(app):
        await until(lambda: len(depot.told) == 2)


@pytest.mark.req("E8", "E2")
async def test_a_replay_before_the_final_notice_counts_and_one_after_it_changes_nothing(depot: Depot) -> None:
    async with await depot.app.batches.open("import") as made:
        one = await made.add("parcel", {"refused": True})
        other = await made.add("parcel", {"refused": True})
        held = await made.add("parcel", {}, delay="1h")
    await depot.drain()
    depot.mended = True
    await depot.app.replay(one.id, by="ada", reason="fixed")
    await depot.drain()
    await depot.app.cancel(held.id, by="ada", reason="enough")
    await depot.drain()
    (final,) = [each for each in depot.told if each.kind == "final"]
    assert (final.delivered, final.recovered, final.failed, final.cancelled) == (1, 1, 1, 1)

    await depot.app.replay(other.id, by="ada", reason="late")
    await depot.drain()

    look = await made.look()
    assert (look.counts[Status.DELIVERED], look.batch.final) == (2, final)
    assert Counter(await notices(depot.app, made)) == {"first": 1, "final": 1}


@pytest.mark.req("E8")
async def test_a_handler_adds_to_its_batch_and_closes_it_in_its_transaction(depot: Depot) -> None:
    app = depot.app

    @app.handler("list")
    async def read(payload: dict[str, int], ctx: Context) -> None:
        mine = await ctx.batch()
        assert mine is not None
        await mine.add("parcel", {}, group="outside")
        async with ctx.transaction():
            for _ in range(payload["parcels"]):
                await mine.add("parcel", {}, group="inside")
            await mine.close()
            if ctx.attempt == 1:
                raise RuntimeError("all of it is taken back")

    made = await app.batches.open("lists")
    await made.add("list", {"parcels": 3})
    async with working(app):
        await until(lambda: len(depot.told) == 2)

    assert {each.name: each.total for each in await made.groups()} == {"inside": 3, "outside": 2}
    assert depot.told[-1].total == 6
    assert depot.told[-1].recovered == 1


@pytest.mark.req("E8")
async def test_an_event_outside_any_batch_has_none(depot: Depot) -> None:
    seen: list[object] = []

    @depot.app.handler("alone")
    async def look(_payload: None, ctx: Context) -> None:
        seen.append(await ctx.batch())

    await depot.app.publish("alone")
    await depot.drain()
    assert seen == [None]


@pytest.mark.req("E8")
async def test_notices_have_the_types_and_targets_that_the_opener_knows(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        app.route("import.done", "mail", "ledger")
        silent = await app.batches.open("silent")
        await silent.close()
        assert await app.events() == []

        told = await app.batches.open("told", first_notice="import.tried", final_notice="import.done")
        await told.close()

        assert {(each.type, each.target) for each in await app.events()} == {
            ("import.tried", "import.tried"), ("import.done", "mail"), ("import.done", "ledger"),
        }  # fmt: skip
        assert (await silent.look()).batch.state == "done"


@pytest.mark.req("E8")
async def test_batches_are_found_by_id_beginning_and_name(depot: Depot) -> None:
    batches = depot.app.batches
    made = [await batches.open(f"import {n % 2}") for n in range(5)]

    assert (await batches.get(made[0].id)).name == "import 0"
    assert (await batches.find(made[1].id.hex)).id == made[1].id
    assert (await batches.find("import 1")).id == made[3].id
    assert [each.id for each in await batches.ls(limit=2)] == [made[4].id, made[3].id]
    assert [each.id for each in await batches.ls(before=made[3].id)] == [made[2].id, made[1].id, made[0].id]
    assert [each.id for each in await batches.ls(name="import 1")] == [made[3].id, made[1].id]
    with pytest.raises(BatchNotFound):
        await batches.find("nothing like it")
    with pytest.raises(BatchNotFound):
        await batches.get("nonsense")


@pytest.mark.parametrize(
    "options",
    [{"leftovers": "drop"}, {"leftovers": "fail"}, {"deadline": "-1s"}],
)
async def test_what_cannot_work_is_refused(depot: Depot, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        await depot.app.batches.open("import", **options)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        await depot.app.batches.open(" ")
    assert await depot.app.batches.ls() == []


# --- deadlines ---


@pytest.mark.req("E8")
async def test_the_deadline_forces_both_notices_and_leaves_members_alone(depot: Depot) -> None:
    made = await depot.app.batches.open("import", deadline=0.2)
    await made.add("parcel", {})
    late = await made.add("parcel", {}, delay="1h")
    await depot.drain()
    async with working(depot.app):
        await until(lambda: len(depot.told) == 2)

    first, final = depot.told
    assert (first.forced, final.forced, final.delivered, final.leftover) == (True, True, 1, 1)
    assert final.leftover_by_status == {"pending": 1, "in_flight": 0, "blocked": 0}
    assert final.closed_by is not None
    look = await made.look()
    assert (look.batch.state, look.counts[Status.PENDING]) == ("forced", 1)
    await depot.app.cancel(late.id, by="ada", reason="enough")
    await depot.drain()
    assert (await made.look()).batch.final == final
    assert Counter(await notices(depot.app, made)) == {"first": 1, "final": 1}
    forced = [entry async for entry in depot.app.store.trail() if entry.kind == "batch-forced"]
    assert [entry.facts["batch"] for entry in forced] == [str(made.id)]


@pytest.mark.req("E8")
async def test_leftovers_that_shall_fail_get_the_deadline_of_the_batch(depot: Depot) -> None:
    async with await depot.app.batches.open("import", deadline=0.3, leftovers="fail") as made:
        one = await made.add("parcel", {}, delay=0.5)
        soon = await made.add("parcel", {}, deadline=0.1, delay=0.5)
    with_it, earlier = [await found(depot.app, each.id) for each in (one, soon)]
    assert made.deadline_at is not None
    assert with_it.deadline_at == made.deadline_at
    assert earlier.deadline_at is not None
    assert earlier.deadline_at < made.deadline_at
    async with working(depot.app):
        await until(lambda: len(depot.told) == 2)

    final = depot.told[-1]
    assert (final.forced, final.failed, final.by_class) == (False, 2, {"timed_out": 2})


@pytest.mark.req("E8", "W10")
async def test_people_close_and_force_with_a_name_and_a_reason(depot: Depot) -> None:
    batches = depot.app.batches
    made = await batches.open("import")
    await made.add("parcel", {}, delay="1h")
    with pytest.raises(Refused):
        await batches.force(made.id, by="ada", reason=" ")

    assert (await batches.close(made.id, by="ada", reason="that is all")).closed_by == "ada"
    with pytest.raises(Refused):
        await batches.close(made.id, by="ada", reason="again")
    assert (await batches.force(made.id, by="bob", reason="nobody waits")).state == "forced"
    with pytest.raises(Refused):
        await batches.force(made.id, by="bob", reason="again")

    kinds = [entry.kind async for entry in depot.app.store.trail()]
    assert kinds == ["batch-closed", "batch-forced"]
    assert (await depot.app.verify_trail()).sound


# --- what keeps it right ---


@pytest.mark.req("E8", "W7")
async def test_a_notice_that_nobody_has_sent_is_sent_by_a_worker(depot: Depot, store_url: str) -> None:
    async with await depot.app.batches.open("import") as made:
        await made.add("parcel", {})
    with raw(store_url) as sql:  # as somebody would who does not want triggers to fire
        if depot.app.store.name == "postgres":
            sql("alter table {outbox} disable trigger outbox_batch_look")
        sql("update {outbox} set status = 'delivered', ended_at = created_at")
    assert await notices(depot.app, made) == []

    (check,) = (each for each in selfcheck.own_checks() if each.name == "redrive:notices")
    assert await selfcheck.look(depot.app.store, check, by="test") == 1
    assert await selfcheck.look(depot.app.store, check, by="test") == 0

    await depot.drain()
    assert [each.kind for each in depot.told] == ["first", "final"]


@pytest.mark.req("E8")
async def test_members_are_kept_until_the_final_notice_and_the_batch_goes_after_them(depot: Depot) -> None:
    made = await depot.app.batches.open("import")
    await made.add("parcel", {})
    await made.add("parcel", {"refused": True})
    await depot.drain()

    async def purged() -> tuple[int, int, int]:
        gone = await depot.app.store.purge(Ages(ended=0.0, failed=0.0), by="ada", limit=100)
        return gone.events, gone.dead_letters, gone.batches

    assert await purged() == (0, 0, 0)
    await made.close()
    await depot.drain()
    assert await purged() == (3, 1, 1)  # a parcel and two notices, and with its last member the batch
    with pytest.raises(BatchNotFound):
        await made.look()


@pytest.mark.req("E8")
@pytest.mark.parametrize("elsewhere", ["in no batch", "in another batch"])
async def test_a_member_whose_retry_key_is_live_outside_is_refused_and_nothing_of_its_call_is_added(
    depot: Depot, elsewhere: str
) -> None:
    other = await depot.app.batches.open("another")
    outside = await depot.app.publish(
        "parcel", {}, retry_key="k", delay=60, batch=None if elsewhere == "in no batch" else other
    )
    made = await depot.app.batches.open("import")

    with pytest.raises(Refused, match=f"event {outside.id} with retry key 'k' is under way outside batch {made.id}"):
        await made.add_many([("parcel", {}), ("parcel", {}, {"retry_key": "j"}), ("parcel", {}, {"retry_key": "k"})])
    assert (await made.look()).total == 0
    await depot.app.cancel(outside.id, by="ann", reason="it is in the way")
    added = [await made.add("parcel", {}, retry_key="k") for _ in range(2)]

    assert [each.created for each in added] == [True, False]  # its own live member is answered as ever
    assert (await made.look()).total == 1


@pytest.mark.req("E8")
async def test_a_member_that_is_refused_leaves_nothing_in_a_transaction_either(depot: Depot) -> None:
    await depot.app.publish("parcel", {}, retry_key="k", delay=60)
    made = await depot.app.batches.open("import")

    with pytest.raises(Refused, match="is under way outside batch"):
        async with depot.app.transaction() as tx:
            await tx.publish("parcel", {}, batch=made)
            await tx.publish("parcel", {}, batch=made, retry_key="k")

    assert (await made.look()).total == 0
