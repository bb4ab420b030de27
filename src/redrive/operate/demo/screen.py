"""The screen: the demo as one sees it, in a terminal of 80 by 24 or larger."""

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redrive.event import Status
from redrive.operate.cli.deps import next_look, state_text
from redrive.operate.cli.follow import Moment
from redrive.operate.cli.show import said
from redrive.operate.cli.text import one_line
from redrive.operate.demo.shop import BANK, CARRIER
from redrive.operate.demo.stage import Line, Stage, Summary
from redrive.operate.views import Standing
from redrive.redrive import Redriving

_WIDE: Final = 110
_CIRCUIT_LINES: Final = 4


def draw(stage: Stage, width: int, height: int, link: str = "") -> RenderableType:
    """Draw one moment; ``link``: where the console is."""
    layout = Layout()
    side = 46 if width >= _WIDE else 33
    body = height - 6
    layout.split_column(Layout(_head(stage, width), size=2), Layout(_counts(stage, link), size=4), Layout(name="body"))
    layout["body"].split_row(Layout(_feed(stage, width - side, body), name="feed"), Layout(name="side", size=side))
    dead = min(max(5, body // 3), body - 5)
    circuit = [Layout(_circuit(each, side), size=_CIRCUIT_LINES) for each in _shut(stage)]
    redrive = None if stage.look.retries else stage.look.redrive
    room = body - dead - _CIRCUIT_LINES * len(circuit)
    above = _retries(stage, side, room) if redrive is None else _redrive(redrive, side)
    layout["side"].split_column(*circuit, Layout(above), Layout(_dead(stage, side, dead), size=dead))
    return layout


def _head(stage: Stage, width: int) -> RenderableType:
    done = min(1.0, stage.elapsed / stage.seconds)
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    ailing = stage.world.ailing
    bank = Text.assemble("bank ", ("● slow", "bold yellow") if BANK in ailing else ("● answers", "green"))
    carrier = Text.assemble("  carrier ", ("● down", "bold red") if CARRIER in ailing else ("● answers", "green"))
    head.add_row(Text.assemble((" redrive", "bold"), "  a web shop on one SQLite file"), bank + carrier)
    bar = ProgressBar(total=1.0, completed=done, width=width - 2, complete_style="cyan", finished_style="cyan")
    return Group(head, Text.assemble(" ") if width < 10 else bar)  # noqa: PLR2004 - no bar fits there


def _counts(stage: Stage, link: str) -> RenderableType:
    look = stage.look
    cells: list[tuple[int, str, str]] = [
        (look.of(), "published", "bold"),
        (look.of(Status.DELIVERED), "delivered", "bold green"),
        (look.of(Status.IN_FLIGHT) + look.of(Status.PENDING) - len(look.retries), "under way", "bold cyan"),
        (len(look.retries), "retry later", "bold yellow"),
        (look.of(Status.BLOCKED), "blocked", "bold magenta"),
        (len(look.dead), "dead letters", "bold red"),
        (look.effects, "effects once", "bold") if look.effects == look.keys else (look.effects, "TWICE", "bold red"),
    ]
    grid = Table.grid(expand=True)
    for _ in cells:
        grid.add_column(justify="center", no_wrap=True)
    grid.add_row(*(Text(str(count), style=style if count else "dim") for count, _, style in cells))
    grid.add_row(*(Text(noun, style="dim") for _, noun, _ in cells))
    told = Text.assemble("console: ", (link, "bold cyan")) if link else None
    return Panel(grid, border_style="dim", padding=(0, 0), subtitle=told, subtitle_align="left")


def _feed(stage: Stage, width: int, height: int) -> RenderableType:
    room = max(1, height - 2)
    lines = list(stage.feed)[-room:]
    return Panel(_fitting(lines, width - 4), title="what happens", title_align="left", border_style="dim")


def _fitting(lines: Iterable[Line], width: int) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in lines:
        text.append(f"{line.at:4.1f} ", style="dim")
        text.append(one_line(line.text, max(10, width - 5)) + "\n", style=line.style)
    return text


def _retries(stage: Stage, width: int, height: int) -> RenderableType:
    look = stage.look
    text = Text(no_wrap=True, overflow="ellipsis")
    now = stage.now()
    for event in look.retries[: max(1, height - 2)]:
        wait = max(0.0, (event.due_at - now).total_seconds())
        text.append(f"{wait:4.1f} s ", style="yellow")
        text.append(f"{stage.name(event)}, try {event.attempts + 1}\n")
    if not look.retries:
        text.append("none waits", style="dim")
    title = f"next retries ({len(look.retries)})" if look.retries else "next retries"
    return Panel(text, title=title, title_align="left", border_style="yellow" if look.retries else "dim", width=width)


def _shut(stage: Stage) -> list[Standing]:
    """Find the circuit, while it is open or somebody still waits for it."""
    circuit = stage.look.circuit
    return [circuit] if circuit is not None and (circuit.of.is_shut or circuit.waiting) else []


def _circuit(standing: Standing, width: int) -> RenderableType:
    state = state_text(standing.of)
    text = Text(f"{standing.waiting} wait, no attempt spent\n", no_wrap=True, overflow="ellipsis")
    look = next_look(standing.of)
    text.append(f"next probe {look}" if standing.of.is_shut else f"{look}, ever faster", style="dim")
    title = Text.assemble(f"{standing.of.name}: ", state)
    return Panel(text, title=title, title_align="left", border_style=state.style, width=width)


def _redrive(standing: Redriving, width: int) -> RenderableType:
    """Draw how far a redrive has come; it takes the place of the retries when none waits."""
    style = {"done": "green", "halted": "red", "aborted": "magenta"}.get(standing.state, "cyan")
    lines = [
        f"{standing.delivered} of {standing.ready} delivered",
        f"{standing.failed} failed again" if standing.failed else "",
        "" if standing.is_over else Moment(standing, 0.0).stage,
        standing.stop_reason or standing.reason or "",
    ]
    text = Text("\n".join(filter(None, lines)), style="dim")
    text.stylize(style, 0, len(lines[0]))
    bar = ProgressBar(total=max(1, standing.ready), completed=standing.ended, width=width - 4)
    title = f"redrive: {standing.state}"
    return Panel(Group(text, bar), title=title, title_align="left", border_style=style, width=width)


def _dead(stage: Stage, width: int, height: int) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    dead = stage.look.dead
    for event in dead[: max(1, (height - 2) // 2)]:
        text.append(f"{stage.name(event)}: {event.error_class}\n", style="red")
        reason = said(event.last_error or "").partition(": ")[2]
        text.append(f"  {one_line(reason, width - 7)}\n", style="dim")
    if not dead:
        text.append("none", style="dim")
    title = f"dead letters ({len(dead)})" if dead else "dead letters"
    return Panel(text, title=title, title_align="left", border_style="red" if dead else "dim", width=width)


# --- the end ---


def sentences(summary: Summary) -> list[str]:
    """Say in words what was seen."""
    published = (
        f"{summary.published} events were published with {summary.orders} orders, each in its order's transaction; "
        f"{summary.orders_rolled_back} orders were rolled back and left no event."
    )
    retried = (
        f"While the bank was slow {summary.retries} attempts failed and were put off; {summary.recovered_by_retry} "
        f"events were delivered by a later one, after up to {summary.most_attempts}."
    )
    waited = (
        f"While the carrier was down its circuit was open: {summary.waited} events waited, came back ever faster, and "
        "spent one attempt each."
    )
    redriven = (
        f"Release 1 could not read some amounts: dead letters with one cause. {_redrives(summary)} "
        f"{summary.recovered_by_replay} were brought through. Still in quarantine: {summary.dead_letters}."
    )
    once = (
        f"{summary.duplicates} events came twice on purpose, and yet there are {summary.effects} effects "
        f"for {summary.distinct_keys} keys."
    )
    whole = (
        f"{summary.published} published = {summary.delivered} delivered + {summary.dead_letters} in quarantine "
        f"+ {summary.pending} pending; the trail has {summary.trail_entries} entries."
    )
    return [published, retried, waited, redriven, once, whole]


def _redrives(summary: Summary) -> str:
    if not summary.redrives_halted:
        return "A redrive sent them round again, up a ramp."
    return (
        f"Release 2 mended half of it: its redrive went up a ramp, halted by itself, left {summary.spared} untouched; "
        "after release 3 the next one went through."
    )


def verdict(summary: Summary) -> list[str]:
    """Say whether everything holds that must hold; what does not is named."""
    broken = [name for name, holds in summary.invariants.items() if not holds]
    if broken:
        return [f"✗ does not hold: {name}" for name in broken]
    return [f"✓ {len(summary.invariants)} checks hold: nothing lost, nothing twice, the trail unbroken."]


def ending(summary: Summary) -> RenderableType:
    """Draw the summing up."""
    told = Table.grid(padding=(0, 1, 0, 0))
    told.add_column(no_wrap=True)
    told.add_column(overflow="fold")
    for sentence in sentences(summary):
        told.add_row(Text("•", style="cyan"), sentence)
    style = "green" if summary.holds else "red"
    title = "what you have seen" if summary.holds else "something does not add up"
    lines = [Text(line, style=style) for line in verdict(summary)]
    return Panel(Group(told, *lines), title=title, title_align="left", border_style=style)


def further(summary: Summary) -> list[str]:
    """Say, line by line, how to look further."""
    lines = ["The file is kept. To look further:", f"  export REDRIVE_URL={summary.url}"]
    for command, why in _commands(summary):
        lines.append(f"  {command:<44}  # {why}")
    return lines


def _commands(summary: Summary) -> list[tuple[str, str]]:
    found = [("redrive dlq ls", "what is left, and why"), ("redrive deps show carrier-api", "the circuit")]
    if summary.recovered:
        found.append((f"redrive events timeline {summary.recovered[:18]}", "one that was replayed"))
    if summary.redrives:
        found.append(("redrive redrives ls", "what was sent round again, and why"))
        found.append(("redrive groups ls --all", "what went wrong, by its cause"))
    return [*found, ("redrive audit verify", "nobody changed the record")]
