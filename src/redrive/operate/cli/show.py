"""Show: results as tables that fit a terminal, or as JSON that is complete."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise, takewhile
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from redrive.event import COMPENSATE, Event, Status
from redrive.operate.actions import DONE, Done
from redrive.operate.cli.shared import Output
from redrive.operate.cli.text import clean, clock_time, day, harmless_json, one_line, times, when
from redrive.operate.views import Step, Timeline
from redrive.redrive import Redriving
from redrive.steps import StepRecord

_SHORTEST_ID: Final = 13  # the whole millisecond of a time-ordered id
_ERROR_LENGTH: Final = 200
_LEAST_WIDE: Final = 14
_CAPS: Final = {"TYPE": 22}
_MODULE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*(?::|$))")
_COLOURS: Final = {
    Status.PENDING: "yellow",
    Status.IN_FLIGHT: "cyan",
    Status.DELIVERED: "green",
    Status.FAILED: "red",
    Status.BLOCKED: "magenta",
    Status.CANCELLED: "dim",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Make a console; texts are data, never markup."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def put(what: RenderableType) -> None:
    """Print something drawn."""
    console().print(what)


def put_line(text: str) -> None:
    """Print a line as it is, however long."""
    print(clean(text))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Write JSON as the terminal can take it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return harmless_json(json.dumps(value, ensure_ascii=not encoding.startswith("utf"), indent=indent, default=str))


def listing(
    items: Sequence[Any], output: Output, to_json: Callable[[Any], Any], draw: Callable[[Sequence[Any]], RenderableType]
) -> None:
    """Print many things."""
    if output is Output.JSON:
        print(json_text([to_json(item) for item in items], indent=2))
    elif output is Output.JSONL:
        for item in items:
            print(json_text(to_json(item)))
    else:
        put(draw(items))


def single(item: Any, output: Output, to_json: Callable[[Any], Any], draw: Callable[[Any], RenderableType]) -> None:
    """Print one thing."""
    if output is Output.TABLE:
        put(draw(item))
    else:
        plain(to_json(item), output)


def plain(value: Any, output: Output) -> None:
    """Print a value for a program: JSON over several lines, or on one."""
    print(json_text(value, indent=2 if output is Output.JSON else None))


# --- tables ---


Cell = str | Text


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    wide: str,
    caps: Mapping[str, int] | None = None,
    right: str = "",
    spare: Sequence[str] = (),
) -> Table:
    """Draw a plain table that fits.

    The column ``wide`` takes what the others leave; ``caps`` bounds some of them; those in ``spare`` are left out, one
    after the other, when there is no room.
    """
    widths = {
        name: min((caps or {}).get(name, 1_000), max([len(name), *(cell_len(str(row[place])) for row in rows)]))
        for place, name in enumerate(columns)
    }
    room, left_out = console().width, set()
    for name in spare:
        taken = sum(width + 2 for each, width in widths.items() if each != wide and each not in left_out)
        if taken + _LEAST_WIDE > room:
            left_out.add(name)
    # Bounded, or rich would take what is missing from the narrow columns, down to nothing.
    taken = sum(width + 2 for each, width in widths.items() if each != wide and each not in left_out)
    widths[wide] = min(widths[wide], max(len(wide), room - taken))
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    kept = [place for place, name in enumerate(columns) if name not in left_out]
    for place in kept:
        name = columns[place]
        drawn.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if name == right else "left",
            min_width=len(name) if name == wide else widths[name],
            max_width=widths[name],
        )
    for row in rows:
        drawn.add_row(*(row[place] for place in kept))
    return drawn


def short_ids(events: Sequence[Event | Redriving]) -> dict[Any, str]:
    """Cut ids to the shortest beginning that tells these apart."""
    texts = sorted(str(event.id) for event in events)
    needed = _SHORTEST_ID
    for one, two in pairwise(texts):
        needed = max(needed, 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=True))))
    return {event.id: str(event.id)[:needed] for event in events}


def status_text(status: Status) -> Text:
    """Colour a status."""
    return Text(status.value.replace("_", " "), style=_COLOURS[status])


def name_of(event: Event) -> str:
    """Name an event by its type, and its target where that is another."""
    if event.type in (event.target, COMPENSATE):  # a compensation's target says it all
        return clean(event.target)
    return clean(f"{event.type} → {event.target}")


def tries(event: Event) -> str:
    """Say how many attempts were made, of how many."""
    return f"{event.attempts}/{event.max_attempts}" if event.max_attempts else str(event.attempts)


def error_line(event: Event) -> str:
    """Say the error in one line."""
    unread = "" if event.unreadable is None else f"unreadable: {event.unreadable}"
    return one_line(unread or said(event.last_error or ""), _ERROR_LENGTH)


def said(error: str) -> str:
    """Take the first line of an error, without the module of its class."""
    return _MODULE.sub("", error.partition("\n")[0], count=1)


def note(event: Event, now: datetime) -> str:
    """Say what is worth knowing beside the status."""
    if event.deleted_at is not None:
        return f"discarded {when(event.deleted_at, now)}"
    if event.status is Status.FAILED:
        return error_line(event)
    if event.status in (Status.CANCELLED, Status.BLOCKED):
        waits = f"waits for {event.blocked_on}" if event.blocked_on else f"in line of {event.ordering_key}"
        return one_line(event.cancel_reason or waits, _ERROR_LENGTH)
    if event.status is Status.PENDING and event.next_retry_at is not None:
        return f"retry {when(event.next_retry_at, now)}: {error_line(event)}"
    if event.status is Status.PENDING and event.due_at > now:
        return f"due {when(event.due_at, now)}"
    return f"replayed {times(event.cycle)}" if event.cycle else ""


def events_table(events: Sequence[Event], now: datetime) -> RenderableType:
    """Draw a list of events."""
    ids = short_ids(events)
    rows = [
        (
            ids[event.id],
            name_of(event),
            status_text(event.status),
            tries(event),
            when(event.created_at, now),
            note(event, now),
        )
        for event in events
    ]
    columns = ("ID", "TYPE", "STATUS", "TRIES", "PUBLISHED", "NOTE")
    return table(columns, rows, wide="NOTE", caps=_CAPS, right="TRIES", spare=("PUBLISHED", "TRIES"))


def dead_letters_table(events: Sequence[Event], now: datetime) -> RenderableType:
    """Draw the quarantine."""
    ids = short_ids(events)
    rows = [
        (
            ids[event.id],
            name_of(event),
            Text((event.error_class or "").replace("dependency_", ""), style="red"),
            tries(event),
            when(event.ended_at or event.created_at, now),
            error_line(event),
        )
        for event in events
    ]
    columns = ("ID", "TYPE", "CLASS", "TRIES", "FAILED", "ERROR")
    return table(columns, rows, wide="ERROR", caps=_CAPS, right="TRIES", spare=("FAILED", "TRIES"))


# --- one event ---


def facts_sheet(facts: Iterable[tuple[str, str | Text | None]]) -> RenderableType:
    """Draw names and values below one another; what has no value is left out."""
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in facts:
        if value:
            drawn.add_row(name, value if isinstance(value, Text) else Text(clean(value)))
    return drawn


def event_sheet(event: Event, now: datetime, steps: Sequence[StepRecord] = ()) -> RenderableType:
    """Draw everything about one event."""
    parts: list[RenderableType] = [facts_sheet(_facts(event, now))]
    if event.unreadable is not None:
        parts += [Text("\nunreadable", style="dim"), _indented(Text(clean(event.unreadable), style="red"))]
    if event.last_error:
        parts += [Text("\nlast error", style="dim"), _indented(Text(clean(event.last_error.rstrip()), style="red"))]
    if steps:
        parts += [Text("\nsteps", style="dim"), _indented(_steps(steps, now))]
    parts += [Text("\npayload", style="dim"), _indented(_json(event.payload))]
    if event.headers:
        parts += [Text("\nheaders", style="dim"), _indented(_json(event.headers))]
    if event.failure_history:
        parts += [Text("\nearlier cycles", style="dim"), _indented(_history(event, now))]
    return Group(*parts)


def _facts(event: Event, now: datetime) -> Iterable[tuple[str, str | Text | None]]:
    yield "id", str(event.id)
    yield "type", name_of(event)
    status = status_text(event.status)
    if event.deleted_at is not None:
        status.append(f", discarded {when(event.deleted_at, now)}", style="dim")
    yield "status", status
    yield "published", f"{_instant(event.created_at, now)}" + (f" by {event.source}" if event.source else "")
    yield "ended", _instant(event.ended_at, now)
    yield "due", _instant(event.due_at, now) if event.status is Status.PENDING else None
    yield "deadline", _instant(event.deadline_at, now)
    lost = f", worker lost {times(event.lost_count)}" if event.lost_count else ""
    yield "attempts", tries(event) + lost
    yield "waits for", event.blocked_on
    yield "deferred", f"{times(event.deferred_count)}, free of charge" if event.deferred_count else None
    yield "degraded", "it ran in a reduced mode" if event.degraded else None
    kind = " · ".join(filter(None, (event.error_type, event.error_class)))
    yield "failed with", kind
    yield "safe to retry", None if event.safe_to_retry is None else "yes" if event.safe_to_retry else "no"
    yield "fingerprint", event.fingerprint
    yield "subject", event.subject
    yield "retry key", event.retry_key
    yield "ordering key", event.ordering_key
    yield "idempotency key", event.idempotency_key if event.idempotency_key != str(event.id) else None
    yield "correlation", event.correlation_id
    yield "caused by", event.causation_id
    yield "batch", None if event.batch_id is None else f"{event.batch_id}  {event.batch_group or ''}".rstrip()
    yield "queue", event.queue if event.queue != "default" else None
    yield "generation", str(event.generation) if event.generation else None
    yield "replayed", times(event.cycle) if event.cycle else None
    yield "compensation", event.compensation
    if event.cancelled_by:
        yield "cancelled by", f"{event.cancelled_by}: {event.cancel_reason}"


def _instant(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{day(at)} {clock_time(at)} UTC ({when(at, now)})"


def _indented(what: RenderableType) -> RenderableType:
    return Padding(what, (0, 0, 0, 2))


def _json(value: Any) -> RenderableType:
    drawn = Text(clean(json.dumps(value, ensure_ascii=False, indent=2)))
    JSONHighlighter().highlight(drawn)
    return drawn


def _steps(steps: Sequence[StepRecord], now: datetime) -> RenderableType:
    rows = [
        (
            clean(step.name),
            "forgotten" if step.forgotten and step.state == "done" else step.state,
            when(step.ended_at or step.started_at, now),
            clean((step.compensation or "").removeprefix("compensate:")),
            one_line(json.dumps(step.result, ensure_ascii=False), _ERROR_LENGTH) if step.ended_at else "",
        )
        for step in steps
    ]
    columns = ("STEP", "STATE", "WHEN", "UNDONE BY", "RESULT")
    return table(columns, rows, wide="RESULT", caps={"STEP": 30, "UNDONE BY": 30})


def _history(event: Event, now: datetime) -> RenderableType:
    rows = [
        (
            str(cycle.cycle + 1),
            str(cycle.attempts),
            "" if cycle.failed_at is None else when(cycle.failed_at, now),
            clean(cycle.replayed_by or ""),
            one_line(cycle.reason or "", _ERROR_LENGTH),
        )
        for cycle in event.failure_history
    ]
    if event.dropped_cycles:
        rows.append(("", "", "", "", f"{event.dropped_cycles} older cycles are no longer kept"))
    columns = ("CYCLE", "TRIES", "FAILED", "REPLAYED BY", "REASON")
    return table(columns, rows, wide="REASON", caps={"REPLAYED BY": 20}, right="CYCLE")


# --- timeline ---

_MARKS: Final = {
    "published": ("●", "bold"),
    "retry-scheduled": ("✗", "yellow"),
    "blocked": ("‖", "magenta"),
    "dead-lettered": ("■", "bold red"),
    "lost": ("✗", "magenta"),
    "put-back": ("↺", "dim"),
    "replayed": ("▶", "bold cyan"),
    "cancelled": ("■", "dim"),
    "discarded": ("□", "dim"),
    "restored": ("■", "red"),
    "edited": ("✎", "cyan"),
    "imported": ("●", "bold"),
    "delivered": ("✓", "bold green"),
    "in-flight": ("▷", "cyan"),
    "due": ("○", "yellow"),
}


def timeline_story(story: Timeline, now: datetime) -> RenderableType:
    """Draw the life of an event from top to bottom."""
    event = story.event
    head = Text.assemble((name_of(event), "bold"), "  ", (str(event.id), "dim"), "  ", status_text(event.status))
    drawn = Table.grid(padding=(0, 1, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    shown_day = ""
    for number, step in enumerate(story.steps):
        if day(step.at) != shown_day:
            shown_day = day(step.at)
            drawn.add_row(shown_day, "│" if number else "", "" if number else Text("times are UTC", style="dim"))
        _step_rows(drawn, step, now, last=number == len(story.steps) - 1)
    return Group(head, drawn)


def _step_rows(drawn: Table, step: Step, now: datetime, *, last: bool) -> None:
    mark, style = _MARKS.get(step.kind, ("·", ""))
    what = step.what
    if step.kind == "due":
        what += f" {when(step.at, now)}" if step.at > now else f" and waits for a worker, since {when(step.at, now)}"
    elif step.kind == "in-flight" and step.by:
        what += f" on {step.by}"
    drawn.add_row(clock_time(step.at), Text(mark, style=style), Text(clean(what), style=style))
    if step.because:
        because = one_line(said(step.because), 300)
        quoted = because if step.kind == "retry-scheduled" else f"“{because}”"
        drawn.add_row("", "" if last else Text("│", style="dim"), Text(quoted, style="dim"))


# --- beside the result ---


def hint(text: str) -> None:
    """Say something helpful, to people only."""
    if sys.stderr.isatty():
        console(stderr=True).print(Text(text, style="dim"))


def told(outcomes: Sequence[Done], output: Output) -> None:
    """Say how an act on events went."""
    if output is not Output.TABLE:
        listing(outcomes, output, lambda done: done.to_json(), lambda _: "")
        return
    ids = short_ids([done.event for done in outcomes])
    for done in outcomes:
        mark = "✗" if done.refused else "✓"
        sentence = done.refused or f"{DONE[done.verb]} {ids[done.event.id]}  {name_of(done.event)}"
        if done.waits is not None:
            mark, sentence = "…", f"{ids[done.event.id]}  {name_of(done.event)} waits: {_approve_it(done.waits)}"
        print(clean(f"{mark} {sentence}"), file=sys.stderr if done.refused else sys.stdout)
    failed = sum(1 for done in outcomes if done.refused)
    if len(outcomes) > 1:
        waits = sum(1 for done in outcomes if done.waits is not None)
        rest = f", {waits} wait for approval" if waits else ""
        print(f"{len(outcomes) - failed - waits} of {len(outcomes)} {DONE[outcomes[0].verb]}{rest}")


def _approve_it(waits: Redriving) -> str:
    return f"an edited payload needs a second person, who runs `redrive redrives approve {waits.id}`"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how far something long has come."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    with console(stderr=True).status(what) as status:
        yield lambda done: status.update(f"{what}: {done:,}")
