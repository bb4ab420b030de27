"""`redrive dlq export` and `redrive dlq import`: dead letters as a file, and back."""

import csv
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TextIO

import typer

from redrive import letters
from redrive.errors import ConfigurationError, Refused
from redrive.event import Event, Status
from redrive.letters import MOST_BYTES
from redrive.operate import taking_in, views
from redrive.operate.cli import show
from redrive.operate.cli.events import ClassOption, DiscardedOption, SelectionArgument, TypeOption, selected
from redrive.operate.cli.outcome import BadInput, NothingMatched, say
from redrive.operate.cli.shared import (
    ByOption,
    DryRunOption,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    actor,
    existing,
    reason_from,
    run,
    url_from,
)
from redrive.operate.cli.text import clean, plural
from redrive.operate.taking_in import Imported
from redrive.selection import Selection
from redrive.store.base import EventFilter

_COLUMNS: Final = (
    "id", "type", "target", "subject", "source", "error_class", "error_type", "last_error", "safe_to_retry", "attempts",
    "max_attempts", "cycle", "generation", "first_failed_at", "ended_at", "created_at", "deleted_at", "retry_key",
    "idempotency_key", "correlation_id", "causation_id", "queue", "fingerprint", "headers", "payload",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_CHUNK: Final = 200
_MOST_CELL: Final = 32_000  # a spreadsheet cuts a cell at 32,767 characters


class Format(StrEnum):
    """How dead letters are written."""

    JSONL = "jsonl"
    CSV = "csv"


# --- out ---


def export(
    ctx: typer.Context,
    selection: SelectionArgument = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FILE", help="A new file; - or nothing: output.")] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", "-f", help="jsonl is whole; csv is for spreadsheets, one way.")
    ] = None,
    type_: TypeOption = None,
    error_class: ClassOption = None,
    discarded: DiscardedOption = False,
    url: UrlOption = None,
) -> None:
    """Write dead letters, whole, as JSON lines; or as CSV for a spreadsheet. Only JSON lines can be imported again."""
    wanted = EventFilter(status=Status.FAILED, type=type_, error_class=error_class, discarded=discarded)
    chosen = format_ or (Format.CSV if to is not None and to.lower().endswith(".csv") else Format.JSONL)
    filtered = bool(type_ or error_class or selection)
    run(_export(url_from(ctx, url), wanted, selected(selection), to, chosen, filtered=filtered))


async def _export(
    url: str, wanted: EventFilter, selection: Selection | None, to: str | None, format_: Format, *, filtered: bool
) -> None:
    async with existing(url) as app:
        if selection is not None:
            wanted = views.narrowed(app, wanted, selection)
        if filtered and not [event async for event in views.pages(app, wanted, 1)]:
            raise NothingMatched("no dead letters match")
        with _written_to(to) as file, show.progress("writing dead letters") as advance:
            write = _csv_writer(file) if format_ is Format.CSV else _jsonl_writer(file)
            written = 0
            async for events in _chunks(views.pages(app, wanted)):
                for line in await letters.written(app.store, events):
                    write(line)
                written += len(events)
                advance(written)
    if to not in (None, "-"):
        say(f"{plural(written, 'dead letter')} written to {to}")


@contextmanager
def _written_to(to: str | None) -> Iterator[TextIO]:
    if to in (None, "-"):
        yield sys.stdout
        return
    try:
        file = Path(to or "").open("x", encoding="utf-8", newline="")  # noqa: SIM115 - closed below
    except FileExistsError:
        raise Refused(f"{to} exists: name a new file") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{to} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    with file:
        yield file


async def _chunks(events: AsyncIterator[Event]) -> AsyncIterator[list[Event]]:
    chunk: list[Event] = []
    async for event in events:
        chunk.append(event)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _jsonl_writer(file: TextIO) -> Callable[[dict[str, Any]], object]:
    return lambda line: file.write(show.json_text(line) + "\n")


def _csv_writer(file: TextIO) -> Callable[[dict[str, Any]], object]:
    writer = csv.writer(file)
    writer.writerow(_COLUMNS)
    return lambda line: writer.writerow([_cell(line[name]) for name in _COLUMNS])


def _cell(value: Any) -> str:
    """Write a cell that no spreadsheet takes for a formula: those run when the file is opened."""
    if isinstance(value, bool | int | None):
        return "" if value is None else str(value).lower()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = clean(text[:_MOST_CELL])
    return f"'{text}" if text.startswith(_FORMULA) else text


# --- in ---


def import_letters(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `dlq export` wrote as JSON lines; - reads input.")],
    reason: ReasonOption = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over lines that are no dead letter.")] = False,
    dry_run: DryRunOption = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take exported dead letters in, each as it was. What is here already is left alone."""
    why = "only looking" if dry_run else reason_from(reason, "import")
    with _read_from(file) as lines:
        came = run(_import(url_from(ctx, url), lines, actor(by), why, skip_bad=skip_bad, dry_run=dry_run))
    _tell_stepless(came)
    if output is Output.TABLE:
        show.put_line(_came(came, dry_run=dry_run))
    else:
        told = {
            "lines": came.lines,
            "imported": 0 if dry_run else came.imported,
            "would_import": came.imported if dry_run else None,
            "already_there": came.already,
            "bad": came.bad_count,
            "without_steps": came.stepless_count,
        }
        show.plain(told, output)
    if not came.lines:
        raise NothingMatched("there is no dead letter in it")


async def _import(url: str, file: BinaryIO, by: str, reason: str, *, skip_bad: bool, dry_run: bool) -> Imported:
    """Read all of it first: unless bad lines may be passed over, one of them stops everything before it begins."""
    came = Imported()
    async with existing(url) as app:
        with show.progress("reading"):
            checked = await taking_in.check_letters(_lines(file))
        if checked.bad_count:
            _tell_bad(checked)
            if not skip_bad:
                raise BadInput("nothing was taken in: correct these lines, or pass over them with --skip-bad")
        file.seek(0)
        with show.progress("taking in") as advance:
            async for came in taking_in.import_letters(app, _lines(file), by=by, reason=reason, dry_run=dry_run):
                advance(came.imported + came.already)
    return came


def _tell_bad(checked: Imported) -> None:
    for number, why in checked.bad:
        say(f"✗ line {number:,}: {why}")
    if checked.bad_count > len(checked.bad):
        say(f"  and {checked.bad_count - len(checked.bad):,} more")


def _tell_stepless(came: Imported) -> None:
    if not came.stepless_count:
        return
    some = ", ".join(came.stepless) + (", …" if came.stepless_count > len(came.stepless) else "")
    say(
        f"! {plural(came.stepless_count, 'dead letter')} of an older export, which did not carry steps. If their "
        f"handlers have steps, a replay runs all of them again: {some}"
    )


def _came(came: Imported, *, dry_run: bool) -> str:
    verb = "would be imported" if dry_run else "imported"
    bad = f", {plural(came.bad_count, 'line')} passed over" if came.bad_count else ""
    return f"✓ {plural(came.imported, 'dead letter')} {verb}, {came.already:,} already there{bad}"


@contextmanager
def _read_from(place: str) -> Iterator[BinaryIO]:
    """Open what can be read twice; standard input is kept aside for that."""
    if place == "-":
        with tempfile.TemporaryFile() as kept:
            for piece in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
                kept.write(piece)
            kept.seek(0)
            yield kept
        return
    try:
        file = Path(place).open("rb")  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:
        raise BadInput(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    with file:
        yield file


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Read line by line; of one that is too long only the beginning comes, and is refused."""
    while line := file.readline(MOST_BYTES + 2):
        yield line
        while len(line) > MOST_BYTES and not line.endswith(b"\n"):
            line = file.readline(MOST_BYTES + 2)
