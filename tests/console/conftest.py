"""A console behind a port, and a real browser before it. Whatever a browser complains of fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request

from redrive import Redrive, RetryPolicy, TerminalHandlerError
from redrive.operate.auth import Role
from tests.conftest import REQUIRE_ALL, Run
from tests.console import browser as chromium
from tests.console.site import Served, served
from tests.lab.conftest import record, seed  # noqa: F401 - fixtures: what is tried here counts in the lab

WATCH = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""
PATIENCE = 30_000


@pytest.fixture(scope="module")
def browser(run: Run) -> Iterator[Browser]:
    """The system's Chromium. For a module only: Playwright keeps an event loop that other tests would stumble over."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(chromium.running())
        except chromium.BrowserUnavailable as error:
            run.missing["Chromium"] = str(error)
            if REQUIRE_ALL:
                pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {error}", pytrace=False)
            pytest.skip(str(error))
        run.backends["Chromium"] = found.version
        yield found


@dataclass(slots=True)
class Desk:
    """An operator's desk: a served app, and browsers of people of any role."""

    site: Served
    browser: Browser
    stack: ExitStack
    complaints: list[str] = field(default_factory=list)
    tokens: dict[tuple[str, Role], str] = field(default_factory=dict)

    def sit(self, name: str = "ada", role: Role = Role.OPERATOR, **options: Any) -> Page:
        """Open a browser for somebody and sign in."""
        page = self.context(**options).new_page()
        if (name, role) not in self.tokens:
            self.tokens[name, role] = self.site.token(name, role)
        page.goto(self.site.url + "/login")
        page.get_by_label("Token").fill(self.tokens[name, role])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(self.site.url + "/")
        return page

    def context(self, **options: Any) -> BrowserContext:
        """Open a browser with nothing in it."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.stack.callback(context.close)
        context.set_default_timeout(PATIENCE)
        context.add_init_script(WATCH)
        context.on("console", lambda message: self._hear(message.type, message.text, message.location))
        context.on("weberror", lambda error: self.complaints.append(f"script failed: {error.error}"))
        context.on("request", lambda request: self._leaves(request))  # noqa: PLW0108 - Playwright marks what it is given
        context.on("dialog", lambda dialog: self._dialog(dialog))  # noqa: PLW0108 - as above
        return context

    def _hear(self, kind: str, text: str, where: Any) -> None:
        # A refused act answers 4xx, which the browser notes by itself; anything else is a mistake of ours.
        if kind == "error" and not text.startswith("Failed to load resource: the server responded with a status of 4"):
            self.complaints.append(f"{text} {where}")

    def _leaves(self, request: Request) -> None:
        if not request.url.startswith((self.site.url, "data:", "blob:", "about:")):
            self.complaints.append(f"asked another host: {request.url}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"a page opened a dialog: {dialog.message}")
        dialog.dismiss()

    @property
    def app(self) -> Redrive:
        return self.site.app

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Ask the app something, on its own loop."""
        return self.site.call(function, *args, **options)

    @contextmanager
    def working(self, **options: Any) -> Iterator[None]:
        """Have a worker at work."""
        with self.site.working(**options):
            yield

    def drain(self) -> None:
        """Do what can be done now."""

        async def work() -> None:
            await self.app.worker().drain()

        self.call(work)


class Mended:
    """What the handlers of the tests do: fail, until somebody says that they are mended."""

    def __init__(self) -> None:
        self.orders = False
        self.seconds = 0.0


def shop(url: str, mended: Mended) -> Redrive:
    """Make an app whose orders fail, in two ways, until they are mended."""
    app = Redrive(url, source="shop", retry=RetryPolicy(max_attempts=1), migrate=True)

    @app.handler("order.paid", effects="inside")
    async def ship(order: dict[str, Any]) -> None:
        if mended.seconds:
            await app.clock.sleep(mended.seconds)
        if not mended.orders and order.get("currency") != "EUR":
            raise KeyError(order.get("currency"))

    @app.handler("order.refused")
    async def refuse(order: dict[str, Any]) -> None:
        if not order.get("mended"):
            raise TerminalHandlerError(f"no such product: {order.get('product')}; card {order.get('card')}")

    return app


@pytest.fixture
def mended() -> Mended:
    return Mended()


@contextmanager
def _desk(url: str, browser: Browser, make: Callable[[], Redrive]) -> Iterator[Desk]:
    with served(make) as site:
        desk = Desk(site, browser, ExitStack())
        with desk.stack:
            yield desk
        assert desk.complaints == []


@pytest.fixture
def desk(browser: Browser, sqlite_url: str, mended: Mended) -> Iterator[Desk]:
    with _desk(sqlite_url, browser, lambda: shop(sqlite_url, mended)) as desk:
        yield desk


@pytest.fixture
def any_desk(browser: Browser, store_url: str, mended: Mended) -> Iterator[Desk]:
    with _desk(store_url, browser, lambda: shop(store_url, mended)) as desk:
        yield desk


def orders(desk: Desk, number: int, currency: str = "JPY") -> list[str]:
    """Publish orders and let them fail."""

    async def publish() -> list[str]:
        drafts = [("order.paid", {"order": each, "currency": currency}) for each in range(number)]
        return [str(each.id) for each in await desk.app.publish_many(drafts)]

    found: list[str] = desk.call(publish)
    desk.drain()
    return found
