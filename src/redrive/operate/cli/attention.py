"""`redrive attention`: what waits for a person, and the command that comes next."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from redrive.attention import SOURCES, Matter, Urgency
from redrive.operate.cli import show
from redrive.operate.cli.outcome import Code
from redrive.operate.cli.shared import Output, OutputOption, UrlOption, existing, run, url_from
from redrive.operate.cli.text import clean, span

Kind = StrEnum("Kind", {kind.replace("-", "_").upper(): kind for kind in SOURCES})  # type: ignore[misc]

_STYLES: Final = {Urgency.NOW: ("■", "bold red"), Urgency.SOON: ("●", "yellow"), Urgency.KNOW: ("○", "dim")}
_LINE: Final = 100  # a longer line is hard to read


def attention(
    ctx: typer.Context,
    kind: Annotated[list[Kind] | None, typer.Option("--kind", "-k", help="Only this kind; may be repeated.")] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 5 when somebody must act; for scripts.")
    ] = False,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List what will not move by itself: why, since when, and which command comes next.

    ■ work stands still, ● it stays as it is until somebody decides, ○ good to know. Ends with 0 whatever it finds; with
    --exit-code it ends with 5 when there is something to do, more than to know.
    """
    found, now = run(_found(url_from(ctx, url), [str(each) for each in kind or ()]))
    if found or output is not Output.TABLE:
        show.listing(found, output, Matter.to_json, lambda shown: _drawn(shown, now))
    else:
        show.put_line("Nothing waits for a person.")
    if exit_code and any(each.urgency is not Urgency.KNOW for each in found):
        raise typer.Exit(Code.HALTED)


async def _found(url: str, kinds: Sequence[str]) -> tuple[list[Matter], datetime]:
    async with existing(url) as app:
        return await app.attention(kinds=kinds), app.clock.now()


def _drawn(found: Sequence[Matter], now: datetime) -> RenderableType:
    return Group(*(part for each in found for part in _parts(each, now)))


def _parts(each: Matter, now: datetime) -> Iterator[RenderableType]:
    mark, style = _STYLES[each.urgency]
    yield Text.assemble((mark, style), " ", (each.kind, "bold"), f"  {clean(each.what)}", (_age(each, now), "dim"))
    yield Constrain(Padding(Text(clean(each.sentence)), (0, 0, 0, 2)), _LINE)
    commands = {each.look: "look", each.act: "then"}  # the same command is said once
    for command, name in commands.items():  # not wrapped: they are there to be copied
        line = Text.assemble((f"  {name}  ", "dim"), clean(command))
        line.no_wrap, line.overflow = True, "ignore"
        yield line


def _age(each: Matter, now: datetime) -> str:
    return "" if each.since is None else f"  for {span((now - each.since).total_seconds())}"
