"""`redrive schedules`: what comes by the clock."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from redrive.app import Redrive
from redrive.cadence import Cadence
from redrive.clock import SystemClock
from redrive.errors import ConfigurationError
from redrive.event import Published
from redrive.instant import iso
from redrive.operate.cli import show
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
from redrive.operate.cli.text import clean, clock_time, day, duration, one_line, when
from redrive.schedule import Schedule

app = typer.Typer(help="Schedules: what comes by the clock, and when next.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `redrive schedules ls` shows it.")]


@app.command("ls")
def ls(ctx: typer.Context, output: OutputOption = Output.TABLE, url: UrlOption = None) -> None:
    """List the schedules: what they publish, how often, and when next."""
    found, now = run(_list(url_from(ctx, url)))
    if not found and output is Output.TABLE:
        show.put_line("There is none: a worker writes down those that its app declares.")
        return
    show.listing(found, output, lambda each: each.to_json(), lambda shown: _table(shown, now))


async def _list(url: str) -> tuple[list[Schedule], datetime]:
    async with existing(url) as app_:
        return await app_.schedules.ls(), app_.clock.now()


def _table(found: Sequence[Schedule], now: datetime) -> RenderableType:
    rows = [
        (
            one_line(each.name, 60),
            one_line(each.type, 60),
            _how_often(each),
            _next(each, now),
            "" if each.last_at is None else when(each.last_at, now),
            f"{each.event_count:,}",
            f"{each.missed_count:,}" if each.missed_count else "",
        )
        for each in found
    ]
    columns = ("NAME", "TYPE", "WHEN", "NEXT", "LAST", "EVENTS", "MISSED")
    return show.table(columns, rows, wide="NAME", caps={"TYPE": 24}, right="EVENTS", spare=("TYPE", "LAST"))


def _how_often(each: Schedule) -> str:
    if each.every_seconds is not None:
        shift = f", {duration(each.offset_seconds)} past" if each.offset_seconds else ""
        return f"every {duration(each.every_seconds)}{shift}"
    return f"{each.cron} {each.time_zone}"


def _next(each: Schedule, now: datetime) -> str:
    if each.paused_at is not None:
        return "paused"
    return "never" if each.next_at is None else when(max(each.next_at, now), now)


@app.command("show")
def show_one(
    ctx: typer.Context, name: NameArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one: what it publishes, its next ticks, and who changed it last."""
    found, now = run(_find(url_from(ctx, url), name))
    show.single(found, output, lambda each: each.to_json(), lambda each: _sheet(each, now))


async def _find(url: str, name: str) -> tuple[Schedule, datetime]:
    async with existing(url) as app_:
        await _known(app_, name)
        return await app_.schedules.get(name), app_.clock.now()


async def _known(app_: Redrive, name: str) -> None:
    names = [each.name for each in await app_.schedules.ls()]
    if name not in names:
        some = f"there are {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" if names else "there is none at all"  # noqa: PLR2004 - enough to go by
        raise NothingMatched(f"no schedule is called {name!r}: {some}")


def _sheet(each: Schedule, now: datetime) -> RenderableType:
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in _facts(each, now):
        drawn.add_row(name, Text(clean(value)))
    return drawn


def _facts(each: Schedule, now: datetime) -> Iterable[tuple[str, str]]:
    yield "name", each.name
    yield "publishes", each.type
    yield "payload", show.json_text(each.payload)
    yield "options", show.json_text(dict(each.options))
    yield "when", _how_often(each)
    yield "catch up", each.catch_up
    if each.paused_at is not None:
        yield "paused", f"{_instant(each.paused_at, now)} by {each.paused_by}"
    elif each.next_at is not None:
        yield "next", _instant(each.next_at, now)
    if each.last_at is not None:
        yield "last", _instant(each.last_at, now)
    yield "events", f"{each.event_count:,}"
    if each.missed_count:
        yield "missed", f"{each.missed_count:,} ticks passed while no worker was there, and got no event"
    yield "changed", f"{_instant(each.changed_at, now)} by {each.changed_by}"


def _instant(at: datetime, now: datetime) -> str:
    return f"{day(at)} {clock_time(at)} UTC ({when(at, now)})"


@app.command("pause")
def pause(
    ctx: typer.Context,
    name: NameArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Let a schedule tick no more until you resume it."""
    _tell(run(_act(url_from(ctx, url), "pause", name, actor(by), reason_from(reason, "pause"))), output, "paused")


@app.command("resume")
def resume(
    ctx: typer.Context,
    name: NameArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Let a schedule go on with its next tick; those of the pause are not made up for."""
    _tell(run(_act(url_from(ctx, url), "resume", name, actor(by), reason_from(reason, "resume"))), output, "resumed")


@app.command("remove")
def remove(
    ctx: typer.Context,
    name: NameArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Remove a schedule. One that is declared in code comes back with the next worker: pause that one."""
    _tell(run(_act(url_from(ctx, url), "remove", name, actor(by), reason_from(reason, "remove"))), output, "removed")


async def _act(url: str, verb: str, name: str, by: str, reason: str) -> Schedule:
    async with existing(url) as app_:
        await _known(app_, name)
        was = await app_.schedules.get(name)
        changed = await getattr(app_.schedules, verb)(name, by=by, reason=reason)
        return was if changed is None else changed


def _tell(each: Schedule, output: Output, done: str) -> None:
    if output is not Output.TABLE:
        show.plain(each.to_json(), output)
        return
    after = f"; next {iso(each.next_at)}" if done == "resumed" and each.next_at is not None else ""
    show.put_line(f"✓ {each.name} {done}{after}")


@app.command("run")
def run_one(
    ctx: typer.Context,
    name: NameArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Publish an extra event now; the ticks stay where they are."""
    published = run(_run(url_from(ctx, url), name, actor(by), reason_from(reason, "publish so")))
    if output is not Output.TABLE:
        show.plain({"schedule": name, "id": str(published.id), "target": published.target}, output)
        return
    show.put_line(f"✓ {published.id} published, as a tick of {name} would be")


async def _run(url: str, name: str, by: str, reason: str) -> Published:
    async with existing(url) as app_:
        await _known(app_, name)
        return await app_.schedules.run_now(name, by=by, reason=reason)


@app.command("preview")
def preview(
    cron: Annotated[str | None, typer.Argument(metavar="[CRON]", help="Five fields: '0 3 * * *'.")] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="SPAN", help="A span instead: 10m.")] = None,
    offset: Annotated[str | None, typer.Option("--offset", metavar="SPAN", help="Shifts the ticks of --every.")] = None,
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="Whose wall clock counts.")] = "UTC",
    from_: Annotated[str | None, typer.Option("--from", metavar="INSTANT", help="Now without it; in UTC.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="How many.")] = 5,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the next ticks of a cron line or a span, by the zone's clock and in UTC. Needs no database."""
    try:
        cadence = Cadence.of(cron=cron, every=every, offset=offset, tz=tz)
    except ConfigurationError as error:
        raise BadInput(str(error)) from None
    zone = ZoneInfo(tz)
    ticks = [
        {"local": f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", "utc": iso(at)}
        for at in islice(cadence.after(_start(from_)), count)
    ]
    show.listing(ticks, output, lambda tick: tick, _ticks)


def _start(text: str | None) -> datetime:
    if text is None:
        return SystemClock().now()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"--from: {text!r} is not an instant like 2026-10-24T12:00") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _ticks(ticks: Sequence[dict[str, Any]]) -> RenderableType:
    return show.table(("LOCAL", "UTC"), [(tick["local"], tick["utc"]) for tick in ticks], wide="UTC")
