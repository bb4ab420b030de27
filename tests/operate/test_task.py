"""`redrive task`: one task over several databases."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from redrive import Context, Redrive, RedriveError, RetryPolicy, TerminalHandlerError
from redrive.operate.task import Progress, Task, task
from tests.operate.helpers import in_app, redrive
from tests.servers import free_port

CORRELATION = "basket-7"


@pytest.fixture
def other_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/billing.db"


async def _shop(app: Redrive) -> str:
    """A task of two events: one causes the other."""

    @app.handler("order.placed")
    async def place(order: dict[str, Any], ctx: Context) -> None:
        await ctx.publish("order.packed", order)

    @app.handler("order.packed")
    async def pack(order: dict[str, Any]) -> None: ...

    first = await app.publish("order.placed", {"id": 7}, correlation_id=CORRELATION)
    await app.publish("order.placed", {"id": 8}, correlation_id="another")
    await app.worker().drain()
    return str(first.id)


async def _billing(app: Redrive, cause: str, *, fails: bool) -> None:
    @app.handler("bill.due")
    async def bill(order: dict[str, Any]) -> None:
        if fails:
            raise TerminalHandlerError("no such account")

    await app.publish("bill.due", {"id": 7}, correlation_id=CORRELATION, causation_id=cause, source="billing")
    await app.worker().drain()


def _looked(places: list[str], correlation: str = CORRELATION, **options: Any) -> Task:
    return asyncio.run(task(places, correlation, **options))


@pytest.mark.req("W11")
def test_events_of_several_services_are_one_tree_with_one_line_about_the_whole(store_url: str, other_url: str) -> None:
    first = in_app(store_url, _shop)
    in_app(other_url, lambda app: _billing(app, first, fails=False))

    found = _looked([store_url, other_url])

    assert [(each.depth, each.event.type) for each in found.events] == [
        (0, "order.placed"), (1, "order.packed"), (1, "bill.due"),
    ]  # fmt: skip
    assert {each.parent for each in found.events[1:]} == {first}
    assert found.events[2].place == "billing"
    assert found.state is Progress.DONE
    assert found.sentence == "Done: 3 of 3 events ended."


@pytest.mark.req("W11")
def test_the_command_draws_the_tree_and_says_what_needs_a_person(store_url: str, other_url: str) -> None:
    first = in_app(store_url, _shop)
    in_app(other_url, lambda app: _billing(app, first, fails=True))

    table = redrive("task", CORRELATION, "-u", store_url, "--also", other_url, env={"COLUMNS": "160"})
    told = redrive("task", CORRELATION, "-u", store_url, "-a", other_url, "-o", "json").json
    lines = redrive("task", CORRELATION, "-u", store_url, "-a", other_url, "-o", "jsonl").lines

    assert table.code == 0
    assert table.out.startswith("Needs a person: 1 dead letter of bill.due; 2 of 3 events ended.")
    assert "└ order.packed" in table.out
    assert "no such account" in table.out
    assert told["state"] == "needs a person"
    assert [each["type"] for each in told["events"]] == ["order.placed", "order.packed", "bill.due"]
    assert told["events"][2]["place"] == "billing"
    assert lines == told["events"]


def test_the_first_event_is_found_by_its_own_id(store_url: str) -> None:
    async def job(app: Redrive) -> str:
        @app.handler("order.placed")
        async def place(order: dict[str, Any], ctx: Context) -> None:
            await ctx.publish("order.packed", order, delay="1h")

        first = await app.publish("order.placed", {"id": 7})
        await app.worker().drain()
        return str(first.id)

    found = _looked([store_url], in_app(store_url, job))

    assert [each.event.type for each in found.events] == ["order.placed", "order.packed"]
    assert found.state is Progress.WAITING
    assert "1 event waiting for its time" in found.sentence


def test_a_publish_for_several_handlers_is_one_task(store_url: str) -> None:
    async def job(app: Redrive) -> str:
        @app.handler("order.placed")
        async def place(order: dict[str, Any]) -> None: ...

        @app.handler("order.placed", name="report")
        async def report(order: dict[str, Any], ctx: Context) -> None:
            await ctx.publish("order.reported", order)

        first = await app.publish("order.placed", {"id": 7})
        await app.worker().drain()
        return str(first.id)

    found = _looked([store_url], in_app(store_url, job))

    assert sorted(each.event.target for each in found.events) == ["order.placed", "order.reported", "report"]
    assert len({each.event.correlation_id for each in found.events}) == 1


def test_what_waits_says_for_what(store_url: str) -> None:
    async def job(app: Redrive) -> None:
        @app.handler("order.placed")
        async def place(order: dict[str, Any]) -> None: ...

        await app.hold("order.placed", by="ops", reason="maintenance")
        await app.publish("order.placed", {"id": 7}, correlation_id=CORRELATION)
        await app.worker().drain()
        assert (await task([app], CORRELATION)).state is Progress.WAITING
        await app.publish("order.sent", {"id": 7}, correlation_id=CORRELATION)

    in_app(store_url, job)

    found = _looked([store_url])

    assert found.state is Progress.RUNNING  # one is due
    assert "1 event waiting for hold:order.placed" in found.sentence


@pytest.mark.req("W11")
def test_a_database_that_does_not_answer_is_named_and_the_others_are_shown(store_url: str) -> None:
    in_app(store_url, _shop)
    gone = f"postgresql://nobody:secret@127.0.0.1:{free_port()}/paris"

    table = redrive("task", CORRELATION, "-u", store_url, "-a", gone, "-a", "sqlite:///nowhere.db")
    told = redrive("task", CORRELATION, "-u", store_url, "-a", gone, "-o", "json").json

    assert table.code == 0
    assert table.out.startswith("Unknown: 2 of 2 events ended. paris, nowhere do not answer.")
    assert "redrive: paris does not answer: " in table.err
    assert "there is no file nowhere.db" in table.err
    assert "secret" not in table.out + table.err
    assert not Path("nowhere.db").exists()
    assert list(told["silent"]) == ["paris"]
    assert len(told["events"]) == 2


def test_when_no_database_answers_that_is_an_error() -> None:
    ended = redrive("task", CORRELATION, "-u", "sqlite:///nowhere.db")

    assert ended.code == 1
    assert "there is no file nowhere.db" in ended.err
    with pytest.raises(RedriveError, match="name the databases"):
        _looked([])


def test_an_unknown_correlation_id_matches_nothing(store_url: str) -> None:
    in_app(store_url, _shop)

    ended = redrive("task", "no-such", "-u", store_url)

    assert (ended.code, ended.out) == (3, "")
    assert "no event has the correlation id no-such" in ended.err


def test_a_large_task_is_cut_and_what_has_not_ended_well_is_among_what_is_shown(store_url: str) -> None:
    async def job(app: Redrive) -> None:
        @app.handler("order.bad", retry=RetryPolicy(max_attempts=1))
        async def refuse(order: int) -> None:
            raise TerminalHandlerError("no")

        @app.handler("order.placed")
        async def place(order: int) -> None: ...

        await app.publish("order.bad", 0, correlation_id=CORRELATION)
        await app.publish_many([("order.placed", n, {"correlation_id": CORRELATION}) for n in range(30)])
        await app.worker().drain()

    in_app(store_url, job)

    found = _looked([store_url], limit=10)

    assert len(found.events) == 10
    assert found.is_cut
    assert found.state is Progress.NEEDS_A_PERSON
    assert "there are more than 10 events" in found.sentence


def test_events_that_cause_one_another_in_a_ring_are_all_shown(store_url: str) -> None:
    async def job(app: Redrive) -> None:
        one, two = (app.new_events("ring", n, correlation_id=CORRELATION)[0] for n in range(2))
        one.causation_id, two.causation_id = str(two.id), str(one.id)
        lone = app.new_events("ring", 3, correlation_id=CORRELATION)[0]
        lone.causation_id = str(lone.id)
        await app.open()
        await app.store.publish([one, two, lone])

    in_app(store_url, job)

    assert len(_looked([store_url]).events) == 3


def test_apps_that_are_open_stay_open(store_url: str) -> None:
    async def job(app: Redrive) -> Task:
        await _shop(app)
        found = await task([app], CORRELATION)
        await app.publish("order.placed", {"id": 9})
        return found

    found = in_app(store_url, job)

    assert json.loads(json.dumps(found.to_json()))["state"] == "done"
