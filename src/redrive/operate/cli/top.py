"""`redrive top`: how it goes, live. Looks only; q or Ctrl-C leaves."""

import asyncio
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from redrive.app import Redrive
from redrive.clock import SystemClock
from redrive.errors import StoreUnavailable
from redrive.operate.cli import show
from redrive.operate.cli.shared import UrlOption, existing, run, url_from
from redrive.operate.cli.signals import on_signals
from redrive.operate.cli.text import clean, number, one_line, plural, span, when
from redrive.operate.pulse import CAP, Pulse, pulse

_REFRESH_SECONDS: Final = 1.0
_ROWS: Final = 8
_FEW_ROWS: Final = 3
_TALL: Final = 40
_TITLE: Final = 200
_LATER: Final = 1_000_000_000
_STATES: Final = {"closed": "green", "open": "red", "half_open": "yellow", "degraded": "yellow"}
_CAUSES: Final = {"new": "bold red", "regressed": "bold red", "ongoing": "yellow", "resolved": "green"}


def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    url: UrlOption = None,
) -> None:
    """Watch how it goes, live: workers, backlog, failures, dependencies, redrives. q leaves."""
    place = url_from(ctx, url)
    run(_once(place) if once or not sys.stdout.isatty() else _live(place))


async def _once(place: str) -> None:
    async with existing(place) as app:
        show.put(frame(await pulse(app), _ROWS))


async def _live(place: str) -> None:
    stop = asyncio.Event()
    screen = show.console()
    async with existing(place) as app:
        with (
            on_signals(lambda _count: stop.set()),
            _keys(stop),
            Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            await _watch(app, live, stop)


async def _watch(app: Redrive, live: Live, stop: asyncio.Event) -> None:
    clock, before = SystemClock(), None
    while not stop.is_set():
        began = clock.monotonic()
        rows = _ROWS if live.console.height >= _TALL else _FEW_ROWS
        try:
            before = await pulse(app, before)
            live.update(frame(before, rows), refresh=True)
        except StoreUnavailable as error:
            live.update(Text(f"The database does not answer, trying again: {clean(str(error))}", "red"), refresh=True)
        # A look takes half of the time at most.
        rest = max(_REFRESH_SECONDS, 2 * (clock.monotonic() - began)) - (clock.monotonic() - began)
        try:
            async with asyncio.timeout(rest):
                await stop.wait()
        except TimeoutError:
            continue


@contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Listen for q without waiting for the end of a line."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def pressed() -> None:
        if sys.stdin.read(1).lower() in ("q", ""):
            stop.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


# --- the picture ---


def frame(now: Pulse, rows: int) -> RenderableType:
    """Draw one look; sections with nothing in them are left out."""
    parts: list[RenderableType] = [_health(now), _figures(now)]
    for title, section in (
        ("WORKERS", _workers(now, rows)),
        ("BACKLOG", _backlog(now, rows)),
        ("COMING", _coming(now)),
        ("DEAD LETTERS", _groups(now, rows)),
        ("DEPENDENCIES", _dependencies(now, rows)),
        ("REDRIVES", _redrives(now, rows)),
    ):
        if section is not None:
            parts += [Text(), Text(title, style="bold dim"), section]
    return Group(*parts)


def _health(now: Pulse) -> Text:
    bad = bool(now.troubles)
    return Text.assemble(("✗ " if bad else "● ", "bold red" if bad else "bold green"), (clean(now.sentence), "bold"))


def _figures(now: Pulse) -> Text:
    line = Text()
    for count, noun, style in (
        (f"{now.delivered_rate:,.1f}/s", "delivered", "green"),
        ("" if now.dead_rate is None else f"{now.dead_rate:,.1f}/s", "dead-lettered", "red"),
        (number(now.pending), "waiting", "yellow"),
        (number(now.in_flight), "in flight", "cyan"),
        (number(now.blocked), "blocked", "magenta"),
        (f"{now.dead:,}", "dead letter" if now.dead == 1 else "dead letters", "red"),
    ):
        if count:
            idle = count in ("0", "0.0/s")
            line.append(count, style="dim" if idle else f"bold {style}")
            line.append(f" {noun}   ", style="dim" if idle else "")
    return line


def _workers(now: Pulse, rows: int) -> RenderableType:
    if not now.workers:
        return Text("none is running", style="dim")
    shown = [
        (clean(each.name), ", ".join(each.queues), str(each.concurrency), when(each.started_at or now.at, now.at))
        for each in now.workers[:rows]
    ]
    drawn = show.table(
        ("NAME", "QUEUES", "HANDS", "SINCE"), shown, wide="NAME", right="HANDS", spare=("SINCE", "QUEUES")
    )
    return _with_more(drawn, len(now.workers) - rows)


def _backlog(now: Pulse, rows: int) -> RenderableType | None:
    if not now.backlog:
        return None
    shown = [
        (clean(each.type), clean(each.queue), f"{each.due:,}", span(each.oldest_seconds)) for each in now.backlog[:rows]
    ]
    drawn = show.table(("TYPE", "QUEUE", "DUE", "OLDEST"), shown, wide="TYPE", right="DUE", spare=("QUEUE",))
    return _with_more(drawn, len(now.backlog) - rows)


def _coming(now: Pulse) -> RenderableType | None:
    if not now.coming:
        return None
    line = Text()
    for each in now.coming:
        within = "later" if each.within_seconds >= _LATER else f"in {span(each.within_seconds)}"
        retries = plural(each.retries, "retry").replace("retrys", "retries") if each.retries else ""
        others = f"{each.others:,} first" if each.others else ""
        line.append(f"{within}: ", style="dim")
        line.append(f"{', '.join(filter(None, (retries, others)))}   ")
    return line


def _groups(now: Pulse, rows: int) -> RenderableType | None:
    if not now.groups:
        return None
    shown = [
        (
            each.short,
            f"{each.dead_count:,}",
            Text(each.state, style=_CAUSES[each.state]),
            clean(each.target),
            when(each.last_seen_at, now.at),
            one_line(show.said(each.title), _TITLE),
        )
        for each in now.groups[:rows]
    ]
    columns = ("GROUP", "DEAD", "STATE", "TARGET", "LATEST", "WHY")
    caps = {"TARGET": 24}
    drawn = show.table(columns, shown, wide="WHY", right="DEAD", caps=caps, spare=("LATEST", "STATE", "TARGET"))
    return _with_more(drawn, len(now.groups) - rows)


def _dependencies(now: Pulse, rows: int) -> RenderableType | None:
    if not now.dependencies:
        return None
    shown = [
        (
            clean(each.of.name),
            Text(each.of.state.value.replace("_", " "), style=_STATES[each.of.state.value]),
            f"{each.waiting:,}" if each.waiting <= CAP // 10 else f"{CAP // 10:,}+",
            when(each.of.opened_at, now.at) if each.of.is_shut and each.of.opened_at else "",
            one_line(each.of.reason or "", _TITLE) if each.of.is_shut else "",
        )
        for each in now.dependencies[:rows]
    ]
    columns = ("NAME", "STATE", "WAITING", "SINCE", "WHY")
    drawn = show.table(columns, shown, wide="WHY", right="WAITING", caps={"NAME": 28}, spare=("SINCE",))
    return _with_more(drawn, len(now.dependencies) - rows)


def _redrives(now: Pulse, rows: int) -> RenderableType | None:
    if not now.redrives:
        return None
    ids = show.short_ids(now.redrives)
    shown = [
        (
            ids[each.id],
            Text(each.state, style="red" if each.state == "halted" else "cyan"),
            f"{each.ended:,}/{each.ready:,}",
            f"{each.failed:,}",
            one_line(each.sentence, _TITLE),
        )
        for each in now.redrives[:rows]
    ]
    columns = ("ID", "STATE", "ENDED", "FAILED", "WHAT")
    drawn = show.table(columns, shown, wide="WHAT", right="ENDED", spare=("FAILED",))
    return _with_more(drawn, len(now.redrives) - rows)


def _with_more(drawn: RenderableType, more: int) -> RenderableType:
    return drawn if more <= 0 else Group(drawn, Text(f"and {more:,} more", style="dim"))
