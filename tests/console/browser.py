"""The system's Chromium, driven by Playwright. Nothing is downloaded.

Its headless shell if it is there: the same engine without a desktop around it, at half of the processor's time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars", "--in-process-gpu",
]  # fmt: skip


class BrowserUnavailable(Exception):
    """There is no Chromium here."""


def chromium() -> str:
    """Find the browser."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        advice = "on Debian, apt-get install --no-install-recommends chromium-headless-shell"
        raise BrowserUnavailable(f"there is no Chromium: {advice}")
    return found


@contextmanager
def running() -> Iterator[Browser]:
    """Run it until the block ends."""
    place = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=ARGUMENTS, headless=True)
        try:
            yield browser
        finally:
            browser.close()
