"""`redrive reservations`: who holds what, locks included."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from redrive.operate.cli import show
from redrive.operate.cli.outcome import NothingMatched
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
from redrive.operate.cli.text import clean, clock_time, day, one_line, when
from redrive.reserve import Reservation

app = typer.Typer(help="Reservations and locks: who holds what, until when.", no_args_is_help=True)

ResourceArgument = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="As `redrive reservations ls` shows it; a lock's is lock:NAME.")
]


@app.command("ls")
def ls(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also what was released or has run out.")] = False,
    after: Annotated[str, typer.Option("--after", metavar="RESOURCE", help="Go on after this one.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 100,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List what is held now, by name: by whom, until when, by which token."""
    found, now = run(_list(url_from(ctx, url), everything=all_, after=after, limit=limit))
    if not found and output is Output.TABLE:
        show.put_line("Nothing is held.")
        return
    show.listing(found, output, lambda each: each.to_json(), lambda shown: _table(shown, now))
    if output is Output.TABLE and len(found) == limit:
        show.hint(f"The first {limit:,} are shown; --after {found[-1].resource} goes on.")


async def _list(url: str, *, everything: bool, after: str, limit: int) -> tuple[list[Reservation], datetime]:
    async with existing(url) as app_:
        return await app_.reservations.ls(everything=everything, after=after, limit=limit), app_.clock.now()


def _table(found: Sequence[Reservation], now: datetime) -> RenderableType:
    rows = [
        (
            one_line(each.resource, 120),
            one_line(each.owner, 60),
            _state(each, now),
            when(each.taken_at, now),
            str(each.token),
        )
        for each in found
    ]
    columns = ("RESOURCE", "OWNER", "HELD", "TAKEN", "TOKEN")
    return show.table(columns, rows, wide="RESOURCE", caps={"OWNER": 30}, right="TOKEN", spare=("TAKEN",))


def _state(each: Reservation, now: datetime) -> str:
    if each.released_at is not None:
        return f"released {when(each.released_at, now)}"
    return f"runs out {when(each.until, now)}" if each.is_held else f"ran out {when(each.until, now)}"


@app.command("show")
def show_one(
    ctx: typer.Context, resource: ResourceArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one: who holds it, or held it last, and what they have said of it."""
    found, now = run(_find(url_from(ctx, url), resource))
    show.single(found, output, lambda each: each.to_json(), lambda each: _sheet(each, now))


async def _find(url: str, resource: str) -> tuple[Reservation, datetime]:
    async with existing(url) as app_:
        found = await app_.reservations.get(resource)
        if found is None:
            raise NothingMatched(f"nobody ever took {resource!r}: `redrive reservations ls --all` lists what was taken")
        return found, app_.clock.now()


def _sheet(each: Reservation, now: datetime) -> RenderableType:
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in _facts(each, now):
        drawn.add_row(name, Text(clean(value)))
    return drawn


def _facts(each: Reservation, now: datetime) -> Iterable[tuple[str, str]]:
    yield "resource", each.resource
    yield "state", _state(each, now)
    yield "owner", each.owner
    yield "token", str(each.token)
    yield "taken", _instant(each.taken_at, now)
    if each.renewed_at != each.taken_at:
        yield "renewed", _instant(each.renewed_at, now)
    yield "until", _instant(each.until, now)
    if each.facts is not None:
        yield "facts", show.json_text(each.facts)


def _instant(at: datetime, now: datetime) -> str:
    return f"{day(at)} {clock_time(at)} UTC ({when(at, now)})"


@app.command("release")
def release(
    ctx: typer.Context,
    resource: ResourceArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take a resource away from its holder; what it writes under its token is refused from then on."""
    held = run(_release(url_from(ctx, url), resource, actor(by), reason_from(reason, "release")))
    if output is not Output.TABLE:
        show.plain(held.to_json(), output)
        return
    show.put_line(f"✓ {resource} released; {held.owner} held it with token {held.token}")


async def _release(url: str, resource: str, by: str, reason: str) -> Reservation:
    async with existing(url) as app_:
        return await app_.reservations.release(resource, by=by, reason=reason)
