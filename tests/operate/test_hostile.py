"""Hostile text in payloads, errors, notes, names and reasons: shown everywhere, obeyed nowhere."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from redrive import Redrive, Rejected, RetryPolicy
from tests.operate.helpers import Result, redrive

pytestmark = pytest.mark.promise("closed")

EVIL = (
    "\x1b[31m\x1b]0;owned\x07 \x9b2J \u202e [bold red]x[/] [link=http://e]y[/link] '; drop table redrive_outbox; -- "
    '<script>alert(1)</script> "=cmd()" %s {0} \\x1b \r\n'
)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LONG = "é" * 100_000


def harmless(result: Result) -> Result:
    for said in (result.out, result.err):
        found = OBEYED.search(said)
        assert found is None, (found, said[:500])
    return result


def buried(url: str) -> str:
    async def job() -> str:
        app = Redrive(url, retry=RetryPolicy(max_attempts=1), migrate=True, source="shop")

        @app.handler("order.paid")
        async def fail(_payload: Any) -> None:
            raise Rejected(EVIL + LONG)

        async with app:
            payload = {EVIL: EVIL, "list": [EVIL], "long": LONG}
            options: dict[str, Any] = {"subject": EVIL, "correlation_id": EVIL, "headers": {"h": EVIL}}
            dead = await app.publish("order.paid", payload, retry_key=EVIL, idempotency_key=EVIL, **options)
            await app.worker().drain()
        return str(dead.id)

    return asyncio.run(job())


def test_hostile_text_goes_through_every_command_without_harm(store_url: str) -> None:
    dead = buried(store_url)

    def told(*arguments: str) -> Result:
        return harmless(redrive(*arguments, "-u", store_url))

    group = told("groups", "ls", "-o", "json").json[0]["fingerprint"]
    by, why = ["--by", EVIL], ["--reason", EVIL]
    acts = [
        ["groups", "note", group, EVIL, *by],
        ["dlq", "discard", dead, *by, *why],
        ["dlq", "restore", "type:order.paid", "--yes", *by, *why],
        ["redrives", "approval", "--above", "5", *by, *why],
    ]
    planned = told("plan", "type:order.paid", "--unsafe", *by, "-o", "json").json
    acts += [["redrives", "abort", planned["redrive"]["id"], *by, *why]]
    acts += [["replay", dead, "--set", f"payload.new={EVIL}", "--unset", "payload.long", *by, *why]]
    looks = [
        ["dlq", "ls"], ["dlq", "show", dead], ["dlq", "export"], ["dlq", "export", "--format", "csv"],
        ["events", "ls"], ["events", "show", dead], ["events", "timeline", dead], ["groups", "ls", "--all"],
        ["groups", "show", group], ["groups", "explain", group], ["redrives", "ls"], ["redrives", "approval"],
        ["redrives", "show", planned["redrive"]["id"]], ["redrives", "report", planned["redrive"]["id"]],
        ["redrives", "items", planned["redrive"]["id"]], ["audit", "ls"], ["audit", "verify"], ["doctor"],
    ]  # fmt: skip

    for act in acts:
        result = told(*act)
        assert result.code == 0, (act, result.err)
    for look in looks:
        assert told(*look).code in (0, 1), look
        if "export" not in look:
            result = told(*look, "-o", "json")
            assert result.code in (0, 1), look
            assert isinstance(result.json, list | dict)

    told_by = [entry["actor"] for entry in told("audit", "ls", "-o", "json").json]
    assert told_by.count(EVIL) >= len(acts)


@pytest.mark.parametrize("text", ["a\0b", "x" * 3_000, "", " \t "])
@pytest.mark.parametrize("option", ["--by", "--reason"])
def test_a_name_or_reason_that_cannot_be_kept_is_refused_and_nothing_changes(
    sqlite_url: str, option: str, text: str
) -> None:
    dead = buried(sqlite_url)
    before = redrive("audit", "ls", "-o", "json", "-u", sqlite_url).json
    other = ["--reason", "r"] if option == "--by" else []
    commands = [
        ["replay", dead], ["dlq", "discard", dead], ["dlq", "discard", "type:*", "--yes"],
        ["redrives", "approval", "--above", "3"],
    ]  # fmt: skip

    for command in commands:
        result = harmless(redrive(*command, option, text, *other, "-u", sqlite_url))
        assert result.code in (2, 4), (command, result.err)
    assert redrive("audit", "ls", "-o", "json", "-u", sqlite_url).json == before


@pytest.mark.parametrize("command", [[], ["events", "ls"], ["audit"], ["schedules", "resume", "nightly"]])
def test_a_complaint_of_the_parser_shows_what_was_typed_and_not_all_of_it(command: list[str]) -> None:
    for typed in (EVIL, "--no-such-option" + EVIL, LONG):
        result = harmless(redrive(*command, "word", typed))

        assert result.code == 2
        assert 0 < len(result.err) < 5_000
