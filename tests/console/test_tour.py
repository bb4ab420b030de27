"""The tour of the demo, walked in a real browser: an outage, a cause, a redrive that halts, a clean quarantine."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, expect

from tests.console.conftest import PATIENCE, Desk
from tests.console.touring import touring

expect.set_options(timeout=PATIENCE)


@pytest.mark.lab_short
@pytest.mark.req("B1", "B2", "B3")
def test_the_tour_leads_from_an_outage_to_an_empty_quarantine(browser: Browser, sqlite_url: str) -> None:
    with touring(sqlite_url) as (site, tour):
        desk = Desk(site, browser, ExitStack())
        with desk.stack:
            walk(desk, site.url + tour.way_in)
        assert desk.complaints == []


def walk(desk: Desk, link: str) -> None:
    page = desk.context().new_page()
    tour = page.locator("#tour")

    def step(title: str) -> None:
        expect(tour.get_by_role("heading")).to_have_text(title)

    page.goto(link)
    page.wait_for_url(desk.site.url + "/")
    step("The carrier has stopped answering")
    tour.get_by_role("link", name="See the dependencies").click()
    expect(page.locator("#list .card.shut")).to_contain_text("carrier-api")
    tour.get_by_role("button", name="Let the carrier answer").click()
    step("33 invoices have failed for one reason")
    tour.get_by_role("link", name="Open the group").click()
    expect(page.locator("#skew")).to_contain_text("payload.country")
    tour.get_by_role("button", name="Deploy release 5").click()
    step("Send them round again, carefully")

    page.get_by_role("button", name="Plan a redrive of all 33").click()
    page.locator("#start").get_by_label("Reason").fill("release 5 reads commas")
    page.get_by_role("button", name="Start 33 events").click()
    step("The redrive has halted itself")
    expect(page.locator("#stop")).to_contain_text("the same failure came back 1 of 5 times in stage 2")
    tour.get_by_role("button", name="Deploy release 6").click()
    step("Go on with it")
    page.get_by_role("button", name="Go on all the same").click()
    step("Not quite empty: 1 to go")

    tour.get_by_role("link", name="Open it").click()
    page.locator("summary.button", has_text="Replay").click()
    sheet = page.locator("details.act[open] form")
    sheet.get_by_label("Reason").fill("release 6 reads it, too")
    sheet.get_by_role("button", name="Replay it").click()
    step("And one that nobody will deliver")
    tour.get_by_role("link", name="Open it").click()
    page.locator("summary.button", has_text="Discard").click()
    sheet = page.locator("details.act[open] form")
    sheet.get_by_label("Reason").fill("there is no such place")
    sheet.get_by_role("button", name="Discard it").click()
    step("The quarantine is empty")
    tour.get_by_role("button", name="Hide the tour").click()
    expect(tour.get_by_role("heading")).to_have_count(0)

    other = desk.context().new_page()
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("it was used already")
    other.goto(desk.site.url + "/")
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
