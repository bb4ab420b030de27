"""`redrive keys`: ordering keys that a dead letter holds up."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group as Drawn
from rich.console import RenderableType
from rich.text import Text

from redrive.instant import iso
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, NothingMatched, say
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
from redrive.ordering import HeldKey, InLine

app = typer.Typer(help="Ordering keys that a dead letter holds up: list, release, skip.", no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The ordering key.")]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="TARGET", help="Of this target; needed when several have the key."),
]


@app.command("ls")
def ls(
    ctx: typer.Context,
    target: TargetOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 100,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List the keys that are held up, the oldest first: by which dead letter, since when, how many wait."""
    found, now = run(_list(url_from(ctx, url), target, limit))
    if found or output is not Output.TABLE:
        show.listing(found, output, _plain, lambda shown: _table(shown, now))
    else:
        show.put_line("No key is held up.")
    if output is Output.TABLE and found:
        more = f"The oldest {limit:,} are shown; --limit shows more. " if len(found) == limit else ""
        show.hint(f"{more}Mended? `redrive replay HEAD`. Else `redrive keys release KEY` or `redrive keys skip KEY`.")


async def _list(url: str, target: str | None, limit: int) -> tuple[list[HeldKey], datetime]:
    async with existing(url) as app_:
        return await app_.held_keys(target=target, limit=limit), app_.clock.now()


def _table(found: Sequence[HeldKey], now: datetime) -> RenderableType:
    rows = [
        (
            one_line(each.ordering_key, 60),
            one_line(each.target, 60),
            str(each.head),
            when(each.since, now),
            number(each.waiting),
            one_line(show.said(each.last_error or ""), 200),
        )
        for each in found
    ]
    columns = ("KEY", "TARGET", "HEAD", "SINCE", "WAIT", "WHY")
    return show.table(
        columns, rows, wide="WHY", caps={"KEY": 24, "TARGET": 20}, right="WAIT", spare=("TARGET", "SINCE")
    )


@app.command("show")
def show_one(
    ctx: typer.Context,
    key: KeyArgument,
    target: TargetOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Show the events of a key that have not ended, in the order in which they will go."""
    found, now = run(_line(url_from(ctx, url), key, target))
    show.listing(found, output, _plain, lambda shown: _line_table(shown, now))


async def _line(url: str, key: str, target: str | None) -> tuple[list[InLine], datetime]:
    async with existing(url) as app_:
        if target is None:
            held = await app_.held_keys(ordering_key=key, limit=2)
            if len(held) != 1:
                what = "is held up in several targets" if held else "is not held up by a dead letter"
                raise BadInput(f"key {key!r} {what}: say whose line you mean, with --target")
            target = held[0].target
        found = await app_.line(target, key)
        if not found:
            raise NothingMatched(f"no event of {target} with key {key!r} is under way or waits")
        return found, app_.clock.now()


def _line_table(found: Sequence[InLine], now: datetime) -> RenderableType:
    rows = [
        (str(each.id), _standing(each), one_line(each.type, 60), when(each.created_at, now), when(each.due_at, now))
        for each in found
    ]
    drawn = show.table(("ID", "STATUS", "TYPE", "PUBLISHED", "DUE"), rows, wide="TYPE", spare=("PUBLISHED",))
    return Drawn(Text(f"{clean(found[0].target)}, first things first", style="dim"), drawn)


def _standing(each: InLine) -> str:
    return one_line(f"{each.status} on {each.blocked_on}" if each.blocked_on else each.status, 60)


@app.command("release")
def release(
    ctx: typer.Context,
    key: KeyArgument,
    reason: ReasonOption = None,
    target: TargetOption = None,
    by: ByOption = None,
    url: UrlOption = None,
) -> None:
    """Let the events behind the dead letter go; it stays a dead letter and can be replayed."""
    held = run(_act(url_from(ctx, url), "release", key, target, actor(by), reason_from(reason, "release")))
    say(f"✓ {plural(held.waiting, 'event')} behind {held.head} may go; it stays a dead letter")


@app.command("skip")
def skip(
    ctx: typer.Context,
    key: KeyArgument,
    reason: ReasonOption = None,
    target: TargetOption = None,
    by: ByOption = None,
    url: UrlOption = None,
) -> None:
    """Discard the dead letter that holds up the key and go on with the next; it can be restored."""
    held = run(_act(url_from(ctx, url), "skip", key, target, actor(by), reason_from(reason, "skip")))
    say(f"✓ {held.head} discarded, {plural(held.waiting, 'event')} behind it may go")


async def _act(url: str, verb: str, key: str, target: str | None, by: str, reason: str) -> HeldKey:
    async with existing(url) as app_:
        act = app_.release_key if verb == "release" else app_.skip_key
        return await act(key, target=target, by=by, reason=reason)


def _plain(each: HeldKey | InLine) -> dict[str, Any]:
    values = asdict(each)
    return {name: iso(value) if isinstance(value, datetime) else _text(value) for name, value in values.items()}


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str) else str(value)
