"""Looking: lists, one event whole, its story; for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.main import get_command

from redrive import Redrive
from redrive.operate.cli import show
from redrive.operate.cli.outcome import Commands
from redrive.operate.cli.root import app as commands
from tests.operate.helpers import Seeds, in_app, read, redrive


def test_a_list_as_json_is_complete(seeds: Seeds) -> None:
    result = redrive("events", "ls", "-o", "json", "-u", seeds.url)

    assert result.code == 0
    assert {event["id"] for event in result.json} == {seeds.delivered, seeds.dead, seeds.retrying, seeds.waiting}
    assert [event["id"] for event in result.json] == sorted((event["id"] for event in result.json), reverse=True)
    dead = next(event for event in result.json if event["id"] == seeds.dead)
    assert dead["payload"] == {"id": 2}
    assert dead["status"] == "failed"
    assert dead["created_at"].endswith("Z")


def test_json_lines_have_one_event_each(seeds: Seeds) -> None:
    result = redrive("-u", seeds.url, "events", "ls", "-o", "jsonl", "--limit", "3")

    assert len(result.lines) == 3


def test_a_list_can_be_narrowed(seeds: Seeds) -> None:
    by_status = redrive("events", "ls", "-s", "failed", "-o", "json", "-u", seeds.url)
    by_family = redrive("events", "ls", "-t", "order.*", "-o", "json", "-u", seeds.url)
    by_target = redrive("events", "ls", "--target", "order.paid", "-o", "json", "-u", seeds.url)
    by_key = redrive("events", "ls", "--retry-key", "order-2", "-o", "json", "-u", seeds.url)
    by_talk = redrive("events", "ls", "--correlation", "basket-7", "-o", "json", "-u", seeds.url)

    assert [event["id"] for event in by_status.json] == [seeds.dead]
    assert len(by_family.json) == 4
    assert {event["id"] for event in by_target.json} == {seeds.delivered, seeds.waiting}
    assert [event["id"] for event in by_key.json] == [event["id"] for event in by_talk.json] == [seeds.dead]


def test_a_filter_that_matches_nothing_ends_with_3(seeds: Seeds) -> None:
    result = redrive("events", "ls", "--type", "nobody.knows", "-u", seeds.url)

    assert (result.code, result.out, result.err) == (3, "", "redrive: no events match\n")
    assert redrive("dlq", "ls", "--class", "missing", "-o", "json", "-u", seeds.url).code == 3


def test_an_empty_database_is_an_answer(sqlite_url: str) -> None:
    redrive("migrate", "-u", sqlite_url)

    assert redrive("events", "ls", "-u", sqlite_url).out == "No events.\n"
    assert redrive("dlq", "ls", "-o", "json", "-u", sqlite_url).json == []
    assert redrive("audit", "ls", "-u", sqlite_url).out == "The trail is empty.\n"


def test_tables_fit_80_columns_and_say_what_matters(sqlite_seeds: Seeds) -> None:
    result = redrive("events", "ls", "-u", sqlite_seeds.url)

    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert len(result.out.splitlines()) == 5
    assert "retry in 60 min" in result.out
    for event_id in (sqlite_seeds.delivered, sqlite_seeds.dead, sqlite_seeds.retrying, sqlite_seeds.waiting):
        assert event_id[:13] in result.out


def test_a_long_text_takes_no_room_from_the_narrow_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = ("f3b300ea", "regressed, muted", "12,345", "invoice.requested", "ValueError: " + "ä long story " * 20)
    drawn = show.table(("GROUP", "STATE", "DEAD", "TARGET", "TITLE"), [row], wide="TITLE")

    console = show.console()
    with console.capture() as captured:
        console.print(drawn)

    head, line = captured.get().splitlines()
    assert head.split() == ["GROUP", "STATE", "DEAD", "TARGET", "TITLE"]
    assert all(each in line for each in row[:-1])
    assert "ValueError" in line
    assert len(line) == 80


def test_the_help_lists_every_command_in_its_place() -> None:
    """A command is imported when it is asked for: one that is found nowhere would be noticed by its user only."""
    registered = get_command(commands)
    assert isinstance(registered, Commands)
    text = redrive("--help").out

    assert [each.name for each in registered.commands.values()] == list(registered.commands)
    places = [text.index(f"│ {name} ") for name in registered.commands]
    assert len(places) == 37
    assert places == sorted(places)


def test_ids_in_a_table_are_long_enough_to_tell_them_apart(sqlite_url: str) -> None:
    in_app(sqlite_url, lambda app: app.publish_many([("order.paid", {"n": n}) for n in range(20)]))

    table = redrive("events", "ls", "-u", sqlite_url)
    shown = [line.split()[0] for line in table.out.splitlines()[1:]]

    assert len(set(shown)) == 20
    assert all(len(line) <= 80 for line in table.out.splitlines())
    assert all(redrive("events", "show", each, "-u", sqlite_url).code == 0 for each in shown[:3])


def test_no_escape_sequence_and_no_markup_of_a_payload_reaches_the_terminal(seeds: Seeds) -> None:
    for command in (
        ["events", "show", seeds.delivered],
        ["events", "show", seeds.dead],
        ["events", "timeline", seeds.dead],
        ["events", "ls"],
        ["dlq", "ls"],
        ["audit", "ls"],
    ):
        result = redrive(*command, "-u", seeds.url)
        assert result.code == 0
        assert "\x1b" not in result.out
    assert "[bold]product[/bold]" in redrive("events", "show", seeds.dead, "-u", seeds.url).out


def test_an_event_is_found_by_the_beginning_of_its_id(seeds: Seeds) -> None:
    unique = next(seeds.dead[:n] for n in range(13, 37) if _fits_one(seeds, seeds.dead[:n]))

    result = redrive("events", "show", unique.upper(), "-o", "json", "-u", seeds.url)

    assert result.json["id"] == seeds.dead


def _fits_one(seeds: Seeds, beginning: str) -> bool:
    ids = (seeds.delivered, seeds.dead, seeds.retrying, seeds.waiting)
    return sum(each.startswith(beginning) for each in ids) == 1


def test_an_ambiguous_beginning_names_its_candidates(seeds: Seeds) -> None:
    result = redrive("events", "show", seeds.dead[:3], "-u", seeds.url)

    assert result.code == 2
    assert "4 events begin with" in result.err
    assert seeds.dead in result.err
    assert seeds.delivered in result.err


def test_an_unknown_id_ends_with_3(seeds: Seeds) -> None:
    for unknown in ("ffff", "00000000-0000-7000-8000-000000000000", "no-such-id", "0" * 40, ""):
        result = redrive("events", "show", unknown, "-u", seeds.url)
        assert result.code == 3, unknown
        assert result.err.startswith("redrive: ")


@pytest.mark.req("W1", "W5")
def test_a_timeline_tells_every_attempt_and_what_people_did(seeds: Seeds) -> None:
    assert redrive("replay", seeds.dead, "-r", "the product is there now", "--by", "anna", "-u", seeds.url).code == 0
    assert redrive("events", "cancel", seeds.dead, "-r", "customer left", "--by", "ben", "-u", seeds.url).code == 0

    told = redrive("events", "timeline", seeds.dead, "-o", "json", "-u", seeds.url)
    story = redrive("events", "timeline", seeds.dead, "-u", seeds.url)
    retried = redrive("events", "timeline", seeds.retrying, "-o", "jsonl", "-u", seeds.url)

    assert [step["kind"] for step in told.json["steps"]] == ["published", "dead-lettered", "replayed", "cancelled"]
    assert [step["by"] for step in told.json["steps"][2:]] == ["anna", "ben"]
    assert "no such [bold]product[/bold]" in told.json["steps"][1]["because"]
    assert "replayed by anna" in story.out
    assert "“the product is there now”" in story.out
    assert [step["kind"] for step in retried.lines] == ["published", "retry-scheduled", "due"]
    assert "next one 3600.0 s later" in retried.lines[1]["what"]


@pytest.mark.req("H5", "W5")
def test_dead_letters_can_be_queried_and_exported_whole(seeds: Seeds, empty_folder: Path) -> None:
    listed = redrive("dlq", "ls", "-t", "order.bad", "-c", "rejected", "-o", "json", "-u", seeds.url)
    exported = redrive("dlq", "export", "-u", seeds.url)
    to_file = redrive("dlq", "export", "--to", "letters.jsonl", "-u", seeds.url)

    assert [event["id"] for event in listed.json] == [seeds.dead]
    assert listed.json == [read(seeds.url, seeds.dead).to_json()]
    assert exported.lines == [{**listed.json[0], "steps": []}]
    assert [json.loads(line) for line in (empty_folder / "letters.jsonl").read_text().splitlines()] == exported.lines
    assert to_file.err == "1 dead letter written to letters.jsonl\n"
    assert redrive("dlq", "export", "--to", "letters.jsonl", "-u", seeds.url).code == 4


@pytest.mark.no_tables
def test_looking_creates_no_file(sqlite_url: str, empty_folder: Path) -> None:
    for command in (
        ["events", "ls"],
        ["events", "show", "01"],
        ["dlq", "ls"],
        ["audit", "verify"],
        ["audit", "heads"],
        ["replay", "01", "-r", "x"],
        ["purge", "--older-than", "1d"],
        ["doctor"],
    ):
        for place in (["-u", sqlite_url], []):
            result = redrive(*command, *place)
            assert result.code == 1, command
            assert "there is no file" in result.out + result.err

    assert list(empty_folder.iterdir()) == []
    assert list(empty_folder.parent.glob("*.db*")) == []


def test_colour_is_left_out_on_request(sqlite_seeds: Seeds) -> None:
    plain = redrive("events", "ls", "-u", sqlite_seeds.url, env={"FORCE_COLOR": "1", "NO_COLOR": "1"})
    coloured = redrive("events", "ls", "-u", sqlite_seeds.url, env={"FORCE_COLOR": "1", "NO_COLOR": None})

    assert "\x1b[3" not in plain.out
    assert "\x1b[3" in coloured.out


def test_the_url_can_come_before_the_command_after_it_or_from_the_environment(sqlite_seeds: Seeds) -> None:
    url = sqlite_seeds.url

    found = [
        redrive("-u", url, "dlq", "ls", "-o", "json"),
        redrive("dlq", "ls", "-o", "json", "--url", url),
        redrive("dlq", "ls", "-o", "json", env={"REDRIVE_URL": url}),
        redrive("-u", "sqlite:///elsewhere.db", "dlq", "ls", "-o", "json", "-u", url),
    ]

    assert [result.code for result in found] == [0, 0, 0, 0]
    assert len({result.out for result in found}) == 1


async def _publish_many(app: Redrive) -> None:
    for _ in range(5):
        await app.publish_many([("order.paid", {"n": n}) for n in range(100)])


def test_a_long_list_is_read_in_pages(sqlite_url: str) -> None:
    in_app(sqlite_url, _publish_many)

    ids = [event["id"] for event in redrive("events", "ls", "-n", "450", "-o", "jsonl", "-u", sqlite_url).lines]

    assert len(ids) == len(set(ids)) == 450
