"""`redrive dlq`: the quarantine. Nothing leaves it by itself."""

import typer

from redrive.event import Status
from redrive.operate.cli import carry, show
from redrive.operate.cli.events import (
    ClassOption,
    DiscardedOption,
    IdArgument,
    LimitOption,
    Listing,
    SelectionArgument,
    TypeOption,
    list_events,
    selected,
    tell_event,
)
from redrive.operate.cli.many import Wanted, WhichArgument, YesOption, act_on_which
from redrive.operate.cli.shared import (
    ByOption,
    DryRunOption,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    run,
    url_from,
)
from redrive.store.base import EventFilter

app = typer.Typer(help="Dead letters: list, look, export, import, discard, restore.", no_args_is_help=True)


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
    listing = Listing("dead letters", show.dead_letters_table, limit, output, filtered=filtered)
    run(list_events(url_from(ctx, url), wanted, selected(selection), listing))


@app.command("show")
def show_one(
    ctx: typer.Context, event_id: IdArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one dead letter: the error, the payload, earlier cycles."""
    run(tell_event(url_from(ctx, url), event_id, output))


app.command("export")(carry.export)
app.command("import")(carry.import_letters)


# --- discarding and restoring ---


@app.command("discard")
def discard(
    ctx: typer.Context,
    which: WhichArgument,
    reason: ReasonOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take dead letters out of sight; they can be restored. By a selection it asks first."""
    act_on_which(Wanted("discard", url_from(ctx, url), reason, by, output, yes=yes, dry_run=dry_run), which)


@app.command("restore")
def restore(
    ctx: typer.Context,
    which: WhichArgument,
    reason: ReasonOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take discarded dead letters back into the quarantine. By a selection it asks first."""
    act_on_which(Wanted("restore", url_from(ctx, url), reason, by, output, yes=yes, dry_run=dry_run), which)
