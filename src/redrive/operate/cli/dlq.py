"""`redrive dlq`: the quarantine. Nothing leaves it by itself."""

import asyncio
import re
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from redrive.errors import Refused
from redrive.event import Status
from redrive.operate import actions
from redrive.operate.actions import Matched
from redrive.operate.cli import carry, show
from redrive.operate.cli.acts import act_and_tell
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
from redrive.operate.cli.outcome import INTERRUPTED, BadInput, NothingMatched, say
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
from redrive.operate.cli.signals import on_signals
from redrive.replay import Mark
from redrive.selection import parse
from redrive.store.base import EventFilter

app = typer.Typer(help="Dead letters: list, look, export, import, discard, restore.", no_args_is_help=True)

_SELECTS: Final = re.compile(r'[:<>="]')  # no id has any of these, and no term is without one


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

WhichArgument = Annotated[
    list[str],
    typer.Argument(metavar="ID...|SELECTION", help="Ids (- reads them), or one selection like 'class:missing age>1h'."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; for scripts.")]


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
    _mark(_Wanted("discard", url_from(ctx, url), reason, by, output, yes=yes, dry_run=dry_run), which)


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
    _mark(_Wanted("restore", url_from(ctx, url), reason, by, output, yes=yes, dry_run=dry_run), which)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was said at the command line."""

    verb: Mark
    url: str
    reason: str | None
    by: str | None
    output: Output
    yes: bool
    dry_run: bool


def _mark(wanted: _Wanted, which: Sequence[str]) -> None:
    selections = [each for each in which if _SELECTS.search(each)]
    if not selections:
        if wanted.dry_run:
            raise BadInput("--dry-run counts what a selection means; `redrive dlq show ID` shows a single one")
        act_and_tell(wanted.url, wanted.verb, list(which), by=wanted.by, reason=wanted.reason, output=wanted.output)
        return
    if len(which) > 1:
        raise BadInput("give ids, or one selection in quotes: not both, and not several")
    parse(selections[0])  # a mistake is said before anything is opened
    why, who = "" if wanted.dry_run else reason_from(wanted.reason, wanted.verb), actor(wanted.by)
    what = run(_matched(wanted, selections[0]))
    if wanted.dry_run or not _agreed(wanted, what):
        say(f"Nothing was done: {what.sentence} would be {actions.DONE[wanted.verb]}.")
        _tell_marked(wanted, what, 0)
        return
    done, interrupted = run(_mark_all(wanted, what, who, why))
    _tell_marked(wanted, what, done)
    if interrupted:
        say(f"Stopped: {done:,} of {what.count:,} are {actions.DONE[wanted.verb]}, the others are what they were.")
        raise typer.Exit(INTERRUPTED)


async def _matched(wanted: _Wanted, selection: str) -> Matched:
    async with existing(wanted.url) as app_:
        what = await actions.matched(app_, wanted.verb, selection)
    if not what.count:
        raise NothingMatched(f"nothing matched: there are {what.sentence}")
    return what


async def _mark_all(wanted: _Wanted, what: Matched, by: str, reason: str) -> tuple[int, bool]:
    """Do it in steps; a signal stops it between two of them. Returns how many are done, and whether it was stopped."""
    told_to_stop = asyncio.Event()
    done = 0
    async with existing(wanted.url) as app_:
        with show.progress(f"{wanted.verb}ing") as advance, on_signals(lambda _count: told_to_stop.set()):
            async with aclosing(actions.mark_all(app_, wanted.verb, what, by=by, reason=reason)) as steps:
                async for done in steps:
                    advance(done)
                    if told_to_stop.is_set():
                        return done, done < what.count
    return done, False


def _agreed(wanted: _Wanted, what: Matched) -> bool:
    if wanted.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            f"{what.sentence} would be {actions.DONE[wanted.verb]}, and there is no terminal to ask at: add --yes to "
            "do it, --dry-run to count only"
        )
    say(f"{what.sentence}.")
    return typer.confirm(f"{wanted.verb.capitalize()} them?", err=True)


def _tell_marked(wanted: _Wanted, what: Matched, done: int) -> None:
    if wanted.output is not Output.TABLE:
        told = {"action": wanted.verb, "sentence": what.sentence, "matched": what.count, "done": done}
        show.plain(told, wanted.output)
    elif done:
        show.put_line(f"✓ {done:,} of {what.sentence} {actions.DONE[wanted.verb]}")
