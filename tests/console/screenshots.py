"""The pictures of the documentation: `python -m tests.console.screenshots [FOLDER]` draws them anew.

Without a folder the handful that the documentation shows is written to docs/images; with one, every screen of every
scene goes there, light, dark and narrow.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.console import browser as chromium
from tests.console.scenes import World, fill, newest, shop
from tests.console.site import Served, served
from tests.console.touring import touring

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDE, NARROW = {"width": 1280, "height": 820}, {"width": 360, "height": 780}
SHOWN = {
    ("busy", "light", "overview"): "console-overview.png",
    ("outage", "dark", "overview"): "console-outage.png",
    ("busy", "light", "group"): "console-group.png",
    ("busy", "dark", "redrive"): "console-redrive.png",
    ("busy", "narrow", "failures"): "console-narrow.png",
    ("busy", "light", "attention"): "console-attention.png",
    ("busy", "light", "batch"): "console-batch.png",
    ("busy", "dark", "task"): "console-task.png",
    ("tour", "light", "overview"): "console-tour.png",
}


def screens(site: Served, scene: str) -> dict[str, str]:
    """Name the pages of a scene."""
    common = {
        "overview": "/", "failures": "/failures", "events": "/events", "redrives": "/redrives", "keys": "/keys",
        "dependencies": "/dependencies", "workers": "/workers", "policies": "/policies?name=order.paid",
        "audit": "/audit", "problems": "/problems", "attention": "/attention", "batches": "/batches",
        "tasks": "/tasks", "reservations": "/reservations", "transports": "/transports", "schedules": "/schedules",
        "reconcilers": "/reconcilers",
    }  # fmt: skip
    if scene == "empty":
        return common
    group = next(each for each in site.call(site.app.groups) if each.error_type == "KeyError")
    redrive = site.call(site.app.redrivings)[0]
    dead = site.call(newest, site.app, "status:failed type:payment.captured")
    batch = next(each for each in site.call(site.app.batches.ls) if each.final)
    run = next(each for each in site.call(site.app.reconcilers.runs, "carts") if each.differences)
    about = site.call(site.app.event, dead)
    task = "" if about is None else about.correlation_id
    return common | {
        "batch": f"/batches/{batch.id}", "run": f"/reconcilers/runs/{run.id}", "task": f"/tasks?id={task}",
        "group": f"/failures/{group.short}", "event": f"/events/{dead}", "edit": f"/events/{dead}/edit",
        "redrive": f"/redrives/{redrive.id}", "search": "/events?q=status:failed+type:payment.*",
        "discard": "/many?verb=discard&q=class:rejected", "members": f"/redrives/{redrive.id}/members",
        "plan": _plan(site),
    }  # fmt: skip


def _plan(site: Served) -> str:
    plan = site.call(site.app.plan, "status:failed class:broken", by="grace")
    return f"/redrives/{plan.redrive.id}"


def draw(browser: Browser, site: Served, scene: str, folder: Path, wanted: set[tuple[str, str]] | None) -> None:
    """Draw the pages of a scene in every look."""
    token, places = site.token(), screens(site, scene)
    for look, size, theme in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("narrow", NARROW, "light")):
        context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1)  # type: ignore[arg-type]
        page = context.new_page()
        _sign_in(page, site, token)
        for name, path in places.items():
            if wanted is None or (look, name) in wanted:
                page.goto(site.url + path)
                page.wait_for_timeout(300)
                place = folder / f"{scene}-{look}-{name}.png"
                page.screenshot(path=place, full_page=wanted is None)
        context.close()


def draw_tour(browser: Browser, url: str, folder: Path) -> None:
    """Draw the demo's console when its tour has begun; the link lets one browser in."""
    with touring(url) as (site, tour):
        context = browser.new_context(viewport=WIDE, color_scheme="light", device_scale_factor=1)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(site.url + tour.way_in)
        page.locator("#tour h2", has_text="The carrier has stopped answering").wait_for()
        for look in ("light", "dark"):
            page.emulate_media(color_scheme=look)
            page.wait_for_timeout(300)
            page.screenshot(path=folder / f"tour-{look}-overview.png")
        context.close()


def _sign_in(page: Page, site: Served, token: str) -> None:
    page.goto(site.url + "/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def main(arguments: list[str]) -> None:
    """Draw what was asked for."""
    with tempfile.TemporaryDirectory() as place, chromium.running() as browser:
        folder = Path(arguments[0] if arguments else place)
        folder.mkdir(parents=True, exist_ok=True)
        scenes = arguments[1:] or ["empty", "busy", "outage", "tour"]
        if "tour" in scenes:
            draw_tour(browser, f"sqlite:///{place}/tour.db", folder)
        for scene in scenes:
            if scene == "tour":
                continue
            url = f"sqlite:///{place}/{scene}.db"
            _fill(url, scene)
            wanted = None if arguments else {(look, name) for at, look, name in SHOWN if at == scene}
            with served(lambda url=url: shop(url, World())) as site:  # type: ignore[misc]
                draw(browser, site, scene, folder, wanted)
        if not arguments:
            IMAGES.mkdir(exist_ok=True)
            for (scene, look, name), image in SHOWN.items():
                (IMAGES / image).write_bytes((folder / f"{scene}-{look}-{name}.png").read_bytes())
                print(f"docs/images/{image}")


def _fill(url: str, scene: str) -> None:
    # On a thread of its own: Playwright has a loop on this one.
    from concurrent.futures import ThreadPoolExecutor

    def work() -> Any:
        return asyncio.run(fill(url, scene))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


if __name__ == "__main__":
    main(sys.argv[1:])
