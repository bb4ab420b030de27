"""The tools of an agent, called by the SDK's own client: each of them, on every store."""

from __future__ import annotations

import asyncio
import json

import pytest

from redrive import Redrive, Refused, Status
from redrive.operate import actions
from redrive.operate.auth import Caller, How, Role
from redrive.store.base import EventFilter
from tests.agents.shop import ALL, CARD, Shop, agent, ask, carried, wrong

pytestmark = pytest.mark.req("O11")


async def test_the_tools_are_these_and_say_what_they_do(sqlite_shop: Shop) -> None:
    async with agent(sqlite_shop.app) as client:
        tools = (await client.list_tools()).tools
        assert client.instructions is not None
        assert "UNTRUSTED DATA" in client.instructions

    assert [each.name for each in tools] == ALL
    for each in tools:
        assert each.description
        assert each.output_schema is not None
        assert each.output_schema["additionalProperties"] is False
        assert each.input_schema["additionalProperties"] is False
        assert "next" in each.output_schema["properties"]
        for name, told in each.input_schema["properties"].items():
            assert "description" in told, (each.name, name)
    hints = {each.name: each.annotations for each in tools}
    looking = {name for name, hint in hints.items() if hint and hint.read_only_hint}
    careful = {name for name, hint in hints.items() if hint and hint.destructive_hint}
    repeatable = {name for name, hint in hints.items() if hint and hint.idempotent_hint}
    assert looking == {
        "list_dlq_events", "get_dlq_event_detail", "list_failure_groups", "explain_failure_group", "get_redrive",
    }  # fmt: skip
    assert careful == {"replay_dlq_event", "start_redrive", "abort_redrive"}
    assert repeatable == set(ALL) - {"plan_redrive"}


async def test_dead_letters_are_listed_in_pages(shop: Shop) -> None:
    ids = await shop.bury(5)

    async with agent(shop.app) as client:
        first = await ask(client, "list_dlq_events", selection="type:order.*", limit=2)
        second = await ask(client, "list_dlq_events", selection="type:order.*", limit=2, cursor=first["next_cursor"])
        third = await ask(client, "list_dlq_events", selection="type:order.*", limit=2, cursor=second["next_cursor"])
        other = await wrong(client, "list_dlq_events", selection="type:x", cursor=first["next_cursor"])
        none = await ask(client, "list_dlq_events", selection="type:nothing.*")

    pages = [first, second, third]
    assert [each["id"] for page in pages for each in page["events"]] == ids[::-1]
    assert third["next_cursor"] is None
    assert "without a cursor" in other
    assert (none["events"], "Widen" in none["next"]) == ([], True)


async def test_one_event_is_shown_whole_without_its_secrets(shop: Shop) -> None:
    (dead,) = await shop.bury(subject="order/7", headers={"Authorization": "Bearer abcdefgh12345"})
    await shop.app.replay((await shop.app.events(EventFilter()))[0].id, by="ada", reason="try it")
    await shop.app.worker().drain()

    async with agent(shop.app) as client:
        told = await ask(client, "get_dlq_event_detail", event_id=dead[:30])
        lines = await ask(client, "list_dlq_events")
        group = await ask(client, "explain_failure_group", group=told["group"])
        groups = await ask(client, "list_failure_groups")
        hidden = await wrong(client, "list_dlq_events", selection=f"payload.card:{CARD}")
        planned = await wrong(client, "plan_redrive", selection=f"payload.card:{CARD}")

    assert (told["id"], told["cycle"], told["status"], told["subject"]) == (dead, 1, "failed", "order/7")
    assert '"n": 0' in told["payload"]
    assert "•••" in told["payload"]
    assert "carrier refuses" in told["last_error"]
    assert [each["replayed_by"] for each in told["history"]] == ["ada"]
    assert "try it" in told["history"][0]["reason"]
    assert "replayed by ada" in told["timeline"]
    assert "cycle 1" in told["next"]
    assert groups["groups"][0]["dead_count"] == 1
    assert group["sample_event_id"] == dead
    for each in (told, lines, group, groups):
        assert CARD not in json.dumps(each)
        assert "abcdefgh12345" not in json.dumps(each)
    assert "hidden from you" in hidden
    assert "hidden from you" in planned


async def test_a_group_says_what_sets_it_apart(shop: Shop) -> None:
    shop.broken = False
    await shop.bury(4, currency="EUR")
    shop.broken = True
    await shop.bury(3, currency="XOF")

    async with agent(shop.app) as client:
        (found,) = (await ask(client, "list_failure_groups"))["groups"]
        told = await ask(client, "explain_failure_group", group=found["group"])

    assert (found["state"], found["dead_count"]) == ("new", 3)
    (apart,) = [each for each in told["apart"] if each["field"] == "payload.currency"]
    assert ("XOF" in apart["value"], apart["among_dead"], apart["among_delivered"]) == (True, 1.0, 0.0)
    assert "one group" in told["why"]
    assert f"group:{found['group']}" in told["next"]


@pytest.mark.req("O5", "W6")
async def test_a_replay_happens_once_for_a_cycle_however_often_it_is_called(shop: Shop) -> None:
    (dead,) = await shop.bury()
    call = {"event_id": dead, "cycle": 0, "reason": "the carrier is back"}

    async with agent(shop.app) as client:
        answers = await asyncio.gather(*(ask(client, "replay_dlq_event", **call) for _ in range(5)))
        await shop.app.worker().drain()
        again = await ask(client, "replay_dlq_event", **call)
        early = await wrong(client, "replay_dlq_event", **{**call, "cycle": 7})
        silent = await wrong(client, "replay_dlq_event", **{**call, "reason": "  "})
        shop.broken = False
        second = await ask(client, "replay_dlq_event", **{**call, "cycle": 1})
        await shop.app.worker().drain()
        over = await wrong(client, "replay_dlq_event", **{**call, "cycle": 2})

    assert [each["replayed"] for each in answers].count(True) == 1
    assert {each["replayed_by"] for each in answers} == {"agent:claude"}
    assert (again["replayed"], again["status"], "cycle 1" in again["next"]) == (False, "failed", True)
    assert "cycle 1" in early
    assert "reason" in silent
    assert second["replayed"] is True
    assert "only a dead letter" in over
    assert (await shop.trail()).count(("replayed", "agent:claude")) == 2


@pytest.mark.req("B1", "B8")
async def test_an_agent_plans_a_person_approves_and_then_it_goes(shop: Shop) -> None:
    await shop.bury(12)
    shop.broken = False

    async with agent(shop.app) as client:
        plan = await ask(client, "plan_redrive", selection="type:order.paid")
        go = {"token": plan["token"], "reason": "the carrier is back"}
        refused = await wrong(client, "start_redrive", **go)
        waiting = await ask(client, "get_redrive", redrive_id=plan["redrive_id"])
        (matter,) = await shop.app.attention(kinds=["redrive"])
        standing = (await shop.app.redrivings())[0]
        with pytest.raises(Refused, match="agent"):
            await actions.approve(shop.app, standing, by="agent:other")
        await actions.approve(shop.app, standing, by="ada")
        agreed = await ask(client, "get_redrive", redrive_id=plan["redrive_id"])
        started = await ask(client, "start_redrive", **go)
        repeated = await ask(client, "start_redrive", **go)
        ended = await carried(shop, client, plan["redrive_id"], "done")

    assert (plan["ready"], plan["needs_approval"], plan["parts"][0]["count"]) == (12, True, 12)
    assert plan["redrive_id"] in plan["next"]
    assert "12 events are more than the 10 that agent:claude may start alone" in refused
    assert "approve" in refused.rpartition("Next: ")[2]
    assert (waiting["state"], waiting["needs_approval"]) == ("planned", True)
    assert (matter.act, "agent:claude" in matter.sentence) == (f"redrive redrives approve {plan['redrive_id']}", True)
    assert (agreed["needs_approval"], agreed["approved_by"]) == (False, "ada")
    assert (started["state"], started["started_by"]) == ("running", "agent:claude")
    assert repeated["redrive_id"] == started["redrive_id"]
    assert (ended["state"], ended["delivered"], ended["failed_same"]) == ("done", 12, 0)
    assert ended["groups"][0]["outcomes"] == {"delivered": 12}
    trail = await shop.trail()
    for each in (("redrive-planned", "agent:claude"), ("redrive-approved", "ada"), ("redrive-started", "agent:claude")):
        assert trail.count(each) == 1, each


@pytest.mark.req("B8")
async def test_a_few_events_an_agent_starts_alone_and_stops_again(shop: Shop) -> None:
    await shop.bury(3)

    async with agent(shop.app) as client:
        plan = await ask(client, "plan_redrive", selection="type:order.paid")
        started = await ask(client, "start_redrive", token=plan["token"], reason="try", ramp=[1])
        paused = await ask(client, "pause_redrive", redrive_id=plan["redrive_id"], reason="wait")
        still = await ask(client, "pause_redrive", redrive_id=plan["redrive_id"], reason="wait")
        standing = (await shop.app.redrivings())[0]
        with pytest.raises(Refused, match="person resumes"):
            await actions.resume(shop.app, standing, by="agent:claude")
        aborted = await ask(client, "abort_redrive", redrive_id=plan["redrive_id"], reason="no")
        gone = await ask(client, "abort_redrive", redrive_id=plan["redrive_id"], reason="no")
        late = await wrong(client, "pause_redrive", redrive_id=plan["redrive_id"], reason="late")

    assert (plan["needs_approval"], started["state"]) == (False, "running")
    assert [each["state"] for each in (paused, still, aborted, gone)] == ["paused"] * 2 + ["aborted"] * 2
    assert (aborted["untouched"], aborted["stopped_by"]) == (3, "agent:claude")
    assert "only a running one" in late
    assert len(await shop.app.events(EventFilter(status=Status.FAILED))) == 3


@pytest.mark.req("B8")
async def test_how_much_an_agent_starts_alone_is_a_setting(shop: Shop) -> None:
    await shop.bury(1)
    await actions.set_agents_limit(shop.app, 0, by="root", reason="not yet")

    async with agent(shop.app) as client:
        plan = await ask(client, "plan_redrive", selection="type:order.paid")
        refused = await wrong(client, "start_redrive", token=plan["token"], reason="try")

    assert plan["needs_approval"] is True
    assert "more than the 0" in refused


async def test_a_ramp_that_halts_says_so(shop: Shop) -> None:
    await shop.bury(3)

    async with agent(shop.app) as client:
        plan = await ask(client, "plan_redrive", selection="type:order.paid")
        await ask(client, "start_redrive", token=plan["token"], reason="hope")
        told = await carried(shop, client, plan["redrive_id"], "halted")

    assert (told["state"], told["failed_same"], told["untouched"]) == ("halted", 1, 2)
    assert "Only a person" in told["next"]
    assert "same failure" in told["stop_reason"]


async def test_errors_say_what_to_do_next(sqlite_shop: Shop) -> None:
    await sqlite_shop.bury()

    async with agent(sqlite_shop.app) as client:
        syntax = await wrong(client, "plan_redrive", selection="type:order.paid colour:red")
        nothing = await wrong(client, "plan_redrive", selection="type:other")
        missing = await wrong(client, "get_dlq_event_detail", event_id="ffffffff")
        strange = await wrong(client, "explain_failure_group", group="no such group")
        redrive = await wrong(client, "get_redrive", redrive_id="00000000")
        token = await wrong(client, "start_redrive", token="x", reason="y")
        unknown = await wrong(client, "discard_dlq_event", event_id="1")
        extra = await wrong(client, "plan_redrive", selection="type:order.paid", unsafe=True)
        far = await wrong(client, "list_dlq_events", limit=5_000)

    assert syntax.splitlines()[2].index("^") - 2 == "type:order.paid colour:red".index("colour")
    assert "nothing matched" in nothing
    assert "list_dlq_events" in missing
    assert "list_failure_groups" in strange
    assert "plan_redrive" in redrive
    assert "plan_redrive" in token
    assert "There is no tool" in unknown
    assert "unsafe" in extra
    assert "limit" in far


async def test_a_database_that_is_away_is_told(tmp_path: object) -> None:
    app = Redrive("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")

    async with agent(app) as client:
        told = await wrong(client, "list_failure_groups")
    await app.close()

    assert "Call again" in told


async def test_a_viewer_sees_and_touches_nothing(sqlite_shop: Shop) -> None:
    (dead,) = await sqlite_shop.bury()
    viewer = Caller("vera", Role.VIEWER, How.TOKEN)

    async with agent(sqlite_shop.app, caller=viewer) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        await ask(client, "list_dlq_events")
        refused = await wrong(client, "replay_dlq_event", event_id=dead, cycle=0, reason="x")

    assert len(names) == 5
    assert "role" in refused


async def test_an_older_client_is_served_like_a_new_one(sqlite_shop: Shop) -> None:
    await sqlite_shop.bury()

    async with agent(sqlite_shop.app, mode="legacy") as client:
        assert [each.name for each in (await client.list_tools()).tools] == ALL
        assert len((await ask(client, "list_dlq_events"))["events"]) == 1
