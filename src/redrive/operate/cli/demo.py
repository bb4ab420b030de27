"""`redrive demo`: the shop window. Everything on one SQLite file, in one process, nothing faked."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from redrive.clock import SystemClock
from redrive.errors import ConfigurationError, MissingDriver, Refused
from redrive.operate.auth import Role, Tokens
from redrive.operate.cli import show
from redrive.operate.cli.outcome import Code, say
from redrive.operate.cli.serve import Door, bound, web_side
from redrive.operate.cli.shared import log_to_stderr, run
from redrive.operate.cli.signals import on_signals
from redrive.operate.demo.screen import draw, ending, further, sentences, verdict
from redrive.operate.demo.shop import World, shop
from redrive.operate.demo.stage import SECONDS, Line, Stage, Summary
from redrive.operate.demo.tour import PACE, YOU, Tour

_LEAST_WIDTH, _LEAST_HEIGHT = 80, 22


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=3.0, max=3_600.0, help="How long the whole takes.")
    ] = SECONDS,
    headless: Annotated[bool, typer.Option("--headless", help="No view; a JSON summary at the end.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A new SQLite file; without it: a temporary one.")
    ] = None,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="No console, and no tour: end after the show.")] = False,
) -> None:
    """See it work: retries, an outage that is waited out, dead letters, a redrive that halts and one that succeeds.

    On a terminal the console is served beside it, for this machine only, and afterwards it is your turn: a tour with an
    outage to see through. Ctrl-C ends it.
    """
    log_to_stderr("silent")
    stage_url = f"sqlite:///{_new_file(file)}"
    if headless:
        summary = run(Stage(stage_url, seconds).play())
        print(show.json_text(summary.to_json(), indent=2))
    else:
        summary = run(_show(stage_url, seconds, serve=not no_serve and sys.stdout.isatty()))
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


async def _show(url: str, seconds: float, *, serve: bool) -> Summary:
    async with _console(url) if serve else nullcontext() as console:
        link = "" if console is None else console.link
        summary = await (_live(url, seconds, link) if _can_draw() else _plain(url, seconds, link))
        if console is not None and summary.holds:
            await _your_turn(console)
    return summary


@dataclass(frozen=True, slots=True)
class _Console:
    """The console of the demo, and the tour through it."""

    tour: Any
    address: str

    @property
    def link(self) -> str:
        return self.address + str(self.tour.way_in)


@asynccontextmanager
async def _console(url: str) -> AsyncIterator[_Console | None]:
    """Serve the console, on loopback only, with a link that lets one browser in."""
    try:
        web = web_side()
    except MissingDriver as error:
        say(f"  Nothing is served: {error}")
        yield None
        return
    from redrive.operate.demo import way_in  # noqa: PLC0415 - what it needs is an extra

    async with shop(url, World(), release=3, pace=PACE) as app:
        _token, secret = await Tokens(app).create(YOU, Role.OPERATOR, by="redrive demo", expires="1d")
        tour = Tour(url, app, secret)
        site = web.redrive_asgi(app)
        way_in.lead(site, tour)
        serving, address = bound(web, site, Door())
        async with serving:
            yield _Console(tour, address)


async def _your_turn(console: _Console) -> None:
    stopped = asyncio.Event()
    for line in (
        "",
        "Now it is your turn: the shop goes on, the carrier is down, and invoices fail.",
        f"The console leads you through it: {console.link}",
        "Ctrl-C ends it.",
    ):
        show.put_line(line)
    with on_signals(lambda _count: stopped.set()):
        async with console.tour.going_on():
            await stopped.wait()
    say("✓ stopped")


async def _live(url: str, seconds: float, link: str) -> Summary:
    stage, clock, console = Stage(url, seconds), SystemClock(), show.console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:

        async def refresh() -> None:
            while True:
                live.update(draw(stage, console.width, console.height, link), refresh=True)
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


async def _plain(url: str, seconds: float, link: str) -> Summary:
    if link:
        show.put_line(f"The console is at {link}")

    def tell(line: Line) -> None:
        show.put_line(f"{line.at:5.1f} s  {line.text}")

    summary = await Stage(url, seconds, tell).play()
    show.put_line("")
    for sentence in sentences(summary):
        show.put_line(sentence)
    for line in (*verdict(summary), "", *further(summary)):
        show.put_line(line)
    return summary
