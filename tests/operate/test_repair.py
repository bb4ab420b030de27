"""What operators do with dead letters: try, mend, discard many, carry from one database to another."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import pty
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive import Context, Event, EventFilter, Redrive, Rejected, RetryPolicy, Status, Step
from redrive.operate import actions
from tests.operate.helpers import Result, environment, in_app, redrive
from tests.stores.helpers import raw

MODULE = """
from typing import Any
from pydantic import BaseModel
from redrive import Context, Redrive, Rejected, RetryPolicy

class Paid(BaseModel):
    n: int
    currency: str

app = Redrive({url!r}, retry=RetryPolicy(max_attempts=1))

@app.handler("order.paid", effects="inside")
async def ship(paid: Paid, ctx: Context) -> None:
    if paid.currency == "XOF":
        raise Rejected("no carrier for it")
    async with ctx.transaction() as tx:
        await tx.publish("parcel.sent", {{"n": paid.n}})

@app.handler("mail.sent", effects="outside")
async def send(mail: Any) -> None: ...

@app.handler("call.made")
async def call(what: Any) -> None: ...
"""


@dataclass(slots=True)
class Desk:
    """A database with dead letters, and an app whose handlers have been mended."""

    url: str
    app: str
    folder: Path

    def __call__(self, *arguments: str, **options: Any) -> Result:
        return redrive(*arguments, "-u", self.url, **options)

    def bury(self, *events: tuple[str, Any], **options: Any) -> list[str]:
        """Make dead letters."""

        async def job() -> list[str]:
            app = Redrive(self.url, retry=RetryPolicy(max_attempts=1), migrate=True)

            async def fail(_payload: Any) -> None:
                raise Rejected("not today")

            for type_ in {type_ for type_, _ in events}:
                app.handler(type_)(fail)
            async with app:
                ids = [str((await app.publish(*event, **options)).id) for event in events]
                await app.worker(generation=4).drain()  # and of none
            return ids

        return asyncio.run(job())

    def event(self, event_id: str) -> Event:
        async def job(app: Redrive) -> Event:
            found = await app.event(UUID(event_id))
            assert found is not None
            return found

        return in_app(self.url, job)

    def dead_count(self) -> int:
        async def job(app: Redrive) -> int:
            return sum(group.dead_count for group in await app.groups(everything=True))

        return in_app(self.url, job)

    def trail(self) -> list[tuple[str, str, Any]]:
        async def job(app: Redrive) -> list[tuple[str, str, Any]]:
            assert (await app.verify_trail()).sound
            return [(entry.kind, entry.actor, entry.facts) async for entry in app.store.trail()]

        return in_app(self.url, job)


def desk_on(url: str, folder: Path) -> Desk:
    name = f"shop_{uuid4().hex}"
    (folder / f"{name}.py").write_text(MODULE.format(url=url))
    return Desk(url, f"{name}:app", folder)


@pytest.fixture
def desk(store_url: str, empty_folder: Path) -> Desk:
    return desk_on(store_url, empty_folder)


@pytest.fixture
def sqlite_desk(sqlite_url: str, empty_folder: Path) -> Desk:
    return desk_on(sqlite_url, empty_folder)


# --- shadow ---


@pytest.mark.req("B9")
def test_a_shadow_says_how_each_would_end_and_nothing_comes_of_it(desk: Desk) -> None:
    good, bad = desk.bury(("order.paid", {"n": 1, "currency": "EUR"}), ("order.paid", {"n": 2, "currency": "XOF"}))
    before = desk.trail()

    fine = desk("shadow", good, "--app", desk.app)
    both = desk("shadow", good, bad, "--app", desk.app, "-o", "json")

    assert (fine.code, both.code) == (0, 1)
    assert "would succeed" in fine.out
    assert 'would publish parcel.sent {"n": 1}' in fine.out
    assert [each["would"] for each in both.json] == ["succeed", "fail"]
    assert both.json[0]["published"] == [{"type": "parcel.sent", "payload": {"n": 1}}]
    assert "no carrier for it" in both.json[1]["error"]
    assert desk.trail() == before
    assert desk.event(good).status is Status.FAILED


@pytest.mark.req("B9")
def test_what_may_not_be_tried_is_refused_with_4_and_the_reason(sqlite_desk: Desk) -> None:
    outside, silent, unknown = sqlite_desk.bury(("mail.sent", {}), ("call.made", {}), ("nobody", {}))

    results = [sqlite_desk("shadow", each, "--app", sqlite_desk.app) for each in (outside, silent, unknown)]
    forced = [sqlite_desk("shadow", each, "--app", sqlite_desk.app, "--force") for each in (silent, outside)]

    assert [each.code for each in results] == [4, 4, 4]
    assert "could not be rolled back" in results[0].err
    assert "force it" in results[1].err
    assert "nobody here handles 'nobody'" in results[2].err
    assert [each.code for each in forced] == [0, 4]


def test_an_app_on_another_database_is_not_taken_for_this_one(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dead,) = sqlite_desk.bury(("order.paid", {"n": 1, "currency": "EUR"}))
    for arguments in (["shadow", dead], ["plan", "type:*"], ["replay", dead, "--reason", "r"]):
        other = redrive(*arguments, "--app", sqlite_desk.app, "-u", "sqlite:///other.db")
        assert (other.code, "names another database" in other.err) == (2, True), other.err
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///other.db")

    by_environment = redrive("shadow", dead, "--app", sqlite_desk.app, env={"REDRIVE_URL": "sqlite:///other.db"})

    assert by_environment.code == 2
    assert not (sqlite_desk.folder / "other.db").exists()


# --- edit and replay ---


@pytest.mark.req("B1")
def test_an_edit_is_shown_checked_and_replayed_and_identity_stays(desk: Desk) -> None:
    (dead,) = desk.bury(("order.paid", {"n": "x", "currency": "XOF", "old": 1}), idempotency_key="i", retry_key="r")
    edit = ["--set", "payload.n=7", "--set", "payload.currency=EUR", "--unset", "payload.old"]

    looked = desk("replay", dead, *edit, "--app", desk.app, "--dry-run")
    assert looked.code == 0
    assert '- payload.n: "x"\n  + payload.n: 7' in looked.out
    assert "- payload.old: 1" in looked.out
    assert desk.event(dead).payload == {"n": "x", "currency": "XOF", "old": 1}

    unfit = desk("replay", dead, "--set", "payload.n=seven", "--app", desk.app, "--reason", "typo")
    assert (unfit.code, "does not fit" in unfit.err) == (4, True)
    assert desk.event(dead).status is Status.FAILED

    done = desk("replay", dead, *edit, "--app", desk.app, "--reason", "typo", "--by", "ada", "-g", "3")
    event = desk.event(dead)
    assert done.code == 0, done.err
    assert (event.status, event.payload, event.generation) == (Status.PENDING, {"n": 7, "currency": "EUR"}, 3)
    assert (event.idempotency_key, event.retry_key) == ("i", "r")
    assert [entry[:2] for entry in desk.trail()][-2:] == [("edited", "ada"), ("replayed", "ada")]
    assert "payload edited by ada" in desk("events", "timeline", dead).out


def test_a_whole_payload_comes_from_a_file_or_from_input(sqlite_desk: Desk) -> None:
    one, two = sqlite_desk.bury(("order.paid", {"n": 1}), ("order.paid", {"n": 2}))
    (sqlite_desk.folder / "new.json").write_text('{"n": 10}')

    from_file = sqlite_desk("replay", one, "--payload", "@new.json", "--reason", "r")
    from_input = sqlite_desk(
        "replay", two, "--payload", "-", "--set", "payload.m=1", "--reason", "r", stdin='{"n": 20}'
    )

    assert (from_file.code, from_input.code) == (0, 0)
    assert [sqlite_desk.event(each).payload for each in (one, two)] == [{"n": 10}, {"n": 20, "m": 1}]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--set", "payload.n.x=1"], 2, "payload.n is a number, which has no fields"),
        (["--set", "key=other"], 4, "cannot be edited"),
        (["--set", "id=other"], 4, "cannot be edited"),
        (["--set", "generation=2"], 4, "--generation"),
        (["--set", "n=1"], 2, "write payload.field"),
        (["--unset", "payload.gone"], 2, "there is no payload.gone"),
        (["--payload", "{"], 2, "not JSON"),
        (["--payload", '{"n": 1, "n": 2}'], 2, "has the key 'n' twice"),
        (["--set", "payload.n=1e400"], 4, "a double does not hold"),
        (["--payload", "@nowhere.json"], 1, "nowhere.json cannot be read"),
        (["--set", "payload.n=\u0000"], 4, "NUL"),
        (["--generation", "-1"], 2, "whole number from 0"),
    ],
)
def test_an_edit_that_cannot_be_meant_changes_nothing(
    sqlite_desk: Desk, arguments: list[str], code: int, said: str
) -> None:
    (dead,) = sqlite_desk.bury(("order.paid", {"n": 1}))
    before = (sqlite_desk.event(dead), sqlite_desk.trail())

    result = sqlite_desk("replay", dead, *arguments, "--reason", "r")

    assert (result.code, said in result.err) == (code, True), result.err
    assert (sqlite_desk.event(dead), sqlite_desk.trail()) == before


def test_one_edit_that_does_not_fit_stops_all_of_them(sqlite_desk: Desk) -> None:
    one, two = sqlite_desk.bury(("order.paid", {"n": {"a": 1}}), ("order.paid", {"n": 2}))

    result = sqlite_desk("replay", one, two, "--set", "payload.n.a=2", "--reason", "r")

    assert (result.code, two in result.err, "nothing was done" in result.err) == (2, True, True)
    assert [sqlite_desk.event(each).status for each in (one, two)] == [Status.FAILED] * 2
    assert sqlite_desk("replay", one, two, "--payload", "1", "--reason", "r").code == 2


# --- discard and restore by selection ---


@pytest.mark.req("W5")
def test_a_selection_is_discarded_and_restored_with_groups_counted_and_all_on_the_trail(desk: Desk) -> None:
    events = [("order.paid", {"n": n}) for n in range(1_203)] + [("mail.sent", {})]
    desk.bury(*events)
    assert desk.dead_count() == 1_204

    done = desk("dlq", "discard", "type:order.paid", "--yes", "--reason", "noise", "--by", "ada")
    assert (done.code, done.out) == (0, "✓ 1,203 of 1,203 dead letters of order.paid discarded\n")
    assert desk.dead_count() == 1
    told = desk("dlq", "restore", "type:order.paid payload.n<3", "--yes", "--reason", "after all", "-o", "json")

    assert (told.json["matched"], told.json["done"]) == (3, 3)
    assert desk.dead_count() == 4
    kinds = [kind for kind, _by, facts in desk.trail() if facts.get("reason") in ("noise", "after all")]
    assert (kinds.count("discarded"), kinds.count("restored")) == (1_203, 3)
    assert not in_app(desk.url, _wrong)


async def _wrong(app: Redrive) -> dict[str, int]:
    return await actions.rebuild_groups(app)


def test_what_fails_after_the_count_was_shown_is_left_alone(desk: Desk) -> None:
    desk.bury(("order.paid", {"n": 1}))

    async def job(app: Redrive) -> int:
        what = await actions.matched(app, "discard", "type:order.paid")
        await asyncio.to_thread(desk.bury, ("order.paid", {"n": 2}))
        done = [each async for each in actions.mark_all(app, "discard", what, by="ada", reason="r")][-1]
        left = await app.events(EventFilter(status=Status.FAILED))
        assert [event.payload for event in left] == [{"n": 2}]
        return done

    assert in_app(desk.url, job) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["type:order.paid", "--reason", "r"], 4, "add --yes"),
        (["type:order.paid", "--yes"], 2, "say why"),
        (["type:order.paid", "--yes", "--reason", " "], 2, "say why"),
        (["type:nothing", "--yes", "--reason", "r"], 3, "nothing matched"),
        (["colour:red", "--yes", "--reason", "r"], 2, "^"),
        (['type:"order', "--yes", "--reason", "r"], 2, "^"),
        (["age~1h:", "--yes", "--reason", "r"], 2, "^"),
        (["type:order.paid", "019a", "--yes", "--reason", "r"], 2, "one selection"),
        (["order", "--yes", "--reason", "r"], 3, "not an id"),
        (["type:order.paid discarded:yes", "--yes", "--reason", "r"], 3, "nothing matched"),
        (["type:order.paid", "--dry-run"], 0, "Nothing was done: 1 dead letter of order.paid"),
    ],
)
def test_a_selection_that_cannot_be_acted_on_changes_nothing(
    sqlite_desk: Desk, arguments: list[str], code: int, said: str
) -> None:
    (dead,) = sqlite_desk.bury(("order.paid", {"n": 1}))
    before = (sqlite_desk.event(dead), sqlite_desk.trail())

    result = sqlite_desk("dlq", "discard", *arguments)

    assert (result.code, said in result.err) == (code, True), result.err
    assert (sqlite_desk.event(dead), sqlite_desk.trail()) == before


@pytest.mark.parametrize(("answer", "status"), [("y\n", "discarded"), ("n\n", "Nothing was done")])
def test_on_a_terminal_it_asks_first(sqlite_desk: Desk, answer: str, status: str) -> None:
    (dead,) = sqlite_desk.bury(("order.paid", {"n": 1}))
    screen, plug = pty.openpty()
    command = [sys.executable, "-m", "redrive.operate.cli", "-u", sqlite_desk.url, "dlq", "discard", "type:order.paid"]

    with subprocess.Popen(
        [*command, "--reason", "noise"], stdin=plug, stdout=plug, stderr=plug, env=environment(), start_new_session=True
    ) as process:
        os.close(plug)
        said = _read_until(screen, "[y/N]")
        os.write(screen, answer.encode())
        said += _read_until(screen, status)
        process.wait(30)
    os.close(screen)

    assert "1 dead letter of order.paid" in said
    assert (sqlite_desk.event(dead).deleted_at is not None) is (status == "discarded")


def _read_until(screen: int, text: str) -> str:
    said, until = "", time.monotonic() + 30
    while text not in said:
        assert time.monotonic() < until, said
        said += os.read(screen, 65_536).decode()
    return said


def test_ctrl_c_stops_between_two_steps_and_says_how_many_are_done(sqlite_desk: Desk) -> None:
    sqlite_desk.bury(*(("order.paid", {"n": n}) for n in range(1_200)))
    program = (
        "import os, signal, sys\n"
        "from redrive.operate import actions\n"
        "real = actions.mark\n"
        "async def mark(*a, **k):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return await real(*a, **k)\n"
        "actions.mark = mark\n"
        "from redrive.operate.cli import main\n"
        "main()\n"
    )
    arguments = ["-u", sqlite_desk.url, "dlq", "discard", "type:order.paid", "--yes", "--reason", "noise"]

    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment(), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip

    assert ended.returncode == 130, ended.stderr
    assert "Stopped: 500 of 1,200 are discarded" in ended.stderr
    assert sqlite_desk.dead_count() == 700


# --- export and import ---


@pytest.mark.req("W5")
def test_dead_letters_go_out_and_come_in_as_they_were(desk: Desk, tmp_path: Path) -> None:
    payload = {"n": 1, "text": "Zoë \x1b[31m 🚚", "deep": [1.5, {"big": 2**60}], "none": None}
    ids = desk.bury(
        ("order.paid", payload), ("order.paid", None),
        subject="order/1", retry_key="r", correlation_id="c", headers={"h": "v"}, priority=2, generation=4,
    )  # fmt: skip
    assert desk("replay", ids[0], "--reason", "again", "--by", "ada").code == 0
    desk.bury(("order.paid", {"n": 2}), generation=4)  # its worker runs the replayed one, too
    discarded = desk.bury(("mail.sent", {}))[0]
    with raw(desk.url) as run:
        run(f"update {{outbox}} set deferred_count = 3, degraded = true where id = '{ids[0]}'")
    desk("dlq", "discard", discarded, "--reason", "noise")
    assert desk("dlq", "export", "--to", "out.jsonl").code == 0
    assert desk("dlq", "export", "--discarded", "--to", "gone.jsonl").code == 0
    other = f"sqlite:///{tmp_path / 'other.db'}"
    redrive("migrate", "-u", other)

    looked = redrive("dlq", "import", "out.jsonl", "--dry-run", "-u", other)
    came = redrive("dlq", "import", "out.jsonl", "--reason", "moved", "--by", "bob", "-u", other)
    again = redrive("dlq", "import", "-", "--reason", "moved", "-u", other, stdin=Path("out.jsonl").read_text())
    hidden = redrive("dlq", "import", "gone.jsonl", "--reason", "moved", "-u", other)

    assert looked.out == "✓ 2 dead letters would be imported, 0 already there\n"
    assert came.out == "✓ 2 dead letters imported, 0 already there\n"
    assert again.out == "✓ 0 dead letters imported, 2 already there\n"
    assert hidden.code == 0
    there = Desk(other, desk.app, desk.folder)
    for each in (ids[0], discarded):
        assert there.event(each) == replace(desk.event(each), session_id=None)  # that worker is not known here
    assert there.event(ids[0]).failure_history[0].replayed_by == "ada"
    assert there.dead_count() == 2
    assert [entry[:2] for entry in there.trail()][:2] == [("imported", "bob")] * 2
    assert "imported by bob" in there("events", "timeline", ids[0]).out
    assert there("replay", ids[0], "--reason", "here").code == 0
    assert not in_app(other, _wrong)


@pytest.mark.req("W5")
def test_dead_letters_of_sqlite_come_in_on_postgresql_exactly(sqlite_desk: Desk, postgres_url: str) -> None:
    options = {"subject": "s", "correlation_id": "c", "deadline": "1h"}
    (dead,) = sqlite_desk.bury(("order.paid", {"n": 1.1, "t": "a'b\"c\\"}), **options)
    sqlite_desk("dlq", "export", "--to", "out.jsonl")
    redrive("migrate", "-u", postgres_url)
    there = Desk(postgres_url, sqlite_desk.app, sqlite_desk.folder)

    results = [there("dlq", "import", "out.jsonl", "--reason", "moved") for _ in range(2)]

    assert [each.code for each in results] == [0, 0]
    assert there.event(dead) == replace(sqlite_desk.event(dead), session_id=None)
    assert there.dead_count() == 1
    assert [kind for kind, _, _ in there.trail()] == ["imported"]


def test_a_broken_line_is_named_and_stops_everything_unless_it_may_be_skipped(desk: Desk) -> None:
    desk.bury(("order.paid", {"n": 1}), ("order.paid", {"n": 2}))
    good, pending = desk("dlq", "export").out.splitlines()[:2]
    lines = [
        json.loads(good) | {"id": str(uuid4())}, "{not json", json.loads(pending) | {"status": "pending"}, {"id": "x"},
        json.loads(good) | {"id": str(uuid4()), "payload": "a\u0000b"}, json.loads(good) | {"attempts": -1},
        good.replace('{"n": 1}', '{"n": 1, "n": 2}').replace('{"n": 2}', '{"n": 2, "n": 1}'),
        good.replace('{"n": 1}', '{"n": 1e400}').replace('{"n": 2}', '{"n": 1e400}'),
    ]  # fmt: skip
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n\n"

    strict = desk("dlq", "import", "-", "--reason", "r", stdin=text)
    count = desk.dead_count()
    lax = desk("dlq", "import", "-", "--reason", "r", "--skip-bad", "-o", "json", stdin=text)

    assert (strict.code, count) == (2, 2)
    for number, said in (
        (2, "no JSON object"),
        (3, "not failed"),
        (4, "id"),
        (5, "NUL"),
        (6, "attempts"),
        (7, "twice"),
        (8, "1e400"),
    ):
        assert f"✗ line {number}: " in strict.err
        assert said in strict.err
    told = {"lines": 8, "imported": 1, "would_import": None, "already_there": 0, "bad": 7, "without_steps": 0}
    assert lax.json == told
    assert desk.dead_count() == 3


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["nowhere.jsonl", "--reason", "r"], "", 2),
        (["-"], "{}", 2),
        (["-", "--reason", " "], "{}", 2),
        (["-", "--reason", "r"], "", 3),
        (["-", "--reason", "r"], "\xff\xfe", 2),
        ([".", "--reason", "r"], "", 2),
    ],
)
def test_what_cannot_be_imported_ends_clearly(sqlite_desk: Desk, arguments: list[str], stdin: str, code: int) -> None:
    sqlite_desk.bury(("order.paid", {}))

    assert sqlite_desk("dlq", "import", *arguments, stdin=stdin).code == code


def test_no_cell_of_a_csv_is_a_formula(desk: Desk) -> None:
    evil = ["=cmd()", "+1", "-1", "@x", "\t=1"]
    desk.bury(*((f"t{n}", text) for n, text in enumerate(evil)), subject="=HYPERLINK(1)", source="@evil")

    out = desk("dlq", "export", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(out)))

    assert len(rows) == len(evil)
    assert {row["subject"] for row in rows} == {"'=HYPERLINK(1)"}
    for row in rows:
        assert not [cell for cell in row.values() if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    desk("dlq", "export", "type:t1", "--to", "one.csv")
    assert len(list(csv.DictReader(io.StringIO(Path("one.csv").read_text())))) == 1
    refused = desk("dlq", "import", "one.csv", "--reason", "r")
    assert (refused.code, "JSON" in refused.err) == (2, True)
    assert desk("dlq", "export", "type:none").code == 3


# --- approval ---


@pytest.mark.req("B1")
def test_the_approval_of_the_database_holds_for_the_command_line(desk: Desk) -> None:
    ids = desk.bury(*(("order.paid", {"n": n}) for n in range(3)))
    assert "No redrive needs" in desk("redrives", "approval").out
    said = desk("redrives", "approval", "--above", "2", "--by", "ada", "--reason", "audit", "-o", "json")
    assert (said.code, said.json["above"], said.json["set_by"]) == (0, 2, "ada")

    planned = desk("plan", "type:order.paid", "--unsafe", "--by", "ada", "-o", "json").json
    started = desk("run", planned["token"], "--reason", "r", "--by", "ada", "--detach")
    many = desk("replay", *ids, "--reason", "r")

    assert planned["needs_approval"] is True
    assert (started.code, "approve" in started.err) == (4, True)
    assert (many.code, "redrive plan" in many.err) == (4, True)
    assert {desk.event(each).status for each in ids} == {Status.FAILED}
    assert desk("redrives", "approve", planned["redrive"]["id"], "--by", "ada").code == 4
    assert desk("redrives", "approve", planned["redrive"]["id"], "--by", "bob").code == 0
    assert desk("run", planned["token"], "--reason", "r", "--by", "ada", "--detach").code == 0
    assert desk("redrives", "approval", "--off", "--reason", "enough").code == 0
    changes = [facts for kind, _, facts in desk.trail() if kind == "setting-changed"]
    assert [(each["was"], each["is"]) for each in changes] == [(None, 2), (2, None)]
    told = desk("audit", "ls", env={"COLUMNS": "160"}).out
    assert "approval_above 2 → off: enough" in told
    assert "3 events, " in told


async def test_an_app_can_only_be_stricter_than_the_database(desk: Desk) -> None:
    async with Redrive(desk.url, migrate=True, approval_above=5) as strict, Redrive(desk.url) as app:
        assert (await actions.approval_limit(strict), await actions.approval_limit(app)) == (5, None)
        await actions.set_approval(app, 9, by="ada", reason="r")
        assert (await actions.approval_limit(strict), await actions.approval_limit(app)) == (5, 9)
        await actions.set_approval(app, 2, by="ada", reason="r")
        assert (await actions.approval_limit(strict), await actions.approval_limit(app)) == (2, 2)


@pytest.mark.parametrize(
    "arguments",
    [["--above", "0"], ["--above", "-1"], ["--above", "2", "--off"], ["--above", "2"], ["--above", str(2**70)]],
)
def test_an_approval_that_cannot_be_meant_is_not_set(sqlite_desk: Desk, arguments: list[str]) -> None:
    sqlite_desk.bury(("order.paid", {}))
    reason = [] if arguments == ["--above", "2"] else ["--reason", "r"]

    assert sqlite_desk("redrives", "approval", *arguments, *reason).code == 2
    assert sqlite_desk("redrives", "approval", "-o", "json").json["above"] is None


# --- plans with an app ---


@pytest.mark.req("B1")
def test_a_plan_leaves_out_what_todays_handlers_do_not_take(desk: Desk) -> None:
    fits = [("order.paid", {"n": n, "currency": "EUR"}) for n in range(150)]
    desk.bury(*fits, *(("order.paid", {"n": n}) for n in range(101)), ("nobody", {}), ("mail.sent", 7))

    planned = desk("plan", "status:failed", "--unsafe", "--app", desk.app, "-o", "json")
    bare = desk("plan", "status:failed", "--unsafe", "-o", "json")

    assert planned.json["ineligible"] == {"payload no longer fits": 101, "handler unknown": 1}
    assert (planned.json["total"], planned.json["ready"]) == (253, 151)
    assert bare.json["ready"] == 253
    shown = desk("plan", "type:order.paid", "--unsafe", "--app", desk.app, env={"COLUMNS": "140"}).out
    assert "redrive replay ID --set" in shown


# --- steps travel ---


class Till:
    """An app that charges once and then fails, until it is told that the carrier is back."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.is_back = False

    def add_to(self, app: Redrive) -> None:
        @app.compensation(name="refund")
        async def refund(receipt: dict[str, int] | None) -> None: ...

        @app.handler("order.paid", retry=RetryPolicy(max_attempts=1))
        async def ship(order: dict[str, int], ctx: Context) -> None:
            await ctx.step("charge", self._charge, compensate=refund)
            await ctx.step("nothing", lambda: None)
            if not self.is_back:
                raise Rejected("the carrier is away")

    def _charge(self, step: Step) -> dict[str, int]:
        self.charged.append(step.key)
        return {"receipt": 7}


def _buried(url: str) -> Till:
    till = Till()

    async def job(app: Redrive) -> None:
        till.add_to(app)
        await app.publish("order.paid", {"n": 1})
        await app.worker().drain()

    in_app(url, job)
    return till


@pytest.mark.req("W9", "O5")
def test_a_replay_in_another_database_goes_on_after_the_steps_that_were_finished(
    store_url: str, tmp_path: Path
) -> None:
    till, file, other = _buried(store_url), str(tmp_path / "dead.jsonl"), f"sqlite:///{tmp_path}/other.db"
    in_app(other, _nothing)

    assert redrive("dlq", "export", "--to", file, "-u", store_url).code == 0
    result = redrive("dlq", "import", file, "--reason", "moved", "-u", other)
    back = redrive("dlq", "export", "-u", other)

    async def replayed(app: Redrive) -> tuple[Status, list[Any]]:
        till.add_to(app)
        till.is_back = True
        (dead,) = await app.events()
        await app.replay(dead.id, by="ann", reason="the carrier is back")
        await app.worker().drain()
        (event,) = await app.events()
        return event.status, [(step.name, step.state, step.result) for step in await app.steps(dead.id)]

    assert (result.code, result.err) == (0, "")
    assert json.loads(back.out)["steps"] == json.loads(Path(file).read_text())["steps"]
    assert in_app(other, replayed) == (
        Status.DELIVERED, [("charge", "done", {"receipt": 7}), ("nothing", "done", None)],
    )  # fmt: skip
    assert len(till.charged) == 1


@pytest.mark.req("W9")
def test_an_older_export_without_steps_names_the_events_that_cannot_resume(store_url: str, tmp_path: Path) -> None:
    _buried(store_url)
    line = json.loads(redrive("dlq", "export", "-u", store_url).out)
    del line["steps"]
    file, other = tmp_path / "old.jsonl", f"sqlite:///{tmp_path}/other.db"
    file.write_text(json.dumps(line) + "\n")
    in_app(other, _nothing)

    result = redrive("dlq", "import", str(file), "--reason", "moved", "-u", other)

    assert result.code == 0
    assert "1 dead letter of an older export, which did not carry steps" in result.err
    assert line["id"] in result.err


@pytest.mark.req("W9")
@pytest.mark.parametrize("change", [{"compensation": "failed"}, {"state": "compensating"}])
def test_an_event_that_is_being_undone_elsewhere_is_not_taken_in(
    sqlite_url: str, tmp_path: Path, change: dict[str, str]
) -> None:
    _buried(sqlite_url)
    line = json.loads(redrive("dlq", "export", "-u", sqlite_url).out)
    line = {**line, **change, "steps": [{**line["steps"][0], **change}]}
    file, other = tmp_path / "dead.jsonl", f"sqlite:///{tmp_path}/other.db"
    file.write_text(json.dumps(line) + "\n")
    in_app(other, _nothing)

    result = redrive("dlq", "import", str(file), "--reason", "moved", "-u", other)

    assert result.code != 0
    assert "its compensations have not ended" in result.err


async def _nothing(app: Redrive) -> None: ...
