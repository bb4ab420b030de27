"""`redrive demo`: the shop window. Everything on one SQLite file, in one process, nothing faked."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from redrive.clock import SystemClock
from redrive.errors import ConfigurationError, Refused
from redrive.operate.cli import show
from redrive.operate.cli.outcome import Code
from redrive.operate.cli.shared import log_to_stderr, run
from redrive.operate.demo.screen import draw, ending, further, sentences, verdict
from redrive.operate.demo.stage import SECONDS, Line, Stage, Summary

_LEAST_WIDTH, _LEAST_HEIGHT = 80, 22


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=3.0, max=3_600.0, help="How long the whole takes.")
    ] = SECONDS,
    headless: Annotated[bool, typer.Option("--headless", help="No view; a JSON summary at the end.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A new SQLite file; without it: a temporary one.")
    ] = None,
) -> None:
    """See it work: retries, an outage that is waited out, dead letters, a redrive that halts and one that succeeds."""
    log_to_stderr("silent")
    stage_url = f"sqlite:///{_new_file(file)}"
    if headless:
        summary = run(Stage(stage_url, seconds).play())
        print(show.json_text(summary.to_json(), indent=2))
    else:
        summary = run(_live(stage_url, seconds) if _can_draw() else _plain(stage_url, seconds))
    if not summary.holds:
        raise typer.Exit(Code.ERROR)


def _new_file(file: Path | None) -> Path:
    if file is None:
        return Path(tempfile.mkdtemp(prefix="redrive-demo-")) / "shop.db"
    if file.exists():
        raise Refused(f"{file} exists: the demo needs a file of its own, name a new one")
    if not file.parent.is_dir():
        raise ConfigurationError(f"the folder {file.parent} does not exist: create it, or name another file")
    return file.resolve()


def _can_draw() -> bool:
    console = show.console()
    wide_enough = console.width >= _LEAST_WIDTH and console.height >= _LEAST_HEIGHT
    return sys.stdout.isatty() and not console.is_dumb_terminal and wide_enough


async def _live(url: str, seconds: float) -> Summary:
    stage, clock, console = Stage(url, seconds), SystemClock(), show.console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:

        async def refresh() -> None:
            while True:
                live.update(draw(stage, console.width, console.height), refresh=True)
                await clock.sleep(0.1)

        refreshing = asyncio.create_task(refresh())
        try:
            summary = await stage.play()
        finally:
            refreshing.cancel()
    show.put(ending(summary))
    for line in further(summary):
        show.put_line(line)
    return summary


async def _plain(url: str, seconds: float) -> Summary:
    def tell(line: Line) -> None:
        show.put_line(f"{line.at:5.1f} s  {line.text}")

    summary = await Stage(url, seconds, tell).play()
    show.put_line("")
    for sentence in sentences(summary):
        show.put_line(sentence)
    for line in (*verdict(summary), "", *further(summary)):
        show.put_line(line)
    return summary
