"""`redrive reconcile`: compare what should be with what is, and see what was found and done."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Group as Drawn
from rich.console import RenderableType
from rich.text import Text
from typer.core import TyperGroup

from redrive.app import Redrive
from redrive.event import LIVE
from redrive.finding import Finding, Found, ReconcileRun, Standing
from redrive.operate import views
from redrive.operate.cli import show
from redrive.operate.cli.outcome import Code, NothingMatched, say
from redrive.operate.cli.shared import (
    ByOption,
    DryRunOption,
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
from redrive.operate.cli.text import clean, number, one_line, plural, span, times, when

_LOOK_SECONDS: Final = 0.2
_COLOURS: Final = {"done": "green", "failed": "red", "running": "cyan", "open": "yellow", "healed": "green"}


class _RunByDefault(TyperGroup):
    """`redrive reconcile carts` means `redrive reconcile run carts`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take what is no command for the name of a reconciler."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Compare what should be with what is: run, list, look at findings. `redrive reconcile NAME` runs one.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The reconciler.")]
OfArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of this reconciler; without it: of all.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")]


class Which(StrEnum):
    """Findings of which state."""

    OPEN = "open"
    HEALED = "healed"
    IGNORED = "ignored"
    ALL = "all"


# --- running ---


@app.command("run")
def run_one(
    ctx: typer.Context,
    name: NameArgument,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Run it here and now, with this app (module:attribute).")
    ] = None,
    dry_run: DryRunOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the workers have run it.")] = False,
    queue: Annotated[str, typer.Option("--queue", "-q", metavar="NAME", help="Of the reconciler.")] = "default",
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Run a reconciler: ask the workers for it, or with --app in this process. What differs is converged by workers."""
    place = place_from(ctx, url, app)
    if isinstance(place, Redrive):
        ended, now = run(_here(place, name, actor(by), dry_run=dry_run))
    else:
        asked = run(_ask(place, name, queue, actor(by), dry_run=dry_run, wait=wait))
        if asked is None:
            return
        ended, now = asked
    show.single(ended, output, lambda each: each.to_json(), lambda each: _run_sheet(each, now))
    if ended.state == "failed":
        raise typer.Exit(Code.ERROR)


async def _here(place: Redrive, name: str, by: str, *, dry_run: bool) -> tuple[ReconcileRun, datetime]:
    if name not in set(place.reconcilers):
        known = ", ".join(sorted(place.reconcilers)) or "none"
        raise NothingMatched(f"the app has no reconciler {name!r}: there is {known}")
    with show.progress(f"reconciling {name}"):
        async with existing(place) as opened:
            return await opened.reconcilers.run_here(name, dry_run=dry_run, by=by), opened.clock.now()


async def _ask(
    url: str, name: str, queue: str, by: str, *, dry_run: bool, wait: bool
) -> tuple[ReconcileRun, datetime] | None:
    async with existing(url) as opened:
        served = any(f"reconcile:{name}" in each.targets for each in await views.live_workers(opened))
        if not served and name not in {each.name for each in await opened.reconcilers.standing()}:
            raise NothingMatched(
                f"no worker has a reconciler {name!r}, and it never ran here: start one (`redrive worker APP`), "
                "or name the app with --app"
            )
        asked = await opened.reconcilers.ask(name, queue=queue, dry_run=dry_run, by=by)
        say(f"✓ run {asked.id} asked for" if asked.created else f"✓ run {asked.id} is asked for already")
        if not served:
            say("No worker has it now: it waits until one does.")
        if not wait:
            return None
        with show.progress(f"waiting for {name}"):
            while (event := await opened.event(asked.id)) is not None and event.status in LIVE:
                await opened.clock.sleep(_LOOK_SECONDS)
        return await opened.reconcilers.get_run(asked.id), opened.clock.now()


def _run_sheet(each: ReconcileRun, now: datetime) -> RenderableType:
    sheet = show.facts_sheet(_run_facts(each, now))
    if not each.found:
        return sheet
    rows = [(one_line(one.key, 60), one.kind, _change(one)) for one in each.found]
    drawn = show.table(("KEY", "KIND", "DESIRED, ACTUAL"), rows, wide="DESIRED, ACTUAL", caps={"KEY": 30})
    more = each.differences - len(each.found)
    after = [Text(f"and {plural(more, 'more difference')}", style="dim")] if more > 0 else []
    return Drawn(sheet, Text(""), drawn, *after)


def _run_facts(each: ReconcileRun, now: datetime) -> Iterable[tuple[str, str | Text | None]]:
    yield "run", str(each.id)
    yield "reconciler", each.name + (", dry run" if each.dry_run else "")
    yield "state", _coloured(each.state)
    yield "started", f"{when(each.started_at, now)} by {each.started_by}"
    if each.ended_at is not None:
        yield "took", span((each.ended_at - each.started_at).total_seconds())
    yield "compared", plural(each.compared, "key")
    yield "found", f"{each.missing:,} missing, {each.extra:,} extra, {each.different:,} different"
    if not each.dry_run:
        yield "done", f"{plural(each.published, 'event')} published, {each.coalesced:,} had one, {each.healed:,} healed"
    yield "error", each.error


def _change(each: Found | Finding) -> str:
    return one_line(f"{_value(each.desired)}, {_value(each.actual)}", 200)


def _value(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _coloured(state: str) -> Text:
    return Text(clean(state), style=_COLOURS.get(state, "dim"))


# --- looking ---


@app.command("ls")
def ls(ctx: typer.Context, output: OutputOption = Output.TABLE, url: UrlOption = None) -> None:
    """List reconcilers, the engine's own too: when they ran, how that ended, how many findings are open."""
    found, now = run(_standing(url_from(ctx, url)))
    if found or output is not Output.TABLE:
        show.listing(found, output, lambda each: each.to_json(), lambda shown: _standing_table(shown, now))
    else:
        show.put_line("None has run yet: `redrive reconcile NAME --app APP` runs one.")


async def _standing(url: str) -> tuple[list[Standing], datetime]:
    async with existing(url) as opened:
        return await opened.reconcilers.standing(), opened.clock.now()


def _standing_table(found: Sequence[Standing], now: datetime) -> RenderableType:
    rows = [
        (
            one_line(each.name, 60),
            "" if each.looked_at is None else when(each.looked_at, now),
            _coloured(each.state or ""),
            number(each.open_count),
            number(each.recurring_count) if each.recurring_count else "",
            one_line(each.error or "", 200),
        )
        for each in found
    ]
    columns = ("NAME", "LOOKED", "LAST RUN", "OPEN", "RECURRING", "ERROR")
    return show.table(columns, rows, wide="ERROR", caps={"NAME": 30}, right="OPEN", spare=("RECURRING",))


@app.command("runs")
def runs(
    ctx: typer.Context, name: OfArgument = None, limit: LimitOption = 20, output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:  # fmt: skip
    """List runs, the latest first: what each found and did."""
    found, now = run(_runs(url_from(ctx, url), name, limit))
    if found or output is not Output.TABLE:
        show.listing(found, output, lambda each: each.to_json(), lambda shown: _runs_table(shown, now))
    else:
        show.put_line("No run is known.")


async def _runs(url: str, name: str | None, limit: int) -> tuple[list[ReconcileRun], datetime]:
    async with existing(url) as opened:
        return await opened.reconcilers.runs(name, limit=limit), opened.clock.now()


def _runs_table(found: Sequence[ReconcileRun], now: datetime) -> RenderableType:
    rows = [
        (
            str(each.id),
            one_line(each.name, 60),
            _coloured(each.state),
            when(each.started_at, now),
            f"{each.differences:,}",
            one_line(each.error or ("dry run" if each.dry_run else f"{each.published:,} published"), 200),
        )
        for each in found
    ]
    columns = ("RUN", "NAME", "STATE", "STARTED", "FOUND", "WHAT")
    return show.table(columns, rows, wide="WHAT", caps={"NAME": 20}, right="FOUND", spare=("STARTED",))


@app.command("show")
def show_one(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id, or a unique beginning of it.")],
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Show one run: what it compared, found and did, and its first hundred differences."""
    found, now = run(_one(url_from(ctx, url), run_id))
    show.single(found, output, lambda each: each.to_json(), lambda each: _run_sheet(each, now))


async def _one(url: str, run_id: str) -> tuple[ReconcileRun, datetime]:
    async with existing(url) as opened:
        return await opened.reconcilers.get_run(run_id), opened.clock.now()


@app.command("findings")
def findings(
    ctx: typer.Context,
    name: OfArgument = None,
    state: Annotated[Which, typer.Option("--state", "-s", help="Which.")] = Which.OPEN,
    recurring: Annotated[bool, typer.Option("--recurring", help="Only what keeps coming back, or stays.")] = False,
    limit: LimitOption = 100,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List findings, the latest first: which key, what differs, since when, and what its event has come to."""
    wanted = None if state is Which.ALL else state.value
    found, now = run(_findings(url_from(ctx, url), name, wanted, limit, recurring=recurring))
    if found or output is not Output.TABLE:
        show.listing(found, output, lambda each: each.to_json(), lambda shown: _findings_table(shown, now))
    else:
        show.put_line(f"No finding is {state.value}." if state is not Which.ALL else "Nothing was ever found.")


async def _findings(
    url: str, name: str | None, state: str | None, limit: int, *, recurring: bool
) -> tuple[list[Finding], datetime]:
    async with existing(url) as opened:
        found = (
            await opened.reconcilers.recurring(name, limit=limit)
            if recurring
            else await opened.reconcilers.findings(name, state=state, limit=limit)
        )
        return found, opened.clock.now()


def _findings_table(found: Sequence[Finding], now: datetime) -> RenderableType:
    rows = [
        (
            str(each.id),
            one_line(f"{each.name} {each.key}", 80),
            each.kind,
            _coloured(each.state),
            when(each.first_seen_at, now),
            _became(each),
        )
        for each in found
    ]
    columns = ("FINDING", "KEY", "KIND", "STATE", "SINCE", "WHAT BECAME OF IT")
    return show.table(columns, rows, wide="WHAT BECAME OF IT", caps={"KEY": 24}, spare=("SINCE", "STATE"))


def _became(each: Finding) -> str:
    seen = f"seen {times(each.seen_count)}" if each.seen_count > 1 else ""
    back = f"came back {times(each.returned_count)}" if each.returned_count else ""
    event = each.event_status or ("repaired" if each.converged_at is not None else "")
    return one_line(", ".join(filter(None, (event, seen, back, each.note or ""))), 200)


@app.command("ignore")
def ignore(
    ctx: typer.Context,
    finding_id: Annotated[str, typer.Argument(metavar="FINDING", help="Its id, or a unique beginning of it.")],
    reason: ReasonOption = None,
    by: ByOption = None,
    url: UrlOption = None,
) -> None:
    """Say that a difference may stay: nothing is done about it until it was gone and comes back."""
    found = run(_ignore(url_from(ctx, url), finding_id, actor(by), reason_from(reason, "ignore")))
    say(f"✓ {found.name} {found.key} may stay as it is")


async def _ignore(url: str, finding_id: str, by: str, reason: str) -> Finding:
    async with existing(url) as opened:
        return await opened.reconcilers.ignore(finding_id, by=by, reason=reason)
