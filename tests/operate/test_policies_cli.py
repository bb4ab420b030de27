"""Policies at the command line: preview, set, look, clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operate.helpers import redrive

APP = """
from redrive import Redrive, RetryPolicy

app = Redrive("sqlite:///unused.db")


@app.handler("order.paid", retry=RetryPolicy(max_attempts=3, base_delay="10s", jitter="none"), rate="5/s")
async def ship(payload: dict) -> None: ...
"""


@pytest.fixture
def url(store_url: str) -> str:
    assert redrive("migrate", "--url", store_url).code == 0
    return store_url


@pytest.mark.req("A8")
def test_set_shows_before_and_after_and_says_that_no_worker_knows_the_name(url: str) -> None:
    first = redrive("policy", "set", "order.*", "--max-attempts", "8", "--rate", "20/s", "-r", "slow", "--url", url)
    then = redrive("policy", "set", "order.*", "--rate", "none", "--timeout", "30s", "-r", "fast", "--url", url)

    assert (first.code, then.code) == (0, 0)
    assert "No worker that is running has a handler of this name" in first.err
    rows = [line.split() for line in then.out.splitlines()]
    assert rows == [
        ["✓", "order.*", "set"],
        ["FIELD", "BEFORE", "AFTER"],
        ["max_attempts", "8", "8"],
        ["timeout", "30s"],
        ["rate", "20/s", "none"],
    ]
    (only,) = redrive("policy", "ls", "-o", "json", "--url", url).json
    assert only["values"] == {"max_attempts": 8, "rate": None, "timeout": 30.0}
    assert only["reason"] == "fast"


@pytest.mark.req("A8")
def test_clear_takes_it_back_and_the_trail_knows_of_both(url: str) -> None:
    redrive("policy", "set", "order.*", "--max-attempts", "8", "-r", "slow", "--by", "ann", "--url", url)
    cleared = redrive("policy", "clear", "order.*", "-r", "fast", "--by", "bob", "--url", url)
    again = redrive("policy", "clear", "order.*", "-r", "fast", "--url", url)

    assert cleared.out == "✓ order.* cleared; it was max_attempts 8\n"
    assert (again.code, again.out) == (4, "")
    assert "none is set at all" in again.err
    assert "Nothing is set" in redrive("policy", "ls", "--url", url).out
    trail = redrive("audit", "ls", "-o", "jsonl", "--url", url).lines
    assert [(entry["kind"], entry["actor"]) for entry in trail] == [("policy-cleared", "bob"), ("policy-set", "ann")]


@pytest.mark.req("A8")
def test_preview_draws_the_schedule_and_stores_nothing(url: str) -> None:
    values = ("--max-attempts", "4", "--base-delay", "5s", "--max-delay", "12s", "--jitter", "0.2")
    drawn = redrive("policy", "preview", "order.paid", *values, "--url", url)
    told = redrive("policy", "preview", "order.paid", *values, "-o", "json", "--url", url).json

    table = drawn.out.partition("\n\n")[2]
    assert [line.split() for line in table.splitlines()] == [
        ["ATTEMPT", "EARLIEST", "LATEST", "MEAN", "IN", "ALL", "AT", "MOST"],
        ["2", "4s", "6s", "5s", "5s", "6s"],
        ["3", "8s", "12s", "10s", "15s", "18s"],
        ["4", "9.6s", "14.4s", "12s", "27s", "32.4s"],
    ]
    assert [wait["attempt"] for wait in told["waits"]] == [2, 3, 4]
    assert redrive("policy", "ls", "-o", "json", "--url", url).json == []


def test_preview_needs_no_database_and_ends_where_a_person_stops_reading(empty_folder: Path) -> None:
    drawn = redrive("policy", "preview", "--max-attempts", "100")
    assert drawn.code == 0
    assert "and 79 attempts more" in drawn.out
    assert "One attempt, and no other." in redrive("policy", "preview", "--max-attempts", "1").out
    assert list(empty_folder.iterdir()) == []


def test_show_says_who_says_what(url: str, empty_folder: Path) -> None:
    (empty_folder / "tuned.py").write_text(APP)
    redrive("policy", "set", "order.*", "--max-attempts", "8", "-r", "slow", "--by", "ann", "--url", url)
    told = redrive("policy", "show", "order.paid", "--app", "tuned:app", "-o", "json", "--url", url).json
    unknown = redrive("policy", "show", "mail.due", "--app", "tuned:app", "--url", url)

    assert told["values"]["max_attempts"] == 8
    assert told["said_by"]["max_attempts"] == "order.*, set by ann"
    assert told["values"]["base_delay"] == 10.0
    assert told["values"]["rate"] == "5/s"
    assert told["said_by"]["rate"] == "handler"
    assert unknown.code == 3
    assert "it has order.paid" in unknown.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--max-attempts", "0", "-r", "x"], "max_attempts must be a whole number from 1"),
        (["--max-attempts", "many", "-r", "x"], "--max-attempts"),
        (["--base-delay", "-5s", "-r", "x"], "base_delay"),
        (["--base-delay", "10m", "--max-delay", "5m", "-r", "x"], "max_delay 5m must be at least base_delay 10m"),
        (["--jitter", "lots", "-r", "x"], "jitter"),
        (["--concurrency", "0", "-r", "x"], "concurrency"),
        (["--concurrency", "1.5", "-r", "x"], "concurrency"),
        (["--rate", "0/s", "-r", "x"], "rate"),
        (["--timeout", "0", "-r", "x"], "timeout"),
        (["--colour", "red", "-r", "x"], "colour"),
        (["-r", "x"], "say what to change"),
        (["--rate", "20/s"], "say why"),
        (["--rate", "20/s", "-r", " "], "say why"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(url: str, arguments: list[str], complaint: str) -> None:
    ended = redrive("policy", "set", "order.*", *arguments, "--url", url)
    assert (ended.code, ended.out) == (2, "")
    assert complaint in ended.err
    assert redrive("policy", "ls", "-o", "json", "--url", url).json == []


def test_hostile_texts_are_shown_and_not_obeyed(url: str) -> None:
    hostile = "\x1b[31m[bold]'; --"
    ended = redrive("policy", "set", hostile, "--rate", "1/s", "-r", hostile, "--by", hostile, "--url", url)
    shown = redrive("policy", "ls", "--url", url, env={"COLUMNS": "200"})
    assert (ended.code, shown.code) == (0, 0)
    assert "\x1b" not in ended.out + shown.out
    assert "\\x1b[31m[bold]'; --" in shown.out
