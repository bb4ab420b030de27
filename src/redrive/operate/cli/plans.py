"""`redrive plan` and `redrive run`: say what many replays would do, then let them go."""

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from redrive.app import Redrive
from redrive.operate import actions, views
from redrive.operate.cli import show
from redrive.operate.cli.follow import follow_to_the_end, no_worker
from redrive.operate.cli.outcome import BadInput, NothingMatched, say
from redrive.operate.cli.shared import (
    ByOption,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    actor,
    existing,
    place_from,
    reason_from,
    run,
    url_from,
)
from redrive.operate.cli.text import clean, duration, span, when
from redrive.operate.views import RATES, PlanStory
from redrive.redrive import DEFAULT_IN_FLIGHT, Redriving, Release
from redrive.selection import dead_letters, parse

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|sec|second|m|min|minute|h|hour))?")
_PER: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
_MOST_RATE: Final = 1e6
_SHARE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%?)")
_MOST_AT_ONCE: Final = 1_000_000
_MOST_STAGES: Final = 20
_ADVICE: Final = {
    "already handled": "its effect is there: replay it by its id, which ends it as delivered",
    "live duplicate of its retry key": "wait for that one, or cancel it",
    "second dead letter with its retry key": "plan again when the first has gone through",
    "in another redrive": "wait for that one, or abort it",
    "not safe to retry": "look at them; --unsafe takes them in",
    "replay budget spent": "replay has not helped so far: repair or discard it",
    "compensation under way": "wait until its steps are undone",
    "compensation failed": "replay its compensation, the dead letter of type redrive.compensate",
    "handler unknown": "register its handler, or discard it",
    "payload no longer fits": "repair it (`redrive replay ID --set …`), or the handler",
}


def plan(
    ctx: typer.Context,
    selection: Annotated[str, typer.Argument(metavar="SELECTION", help="Which, like 'type:order.* class:missing'.")],
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Also those that are not safe to retry.")] = False,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Leave out what the handlers of this app cannot take.")
    ] = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Say what a redrive of these dead letters would do. Nothing moves until `redrive run`."""
    parse(selection)  # a mistake is said before anything is opened
    run(_plan(place_from(ctx, url, app), selection, actor(by), output, unsafe=unsafe))


async def _plan(place: str | Redrive, selection: str, by: str, output: Output, *, unsafe: bool) -> None:
    async with existing(place) as app:
        with show.progress("planning"):
            planned = await actions.plan(app, selection, by=by, unsafe=unsafe)
        if planned is None:
            meant = dead_letters(parse(selection)).sentence(app.clock.now(), 0)
            raise NothingMatched(
                f"nothing matched: there are {meant}. Only dead letters that are not discarded can be redriven; "
                "`redrive dlq ls` shows them"
            )
        shown = await actions.plan_story(app, planned)
    show.single(shown, output, _json, _sheet)


def _json(shown: PlanStory) -> dict[str, Any]:
    return {**shown.to_json(), "next": _command(shown.standing) if shown.standing.ready else None}


def _sheet(shown: PlanStory) -> RenderableType:
    standing = shown.standing
    now = standing.now
    left_out = standing.total - standing.ready
    parts: list[RenderableType] = [
        Text(clean(shown.sentence), style="bold"),
        Text.assemble(
            (f"{standing.ready:,} ready", "green" if standing.ready else "red"),
            (f", {left_out:,} not eligible" if left_out else ", all of them eligible", "yellow" if left_out else "dim"),
        ),
    ]
    if shown.plan.ineligible:
        rows = [(f"{count:,}", why, _ADVICE.get(why, "")) for why, count in shown.plan.ineligible.items()]
        parts += ["", show.table(("COUNT", "NOT ELIGIBLE", "WHAT TO DO"), rows, wide="WHAT TO DO", right="COUNT")]
    parts += ["", _breakdown(shown)]
    if shown.samples:
        parts += ["", Text("Some of them:", style="dim"), show.dead_letters_table(shown.samples, now)]
    if standing.ready:
        parts += ["", *_next(shown)]
    else:
        parts += ["", Text("Nothing of it is ready to go, so there is nothing to run.", style="yellow")]
    return Group(*parts)


def _breakdown(shown: PlanStory) -> RenderableType:
    now = shown.standing.now
    rows = [
        (
            f"{part['n']:,}",
            clean(str(part["type"] if part["type"] == part["target"] else f"{part['type']} → {part['target']}")),
            str(part["error_class"] or ""),
            str(part["fingerprint"] or "").partition(":")[2][:8],
            "" if part["oldest"] is None else when(part["oldest"], now),
            "" if part["newest"] is None else when(part["newest"], now),
        )
        for part in shown.plan.parts
    ]
    columns = ("COUNT", "TYPE", "CLASS", "GROUP", "OLDEST", "NEWEST")
    return show.table(columns, rows, wide="TYPE", right="COUNT", spare=("NEWEST", "OLDEST"))


def _next(shown: PlanStory) -> Iterable[RenderableType]:
    standing = shown.standing
    rates = [rate for rate in RATES if rate == RATES[0] or standing.ready / rate >= 1]
    spans = ", ".join(f"{span(shown.plan.seconds_at(rate) or 0.0)} at {rate:g}/s" for rate in rates)
    yield Text(f"It takes {spans}; without --rate it goes as fast as the workers do.")
    if not shown.workers:
        yield Text("No worker is running: once started it waits for one (`redrive worker APP`).", style="yellow")
    elif shown.unattended:
        names = clean(", ".join(shown.unattended[:5]))
        yield Text(f"No running worker has a handler for {names}: events of it would wait.", style="yellow")
    yield Text(
        f"Nothing has moved. The plan is kept for {duration((standing.expires_at - standing.now).total_seconds())}."
    )
    if shown.needs_approval:
        yield Text(
            f"More than {shown.approval_above:,} events need a second person, who says: "
            f"redrive redrives approve {standing.id}",
            style="yellow",
        )
    yield Text("")
    yield Text(f"  {_command(standing)}", style="bold", no_wrap=True, overflow="ignore")


def _command(standing: Redriving) -> str:
    return f'redrive run {standing.token} --reason "…"'


# --- run ---


def run_plan(  # noqa: PLR0917 - typer calls it by name
    ctx: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token that `redrive plan` printed.")],
    reason: ReasonOption = None,
    rate: Annotated[str | None, typer.Option("--rate", metavar="N/s", help="At most so many: 20/s, 300/min.")] = None,
    max_in_flight: Annotated[
        int, typer.Option("--max-in-flight", metavar="N", help="Released and not yet ended, at most.")
    ] = DEFAULT_IN_FLIGHT,
    ramp: Annotated[
        str | None, typer.Option("--ramp", metavar="1,5,25", help="First so many, then so many, then the rest.")
    ] = None,
    halt_at: Annotated[
        str | None,
        typer.Option("--halt-at", metavar="10%", help="Halt when more than this share fails (default 10%)."),
    ] = None,
    no_halt: Annotated[bool, typer.Option("--no-halt", help="Never halt, however many events fail again.")] = False,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation", "-g", help="Hand them to handlers of this generation (default: one that a worker serves)."
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Forget the finished steps; go on after them otherwise.")
    ] = False,
    repeat_steps: Annotated[
        bool, typer.Option("--repeat-steps", help="With --from-start: run finished steps again that were not undone.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it, and do not wait for its end.")] = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Start a planned redrive and watch it. Ctrl-C leaves it running; it needs no terminal."""
    why, who = reason_from(reason, "redrive"), actor(by)
    release = Release(
        rate=None if rate is None else rate_from(rate),
        max_in_flight=_whole(max_in_flight, "--max-in-flight", _MOST_AT_ONCE),
        ramp=() if ramp is None else ramp_from(ramp),
        halt_at=_halt_from(halt_at, no_halt=no_halt),
    )
    database = url_from(ctx, url)
    if generation is not None and not 0 <= generation < 2**63:
        raise BadInput(f"--generation is a whole number from 0, not {generation}")
    try:
        standing = run(
            _start(
                database,
                token,
                by=who,
                reason=why,
                release=release,
                generation=generation,
                from_start=from_start,
                repeat_steps=repeat_steps,
            )
        )
    except KeyboardInterrupt:
        say("Interrupted while it was being started: `redrive redrives ls` says whether it was.")
        raise
    if detach:
        if output is Output.TABLE:
            show.put_line(f"✓ started {standing.id}: `redrive redrives watch {standing.id}` follows it")
        else:
            show.plain(views.redriving_json(standing), output)
        return
    follow_to_the_end(database, standing, output)


async def _start(url: str, token: str, **options: Any) -> Redriving:
    async with existing(url) as app:
        standing = await actions.start(app, token.strip(), **options)
        await _warn(app)
        return standing


async def _warn(app: Redrive) -> None:
    if not await views.live_workers(app):
        say(no_worker())


# --- what the options say ---


def rate_from(text: str) -> float:
    """Read ``20/s``, ``300/min`` or a number of events a second."""
    match = _RATE.fullmatch(text.strip().lower())
    number = float(match[1]) / _PER[(match[2] or "s")[0]] if match else 0.0
    if not 0 < number <= _MOST_RATE:
        raise BadInput(
            f"--rate: {text[:40]!r} is not a rate above 0: write 20/s, 300/min or 5/h; leave it out to go at full speed"
        )
    return number


def ramp_from(text: str) -> tuple[int, ...]:
    """Read the sizes of the stages."""
    sizes = [each.strip() for each in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", each) and int(each) > 0 for each in sizes) or len(sizes) > _MOST_STAGES:
        raise BadInput(
            f"--ramp: {text[:40]!r} does not list stages: write the size of each from 1, like 1,5,25 "
            f"(at most {_MOST_STAGES}); the rest follows when all of them went well"
        )
    return tuple(map(int, sizes))


def share_from(text: str) -> float:
    """Read ``10%`` or ``0.1``."""
    match = _SHARE.fullmatch(text.strip())
    share = math.nan if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= share <= 1:
        raise BadInput(f"--halt-at: {text[:40]!r} is not a share of failures from 0% to 100%: write 10%, or 0.1")
    return share


def _halt_from(halt_at: str | None, *, no_halt: bool) -> float | None:
    if no_halt and halt_at is not None:
        raise BadInput("--halt-at and --no-halt exclude each other: leave one of them out")
    return None if no_halt else share_from(halt_at or "10%")


def _whole(number: int, option: str, most: int) -> int:
    if not 1 <= number <= most:
        raise BadInput(f"{option} is a whole number from 1 to {most:,}, not {number}")
    return number
