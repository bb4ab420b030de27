"""What strangers write is shown and never obeyed; pages fit a telephone, read without scripts, and load at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from redrive import Redrive
from redrive.operate import actions
from redrive.operate.auth import Role
from tests.console.conftest import PATIENCE, Desk, orders
from tests.lab.record import Record

pytestmark = pytest.mark.promise("closed")

expect.set_options(timeout=PATIENCE)

EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>'"></textarea></title>{{40+9}}{%x%}"""
SHORT = """'"><svg onload="window.pwned=3">{{40+9}}"""


async def fill(app: Redrive) -> dict[str, str]:
    """Have something hostile in every field that a stranger can write."""

    @app.handler(SHORT, needs=[SHORT])
    async def fail(payload: Any) -> None:
        raise ValueError(EVIL)

    published = []
    for _ in range(2):
        each = await app.publish(
            SHORT,
            {EVIL: EVIL, "deep": [{EVIL: [EVIL]}], "\u202eturned": "\x1b[31m", "long": "x" * 5_000},
            subject=EVIL, source=SHORT, retry_key=EVIL + "k", idempotency_key=EVIL, correlation_id=EVIL,
            causation_id=EVIL, ordering_key=EVIL, headers={SHORT: EVIL},
        )  # fmt: skip
        published.append(each.id)
        await app.worker().drain()
    (group,) = await app.groups()
    await actions.describe(app, group, by=SHORT, owner=SHORT, note=EVIL)
    plan = await app.plan(f'group:{group.short} text:"{SHORT[:1]}"', by=SHORT)
    await app.hold(SHORT, by=SHORT, reason=EVIL)
    await app.open_dependency(SHORT, by=SHORT, reason=EVIL)
    await app.set_policy(SHORT, by=SHORT, reason=EVIL, max_attempts=3)
    await app.publish(SHORT, {})
    batch = await app.batches.open(EVIL, deadline="1h")
    await batch.add(SHORT, {EVIL: EVIL}, group=EVIL)
    await app.batches.force(batch.id, by=SHORT, reason=EVIL)
    await app.schedules.set(EVIL, SHORT, {EVIL: EVIL}, every="1h", by=SHORT, reason=EVIL)
    await app.reservations.take(EVIL, owner=EVIL, ttl="1h", facts={EVIL: EVIL})
    run = await _reconciled(app)
    async with app.store.transaction() as tx:
        await tx.run(
            "transport_put", worker=SHORT, name=f"relay:{SHORT}", kind="relay", broker=SHORT, destination=EVIL,
            state="unreachable", since=app.clock.now(), error=EVIL, ok_at=None, moved=0, lag=None,
        )  # fmt: skip
    return {
        "batch": str(batch.id),
        "run": run,
        "event": str(published[0]),
        "group": group.short,
        "redrive": str(plan.redrive.id),
    }


async def _reconciled(app: Redrive) -> str:
    async def converge(key: str, desired: Any, actual: Any) -> None: ...

    app.reconcilers.add(SHORT, desired=lambda: {EVIL: EVIL}, actual=dict, converge=converge, every="1h")
    return str((await app.reconcilers.run_here(SHORT, by=SHORT)).id)


def places(made: dict[str, str]) -> list[str]:
    from urllib.parse import quote

    evil = quote(EVIL)
    return [
        "/", "/failures", f"/failures/{made['group']}", "/events", f"/events?q={quote('text:' + SHORT[2:])}",
        f"/events?q={evil}", f"/events/{made['event']}", f"/events/{made['event']}/edit", "/redrives",
        f"/redrives?q={evil}", f"/redrives/{made['redrive']}", f"/redrives/{made['redrive']}/members", "/keys",
        "/dependencies", "/workers", "/policies", f"/policies?name={quote(SHORT)}", f"/policies?max_attempts={evil}",
        "/audit", f"/audit?chain={quote(SHORT)}", "/problems", "/many?verb=discard&q=status:failed",
        f"/login?next={evil}", f"/?did={evil}&n={evil}", f"/nowhere/{evil}", f"/failures?state={evil}",
        f"/events?cursor={evil}", "/attention", "/batches", f"/batches?name={evil}", f"/batches/{made['batch']}",
        f"/batches/{evil}", "/tasks", f"/tasks?id={evil}", "/reservations", "/transports", "/schedules", "/reconcilers",
        f"/reconcilers?name={quote(SHORT)}", f"/reconcilers/runs/{made['run']}", f"/reservations?cursor={evil}",
    ]  # fmt: skip


def look(page: Page, url: str) -> None:
    page.goto(url)
    assert page.evaluate("window.pwned") is None, url
    assert page.locator("img[src=x], svg[onload], [onerror], script:not([src])").count() == 0, url
    assert page.locator("[style]").count() == 0, url
    assert "49" not in page.locator("body").inner_text().replace("{{40+9}}", "").split(), url


@pytest.mark.req("W10")
def test_what_strangers_write_is_shown_and_never_obeyed(desk: Desk, record: Callable[..., Record]) -> None:
    run = record("security")
    made = desk.call(fill, desk.app)
    page = desk.sit(role=Role.ADMIN)

    for path in places(made):
        run.cases += 1
        run.faults["hostile text on a page"] += 1
        look(page, desk.site.url + path)

    page.goto(f"{desk.site.url}/events/{made['event']}")
    expect(page.locator("#payload")).to_contain_text("<script>window.pwned=2</script>")
    expect(page.locator("#payload")).to_contain_text(r"\u202eturned")
    page.locator("summary", has_text="Replay").click()
    page.locator("details[open] form").get_by_label("Reason").fill(EVIL)
    page.get_by_role("button", name="Replay it").click()
    expect(page.locator("#timeline")).to_contain_text("window.pwned=1")
    assert page.evaluate("window.pwned") is None


def test_pages_fit_a_telephone(desk: Desk) -> None:
    made = desk.call(fill, desk.app)
    page = desk.sit(viewport={"width": 360, "height": 740})

    for path in places(made):
        page.goto(desk.site.url + path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, (path, width)

    page.goto(desk.site.url + "/")
    page.locator("summary", has_text="Menu").click()
    page.get_by_role("link", name="Workers", exact=True).click()
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()


def test_everything_reads_and_acts_without_scripts(desk: Desk) -> None:
    (event_id,) = orders(desk, 1)
    page = desk.sit(java_script_enabled=False)

    for path in (
        "/", "/failures", "/events", "/redrives", "/keys", "/dependencies", "/workers", "/policies", "/audit",
        "/attention", "/batches", "/tasks", "/reservations", "/transports", "/schedules", "/reconcilers",
    ):  # fmt: skip
        page.goto(desk.site.url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.goto(f"{desk.site.url}/events/{event_id}")
    expect(page.locator("#errors")).to_contain_text("KeyError")
    page.locator("summary", has_text="Discard").click()
    page.locator("details[open] form").get_by_label("Reason").fill("by hand")
    page.get_by_role("button", name="Discard it").click()

    expect(page.locator("main")).to_contain_text("Discarded. It can be restored.")
    expect(page.locator("#marks")).to_contain_text("discarded")


def test_a_first_load_is_small_and_a_second_one_takes_the_page_only(desk: Desk) -> None:
    orders(desk, 60)
    page = desk.sit()
    client = page.context.new_cdp_session(page)
    client.send("Network.enable")
    client.send("Network.clearBrowserCache")
    sizes: list[int] = []
    client.on("Network.loadingFinished", lambda told: sizes.append(int(told["encodedDataLength"])))

    page.goto(desk.site.url + "/events")
    page.wait_for_load_state("load")
    expect(page.locator("#live")).to_contain_text("live")
    first, count = sum(sizes), len(sizes)
    sizes.clear()
    page.goto(desk.site.url + "/failures")
    expect(page.locator("#live")).to_contain_text("live")

    assert count >= 6
    assert first <= 60_000
    assert sum(sizes) < 12_000


def test_a_page_says_when_it_is_not_connected_and_finds_back(desk: Desk) -> None:
    page = desk.sit()
    expect(page.locator("#live")).to_contain_text("live")

    page.context.set_offline(True)
    page.evaluate("dispatchEvent(new Event('offline'))")
    desk.call(desk.app.publish, "order.paid", {"currency": "EUR"})
    page.context.set_offline(False)

    expect(page.locator("#tiles")).to_contain_text("1pending")
