"""Acting: replay, cancel, discard, restore, purge; with a name and a reason, on the trail."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Redrive, Status
from redrive.operate import actions
from tests.operate.helpers import Seeds, in_app, read, redrive


@pytest.mark.req("O5", "W6")
def test_a_replay_is_in_place_and_on_the_trail(seeds: Seeds) -> None:
    before = read(seeds.url, seeds.dead)

    result = redrive(
        "replay", seeds.dead, "--reason", "fixed", "--by", "anna", "--generation", "7", "-o", "json", "-u", seeds.url
    )

    after = read(seeds.url, seeds.dead)
    assert result.json == [
        {
            "id": seeds.dead,
            "type": "order.bad",
            "target": "order.bad",
            "action": "replay",
            "done": True,
            "refused": None,
            "waits_for_approval": None,
        }
    ]
    assert (after.status, after.cycle, after.generation) == (Status.PENDING, 1, 7)
    assert (after.idempotency_key, after.correlation_id) == (before.idempotency_key, before.correlation_id)
    assert after.failure_history[0].last_error == before.last_error
    entry = redrive("audit", "ls", "--event", seeds.dead, "-o", "json", "-u", seeds.url).json[0]
    assert (entry["kind"], entry["actor"], entry["detail"]["reason"]) == ("replayed", "anna", "fixed")


def test_who_acts_is_the_user_unless_said_otherwise(sqlite_seeds: Seeds) -> None:
    redrive("dlq", "discard", sqlite_seeds.dead, "-r", "test data", "-u", sqlite_seeds.url)

    entry = redrive("audit", "ls", "-n", "1", "-o", "json", "-u", sqlite_seeds.url).json[0]

    assert entry["actor"].startswith("cli:")
    assert len(entry["actor"]) > len("cli:")


def test_what_the_state_of_an_event_forbids_is_refused_with_4(seeds: Seeds) -> None:
    result = redrive("replay", seeds.delivered, seeds.dead, "-r", "both", "-u", seeds.url)

    assert result.code == 4
    assert "only a dead letter can be replayed" in result.err
    assert result.out.splitlines()[-1] == "1 of 2 replayed"
    assert read(seeds.url, seeds.dead).status is Status.PENDING
    assert redrive("dlq", "restore", seeds.waiting, "-r", "x", "-u", seeds.url).code == 4
    assert redrive("events", "cancel", seeds.delivered, "-r", "x", "-u", seeds.url).code == 4


def test_an_unknown_id_stops_everything_before_it_begins(seeds: Seeds) -> None:
    result = redrive("replay", seeds.dead, "ffffffff", "-r", "both", "-u", seeds.url)

    assert result.code == 3
    assert read(seeds.url, seeds.dead).status is Status.FAILED


@pytest.mark.parametrize("verb", [["replay"], ["dlq", "discard"], ["dlq", "restore"], ["events", "cancel"]])
@pytest.mark.parametrize("reason", [[], ["--reason", ""], ["--reason", "  "]])
def test_nothing_is_done_without_a_reason(sqlite_seeds: Seeds, verb: list[str], reason: list[str]) -> None:
    result = redrive(*verb, sqlite_seeds.dead, *reason, "-u", sqlite_seeds.url)

    assert result.code == 2
    assert result.err.startswith("redrive: say why")
    assert len(result.err.splitlines()) == 1
    assert read(sqlite_seeds.url, sqlite_seeds.dead).status is Status.FAILED


def test_a_discarded_dead_letter_is_out_of_sight_and_can_be_restored(seeds: Seeds) -> None:
    discarded = redrive("dlq", "discard", seeds.dead, "-r", "test data", "-u", seeds.url)
    hidden = redrive("dlq", "ls", "-o", "json", "-u", seeds.url)
    shown = redrive("dlq", "ls", "--discarded", "-o", "json", "-u", seeds.url)
    replayed = redrive("replay", seeds.dead, "-r", "x", "-u", seeds.url)
    restored = redrive("dlq", "restore", seeds.dead, "-r", "was not", "-u", seeds.url)

    assert (discarded.code, hidden.json, replayed.code, restored.code) == (0, [], 4, 0)
    assert [event["id"] for event in shown.json] == [seeds.dead]
    assert len(redrive("dlq", "ls", "-o", "json", "-u", seeds.url).json) == 1


def test_ids_come_from_standard_input_as_words_or_as_json_lines(sqlite_seeds: Seeds) -> None:
    listed = redrive("dlq", "ls", "-o", "jsonl", "-u", sqlite_seeds.url).out

    by_lines = redrive("replay", "-", "-r", "all", "-o", "json", "-u", sqlite_seeds.url, stdin=listed)
    by_words = redrive(
        "events",
        "cancel",
        "-",
        "-r",
        "all",
        "-u",
        sqlite_seeds.url,
        stdin=f"{sqlite_seeds.dead} {sqlite_seeds.waiting}\n",
    )

    assert [done["id"] for done in by_lines.json] == [sqlite_seeds.dead]
    assert by_words.code == 0
    assert "2 of 2 cancelled" in by_words.out


def test_no_ids_on_standard_input_match_nothing(sqlite_seeds: Seeds) -> None:
    assert redrive("replay", "-", "-r", "all", "-u", sqlite_seeds.url, stdin="").code == 3
    assert redrive("replay", "-", "-r", "all", "-u", sqlite_seeds.url, stdin='{"no": 1}\n').code == 2


def test_an_event_named_twice_is_replayed_once(sqlite_seeds: Seeds) -> None:
    twice = redrive(
        "replay", sqlite_seeds.dead, sqlite_seeds.dead.upper(), "-r", "x", "-o", "json", "-u", sqlite_seeds.url
    )

    assert (twice.code, len(twice.json)) == (0, 1)


# --- purge ---


@pytest.mark.req("H5")
def test_a_purge_leaves_dead_letters_unless_told_otherwise(seeds: Seeds) -> None:
    dry = redrive("purge", "--older-than", "0s", "--dead-letters", "--dry-run", "-o", "json", "-u", seeds.url)
    first = redrive("purge", "--older-than", "0s", "-o", "json", "-u", seeds.url)
    second = redrive("purge", "--older-than", "0s", "--dead-letters", "-o", "json", "-u", seeds.url)

    assert (dry.json["events"], dry.json["dead_letters"], dry.json["dry_run"]) == (1, 1, True)
    assert (first.json["events"], first.json["dead_letters"]) == (1, 0)
    assert (second.json["events"], second.json["dead_letters"]) == (0, 1)
    left = redrive("events", "ls", "-o", "json", "-u", seeds.url).json
    assert {event["id"] for event in left} == {seeds.retrying, seeds.waiting}


def test_a_purge_keeps_what_is_young_and_says_so(sqlite_seeds: Seeds) -> None:
    result = redrive("purge", "--older-than", "30d", "--dead-letters", "-u", sqlite_seeds.url)

    assert (result.code, result.out) == (0, "0 ended events, 0 dead letters older than 30d removed\n")


async def _purge_in_batches(app: Redrive) -> list[int]:
    @app.handler("order.paid")
    async def ship(order: dict[str, int]) -> None: ...

    for _ in range(3):
        await app.publish_many([("order.paid", {"n": n}) for n in range(1_000)])
    await app.worker().drain()
    steps = actions.purge(app, older_than=0.0, dead_letters=False, by="test")
    return [gone.events async for gone in steps]


def test_a_large_purge_goes_in_bounded_batches(sqlite_url: str) -> None:
    assert in_app(sqlite_url, _purge_in_batches) == [1_000, 2_000, 3_000, 3_000]


@pytest.mark.req("W9")
def test_a_selection_is_called_off_in_batches_when_somebody_agrees(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.operate.actions._CHUNK", 10)

    async def fill() -> None:
        async with Redrive(store_url, migrate=True) as app:
            await app.publish_many([("order.paid", number) for number in range(25)])
            await app.publish_many([("order.shipped", number) for number in range(5)])

    asyncio.run(fill())
    command = ("events", "cancel", "type:order.paid", "-u", store_url)
    unasked = redrive(*command, "-r", "flood")
    unreasoned = redrive(*command, "--yes")
    counted = redrive(*command, "--dry-run", "-o", "json")
    done = redrive(*command, "-r", "flood", "--by", "ann", "--yes")
    again = redrive(*command, "-r", "flood", "--yes")
    rest = redrive("events", "cancel", "type:order.*", "-r", "all", "--yes", "-o", "json", "-u", store_url)

    assert (unasked.code, unreasoned.code, counted.code, done.code, again.code) == (4, 2, 0, 0, 3)
    assert "25 pending, in-flight or blocked events of order.paid would be cancelled" in unasked.err
    assert counted.json["done"] == 0
    assert done.out == "✓ 25 of 25 pending, in-flight or blocked events of order.paid cancelled\n"
    assert (rest.json["matched"], rest.json["done"]) == (5, 5)
    listed = redrive("events", "ls", "-s", "cancelled", "-n", "100", "-o", "json", "-u", store_url).json
    assert {event["cancel_reason"] for event in listed if event["cancelled_by"] == "ann"} == {"flood"}
    assert len(listed) == 30


def test_a_selection_that_cannot_be_read_is_refused_before_anything_is_opened(sqlite_url: str) -> None:
    result = redrive("events", "cancel", "colour:red", "-r", "x", "--yes", "-u", sqlite_url)

    assert result.code == 2
    assert "colour" in result.err
