"""What operators do, in a real browser: first visit, triage, redrive, edit, search, keys."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from redrive import Status
from redrive.operate.auth import Role
from redrive.store.base import EventFilter
from tests.console.conftest import PATIENCE, Desk, Mended, orders

expect.set_options(timeout=PATIENCE)


def event(desk: Desk, event_id: str) -> Any:
    return desk.call(desk.app.event, UUID(event_id))


def test_the_first_visit_asks_for_a_token_and_says_what_to_do(desk: Desk) -> None:
    page = desk.context().new_page()

    page.goto(desk.site.url + "/failures")
    expect(page).to_have_url(re.compile(r"/login\?next=/failures$"))
    page.get_by_label("Token").fill("rdv_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    page.get_by_label("Token").fill(desk.site.token())
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("heading", name="Failures")).to_be_visible()
    expect(page.locator("main")).to_contain_text("The quarantine is empty.")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("main")).to_contain_text("Nothing has been published yet.")
    expect(page.locator("#live")).to_contain_text("live")


@pytest.mark.req("B1", "B2", "W10")
def test_a_group_is_triaged_planned_redriven_on_a_ramp_and_watched(any_desk: Desk, mended: Mended) -> None:
    desk = any_desk
    orders(desk, 4, "EUR")
    ids = orders(desk, 12)
    page = desk.sit()

    page.goto(desk.site.url + "/failures")
    page.get_by_role("link", name="KeyError: 'JPY'").click()
    expect(page.locator("#tiles")).to_contain_text("12")
    expect(page.locator("#skew")).to_contain_text("payload.currency")
    page.get_by_role("button", name="Plan a redrive of all 12").click()
    expect(page.locator("#tiles")).to_contain_text("12ready to go")
    form = page.locator("#start")
    expect(form).to_contain_text("12 of")
    form.get_by_label("Steps of the ramp").fill("1, 5")
    form.get_by_label("Reason").fill("knows yen now")
    mended.orders = True
    form.get_by_role("button", name="Start 12 events").click()
    expect(page.locator("#state")).to_contain_text("running")
    with desk.working():
        expect(page.locator("#state")).to_contain_text("done")  # nobody reloads: the page hears of it
        expect(page.locator("#outcome")).to_contain_text("12 delivered")
    expect(page.locator("#notice")).to_have_text("Started. The workers carry it on.")  # however much has changed

    expect(page.locator("#stages .stage")).to_have_count(3)
    expect(page.locator("#stages .stage").nth(1)).to_contain_text("5 of 5 tried")
    assert {event(desk, each).status for each in ids} == {Status.DELIVERED}
    (started,) = [each for each in desk.call(desk.app.redrivings) if each.started_at]
    assert (started.started_by, started.reason, started.ramp) == ("ada", "knows yen now", (1, 5))
    page.goto(desk.site.url + "/audit")
    expect(page.locator("#list")).to_contain_text("redrive started")


@pytest.mark.req("B1")
def test_a_ramp_halts_before_the_eyes_of_the_operator_who_aborts_it(desk: Desk) -> None:
    ids = orders(desk, 10)
    page = desk.sit()
    page.goto(desk.site.url + "/redrives")
    page.get_by_label("Which dead letters").fill("type:order.paid")
    page.get_by_role("button", name="Plan").click()
    page.locator("#start").get_by_label("Reason").fill("perhaps")
    page.get_by_role("button", name="Start 10 events").click()

    with desk.working():
        expect(page.locator("#stop")).to_contain_text("the same failure came back")
    page.locator("summary", has_text="Abort").click()
    sheet = page.locator("details[open] form")
    expect(sheet).to_contain_text("9 events that were not released stay what they were")
    sheet.get_by_label("Reason").fill("not mended at all")
    sheet.get_by_role("button", name="Abort it").click()

    expect(page.locator("#state")).to_contain_text("aborted")
    expect(page.locator("#outcome")).to_contain_text("9 untouched")
    assert sorted(event(desk, each).cycle for each in ids) == [0] * 9 + [1]


def test_a_running_redrive_is_paused_and_resumed(desk: Desk, mended: Mended) -> None:
    orders(desk, 15)
    mended.orders = True
    page = desk.sit()
    page.goto(desk.site.url + "/redrives?q=type:order.paid")
    page.get_by_role("button", name="Plan").click()
    form = page.locator("#start")
    form.get_by_role("radio").nth(1).check()
    form.get_by_label("Rate", exact=True).fill("2")
    form.get_by_label("Reason").fill("slowly")
    form.get_by_role("button", name="Start 15 events").click()

    with desk.working():
        expect(page.locator("#outcome")).to_contain_text(re.compile(r"[1-9][0-9]* delivered"))
        page.locator("summary", has_text="Pause").click()
        sheet = page.locator("details[open] form")
        sheet.get_by_label("Reason").fill("the bank calls")
        sheet.get_by_role("button", name="Pause it").click()
        expect(page.locator("#state")).to_contain_text("paused")
        expect(page.locator("#stop")).to_contain_text("the bank calls")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("#state")).to_contain_text("running")


@pytest.mark.req("A2")
def test_an_event_is_edited_and_replayed_and_its_secret_stays_hidden(desk: Desk) -> None:
    async def publish() -> str:
        payload = {"product": "lamp", "card": "4111111111111111", "mended": False}
        return str((await desk.app.publish("order.refused", payload, retry_key="order-7")).id)

    event_id = desk.call(publish)
    desk.drain()
    page = desk.sit()

    page.goto(f"{desk.site.url}/events/{event_id}")
    expect(page.locator("#facts")).to_contain_text("order-7")
    expect(page.locator("#payload .hidden")).to_have_text("•••")
    assert "4111111111111111" not in page.content()
    page.get_by_role("link", name="Edit and replay").click()
    field = page.get_by_label("Payload")
    field.fill("{not json")
    page.get_by_role("button", name="See what changes").click()
    expect(page.get_by_role("alert")).to_contain_text("this is not JSON")
    field.fill('{"product": "lamp", "card": "•••", "mended": true}')
    page.get_by_role("button", name="See what changes").click()
    expect(page.locator("#diff .change")).to_have_count(1)
    expect(page.locator("#diff")).to_contain_text("payload.mended")
    page.get_by_label("Reason").fill("found the lamp")
    page.get_by_role("button", name="Replay").click()
    expect(page.locator("main")).to_contain_text("Replayed with the new payload")
    with desk.working():
        expect(page.locator("#marks")).to_contain_text("delivered")

    assert event(desk, event_id).payload == {"product": "lamp", "card": "4111111111111111", "mended": True}
    expect(page.locator("#timeline")).to_contain_text("replayed by ada")


def test_a_secret_is_revealed_once_and_that_is_on_the_trail(desk: Desk) -> None:
    async def publish() -> str:
        return str((await desk.app.publish("order.refused", {"card": "4111111111111111"})).id)

    event_id = desk.call(publish)
    desk.drain()
    page = desk.sit()
    page.goto(f"{desk.site.url}/events/{event_id}")

    page.locator("summary", has_text="Reveal").click()
    sheet = page.locator("details[open] form")
    sheet.get_by_label("Reason").fill("the customer asks")
    sheet.get_by_role("button", name="Reveal").click()
    expect(page.locator("#payload")).to_contain_text("4111111111111111")
    page.reload()

    expect(page.locator("#payload .hidden")).to_have_text("•••")
    trail = desk.call(desk.app.trail, UUID(event_id))
    assert [(each.actor, each.facts["reason"]) for each in trail if each.kind == "revealed"] == [
        ("ada", "the customer asks")
    ]


def test_what_is_refused_is_said_beside_the_button(desk: Desk) -> None:
    (event_id,) = orders(desk, 1)
    page = desk.sit()
    page.goto(f"{desk.site.url}/events/{event_id}")
    page.locator("summary", has_text="Replay").click()
    sheet = page.locator("details[open] form")
    sheet.get_by_label("Reason").fill("again")

    desk.call(desk.app.discard, UUID(event_id), by="grace", reason="not ours")
    expect(page.locator("#marks")).to_contain_text("discarded")  # and what was begun is still there
    sheet.get_by_role("button", name="Replay it").click()

    expect(sheet.get_by_role("alert")).to_contain_text("is not what it was when you read it")
    expect(sheet.get_by_label("Reason")).to_have_value("again")


def test_search_says_back_what_it_understood_or_points_at_the_mistake(desk: Desk) -> None:
    orders(desk, 3)
    orders(desk, 2, "EUR")
    page = desk.sit()

    page.keyboard.press("/")
    page.keyboard.type("status:failed payload.currency:JPY")
    page.keyboard.press("Enter")
    expect(page.locator("#list tbody tr")).to_have_count(3)
    expect(page.locator("#meaning")).to_contain_text("Dead letters")
    page.locator("main").get_by_label("Selection", exact=True).fill("status:fine")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").locator("mark")).to_have_text("fine")
    page.locator("main").get_by_label("Selection", exact=True).fill("type:nothing.*")
    page.keyboard.press("Enter")

    expect(page.locator("main")).to_contain_text("Nothing matches.")


def test_many_are_discarded_after_their_sentence_was_read(desk: Desk) -> None:
    orders(desk, 5)
    page = desk.sit()
    page.goto(desk.site.url + "/events?q=status:failed")
    boxes = page.locator("input[name=id]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    expect(page.locator("#ticked")).to_have_text("With the 2 ticked:")

    page.get_by_role("button", name="Discard…").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Discard 2 dead letters")
    page.get_by_label("Reason").fill("test orders")
    page.get_by_role("button", name="Discard 2").click()
    expect(page.locator("main")).to_contain_text("2 dead letters were discarded")

    assert len(desk.call(desk.app.events, EventFilter(status=Status.FAILED))) == 3


def test_the_keyboard_walks_ticks_opens_and_goes(desk: Desk) -> None:
    orders(desk, 3)
    page = desk.sit()
    page.goto(desk.site.url + "/events")
    rows = page.locator("#list tbody tr")

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("k")
    expect(rows.nth(0)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("x")
    expect(rows.nth(0).locator("input")).to_be_checked()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    expect(page.locator(":focus")).to_have_count(0)  # a moment later it has given the focus back
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/events/[0-9a-f-]{36}$"))
    page.keyboard.press("g")
    page.keyboard.press("f")

    expect(page.get_by_role("heading", name="Failures")).to_be_visible()


def test_a_key_is_released_a_circuit_opened_a_type_held_and_a_policy_set(desk: Desk) -> None:
    async def publish() -> None:
        for _ in range(2):
            await desk.app.publish("order.refused", {"product": "lamp"}, ordering_key="customer-7")

    desk.call(publish)
    desk.drain()
    page = desk.sit()

    page.goto(desk.site.url + "/keys")
    expect(page.locator("#list")).to_contain_text("customer-7")
    page.locator("summary", has_text="Release").click()
    sheet = page.locator("details[open] form")
    sheet.get_by_label("Reason").fill("the customer agrees")
    sheet.get_by_role("button", name="Release").click()
    expect(page.locator("main")).to_contain_text("Released")
    page.goto(desk.site.url + "/dependencies")
    page.locator("summary", has_text="Hold a type").click()
    sheet = page.locator("details[open] form")
    sheet.get_by_label("Type or queue").fill("order.*")
    sheet.get_by_label("Reason").fill("the warehouse counts")
    sheet.get_by_role("button", name="Hold it").click()
    expect(page.locator("#list")).to_contain_text("on hold")
    page.goto(desk.site.url + "/policies?name=order.paid")
    page.get_by_label("Attempts").fill("9")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#schedule li")).to_have_count(8)
    page.get_by_label("Reason").fill("they come back by themselves")
    page.get_by_role("button", name="Set it").click()
    expect(page.locator("#set")).to_contain_text("order.paid")

    (held,) = [each for each in desk.call(desk.app.dependencies) if each.kind == "hold"]
    (policy,) = desk.call(desk.app.policies)
    assert (held.reason, policy.values, policy.set_by) == ("the warehouse counts", {"max_attempts": 9}, "ada")


def test_a_large_redrive_waits_for_a_second_person(desk: Desk) -> None:
    from redrive.operate import actions

    orders(desk, 3)
    desk.call(actions.set_approval, desk.app, 2, by="boss", reason="four eyes")
    page = desk.sit()
    page.goto(desk.site.url + "/redrives?q=type:order.paid")
    page.get_by_role("button", name="Plan").click()
    expect(page.locator("#approval")).to_contain_text("You have planned it")
    expect(page.locator("#start")).to_have_count(0)

    other = desk.sit("grace")
    other.goto(page.url)
    other.get_by_role("button", name="Approve 3 events").click()

    expect(other.locator("#state")).to_contain_text("approved by grace")
    expect(page.locator("#start")).to_be_visible()  # hers has heard of it, too


def test_an_edited_payload_waits_for_a_second_person_who_sees_what_changes(desk: Desk) -> None:
    from redrive.operate import actions

    async def publish() -> str:
        payload = {"product": "lamp", "card": "4111111111111111", "mended": False}
        return str((await desk.app.publish("order.refused", payload)).id)

    event_id = desk.call(publish)
    desk.drain()
    desk.call(actions.set_approval, desk.app, 100, by="boss", reason="four eyes")
    page = desk.sit()
    page.goto(f"{desk.site.url}/events/{event_id}/edit")
    page.get_by_label("Payload").fill('{"product": "lamp", "card": "•••", "mended": true}')
    page.get_by_role("button", name="See what changes").click()
    page.get_by_label("Reason").fill("found the lamp")
    page.get_by_role("button", name="Replay").click()
    expect(page.locator("#approval")).to_contain_text("You have edited it")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)

    other = desk.sit("grace")
    other.goto(desk.site.url + "/redrives")
    expect(other.locator("#list")).to_contain_text("waits for approval")
    other.goto(page.url)
    expect(other.locator("#diff")).to_contain_text("payload.mended")
    other.get_by_role("button", name="Approve, and replay it").click()
    expect(other.locator("#state")).to_contain_text("approved by grace")
    desk.drain()

    assert event(desk, event_id).payload == {"product": "lamp", "card": "4111111111111111", "mended": True}


@pytest.mark.req("B8")
def test_a_person_approves_what_an_agent_has_planned(desk: Desk) -> None:
    from redrive.operate import actions

    orders(desk, 3)
    desk.call(actions.set_agents_limit, desk.app, 2, by="boss", reason="look first")
    plan = desk.call(actions.plan, desk.app, "type:order.paid", by="agent:claude")
    assert plan is not None
    page = desk.sit()
    page.goto(f"{desk.site.url}/redrives/{plan.redrive.id}")

    expect(page.locator("#asked")).to_contain_text("agent:claude asks for approval")
    expect(page.locator("#start")).to_be_visible()
    page.get_by_role("button", name="Approve 3 events").click()

    expect(page.locator("#state")).to_contain_text("approved by ada")
    expect(page.locator("#asked")).to_have_count(0)


def test_problems_are_looked_for_when_the_page_is_opened(desk: Desk) -> None:
    orders(desk, 2)
    page = desk.sit()

    page.goto(desk.site.url + "/problems")

    expect(page.locator("#list")).to_contain_text("2 in quarantine")
    expect(page.locator("main")).to_contain_text("Looked")
    page.get_by_role("link", name="Look now").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("to see to")


def rows_of(page: Page) -> list[str]:
    found: list[str] = page.locator("#list tbody tr").evaluate_all("rows => rows.map(row => row.dataset.key)")
    return found


def test_rows_never_move_under_the_pointer(desk: Desk) -> None:
    orders(desk, 4)
    page = desk.sit()
    page.goto(desk.site.url + "/events")
    expect(page.locator("#live")).to_contain_text("live")
    before = rows_of(page)
    row = page.locator("#list tbody tr").nth(1)
    row.hover()
    top = row.bounding_box()

    orders(desk, 3)
    expect(page.locator(".news")).to_be_visible()
    assert rows_of(page) == before
    assert row.bounding_box() == top
    page.mouse.move(5, 5)
    expect(page.locator("#list tbody tr")).to_have_count(7)

    assert rows_of(page)[3:] == before
    expect(page.locator(".news")).to_have_count(0)


def test_a_viewer_looks_and_finds_nothing_to_press(desk: Desk) -> None:
    (event_id,) = orders(desk, 1)
    page = desk.sit("vera", Role.VIEWER)

    for path in (
        "/",
        "/failures",
        "/events",
        f"/events/{event_id}",
        "/redrives",
        "/keys",
        "/dependencies",
        "/policies",
    ):
        page.goto(desk.site.url + path)
        expect(page.locator("main form[method=post]")).to_have_count(0)

    page.goto(desk.site.url + f"/events/{event_id}/edit")
    expect(page.locator("main")).to_contain_text("needs the permission to act")


def test_light_and_dark_are_a_choice_that_stays(desk: Desk) -> None:
    page = desk.sit(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)

    page.keyboard.press("t")
    light = page.evaluate(paper)
    page.reload()

    assert page.evaluate(paper) == light != dark
