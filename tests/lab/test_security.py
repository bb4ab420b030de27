"""Security: who may do what on every route, what a foreign page can do, what hostile filters can do.

Generated from the router, so that a route that is new is tried before anybody thinks of it. ``test_secrets`` looks
for secrets where they must not be, ``test_source`` for what must not stand in the source, ``tests/console`` has the
browser.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from redrive import RedriveError
from redrive.operate.auth import ALLOWED, Role, Tokens
from redrive.operate.web.guard import SAFE
from redrive.selection.spelling import quote
from tests.lab.conftest import Fresh
from tests.lab.dirt import lists
from tests.lab.hostile import SELECTIONS, TEXTS
from tests.lab.inside import Inside, inside
from tests.lab.record import Record
from tests.lab.watch import watching
from tests.web.test_access import expired_token, guarded, revoked_token, said

pytestmark = pytest.mark.promise("closed")

FOREIGN: tuple[dict[str, str], ...] = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://evil.test"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Origin": "http://redrive.test.evil.test"},
    {"Origin": "http://redrive.test:8080"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://redrive.test"},
    {},
)


@pytest.fixture
async def within(store_url: str) -> AsyncIterator[Inside]:
    async with inside(store_url) as made:
        yield made


# --- who may come in ---


@pytest.mark.req("W6")
async def test_no_route_answers_who_shows_nothing_or_something_wrong(
    within: Inside, record: Callable[..., Record]
) -> None:
    run = record("security", within.app.store.name)
    shown = {
        "nothing": {},
        "wrong": {"Authorization": "Bearer rdv_" + "x" * 43},
        "no bearer": {"Authorization": "Basic YTpi"},
        "empty": {"Authorization": "Bearer "},
        "expired": {"Authorization": f"Bearer {await expired_token(within.app)}"},
        "revoked": {"Authorization": f"Bearer {await revoked_token(within.app)}"},
        "a cookie of nobody": {"Cookie": "redrive_session=abc"},
        "a proxy that is not trusted": {"X-Forwarded-User": "ada"},
    }
    client = within.client(None)

    for method, path, _ in guarded(within.web):
        for name, headers in shown.items():
            answer = await said(client, method, path, headers=headers)
            _noted(run, name, answer == (401, "not-signed-in"), f"{name}: {method} {path}: {answer}")

    assert run.cases > 8 * 50


@pytest.mark.req("W6", "A8")
async def test_every_route_refuses_a_role_that_does_not_have_its_permission(
    within: Inside, record: Callable[..., Record]
) -> None:
    run = record("security", within.app.store.name)
    for method, path, permission in guarded(within.web):
        for role in Role:
            if permission in ALLOWED[role]:
                continue
            async with within.client(role) as client:
                how: dict[str, Any] = {"content": b"{not json", "headers": {"content-type": "application/json"}}
                answer = await said(client, method, path, **how)
            _noted(run, f"as {role}", answer == (403, "forbidden"), f"{role} {method} {path}: {answer}")

    assert all(run.faults[f"as {role}"] for role in Role if role is not Role.ADMIN)


async def test_no_unsafe_route_takes_a_cookie_from_a_foreign_page(
    within: Inside, record: Callable[..., Record]
) -> None:
    run = record("security", within.app.store.name)
    cookie = await Tokens(within.app).sign_in(within.known.tokens[Role.ADMIN])
    client = within.client(None, cookies={"redrive_session": cookie})
    unsafe = [(method, path) for method, path, _ in guarded(within.web) if method not in SAFE]

    for method, path in unsafe:
        for headers in FOREIGN:
            answer = await said(client, method, path, headers=headers)
            _noted(run, "foreign page", answer == (403, "foreign-origin"), f"{headers} {method} {path}: {answer}")

    assert len(unsafe) > 25


def _noted(run: Record, fault: str, is_refused: bool, what: str) -> None:
    run.cases += 1
    run.faults[fault] += 1
    if not is_refused:
        run.violations["let in"] += 1
        print(what)


# --- filters, sort keys and cursors ---


def filters(within: Inside) -> Iterator[tuple[str, str, str]]:
    """Every value of every parameter of every route that lists or shows something: path, name, value."""
    for route, method, path in within.places():
        if method == "GET" and route.permission is not None:
            for name in [*(each.alias for each in route.dependant.query_params), "sort", "order"]:
                for value in (*TEXTS, *SELECTIONS):
                    yield path, name, value
    for path, _ in lists(within.known):
        for value in TEXTS:
            yield path, "cursor", value


async def tried(client: httpx.AsyncClient, run: Record, path: str, name: str, value: str) -> None:
    """Ask with one hostile value; the answer is right, or says what is wrong with it."""
    answer = await client.get(path, params={name: value[:6_000]})
    run.cases += 1
    run.faults["hostile filter"] += 1
    run.reached[f"answered {answer.status_code}"] += 1
    if answer.status_code >= 500:
        run.violations["5xx"] += 1
        print(f"{answer.status_code}: GET {answer.request.url}: {answer.text[:500]}")


async def hostile_filters(url: str, run: Record, dice: random.Random, most: int | None, end: float) -> None:
    async with inside(url) as within, within.client(Role.ADMIN) as client:
        every = list(filters(within))
        dice.shuffle(every)
        await client.get("/api/v1/overview")  # writes down that the token was used, once an hour
        with watching(url) as watch:
            for path, name, value in every[:most]:
                await tried(client, run, path, name, value)
                if time.monotonic() > end:
                    break
            if watch.has_changed():
                run.violations["looking has changed something"] += 1
                print("a request that only looks has changed the database, or its tables")


async def test_a_hostile_filter_is_refused_or_answered_and_changes_nothing(
    fresh_tables: Fresh, seed: int, record: Callable[..., Record]
) -> None:
    run = record("security", fresh_tables.store)
    with fresh_tables.database() as url:
        await hostile_filters(url, run, random.Random(seed), 250, float("inf"))


@pytest.mark.lab
@pytest.mark.timeout(0)
async def test_every_hostile_filter(
    fresh_tables: Fresh, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    """All of them if the time suffices, else some of them at random."""
    run = record("security", fresh_tables.store)
    with fresh_tables.database() as url:
        await hostile_filters(url, run, random.Random(seed), None, time.monotonic() + budget)


COLUMNS = {
    "subject": "subject", "source": "source", "corr": "correlation_id", "cause": "causation_id", "key": "ordering_key",
    "retry-key": "retry_key", "idem": "idempotency_key", "queue": "queue",
}  # fmt: skip


async def test_what_was_stored_under_a_hostile_name_is_found_by_it_and_nothing_else_is(
    within: Inside, record: Callable[..., Record]
) -> None:
    """A value that were pasted into SQL, or meant something to ``like``, would find others or none."""
    run = record("security", within.app.store.name)
    stored: dict[str, str] = {}
    for text in dict.fromkeys(TEXTS):
        options: Any = {**dict.fromkeys(COLUMNS.values(), text), "headers": {"odd": text}}
        try:
            stored[text] = str((await within.app.publish("odd.one", {"odd": text}, **options)).id)
        except RedriveError:
            run.reached["cannot be stored"] += 1

    async with within.client(Role.ADMIN) as client:
        for text, own in stored.items():
            for name in (*COLUMNS, "payload.odd", "header.odd"):
                if name == "idem" and not text:
                    continue  # none was said, so it has one of its own
                wanted = f"type:odd.one {name}:{quote(text)}"
                answer = await client.get("/api/v1/events", params={"selection": wanted})
                found = [each["id"] for each in answer.json().get("items", [])]
                run.cases += 1
                run.faults["hostile name"] += 1
                if found != [own]:
                    run.violations["wrong answer"] += 1
                    print(f"{wanted!r}: {answer.status_code} {answer.text[:300]}")

    assert len(stored) > 50
