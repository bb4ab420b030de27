"""Taking in: dead letters that `redrive dlq export` wrote, here or elsewhere, come into this database."""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from redrive import letters
from redrive.app import Redrive
from redrive.replay import check_actor, check_reason

_CHUNK: Final = 500
_CHUNK_BYTES: Final = 4_194_304
_MOST_BAD: Final = 20


@dataclass(slots=True)
class Imported:
    """What came of a file of dead letters; ``bad`` are the first lines that are none, by number."""

    lines: int = 0
    imported: int = 0
    already: int = 0
    bad_count: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    stepless_count: int = 0
    stepless: list[str] = field(default_factory=list)
    """The first events of an earlier version's export, which did not carry steps: a replay runs all their steps."""


async def check_letters(lines: Iterable[bytes]) -> Imported:
    """Read all lines and take nothing in."""
    found = Imported()
    for _ in _letters(lines, found):
        pass
    return found


async def import_letters(
    app: Redrive, lines: Iterable[bytes], *, by: str, reason: str, dry_run: bool = False
) -> AsyncIterator[Imported]:
    """Take dead letters in, a transaction for each few hundred; lines that are none are passed over and counted.

    An event that is here already is left alone, so that the same lines can be taken in again after a failure.
    """
    who, why = check_actor(by, "import"), check_reason(reason, "import")
    await app.open()
    came = Imported()
    for rows in _chunks(_letters(lines, came)):
        if dry_run:
            new = len({row["id"] for row in rows}) - await letters.known(app.store, [row["id"] for row in rows])
        else:
            new = await letters.take_in(app.store, rows, by=who, reason=why)
        came.imported += new
        came.already += len(rows) - new
        yield came
    yield came


def _letters(lines: Iterable[bytes], found: Imported) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found.lines += 1
        try:
            row = letters.read(line)
        except letters.BadLetter as error:
            found.bad_count += 1
            if len(found.bad) < _MOST_BAD:
                found.bad.append((number, str(error)))
            continue
        if row["steps"] is None:
            found.stepless_count += 1
            if len(found.stepless) < _MOST_BAD:
                found.stepless.append(row["id"])
        yield row


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row["payload"]) + len(row["failure_history"]) + len(row["last_error"] or "")
        size += sum(len(step["result"] or "") for step in row["steps"] or ())
        if len(chunk) >= _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
