"""The trail from the command line: read, checked, and compared with heads that were noted before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.operate.helpers import Seeds, redrive


@pytest.mark.req("B7")
def test_a_sound_trail_is_verified(seeds: Seeds) -> None:
    result = redrive("audit", "verify", "-o", "json", "-u", seeds.url)
    told = redrive("audit", "verify", "-u", seeds.url)

    assert (result.code, result.json["sound"], result.json["problems"]) == (0, True, [])
    assert result.json["entries"] == 2
    assert told.out == "✓ 2 entries in 1 chain: nothing was changed or taken out.\n"


def _change(url: str, *statements: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    for statement in ("drop trigger redrive_trail_no_update", "drop trigger redrive_trail_no_delete", *statements):
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.req("B7")
def test_a_changed_entry_is_found(sqlite_seeds: Seeds) -> None:
    _change(sqlite_seeds.url, "update redrive_trail set actor = 'somebody else' where kind = 'dead-lettered'")

    result = redrive("audit", "verify", "-u", sqlite_seeds.url)

    assert result.code == 1
    assert "was changed after it was written" in result.out


@pytest.mark.req("B7")
@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_a_trail_cut_off_at_its_end_is_found_by_heads_noted_before(
    sqlite_seeds: Seeds, empty_folder: Path, form: str
) -> None:
    heads = empty_folder / "heads"
    heads.write_text(redrive("audit", "heads", "-o", form, "-u", sqlite_seeds.url).out)
    before = redrive("audit", "verify", "--against", "heads", "-u", sqlite_seeds.url)
    _change(sqlite_seeds.url, "delete from redrive_trail where seq = (select max(seq) from redrive_trail)")

    alone = redrive("audit", "verify", "-u", sqlite_seeds.url)
    compared = redrive("audit", "verify", "--against", "heads", "-o", "json", "-u", sqlite_seeds.url)

    assert (before.code, alone.code, compared.code) == (0, 0, 1)
    assert "ends before entry 2" in compared.json["problems"][0]


def test_a_file_that_is_not_heads_is_refused(sqlite_seeds: Seeds, empty_folder: Path) -> None:
    (empty_folder / "notes").write_text("not heads\n")

    assert redrive("audit", "verify", "--against", "notes", "-u", sqlite_seeds.url).code == 2
    assert redrive("audit", "verify", "--against", "missing", "-u", sqlite_seeds.url).code == 2


def test_the_newest_entries_come_first(seeds: Seeds) -> None:
    redrive("replay", seeds.dead, "-r", "again", "-u", seeds.url)

    entries = redrive("audit", "ls", "-o", "jsonl", "-u", seeds.url).lines
    table = redrive("audit", "ls", "-u", seeds.url)

    assert entries[0]["kind"] == "replayed"
    assert len(entries) == 3
    assert len(redrive("audit", "ls", "-n", "2", "-o", "jsonl", "-u", seeds.url).lines) == 2
    assert all(len(line) <= 80 for line in table.out.splitlines())
