"""What goes wrong: bodies, errors of every class, a database that is away, a server that stops."""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request

from redrive import Redrive, errors
from redrive.operate import auth, edit, views
from redrive.operate.auth import Role, Tokens
from redrive.operate.web import problems, redrive_asgi
from redrive.operate.web.site import HEADERS
from tests.servers import ServerUnavailable, running_postgres
from tests.web.conftest import Site, browser, made
from tests.web.serving import served

# --- every error ---


def every_error() -> list[type[BaseException]]:
    modules: tuple[Any, ...] = (errors, auth, edit, views)
    found = {each for module in modules for _, each in inspect.getmembers(module, inspect.isclass)}
    return sorted((each for each in found if issubclass(each, errors.RedriveError)), key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
async def test_every_error_of_ours_has_words(kind: type[BaseException]) -> None:
    error = kind("carrier-api", []) if kind is views.Ambiguous else kind("said so")
    scope = {"type": "http", "method": "GET", "path": "/api/v1/x", "headers": [], "query_string": b""}

    answer = await problems.respond(Request(scope), error)  # type: ignore[arg-type]

    told = problems.told(error).to_json()
    assert answer.media_type == "application/problem+json"
    assert answer.status_code == told["status"]
    assert told["type"].startswith("urn:redrive:problem:")
    assert all(told[name] for name in ("title", "detail", "next"))
    assert answer.status_code != 500


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.EventNotFound("x"), 404),
        (errors.NotFound("x"), 404),
        (errors.Refused("x"), 409),
        (errors.SelectionError("x", "type", 2), 422),
        (errors.PayloadRefused("x", field="payload.a"), 422),
        (errors.ConfigurationError("x"), 422),
        (errors.StoreUnavailable("x"), 503),
        (errors.StoreFull("x"), 503),
        (errors.StoreReadOnly("x"), 503),
        (errors.SchemaMissing("x"), 503),
        (auth.NotSignedIn("x"), 401),
        (auth.Forbidden("x"), 403),
        (auth.ForeignOrigin("x"), 403),
        (edit.BadEdit("x"), 422),
        (ZeroDivisionError("secret"), 500),
    ],
)
def test_an_error_is_told_with_its_status(error: BaseException, status: int) -> None:
    told = problems.told(error)

    assert told.rule.status == status
    assert "secret" not in told.detail


async def test_what_nobody_foresaw_is_told_without_its_text(sqlite_site: Site) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("the password is 7")

    sqlite_site.app.policies = broken  # type: ignore[method-assign,assignment]
    async with sqlite_site.client() as client:
        answer = await client.get("/api/v1/policies")

    assert answer.status_code == 500
    assert answer.json()["type"] == "urn:redrive:problem:unexpected"
    assert "password" not in answer.text


async def test_every_answer_tells_the_browser_to_be_careful(sqlite_site: Site) -> None:
    async with sqlite_site.client() as client:
        answers = [
            await client.get(path)
            for path in ("/api/v1/overview", "/nothing", "/login", "/static/console.css", "/healthz")
        ]
        answers.append(await client.delete("/api/v1/overview"))

    assert [each.status_code for each in answers] == [200, 404, 200, 200, 200, 405]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"]
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


async def test_a_page_escapes_what_it_shows(sqlite_site: Site) -> None:
    async with sqlite_site.client(None, headers={"Accept": "text/html"}) as client:
        lost = await client.get("/<script>alert(1)</script>")
        login = await client.get("/login", params={"next": '/"><script>alert(1)</script>'})

    assert "<script" not in lost.text
    assert "<script" not in login.text
    assert lost.headers["content-type"].startswith("text/html")


# --- bodies ---


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(sqlite_site: Site) -> None:
    web = redrive_asgi(sqlite_site.app, body_bytes=1_000)
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        for _ in range(1_000):
            sent += 100
            yield b"x" * 100

    shown = {"Authorization": f"Bearer {sqlite_site.tokens[Role.ADMIN]}", "Content-Type": "application/json"}
    async with browser(web, headers=shown) as client:
        said = await client.post("/api/v1/events", content=b"x" * 1_001)
        unsaid = await client.post("/api/v1/events", content=endless())
        small = await client.post("/api/v1/events", json={"type": "a"})

    assert (said.status_code, unsaid.status_code, small.status_code) == (413, 413, 201)
    assert said.headers["content-type"] == "application/problem+json"


async def test_a_body_that_comes_too_slowly_is_given_up(sqlite_site: Site) -> None:
    async with served(redrive_asgi(sqlite_site.app, body_seconds=0.3)) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
        head = (
            f"POST /api/v1/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
            f"Authorization: Bearer {sqlite_site.tokens[Role.ADMIN]}\r\n\r\n"
        )
        writer.write(head.encode() + b"{")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)
        writer.close()
        await writer.wait_closed()

    assert b"408" in answer


async def test_who_is_not_known_cannot_make_the_server_read_a_body(sqlite_site: Site) -> None:
    async with served(sqlite_site.web) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
        writer.write(b"POST /api/v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)
        writer.close()
        await writer.wait_closed()

    assert b"401" in answer


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"\xff", b'{"reason": 7}', b'{"reason": "x", "more": 1}'])
async def test_no_route_takes_a_body_that_does_not_fit(sqlite_site: Site, body: bytes) -> None:
    path = f"/api/v1/events/{sqlite_site.dead}/replay"
    async with sqlite_site.client() as client:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        plain = await client.post(path, content=b'{"reason": "x"}', headers={"Content-Type": "text/plain"})

    assert (answer.status_code, plain.status_code) == (400 if body == b"\xff" else 422, 422)
    assert answer.headers["content-type"] == "application/problem+json"


# --- the database is away ---


def test_while_postgres_is_stopped_every_route_says_so_and_says_when_to_come_back() -> None:
    """A server of its own, because it is stopped."""

    async def scenario() -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        with ExitStack() as stack:
            try:
                server = stack.enter_context(running_postgres())
            except ServerUnavailable as error:
                pytest.skip(str(error))
            async with Redrive(server.url, migrate=True) as app:
                site = await made(app)
                async with site.client(Role.ADMIN) as client:
                    assert (await client.get("/readyz")).status_code == 200
                    await asyncio.to_thread(stack.close)
                    answers = [await client.get(f"/api/v1/{path}") for path in ("overview", "events", "groups")]
                    answers.append(await client.post("/api/v1/events", json={"type": "a"}))
                    answers.append(await client.get("/readyz"))
                    alive = await client.get("/healthz")
                    page = await client.get("/", headers={"Accept": "text/html"})
                return answers, alive, page

    answers, alive, page = asyncio.run(scenario())

    assert [each.status_code for each in answers] == [503] * 5
    assert {each.json()["type"] for each in answers} == {"urn:redrive:problem:store-unavailable"}
    assert all(int(each.headers["retry-after"]) > 0 for each in answers)
    assert alive.status_code == 200
    assert page.status_code == 503
    assert "The database does not answer" in page.text


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    file = tmp_path / "odd.db"
    file.write_bytes(b"this is no database" * 1_000)
    async with browser(redrive_asgi(Redrive(f"sqlite:///{file}"))) as client:
        ready = await client.get("/readyz")
        asked = await client.get("/api/v1/overview", headers={"Authorization": "Bearer rdv_x"})

    assert (ready.status_code, asked.status_code) == (503, 503)
    assert int(ready.headers["retry-after"]) > 0


async def test_a_database_without_tables_is_told(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    sqlite3.connect(file).close()
    async with browser(redrive_asgi(Redrive(f"sqlite:///{file}", migrate=False))) as client:
        ready = await client.get("/readyz")

    assert ready.status_code == 503
    assert "redrive migrate" in ready.json()["detail"]


async def test_while_somebody_locks_the_file_acts_are_refused_and_looking_goes_on(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        site = await made(app)
        app.store.writer._busy_seconds = 0.2  # type: ignore[attr-defined]
        async with site.client() as client:
            await client.get("/api/v1/overview")  # the use of the token is noted
            holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
            holder.execute("begin immediate")
            acted = await client.post(f"/api/v1/events/{site.dead}/discard", json={"reason": "x"})
            looked = await client.get("/api/v1/overview")
            async with site.client(Role.VIEWER) as other:
                first = await other.get("/api/v1/overview")  # its use cannot be noted, and it is let in all the same
            holder.execute("rollback")
            holder.close()
            again = await client.post(f"/api/v1/events/{site.dead}/discard", json={"reason": "x"})

    assert [each.status_code for each in (acted, looked, first, again)] == [503, 200, 200, 200]


# --- changes ---


async def heard(lines: Any) -> set[str]:
    """Read one event of a stream."""
    import json

    async for line in lines:
        if line.startswith("data:") and "topics" in line:
            return set(json.loads(line[5:])["topics"])
    return set()


async def test_who_listens_hears_what_kind_of_thing_changed(site: Site) -> None:
    shown = {"Authorization": f"Bearer {site.tokens[Role.VIEWER]}"}
    async with served(site.web) as address, httpx.AsyncClient(base_url=address, headers=shown, timeout=20) as client:
        async with client.stream("GET", "/api/v1/changes") as one, client.stream("GET", "/api/v1/changes") as two:
            lines, others = one.aiter_lines(), two.aiter_lines()
            assert "event: hello" in [await anext(lines), await anext(lines)]
            changed: set[str] = set()
            while not {"outbox", "failure_group"} <= changed:
                await site.app.publish("order.bad", {"id": 7})
                await site.app.worker().drain()
                changed |= await heard(lines)
            also = await heard(others)
        assert one.headers["content-type"].startswith("text/event-stream")
        assert also

    assert site.web.state.changes._looking is None
    assert not site.web.state.changes._listeners


async def test_who_listens_hears_of_what_changed_since_the_page_was_drawn(site: Site) -> None:
    shown = {"Authorization": f"Bearer {site.tokens[Role.VIEWER]}"}
    async with served(site.web) as address, httpx.AsyncClient(base_url=address, headers=shown, timeout=20) as client:
        page = await client.get("/failures", headers={"Accept": "text/html"})
        since = re.search(r'data-since="([^"]+)"', page.text)
        assert since is not None
        await site.app.publish("order.bad", {"id": 7})
        await site.app.worker().drain()  # nobody listens yet

        async with client.stream("GET", "/api/v1/changes", params={"since": since[1]}) as stream:
            changed = await heard(stream.aiter_lines())

    assert "failure_group" in changed


async def test_a_server_stops_while_somebody_listens(sqlite_site: Site) -> None:
    shown = {"Authorization": f"Bearer {sqlite_site.tokens[Role.VIEWER]}"}
    async with httpx.AsyncClient(headers=shown, timeout=20) as client:
        async with served(sqlite_site.web) as address:
            stream = await client.send(client.build_request("GET", f"{address}/api/v1/changes"), stream=True)
            lines = stream.aiter_lines()
            await anext(lines)
            began = asyncio.get_running_loop().time()
        took = asyncio.get_running_loop().time() - began
        await stream.aclose()

    assert took < 30


# --- mounted ---


async def test_it_works_below_a_path_of_somebodys_own_app(sqlite_site: Site) -> None:
    from fastapi import FastAPI

    own = FastAPI()
    own.mount("/ops/redrive", sqlite_site.web)
    page = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    async with browser(own, headers=page) as client:
        away = await client.get("/ops/redrive/")
        login = await client.get("/ops/redrive/login")
        entered = await client.post("/ops/redrive/login", data={"token": sqlite_site.tokens[Role.OPERATOR]})
        inside = await client.get("/ops/redrive/")
        style = await client.get("/ops/redrive/static/console.css")
        problem = await client.get("/ops/redrive/api/v1/events/zz")
        new = await client.post("/ops/redrive/api/v1/events", json={"type": "a"})
        described = (await client.get("/ops/redrive/api/v1/openapi.json")).json()

    assert away.headers["location"] == "/ops/redrive/login"
    assert 'action="/ops/redrive/login"' in login.text
    assert entered.headers["location"] == "/ops/redrive/"
    assert "Path=/ops/redrive;" in entered.headers["set-cookie"]
    assert (inside.status_code, style.status_code) == (200, 200)
    assert problem.headers["content-type"] == "application/problem+json"
    assert new.headers["location"].startswith("/ops/redrive/api/v1/events/")
    assert described["openapi"].startswith("3.1")


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


async def test_somebodys_own_app_is_served_beside_ours(sqlite_url: str) -> None:
    app = Redrive(sqlite_url, migrate=True)
    app.mount("/hooks", hello)

    async with app, browser(redrive_asgi(app)) as client:
        theirs = await client.get("/hooks/of/github")
        ours = await client.get("/api/v1/events")

    assert (theirs.status_code, theirs.text) == (200, "/hooks/of/github")
    assert theirs.headers["x-content-type-options"] == "nosniff"
    assert ours.status_code == 401


async def broken(scope: Any, receive: Any, send: Any) -> None:
    raise errors.Refused("not today")


async def test_the_longest_path_is_whose_and_what_fails_is_answered_for(sqlite_url: str) -> None:
    app = Redrive(sqlite_url, migrate=True)
    app.mount("/hooks", hello)
    app.mount("/hooks/sore", broken)

    async with app, browser(redrive_asgi(app)) as client:
        answers = [await client.get(path) for path in ("/hooks", "/hooks/sorer", "/hooks/sore", "/hooksmith")]

    assert [each.status_code for each in answers] == [200, 200, 409, 404]
    assert answers[2].json()["detail"] == "not today"


@pytest.mark.parametrize("path", ["/api", "/static/mine", "/events"])
def test_what_is_ours_cannot_be_mounted_over(sqlite_url: str, path: str) -> None:
    app = Redrive(sqlite_url)
    app.mount(path, hello)

    with pytest.raises(errors.ConfigurationError, match="another path"):
        redrive_asgi(app)


@pytest.mark.parametrize("path", ["", "/", "hooks"])
def test_a_mount_needs_a_path(sqlite_url: str, path: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="path such as"):
        Redrive(sqlite_url).mount(path, hello)


def test_two_mounts_cannot_share_a_path(sqlite_url: str) -> None:
    app = Redrive(sqlite_url)
    app.mount("/hooks", hello)

    with pytest.raises(errors.ConfigurationError, match="already"):
        app.mount("/hooks/", hello)


async def test_it_works_beside_django(sqlite_site: Site) -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=(), SECRET_KEY="x")
    django.setup()
    from django.core.asgi import get_asgi_application

    theirs = get_asgi_application()

    async def both(scope: Any, receive: Any, send: Any) -> None:
        """As the page on serving shows it."""
        if scope["type"] == "http" and scope["path"].startswith("/redrive/"):
            await sqlite_site.web({**scope, "root_path": "/redrive"}, receive, send)
        else:
            await theirs(scope, receive, send)

    async with browser(both, headers={"Authorization": f"Bearer {sqlite_site.tokens[Role.VIEWER]}"}) as client:
        ours = await client.get("/redrive/api/v1/overview")

    assert ours.status_code == 200


async def test_the_app_is_opened_by_the_first_request(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        _, secret = await Tokens(app).create("ada", Role.VIEWER, by="test")
    app = Redrive(sqlite_url)
    async with browser(redrive_asgi(app), headers={"Authorization": f"Bearer {secret}"}) as client:
        answers = await asyncio.gather(*(client.get("/api/v1/overview") for _ in range(5)))
    await app.close()

    assert {each.status_code for each in answers} == {200}


# --- what no database has a place for ---


@pytest.mark.promise("closed", "one-semantics")
async def test_nul_is_refused_wherever_it_comes_in(site: Site) -> None:
    """PostgreSQL has no place for it, in a name that is asked for neither; SQLite is no different here."""
    page = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    async with site.client(Role.ADMIN) as client:
        answers = [
            await client.get("/api/v1/tasks/a%00b"),
            await client.get("/api/v1/audit?chain=a%00b"),
            await client.get("/batches/import%00", headers=page),
            await client.post("/api/v1/keys/skip", json={"key": "a\0b", "reason": "x"}),
            await client.post("/api/v1/events", json={"type": "a\0b"}),
            await client.post("/schedules/pause", data={"name": "a\0b", "reason": "x"}, headers=page),
        ]

    assert [each.status_code for each in answers] == [422] * len(answers)
