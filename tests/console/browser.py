"""The system's Chromium, driven by Playwright. Nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
]  # fmt: skip


class BrowserUnavailable(Exception):
    """There is no Chromium here."""


def chromium() -> str:
    """Find the browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise BrowserUnavailable("there is no Chromium: on Debian, apt-get install --no-install-recommends chromium")
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
