"""Who may come in: tokens, cookies, proxies. Every route with every kind of caller is in tests/lab/test_security.py,
generated from the router by what is here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Mount

from redrive import ConfigurationError, Redrive
from redrive.operate.auth import ALLOWED, REMEMBERED_SECONDS, Permission, Role, Tokens
from redrive.operate.web import redrive_asgi
from redrive.operate.web.guard import Guarded
from tests.web.conftest import Site, browser

pytestmark = pytest.mark.promise("closed")

PUBLIC = {"/healthz", "/readyz", "/login", "/logout"}
SAMPLE = {"event_id": "01900000-0000-7000-8000-000000000000", "redrive_id": "01900000-0000-7000-8000-000000000000",
          "fingerprint": "0123456789abcdef", "name": "carrier-api", "token_id": "nobody",
          "batch_id": "nothing", "run_id": "0190", "finding_id": "0190", "correlation_id": "basket/7"}  # fmt: skip


def routes(web: FastAPI) -> list[Guarded]:
    return [each for each in web.routes if isinstance(each, Guarded)]


def guarded(web: FastAPI) -> Iterator[tuple[str, str, Permission]]:
    for route in routes(web):
        if route.permission is None:
            assert route.path in PUBLIC, f"{route.path} is open to everybody"
            continue
        path = re.sub(r"{(\w+)(?::path)?}", lambda match: SAMPLE[match[1]], route.path)
        for method in sorted(route.methods or ()):
            yield method, path, route.permission


async def said(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> tuple[int, str]:
    async with client.stream(method, path, **options) as answer:  # the stream of changes has no end
        kind = answer.headers.get("content-type", "")
        if not kind.startswith("application/problem+json"):
            return answer.status_code, ""
        await answer.aread()
        return answer.status_code, answer.json()["type"].rpartition(":")[2]


def test_every_route_is_guarded_or_known_to_be_public() -> None:
    web = redrive_asgi(Redrive("sqlite:///:memory:"))

    def others(found: list[BaseRoute]) -> list[str]:
        return [str(getattr(each, "path", each)) for each in found if not isinstance(each, Guarded)]

    assert others(web.routes) == ["/static"]
    assert [type(each) for each in web.routes if not isinstance(each, Guarded)] == [Mount]
    assert {each.path for each in routes(web) if each.permission is None} == PUBLIC
    assert len(list(guarded(web))) > 50


def test_a_route_that_does_not_say_what_it_needs_cannot_be_made() -> None:
    router = APIRouter(route_class=Guarded)

    async def forgotten() -> None: ...

    with pytest.raises(ConfigurationError, match="does not say what it needs"):
        router.get("/forgotten")(forgotten)


async def test_a_role_that_may_is_let_in(sqlite_site: Site) -> None:
    """So that the tests of the lab cannot pass because nobody is ever let in."""
    for method, path, permission in guarded(sqlite_site.web):
        if path.endswith("/changes"):
            continue
        async with sqlite_site.client(Role.AGENT if path == "/mcp" else Role.ADMIN) as client:
            status, problem = await said(client, method, path)
        assert problem not in ("not-signed-in", "forbidden", "unexpected"), (method, path, permission)
        assert status < 500, (method, path, problem)


def test_what_each_role_may() -> None:
    assert ALLOWED[Role.VIEWER] == {Permission.LOOK}
    assert ALLOWED[Role.PUBLISHER] == {Permission.PUBLISH}
    assert ALLOWED[Role.AGENT] == {Permission.LOOK, Permission.REPLAY, Permission.REDRIVE}
    assert ALLOWED[Role.OPERATOR] == set(Permission) - {Permission.SET, Permission.PURGE, Permission.TOKENS}
    assert ALLOWED[Role.ADMIN] == set(Permission)


# --- pages of others ---


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://redrive.test"}])
async def test_a_page_of_ours_may_act_with_its_cookie(sqlite_site: Site, headers: dict[str, str]) -> None:
    cookie = await Tokens(sqlite_site.app).sign_in(sqlite_site.tokens[Role.OPERATOR])
    async with sqlite_site.client(None, cookies={"redrive_session": cookie}) as client:
        answer = await client.post(
            f"/api/v1/events/{sqlite_site.dead}/discard", json={"reason": "a test order"}, headers=headers
        )

    assert answer.status_code == 200
    assert (await sqlite_site.app.trail(_id(sqlite_site.dead)))[-1].actor == "operator-1"


@pytest.mark.parametrize("path", ["/login", "/logout"])
async def test_nobody_is_signed_in_or_out_by_a_foreign_page(sqlite_site: Site, path: str) -> None:
    async with sqlite_site.client(None) as client:
        answer = await client.post(path, data={"token": "x"}, headers={"Sec-Fetch-Site": "cross-site"})

    assert answer.status_code == 403


# --- browsers ---


async def test_a_browser_signs_in_looks_and_signs_out(site: Site) -> None:
    page = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    async with site.client(None, headers=page) as client:
        away = await client.get("/?a=b")
        wrong = await client.post("/login", data={"token": "rdv_wrong", "next": "/"})
        entered = await client.post("/login", data={"token": site.tokens[Role.VIEWER], "next": "/?a=b"})
        inside = await client.get("/")
        cookie = client.cookies["redrive_session"]
        left = await client.post("/logout")
        outside = await client.get("/", headers={"Cookie": f"redrive_session={cookie}"})

    assert (away.status_code, away.headers["location"]) == (303, "/login?next=/%3Fa%3Db")
    assert wrong.status_code == 401
    assert "not known here" in wrong.text
    assert (entered.status_code, entered.headers["location"]) == (303, "/?a=b")
    said_ = entered.headers["set-cookie"].lower()
    assert "httponly" in said_
    assert "samesite=strict" in said_
    assert "secure" not in said_
    assert site.tokens[Role.VIEWER] not in said_
    assert inside.status_code == 200
    assert "viewer-1" in inside.text
    assert left.status_code == 303
    assert outside.status_code == 303


async def test_over_https_the_cookie_is_secure(sqlite_site: Site) -> None:
    async with sqlite_site.client(None, base_url="https://redrive.test") as client:
        entered = await client.post(
            "/login", data={"token": sqlite_site.tokens[Role.VIEWER]}, headers={"Sec-Fetch-Site": "same-origin"}
        )

    assert "secure" in entered.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "on", ["https://evil.test/", "//evil.test", "/\\evil.test", "\\\\evil.test", "javascript:x", ""]
)
async def test_signing_in_leads_nowhere_else(sqlite_site: Site, on: str) -> None:
    async with sqlite_site.client(None, headers={"Sec-Fetch-Site": "same-origin"}) as client:
        entered = await client.post("/login", data={"token": sqlite_site.tokens[Role.VIEWER], "next": on})

    assert entered.headers["location"] == "/"


async def test_a_cookie_ends_with_its_token(site: Site) -> None:
    tokens = Tokens(site.app)
    token, secret = await tokens.create("ada", Role.OPERATOR, by="test")
    cookie = await tokens.sign_in(secret)
    await tokens.revoke(token, by="test")
    async with site.client(None, cookies={"redrive_session": cookie}) as client:
        answer = await client.get("/api/v1/overview")

    assert answer.status_code == 401


# --- tokens ---


async def expired_token(app: Redrive) -> str:
    token, secret = await Tokens(app).create("late", Role.ADMIN, by="test", expires="1h")
    async with app.store.transaction() as tx:
        is_file = app.store.name == "sqlite"
        table, past = ("redrive_operator_token", "1") if is_file else ("redrive.operator_token", "now()")
        await tx.execute(f"update {table} set expires_at = {past} where id = '{token.id}'")
    return secret


async def revoked_token(app: Redrive) -> str:
    tokens = Tokens(app)
    token, secret = await tokens.create("gone", Role.ADMIN, by="test")
    await tokens.revoke(token, by="test")
    return secret


async def test_a_token_is_kept_as_a_hash_and_its_making_is_on_the_trail(site: Site) -> None:
    token, secret = await Tokens(site.app).create("ada", Role.OPERATOR, by="root")
    rows = await site.app.store.ask("tokens", limit=10)
    entries = [entry async for entry in site.app.store.trail()]

    assert secret.startswith("rdv_")
    assert len(secret) == 47
    assert all(secret not in str(row) for row in rows)
    assert (entries[-1].kind, entries[-1].actor, entries[-1].facts["name"]) == ("token-created", "root", "ada")
    assert all(secret not in entry.detail for entry in entries)
    assert token.state == "live"


async def test_a_revoked_token_opens_nothing_within_seconds_on_another_server(site: Site) -> None:
    tokens = Tokens(site.app)
    token, secret = await tokens.create("ada", Role.VIEWER, by="test")
    async with browser(site.web, headers={"Authorization": f"Bearer {secret}"}) as client:
        assert (await client.get("/api/v1/overview")).status_code == 200

        await tokens.revoke(token, by="test")  # elsewhere: this is not the guard's own memory
        guard = site.web.state.guard
        guard.tokens._remembered = {
            key: (until - REMEMBERED_SECONDS, caller) for key, (until, caller) in guard.tokens._remembered.items()
        }

        assert (await client.get("/api/v1/overview")).status_code == 401


async def test_an_admin_makes_and_revokes_tokens_over_http(site: Site) -> None:
    async with site.client(Role.ADMIN) as client:
        made = await client.post("/api/v1/tokens", json={"name": "bob", "role": "viewer", "expires": "7d"})
        kept = await client.post("/api/v1/tokens", json={"name": "eve"}, headers={"Idempotency-Key": "k"})
        async with browser(site.web, headers={"Authorization": f"Bearer {made.json()['token']}"}) as bob:
            before = await bob.get("/api/v1/whoami")
            gone = await client.post(f"/api/v1/tokens/{made.json()['id']}/revoke")
            after = await bob.get("/api/v1/whoami")
        listed = await client.get("/api/v1/tokens")

    assert made.status_code == 201
    assert before.json()["actor"] == "bob"
    assert gone.json()["state"] == "revoked"
    assert after.status_code == 401
    assert made.json()["token"] not in listed.text
    assert kept.status_code == 422


@pytest.mark.parametrize("name", ["", "agent:x", "cli:root", "a b", "x" * 101, "ada\n", "../x"])
async def test_a_token_has_a_name_that_can_stand_on_the_trail(sqlite_site: Site, name: str) -> None:
    async with sqlite_site.client(Role.ADMIN) as client:
        answer = await client.post("/api/v1/tokens", json={"name": name})

    assert answer.status_code in (409, 422)


# --- opened for viewing, and behind a proxy ---


async def test_a_server_opened_for_viewing_lets_this_machine_look_and_nothing_else(sqlite_site: Site) -> None:
    web = redrive_asgi(sqlite_site.app, open_for_viewing=True)
    local = {"peer": "127.0.0.1", "base_url": "http://localhost:8321"}
    async with browser(web, **local) as client:
        looked = await client.get("/api/v1/overview")
        acted = await client.post(f"/api/v1/events/{sqlite_site.dead}/discard", json={"reason": "x"})
        forwarded = await client.get("/api/v1/overview", headers={"X-Forwarded-For": "203.0.113.7"})
        rebound = await client.get("/api/v1/overview", headers={"Host": "evil.test:8321"})
    async with browser(web, "203.0.113.7", base_url="http://localhost:8321") as client:
        far = await client.get("/api/v1/overview")

    assert looked.status_code == 200
    assert acted.status_code == 403
    assert (forwarded.status_code, rebound.status_code, far.status_code) == (401, 401, 401)


async def test_a_proxy_is_believed_only_from_where_it_may_call(sqlite_site: Site) -> None:
    from redrive.operate.web import Proxy

    web = redrive_asgi(sqlite_site.app, proxy=Proxy(["10.0.0.0/8", "fd00::/8"], "X-User", Role.OPERATOR))
    async with browser(web, "10.1.2.3", headers={"X-User": "ada@example.com"}) as client:
        known = await client.get("/api/v1/whoami")
        foreign = await client.post("/api/v1/audit/verify", headers={"Sec-Fetch-Site": "cross-site"})
        odd = [
            (await client.get("/api/v1/whoami", headers={"X-User": name})).status_code for name in ("agent:x", "", " ")
        ]
    async with browser(web, "11.1.2.3", headers={"X-User": "ada@example.com"}) as client:
        unknown = await client.get("/api/v1/whoami")

    assert (known.json()["actor"], known.json()["role"]) == ("ada@example.com", "operator")
    assert foreign.status_code == 403
    assert odd == [401, 401, 401]
    assert unknown.status_code == 401


def test_a_proxy_is_named_by_networks() -> None:
    from redrive.operate.web import Proxy

    with pytest.raises(ConfigurationError, match=r"like 10\.0\.0\.0/8"):
        redrive_asgi(Redrive("sqlite:///:memory:"), proxy=Proxy(["everybody"]))


def _id(text: str) -> Any:
    from uuid import UUID

    return UUID(text)
