"""`redrive deps`: what events wait for; `redrive pause` and `redrive resume`: holds."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from redrive.dependency import Dependency, Kind, State
from redrive.operate import views
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
from redrive.operate.cli.text import clean, clock_time, day, number, one_line, when
from redrive.operate.views import Standing

app = typer.Typer(help="What events wait for: dependencies, brakes, holds.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `redrive deps ls` shows it.")]
TypeArgument = Annotated[str | None, typer.Argument(metavar="[TYPE]", help="order.paid, or order.* for all of them.")]
QueueOption = Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="A queue instead of a type.")]

_COLOURS: Final = {
    State.CLOSED: "green",
    State.OPEN: "bold red",
    State.HALF_OPEN: "yellow",
    State.DEGRADED: "yellow",
}


@app.command("ls")
def ls(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also brakes and holds that are over.")] = False,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List dependencies, brakes and holds: which are shut, since when, how many events wait."""
    found = [each for each in run(_all(url_from(ctx, url))) if all_ or _matters(each)]
    if found or output is not Output.TABLE:
        show.listing(found, output, lambda each: each.to_json(), _table)
    else:
        show.put_line("None is known yet: a worker makes known what its handlers need.")


def _matters(each: Standing) -> bool:
    return each.of.kind is Kind.DEPENDENCY or each.of.is_shut or each.waiting > 0


async def _all(url: str) -> list[Standing]:
    async with existing(url) as app_:
        return await views.dependencies(app_)


def _table(found: Sequence[Standing]) -> RenderableType:
    rows = [
        (
            clean(each.of.name),
            state_text(each.of),
            number(each.waiting) if each.waiting else "",
            _since(each.of),
            next_look(each.of),
            one_line(each.of.reason or "", 200) if each.of.is_shut else "",
        )
        for each in found
    ]
    columns = ("NAME", "STATE", "WAITING", "SINCE", "NEXT LOOK", "WHY")
    return show.table(columns, rows, wide="WHY", caps={"NAME": 30}, right="WAITING", spare=("SINCE",))


def state_text(this: Dependency) -> Text:
    """Colour a state."""
    drawn = Text(this.state.value.replace("_", " "), style=_COLOURS[this.state])
    if this.kind is Kind.HOLD:
        return Text("paused" if this.is_shut else "running", style=_COLOURS[this.state])
    if this.by_hand:
        drawn.append(", by hand", style="dim")
    return drawn


def _since(this: Dependency) -> str:
    at = this.opened_at if this.is_shut else this.closed_at
    return "" if at is None else when(at, this.now)


def next_look(this: Dependency) -> str:
    """Say when it is tried next, or that those who wait come back."""
    if not this.is_shut:
        return "coming back" if this.is_waited_for else ""
    if this.by_hand or this.kind is Kind.HOLD:
        return "by hand"
    if this.probe_until is not None:
        return "now"
    return "" if this.probe_at is None else when(max(this.probe_at, this.now), this.now)


@app.command("show")
def show_one(
    ctx: typer.Context, name: NameArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one: its state, who shut it and why, who waits, when it is looked at next."""
    found = [each for each in run(_all(url_from(ctx, url))) if each.of.name == name]
    if not found:
        raise NothingMatched(f"no dependency is called {name!r}: `redrive deps ls` lists them")
    show.single(found[0], output, lambda each: each.to_json(), _sheet)


def _sheet(each: Standing) -> RenderableType:
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in _facts(each):
        if value:
            drawn.add_row(name, value if isinstance(value, Text) else Text(clean(value)))
    return drawn


def _facts(each: Standing) -> Iterable[tuple[str, str | Text | None]]:
    this = each.of
    yield "name", this.name
    yield "kind", this.kind.value
    yield "state", state_text(this)
    yield "waiting", number(each.waiting)
    if this.is_shut:
        yield "since", _instant(this.opened_at, this.now)
        yield "by", this.opened_by
        yield "why", this.reason
        yield "next look", next_look(this)
    elif this.closed_at is not None:
        yield "closed", _instant(this.closed_at, this.now)
    if not this.is_shut and this.failed_count:
        yield "failures in a row" if this.kind is Kind.DEPENDENCY else "failed lately", f"{this.failed_count:,}"


def _instant(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{day(at)} {clock_time(at)} UTC ({when(at, now)})"


@app.command("open")
def open_(
    ctx: typer.Context,
    name: NameArgument,
    reason: ReasonOption = None,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="It works in a reduced mode: handlers that can proceed so run.")
    ] = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Open a circuit by hand: events that need it wait until you close it."""
    why, who = reason_from(reason, "open"), actor(by)
    _tell(run(_open(url_from(ctx, url), name, who, why, degraded=degraded)), output, "opened")


async def _open(url: str, name: str, by: str, reason: str, *, degraded: bool) -> Standing:
    async with existing(url) as app_:
        await app_.open_dependency(name, by=by, reason=reason, degraded=degraded)
        return await views.dependency(app_, name)


@app.command("close")
def close(
    ctx: typer.Context,
    name: NameArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Close a circuit or a brake: those who wait come back, oldest first, at a growing rate."""
    why, who = reason_from(reason, "close"), actor(by)
    _tell(run(_close(url_from(ctx, url), name, who, why)), output, "closed")


async def _close(url: str, name: str, by: str, reason: str) -> Standing:
    async with existing(url) as app_:
        await app_.close_dependency(name, by=by, reason=reason)
        return await views.dependency(app_, name)


def pause(
    ctx: typer.Context,
    type_: TypeArgument = None,
    queue: QueueOption = None,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Pause a type or a queue; workers take notice within a second."""
    why, who = reason_from(reason, "pause"), actor(by)
    _tell(run(_pause(url_from(ctx, url), type_, queue, who, why)), output, "paused")


async def _pause(url: str, type_: str | None, queue: str | None, by: str, reason: str) -> Standing:
    async with existing(url) as app_:
        placed = await app_.hold(type_, queue=queue, by=by, reason=reason)
        return await views.dependency(app_, placed.name)


def resume(
    ctx: typer.Context,
    type_: TypeArgument = None,
    queue: QueueOption = None,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Let a paused type or queue go on; those who waited come back at a growing rate."""
    why, who = reason_from(reason, "resume"), actor(by)
    _tell(run(_resume(url_from(ctx, url), type_, queue, who, why)), output, "resumed")


async def _resume(url: str, type_: str | None, queue: str | None, by: str, reason: str) -> Standing:
    async with existing(url) as app_:
        lifted = await app_.lift(type_, queue=queue, by=by, reason=reason)
        return await views.dependency(app_, lifted.name)


def _tell(standing: Standing, output: Output, done: str) -> None:
    if output is not Output.TABLE:
        show.single(standing, output, lambda each: each.to_json(), lambda _: "")
        return
    waiting = standing.waiting
    who = f"; {number(waiting)} {'event waits' if waiting == 1 else 'events wait'}" if waiting else ""
    show.put_line(f"✓ {standing.of.name} {done}{who}")
