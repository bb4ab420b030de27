"""Edits that wait for a second person, and what agents may not do, from the command line."""

from __future__ import annotations

import json

import pytest

from redrive import Status
from tests.operate.helpers import Seeds, redrive, statuses

WIDE = {"COLUMNS": "160"}


@pytest.mark.req("B1", "W10")
def test_an_edit_waits_is_shown_and_goes_when_somebody_else_approves(seeds: Seeds) -> None:
    def run(*arguments: str) -> str:
        ended = redrive(*arguments, "-u", seeds.url, env=WIDE)
        assert ended.code == 0, ended.err
        return ended.out

    run("redrives", "approval", "--above", "100", "--reason", "be careful")
    edited = run("replay", seeds.dead, "--set", "payload.id=7", "--reason", "typo", "--by", "ada", "-o", "json")
    (told,) = json.loads(edited)
    waiting = told["waits_for_approval"]

    assert (told["done"], told["refused"]) == (False, None)
    assert "an edited payload waits for approval: typo" in run("redrives", "ls")
    shown = run("redrives", "show", waiting)
    assert "payload.id: 2 → 7" in shown
    assert "somebody else than ada" in shown
    assert json.loads(run("redrives", "show", waiting, "-o", "json"))["changes"] == [
        {"field": "payload.id", "before": 2, "after": 7}
    ]
    assert f"redrive redrives approve {waiting}" in run("attention", "--kind", "redrive")
    own = redrive("redrives", "approve", waiting, "--by", "ada", "-u", seeds.url)
    assert (own.code, "somebody else" in own.err) == (4, True)
    assert Status.FAILED in statuses(seeds.url)

    assert "approved" in run("redrives", "approve", waiting, "--by", "bob")

    assert Status.FAILED not in statuses(seeds.url)
    assert json.loads(run("events", "show", seeds.dead, "-o", "json"))["payload"] == {"id": 7}


def test_an_edit_that_waits_can_be_read_and_dropped(sqlite_seeds: Seeds) -> None:
    at = ("-u", sqlite_seeds.url)
    redrive("redrives", "approval", "--above", "1", "--reason", "be careful", *at)

    said = redrive("replay", sqlite_seeds.dead, "--set", "payload.id=7", "--reason", "typo", "--by", "ada", *at)
    waiting = said.out.partition("redrives approve ")[2].partition("`")[0]
    dropped = redrive("redrives", "abort", waiting, "--reason", "no", *at)
    late = redrive("redrives", "approve", waiting, "--by", "bob", *at)

    assert (said.code, dropped.code, late.code) == (0, 0, 4)
    assert "needs a second person" in said.out


@pytest.mark.req("B8")
def test_an_agent_is_held_to_its_rules_on_the_command_line_too(sqlite_seeds: Seeds) -> None:
    at, bot = ("-u", sqlite_seeds.url), ("--by", "agent:bot")
    allowed = redrive("redrives", "approval", "--agents", "0", "--reason", "not yet", "-o", "json", *at)
    token = redrive("plan", "type:order.bad", *bot, "-o", "json", *at).json["token"]

    unsafe = redrive("plan", "type:order.bad", "--unsafe", *bot, *at)
    alone = redrive("run", token, "--reason", "try", "--detach", *bot, *at)
    itself = redrive("redrives", "approve", token, *bot, *at)
    person = redrive("redrives", "approve", token, "--by", "ada", *at)
    started = redrive("run", token, "--reason", "try", "--detach", *bot, *at)
    redrive("redrives", "pause", token, "--reason", "wait", *bot, *at)
    resumed = redrive("redrives", "resume", token, *bot, *at)

    assert allowed.json["agents_above"] == 0
    assert [each.code for each in (unsafe, alone, itself, person, started, resumed)] == [4, 4, 4, 0, 0, 4]
    assert "a person approves" in alone.err
    assert redrive("redrives", "approval", "--agents", "-1", "--reason", "x", *at).code == 2
