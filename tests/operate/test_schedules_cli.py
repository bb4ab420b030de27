"""`redrive schedules` and `redrive reservations`."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Redrive
from tests.operate.helpers import redrive


async def prepared(url: str) -> None:
    async with Redrive(url, migrate=True) as app:
        await app.schedules.set(
            "nightly", "report.due", {"of": "sales"}, cron="0 3 * * *", tz="Europe/Berlin", by="ann", reason="new"
        )
        await app.schedules.set("often", "sweep.due", every="10m", offset="1m", by="ann", reason="new")
        await app.reservations.take("seat/1", owner="guest-7", ttl="1h", facts={"order": 7})
        await (await app.reservations.take("lock:nightly", owner="host:1")).release()


@pytest.fixture
def url(store_url: str) -> str:
    asyncio.run(prepared(store_url))
    return store_url


@pytest.mark.req("W10")
def test_schedules_are_listed_and_shown(url: str) -> None:
    table = redrive("schedules", "ls", "-u", url)
    listed = redrive("schedules", "ls", "-o", "json", "-u", url).json
    shown = redrive("schedules", "show", "nightly", "-u", url)
    (one,) = redrive("schedules", "show", "often", "-o", "jsonl", "-u", url).lines

    assert [each["name"] for each in listed] == ["nightly", "often"]
    assert (listed[0]["cron"], listed[0]["time_zone"], listed[0]["payload"]) == (
        "0 3 * * *", "Europe/Berlin", {"of": "sales"},
    )  # fmt: skip
    assert "every 10m, 1m past" in table.out
    assert "0 3 * * * Europe/Berlin" in shown.out
    assert '{"of": "sales"}' in shown.out
    assert (one["every_seconds"], one["changed_by"]) == (600.0, "ann")


@pytest.mark.req("W10")
def test_a_schedule_is_paused_resumed_run_and_removed_with_a_reason(url: str) -> None:
    because = ("--by", "bob", "--reason", "tonight we migrate", "-u", url)

    assert redrive("schedules", "pause", "often", "-u", url).code == 2
    assert redrive("schedules", "pause", "often", *because).out == "✓ often paused\n"
    assert redrive("schedules", "pause", "often", *because).code == 4
    assert "paused" in redrive("schedules", "ls", "-u", url).out
    assert redrive("schedules", "resume", "often", *because).out.startswith("✓ often resumed; next 2")
    published = redrive("schedules", "run", "often", "-o", "json", *because).json
    assert redrive("schedules", "remove", "often", *because).out == "✓ often removed\n"
    assert redrive("schedules", "show", "often", "-u", url).code == 3

    event = redrive("events", "show", published["id"], "-o", "json", "-u", url).json
    trail = redrive("audit", "ls", "-o", "json", "-u", url).json
    assert event["headers"]["schedule"] == "often"
    kinds = [each["kind"] for each in trail if each["actor"] == "bob"]
    assert sorted(kinds) == ["schedule-paused", "schedule-removed", "schedule-resumed", "schedule-run"]


def test_a_preview_shows_what_daylight_saving_does() -> None:
    found = redrive(
        "schedules", "preview", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-10-24T12:00", "-n", "2", "-o",
        "json",
    ).json  # fmt: skip
    table = redrive("schedules", "preview", "--every", "10m", "--from", "2026-10-24T12:00")

    assert found == [
        {"local": "Sun 2026-10-25 02:30:00 +0200", "utc": "2026-10-25T00:30:00.000000Z"},
        {"local": "Mon 2026-10-26 02:30:00 +0100", "utc": "2026-10-26T01:30:00.000000Z"},
    ]
    assert table.out.count("2026-10-24T12:") == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["61 * * * *"], "61 * * * *\n  ^^"),
        (["0 0 31 2 *"], "never fires"),
        (["0 3 * * *", "--tz", "Europe/Berln"], "did you mean Europe/Berlin"),
        (["0 3 * * *", "--from", "soon"], "is not an instant"),
        ([], "say how often"),
    ],
)
def test_a_preview_of_what_cannot_work_says_why(arguments: list[str], said: str) -> None:
    ended = redrive("schedules", "preview", *arguments)
    assert ended.code == 2
    assert said in ended.err


@pytest.mark.req("W10", "W8")
def test_reservations_are_listed_shown_and_released(url: str) -> None:
    table = redrive("reservations", "ls", "-u", url)
    everything = redrive("reservations", "ls", "--all", "-o", "json", "-u", url).json
    shown = redrive("reservations", "show", "seat/1", "-u", url)

    assert "guest-7" in table.out
    assert "lock:nightly" not in table.out
    assert [(each["resource"], each["is_held"]) for each in everything] == [("lock:nightly", False), ("seat/1", True)]
    assert '{"order": 7}' in shown.out

    assert redrive("reservations", "release", "seat/1", "-u", url).code == 2
    released = redrive("reservations", "release", "seat/1", "--by", "ann", "--reason", "machine gone", "-u", url)
    again = redrive("reservations", "release", "seat/1", "--by", "ann", "--reason", "machine gone", "-u", url)
    trail = redrive("audit", "ls", "-o", "json", "-u", url).json

    assert released.out == "✓ seat/1 released; guest-7 held it with token 1\n"
    assert (again.code, "nobody holds" in again.err) == (4, True)
    assert trail[0]["kind"] == "reservation-released"
    assert redrive("reservations", "ls", "-u", url).out == "Nothing is held.\n"
    assert redrive("reservations", "show", "seat/9", "-u", url).code == 3
