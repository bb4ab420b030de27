"""`redrive batches`: events that belong together, and what their notices said."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.console import Group as Drawn
from rich.console import RenderableType
from rich.text import Text

from redrive.batch import Batch, BatchGroup, BatchLook, BatchReport
from redrive.event import Status
from redrive.operate.cli import show
from redrive.operate.cli.outcome import NothingMatched, say
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
from redrive.operate.cli.text import clean, one_line, plural, when

app = typer.Typer(help="Events that belong together: list, show, close, force.", no_args_is_help=True)

BatchArgument = Annotated[
    str, typer.Argument(metavar="BATCH", help="The beginning of its id, or a name: the newest one of that name.")
]
Looks = list[BatchLook]


@app.command("ls")
def ls(
    ctx: typer.Context,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Those without a final notice only.")] = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Those of this name only.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="At most so many.")] = 20,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List batches, newest first: where each stands, and how many of its events have ended."""
    found, now = run(_list(url_from(ctx, url), name, unfinished=unfinished, limit=limit))
    if found or output is not Output.TABLE:
        show.listing(found, output, BatchLook.to_json, lambda shown: _table(shown, now))
    else:
        show.put_line("No batch.")


async def _list(url: str, name: str | None, *, unfinished: bool, limit: int) -> tuple[Looks, datetime]:
    async with existing(url) as app_:
        found = await app_.batches.ls(name=name, unfinished=unfinished, limit=limit)
        return [await each.look() for each in found], app_.clock.now()


def _table(found: Sequence[BatchLook], now: datetime) -> RenderableType:
    rows = [
        (
            str(each.batch.id),
            each.batch.state,
            f"{each.total - each.live:,}/{each.total:,}",
            f"{each.counts[Status.FAILED]:,}",
            when(each.batch.opened_at, now),
            one_line(each.batch.name, 200),
        )
        for each in found
    ]
    columns = ("ID", "STATE", "ENDED", "FAILED", "OPENED", "NAME")
    return show.table(columns, rows, wide="NAME", right="FAILED", spare=("OPENED",))


@app.command("show")
def show_one(
    ctx: typer.Context, batch: BatchArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one batch: its events by status, and what its notices said."""
    look, now = run(_look(url_from(ctx, url), batch))
    show.single(look, output, BatchLook.to_json, lambda shown: _drawn(shown, now))
    if output is Output.TABLE:
        show.hint(f"Its events: `redrive events ls batch:{look.batch.id}`.")


async def _look(url: str, batch: str) -> tuple[BatchLook, datetime]:
    async with existing(url) as app_:
        return await (await app_.batches.find(batch)).look(), app_.clock.now()


def _drawn(look: BatchLook, now: datetime) -> RenderableType:
    batch = look.batch
    counts = ", ".join(f"{look.counts[status]:,} {status}" for status in Status if look.counts[status]) or "none"
    lines = [
        ("batch", f"{batch.id}  {one_line(batch.name, 200)}"),
        ("state", _state(batch)),
        ("events", f"{look.total:,}: {counts}"),
        ("untried", f"{look.untried:,}"),
        ("recovered", f"{look.recovered:,} delivered after a failure"),
        ("opened", when(batch.opened_at, now)),
        ("closed", "no" if batch.closed_at is None else when(batch.closed_at, now) + _by(batch.closed_by)),
        ("deadline", "none" if batch.deadline_at is None else _deadline(batch, now)),
        ("first", _told(batch.first, now)),
        ("final", _told(batch.final, now)),
    ]
    drawn = [Text(f"{name:<10} {clean(text)}") for name, text in lines]
    final = batch.final or batch.first
    drawn += [
        Text(one_line(f"  {each.id}  {each.error_class}  {each.reason}", 500))
        for each in (final.failures[:10] if final else ())
    ]
    return Drawn(*drawn)


def _state(batch: Batch) -> str:
    meaning = {
        "open": "events can be added",
        "running": "closed; not every event has had an attempt",
        "tried": "every event has had an attempt; some go on",
        "done": "nothing can move any more",
        "forced": "the final notice did not wait for all of them",
    }
    return f"{batch.state} ({meaning[batch.state]})"


def _by(who: str | None) -> str:
    return f", by {who}" if who else ""


def _deadline(batch: Batch, now: datetime) -> str:
    assert batch.deadline_at is not None
    what = "what is left fails" if batch.leftovers == "fail" else "what is left goes on"
    return f"{when(batch.deadline_at, now)} ({what})"


def _told(report: BatchReport | None, now: datetime) -> str:
    if report is None:
        return "not sent"
    forced = f", forced with {plural(report.leftover, 'event')} left" if report.forced else ""
    return (
        f"{when(report.at, now)}{forced}: {report.delivered:,} of {report.total:,} delivered, "
        f"{report.recovered:,} of them after a failure; {report.failed:,} failed, {report.cancelled:,} cancelled"
    )


@app.command("groups")
def groups(
    ctx: typer.Context,
    batch: BatchArgument,
    after: Annotated[str | None, typer.Option("--after", metavar="NAME", help="Begin behind this group.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 100,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List the groups of a batch by name, and how each stands."""
    found = run(_groups(url_from(ctx, url), batch, after, limit))
    show.listing(found, output, lambda each: {**asdict(each), "state": each.state}, _groups_table)


async def _groups(url: str, batch: str, after: str | None, limit: int) -> list[BatchGroup]:
    async with existing(url) as app_:
        found = await (await app_.batches.find(batch)).groups(after=after, limit=limit)
        if not found:
            raise NothingMatched(f"batch {batch} has no groups{'' if after is None else ' behind that one'}")
        return found


def _groups_table(found: Sequence[BatchGroup]) -> RenderableType:
    rows = [
        (each.state, f"{each.total - each.live:,}/{each.total:,}", f"{each.failed:,}", one_line(each.name, 200))
        for each in found
    ]
    return show.table(("STATE", "ENDED", "FAILED", "GROUP"), rows, wide="GROUP", right="FAILED")


@app.command("close")
def close(
    ctx: typer.Context, batch: BatchArgument, reason: ReasonOption = None, by: ByOption = None, url: UrlOption = None
) -> None:
    """Let nothing more be added; the notices can come from now on."""
    closed = run(_act(url_from(ctx, url), "close", batch, actor(by), reason_from(reason, "close")))
    say(f"✓ batch {closed.id} ({closed.name}) is closed: {_state(closed)}")


@app.command("force")
def force(
    ctx: typer.Context, batch: BatchArgument, reason: ReasonOption = None, by: ByOption = None, url: UrlOption = None
) -> None:
    """Send the notices now, whatever is left; the events go on. Closes it first if it is open."""
    forced = run(_act(url_from(ctx, url), "force", batch, actor(by), reason_from(reason, "force")))
    left = forced.final.leftover if forced.final else 0
    say(f"✓ batch {forced.id} ({forced.name}) has sent its final notice, with {plural(left, 'event')} left")


async def _act(url: str, verb: Literal["close", "force"], batch: str, by: str, reason: str) -> Batch:
    async with existing(url) as app_:
        act = app_.batches.close if verb == "close" else app_.batches.force
        return await act((await app_.batches.find(batch)).id, by=by, reason=reason)
