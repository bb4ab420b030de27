"""Following a redrive: a live picture on a terminal, a line every few seconds elsewhere.

Whoever watches is not needed: the workers carry the redrive on. Ctrl-C ends the watching only.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redrive.errors import StoreUnavailable
from redrive.operate import views
from redrive.operate.cli import show
from redrive.operate.cli.outcome import INTERRUPTED, Code, say
from redrive.operate.cli.shared import Output, existing, run
from redrive.operate.cli.text import clean, one_line, plural, span
from redrive.redrive import Redriving

_LOOK_EVERY: Final = 0.4
_LINE_EVERY: Final = 3.0
_WORKERS_EVERY: Final = 10.0
_PATIENCE: Final = 60  # looks in a row at a database that does not answer
_RATE_OVER: Final = 10.0  # seconds over which the speed is measured
_TRANSIENT: Final = ("running", "paused")


def follow_to_the_end(url: str, standing: Redriving, output: Output) -> None:
    """Watch until it is done, halted or aborted; leave with the code for how it went."""
    try:
        last = run(_follow(url, standing))
    except KeyboardInterrupt:
        _detached(standing)
        raise typer.Exit(INTERRUPTED) from None
    if output is Output.TABLE:
        show.put_line(ending(last))
    else:
        show.plain(views.redriving_json(last), output)
    if code := code_of(last):
        raise typer.Exit(code)


def _detached(standing: Redriving) -> None:
    say(
        f"\nNot watching any more; redrive {standing.id} goes on without you.\n"
        f"  redrive redrives watch {standing.id}\n"
        f'  redrive redrives pause {standing.id} --reason "…"\n'
        f'  redrive redrives abort {standing.id} --reason "…"'
    )


def no_worker() -> str:
    """Say that nobody works."""
    return "No worker is running: the redrive waits until one does (`redrive worker APP`)."


async def _follow(url: str, standing: Redriving) -> Redriving:
    speed = Speed()
    async with existing(url) as app:
        clock = app.clock
        began = looked_for_workers = clock.monotonic()
        alone, failures = not await views.live_workers(app), 0
        with _picture() as show_moment:
            while True:
                try:
                    standing = await app.redriving(standing.id)
                    failures = 0
                    if clock.monotonic() - looked_for_workers > _WORKERS_EVERY:
                        looked_for_workers = clock.monotonic()
                        alone = not await views.live_workers(app)
                except StoreUnavailable:
                    failures += 1
                    if failures > _PATIENCE:
                        raise
                speed.note(clock.monotonic(), standing.ended)
                show_moment(Moment(standing, speed.now, alone=alone), clock.monotonic() - began)
                if standing.state not in _TRANSIENT:
                    return standing
                await clock.sleep(_LOOK_EVERY)


class Speed:
    """How many members end in a second, lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, at: float, ended: int) -> None:
        self._seen.append((at, ended))
        while len(self._seen) > 2 and at - self._seen[1][0] >= _RATE_OVER:  # noqa: PLR2004 - two make a difference
            self._seen.popleft()

    @property
    def now(self) -> float:
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else 0.0


class Moment:
    """A redrive at one moment, in words and as a picture."""

    def __init__(self, standing: Redriving, speed: float, *, alone: bool = False) -> None:
        self.standing = standing
        self.speed = speed
        self.alone = alone

    @property
    def state(self) -> str:
        """Say how it stands, and who stopped it."""
        each = self.standing
        if each.state in ("paused", "halted", "aborted"):
            return f"{each.state} by {each.stopped_by}: {one_line(each.stop_reason or 'no reason given', 200)}"
        if each.state == "running" and self.alone:
            return "running, but no worker is"
        return each.state

    @property
    def stage(self) -> str:
        """Say where the ramp stands."""
        each = self.standing
        if not each.ramp:
            return ""
        if each.stage >= len(each.ramp):
            return f"ramp: all {plural(len(each.ramp), 'stage')} passed, the rest goes"
        return f"ramp: stage {each.stage + 1} of {len(each.ramp)} ({plural(each.ramp[each.stage], 'event')})"

    @property
    def left(self) -> str:
        """Say how long it will take from here."""
        remaining = self.standing.ready - self.standing.ended
        speed = self.speed if self.standing.rate is None else min(self.speed, self.standing.rate)
        if self.standing.state != "running" or remaining <= 0 or speed <= 0:
            return ""
        return f"{span(remaining / speed)} left"

    @property
    def line(self) -> str:
        """Say everything in one line."""
        each = self.standing
        told = [
            f"{each.ended:,} of {each.ready:,} ended",
            f"{each.released:,} released",
            f"{each.delivered:,} delivered",
            f"{each.failed_same:,} failed the same",
            f"{each.failed_other:,} failed otherwise",
            f"{each.skipped:,} skipped",
            self.stage,
            f"{self.speed:.1f}/s" if self.speed else "",
            self.left,
            "" if self.state == "running" else self.state,
        ]
        return clean(" · ".join(filter(None, told)))

    def picture(self) -> RenderableType:
        """Draw it."""
        each = self.standing
        head = Text.assemble((f"{each.id}  ", "dim"), (self.state, "yellow" if self.state != "running" else "cyan"))
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_row(
            ProgressBar(total=max(1, each.ready), completed=each.ended, width=min(40, show.console().width - 30)),
            Text(f"{each.ended:,}/{each.ready:,}", style="bold"),
            Text(" · ".join(filter(None, (f"{self.speed:.1f}/s", self.left))), style="dim"),
        )
        counts = Text()
        for count, noun, style in (
            (each.released, "released", ""),
            (each.delivered, "delivered", "green"),
            (each.failed_same, "failed the same", "red"),
            (each.failed_other, "failed otherwise", "red"),
            (each.skipped, "skipped", "yellow"),
        ):
            counts.append(f"{count:,}", style=f"bold {style}" if count else "dim")
            counts.append(f" {noun}   ", style="" if count else "dim")
        return Group(head, bar, counts, *([Text(self.stage, style="dim")] if self.stage else []))


@contextmanager
def _picture() -> Iterator[Callable[[Moment, float], None]]:
    """Give something that shows a moment: live on a terminal, else as lines that are not repeated."""
    if sys.stderr.isatty():
        with Live(console=show.console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda moment, _at: live.update(moment.picture(), refresh=True)
        return
    lines = _Lines()
    yield lines.show


class _Lines:
    def __init__(self) -> None:
        self._said: tuple[str, int, str] | None = None
        self._at = 0.0

    def show(self, moment: Moment, at: float) -> None:
        standing = moment.standing
        says = (moment.state, standing.ended, moment.stage)
        changed = self._said is None or moment.state != self._said[0]
        if changed or (says != self._said and at - self._at >= _LINE_EVERY):
            self._said, self._at = says, at
            say(moment.line)


# --- how it ended ---


def code_of(standing: Redriving) -> Code:
    """Choose the exit code: done only when every member that was ready has been delivered."""
    if standing.state in ("halted", "aborted"):
        return Code.HALTED
    return Code.ERROR if standing.failed or standing.skipped else Code.DONE


def ending(standing: Redriving) -> str:
    """Say how it ended, and what to do now."""
    lines = [outcome(standing)]
    if standing.state == "halted":
        lines += [
            f"  Halted by {standing.stopped_by}: {one_line(standing.stop_reason or '', 300)}.",
            f"  {_untouched(standing)} Look at what failed, mend it, then go on or give up:",
            f"    redrive redrives report {standing.id}",
            f"    redrive redrives resume {standing.id}",
            f'    redrive redrives abort {standing.id} --reason "…"',
        ]
    elif standing.state == "aborted":
        because = one_line(standing.stop_reason or "no reason given", 300)
        lines += [f"  Aborted by {standing.stopped_by}: {because}. {_untouched(standing)}"]
    elif standing.failed or standing.skipped:
        lines.append(f"  Not all came through: `redrive redrives report {standing.id}` says which and why.")
    return "\n".join(lines)


def outcome(standing: Redriving) -> str:
    """Say in one line how it ended."""
    mark = "✓" if code_of(standing) is Code.DONE else "■" if standing.state in ("halted", "aborted") else "✗"
    bad = [
        (standing.failed_same, "failed the same way"),
        (standing.failed_other, "failed in another way"),
        (standing.skipped, "skipped"),
        (standing.outstanding, "still under way"),
    ]
    told = "".join(f", {count:,} {what}" for count, what in bad if count)
    took = ""
    if standing.started_at is not None and standing.ended_at is not None:
        took = f" in {span((standing.ended_at - standing.started_at).total_seconds())}"
    return f"{mark} {standing.state}: {standing.delivered:,} of {plural(standing.ready, 'event')} delivered{took}{told}"


def _untouched(standing: Redriving) -> str:
    left = standing.untouched
    if left == 0:
        return "All of them had been released."
    return f"The other {left:,} were not touched." if left > 1 else "The one that was left was not touched."
