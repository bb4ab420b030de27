"""The other screens: what needs a person, batches, tasks, transports, schedules, reconcilers, reservations."""

from __future__ import annotations

import re
import secrets
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from redrive import Redrive
from redrive.operate.auth import Role
from redrive.transport.nats import Nats
from tests.console.conftest import PATIENCE, Desk, Mended, orders
from tests.servers import NatsServer

expect.set_options(timeout=PATIENCE)

NEW = ("/attention", "/batches", "/tasks", "/reservations", "/transports", "/schedules", "/reconcilers")


def press(page: Page, name: str, button: str, reason: str, within: str = "main") -> None:
    """Open a sheet, say why, and do it."""
    page.locator(within).locator("summary.button", has_text=name).first.click()
    sheet = page.locator("details.act[open] form")
    sheet.get_by_label("Reason").fill(reason)
    sheet.get_by_role("button", name=button).click()


def noted(desk: Desk, kind: str) -> list[tuple[str, str]]:
    """Read who did something of a kind, and why."""

    async def read() -> list[tuple[str, str]]:
        return [(each.actor, each.facts["reason"]) async for each in desk.app.store.trail() if each.kind == kind]

    found: list[tuple[str, str]] = desk.call(read)
    return found


@pytest.mark.req("W10")
def test_what_needs_a_person_is_counted_in_the_menu_and_leads_to_where_one_acts(any_desk: Desk, mended: Mended) -> None:
    desk = any_desk
    page = desk.sit()
    page.goto(desk.site.url + "/attention")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing needs a person")
    expect(page.locator("#live")).to_contain_text("live")

    orders(desk, 3)
    expect(page.get_by_role("heading", level=1)).to_have_text("1 thing needs a person")  # nobody has reloaded
    expect(page.locator("#screens .count")).to_have_text("1")
    matter = page.locator("#list .matter")
    expect(matter).to_contain_text("3 dead letters of order.paid (KeyError: 'JPY')")
    expect(matter.locator(".command")).to_have_text(re.compile(r"^redrive plan group:[0-9a-f]{8}$"))
    matter.get_by_role("link", name="Open the group").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("KeyError: 'JPY'")
    page.goto(desk.site.url + "/")
    expect(page.locator("#health")).to_contain_text("Attention")
    expect(page.locator("#needs")).to_contain_text("3 dead letters of order.paid")
    mended.orders = True
    desk.call(_redriven, desk.app)

    expect(page.locator("#screens .count")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.locator("main")).to_contain_text("Nothing waits for a person.")


async def _redriven(app: Redrive) -> None:
    plan = await app.plan("status:failed", by="grace")
    await app.start(plan.redrive.token, by="grace", reason="mended")
    await app.worker().drain()


@pytest.mark.req("E8", "W10")
def test_a_batch_is_watched_closed_and_its_notices_read(any_desk: Desk) -> None:
    desk = any_desk

    async def opened() -> Any:
        batch = await desk.app.batches.open("import", deadline="1h")
        for row in range(6):
            currency = "EUR" if row % 3 else "JPY"
            await batch.add("order.paid", {"currency": currency}, group=f"file-{row % 2}")
        await batch.add("order.refused", {"product": "lamp", "card": "4111111111111111"}, group="file-2")
        return batch

    batch = desk.call(opened)
    desk.drain()
    page = desk.sit()
    page.goto(desk.site.url + "/batches")
    expect(page.locator("#list")).to_contain_text("7 of 7")
    page.get_by_role("link", name="import").click()
    expect(page.locator("#state")).to_contain_text("open")
    expect(page.locator("#groups tbody tr")).to_have_count(3)
    expect(page.locator("#final")).to_contain_text("Not sent.")
    press(page, "Close", "Close it", "the file is read")

    expect(page.locator("#state")).to_contain_text("done")
    expect(page.locator("#final")).to_contain_text("4 of 7 delivered; 3 failed, 0 cancelled.")
    expect(page.locator("#final")).to_contain_text(re.compile(r"Groups: (2 partly, 1 failed|1 failed, 2 partly)\."))
    expect(page.locator("#failures tbody tr")).to_have_count(3)
    expect(page.locator("#failures")).to_contain_text("KeyError: 'JPY'")
    assert "4111111111111111" not in page.content()
    assert noted(desk, "batch-closed") == [("ada", "the file is read")]
    page.get_by_role("link", name="Redrive the failed…").click()
    expect(page.locator("#plan")).to_contain_text(f"dead letters in batch {batch.id}")
    page.goto(f"{desk.site.url}/batches/{batch.id}")
    page.get_by_role("link", name="See the members").click()
    expect(page.locator("#list tbody tr")).to_have_count(7)
    page.locator("#list tbody tr a").first.click()
    page.locator("#facts a", has_text="…").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("import")


@pytest.mark.req("W10")
def test_a_page_shows_what_happened_between_its_drawing_and_its_listening(any_desk: Desk) -> None:
    desk = any_desk
    page = desk.sit()

    def late(route: Route) -> None:
        orders(desk, 3)
        route.continue_()

    page.route("**/api/v1/changes*", late, times=1)

    page.goto(desk.site.url + "/failures")

    expect(page.locator("#list")).to_contain_text("KeyError: 'JPY'")  # nobody has reloaded


@pytest.mark.req("W7", "W10")
def test_a_reconciler_is_run_and_its_findings_are_judged(any_desk: Desk) -> None:
    desk = any_desk
    wanted, kept = {"a": {"card": "4111111111111111"}, "b": 1, "c": 2}, {"b": 1, "c": 3}

    async def converge(key: str, desired: Any, actual: Any) -> None:
        if key == "a":
            kept[key] = desired

    desk.app.reconcilers.add("carts", desired=lambda: wanted, actual=lambda: kept, converge=converge, every="1h")
    page = desk.sit()
    with desk.working():
        page.goto(desk.site.url + "/reconcilers")
        row = page.locator("#list tr", has_text="carts")
        expect(row).to_contain_text(re.compile(r"in \d+ (h|min|s)"))
        row.get_by_role("button", name="Dry run").click()
        expect(page.locator("main")).to_contain_text("Asked for: a worker runs it")
        expect(page.locator("#runs")).to_contain_text("only looked")
        page.get_by_role("button", name="Run now").click()
        expect(page.locator("#findings tbody tr")).to_have_count(2)
        page.locator("#runs tbody tr a").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("2 differences in carts")
        expect(page.locator("#found")).to_contain_text("missing")
        page.goto(desk.site.url + "/reconcilers?name=carts")
        page.get_by_role("button", name="Run now").click()
        expect(page.locator("#findings tbody tr")).to_have_count(1)  # a was healed, c differs still
    assert "4111111111111111" not in page.content()
    press(page, "Let it be", "Let it be", "c is never right")

    expect(page.locator("#findings")).to_contain_text("Both sides agree: no finding is open.")
    page.get_by_role("link", name="Healed and ignored, too").click()
    expect(page.locator("#findings")).to_contain_text("ada: c is never right")
    assert noted(desk, "finding-ignored") == [("ada", "c is never right")]


@pytest.mark.req("W8", "W10")
def test_schedules_are_paused_and_run_and_what_is_held_is_taken_away(desk: Desk) -> None:
    async def prepared() -> None:
        await desk.app.schedules.set("nightly", "order.paid", {"currency": "EUR", "card": "4111111111111111"},
                                     cron="0 3 * * *", tz="Europe/Lisbon", by="grace", reason="x")  # fmt: skip
        await desk.app.reservations.take("seat/12A", owner="order-7", ttl="1h", facts={"row": 12})
        await desk.app.reservations.take("lock:close", owner="node-1", ttl="1h")

    desk.call(prepared)
    page = desk.sit()
    page.goto(desk.site.url + "/schedules")
    row = page.locator("#list tbody tr")
    expect(row).to_contain_text("0 3 * * *")
    expect(row.locator(".ticks time")).to_have_text([re.compile(r"^\w{3} \d\d \w{3} 03:00$")] * 3)
    press(page, "Pause", "Pause it", "the auditors are here")
    expect(row).to_contain_text("paused")
    press(page, "Resume", "Resume it", "they have left")
    expect(page.locator("main")).to_contain_text("It ticks again")
    assert "4111111111111111" not in page.content()
    press(page, "Run now", "Publish it", "once more")
    expect(page.locator("main")).to_contain_text("Published: one event more.")
    expect(page.locator("#marks")).to_contain_text("pending")

    page.goto(desk.site.url + "/reservations")
    expect(page.locator("#list tbody tr")).to_have_count(2)
    expect(page.locator("#list tr", has_text="close").locator(".kind")).to_have_text("lock")
    press(page, "Take away", "Take it away", "the order is gone", within="#list tr:has-text('seat/12A')")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Also what was").click()
    expect(page.locator("#list tr", has_text="seat/12A")).to_contain_text("released")

    assert [noted(desk, f"schedule-{each}")[-1][1] for each in ("paused", "resumed", "run")] == [
        "the auditors are here", "they have left", "once more",
    ]  # fmt: skip
    assert noted(desk, "reservation-released") == [("ada", "the order is gone")]


def test_a_route_shows_what_waits_and_sends_a_window_again(desk: Desk, nats_server: NatsServer) -> None:
    subject = f"S{secrets.token_hex(4)}"
    broker = Nats(nats_server.url)
    desk.app.relay("order.shipped", to=broker.subject(subject, declare=subject))
    page = desk.sit()
    page.goto(desk.site.url + "/transports")
    expect(page.locator("main")).to_contain_text("None is at work.")
    expect(page.locator("#live")).to_contain_text("live")
    desk.call(desk.app.publish, "order.shipped", {"order": 7})
    card = page.locator("#list .card")
    expect(card).to_contain_text("not running")
    expect(card).to_contain_text(re.compile(r"Waiting to be sent\s*1"))

    with desk.working():
        expect(card.locator(".mark")).to_have_text("ok")
        expect(card).to_contain_text(re.compile(r"Sent\s*1 by"))
        page.locator("summary", has_text="Send again").click()
        sheet = page.locator("details.act[open] form")
        sheet.get_by_label("From").fill("soon")
        sheet.get_by_label("Reason").fill("the broker lost its disk")
        sheet.get_by_role("button", name="Send again").click()
        expect(sheet.get_by_role("alert")).to_contain_text("since")
        sheet.get_by_label("From").fill("1h")
        sheet.get_by_role("button", name="Send again").click()
        expect(page.locator("main")).to_contain_text("1 events will be sent once more")
        expect(card).to_contain_text(re.compile(r"Sent\s*2 by"))


@pytest.mark.req("W11")
def test_a_task_is_shown_as_a_tree_and_found_from_any_of_its_events(any_desk: Desk) -> None:
    desk = any_desk

    async def published() -> str:
        first = await desk.app.publish("order.paid", {"currency": "EUR"}, correlation_id="basket/7", source="till")
        after = await desk.app.publish(
            "order.refused", {"product": "lamp", "card": "4111111111111111"}, causation_id=first.id,
            correlation_id="basket/7", source="warehouse",
        )  # fmt: skip
        return str(after.id)

    event_id = desk.call(published)
    desk.drain()
    page = desk.sit()
    page.goto(f"{desk.site.url}/events/{event_id}")
    page.get_by_role("link", name="its task").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("Needs a person: 1 dead letter of order.refused")
    rows = page.locator("#list tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("till")
    expect(rows.nth(1).locator(".branch")).to_have_class(re.compile("in-1"))
    expect(rows.nth(1)).to_contain_text("no such product: lamp")
    assert "4111111111111111" not in page.content()
    page.get_by_label("Correlation id").fill("basket/8")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("No event has this correlation id.")


def test_a_viewer_finds_nothing_to_press_and_empty_screens_say_what_to_do(desk: Desk) -> None:
    page = desk.sit("vera", Role.VIEWER)

    for path in NEW:
        page.goto(desk.site.url + path)
        expect(page.locator("main .nothing")).to_be_visible()
        expect(page.locator("main form[method=post]")).to_have_count(0)
