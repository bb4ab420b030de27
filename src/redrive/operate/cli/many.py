"""Acts on events that are named by their ids, or all at once by a selection: then it counts and asks first."""

import asyncio
import re
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from redrive.errors import Refused
from redrive.operate import actions
from redrive.operate.actions import ManyVerb, Matched
from redrive.operate.cli import show
from redrive.operate.cli.acts import act_and_tell
from redrive.operate.cli.outcome import INTERRUPTED, BadInput, NothingMatched, say
from redrive.operate.cli.shared import Output, actor, existing, reason_from, run
from redrive.operate.cli.signals import on_signals
from redrive.selection import parse

WhichArgument = Annotated[
    list[str],
    typer.Argument(metavar="ID...|SELECTION", help="Ids (- reads them), or one selection like 'class:missing age>1h'."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; for scripts.")]

_SELECTS: Final = re.compile(r'[:<>="]')  # no id has any of these, and no term is without one
_DOING: Final[dict[ManyVerb, str]] = {"discard": "discarding", "restore": "restoring", "cancel": "cancelling"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was said at the command line."""

    verb: ManyVerb
    url: str
    reason: str | None
    by: str | None
    output: Output
    yes: bool
    dry_run: bool


def act_on_which(wanted: Wanted, which: Sequence[str]) -> None:
    """Do it to the events that were named, or to all that a selection means."""
    selections = [each for each in which if _SELECTS.search(each)]
    if not selections:
        if wanted.dry_run:
            raise BadInput("--dry-run counts what a selection means; `redrive events show ID` shows a single one")
        act_and_tell(wanted.url, wanted.verb, list(which), by=wanted.by, reason=wanted.reason, output=wanted.output)
        return
    if len(which) > 1:
        raise BadInput("give ids, or one selection in quotes: not both, and not several")
    parse(selections[0])  # a mistake is said before anything is opened
    why, who = "" if wanted.dry_run else reason_from(wanted.reason, wanted.verb), actor(wanted.by)
    what = run(_matched(wanted, selections[0]))
    if wanted.dry_run or not _agreed(wanted, what):
        say(f"Nothing was done: {what.sentence} would be {actions.DONE[wanted.verb]}.")
        _tell(wanted, what, 0)
        return
    done, interrupted = run(_act_on_all(wanted, what, who, why))
    _tell(wanted, what, done)
    if interrupted:
        say(f"Stopped: {done:,} of {what.count:,} are {actions.DONE[wanted.verb]}, the others are what they were.")
        raise typer.Exit(INTERRUPTED)


async def _matched(wanted: Wanted, selection: str) -> Matched:
    async with existing(wanted.url) as app:
        what = await actions.matched(app, wanted.verb, selection)
    if not what.count:
        raise NothingMatched(f"nothing matched: there are {what.sentence}")
    return what


async def _act_on_all(wanted: Wanted, what: Matched, by: str, reason: str) -> tuple[int, bool]:
    """Do it in steps; a signal stops it between two of them. Returns how many are done, and whether it was stopped."""
    told_to_stop = asyncio.Event()
    done = 0
    async with existing(wanted.url) as app:
        with show.progress(_DOING[wanted.verb]) as advance, on_signals(lambda _count: told_to_stop.set()):
            async with aclosing(actions.act_on_all(app, wanted.verb, what, by=by, reason=reason)) as steps:
                async for done in steps:
                    advance(done)
                    if told_to_stop.is_set():
                        return done, done < what.count
    return done, False


def _agreed(wanted: Wanted, what: Matched) -> bool:
    if wanted.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            f"{what.sentence} would be {actions.DONE[wanted.verb]}, and there is no terminal to ask at: add --yes to "
            "do it, --dry-run to count only"
        )
    say(f"{what.sentence}.")
    return typer.confirm(f"{wanted.verb.capitalize()} them?", err=True)


def _tell(wanted: Wanted, what: Matched, done: int) -> None:
    if wanted.output is not Output.TABLE:
        told = {"action": wanted.verb, "sentence": what.sentence, "matched": what.count, "done": done}
        show.plain(told, wanted.output)
    elif done:
        show.put_line(f"✓ {done:,} of {what.sentence} {actions.DONE[wanted.verb]}")
