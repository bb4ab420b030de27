"""A run compares both sides, and every difference becomes one finding and one event."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel

from redrive import ConfigurationError, Context, EventFilter, Redrive, Refused, RetryPolicy, Status
from redrive.errors import NotComparable
from tests.reconcile.helpers import Carts


class Cart(BaseModel):
    items: int
    owner: str = "ada"


@pytest.mark.req("W7")
async def test_what_is_missing_extra_or_different_is_found_and_converged(app: Redrive) -> None:
    carts = Carts({"a": 1, "b": {"x": 1, "y": 2}, "c": 3}, {"b": {"y": 2, "x": 0}, "c": 3, "d": 4}).add_to(app)

    asked = await app.reconcilers.run("carts")
    await app.worker().drain()

    assert sorted(carts.done) == [("a", 1, None), ("b", {"x": 1, "y": 2}, {"x": 0, "y": 2}), ("d", None, 4)]
    assert carts.actual == carts.desired
    run = await app.reconcilers.get_run(asked.id)
    assert (run.state, run.compared, run.missing, run.extra, run.different, run.published) == ("done", 4, 1, 1, 1, 3)
    assert {(each.key, each.kind) for each in run.found} == {("a", "missing"), ("b", "different"), ("d", "extra")}
    found = {each.key: each for each in await app.reconcilers.findings("carts")}
    assert {key: (each.kind, each.event_status) for key, each in found.items()} == {
        "a": ("missing", "delivered"), "b": ("different", "delivered"), "d": ("extra", "delivered"),
    }  # fmt: skip
    assert all(each.converged_at is not None and each.run_id == run.id for each in found.values())


@pytest.mark.req("W7")
async def test_the_next_run_heals_what_it_no_longer_sees(app: Redrive) -> None:
    Carts({"a": 1}, {}).add_to(app)
    await app.reconcilers.run_here("carts")
    await app.worker().drain()

    second = await app.reconcilers.run_here("carts")

    assert (second.differences, second.healed) == (0, 1)
    (finding,) = await app.reconcilers.findings("carts", state=None)
    assert (finding.state, finding.seen_count, finding.returned_count) == ("healed", 1, 0)
    assert finding.healed_at is not None


@pytest.mark.req("W7")
async def test_what_comes_back_is_the_same_finding_and_counts_it(app: Redrive) -> None:
    carts = Carts({"a": 1}, {}).add_to(app)
    for _ in range(4):
        carts.actual.clear()
        await app.reconcilers.run_here("carts")
        await app.worker().drain()
        await app.reconcilers.run_here("carts")

    (finding,) = await app.reconcilers.findings("carts", state=None)
    assert (finding.state, finding.returned_count, finding.seen_count) == ("healed", 3, 4)
    assert len(carts.done) == 4
    assert await app.reconcilers.recurring() == []
    carts.actual.clear()
    await app.reconcilers.run_here("carts")
    assert [each.key for each in await app.reconcilers.recurring()] == ["a"]


@pytest.mark.req("W7")
async def test_a_dry_run_says_what_differs_and_changes_nothing(app: Redrive) -> None:
    carts = Carts({"a": 1}, {"b": 2}).add_to(app)

    run = await app.reconcilers.run_here("carts", dry_run=True, by="ada")
    await app.reconcilers.run("carts", dry_run=True)
    await app.worker().drain()

    assert (run.dry_run, run.missing, run.extra, run.published) == (True, 1, 1, 0)
    assert [(each.key, each.desired, each.actual) for each in run.found] == [("a", 1, None), ("b", None, 2)]
    assert await app.reconcilers.findings(state=None) == []
    assert carts.done == []
    assert [each.dry_run for each in await app.reconcilers.runs("carts")] == [True, True]


async def test_a_dry_run_and_a_real_one_do_not_stand_for_each_other(app: Redrive) -> None:
    carts = Carts({"a": 1}, {}).add_to(app)
    dry = await app.reconcilers.run("carts", dry_run=True)
    first = await app.reconcilers.run("carts")
    again = await app.reconcilers.run("carts")

    await app.worker().drain()

    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert dry.id != first.id
    assert carts.done == [("a", 1, None)]


def rows() -> list[tuple[str, int]]:
    return [("a", 1), ("b", 2)]


def generated() -> Iterator[tuple[str, int]]:
    yield from rows()


async def fetched() -> list[tuple[str, int]]:
    return rows()


async def streamed() -> AsyncIterator[tuple[str, int]]:
    for row in rows():
        yield row


class Awaited:
    """A plain function that answers something to be awaited, as partial and functools make them."""

    def __call__(self) -> Any:
        return fetched()


@pytest.mark.parametrize("side", [rows, generated, fetched, streamed, Awaited(), lambda: dict(rows())])
async def test_a_side_may_be_plain_or_asynchronous_and_may_return_or_yield(sqlite_url: str, side: Any) -> None:
    async with Redrive(sqlite_url) as app:
        Carts(actual={"b": 2, "c": 3}).add_to(app, desired=side)

        run = await app.reconcilers.run_here("carts")

    assert [(each.key, each.kind) for each in run.found] == [("a", "missing"), ("c", "extra")]
    assert run.compared == 3


async def test_a_generator_stays_in_its_thread_and_is_closed_there(sqlite_url: str, tmp_path: Path) -> None:
    ended = []

    def from_a_database() -> Iterator[tuple[str, int]]:
        connection = sqlite3.connect(tmp_path / "shop.db")  # refuses to be used in another thread
        try:
            connection.execute("create table cart (id text, items int)")
            connection.executemany("insert into cart values (?, ?)", [(f"{n:06d}", n) for n in range(12_000)])
            yield from connection.execute("select id, items from cart")
        finally:
            connection.close()
            ended.append(True)

    async with Redrive(sqlite_url) as app:
        Carts().add_to(app, desired=from_a_database, actual=lambda: {f"{n:06d}": n for n in range(12_000)})
        run = await app.reconcilers.run_here("carts")

    assert (run.compared, run.differences, ended) == (12_000, 0, [True])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [1, {"c": None}]}, {"b": [1, {"c": None}], "a": 1}),
        (Cart(items=2), {"owner": "ada", "items": 2}),
        (1, 1.0),
        ([1, 2.50], [1.0, 2.5]),
        (UUID(int=7), str(UUID(int=7))),
    ],
)
async def test_what_says_the_same_is_no_difference(sqlite_url: str, one: Any, other: Any) -> None:
    async with Redrive(sqlite_url) as app:
        Carts({"a": one}, {"a": other}).add_to(app)
        assert (await app.reconcilers.run_here("carts")).differences == 0


@pytest.mark.parametrize(("one", "other"), [(1, "1"), (1, True), (0, False), (None, 0), ([1, 2], [2, 1]), ({}, None)])
async def test_what_says_something_else_is_different(sqlite_url: str, one: Any, other: Any) -> None:
    async with Redrive(sqlite_url) as app:
        Carts({"a": one}, {"a": other}).add_to(app)
        assert (await app.reconcilers.run_here("carts")).different == 1


async def test_numbers_and_uuids_are_keys_and_meet_their_text(sqlite_url: str) -> None:
    key = uuid4()
    async with Redrive(sqlite_url) as app:
        Carts(actual={"7": 1, str(key): 2}).add_to(app, desired=lambda: [(7, 1), (key, 2)])
        assert (await app.reconcilers.run_here("carts")).differences == 0


@pytest.mark.req("W7")
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: [("a", 1), ("b", 2), ("a", 1)], "actual has the key 'a' twice"),
        (lambda: [*((str(n), n) for n in range(6_000)), (17, 1)], "actual has the key '17' twice"),
        (lambda: {"a": float("nan")}, "actual of key 'a' cannot be compared: value is nan"),
        (lambda: {"a": {"b": [object()]}}, r"actual of key 'a' cannot be compared: value.b\[0\] is a object"),
        (lambda: {"a": {1: 2}}, "actual of key 'a' cannot be compared: value has the key 1"),
        (lambda: {("a", 1): 2}, r"actual has the key \('a', 1\): a key is a text"),
        (lambda: {True: 2}, "actual has the key True"),
        (lambda: {"x" * 513: 2}, "at most 512"),
        (lambda: ["a", "b"], "actual gave 'a': give pairs"),
        (lambda: 7, "actual gave a int: give a mapping"),
        (lambda: "ab", "actual gave a str"),
    ],
)
async def test_what_cannot_be_compared_is_named_and_nothing_is_changed(app: Redrive, bad: Any, says: str) -> None:
    carts = Carts({"new": 1}).add_to(app, actual=bad)

    with pytest.raises(NotComparable, match=says):
        await app.reconcilers.run_here("carts")

    assert await app.reconcilers.findings(state=None) == []
    assert await app.events() == []
    assert carts.done == []
    (run,) = await app.reconcilers.runs()
    assert run.state == "failed"
    assert run.error is not None
    assert run.error.startswith("NotComparable: actual ")


@pytest.mark.req("W7")
async def test_an_error_of_a_side_has_attempts_and_ends_as_a_dead_letter_that_people_see(app: Redrive) -> None:
    tries = []

    def broken() -> dict[str, int]:
        tries.append(1)
        raise RuntimeError("the warehouse says no")

    Carts().add_to(app, actual=broken)
    asked = await app.reconcilers.run("carts", by="ada")
    worker = app.worker()
    while (event := await app.event(asked.id)) is not None and event.status is not Status.FAILED:
        await worker.drain()
        await app.clock.sleep(0.02)

    assert event is not None
    assert len(tries) == 3
    assert "the warehouse says no" in str(event.last_error)
    run = await app.reconcilers.get_run(asked.id)
    assert (run.state, run.error) == ("failed", "RuntimeError: the warehouse says no")
    (standing,) = [each for each in await app.reconcilers.standing() if each.name == "carts"]
    assert (standing.state, standing.error) == ("failed", run.error)
    assert next(iter(await app.trail(asked.id))).kind == "reconcile-requested"


async def test_a_replayed_run_goes_on_with_its_row(app: Redrive) -> None:
    answers: list[Any] = [RuntimeError("down"), RuntimeError("down"), RuntimeError("down"), {}]

    def flaky() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    Carts({"a": 1}).add_to(app, actual=flaky)
    asked = await app.reconcilers.run("carts")
    worker = app.worker()
    while (event := await app.event(asked.id)) is not None and event.status is not Status.FAILED:
        await worker.drain()
        await app.clock.sleep(0.02)

    await app.replay(asked.id, by="ada", reason="the warehouse is back")
    await worker.drain()

    (run,) = await app.reconcilers.runs("carts")
    assert (run.id, run.state, run.error, run.missing) == (asked.id, "done", None, 1)


@pytest.mark.req("W7")
async def test_look_spares_what_agrees_by_then(app: Redrive) -> None:
    carts = Carts({"a": 1, "b": 2}, {})

    async def look(key: str) -> tuple[Any, Any]:
        return carts.desired.get(key), carts.actual.get(key)

    carts.add_to(app, look=look)
    await app.reconcilers.run_here("carts")
    carts.actual["a"] = 1.0  # somebody was faster
    carts.desired["b"] = 3  # and here it has become something else

    await app.worker().drain()

    assert carts.done == [("b", 3, None)]
    found = {each.key: each.state for each in await app.reconcilers.findings(state=None)}
    assert found == {"a": "healed", "b": "open"}


async def test_a_look_that_gives_no_pair_is_an_error_that_says_so(sqlite_url: str) -> None:
    async with Redrive(sqlite_url, retry=RetryPolicy(max_attempts=1)) as app:
        carts = Carts({"a": 1}).add_to(app, look=lambda key: None)
        await app.reconcilers.run_here("carts")
        await app.worker().drain()
        (dead,) = await app.events(EventFilter(status=Status.FAILED))

    assert "look of reconciler 'carts' must give a pair: desired, actual" in str(dead.last_error)
    assert carts.done == []


@pytest.mark.req("W7")
async def test_a_converge_that_waits_does_what_the_latest_run_has_seen(app: Redrive) -> None:
    carts = Carts({"a": 1}, {}).add_to(app)
    first = await app.reconcilers.run_here("carts")
    carts.desired, carts.actual = {"a": 2}, {"a": 0}

    second = await app.reconcilers.run_here("carts")
    await app.worker().drain()

    assert (first.published, second.published, second.coalesced) == (1, 0, 1)
    assert carts.done == [("a", 2, 0)]


@pytest.mark.req("W7")
async def test_a_converge_does_nothing_when_a_later_run_no_longer_sees_the_difference(app: Redrive) -> None:
    carts = Carts({"a": 1}, {}).add_to(app)
    await app.reconcilers.run_here("carts")
    carts.actual = {"a": 1}
    await app.reconcilers.run_here("carts")

    await app.worker().drain()

    assert carts.done == []


async def test_a_dead_letter_stands_for_its_difference_until_somebody_acts(app: Redrive) -> None:
    works = False
    carts = Carts({"a": 1}, {})

    async def converge(key: str, desired: Any, actual: Any) -> None:
        if not works:
            raise RuntimeError("no")
        await carts.converge(key, desired, actual)

    carts.add_to(app, converge=converge)
    await app.reconcilers.run_here("carts")
    worker = app.worker()
    while not (dead := await app.events(EventFilter(status=Status.FAILED))):
        await worker.drain()
        await app.clock.sleep(0.02)

    again = await app.reconcilers.run_here("carts")
    assert (again.published, again.coalesced) == (0, 1)

    carts.desired["a"] = 5
    await app.reconcilers.run_here("carts")
    works = True
    await app.replay(dead[0].id, by="ada", reason="mended")
    await worker.drain()
    assert carts.done == [("a", 5, None)]
    assert (await app.reconcilers.run_here("carts")).healed == 1


async def test_a_discarded_dead_letter_makes_way_for_a_new_event(app: Redrive) -> None:
    carts = Carts({"a": 1}, {})
    events = []

    async def converge(key: str, desired: Any, actual: Any, ctx: Context) -> None:
        events.append(ctx.id)
        if len(set(events)) == 1:
            raise RuntimeError("no")
        await carts.converge(key, desired, actual)

    carts.add_to(app, converge=converge)
    await app.reconcilers.run_here("carts")
    worker = app.worker()
    while not (dead := await app.events(EventFilter(status=Status.FAILED))):
        await worker.drain()
        await app.clock.sleep(0.02)
    await app.discard(dead[0].id, by="ada", reason="try again")

    run = await app.reconcilers.run_here("carts")
    await worker.drain()

    assert run.published == 1
    assert len(set(events)) == 2
    assert carts.actual == {"a": 1}


async def test_what_is_ignored_stays_quiet_until_it_was_gone(app: Redrive) -> None:
    carts = Carts({"a": 1}, {}).add_to(app)
    await app.reconcilers.run_here("carts")
    (finding,) = await app.reconcilers.findings("carts")

    ignored = await app.reconcilers.ignore(finding.id, by="ada", reason="a test cart")
    await app.worker().drain()
    quiet = await app.reconcilers.run_here("carts")

    assert (ignored.state, ignored.note, ignored.noted_by) == ("ignored", "a test cart", "ada")
    assert (quiet.missing, quiet.published, quiet.coalesced) == (1, 0, 0)
    assert carts.done == []
    with pytest.raises(Refused, match="is ignored: only an open one"):
        await app.reconcilers.ignore(finding.id, by="ada", reason="again")
    kinds = [entry.kind async for entry in app.store.trail()]
    assert kinds == ["finding-ignored"]

    carts.actual = {"a": 1}
    await app.reconcilers.run_here("carts")
    carts.actual = {}
    assert (await app.reconcilers.run_here("carts")).published == 1


async def test_converge_gets_the_types_it_asks_for_and_may_be_a_plain_function(app: Redrive) -> None:
    got: list[Any] = []

    def converge(key: str, desired: Cart | None, actual: Cart | None, ctx: Context) -> None:
        ctx.check_cancelled()
        got.append((key, desired, actual, ctx.subject))

    Carts({"a": Cart(items=1)}, {"b": Cart(items=2, owner="bob")}).add_to(app, converge=converge)
    await app.reconcilers.run_here("carts")
    await app.worker().drain()

    assert sorted(got, key=lambda each: str(each[0])) == [
        ("a", Cart(items=1), None, "a"), ("b", None, Cart(items=2, owner="bob"), "b"),
    ]  # fmt: skip


async def test_fifty_thousand_keys_stream_through(app: Redrive) -> None:
    def desired() -> Iterator[tuple[str, dict[str, int]]]:
        return ((f"cart-{n:06d}", {"items": n % 7}) for n in range(50_000))

    async def actual() -> AsyncIterator[tuple[str, dict[str, int]]]:
        for n in reversed(range(50_000)):
            if n % 1_000:
                yield f"cart-{n:06d}", {"items": n % 7 + (n % 25 == 1)}

    Carts().add_to(app, desired=desired, actual=actual)

    run = await app.reconcilers.run_here("carts")

    assert (run.compared, run.missing, run.extra, run.different) == (50_000, 50, 0, 2_000)
    assert run.published == 2_050
    assert len(run.found) == 100
    assert len(await app.reconcilers.findings(limit=10_000)) == 2_050


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "redrive:mine"}, "the engine's own"),
        ({"desired": {}}, "desired of reconciler 'carts' must be a function"),
        ({"actual": lambda key: key}, "actual of reconciler 'carts' must take no arguments"),
        ({"converge": lambda key: key}, r"must take \(key, desired, actual\)"),
        ({"look": lambda: 1}, r"look of reconciler 'carts' must take \(key\)"),
        ({"every": "soon"}, "soon"),
        ({"needs": "api"}, "must be a list of names"),
    ],
)
def test_a_reconciler_that_cannot_work_is_refused(sqlite_url: str, options: dict[str, Any], says: str) -> None:
    app = Redrive(sqlite_url)
    with pytest.raises(ConfigurationError, match=says):
        Carts().add_to(app, **options)


async def test_a_name_is_taken_once_and_must_be_known(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        Carts().add_to(app)
        with pytest.raises(ConfigurationError, match="there is one already"):
            Carts().add_to(app)
        with pytest.raises(Refused, match="no reconciler is called 'cats' here: there is carts"):
            await app.reconcilers.run("cats")
        assert list(app.reconcilers) == ["carts"]
