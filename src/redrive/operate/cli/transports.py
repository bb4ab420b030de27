"""`redrive transports`: how it stands with brokers; sending a window again."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from redrive.app import Redrive
from redrive.duration import parse_duration
from redrive.errors import BadDuration
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput
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
from redrive.operate.cli.text import clean, number, one_line, plural, when
from redrive.transport.base import LinkState
from redrive.transport.relay import Republished
from redrive.transport.traffic import Standing

app = typer.Typer(help="How it stands with brokers: routes and intakes.", no_args_is_help=True)

_COLOURS: Final = {
    LinkState.OK.value: "green",
    LinkState.UNREACHABLE.value: "bold red",
    LinkState.REFUSED.value: "bold red",
    LinkState.PAUSED.value: "yellow",
}


@app.command("ls")
def ls(ctx: typer.Context, output: OutputOption = Output.TABLE, url: UrlOption = None) -> None:
    """List routes and intakes: state, how much waits, since when the oldest does, how much has moved."""
    found = run(_standing(url_from(ctx, url)))
    if found or output is not Output.TABLE:
        show.listing(found, output, Standing.to_json, _table)
    else:
        show.put_line("None is at work: start a worker, or `redrive relay`, with an app that has routes or intakes.")


async def _standing(url: str) -> list[Standing]:
    async with existing(url) as app_:
        return await app_.traffic.standing()


def _table(found: Sequence[Standing]) -> RenderableType:
    rows = [
        (
            clean(each.name),
            Text(each.state, style=_COLOURS.get(each.state, "dim")),
            "" if each.lag is None else number(each.lag),
            "" if each.oldest_at is None else when(each.oldest_at, each.now),
            number(each.moved) if each.worker else "",
            clean(each.worker or ""),
            one_line(each.error, 200),
        )
        for each in found
    ]
    columns = ("NAME", "STATE", "WAITING", "OLDEST", "MOVED", "WORKER", "WHY")
    return show.table(columns, rows, wide="WHY", caps={"NAME": 40}, spare=("WORKER", "MOVED"))


@app.command("republish")
def republish(
    ctx: typer.Context,
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="As `redrive transports ls` shows it.")],
    since: Annotated[str, typer.Option("--since", metavar="WHEN", help="2h (ago), or 2030-01-31T12:00:00Z.")],
    until: Annotated[str, typer.Option("--until", metavar="WHEN", help="The same; without it: now.")] = "0s",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most so many events.")] = 10_000,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Send once more what a route delivered in a window, for a broker that lost what it had acknowledged."""
    why, who = reason_from(reason, "republish"), actor(by)
    done = run(_republish(url_from(ctx, url), route, since, until, limit, who, why))
    if output is not Output.TABLE:
        show.plain({"target": done.target, "copies": done.copies, "more": done.more}, output)
        return
    show.put_line(f"✓ {plural(done.copies, 'event')} of {clean(done.target)} will be sent once more")
    if done.more:
        show.hint(f"The window may hold more than {number(limit)}: go on with a later --since, or a higher --limit.")


async def _republish(url: str, route: str, since: str, until: str, limit: int, by: str, reason: str) -> Republished:
    async with existing(url) as app_:
        return await app_.traffic.republish(
            route, since=_instant(app_, since, "--since"), until=_instant(app_, until, "--until"), by=by,
            reason=reason, limit=limit,
        )  # fmt: skip


def _instant(app_: Redrive, text: str, option: str) -> datetime:
    """Read an instant, or a span before now."""
    try:
        return app_.clock.now() - timedelta(seconds=parse_duration(text))
    except BadDuration:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(
            f"{option} takes a span like 2h, or an instant like 2030-01-31T12:00:00Z, not {text!r}"
        ) from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
