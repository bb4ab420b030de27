"""`redrive task`: everything of one correlation id, from one or several databases."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from redrive.operate import task as tasks
from redrive.operate.cli import show
from redrive.operate.cli.outcome import NothingMatched, say
from redrive.operate.cli.shared import Output, OutputOption, UrlOption, run, url_from
from redrive.operate.cli.text import clean, when
from redrive.operate.task import Progress, Task, TaskEvent

_STYLES: Final = {
    Progress.NEEDS_A_PERSON: "bold red",
    Progress.RUNNING: "cyan",
    Progress.WAITING: "yellow",
    Progress.SENT: "yellow",
    Progress.UNKNOWN: "magenta",
    Progress.DONE: "bold green",
}
_DEEPEST: Final = 12  # deeper ones are drawn at this depth


def task(
    ctx: typer.Context,
    correlation: Annotated[
        str, typer.Argument(metavar="CORRELATION", help="The correlation id, or the id of the first event.")
    ],
    also: Annotated[
        list[str] | None,
        typer.Option("--also", "-a", metavar="URL", help="Another database, of a service or a site; may be repeated."),
    ] = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Show a whole task: its events in every database, below one another by cause, and how it stands.

    A database that does not answer is named, and the others are shown. At most 1,000 events.
    """
    places = list(dict.fromkeys((url_from(ctx, url), *(also or ()))))
    found = run(tasks.task(places, correlation))
    if output is Output.JSON:
        show.plain(found.to_json(), output)
    elif output is Output.JSONL:
        show.listing(found.events, output, TaskEvent.to_json, lambda _: "")
    elif found.events:
        show.put(_drawn(found))
    if output is not Output.JSON:
        for place, error in found.silent.items():
            say(f"redrive: {place} does not answer: {error}")
    if not found.events:
        raise NothingMatched(f"no event has the correlation id {correlation}")


def _drawn(found: Task) -> RenderableType:
    head = Text(clean(found.sentence), style=_STYLES[found.state])
    return Group(head, Text(), _table(found.events, found.now))


def _table(events: Sequence[TaskEvent], now: datetime) -> RenderableType:
    ids = show.short_ids([each.event for each in events])
    rows = [
        (
            _branch(each),
            show.status_text(each.event.status),
            show.tries(each.event),
            clean(each.place),
            clean("/".join(filter(None, (each.site, each.event.source)))),
            when(each.event.created_at, now),
            ids[each.event.id],
            show.note(each.event, now),
        )
        for each in events
    ]
    columns = ("EVENT", "STATUS", "TRIES", "AT", "FROM", "PUBLISHED", "ID", "NOTE")
    caps = {"EVENT": 40, "AT": 16, "FROM": 20}
    return show.table(columns, rows, wide="NOTE", caps=caps, right="TRIES", spare=("PUBLISHED", "ID", "FROM", "TRIES"))


def _branch(each: TaskEvent) -> str:
    depth = min(each.depth, _DEEPEST)
    return f"{'  ' * (depth - 1)}└ {show.name_of(each.event)}" if depth else show.name_of(each.event)
