"""`redrive policy`: how handlers are worked with, changed while workers run."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from redrive import override
from redrive.errors import ConfigurationError
from redrive.operate import tuning
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, say
from redrive.operate.cli.shared import (
    ByOption,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    actor,
    existing,
    load_app,
    run,
    url_from,
)
from redrive.operate.cli.text import clean, duration, one_line, plural, when
from redrive.operate.tuning import Standing
from redrive.override import Override
from redrive.policy import Wait

app = typer.Typer(help="Policies while it runs: retries, timeouts, how many at once.", no_args_is_help=True)

PatternArgument = Annotated[
    str, typer.Argument(metavar="PATTERN", help="A target, a type, order.* for all that begin so, or * for all.")
]
NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A target, a type or a pattern.")]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="Begin with what its handlers say; module:attribute.")
]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", metavar="N", help="Attempts in all.")]
BaseDelay = Annotated[str | None, typer.Option("--base-delay", metavar="SPAN", help="The first wait, like 5s.")]
Multiplier = Annotated[float | None, typer.Option("--multiplier", metavar="X", help="Each wait is so much longer.")]
MaxDelay = Annotated[str | None, typer.Option("--max-delay", metavar="SPAN", help="The longest wait, like 10m.")]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="full|none|SHARE", help="How waits are spread; 0.2 is ±20 %.")
]
Timeout = Annotated[str | None, typer.Option("--timeout", metavar="SPAN|none", help="How long an attempt may take.")]
Concurrency = Annotated[
    str | None, typer.Option("--concurrency", metavar="N|none", help="How many run at once, over all workers.")
]
RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="RATE|none", help="How many start, over all workers: 20/s, 100/m.")
]

_SHOWN_WAITS: Final = 20


# --- looking ---


@app.command("ls")
def ls(ctx: typer.Context, output: OutputOption = Output.TABLE, url: UrlOption = None) -> None:
    """List what operators have set, by pattern."""
    found, now = run(_all(url_from(ctx, url)))
    if found or output is not Output.TABLE:
        show.listing(found, output, Override.to_json, lambda items: _table(items, now))
    else:
        show.put_line("Nothing is set: handlers are worked with as they say themselves.")


async def _all(url: str) -> tuple[list[Override], datetime]:
    async with existing(url) as app_:
        return await app_.policies(), app_.clock.now()


def _table(found: Sequence[Override], now: datetime) -> RenderableType:
    rows = []
    for each in found:
        said = (clean(each.set_by), when(each.set_at, now), one_line(each.reason, 200))
        for place, (name, value) in enumerate(each.values.items()):
            first, *rest = (clean(each.pattern), *said) if place == 0 else ("", "", "", "")
            rows.append((first, name, _text(name, value), *rest))
    columns = ("PATTERN", "FIELD", "VALUE", "BY", "WHEN", "WHY")
    return show.table(columns, rows, wide="WHY", caps={"PATTERN": 30, "BY": 16}, spare=("BY", "WHEN"))


@app.command("show")
def show_one(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A target, a type or a pattern.")],
    app_name: AppOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Show what holds for a handler, who says so, and its schedule."""
    standing = run(_standing(url_from(ctx, url), name, app_name, {}))
    show.single(standing, output, Standing.to_json, _sheet)


@app.command("preview")
def preview(
    ctx: typer.Context,
    name: NameArgument = None,
    *,
    max_attempts: MaxAttempts = None,
    base_delay: BaseDelay = None,
    multiplier: Multiplier = None,
    max_delay: MaxDelay = None,
    jitter: Jitter = None,
    timeout: Timeout = None,
    concurrency: Concurrency = None,
    rate: RateOption = None,
    app_name: AppOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Draw the schedule that values would give, over what holds for NAME now. Nothing is stored."""
    given = _given(max_attempts, base_delay, multiplier, max_delay, jitter, timeout, concurrency, rate)
    standing = run(_standing(url_from(ctx, url) if name else None, name or "*", app_name, given))
    show.single(standing, output, Standing.to_json, _sheet)


async def _standing(url: str | None, name: str, app_name: str | None, given: Mapping[str, Any]) -> Standing:
    overrides = []
    if url is not None:
        async with existing(url) as app_:
            overrides = await app_.policies()
    return tuning.standing(name, None if app_name is None else load_app(app_name), overrides, _checked(given))


def _sheet(standing: Standing) -> RenderableType:
    rows = [(name, _text(name, value), one_line(standing.said_by[name], 80)) for name, value in standing.values.items()]
    parts: list[RenderableType] = [show.table(("FIELD", "VALUE", "SAID BY"), rows, wide="SAID BY")]
    waits = list(islice(standing.terms.retry.waits(), _SHOWN_WAITS))
    parts += [Text(""), _schedule(waits, standing.terms.retry.max_attempts)]
    return Group(*parts)


def _schedule(waits: Sequence[Wait], attempts: int) -> RenderableType:
    if not waits:
        return Text("One attempt, and no other.")
    rows = [
        (
            f"{wait.attempt:,}",
            duration(wait.earliest),
            duration(wait.latest),
            duration(wait.mean),
            duration(wait.total_mean),
            duration(wait.total_latest),
        )
        for wait in waits
    ]
    columns = ("ATTEMPT", "EARLIEST", "LATEST", "MEAN", "IN ALL", "AT MOST")
    drawn = show.table(columns, rows, wide="AT MOST")
    left = attempts - 1 - len(waits)
    return Group(drawn, Text(f"and {plural(left, 'attempt')} more", style="dim")) if left > 0 else drawn


# --- acting ---


@app.command("set")
def set_(
    ctx: typer.Context,
    pattern: PatternArgument,
    *,
    max_attempts: MaxAttempts = None,
    base_delay: BaseDelay = None,
    multiplier: Multiplier = None,
    max_delay: MaxDelay = None,
    jitter: Jitter = None,
    timeout: Timeout = None,
    concurrency: Concurrency = None,
    rate: RateOption = None,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Set values for the handlers that PATTERN matches; workers take notice within seconds.

    What was set for the same pattern before and is not named stays. Each value comes from the most specific pattern
    that names it: a target, then a type, then the longest pattern.
    """
    given = _given(max_attempts, base_delay, multiplier, max_delay, jitter, timeout, concurrency, rate)
    if not given:
        raise BadInput("say what to change, like --max-attempts 8 or --rate 20/s: `redrive policy set --help`")
    _checked(given)
    why, who = _reason(reason), actor(by)
    before, after, is_served = run(_set(url_from(ctx, url), pattern, given, who, why))
    if output is not Output.TABLE:
        shown = {"before": before.to_json() if before else None, "after": after.to_json(), "is_served": is_served}
        print(show.json_text(shown, indent=2 if output is Output.JSON else None))
        return
    show.put_line(f"✓ {after.pattern} set")
    show.put(_changes(before.values if before else {}, after.values))
    if not is_served:
        say("No worker that is running has a handler of this name: it holds as soon as one has.")


async def _set(
    url: str, pattern: str, given: Mapping[str, Any], by: str, reason: str
) -> tuple[Override | None, Override, bool]:
    async with existing(url) as app_:
        before = {each.pattern: each for each in await app_.policies()}.get(pattern)
        try:
            after = await app_.set_policy(pattern, by=by, reason=reason, **given)
        except ConfigurationError as error:
            raise BadInput(str(error)) from None
        live = [each for each in await app_.store.sessions() if each.ended_at is None]
        targets = {target for each in live for target in each.targets}
        return before, after, any(override.specificity(pattern, (target,), target) for target in targets)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> RenderableType:
    rows = [
        (name, _text(name, before[name]) if name in before else "", _text(name, value)) for name, value in after.items()
    ]
    return show.table(("FIELD", "BEFORE", "AFTER"), rows, wide="AFTER")


@app.command("clear")
def clear(
    ctx: typer.Context,
    pattern: PatternArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Take back what was set for PATTERN: its handlers go back to what they say themselves."""
    why, who = _reason(reason), actor(by)
    gone = run(_clear(url_from(ctx, url), pattern, who, why))
    if output is not Output.TABLE:
        show.single(gone, output, Override.to_json, lambda _: "")
        return
    said = ", ".join(f"{name} {_text(name, value)}" for name, value in gone.values.items())
    show.put_line(f"✓ {gone.pattern} cleared; it was {said}")


async def _clear(url: str, pattern: str, by: str, reason: str) -> Override:
    async with existing(url) as app_:
        return await app_.clear_policy(pattern, by=by, reason=reason)


def _reason(reason: str | None) -> str:
    if reason is None or not reason.strip():
        raise BadInput('say why: --reason "…" is kept on the trail')
    return reason


# --- values ---


def _given(
    max_attempts: int | None, base_delay: str | None, multiplier: float | None, max_delay: str | None,
    jitter: str | None, timeout: str | None, concurrency: str | None, rate: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Collect what was said on the command line."""
    said = {
        "max_attempts": max_attempts,
        "base_delay": base_delay,
        "multiplier": multiplier,
        "max_delay": max_delay,
        "jitter": _number(jitter, float),
        "timeout": timeout,
        "concurrency": _number(concurrency, int),
        "rate": rate,
    }
    return {name: value for name, value in said.items() if value is not None}


def _number(text: str | None, kind: type[int | float]) -> str | float | None:
    """Read a number where a word may stand too; whoever checks it will complain of other words."""
    try:
        return None if text is None else kind(text)
    except ValueError:
        return text


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return override.checked(given)
    except ConfigurationError as error:
        raise BadInput(str(error)) from None


def _text(name: str, value: Any) -> str:
    """Write a value the way it is set."""
    if value is None:
        return "none"
    if name in ("base_delay", "max_delay", "timeout"):
        return duration(value)
    return f"{value:g}" if isinstance(value, float) else clean(str(value))
