"""Groups, plans and redrives at the command line: what is said, what is done, and how each command leaves."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from redrive import EventFilter, Redrive, Rejected, RetryPolicy, Status
from redrive.operate.cli.plans import ramp_from, rate_from, share_from
from tests.operate.helpers import Result, ended, in_app, redrive, start, statuses
from tests.waiting import wait_until

UNKNOWN = "00000000-0000-7000-8000-000000000000"


@dataclass(slots=True)
class Shop:
    """A database with dead letters of one cause, and a handler that can be mended."""

    url: str
    broken: bool = True

    def handlers(self, app: Redrive) -> None:
        @app.handler("order.paid")
        async def ship(payload: Any) -> None:
            if payload.get("always"):
                raise KeyError("never")
            if self.broken and payload["currency"] == "XOF":
                raise Rejected("no [bold]carrier[/bold] \x1b[31m")

    def app(self, **options: Any) -> Redrive:
        app = Redrive(self.url, retry=RetryPolicy(max_attempts=1), migrate=True, **options)
        self.handlers(app)
        return app

    def bury(self, dead: int = 6, delivered: int = 3, always: int = 0) -> None:
        async def job() -> None:
            async with self.app() as app:
                await app.publish_many(
                    [("order.paid", {"n": n, "currency": "XOF"}) for n in range(dead)]
                    + [("order.paid", {"n": n, "currency": "EUR"}) for n in range(delivered)]
                    + [("order.paid", {"n": n, "currency": "EUR", "always": True}) for n in range(always)]
                )
                await app.worker().drain()

        asyncio.run(job())

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have a worker run in the background."""
        ready = threading.Event()
        stop: list[Any] = []

        async def job() -> None:
            async with self.app() as app:
                worker = app.worker()
                loop = asyncio.get_running_loop()
                stop.append(lambda: loop.call_soon_threadsafe(worker.stop))
                task = asyncio.create_task(worker.run())
                ready.set()
                await task

        thread = threading.Thread(target=lambda: asyncio.run(job()))
        thread.start()
        try:
            assert ready.wait(20)
            yield
        finally:
            stop[0]()
            thread.join(20)

    def __call__(self, *arguments: str, **options: Any) -> Result:
        return redrive(*arguments, "-u", self.url, **options)

    def plan(self, selection: str = "type:order.paid") -> dict[str, Any]:
        result = self("plan", selection, "--unsafe", "-o", "json", "--by", "ada")
        assert result.code == 0, result.err
        planned: dict[str, Any] = result.json
        return planned

    def state(self, token: str) -> dict[str, Any]:
        found: dict[str, Any] = self("redrives", "show", token.partition(":")[0], "-o", "json").json
        return found

    def group(self) -> dict[str, Any]:
        found: dict[str, Any] = self("groups", "ls", "--all", "-o", "json").json[0]
        return found


@pytest.fixture
def shop(store_url: str) -> Shop:
    shop = Shop(store_url)
    shop.bury()
    return shop


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Shop:
    shop = Shop(sqlite_url)
    shop.bury()
    return shop


# --- plan ---


@pytest.mark.req("B1")
def test_a_plan_says_what_would_happen_and_the_next_command_and_moves_nothing(shop: Shop) -> None:
    before = statuses(shop.url)

    result = shop("plan", "type:order.paid", "--unsafe", env={"COLUMNS": "120"})

    assert result.code == 0
    assert result.out.splitlines()[0] == "6 dead letters of order.paid"
    assert "6 ready" in result.out
    assert "\x1b" not in result.out
    (planned,) = shop("redrives", "ls", "-o", "json").json
    assert f'redrive run {planned["token"]} --reason "…"' in result.out
    assert "No worker is running" in result.out
    assert statuses(shop.url) == before


def test_a_plan_as_json_is_complete(shop: Shop) -> None:
    planned = shop.plan()

    assert (planned["total"], planned["ready"], planned["ineligible"]) == (6, 6, {})
    assert planned["next"] == f'redrive run {planned["token"]} --reason "…"'
    assert [part["n"] for part in planned["parts"]] == [6]
    assert planned["seconds_at"]["10/s"] == pytest.approx(0.6)
    assert len(planned["samples"]) == 5


def test_a_plan_says_who_may_not_go_and_what_to_do_about_it(sqlite_shop: Shop) -> None:
    async def duplicate(app: Redrive) -> None:
        sqlite_shop.handlers(app)
        await app.publish("order.paid", {"currency": "XOF"}, retry_key="k")
        await app.worker().drain()
        await app.publish("order.paid", {"currency": "XOF"}, retry_key="k", delay="1h")

    in_app(sqlite_shop.url, duplicate)

    result = sqlite_shop("plan", "retry-key:k", "--unsafe", env={"COLUMNS": "120"})

    assert result.code == 0
    assert "live duplicate of its retry key" in result.out
    assert "wait for that one" in result.out
    assert "nothing to run" in result.out
    assert "redrive run" not in result.out


@pytest.mark.parametrize("selection", ["type:nothing.like.it", "status:pending", "type:order.paid discarded:yes"])
def test_a_plan_of_nothing_says_so_leaves_with_3_and_is_not_kept(shop: Shop, selection: str) -> None:
    result = shop("plan", selection)

    assert result.code == 3
    assert "nothing matched" in result.err
    assert shop("redrives", "ls", "-o", "json").json == []


@pytest.mark.parametrize("command", [["plan"], ["dlq", "ls"], ["events", "ls"]])
def test_a_mistake_in_a_selection_is_pointed_at(sqlite_shop: Shop, command: list[str]) -> None:
    result = sqlite_shop(*command, "type:order.paid colour:red")

    assert result.code == 2
    reason, text, carets = result.err.splitlines()
    assert reason.startswith("redrive: ")
    assert carets.index("^") == text.index("colour")
    assert sqlite_shop("redrives", "ls", "-o", "json").json == []


# --- run ---


@pytest.mark.req("B1")
def test_a_run_is_followed_to_its_end(shop: Shop) -> None:
    token = shop.plan()["token"]
    shop.broken = False

    with shop.at_work():
        result = shop("run", token, "--reason", "mended", "--by", "ada")

    assert result.code == 0, result.err
    assert result.out.startswith("✓ done: 6 of 6 events delivered")
    assert "6 delivered" in result.err
    assert set(statuses(shop.url)) == {Status.DELIVERED}
    standing = shop.state(token)
    assert (standing["state"], standing["started_by"], standing["reason"]) == ("done", "ada", "mended")
    assert shop.group()["state"] == "resolved"


def test_a_run_that_did_not_bring_all_through_leaves_with_1_and_json_says_how(shop: Shop) -> None:
    shop.bury(dead=0, delivered=0, always=1)
    token = shop.plan()["token"]
    shop.broken = False

    with shop.at_work():
        result = shop("run", token, "-r", "mended", "-o", "json")

    assert result.code == 1
    assert (result.json["state"], result.json["delivered"], result.json["failed_same"]) == ("done", 6, 1)


@pytest.mark.req("B1")
def test_a_halted_run_leaves_with_5_and_says_why_and_what_to_do(shop: Shop) -> None:
    token = shop.plan()["token"]

    with shop.at_work():
        result = shop("run", token, "-r", "is it?", "--ramp", "1,2", "--halt-at", "10%")
    standing = shop.state(token)
    report = shop("redrives", "report", token, env={"COLUMNS": "120"})

    assert result.code == 5
    assert "the same failure came back" in result.out
    assert "The other 5 were not touched." in result.out
    assert f"redrive redrives resume {standing['id']}" in result.out
    assert (standing["state"], standing["released"], standing["failed_same"]) == ("halted", 1, 1)
    assert report.code == 0
    assert "because: “is it?”" in report.out
    assert "the same failure came back" in report.out

    shop.broken = False
    with shop.at_work():
        assert shop("redrives", "resume", token).code == 0
        result = shop("redrives", "watch", standing["id"][:18])
    assert result.code == 1
    assert shop.state(token)["delivered"] == 5


def test_without_a_worker_a_run_says_that_it_waits(shop: Shop) -> None:
    token = shop.plan()["token"]

    result = shop("run", token, "-r", "mended", "--detach", "-o", "json")

    assert result.code == 0
    assert "No worker is running" in result.err
    assert (result.json["state"], result.json["released"]) == ("running", 0)


def test_ctrl_c_ends_the_watching_and_not_the_redrive(sqlite_shop: Shop, empty_folder: Path) -> None:
    token = sqlite_shop.plan()["token"]

    process = start("run", token, "-r", "mended", "-u", sqlite_shop.url, cwd=empty_folder)
    wait_until(lambda: sqlite_shop.state(token)["state"] == "running")
    assert process.stderr is not None
    said = process.stderr.readline() + process.stderr.readline()  # it watches by now
    process.send_signal(signal.SIGINT)
    result = ended(process)

    assert "0 of 6 ended" in said
    assert result.code == 130
    redrive_id = token.partition(":")[0]
    for verb in ("watch", "pause", "abort"):
        assert f"redrive redrives {verb} {redrive_id}" in result.err
    assert sqlite_shop.state(token)["state"] == "running"
    sqlite_shop.broken = False
    with sqlite_shop.at_work():
        assert sqlite_shop("redrives", "watch", token).code == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--rate", "0"], 2, "rate"),
        (["--rate", "-1"], 2, "rate"),
        (["--rate", "abc"], 2, "rate"),
        (["--rate", "nan"], 2, "rate"),
        (["--max-in-flight", "0"], 2, "--max-in-flight"),
        (["--ramp", "1,0"], 2, "--ramp"),
        (["--ramp", ""], 2, "--ramp"),
        (["--halt-at", "200%"], 2, "--halt-at"),
        (["--generation", "-3"], 2, "--generation"),
        (["--reason", " "], 2, "say why"),
        (["--by", ""], 2, "--by"),
    ],
)
def test_a_run_that_cannot_be_meant_like_this_changes_nothing(
    shop: Shop, options: list[str], code: int, said: str
) -> None:
    token = shop.plan()["token"]
    before = shop.state(token) | {"now": ""}

    result = shop("run", token, "-r", "mended", "--detach", *options)

    assert result.code == code
    assert said in result.err
    assert shop.state(token) | {"now": ""} == before


def test_a_run_needs_the_token_of_its_own_plan_once(shop: Shop) -> None:
    token, other = shop.plan()["token"], shop.plan("payload.n>2")["token"]
    mixed = f"{token.partition(':')[0]}:{other.partition(':')[2]}"

    for wrong in ("nonsense", mixed, token.partition(":")[0], f"{UNKNOWN}:0123456789ab"):
        result = shop("run", wrong, "-r", "mended", "--detach")
        assert (result.code, result.out) == (4, "")
        assert result.err.startswith("redrive: ")
    assert {each["state"] for each in shop("redrives", "ls", "-o", "json").json} == {"planned"}

    assert shop("run", token, "-r", "mended", "--detach").code == 0
    again = shop("run", token, "-r", "mended", "--detach")
    assert again.code == 4
    assert "already" in again.err


def test_an_expired_plan_is_refused(shop: Shop) -> None:
    token = shop.plan()["token"]

    async def let_it_expire(app: Redrive) -> None:
        async with app.store.transaction() as tx:
            if app.store.name == "postgres":
                await tx.execute("update redrive.redrive set expires_at = planned_at")
            else:
                await tx.execute("update redrive_redrive set expires_at = planned_at")

    in_app(shop.url, let_it_expire)

    result = shop("run", token, "-r", "mended", "--detach")

    assert result.code == 4
    assert "expired" in result.err
    assert "plan again" in result.err
    assert shop.state(token)["state"] == "planned"


def test_what_the_options_of_a_release_say() -> None:
    assert [rate_from(text) for text in ("20/s", "20", "300/min", "60/m", "3600/h", " 0.5/S ")] == [
        20,
        20,
        5,
        1,
        1,
        0.5,
    ]
    assert ramp_from("1, 5,25") == (1, 5, 25)
    assert [share_from(text) for text in ("10%", "0.1", "0", "100%")] == [0.1, 0.1, 0, 1]


# --- redrives ---


def test_pause_resume_and_abort(shop: Shop) -> None:
    token = shop.plan()["token"]
    redrive_id = token.partition(":")[0]
    shop("run", token, "-r", "mended", "--detach")

    paused = shop("redrives", "pause", redrive_id[:18], "-r", "lunch", "--by", "bob")
    assert paused.code == 0
    assert shop.state(token)["state"] == "paused"
    assert "by bob: lunch" in shop("redrives", "show", redrive_id, env={"COLUMNS": "120"}).out
    assert shop("redrives", "pause", redrive_id, "-r", "again").code == 4
    assert shop("redrives", "resume", redrive_id).code == 0
    assert shop("redrives", "resume", redrive_id).code == 4
    assert shop("redrives", "abort", redrive_id, "-r", "enough").code == 0
    assert shop("redrives", "abort", redrive_id, "-r", "enough").code == 4
    watched = shop("redrives", "watch", redrive_id)
    assert watched.code == 5
    assert "enough" in watched.out
    assert statuses(shop.url).count(Status.FAILED) == 6


def test_a_plan_cannot_be_started_by_way_of_a_pause(shop: Shop) -> None:
    token = shop.plan()["token"]

    assert shop("redrives", "pause", token, "-r", "x").code == 4
    assert shop("redrives", "resume", token).code == 4
    assert shop("redrives", "watch", token).code == 4
    assert shop.state(token)["state"] == "planned"
    assert shop("redrives", "abort", token, "-r", "changed my mind").code == 0
    assert shop("run", token, "-r", "after all", "--detach").code == 4


@pytest.mark.parametrize("verb", ["show", "watch", "items", "report", "resume", "approve"])
def test_an_unknown_redrive_leaves_with_3(sqlite_shop: Shop, verb: str) -> None:
    for text in (UNKNOWN, "no-id", ""):
        result = sqlite_shop("redrives", verb, text)
        assert (result.code, result.out) == (3, "")
        assert "redrive redrives ls" in result.err


def test_an_ambiguous_beginning_lists_what_it_may_be(sqlite_shop: Shop) -> None:
    ids = {sqlite_shop.plan()["redrive"]["id"] for _ in range(2)}

    result = sqlite_shop("redrives", "show", "0")

    assert result.code == 2
    assert all(each in result.err for each in ids)


def test_stopping_needs_a_reason(sqlite_shop: Shop) -> None:
    token = sqlite_shop.plan()["token"]

    for verb in ("pause", "abort"):
        for reason in ([], ["-r", ""]):
            assert sqlite_shop("redrives", verb, token, *reason).code == 2
    assert sqlite_shop.state(token)["state"] == "planned"


def test_an_approval_comes_from_a_second_person(shop: Shop) -> None:
    token = shop.plan()["token"]

    assert shop("redrives", "approve", token, "--by", "ada").code == 4
    assert shop("redrives", "approve", token, "--by", "bob").code == 0
    assert shop.state(token)["approved_by"] == "bob"


def test_items_and_report_tell_what_became_of_each(shop: Shop) -> None:
    shop.bury(dead=0, delivered=0, always=2)
    token = shop.plan()["token"]

    async def discard(app: Redrive) -> None:
        event = (await app.events(EventFilter(status=Status.FAILED)))[-1]
        await app.discard(event.id, by="bob", reason="not needed")

    in_app(shop.url, discard)
    shop.broken = False
    with shop.at_work():
        assert shop("run", token, "-r", "mended").code == 1

    items = shop("redrives", "items", token, "-o", "jsonl").lines
    assert sorted(item["state"] for item in items) == ["delivered"] * 5 + ["failed_same"] * 2 + ["skipped"]
    assert len(shop("redrives", "items", token, "-s", "failed_same", "-o", "json").json) == 2
    assert len(shop("redrives", "items", token, "-n", "3", "-o", "jsonl").lines) == 3
    assert shop("redrives", "items", token, "-s", "ready").code == 3
    assert "it was discarded" in shop("redrives", "items", token, env={"COLUMNS": "120"}).out

    report = shop("redrives", "report", token, "-o", "json").json
    assert report["skipped"] == {"it was discarded": 1}
    assert [(each["members"], each["outcomes"].get("delivered", 0)) for each in report["groups"]] == [(6, 5), (2, 0)]
    told = shop("redrives", "report", token, env={"COLUMNS": "120"}).out
    assert "5 of 8 events delivered" in told
    assert "it was discarded" in told


# --- groups ---


@pytest.mark.req("B2")
def test_groups_are_listed_shown_and_explained(shop: Shop) -> None:
    (group,) = shop("groups", "ls", "-o", "json").json
    assert (group["state"], group["dead_count"], group["target"]) == ("new", 6, "order.paid")
    heading, line = shop("groups", "ls").out.splitlines()
    assert heading.split()[:3] == ["GROUP", "STATE", "DEAD"]
    assert line.split()[:3] == [group["short"], "new", "6"]
    assert max(len(heading), len(line)) <= 80

    shown = shop("groups", "show", group["short"], "-o", "json").json
    assert shown["skew"][0] == {"field": "payload.currency", "value": "XOF", "among_dead": 1, "among_delivered": 0}
    assert shown["compared"] == {"dead": 6, "delivered": 3}
    assert "Rejected" in shown["sample"]["last_error"]

    sheet = shop("groups", "show", group["fingerprint"], env={"COLUMNS": "120"}).out
    assert "why grouped" in sheet
    assert "[bold]carrier[/bold] \\x1b[31m" in sheet
    assert f"redrive plan 'group:{group['short']}'" in sheet
    explained = shop("groups", "explain", group["short"][:4], env={"COLUMNS": "200"}).out
    assert "payload.currency is XOF in all of the dead letters, but in none of the delivered ones." in explained
    assert shop("groups", "explain", group["short"], "-o", "json").json["skew"]


def test_a_group_knows_the_redrives_of_its_members(shop: Shop) -> None:
    token = shop.plan(f"group:{shop.group()['short']}")["token"]
    with shop.at_work():
        assert shop("run", token, "-r", "is it?", "--ramp", "1").code == 5

    shown = shop("groups", "show", shop.group()["short"], "-o", "json").json

    assert [(each["state"], each["members"]) for each in shown["redrives"]] == [("halted", 6)]
    assert "is it?" in shop("groups", "show", shop.group()["short"], env={"COLUMNS": "120"}).out


def test_what_people_say_of_a_group(shop: Shop) -> None:
    short = shop.group()["short"]

    assert shop("groups", "own", short, "payments").code == 0
    assert shop("groups", "note", short, "the carrier's \x1b[31m fault").code == 0
    assert shop("groups", "mute", short, "2h").code == 0
    group = shop.group()
    assert (group["owner"], group["note"], group["state"]) == ("payments", "the carrier's \x1b[31m fault", "ongoing")
    assert group["muted_until"] > group["last_seen_at"]
    assert "muted" in shop("groups", "ls").out
    assert "\x1b" not in shop("groups", "show", short).out
    assert shop("groups", "mute", short, "0").code == 0
    assert "muted" not in shop("groups", "ls").out

    resolved = shop("groups", "resolve", short, "--by", "ada", "--note", "mended")
    assert resolved.code == 0
    assert "6 dead letters stay" in resolved.err
    assert (shop.group()["state"], shop.group()["resolved_by"], shop.group()["note"]) == ("resolved", "ada", "mended")
    assert [each["short"] for each in shop("groups", "ls", "--state", "resolved", "-o", "json").json] == [short]
    assert shop("groups", "ls", "--state", "regressed").code == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "ffffffff"], 3),
        (["explain", "no group"], 3),
        (["resolve", ""], 3),
        (["mute", "ffffffff", "soon"], 2),
        (["note", "ffffffff", " "], 2),
        (["own", "ffffffff", "x" * 300], 2),
        (["own", "ffffffff", "ada"], 3),
        (["ls", "--state", "asleep"], 2),
    ],
)
def test_wrong_input_to_groups_changes_nothing(sqlite_shop: Shop, arguments: list[str], code: int) -> None:
    before = sqlite_shop.group()

    result = sqlite_shop("groups", *arguments)

    assert (result.code, result.out) == (code, "")
    assert sqlite_shop.group() == before


def test_counts_can_be_made_anew(shop: Shop) -> None:
    assert "every count was right" in shop("groups", "rebuild").out

    async def spoil(app: Redrive) -> None:
        table = "redrive.failure_group" if app.store.name == "postgres" else "redrive_failure_group"
        async with app.store.transaction() as tx:
            await tx.execute(f"update {table} set dead_count = 77")

    in_app(shop.url, spoil)

    assert "1 count to be corrected" in shop("groups", "rebuild", "--dry-run").out
    assert shop.group()["dead_count"] == 77
    assert [each["dead_count"] for each in shop("groups", "rebuild", "-o", "json").json] == [6]
    assert shop.group()["dead_count"] == 6


# --- selections in lists ---


@pytest.mark.req("O12")
def test_lists_take_a_selection(shop: Shop) -> None:
    def count(*arguments: str) -> int:
        return len(shop(*arguments, "-o", "json").json)

    assert count("dlq", "ls", "payload.n>=2 payload.n<4") == 2
    assert count("dlq", "ls", "class:rejected", "--type", "order.paid", "-n", "3") == 3
    assert count("events", "ls", "payload.currency:EUR") == 3
    assert count("events", "ls", "text:carrier not payload.n:0") == 5
    assert shop("dlq", "ls", "class:missing age>1h").code == 3
    assert "6 of" not in shop("dlq", "ls", "age<1h").out


def test_a_selection_decides_itself_whether_discarded_events_are_meant(shop: Shop) -> None:
    dead = shop("dlq", "ls", "payload.n:0", "-o", "json").json[0]["id"]
    shop("dlq", "discard", dead, "-r", "x")

    assert len(shop("dlq", "ls", "type:order.*", "-o", "json").json) == 5
    assert [each["id"] for each in shop("dlq", "ls", "discarded:yes", "-o", "json").json] == [dead]
    assert [each["id"] for each in shop("dlq", "ls", "type:order.*", "--discarded", "-o", "json").json] == [dead]


def test_a_selection_is_paged_through(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    shop.bury(dead=450, delivered=0)

    found = shop("dlq", "ls", "payload.n>=10", "-n", "1000", "-o", "jsonl").lines

    assert len({json.dumps(each["id"]) for each in found}) == len(found) == 440
