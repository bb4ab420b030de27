"""`redrive events`: find, look at and call off single events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer
from rich.console import RenderableType

from redrive.event import ErrorClass, Event, Status
from redrive.operate import views
from redrive.operate.cli import show
from redrive.operate.cli.acts import act_and_tell
from redrive.operate.cli.outcome import NothingMatched
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
from redrive.selection import Selection, parse
from redrive.store.base import EventFilter

app = typer.Typer(help="Find events, see one whole, read its story, call it off.", no_args_is_help=True)

TypeOption = Annotated[str | None, typer.Option("--type", "-t", help="Of this type; order.* for a family.")]
ClassOption = Annotated[ErrorClass | None, typer.Option("--class", "-c", help="Of this error class.")]
DiscardedOption = Annotated[bool, typer.Option("--discarded", help="Those that were discarded.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many, newest first.")]
SelectionArgument = Annotated[
    str | None, typer.Argument(metavar="SELECTION", help="Which, like 'class:missing age>1h'; all without it.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id, or a unique beginning of it.")]


@app.command("ls")
def ls(
    ctx: typer.Context,
    selection: SelectionArgument = None,
    status: Annotated[Status | None, typer.Option("--status", "-s", help="In this status.")] = None,
    type_: TypeOption = None,
    target: Annotated[str | None, typer.Option("--target", help="For this handler.")] = None,
    retry_key: Annotated[str | None, typer.Option("--retry-key", help="With this retry key.")] = None,
    correlation: Annotated[str | None, typer.Option("--correlation", help="Of this conversation.")] = None,
    limit: LimitOption = 50,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List events, newest first: all, or those that a selection means ('type:order.* age>1h')."""
    wanted = EventFilter(status=status, type=type_, target=target, retry_key=retry_key, correlation_id=correlation)
    filtered = bool(selection) or wanted != EventFilter()
    listing = Listing("events", show.events_table, limit, output, filtered=filtered)
    run(list_events(url_from(ctx, url), wanted, selected(selection), listing))


def selected(text: str | None) -> Selection | None:
    """Read a selection that was given on the command line, before anything is opened."""
    return None if text is None else parse(text)


@dataclass(frozen=True, slots=True)
class Listing:
    """How a list of events is told."""

    noun: str
    table: Callable[[Sequence[Event], datetime], RenderableType]
    limit: int
    output: Output
    filtered: bool


async def list_events(url: str, wanted: EventFilter, selection: Selection | None, how: Listing) -> None:
    """Print a list of events; say when it is empty, and when there may be more."""
    async with existing(url) as app_:
        if selection is not None:
            wanted = views.narrowed(app_, wanted, selection)
        events = [event async for event in views.pages(app_, wanted, how.limit)]
        now = app_.clock.now()
    if events or how.output is not Output.TABLE:
        show.listing(events, how.output, lambda event: event.to_json(), lambda shown: how.table(shown, now))
    if not events and how.filtered:
        raise NothingMatched(f"no {how.noun} match")
    if how.output is Output.TABLE and not events:
        show.put_line(f"No {how.noun}.")
    if how.output is Output.TABLE and len(events) == how.limit:
        show.hint(f"The newest {how.limit:,} are shown; --limit shows more.")


@app.command("show")
def show_one(
    ctx: typer.Context, event_id: IdArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one event: where it stands, what it carries, how it failed."""
    run(tell_event(url_from(ctx, url), event_id, output))


async def tell_event(url: str, text: str, output: Output) -> None:
    """Print one event."""
    async with existing(url) as app_:
        event = await views.find(app_, text)
        now = app_.clock.now()
    show.single(event, output, lambda each: each.to_json(), lambda each: show.event_sheet(each, now))


@app.command("timeline")
def timeline(
    ctx: typer.Context, event_id: IdArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Tell the story of one event: attempts, waits, dead letter, replays, the end."""
    run(_timeline(url_from(ctx, url), event_id, output))


async def _timeline(url: str, text: str, output: Output) -> None:
    async with existing(url) as app_:
        story = await views.timeline(app_, await views.find(app_, text))
        now = app_.clock.now()
    if output is Output.TABLE:
        show.put(show.timeline_story(story, now))
    elif output is Output.JSON:
        told = {"event": story.event.to_json(), "steps": [step.to_json() for step in story.steps]}
        print(show.json_text(told, indent=2))
    else:
        show.listing(story.steps, output, lambda step: step.to_json(), lambda _: "")


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    ids: IdsArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Call off events that have not ended; a running attempt can then settle nothing."""
    act_and_tell(url_from(ctx, url), "cancel", ids, by=by, reason=reason, output=output)
