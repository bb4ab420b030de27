"""`redrive events`: find, look at and call off single events."""

import sys
from typing import Annotated

import typer

from redrive.event import Event, Status
from redrive.operate import actions, views
from redrive.operate.cli import show
from redrive.operate.cli.acts import act_and_tell
from redrive.operate.cli.outcome import BadInput, NothingMatched
from redrive.operate.cli.shared import (
    ByOption,
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
from redrive.operate.cli.text import plural
from redrive.selection import Selection, parse
from redrive.store.base import EventFilter

app = typer.Typer(help="Find events, see one whole, read its story, call it off.", no_args_is_help=True)

TypeOption = Annotated[str | None, typer.Option("--type", "-t", help="Of this type; order.* for a family.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many, newest first.")]
SelectionArgument = Annotated[
    str | None, typer.Argument(metavar="SELECTION", help="Which, like 'class:missing age>1h'; all without it.")
]
WhichArgument = Annotated[
    list[str],
    typer.Argument(metavar="ID...|SELECTION", help="Ids, or - for input; or one selection, like 'type:order.*'."),
]
_NOT_IN_IDS = frozenset(":<>=~!")
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
    run(_list(url_from(ctx, url), wanted, selected(selection), limit, output, filtered=filtered))


def selected(text: str | None) -> Selection | None:
    """Read a selection that was given on the command line, before anything is opened."""
    return None if text is None else parse(text)


async def _list(
    url: str, wanted: EventFilter, selection: Selection | None, limit: int, output: Output, *, filtered: bool
) -> None:
    async with existing(url) as app_:
        if selection is not None:
            wanted = views.narrowed(app_, wanted, selection)
        events = [event async for event in views.pages(app_, wanted, limit)]
        now = app_.clock.now()
    tell_list(events, output, "events", lambda shown: show.events_table(shown, now), filtered=filtered, limit=limit)


def tell_list(
    events: list[Event],
    output: Output,
    noun: str,
    draw: "show.Draw",
    *,
    filtered: bool,
    limit: int,
) -> None:
    """Print a list of events; say when it is empty, and when there may be more."""
    if events or output is not Output.TABLE:
        show.listing(events, output, lambda event: event.to_json(), draw)
    if not events and filtered:
        raise NothingMatched(f"no {noun} match")
    if output is Output.TABLE and not events:
        show.put_line(f"No {noun}.")
    if output is Output.TABLE and len(events) == limit:
        show.hint(f"The newest {limit:,} are shown; --limit shows more.")


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
    which: WhichArgument,
    reason: ReasonOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a selection is called off.")] = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Call off events that have not ended; a running handler is told, and can settle nothing any more."""
    if len(which) == 1 and set(which[0]) & _NOT_IN_IDS:
        selection, why, who = parse(which[0]), reason_from(reason, "cancel"), actor(by)
        run(_cancel_selected(url_from(ctx, url), selection, who, why, output, yes=yes))
    else:
        act_and_tell(url_from(ctx, url), "cancel", which, by=by, reason=reason, output=output)


async def _cancel_selected(url: str, selection: Selection, by: str, reason: str, output: Output, *, yes: bool) -> None:
    async with existing(url) as app_:
        ids = await views.live_ids(app_, selection)
        if not ids:
            raise NothingMatched("no events that have not ended match")
        _agree(f"Call off {plural(len(ids), 'event')}: {selection.text}", yes=yes)
        gone = 0
        with show.progress("cancelling") as advance:
            async for gone in actions.cancel_all(app_, ids, by=by, reason=reason):
                advance(gone)
    if output is Output.TABLE:
        show.put_line(f"{gone:,} of {plural(len(ids), 'event')} cancelled")
    else:
        told = {"selection": selection.text, "selected": len(ids), "cancelled": gone}
        print(show.json_text(told, indent=2 if output is Output.JSON else None))


def _agree(question: str, *, yes: bool) -> None:
    """Ask the person at the terminal; a script has to say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question}? Nobody is there to be asked: add --yes")
    typer.confirm(f"{question}?", abort=True, err=True)
