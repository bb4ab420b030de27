"""`redrive dlq`: the quarantine. Nothing leaves it by itself."""

import json
from pathlib import Path
from typing import Annotated

import typer

from redrive.errors import ConfigurationError, Refused
from redrive.event import ErrorClass, Status
from redrive.operate import views
from redrive.operate.cli import show
from redrive.operate.cli.acts import act_and_tell
from redrive.operate.cli.events import (
    IdArgument,
    LimitOption,
    SelectionArgument,
    TypeOption,
    selected,
    tell_event,
    tell_list,
)
from redrive.operate.cli.outcome import say
from redrive.operate.cli.shared import (
    ByOption,
    IdsArgument,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    existing,
    run,
    url_from,
)
from redrive.operate.cli.text import plural
from redrive.selection import Selection
from redrive.store.base import EventFilter

app = typer.Typer(help="Dead letters: list, look, export, discard, restore.", no_args_is_help=True)

ClassOption = Annotated[ErrorClass | None, typer.Option("--class", "-c", help="Of this error class.")]
DiscardedOption = Annotated[bool, typer.Option("--discarded", help="Those that were discarded.")]


@app.command("ls")
def ls(
    ctx: typer.Context,
    selection: SelectionArgument = None,
    type_: TypeOption = None,
    error_class: ClassOption = None,
    discarded: DiscardedOption = False,
    limit: LimitOption = 50,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List dead letters, newest first: all, or those that a selection means ('class:missing age>1h')."""
    wanted = EventFilter(status=Status.FAILED, type=type_, error_class=error_class, discarded=discarded)
    filtered = bool(type_ or error_class or selection)
    run(_list(url_from(ctx, url), wanted, selected(selection), limit, output, filtered=filtered))


async def _list(
    url: str, wanted: EventFilter, selection: Selection | None, limit: int, output: Output, *, filtered: bool
) -> None:
    async with existing(url) as app_:
        if selection is not None:
            wanted = views.narrowed(app_, wanted, selection)
        events = [event async for event in views.pages(app_, wanted, limit)]
        now = app_.clock.now()
    tell_list(
        events,
        output,
        "dead letters",
        lambda shown: show.dead_letters_table(shown, now),
        filtered=filtered,
        limit=limit,
    )


@app.command("show")
def show_one(
    ctx: typer.Context, event_id: IdArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one dead letter: the error, the payload, earlier cycles."""
    run(tell_event(url_from(ctx, url), event_id, output))


@app.command("export")
def export(
    ctx: typer.Context,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="A new file; without it: output.")] = None,
    type_: TypeOption = None,
    error_class: ClassOption = None,
    discarded: DiscardedOption = False,
    url: UrlOption = None,
) -> None:
    """Write all dead letters as JSON lines, whole."""
    wanted = EventFilter(status=Status.FAILED, type=type_, error_class=error_class, discarded=discarded)
    run(_export(url_from(ctx, url), wanted, to))


async def _export(url: str, wanted: EventFilter, to: Path | None) -> None:
    async with existing(url) as app_:
        if to is None:
            async for event in views.pages(app_, wanted):
                print(show.json_text(event.to_json()))
            return
        try:
            file = to.open("x", encoding="utf-8")
        except FileExistsError:
            raise Refused(f"{to} exists: name a new file") from None
        except OSError as error:
            raise ConfigurationError(f"{to} cannot be written: {error.strerror}") from None
        written = 0
        with file, show.progress(f"writing {to}") as advance:
            async for event in views.pages(app_, wanted):
                file.write(json.dumps(event.to_json(), ensure_ascii=False) + "\n")
                written += 1
                advance(written)
    say(f"{plural(written, 'dead letter')} written to {to}")


@app.command("discard")
def discard(
    ctx: typer.Context,
    ids: IdsArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take dead letters out of sight; they can be restored."""
    act_and_tell(url_from(ctx, url), "discard", ids, by=by, reason=reason, output=output)


@app.command("restore")
def restore(
    ctx: typer.Context,
    ids: IdsArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take discarded dead letters back into the quarantine."""
    act_and_tell(url_from(ctx, url), "restore", ids, by=by, reason=reason, output=output)
