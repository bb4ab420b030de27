"""`redrive purge`, and how an act on single events is told."""

from typing import Annotated, Literal

import typer

from redrive.operate import actions
from redrive.operate.actions import Done
from redrive.operate.cli import show
from redrive.operate.cli.outcome import Code, say
from redrive.operate.cli.shared import (
    ByOption,
    Output,
    OutputOption,
    UrlOption,
    actor,
    existing,
    found,
    ids_from,
    reason_from,
    run,
    seconds_from,
    url_from,
)
from redrive.operate.cli.text import duration, plural
from redrive.store.base import Purge


def act_and_tell(
    url: str,
    verb: Literal["discard", "restore", "cancel"],
    ids: list[str],
    *,
    by: str | None,
    reason: str | None,
    output: Output,
) -> None:
    """Do it to every event named, then say how each went. An unknown id stops everything before it begins."""
    why, who, named = reason_from(reason, verb), actor(by), ids_from(ids)

    async def act() -> list[Done]:
        async with existing(url) as app:
            return await actions.act(app, verb, await found(app, named), by=who, reason=why)

    outcomes = run(act())
    show.told(outcomes, output)
    if any(done.refused for done in outcomes):
        raise typer.Exit(Code.REFUSED)


def purge(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option("--older-than", metavar="SPAN", help="Ended longer ago: 30d, 12h.")],
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Dead letters too; they are kept otherwise.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Remove events that ended long ago, in small batches. Dead letters stay unless you say so."""
    seconds = seconds_from(older_than, "--older-than")
    gone, capped = run(_purge(url_from(ctx, url), seconds, actor(by), dead_letters=dead_letters, dry_run=dry_run))
    if output is not Output.TABLE:
        told = {
            "older_than_seconds": seconds,
            "dry_run": dry_run,
            "events": gone.events,
            "dead_letters": gone.dead_letters,
            "sessions": gone.sessions,
            "redrives": gone.redrives,
            "batches": gone.batches,
            "runs": gone.runs,
            "findings": gone.findings,
            "at_least": capped,
        }
        show.plain(told, output)
        return
    verb = "would go" if dry_run else "removed"
    least = "at least " if capped else ""
    dead = f", {plural(gone.dead_letters, 'dead letter')}" if dead_letters else ""
    show.put_line(f"{least}{plural(gone.events, 'ended event')}{dead} older than {duration(seconds)} {verb}")
    if not dead_letters:
        say("Dead letters are kept; --dead-letters removes them too.")


async def _purge(url: str, seconds: float, by: str, *, dead_letters: bool, dry_run: bool) -> tuple[Purge, bool]:
    async with existing(url) as app:
        if dry_run:
            return await actions.would_purge(app, older_than=seconds, dead_letters=dead_letters, by=by)
        gone = Purge()
        with show.progress("purging") as advance:
            async for gone in actions.purge(app, older_than=seconds, dead_letters=dead_letters, by=by):
                advance(gone.events + gone.dead_letters)
        return gone, False
